"""The kinds of engines of this package: what each needs, what is missing of that here, and shorthands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from magistrate.engines.base import Capability

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
    """One kind of engine. `word` stands before a model, as in `openai:gpt-4o-mini`, "" for the embedded one.

    `most` is what such an engine can do at most; what one of them can do is in its `info`. `packages` are the
    distributions that the extra `extra` installs; `key` is the environment variable that holds a key.
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
        """Its packages that are here, each with its version."""
        return tuple(f"{name} {found}" for name, found in self._versions() if found is not None)

    @property
    def absent(self) -> tuple[str, ...]:
        """Its packages that are not here."""
        return tuple(name for name, found in self._versions() if found is None)

    def missing(self) -> Iterator[str]:
        """What is missing, each with what to do about it."""
        if self.absent:
            yield f"not installed: {', '.join(self.absent)}; pip install 'magistrate[{self.extra}]'"
        if self.key is not None and not os.environ.get(self.key):
            yield f"{self.key} is not set (a server of one's own may need none)"

    def _versions(self) -> Iterator[tuple[str, str | None]]:
        for name in self.packages:
            try:
                yield name, version(name)
            except PackageNotFoundError:
                yield name, None


@dataclass(frozen=True, slots=True)
class Shorthand:
    """`word:MODEL`, which is `kind:MODEL` at `base_url`, where `server` usually listens."""

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
        ("openvino-genai", "gguf"),
        "a small model in this process, on OpenVINO; the default",
        "magistrate judge --judge faithfulness",
        IN_PROCESS | {"hidden_states"},
    ),
    Kind(
        "openai",
        "openai",
        ("openai",),
        "OpenAI, and servers of its protocol: llama.cpp, vLLM, SGLang, Ollama, LM Studio, NIM, gateways",
        "magistrate judge --judge faithfulness --model openai:MODEL --base-url http://127.0.0.1:8080/v1",
        SERVED | {"likelihood", "data_isolation", "exact_probability", "repeatable"},
        key="OPENAI_API_KEY",
    ),
    Kind(
        "anthropic",
        "anthropic",
        ("anthropic",),
        "Anthropic's models, by structured output",
        "magistrate judge --judge hallucination --model anthropic:MODEL",
        SERVED,
        key="ANTHROPIC_API_KEY",
    ),
    Kind(
        "transformers",
        "transformers",
        ("torch", "transformers"),
        "a folder of transformers in this process, on processors or CUDA; shows attention and hidden states",
        "magistrate judge --judge faithfulness --model transformers:FOLDER",
        IN_PROCESS | {"hidden_states", "attention"},
    ),
)
