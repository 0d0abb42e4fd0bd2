"""The judge `passages`: cuts a context that does not fit down to its most relevant passages."""

from __future__ import annotations

from dataclasses import dataclass, replace

from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.features.splitting import Ranking, merged, passages
from magistrate.judges.base import Judge, JudgeInfo, PlansCalls, run_judge, shortage
from magistrate.judges.context_slice import ContextSlice, left_out
from magistrate.types import Abstention, Outcome, Sample, Verdict


@dataclass(frozen=True)
class Passages:
    """Judges with the whole context if it fits, else with the passages most similar to the output.

    Passages are runs of sentences. They are ranked by BM25; as many are kept as fit `tokens` (0: the
    model's context window), in their original order. The verdict's details say how much was left out.
    """

    of: Judge
    name: str = "passages"
    tokens: int = 0
    language: str = "en"

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise SpecError(f"tokens must not be negative, got {self.tokens}")
        if not isinstance(self.of, PlansCalls):
            raise SpecError(f"{self.of.info.name!r} does not plan its calls, so it is unknown what fits")

    @property
    def info(self) -> JudgeInfo:
        return replace(
            self.of.info,
            name=self.name,
            summary=f"{self.of.info.summary}; uses the most relevant passages of a context that is too long",
            long=f"most relevant passages, {f'{self.tokens} tokens' if self.tokens else 'as many as fit'}",
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        if await shortage(self.of, sample, engine, self.tokens) is None:
            return await run_judge(self.of, sample, engine)
        parts = await self._most(sample, engine)
        if parts is None:
            return Abstention(
                sample.id,
                self.name,
                "over_length",
                "not even one passage of the context fits together with the output; the model was not asked",
            )
        outcome = parts.restored(await run_judge(self.of, parts.reduced, engine))
        if not isinstance(outcome, Verdict):
            return outcome
        kept = [[piece.index, piece.start, piece.end] for piece in parts.pieces]
        note = {"passages": kept, "characters_left_out": left_out(sample, parts.pieces)}
        return replace(outcome, details={**outcome.details, **note})

    async def _most(self, sample: Sample, engine: Engine) -> ContextSlice | None:
        """Return as many of the best passages as fit, found by bisection; None if not even one fits."""
        found = passages(sample.context, self.language)
        order = Ranking([piece.of(sample.context) for piece in found]).order(sample.output or "")
        best: ContextSlice | None = None
        low, high = 1, len(order)
        while low <= high:
            middle = (low + high) // 2
            parts = ContextSlice(
                sample, tuple(merged([found[each] for each in order[:middle]], sample.context))
            )
            if await shortage(self.of, parts.reduced, engine, self.tokens) is None:
                best, low = parts, middle + 1
            else:
                high = middle - 1
        return best
