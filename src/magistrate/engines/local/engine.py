"""The embedded engine: a small model on this machine, behind the three verbs."""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import math
import os
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from magistrate.engines.base import (
    GREEDY,
    Capability,
    Choice,
    EngineInfo,
    Generation,
    Likelihood,
    Option,
    Sampling,
    check_options,
)
from magistrate.engines.catalog import describe, locate
from magistrate.engines.local import programs
from magistrate.engines.local.backend import CACHE_PRECISION, PRECISION, OpenVINOBackend
from magistrate.engines.local.blocks import blocks_for
from magistrate.engines.local.chat import ChatTokenizer, EncodedText
from magistrate.engines.local.pen import Pen
from magistrate.engines.local.scheduler import Program, Scheduler
from magistrate.errors import ModelError, OverLength, SpecError
from magistrate.types import Prompt

if TYPE_CHECKING:
    from magistrate.constraints import Constraint
    from magistrate.constraints.masks import MaskEngine
    from magistrate.engines.local.backend import Backend
    from magistrate.engines.local.prefix import PrefixCache

T = TypeVar("T")

CAN: frozenset[Capability] = frozenset(
    {"generate", "choose", "likelihood", "constraints", "data_isolation", "exact_probability", "trace"}
)
CACHE_BYTES = 512 * 1024 * 1024


class LocalEngine:
    """A model on this machine.

    `model` is a catalogue name, a GGUF file or an OpenVINO folder; `device` an OpenVINO device
    (default `CPU`); `threads` how many cores to use (default: those this process may run on);
    `cache_bytes` the size of the key-value cache; `most_active` how many requests run at once.
    Weights are loaded at the first request. Raises `ModelError` for weights that are not here.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: str | None = None,
        threads: int | None = None,
        cache_bytes: int = CACHE_BYTES,
        most_active: int = 32,
    ) -> None:
        self.folder = locate(model)
        self.device = device or os.environ.get("MAGISTRATE_DEVICE", "CPU")
        self.threads = available_cores() if threads is None else threads
        if min(self.threads, cache_bytes, most_active) < 1:
            raise SpecError(
                f"threads, cache_bytes and most_active must be at least 1, got {threads}, {cache_bytes} and "
                f"{most_active}"
            )
        self._card = describe(self.folder)
        self.tokenizer = ChatTokenizer(self.folder, self._card)
        self._masks: MaskEngine | None = None
        self._cache_bytes = cache_bytes
        self._scheduler = Scheduler(self._load, most_active)
        _open_engines.add(self)

    @cached_property
    def info(self) -> EngineInfo:
        """What this engine is; loads no weights."""
        card = self._card
        arithmetic = f"openvino {version('openvino')} {self.device} {PRECISION} cache {CACHE_PRECISION}"
        fingerprint = hashlib.sha256(f"{card.fingerprint} {arithmetic}".encode()).hexdigest()
        if card.context_length is None:
            raise ModelError(f"{self.folder} does not say how long its context window is (config.json)")
        return EngineInfo("local", card.name, fingerprint, card.context_length, CAN)

    async def generate(
        self, prompt: Prompt, constraint: Constraint | None = None, *, sampling: Sampling = GREEDY
    ) -> Generation:
        """Write an answer to `prompt`, completed within the budget where a constraint is given."""
        if constraint is not None:
            constraint.require_bounds()
        tokens = self.tokenizer.tokens(prompt)

        def start(backend: Backend, prefixes: PrefixCache) -> Program:
            matcher = None if constraint is None else self._mask_engine(backend).matcher(constraint)
            return programs.generate(backend, prefixes, tokens, Pen(self.tokenizer, matcher, sampling))

        written = await self._run(start, len(tokens) + sampling.max_tokens)
        text = self.tokenizer.decode(list(written.tokens))
        return Generation(
            text=text,
            value=text if constraint is None else constraint.parse(text),
            finish="stop" if written.finished else "length",
            steered=written.steered,
            tokens=written.tokens,
            usage=written.usage,
            trace=written.trace,
        )

    async def choose(self, prompt: Prompt, options: Sequence[Option]) -> Choice:
        """How probable each option is as the model's answer, exactly: a sum over its surfaces' paths."""
        import numpy as np

        check_options(options)
        tokens = self.tokenizer.tokens(prompt)
        paths = self._paths(options)
        flat = [path for group in paths for path in group]
        totals, usage = await self._run(
            lambda backend, prefixes: programs.choose(backend, prefixes, tokens, flat),
            len(tokens) + max(len(path) for path in flat),
            programs.blocks_to_choose(len(tokens), flat),
        )
        # Relative to the likeliest path, so that options of vanishing mass can still be compared.
        relative = iter(np.exp(np.array(totals) - max(totals)))
        weights = [sum(float(next(relative)) for _ in group) for group in paths]
        shares = {
            option.label: weight / sum(weights) for option, weight in zip(options, weights, strict=True)
        }
        mass = min(sum(weights) * math.exp(max(totals)), 1.0)
        return Choice(max(shares, key=shares.__getitem__), shares, mass, "exact", usage)

    async def likelihood(self, prompt: Prompt, text: str) -> Likelihood:
        """How probable `text` is as the model's answer, token by token."""
        if not text:
            raise SpecError("likelihood needs a text, got an empty one")
        tokens = self.tokenizer.tokens(prompt)
        encoded = self._answer(text)
        logprobs, usage = await self._run(
            lambda backend, prefixes: programs.likelihood(backend, prefixes, tokens, encoded.tokens),
            len(tokens) + len(encoded.tokens),
        )
        return Likelihood(text, encoded.tokens, logprobs, encoded.offsets, usage)

    def close(self) -> None:
        """Free the model; requests in flight fail."""
        self._scheduler.close()

    # ------------------------------------------------------------------------------------------------

    def _load(self) -> Backend:
        return OpenVINOBackend(
            self.folder, device=self.device, threads=self.threads, cache_bytes=self._cache_bytes
        )

    def _mask_engine(self, backend: Backend) -> MaskEngine:
        """Made in the scheduler's thread, where the model's vocabulary is known."""
        if self._masks is None:
            from magistrate.constraints.masks import MaskEngine

            self._masks = MaskEngine(self.tokenizer.json, backend.vocabulary, self.tokenizer.ends)
        return self._masks

    def _answer(self, text: str) -> EncodedText:
        encoded = self.tokenizer.encode(text)
        if not encoded.tokens:
            raise SpecError(f"the tokenizer of {self._card.name} reads {text[:100]!r} as nothing at all")
        return encoded

    def _paths(self, options: Sequence[Option]) -> list[list[tuple[int, ...]]]:
        """Canonical token paths of every option's surfaces, ended where one is another's beginning."""
        owner: dict[tuple[int, ...], str] = {}
        paths: list[list[tuple[int, ...]]] = [[] for _ in options]
        for option, own in zip(options, paths, strict=True):
            for path in (self._answer(surface).tokens for surface in option.surfaces):
                if owner.setdefault(path, option.label) != option.label:
                    raise SpecError(
                        f"options {owner[path]!r} and {option.label!r} have surfaces that are the same "
                        "tokens to this model, so it cannot tell them apart; spell one differently"
                    )
                if path not in own:
                    own.append(path)
        end = self.tokenizer.ends[0]

        def closed(path: tuple[int, ...]) -> tuple[int, ...]:
            longer = any(other != path and other[: len(path)] == path for other in owner)
            return (*path, end) if longer else path

        return [[closed(path) for path in own] for own in paths]

    async def _run(
        self, start: Callable[[Backend, PrefixCache], Program], tokens: int, blocks: int | None = None
    ) -> Any:
        if tokens > self.info.context_window:
            raise OverLength(
                f"this takes {tokens} tokens with the room kept for the answer; the context window of "
                f"{self.info.model} is {self.info.context_window}"
            )
        return await asyncio.wrap_future(self._scheduler.submit(start, blocks or blocks_for(tokens)))


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_open_engines: weakref.WeakSet[LocalEngine] = weakref.WeakSet()


@atexit.register
def _close_engines() -> None:
    """Stop the threads before the interpreter takes away what they stand on."""
    for engine in list(_open_engines):
        engine.close()
