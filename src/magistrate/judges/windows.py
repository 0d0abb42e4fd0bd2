"""A context that does not fit is judged window by window, and the windows' scores become one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from magistrate.constraints.pieces import edges
from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.judges.aggregation import Aggregate, aggregated, check_binary
from magistrate.judges.base import Judge, JudgeInfo
from magistrate.judges.considering import considered, shortage
from magistrate.judges.parts import Parts
from magistrate.signals.splitting import Piece, merged, units
from magistrate.types import FAITHFUL, HALLUCINATED, Abstention, Outcome, Sample, Verdict


@dataclass(frozen=True)
class Windows:
    """Judges with the whole context where it fits, else with windows over it.

    A window holds whole sentences, as many as fit `tokens` (0: the model's context window), and begins with
    the last `overlap` sentences of the one before. `aggregate` makes one score of the windows': `all`, the
    lowest, since it is enough that one window supports the output; `any`, `mean` or `noisy_or`. With `all`
    and `any` the verdict is that window's. Where one window has no verdict, the whole has none.
    """

    of: Judge
    name: str = "windows"
    aggregate: Aggregate = "all"
    tokens: int = 0
    overlap: int = 1
    language: str = "en"

    def __post_init__(self) -> None:
        if min(self.tokens, self.overlap) < 0:
            raise SpecError(f"tokens and overlap must not be negative, got {self.tokens} and {self.overlap}")
        if not hasattr(self.of, "plan"):
            raise SpecError(f"{self.of.info.name!r} has no plan, so what fits it is not known")
        if self.aggregate in ("mean", "noisy_or"):
            check_binary(self.of.info, f"aggregate={self.aggregate}")

    @property
    def info(self) -> JudgeInfo:
        return replace(
            self.of.info,
            name=self.name,
            summary="another judge, over windows of a context that does not fit",
            long=f"windows of {self.tokens or 'as many as fit'} tokens, {self.aggregate}",
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        if await shortage(self.of, sample, engine, self.tokens) is None:
            return await considered(self.of, sample, engine)
        bare = replace(sample, context=(" ",))
        if short := await shortage(self.of, bare, engine, self.tokens):
            return Abstention(sample.id, self.name, "over_length", f"even without its context {short}")
        windows = await self._cut(sample, units(sample.context, self.language), engine)
        outcomes = await asyncio.gather(*(considered(self.of, each.reduced, engine) for each in windows))
        for outcome in outcomes:
            if not isinstance(outcome, Verdict):
                return outcome
        verdicts = [w.restored(o) for w, o in zip(windows, outcomes, strict=True) if isinstance(o, Verdict)]
        return self._joined(verdicts)

    async def _cut(self, sample: Sample, pieces: Sequence[Piece], engine: Engine) -> list[Parts]:
        """Windows of about equal size that fit: what does not is halved."""
        found: list[Parts] = []
        waiting = [list(pieces)]
        while waiting:
            own = waiting.pop(0)
            before = found[-1].pieces[-1] if found else None
            shown = self._begun(own, pieces) if before else own
            for tried in (shown, own):
                parts = Parts(sample, tuple(merged(tried, sample.context)))
                if await shortage(self.of, parts.reduced, engine, self.tokens) is None:
                    found.append(parts)
                    break
            else:
                waiting[:0] = _halves(own, sample.context)
        return found

    def _begun(self, own: Sequence[Piece], pieces: Sequence[Piece]) -> list[Piece]:
        """A window with the sentences before it, `overlap` of them."""
        before = [piece for piece in pieces if (piece.index, piece.end) <= (own[0].index, own[0].start)]
        return [*before[len(before) - self.overlap :], *own] if self.overlap else list(own)

    def _joined(self, verdicts: Sequence[Verdict]) -> Verdict:
        scores = [verdict.score for verdict in verdicts]
        score = aggregated(scores, self.aggregate)
        note = {"windows": scores, "aggregate": self.aggregate}
        if self.aggregate in ("any", "all"):
            chosen = verdicts[scores.index(score)]
            return replace(chosen, details={**chosen.details, **note})
        label = HALLUCINATED if score >= 0.5 else FAITHFUL
        claims = tuple(claim for verdict in verdicts for claim in verdict.claims)
        return Verdict(verdicts[0].sample_id, self.name, label, score, claims=claims, details=note)


def _halves(pieces: Sequence[Piece], texts: Sequence[str]) -> list[list[Piece]]:
    """Pieces in two parts of about the same length; a single one is cut between words, or anywhere."""
    if len(pieces) == 1:
        (piece,) = pieces
        middle = (piece.start + piece.end) // 2
        inside = [at for at in edges(piece.of(texts), "words") if 0 < at < piece.end - piece.start]
        if inside:
            middle = min((piece.start + at for at in inside), key=lambda at: abs(at - middle))
        return [[Piece(piece.index, piece.start, middle)], [Piece(piece.index, middle, piece.end)]]
    half = sum(piece.end - piece.start for piece in pieces) / 2
    place, length = 0, 0
    while place < len(pieces) - 1 and length < half:
        length += pieces[place].end - pieces[place].start
        place += 1
    return [list(pieces[: max(place, 1)]), list(pieces[max(place, 1) :])]
