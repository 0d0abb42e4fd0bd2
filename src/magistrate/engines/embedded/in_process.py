"""Base class of the engines whose model runs in this process: the three verbs over the scheduler."""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from magistrate.engines.base import (
    GREEDY,
    Capability,
    Capture,
    Captured,
    Choice,
    EngineInfo,
    Generation,
    Likelihood,
    Option,
    Sampling,
    check_options,
    exact_choice,
)
from magistrate.engines.embedded import verbs
from magistrate.engines.embedded.chat_tokenizer import ChatTokenizer, EncodedText
from magistrate.engines.embedded.prefix_cache import blocks_for
from magistrate.engines.embedded.scheduler import Counters, Prefilled, Program, Scheduler
from magistrate.engines.embedded.verbs import Decoder
from magistrate.engines.models.folder import ModelCard
from magistrate.errors import CapabilityError, EngineTimeout, ModelError, OverLength, SpecError
from magistrate.types import Prompt, Usage

if TYPE_CHECKING:
    from magistrate.constraints import Constraint
    from magistrate.constraints.masks import MaskEngine, Matcher
    from magistrate.engines.embedded.backend import Backend

EXACT: frozenset[Capability] = frozenset(
    {
        "generate",
        "choose",
        "likelihood",
        "constraints",
        "data_isolation",
        "exact_probability",
        "trace",
        "capture",
    }
)
"""Capabilities of every engine on the scheduler."""
WAYS: Mapping[str, str] = {"constraints": "masks of the allowed tokens, checked again locally"}
MOST_ACTIVE = 64
MOST_WAITING = 1 << 16


class InProcessEngine(ABC):
    """An engine whose model runs in this process: `folder` contains its tokenizer, `card` describes it.

    A subclass defines `info` and `_load`, which loads the model at the first request. `most_active`,
    `most_waiting` and `timeout` are as in `LocalEngine`. Raises `ModelError` for an unusable tokenizer or
    chat template, and `SpecError` for numbers out of range.
    """

    lacks: ClassVar[Mapping[Capability, str]] = {}
    """The error message for a capability that the engine does not have."""

    def __init__(
        self,
        folder: Path,
        card: ModelCard,
        *,
        most_active: int = MOST_ACTIVE,
        most_waiting: int = MOST_WAITING,
        timeout: float | None = None,
    ) -> None:
        if min(most_active, most_waiting) < 1:
            raise SpecError(
                f"most_active and most_waiting must be at least 1, got {most_active} and {most_waiting}"
            )
        if timeout is not None and not timeout > 0:
            raise SpecError(f"timeout must be more than 0 seconds, got {timeout}")
        self.folder = folder
        self._card = card
        self.tokenizer = ChatTokenizer(folder, card)
        self._timeout = timeout
        self._making_masks = threading.Lock()
        self._spellings: verbs.Spellings | None = None
        self._scheduler = Scheduler(self._load, most_active, most_waiting)
        _open_engines.add(self)

    @property
    @abstractmethod
    def info(self) -> EngineInfo:
        """The model, fingerprint, context window and capabilities; loads no weights."""

    @abstractmethod
    def _load(self) -> Backend:
        """Load the model; called in the scheduler's thread."""

    @property
    def loading(self) -> bool:
        """Whether the weights are being loaded now, which takes seconds."""
        return self._scheduler.loading

    def counters(self) -> Counters:
        """Return the scheduler's counters of work and time so far."""
        return self._scheduler.counters

    async def count(self, prompt: Prompt) -> int:
        """Return the number of tokens of `prompt` including the chat template; loads no weights."""
        return len(self.tokenizer.tokens(prompt))

    async def generate(
        self, prompt: Prompt, constraint: Constraint | None = None, *, sampling: Sampling = GREEDY
    ) -> Generation:
        """Generate an answer to `prompt`; with a constraint it is always completed within the budget."""
        if constraint is not None:
            constraint.require_bounds()
        tokens = self.tokenizer.tokens(prompt)
        matcher = None if constraint is None else await self._matcher(constraint)
        decoder = Decoder(self.tokenizer, matcher, sampling)
        decoder.begin()
        if decoder.done:
            usage = Usage(1, len(tokens), len(tokens), len(decoder.tokens), decoder.forced_count)
            written = verbs.Decoded(tuple(decoder.tokens), True, decoder.steered, usage, tuple(decoder.trace))
        else:
            written = await self._run(
                tokens + decoder.tokens,
                lambda prefilled: verbs.generate(prefilled, decoder),
                len(tokens) + sampling.max_tokens,
            )
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

    async def choose(
        self,
        prompt: Prompt,
        options: Sequence[Option],
        *,
        capture: Capture | None = None,
        paths: Literal["canonical", "all"] = "canonical",
    ) -> Choice:
        """Compute the exact probability of each option as the answer: the sum over its surfaces' token paths.

        `paths="all"` sums over every way to tokenize them, not only the tokenizer's own, to a precision of
        1e-6. That is slow and meant for audits. `capture` applies to the position where the answer begins.
        """

        check_options(options)
        self._check(capture)
        tokens = self.tokenizer.tokens(prompt)
        groups = self._paths(options)
        flat = [path for group in groups for path in group]
        if paths == "all":
            texts, ends, spellings = await asyncio.to_thread(self._spelled, flat)
            scores = await self._run(
                tokens,
                lambda prefilled: verbs.choose_all(prefilled, texts, ends, spellings, capture),
                len(tokens) + max(map(len, texts)) + 1,
                verbs.blocks_to_choose_all(len(tokens), texts),
                capture,
            )
        else:
            scores = await self._run(
                tokens,
                lambda prefilled: verbs.choose(prefilled, flat, capture),
                len(tokens) + max(map(len, flat)),
                verbs.blocks_to_choose(len(tokens), flat),
                capture,
            )
        totals = iter(scores.totals)
        by_option = [[next(totals) for _ in group] for group in groups]
        captured = self._with_places(scores.captured, prompt)
        return exact_choice(options, by_option, scores.usage, captured=captured)

    async def likelihood(self, prompt: Prompt, text: str, *, capture: Capture | None = None) -> Likelihood:
        """Compute each token's probability as the answer. Raises `SpecError` for an empty `text`.

        `capture` returns one position more than the text has tokens: before each token, and after the last.
        """
        self._check(capture)
        tokens = self.tokenizer.tokens(prompt)
        encoded = self._answer(text)
        scored = await self._run(
            tokens,
            lambda prefilled: verbs.likelihood(prefilled, encoded.tokens, capture),
            len(tokens) + len(encoded.tokens),
            capture=capture,
        )
        captured = self._with_places(scored.captured, prompt)
        return Likelihood(text, encoded.tokens, scored.logprobs, encoded.offsets, scored.usage, captured)

    def close(self) -> None:
        """Free the model; requests in flight fail."""
        self._scheduler.close()

    # ------------------------------------------------------------------------------------------------

    def _described(
        self, kind: str, arithmetic: str, can: frozenset[Capability], ways: Mapping[str, str]
    ) -> EngineInfo:
        """Return the engine's `info`; its fingerprint covers the weights and the `arithmetic`."""
        card = self._card
        if card.context_length is None:
            raise ModelError(f"{self.folder} does not give the size of its context window (config.json)")
        fingerprint = hashlib.sha256(f"{card.fingerprint} {arithmetic}".encode()).hexdigest()
        return EngineInfo(kind, card.name, fingerprint, card.context_length, can, ways)

    @cached_property
    def _masks(self) -> MaskEngine:
        from magistrate.constraints.masks import MaskEngine

        if self._card.vocab_size is None:
            raise ModelError(f"{self._card.source} does not give the size of its vocabulary (config.json)")
        return MaskEngine(self.tokenizer.json, self._card.vocab_size, self.tokenizer.ends)

    async def _matcher(self, constraint: Constraint) -> Matcher:
        """Compile a constraint in a separate thread, so that event loop and scheduler do not wait."""

        def compiled() -> Matcher:
            with self._making_masks:
                return self._masks.matcher(constraint)

        if "_masks" in self.__dict__ and self._masks.knows(constraint):
            return self._masks.matcher(constraint)
        return await asyncio.to_thread(compiled)

    def _check(self, capture: Capture | None) -> None:
        asked: set[Capability] = set()
        if capture is not None and capture.attention:
            asked.add("attention")
        if capture is not None and capture.hidden:
            asked.add("hidden_states")
        for capability in sorted(asked - self.info.can):
            raise CapabilityError(self.lacks[capability])

    def _with_places(self, captured: Captured | None, prompt: Prompt) -> Captured | None:
        """Add the token ranges of the prompt's data parts if attention was captured."""
        if captured is None or captured.attention is None:
            return captured
        places: dict[str, tuple[tuple[int, int], ...]] = {}
        begin = 0
        for piece in self.tokenizer.pieces(prompt):
            end = begin + len(piece.tokens)
            if piece.data is not None and end > begin:
                places[piece.data] = (*places.get(piece.data, ()), (begin, end))
            begin = end
        return replace(captured, places=places)

    def _spelled(self, paths: list[tuple[int, ...]]) -> tuple[list[bytes], list[int | None], verbs.Spellings]:
        """Return each path's bytes, its end token (None unless another text extends it), the vocabulary."""
        with self._making_masks:
            spell = self._masks.spell
            if self._spellings is None:
                self._spellings = verbs.Spellings(self._masks.vocabulary_bytes())
        end = self.tokenizer.ends[0]
        texts = [spell(path[:-1] if path[-1] == end else path) for path in paths]
        begins = [any(other != text and other.startswith(text) for other in texts) for text in texts]
        return texts, [end if begun else None for begun in begins], self._spellings

    def _answer(self, text: str) -> EncodedText:
        encoded = self.tokenizer.encode(text)
        if not encoded.tokens:
            raise SpecError(f"the tokenizer of {self._card.name} returns no tokens for {text[:100]!r}")
        return encoded

    def _paths(self, options: Sequence[Option]) -> list[list[tuple[int, ...]]]:
        """Return the token paths of each option's surfaces; a path that others extend gets an end token."""
        owner: dict[tuple[int, ...], str] = {}
        paths: list[list[tuple[int, ...]]] = [[] for _ in options]
        for option, own in zip(options, paths, strict=True):
            for path in (self._answer(surface).tokens for surface in option.surfaces):
                if owner.setdefault(path, option.label) != option.label:
                    raise SpecError(
                        f"options {owner[path]!r} and {option.label!r} have surfaces with the same tokens in "
                        "this model, so it cannot tell them apart; spell one differently"
                    )
                if path not in own:
                    own.append(path)
        end = self.tokenizer.ends[0]

        def closed(path: tuple[int, ...]) -> tuple[int, ...]:
            longer = any(other != path and other[: len(path)] == path for other in owner)
            return (*path, end) if longer else path

        return [[closed(path) for path in own] for own in paths]

    async def _run(
        self,
        prompt: list[int],
        begin: Callable[[Prefilled], Program],
        tokens: int,
        blocks: int | None = None,
        capture: Capture | None = None,
    ) -> Any:
        """Run a program that starts after `prompt`; prompt and answer have at most `tokens` tokens."""
        if tokens > self.info.context_window:
            raise OverLength(
                f"this needs {tokens} tokens, including the space for the answer; the context window of "
                f"{self.info.model} is {self.info.context_window}"
            )
        answer = asyncio.wrap_future(
            self._scheduler.submit(prompt, begin, blocks or blocks_for(tokens), capture=capture)
        )
        try:
            async with asyncio.timeout(self._timeout) as limit:
                return await answer
        except TimeoutError:
            if not limit.expired():
                raise
            raise EngineTimeout(f"no answer within {self._timeout:g} seconds") from None


_open_engines: weakref.WeakSet[InProcessEngine] = weakref.WeakSet()


@atexit.register
def _close_engines() -> None:
    """Stop the schedulers' threads before the interpreter shuts down."""
    for engine in list(_open_engines):
        engine.close()
