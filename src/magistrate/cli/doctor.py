"""`magistrate doctor`: what is installed, found, fast and missing."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

import click

from magistrate.cli.options import json_option, print_json
from magistrate.cli.tables import print_table


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: fine, missing (something will not work) or just a note."""

    what: str
    state: Literal["ok", "missing", "note"]
    detail: str


@click.command(epilog="Example: magistrate doctor --quick")
@click.option("--quick", is_flag=True, help="Do not load the model.")
@json_option
def command(quick: bool, as_json: bool) -> int:
    """Look at this installation: packages, model, store, speed. Exits with 1 if something is missing."""
    from magistrate.cli import DONE, GATE_FAILED

    findings = [*_packages(), *_places(), *_model(quick)]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        rows = [[each.what, each.state, each.detail] for each in findings]
        print_table(["what", "state", "detail"], rows, wrapped={"detail": 30})
    return GATE_FAILED if any(each.state == "missing" for each in findings) else DONE


def _packages() -> Iterator[Finding]:
    from magistrate.report.extras import extras
    from magistrate.version import __version__

    yield Finding("magistrate", "ok", __version__)
    yield Finding(
        "python",
        "ok",
        f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}",
    )
    for extra in extras():
        if extra.absent:
            hint = f"not installed: {', '.join(extra.absent)}; {extra.hint}"
            yield Finding(f"extra {extra.name}", "missing" if extra.name == "local" else "note", hint)
        else:
            yield Finding(f"extra {extra.name}", "ok", ", ".join(extra.found))


def _places() -> Iterator[Finding]:
    import os

    from magistrate.datasets import describe
    from magistrate.errors import MagistrateError
    from magistrate.home import default_store, home
    from magistrate.store import Store

    yield Finding(
        "home",
        "ok" if home().exists() else "note",
        f"{home()}{'' if home().exists() else ' (made when needed)'}",
    )
    if default_store().exists():
        try:
            with Store.open(default_store()) as store:
                yield Finding("store", "ok", f"{len(store.runs())} runs in {default_store()}")
        except MagistrateError as error:
            yield Finding("store", "missing", str(error))
    else:
        yield Finding("store", "note", "no runs yet")
    folder = os.environ.get("MAGISTRATE_DATA_DIR")
    here = [f"{each.name}: {each.where}" for each in describe()]
    yield Finding("datasets", "ok" if folder else "note", "; ".join(here))


def _model(quick: bool) -> Iterator[Finding]:
    from magistrate.engines.catalog import default, is_pulled
    from magistrate.engines.local.cores import available_cores
    from magistrate.engines.quiet import import_openvino
    from magistrate.errors import MagistrateError

    model = default()
    if not is_pulled(model):
        yield Finding(
            "model", "missing", f"{model.name} is not here; run: magistrate models pull {model.name}"
        )
        return
    yield Finding("model", "ok", f"{model.name}, {model.licence}, context {model.context_length} tokens")
    yield Finding("cores", "ok", str(available_cores()))
    if quick:
        return
    try:
        yield Finding("devices", "ok", ", ".join(import_openvino().Core().available_devices))
        yield Finding("speed", "ok", _speed())
    except MagistrateError as error:
        yield Finding("engine", "missing", str(error))


def _speed() -> str:
    """Load the model, judge one sample twice and say how long it took."""
    from magistrate import judging, resolve

    start = time.perf_counter()
    engine = resolve.engine()
    context = "The museum opens at nine and closes at five, on Fridays at eight. Entry is free for children."
    judging.judge(output="It closes at five.", context=context, judge="faithfulness", model=engine)
    loaded = time.perf_counter()
    judging.judge(output="Children pay nothing.", context=context, judge="faithfulness", model=engine)
    next_ms = 1000 * (time.perf_counter() - loaded)
    return f"first verdict after {loaded - start:.1f} s (with loading), the next in {next_ms:.0f} ms"
