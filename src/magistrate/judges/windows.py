"""The judge `windows`: judges a context that does not fit in windows, and combines their scores."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from magistrate.constraints.quote import edges
from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.features.splitting import Piece, merged, trimmed, units
from magistrate.judges.base import Judge, JudgeInfo, PlansCalls, check_binary, run_judge, shortage
from magistrate.judges.composite import Aggregate, aggregated, gather_or_cancel, suspicion
from magistrate.judges.context_slice import ContextSlice
from magistrate.types import FAITHFUL, HALLUCINATED, Abstention, Outcome, Sample, Verdict


@dataclass(frozen=True)
class Windows:
    """Judges with the whole context if it fits, else with windows over it.

    A window holds whole sentences, as many as fit `tokens` (0: the model's context window), and starts with
    the last `overlap` sentences of the one before. `aggregate` combines the windows' scores. `best` takes
    the lowest if a low score is good and the highest if a high one is, since one window that supports the
    output is enough; `all` takes the lowest, `any` the highest; `mean` and `noisy_or` combine them. With
    the first three the verdict is that window's. With `mean` and `noisy_or` a high score means
    hallucinated, and the threshold is the judge's own, or .5 if it has none. If one window has no verdict,
    the output has none.
    """

    of: Judge
    name: str = "windows"
    aggregate: Literal["best"] | Aggregate = "best"
    tokens: int = 0
    overlap: int = 1
    language: str = "en"

    def __post_init__(self) -> None:
        if min(self.tokens, self.overlap) < 0:
            raise SpecError(f"tokens and overlap must not be negative, got {self.tokens} and {self.overlap}")
        if not isinstance(self.of, PlansCalls):
            raise SpecError(f"{self.of.info.name!r} does not plan its calls, so it is unknown what fits")
        if self.aggregate in ("mean", "noisy_or"):
            check_binary(self.of.info, f"aggregate={self.aggregate}")

    @property
    def info(self) -> JudgeInfo:
        return replace(
            self.of.info,
            name=self.name,
            calibrated_on=None,
            summary=f"{self.of.info.summary}; uses windows over a context that is too long",
            long=f"windows {f'of {self.tokens} tokens' if self.tokens else 'that fit'}, {self.aggregate}",
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        if await shortage(self.of, sample, engine, self.tokens) is None:
            return await run_judge(self.of, sample, engine)
        bare = replace(sample, context=(" ",))
        if short := await shortage(self.of, bare, engine, self.tokens):
            return Abstention(sample.id, self.name, "over_length", f"even without its context {short}")
        windows = await self._cut(sample, units(sample.context, self.language), engine)
        if windows is None:
            message = "the output leaves no room for any context; the model was not asked"
            return Abstention(sample.id, self.name, "over_length", message)
        outcomes = await gather_or_cancel(run_judge(self.of, each.reduced, engine) for each in windows)
        for outcome in outcomes:
            if not isinstance(outcome, Verdict):
                return outcome
        verdicts = [w.restored(o) for w, o in zip(windows, outcomes, strict=True) if isinstance(o, Verdict)]
        return self._joined(verdicts)

    @property
    def _best(self) -> Aggregate:
        return "all" if self.of.info.direction == "minimize" else "any"

    async def _cut(
        self, sample: Sample, pieces: Sequence[Piece], engine: Engine
    ) -> list[ContextSlice] | None:
        """Return windows that cover all pieces, each as long as fits; None if not even one character fits."""
        waiting, found, end = list(pieces), list[ContextSlice](), 0

        def parts(begin: int, end: int) -> ContextSlice:
            return ContextSlice(sample, tuple(merged(waiting[begin:end], sample.context)))

        async def fits(begin: int, end: int) -> bool:
            return await shortage(self.of, parts(begin, end).reduced, engine, self.tokens) is None

        while end < len(waiting):
            begin = max(end - self.overlap, 0)
            while begin < end and not await fits(begin, end + 1):
                begin += 1
            if begin == end and not await fits(end, end + 1):
                if not (halves := _halves(waiting[end], sample.context)):
                    return None
                waiting[end : end + 1] = halves
            else:
                end = await _last(end + 1, len(waiting), partial(fits, begin))
                found.append(parts(begin, end))
        return found

    def _joined(self, verdicts: Sequence[Verdict]) -> Verdict:
        scores = [verdict.score for verdict in verdicts]
        how: Aggregate = self._best if self.aggregate == "best" else self.aggregate
        note = {"windows": scores, "aggregate": how}
        if how in ("any", "all"):
            chosen = verdicts[scores.index(aggregated(scores, how))]
            return replace(chosen, details={**chosen.details, **note})
        of = self.of.info
        risk = aggregated([suspicion(verdict, of) for verdict in verdicts], how)
        high, low = HALLUCINATED, FAITHFUL
        if of.scoring.turned:
            high, low = low, high
        score = 1 - risk if of.scoring.turned else risk
        label = high if score >= (0.5 if of.threshold is None else of.threshold) else low
        claims = tuple(claim for verdict in verdicts for claim in verdict.claims)
        return Verdict(verdicts[0].sample_id, self.name, label, score, claims=claims, details=note)


async def _last(low: int, high: int, good: Callable[[int], Awaitable[bool]]) -> int:
    """Return the last good number from `low` to `high`; `low` is good, and none after a bad one is good."""
    step = 1
    while low + step <= high and await good(low + step):
        low, step = low + step, 2 * step
    high = min(low + step - 1, high)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if await good(middle) else (low, middle - 1)
    return low


def _halves(piece: Piece, texts: Sequence[str]) -> list[Piece]:
    """Split a piece between two words near its middle, or anywhere; empty for a single character."""
    if piece.end - piece.start == 1:
        return []
    middle = (piece.start + piece.end) // 2
    inside = [at for at in edges(piece.of(texts), "words") if 0 < at < piece.end - piece.start]
    if inside:
        middle = min((piece.start + at for at in inside), key=lambda at: abs(at - middle))
    text, cuts = texts[piece.index], ((piece.start, middle), (middle, piece.end))
    return [Piece(piece.index, *place) for cut in cuts for place in trimmed(text, *cut)]
