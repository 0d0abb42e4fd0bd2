"""Names become objects here and nowhere else: judges and engines from the words of a command or a file."""

from __future__ import annotations

import dataclasses
import difflib
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.judges.base import Judge

JUDGES = "magistrate.judges"  # the entry-point group through which packages add judges, built-in ones too
DEFAULT_JUDGE = "faithfulness"

_loading = threading.Lock()  # a cache alone would let two threads load the same weights


@cache
def judge_entries() -> Mapping[str, EntryPoint]:
    """Every judge that is installed, by name."""
    return {entry.name: entry for entry in sorted(entry_points(group=JUDGES), key=lambda each: each.name)}


def judge(spec: str | Judge) -> Judge:
    """A judge by name, with options as in `faithfulness:prior=empty_context,explain=true`.

    A judge with options is named as it was written. Raises `SpecError` for unknown names, unknown
    options and values of the wrong type.
    """
    if not isinstance(spec, str):
        if isinstance(spec, type) or not hasattr(spec, "judge") or not hasattr(spec, "info"):
            raise SpecError(f"a judge is a name or an object such as Faithfulness(), got {spec!r}")
        return spec
    name, colon, options = spec.partition(":")
    known = judge_entries()
    if name not in known:
        raise SpecError(unknown("judge", name, list(known)))
    try:
        kind = known[name].load()
    except (ImportError, AttributeError) as error:
        raise SpecError(f"judge {name!r} ({known[name].value}) cannot be loaded: {error}") from error
    if not colon:
        return _build(kind, name, {"name": name})
    words = [_option(spec, word) for word in options.split(",")]
    given = dict(words)
    if len(given) < len(words):
        raise SpecError(f"an option is set twice in {spec!r}")
    return _build(kind, name, {"name": spec, **given})


def judges(specs: str | Judge | Sequence[str | Judge]) -> list[Judge]:
    """One judge or several, from names or objects."""
    several = specs if isinstance(specs, Sequence) and not isinstance(specs, str) else [specs]
    return [judge(spec) for spec in several]


def engine(
    model: str | Path | Engine | None = None, *, device: str | None = None, threads: int | None = None
) -> Engine:
    """The embedded engine on a catalogue name, GGUF file or OpenVINO folder; an engine is passed through.

    One engine a model is kept for the process, so that weights are loaded once.
    """
    if model is not None and not isinstance(model, str | Path):
        return model
    if threads is not None and threads < 1:
        raise SpecError(f"threads must be at least 1, got {threads}")
    from magistrate.engines.catalog import default

    with _loading:
        return _local(str(model) if model is not None else default().name, device, threads)


@cache
def _local(model: str, device: str | None, threads: int | None) -> Engine:
    from magistrate.engines.local.engine import LocalEngine

    return LocalEngine(model, device=device, threads=threads)


def unknown(kind: str, name: str, known: Sequence[str], *, of: str = "", see: str = "judges") -> str:
    """What to say of a name that nothing `of` that bearer has, with the nearest ones first."""
    near = difflib.get_close_matches(name, known, n=3)
    meant = f" (did you mean {' or '.join(repr(each) for each in near)}?)" if near else ""
    listed = ", ".join(known) or "none"
    return f"unknown {kind} {name!r}{of}{meant}; known: {listed}; see 'magistrate {see}'"


def _option(spec: str, word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or not key.strip():
        raise SpecError(f"options of a judge are written NAME:key=value,key=value; got {spec!r}")
    return key.strip(), value.strip()


def _build(kind: Any, name: str, options: Mapping[str, Any]) -> Judge:
    from pydantic import TypeAdapter, ValidationError

    fields = [field.name for field in dataclasses.fields(kind)]
    for option in options:
        if option not in fields:
            choices = [field for field in fields if field != "name"]
            raise SpecError(unknown("option", option, choices, of=f" of judge {name!r}"))
    try:
        built: Judge = TypeAdapter(kind).validate_python(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(each) for each in first["loc"])
        raise SpecError(f"judge {name!r}, option {where!r}: {first['msg']}; got {first['input']!r}") from None
    return built
