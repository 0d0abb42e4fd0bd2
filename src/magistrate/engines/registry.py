"""Engines from the words of a command or a file."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from magistrate import _fork
from magistrate.engines.base import Engine
from magistrate.engines.kinds import SHORTHANDS, Shorthand
from magistrate.engines.settings import OPTIONS, EngineSettings
from magistrate.errors import SpecError

ENGINES = "magistrate.engines"  # the entry-point group through which packages add kinds of engines
UNSAID = EngineSettings()

_loading = threading.Lock()  # a cache alone would let two threads load the same weights


@cache
def engine_entries() -> Mapping[str, EntryPoint]:
    """Every kind of engine that is installed beside the embedded one, by the word before a model."""
    return {entry.name: entry for entry in sorted(entry_points(group=ENGINES), key=lambda each: each.name)}


def engine_kind(model: object) -> tuple[str, str] | None:
    """The kind of engine and the model that `openai:gpt-4o-mini` and its like name; None for other models.

    >>> engine_kind("openai:gpt-4o-mini"), engine_kind("smollm2-135m")
    (('openai', 'gpt-4o-mini'), None)
    >>> engine_kind("ollama:llama3.2:1b")
    ('openai', 'llama3.2:1b')
    """
    kind, colon, name = model.partition(":") if isinstance(model, str) else ("", "", "")
    if colon and (short := shorthands().get(kind)) is not None:
        kind = short.kind
    return (kind, name) if colon and kind in engine_entries() else None


def shorthands() -> Mapping[str, Shorthand]:
    """The words that stand for a kind of engine at a usual address, but for those that a package brings as a
    kind of its own."""
    return {each.word: each for each in SHORTHANDS if each.word not in engine_entries()}


def engine(
    model: str | Path | Engine | None = None,
    settings: EngineSettings = UNSAID,
) -> Engine:
    """The engine of a model; an engine is passed through.

    `KIND:MODEL` is a model of an installed kind of engine, such as `openai:gpt-4o-mini`, or `transformers:`
    and a folder; `ollama:MODEL` and `vllm:MODEL` are models on such servers of one's own, where they usually
    listen unless `settings` name an address. Anything else is for the embedded engine: a catalogue name, a
    GGUF file or an OpenVINO folder. Each engine is made once a process, so that weights are loaded and
    servers are probed once; who names a concurrency gets a share of its own in it
    (`engine.sharing(concurrency)`, where there is such).
    Raises `SpecError` for settings that it has no use for; one that is made already has none for any.
    """
    if model is not None and not isinstance(model, str | Path):
        settings.refuse(f"an engine that is made already ({type(model).__name__})", *OPTIONS)
        return model
    if model is None:
        from magistrate.engines.models import default

        model = default().name
    model, settings = _written_out(str(model), settings)
    with _loading:
        found = _opened(model, replace(settings, concurrency=None))
    share = None if settings.concurrency is None else getattr(found, "sharing", None)
    shared: Engine = found if share is None else share(settings.concurrency)
    return shared


def _written_out(model: str, settings: EngineSettings) -> tuple[str, EngineSettings]:
    """A model and its settings without a shorthand, so that both ways to write it are the same engine."""
    word, colon, name = model.partition(":")
    if (short := shorthands().get(word)) is None or (not colon and Path(model).expanduser().exists()):
        return model, settings
    if not name:
        raise SpecError(f"{word!r} needs a model: {word}:MODEL")
    return f"{short.kind}:{name}", replace(settings, base_url=settings.base_url or short.base_url)


def _open(model: str, settings: EngineSettings) -> Engine:
    if (named := engine_kind(model)) is None:
        from magistrate.engines.embedded import open_engine

        _check_kind(model)
        return open_engine(model, settings)
    kind, name = named
    if not name:
        raise SpecError(f"{kind!r} needs a model: {kind}:MODEL")
    try:
        opened = engine_entries()[kind].load()
    except Exception as error:  # a package's own code
        raise SpecError(
            f"engine {kind!r} ({engine_entries()[kind].value}) cannot be loaded: {error}"
        ) from error
    made: Engine = opened(name, settings)
    return made


def _forget() -> None:
    """After a fork engines are made anew; those of the parent are kept from being closed with it."""
    global _loading, _opened
    _left.append(_opened)
    _loading, _opened = threading.Lock(), cache(_open)


_opened = cache(_open)
_left: list[object] = []
_fork.in_child(_forget)


def _check_kind(model: str) -> None:
    """Raise `SpecError` where `model` is meant as another kind of engine's, and written otherwise."""
    word, colon, _ = model.partition(":")
    if Path(model).expanduser().exists():
        return
    if not colon and word in engine_entries():
        raise SpecError(f"{word!r} needs a model: {word}:MODEL")
    known = [*engine_entries(), *shorthands()]
    meant = difflib.get_close_matches(word, known, n=1) if colon else []
    if meant:
        raise SpecError(
            f"unknown kind of engine {word!r} in {model!r}; did you mean {meant[0]!r}? "
            f"Known: {', '.join(known)}"
        )
