"""Kinds of engines, and opening an engine by its model: `openai:gpt-4o-mini`, a file, a name."""

from __future__ import annotations

import difflib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path

from magistrate import _fork
from magistrate.engines.base import OPTIONS, Capability, Engine, EngineSettings, SharedEngine
from magistrate.errors import SpecError

ENGINES = "magistrate.engines"  # the entry-point group through which packages add kinds of engines
UNSAID = EngineSettings()

_loading = threading.Lock()  # with a cache alone, two threads could load the same weights


SERVED: frozenset[Capability] = frozenset({"generate", "choose", "constraints"})
IN_PROCESS: frozenset[Capability] = SERVED | {
    "likelihood",
    "data_isolation",
    "exact_probability",
    "trace",
    "capture",
    "repeatable",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of engine.

    `word` is the prefix of a model, as in `openai:gpt-4o-mini`; "" for the embedded engine. `most` are the
    most capabilities that such an engine can have; its `info` has the actual ones. `packages` are the
    distributions that the extra `extra` installs. `key` is the environment variable for a key.
    """

    word: str
    extra: str
    packages: tuple[str, ...]
    summary: str
    example: str
    most: frozenset[Capability]
    key: str | None = None

    @property
    def found(self) -> tuple[str, ...]:
        """The installed packages with their versions."""
        return tuple(f"{name} {found}" for name, found in self._versions() if found is not None)

    @property
    def absent(self) -> tuple[str, ...]:
        """The packages that are not installed."""
        return tuple(name for name, found in self._versions() if found is None)

    def missing(self) -> Iterator[str]:
        """Yield each thing that is missing on this machine, with what to do about it."""
        if self.absent:
            yield f"not installed: {', '.join(self.absent)}; pip install 'magistrate[{self.extra}]'"
        if self.key is not None and not os.environ.get(self.key):
            yield f"{self.key} is not set (your own server may not need it)"

    def _versions(self) -> Iterator[tuple[str, str | None]]:
        for name in self.packages:
            try:
                yield name, version(name)
            except PackageNotFoundError:
                yield name, None


@dataclass(frozen=True, slots=True)
class Shorthand:
    """A short prefix: `word:MODEL` means `kind:MODEL` at `base_url`, the usual address of `server`."""

    word: str
    kind: str
    base_url: str
    server: str


SHORTHANDS = (
    Shorthand("ollama", "openai", "http://localhost:11434/v1", "Ollama"),
    Shorthand("vllm", "openai", "http://localhost:8000/v1", "vLLM"),
)

KINDS = (
    Kind(
        "",
        "local",
        ("openvino", "openvino-genai", "llguidance", "gguf"),
        "a small model in this process, with OpenVINO; the default",
        "magistrate judge --judge faithfulness",
        IN_PROCESS | {"hidden_states"},
    ),
    Kind(
        "openai",
        "openai",
        ("openai",),
        "OpenAI, and servers with the same protocol: llama.cpp, vLLM, SGLang, Ollama, LM Studio, NIM, "
        "gateways",
        "magistrate judge --judge faithfulness --model openai:MODEL --base-url http://127.0.0.1:8080/v1",
        SERVED | {"likelihood", "data_isolation", "exact_probability", "repeatable"},
        key="OPENAI_API_KEY",
    ),
    Kind(
        "anthropic",
        "anthropic",
        ("anthropic",),
        "Anthropic's models, with structured output",
        "magistrate judge --judge hallucination --model anthropic:MODEL",
        SERVED,
        key="ANTHROPIC_API_KEY",
    ),
    Kind(
        "transformers",
        "transformers",
        ("torch", "transformers"),
        "a transformers folder in this process, on CPU or CUDA; returns attention and hidden states",
        "magistrate judge --judge faithfulness --model transformers:FOLDER",
        IN_PROCESS | {"hidden_states", "attention"},
    ),
)


# --- from a name to an engine --------------------------------------------------------------------


@cache
def engine_entries() -> Mapping[str, EntryPoint]:
    """Return the installed kinds of engines other than the embedded one, by prefix."""
    return {entry.name: entry for entry in sorted(entry_points(group=ENGINES), key=lambda each: each.name)}


def engine_kind(model: object) -> tuple[str, str] | None:
    """Return the kind of engine and the model in a name such as `openai:gpt-4o-mini`; None for other names.

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
    """Return the shorthands, except for words that an installed package uses for its own kind."""
    return {each.word: each for each in SHORTHANDS if each.word not in engine_entries()}


def engine(
    model: str | Path | Engine | None = None,
    settings: EngineSettings = UNSAID,
) -> Engine:
    """Open the engine of a model; an engine is returned unchanged.

    `KIND:MODEL` is a model of an installed kind of engine, such as `openai:gpt-4o-mini`, or `transformers:`
    and a folder. `ollama:MODEL` and `vllm:MODEL` are models on such servers, at their usual address unless
    `settings` give another. Anything else is for the embedded engine: a catalogue name, a GGUF file or an
    OpenVINO folder. Each engine is made once per process, so that weights are loaded and servers are probed
    once. With a `concurrency` in the settings, the result is a share of it with that limit (of a
    `SharedEngine`).

    Raises `SpecError` for settings that the engine cannot use. An engine that is passed in accepts no
    settings.
    """
    if model is not None and not isinstance(model, str | Path):
        settings.refuse(f"an existing engine ({type(model).__name__})", *OPTIONS)
        return model
    if model is None:
        from magistrate.engines.models import default

        model = default().name
    model, settings = _written_out(str(model), settings)
    with _loading:
        found = _opened(model, replace(settings, concurrency=None))
    if settings.concurrency is not None and isinstance(found, SharedEngine):
        return found.sharing(settings.concurrency)
    return found


def _written_out(model: str, settings: EngineSettings) -> tuple[str, EngineSettings]:
    """Expand a shorthand in a model and its settings, so that both spellings are the same engine."""
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
    except Exception as error:  # code of another package
        raise SpecError(
            f"engine {kind!r} ({engine_entries()[kind].value}) cannot be loaded: {error}"
        ) from error
    made: Engine = opened(name, settings)
    return made


def _forget() -> None:
    """Make new engines after a fork. The parent's stay referenced, so that the child does not close them."""
    global _loading, _opened
    _left.append(_opened)
    _loading, _opened = threading.Lock(), cache(_open)


_opened = cache(_open)
_left: list[object] = []
_fork.in_child(_forget)


def _check_kind(model: str) -> None:
    """Raise `SpecError` if `model` looks like a misspelled kind of engine."""
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
