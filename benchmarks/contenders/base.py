"""The interface of a contender of the speed benchmark.

Every contender is measured in its own child process, under the Python that has its packages. So this module
and `workload` import only the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol, cast

from magistrate.errors import SpecError


@dataclass(frozen=True, slots=True)
class Weights:
    """The files of one model, with the same weights in every form.

    `ir`: OpenVINO folder. `gguf`: Q8_0 GGUF with the same weights, None where the model has none.
    `tokenizer`: folder with `tokenizer.json` and `tokenizer_config.json` (chat template included).
    """

    ir: Path
    gguf: Path | None
    tokenizer: Path


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt.

    `user` is the text of the only message, of role user, for contenders that render the chat template
    themselves. `prompt` is the same rendered with the model's template, the assistant's turn opened (its
    special tokens are to be parsed, nothing is to be added), and `tokens` its token ids. The first
    `shared` tokens, which are the first `shared_text` characters of `prompt`, stand in all items of a
    shared-prefix work; 0 where nothing is shared.
    """

    user: str
    prompt: str
    tokens: tuple[int, ...]
    shared: int = 0
    shared_text: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurement of one call of a work.

    `count`: answers (masks for `mask`). `tokens`: tokens written; for `prefill` tokens read. `seconds`:
    wall-clock time of the measured part, without loading and compiling a schema. `valid`: answers in the
    requested form: parsed under the schema, or not empty without one. `extra`: further numbers by name.
    """

    count: int
    tokens: int
    seconds: float
    valid: int
    extra: Mapping[str, float] = field(default_factory=dict)


class Contender(Protocol):
    """An engine, used in its normal way for the works that it can do.

    `load` is called once, first. Methods of works not in `works` are never called and may be missing. An
    exception becomes a failure with that reason, and the run goes on. Each work warms itself up if its
    first call would be slow (compiling a schema), outside the seconds it reports.
    """

    name: str
    works: frozenset[str]

    def version(self) -> str:
        """Return the packages and versions, such as `outlines 1.3.3, torch 2.13.0`; before `load`."""

    def load(self, weights: Weights, threads: int) -> None:
        """Load the model, to run on `threads` threads."""

    def verdict_only(self, items: Sequence[Item], in_flight: int) -> Measured:
        """One of `workload.OPTIONS` for each item, at most `in_flight` at once."""

    def verdict_with_reasons(self, items: Sequence[Item], in_flight: int) -> Measured:
        """Return an answer under `workload.SCHEMA` for each item, greedy, compact if possible."""

    def unconstrained(self, items: Sequence[Item], in_flight: int) -> Measured:
        """Generate `workload.ANSWER_TOKENS` tokens for each item, greedy, without early end if possible."""

    def prefill(self, items: Sequence[Item]) -> Measured:
        """Read prompts that share nothing up to the logits after their last tokens, all offered at once."""

    def decode(self, items: Sequence[Item], in_flight: int) -> Measured:
        """Decode `workload.DECODE_TOKENS` tokens after each prompt; the results exclude reading it."""

    def mask(self) -> Measured:
        """Compute `count` token masks along `workload.RUBRIC_ANSWER` under `workload.RUBRIC`."""

    def close(self) -> None:
        """Free what was loaded and stop what was started."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A contender by name: its class as `module:Class`, which weights it runs on, and whether it needs
    the peers' Python. `files` says which form of the weights it reads."""

    target: str
    weights: Literal["int8", "f16"] = "int8"
    peer: bool = False
    files: Literal["ir", "gguf"] = "ir"


CONTENDERS: Mapping[str, Registered] = MappingProxyType(
    {
        "magistrate": Registered("benchmarks.contenders.embedded:Magistrate"),
        "magistrate-f16": Registered("benchmarks.contenders.embedded:Magistrate", weights="f16"),
        "outlines-transformers": Registered(
            "benchmarks.contenders.outlines:OutlinesTransformers", peer=True, files="gguf"
        ),
        "phoenix-xllamacpp": Registered(
            "benchmarks.contenders.phoenix:PhoenixXllamacpp", peer=True, files="gguf"
        ),
        "llama.cpp": Registered("benchmarks.contenders.llama_cpp:LlamaCpp", peer=True, files="gguf"),
    }
)


def made(target: str) -> Contender:
    """Create the contender that `module:Class` names.

    Raises `SpecError`, or `ImportError` if its packages are not installed.
    """
    module, colon, name = target.partition(":")
    if not colon:
        raise SpecError(f"{target!r} names no contender; write it as module:Class")
    found: Any = getattr(import_module(module), name, None)
    if found is None:
        raise SpecError(f"the module {module} has no {name!r}")
    return cast(Contender, found())
