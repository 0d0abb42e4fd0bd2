"""Magistrate's embedded engine, through the three verbs that judges use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from typing import TypeVar

from benchmarks.contenders import workload
from benchmarks.contenders.base import Item, Measured, Weights
from benchmarks.contenders.workload import answered
from magistrate.constraints import Constraint, constraint
from magistrate.engines.base import Choice, Generation, Likelihood, Option, Sampling
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.engines.models import describe
from magistrate.errors import InvalidOutput
from magistrate.types import Prompt, Usage

T = TypeVar("T")
Asked = TypeVar("Asked")

WORKS = (
    "verdict_only",
    "verdict_with_reasons",
    "unconstrained",
    "prefill",
    "decode",
    "mask",
    "overhead",
    "soak",
)
OPTIONS = tuple(Option(word, (word,)) for word in workload.OPTIONS)
SHORT, LONG = 8, 8 + workload.DECODE_TOKENS  # lengths whose difference is the decoding alone


class Magistrate:
    """The embedded engine with its default settings."""

    name = "magistrate"
    works = frozenset(WORKS)

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def version(self) -> str:
        """Return the packages involved."""
        names = ("magistrate", "openvino", "llguidance", "tokenizers")
        return ", ".join(f"{name} {version(name)}" for name in names)

    def load(self, weights: Weights, threads: int) -> None:
        """Create the engine; the weights are loaded with the first request."""
        self._weights = weights
        self._engine = LocalEngine(weights.ir, threads=threads)
        self._schema = constraint(workload.SCHEMA)

    def verdict_only(self, items: Sequence[Item], in_flight: int) -> Measured:
        """`choose` among the two options."""
        seconds, choices = self._all(items, in_flight, self._choose)
        return Measured(len(choices), len(choices), seconds, len(choices))

    def verdict_with_reasons(self, items: Sequence[Item], in_flight: int) -> Measured:
        """`generate` under the schema."""
        seconds, written = self._all(items, in_flight, self._reasoned)
        valid = sum(isinstance(each, Generation) for each in written)
        return Measured(len(written), _tokens(written), seconds, valid)

    def unconstrained(self, items: Sequence[Item], in_flight: int) -> Measured:
        """`generate` without a constraint; an answer may end early."""
        return self._free(items, in_flight, workload.ANSWER_TOKENS)

    def prefill(self, items: Sequence[Item]) -> Measured:
        """`choose` on all prompts at once; counts tokens that were not cached."""
        seconds, choices = self._all(items, len(items), self._choose)
        used = sum((choice.usage for choice in choices), Usage())
        return Measured(len(choices), used.prompt - used.cached, seconds, len(choices))

    def decode(self, items: Sequence[Item], in_flight: int) -> Measured:
        """Generate the same answers at two lengths: the difference excludes reading prompts."""
        long = self._free(items, in_flight, LONG)
        short = self._free(items, in_flight, SHORT)
        return Measured(
            len(items), long.tokens - short.tokens, max(long.seconds - short.seconds, 0.0), long.valid
        )

    def mask(self) -> Measured:
        """Compute masks along an answer to the rubric, one after the other."""
        from magistrate.constraints.masks import MaskEngine

        tokenizer = self._engine.tokenizer
        vocabulary = describe(self._weights.ir).vocab_size
        assert vocabulary is not None
        masks = MaskEngine(tokenizer.json, vocabulary, tokenizer.ends)
        rubric = constraint(workload.RUBRIC)
        tokens = tokenizer.encode(workload.RUBRIC_ANSWER).tokens
        masks.matcher(rubric).mask()  # compiled once, before the clock starts
        seconds = 0.0
        matcher = masks.matcher(rubric)
        for token in tokens:
            start = time.perf_counter()
            matcher.mask()
            seconds += time.perf_counter() - start
            matcher.consume([token])
        return Measured(len(tokens), len(tokens), seconds, int(matcher.accepting) * len(tokens))

    def overhead(self, items: Sequence[Item], in_flight: int) -> Measured:
        """Measure the time of scheduling and masks per step while verdicts with reasons are written.

        Masks are counted in full, though most of them are computed in parallel with the forward pass.
        """
        before = self._engine.counters()
        measured = self.verdict_with_reasons(items, in_flight)
        after = self._engine.counters()
        steps = after.steps - before.steps
        own = after.own_seconds - before.own_seconds
        forward = after.forward_seconds - before.forward_seconds
        masks = after.mask_seconds - before.mask_seconds
        return Measured(
            steps,
            measured.tokens,
            own + forward,
            measured.valid,
            {
                "percent": 100 * (own + masks) / (own + forward),
                "own_ms": 1000 * own / steps,
                "forward_ms": 1000 * forward / steps,
                "mask_ms": 1000 * masks / steps,
                "rows": (after.rows - before.rows) / steps,
            },
        )

    def soak(self, items: Sequence[Item], in_flight: int) -> Measured:
        """Call the verbs in turn on short prompts."""
        short, one_word = Sampling(max_tokens=4), constraint(list(workload.OPTIONS))

        async def asked(pair: tuple[int, Item]) -> Choice | Likelihood | Generation:
            turn, prompt = pair[0] % 4, Prompt.of(pair[1].user)
            if turn == 0:
                return await self._engine.choose(prompt, OPTIONS)
            if turn == 1:
                return await self._engine.likelihood(prompt, "Yes, it is.")
            if turn == 2:
                return await self._engine.generate(prompt, one_word, sampling=Sampling(max_tokens=8))
            return await self._engine.generate(prompt, sampling=short)

        seconds, answers = self._all(list(enumerate(items)), in_flight, asked)
        return Measured(len(answers), sum(each.usage.generated for each in answers), seconds, len(answers))

    def close(self) -> None:
        """Free the model."""
        self._engine.close()
        self._runner.close()

    # ------------------------------------------------------------------------------------------------

    async def _choose(self, item: Item) -> Choice:
        return await self._engine.choose(Prompt.of(item.user), OPTIONS)

    async def _reasoned(self, item: Item) -> Generation | InvalidOutput:
        try:
            return await self._written(item, self._schema, workload.MOST_TOKENS)
        except InvalidOutput as error:
            return error

    async def _written(self, item: Item, under: Constraint | None, most: int) -> Generation:
        return await self._engine.generate(Prompt.of(item.user), under, sampling=Sampling(max_tokens=most))

    def _free(self, items: Sequence[Item], in_flight: int, most: int) -> Measured:
        seconds, written = self._all(items, in_flight, lambda item: self._written(item, None, most))
        return Measured(len(written), _tokens(written), seconds, sum(bool(each.text) for each in written))

    def _all(
        self, items: Sequence[Asked], in_flight: int, answer: Callable[[Asked], Awaitable[T]]
    ) -> tuple[float, list[T]]:
        return self._runner.run(answered(items, in_flight, answer))


def _tokens(written: Sequence[Generation | InvalidOutput]) -> int:
    return sum(len(each.tokens) for each in written if isinstance(each, Generation))
