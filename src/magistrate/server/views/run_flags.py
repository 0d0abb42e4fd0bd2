"""A rubric's verdicts decided anew by other kinds of claims: figures and the list, without asking a model."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from magistrate.judges.flagging import by_claims, check_flag, reflagged
from magistrate.report.counts import JudgeScores, count_these
from magistrate.report.values import JudgeReport
from magistrate.server.views.run_list import KNOWN, Cursor, ListFilter, fits, said_at
from magistrate.store import RunRecord, Snapshot
from magistrate.store.outcome_lists import Cell, Direction, OutcomeLine
from magistrate.types import Abstention, Failure, Outcome, Verdict

LOOKED_AT = 2  # verdicts of a judge that tell whether claims decide


@dataclass(frozen=True, slots=True)
class Flagged:
    """An outcome as other kinds of claims decide it: what a list is chosen and ordered by."""

    position: int
    kind: str
    label: str | None
    gold: str | None
    score: float | None
    code: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What one judge says by other kinds of claims: its report, its scores, and all outcomes in order."""

    report: JudgeReport
    scores: JudgeScores
    outcomes: tuple[Flagged, ...]

    @property
    def cells(self) -> dict[Cell, int]:
        """How many outcomes are in which cell."""
        found: dict[Cell, int] = {}
        for each in self.outcomes:
            cell = Cell(each.kind, each.label, each.gold)
            found[cell] = found.get(cell, 0) + 1
        return found


def flags_of(moment: Snapshot, run_id: str, judge: str, cells: Iterable[Cell]) -> tuple[str, ...] | None:
    """The kinds of claims that decided this judge's verdicts; None where claims do not decide."""
    verdicts = [cell for cell in cells if cell.kind == "verdict"]
    for line in moment.in_cells(run_id, judge, verdicts, limit=LOOKED_AT):
        for outcome in islice(moment.outcomes(run_id, judge=judge, sample_id=line.sample_id), 1):
            if by_claims(outcome) and isinstance(outcome, Verdict):
                flag = outcome.details["flag"]
                return tuple(map(str, flag)) if isinstance(flag, list | tuple) else ()
    return None


def decided(moment: Snapshot, record: RunRecord, judge: str, flag: Sequence[str]) -> Decided:
    """Decide all of a judge's verdicts anew. Raises `SpecError` for kinds of claims that there are not."""
    check_flag(flag)
    samples = {sample.id: sample for sample in moment.samples(record.id)}
    outcomes = [reflagged(outcome, flag) for outcome in moment.outcomes(record.id)]
    counted = count_these(record, samples, outcomes, flag)
    places = {sample_id: position for position, sample_id in enumerate(samples)}
    return Decided(
        report=next(each for each in counted.report.judges if each.judge == judge),
        scores=counted.scores[judge],
        outcomes=tuple(
            _flagged(places[outcome.sample_id], outcome, samples[outcome.sample_id].label)
            for outcome in outcomes
            if outcome.judge == judge
        ),
    )


def _flagged(position: int, outcome: Outcome, gold: str | None) -> Flagged:
    match outcome:
        case Verdict():
            return Flagged(position, "verdict", outcome.label, gold, outcome.score, None)
        case Failure():
            return Flagged(position, "failure", None, gold, None, outcome.code)
        case Abstention():
            return Flagged(position, "abstention", None, gold, None, outcome.reason)


@dataclass(frozen=True, slots=True)
class DecidedList:
    """The list as other kinds of claims decide it: those of `found` that fit, in the order of the list."""

    moment: Snapshot
    run_id: str
    judge: str
    by_score: bool
    found: tuple[Flagged, ...]
    n: int
    n_unscored: int

    def lines(self, beyond: Cursor | None, direction: Direction, limit: int) -> list[OutcomeLine]:
        """The next outcomes `after` or `before` a cursor."""
        keys = [self._key(each.position, each.score) for each in self.found]
        start, end = 0, len(keys)
        if beyond is not None:
            edge = self._key(beyond.position, beyond.score)
            if direction == "after":
                start = bisect_right(keys, edge)
            else:
                end = bisect_left(keys, edge)
        first, last = (max(end - limit, 0), end) if direction == "before" else (start, start + limit)
        chosen = self.found[first:last]
        texts = {
            line.position: line
            for line in self.moment.lines_at(self.run_id, self.judge, [each.position for each in chosen])
        }
        return [
            replace(texts[each.position], label=each.label, score=each.score, probability=None)
            for each in chosen
            if each.position in texts
        ]

    def count(self) -> tuple[int, int]:
        """How many outcomes fit, and how many of them have no score."""
        return self.n, self.n_unscored

    def _key(self, position: int, score: float | None) -> tuple[float, int]:
        return (-(score or 0.0), position) if self.by_score else (0.0, position)


def decided_list(
    moment: Snapshot, run_id: str, judge: str, wanted: ListFilter, found: Decided
) -> DecidedList:
    """The list of a judge's outcomes as they were decided anew."""
    turned, at = found.report.turned, wanted.threshold

    def said(each: Flagged) -> str | None:
        if at is None or each.label not in KNOWN or each.score is None:
            return each.label
        return said_at(at, each.score, turned)

    fitting = [
        each
        for each in found.outcomes
        if fits(wanted, each.kind, said(each), each.gold) and wanted.code in (None, each.code)
    ]
    by_score = wanted.order == "score"
    scored = [each for each in fitting if each.score is not None]
    if by_score:
        scored.sort(key=lambda each: (-(each.score or 0.0), each.position))
    return DecidedList(
        moment=moment,
        run_id=run_id,
        judge=judge,
        by_score=by_score,
        found=tuple(scored if by_score else fitting),
        n=len(fitting),
        n_unscored=len(fitting) - len(scored),
    )
