"""`magistrate doctor`: check the installation, the engine and the files."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

import click

from magistrate.cli.options import json_option, model_options
from magistrate.cli.output import PIPED, print_json, print_table

if TYPE_CHECKING:
    from magistrate.engines.base import Engine, EngineSettings


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: ok, missing (something will not work), or just a note."""

    what: str
    state: Literal["ok", "missing", "note"]
    detail: str


@click.command(
    short_help="Check packages, engines, model, store and speed.", epilog="Example: magistrate doctor --quick"
)
@click.option("--quick", is_flag=True, help="Do not load the model.")
@model_options
@json_option
def command(
    quick: bool,
    model: str | None,
    settings: EngineSettings,
    as_json: bool,
) -> int:
    """Check this installation: packages, engines, model, store, speed. Exits with 1 if something is missing.

    With --model it checks this model: what it can do, and how.
    """
    from magistrate.cli.exit_codes import DONE, GATE_FAILED

    asked = _embedded(quick) if model is None else _named(model, settings, quick)
    findings = [*_packages(), *_places(), _default_judge(), *_engines(), *asked]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        rows = [[each.what, each.state, each.detail] for each in findings]
        print_table(["what", "state", "detail"], rows, wrapped={"detail": 30}, piped=PIPED)
    return GATE_FAILED if any(each.state == "missing" for each in findings) else DONE


def _packages() -> Iterator[Finding]:
    from magistrate._version import __version__
    from magistrate.engines.registry import KINDS
    from magistrate.report.judges import extras

    yield Finding("magistrate", "ok", __version__)
    yield Finding(
        "python",
        "ok",
        f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}",
    )
    for extra in extras():
        if extra.name in {kind.extra for kind in KINDS}:
            continue
        if extra.absent:
            hint = f"not installed: {', '.join(extra.absent)}; {extra.hint}"
            yield Finding(f"extra {extra.name}", "note", hint)
        else:
            yield Finding(f"extra {extra.name}", "ok", ", ".join(extra.found))


def _default_judge() -> Finding:
    """Return what `auto` stands for."""
    from magistrate.judges.auto import best
    from magistrate.judges.registry import spelled

    return Finding("default judge", "ok", f"auto is {spelled(best())}")


def _engines() -> Iterator[Finding]:
    """Yield what each kind of engine needs. Only the embedded one is required."""
    from magistrate.engines.registry import KINDS
    from magistrate.judges.registry import engine_entries, shorthands

    for kind in KINDS:
        what = f"engine {kind.word or 'embedded'}"
        missing = list(kind.missing())
        found = [", ".join(kind.found)] if kind.found else []
        state: Literal["ok", "missing", "note"] = "note" if missing else "ok"
        yield Finding(what, "missing" if kind.absent and not kind.word else state, "; ".join(missing + found))
    there = {kind.word for kind in KINDS if not kind.absent}
    for word, short in shorthands().items():
        detail = f"{word}:MODEL means {short.kind}:MODEL at {short.base_url}, unless you give --base-url"
        yield Finding(f"engine {word}", "ok" if short.kind in there else "note", detail)
    for name, entry in engine_entries().items():
        if name not in {kind.word for kind in KINDS}:
            package = "" if entry.dist is None else f", from {entry.dist.name} {entry.dist.version}"
            yield Finding(f"engine {name}", "ok", f"{entry.value}{package}")


def _places() -> Iterator[Finding]:
    import os

    from magistrate._paths import default_store, home
    from magistrate._text import counted
    from magistrate.datasets import describe
    from magistrate.errors import MagistrateError
    from magistrate.store import Store

    yield Finding(
        "home",
        "ok" if home().exists() else "note",
        f"{home()}{'' if home().exists() else ' (made when needed)'}",
    )
    if default_store().exists():
        try:
            with Store.open(default_store()) as store:
                yield Finding("store", "ok", f"{counted(len(store.runs()), 'run')} in {default_store()}")
        except MagistrateError as error:
            yield Finding("store", "missing", str(error))
    else:
        yield Finding("store", "note", "no runs yet")
    folder = os.environ.get("MAGISTRATE_DATA_DIR")
    places: dict[str, list[str]] = {}
    for each in describe():
        places.setdefault(each.where, []).append(each.name)
    told = "; ".join(f"{', '.join(names)}: {where}" for where, names in places.items())
    yield Finding("datasets", "ok" if folder else "note", told)


def _named(model: str, settings: EngineSettings, quick: bool) -> Iterator[Finding]:
    """Yield facts about the named model: identity, capabilities, speed."""
    from typing import get_args

    from magistrate.engines.base import Capability
    from magistrate.errors import MagistrateError
    from magistrate.judges import registry

    try:
        engine = registry.engine(model, settings)
        info = engine.info
    except MagistrateError as error:
        yield Finding("model", "missing", str(error))
        return
    window = f"context {info.context_window} tokens"
    yield Finding("model", "ok", f"{info.model} ({info.name}), {window}, fingerprint {info.fingerprint[:12]}")
    cannot = sorted(set(get_args(Capability)) - info.can)
    yield Finding("can", "ok", ", ".join(sorted(info.can)))
    yield Finding("cannot", "note", ", ".join(cannot) or "nothing")
    for name, way in info.ways.items():
        yield Finding(name, "note" if name == "probing" else "ok", way)
    if quick:
        return
    try:
        yield Finding("speed", "ok", _speed(engine))
    except MagistrateError as error:
        yield Finding("speed", "missing", str(error))


def _embedded(quick: bool) -> Iterator[Finding]:
    from magistrate.engines.disable_telemetry import import_openvino
    from magistrate.engines.embedded.cores import available_cores
    from magistrate.engines.models import default, is_pulled
    from magistrate.errors import MagistrateError
    from magistrate.judges import registry

    model = default()
    if not is_pulled(model):
        yield Finding(
            "model", "missing", f"{model.name} is not installed; run: magistrate models pull {model.name}"
        )
        return
    yield Finding("model", "ok", f"{model.name}, {model.licence}, context {model.context_length} tokens")
    yield Finding("cores", "ok", str(available_cores()))
    if quick:
        return
    try:
        yield Finding("devices", "ok", ", ".join(import_openvino().Core().available_devices))
        yield Finding("speed", "ok", _speed(registry.engine()))
    except MagistrateError as error:
        yield Finding("engine", "missing", str(error))


def _speed(engine: Engine) -> str:
    """Judge two samples and return how long each took. Raises `EngineError` if one fails."""
    from magistrate.api import judge as judging
    from magistrate.errors import EngineError
    from magistrate.types import Failure

    def judged(output: str) -> None:
        outcome = judging.judge(output=output, context=context, judge="faithfulness", model=engine)
        if isinstance(outcome, Failure):
            raise EngineError(str(outcome))

    start = time.perf_counter()
    context = "The museum opens at nine and closes at five, on Fridays at eight. Entry is free for children."
    judged("It closes at five.")
    loaded = time.perf_counter()
    judged("Children pay nothing.")
    next_ms = 1000 * (time.perf_counter() - loaded)
    return f"first verdict after {loaded - start:.1f} s (including loading), the next in {next_ms:.0f} ms"
