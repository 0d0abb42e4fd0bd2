"""The list of a judge's outcomes in a run: filters, order, and verdicts decided by other kinds of claims."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf, isfinite, nextafter
from typing import Any, Literal, Protocol

from magistrate._text import shorten
from magistrate.judges.rubric import by_claims, check_flag, reflagged
from magistrate.report.counts import KNOWN, JudgeScores, count_outcomes, is_right
from magistrate.report.values import JudgeReport
from magistrate.store import RunRecord, Snapshot
from magistrate.store.outcome_lists import Cell, Direction, OutcomeLine, Scored
from magistrate.store.sample_search import BareOutcome
from magistrate.types import FAITHFUL, HALLUCINATED, Abstention, Failure, Outcome, Verdict

AT_ONCE = 30
EXCERPT = 200
VERDICTS_READ = 2  # per judge, to find out whether claims decide its verdicts
FAILED, ABSTAINED, UNLABELLED = "-failed", "-abstained", "-"
"""Words in addresses that are no labels."""
KINDS = {FAILED: "failure", ABSTAINED: "abstention"}

Order = Literal["sample", "score", "lowest"]
Right = Literal["right", "wrong"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFilter:
    """Conditions that listed outcomes must all meet, and their order.

    `said` is a label, `FAILED` or `ABSTAINED`; `truth` a label or `UNLABELLED`. Each word of `q` must occur
    in the sample's texts or id. Scores are from `least` to `most`, both included. `threshold`, in [0, 1] of
    the judge's own scores, decides between faithful and hallucinated; None keeps the labels as judged.
    `flag` are kinds of claims by which a rubric's verdicts are decided again. The `order` is that of the
    samples, the highest score first, or the lowest.
    """

    said: str | None = None
    truth: str | None = None
    right: Right | None = None
    code: str | None = None
    q: str | None = None
    least: float | None = None
    most: float | None = None
    order: Order = "sample"
    threshold: float | None = None
    flag: tuple[str, ...] = ()

    @property
    def query(self) -> dict[str, Any]:
        """The conditions that are set, as fields of an address's query."""
        given = {name: getattr(self, name) for name in self.__dataclass_fields__}
        given["order"] = None if self.order == "sample" else self.order
        for name in ("threshold", "least", "most"):
            given[name] = None if given[name] is None else repr(given[name])
        return {name: value for name, value in given.items() if value not in (None, ())}

    @property
    def chooses(self) -> bool:
        """Whether the filter leaves out any outcome."""
        given = (self.said, self.truth, self.right, self.code, self.q)
        return self.is_ranged or any(each is not None for each in given)

    @property
    def is_ranged(self) -> bool:
        """Whether only some scores are listed."""
        return self.least is not None or self.most is not None

    @property
    def range(self) -> tuple[float, float]:
        """The scores that are listed: from the first on, and below the second."""
        return (
            -inf if self.least is None else self.least,
            inf if self.most is None else nextafter(self.most, inf),
        )

    @property
    def words(self) -> tuple[str, ...]:
        """The words that must occur in a sample."""
        return tuple((self.q or "").split())

    def but(self, **changes: Any) -> ListFilter:
        """Return a copy with other conditions."""
        return replace(self, **changes)


ALL = ListFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListLine:
    """An outcome in the list. `said` is its label at the filter's threshold and with its flags.

    `right` is None if the label or the gold label is neither faithful nor hallucinated.
    """

    position: int
    sample_id: str
    kind: str
    said: str | None
    code: str | None
    gold: str | None
    right: bool | None
    score: float | None
    probability: float | None
    excerpt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListView:
    """A page of the list. `n` of the judge's `n_all` outcomes match the filter.

    `earlier` and `later` are cursors of the pages before and after it, None at an end. With `by_score`, the
    highest score comes first, or the lowest if so ordered, and outcomes without a score, `n_unscored` of the
    matching ones, are left out. While `searching`, the words are still being looked for and nothing is
    listed. They were not looked for in the run's last `n_unsearched` samples.
    """

    lines: tuple[ListLine, ...]
    n: int
    n_all: int
    n_unscored: int
    by_score: bool
    earlier: str | None
    later: str | None
    searching: bool = False
    n_unsearched: int = 0


@dataclass(frozen=True, slots=True)
class CellRange:
    """The part of a cell with scores in [`low`, `high`), and its label."""

    cell: Cell
    said: str | None
    low: float = -inf
    high: float = inf

    @property
    def whole(self) -> bool:
        """Whether it is the whole cell."""
        return not (isfinite(self.low) or isfinite(self.high))

    @property
    def scored(self) -> Scored:
        """The range of verdicts, in the form of the store."""
        assert self.cell.label is not None, "a verdict has a label"
        return Scored(self.cell.label, self.cell.gold, self.low, self.high)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The end of a page of the list: the position of an outcome, and its score if that orders the list."""

    position: int
    score: float | None = None

    @classmethod
    def parse(cls, text: str, by_score: bool) -> Cursor | None:
        """Parse what `str` returns; None for anything else, and for a cursor of the other order."""
        score, comma, position = text.rpartition(",")
        if not (position.isascii() and position.isdigit()) or len(position) > 15 or bool(comma) != by_score:
            return None
        try:
            return cls(int(position), float(score) if comma else None)
        except ValueError:
            return None

    def __str__(self) -> str:
        return str(self.position) if self.score is None else f"{self.score!r},{self.position}"


class OutcomeSource(Protocol):
    """The source of a list: its order, its pages, and its length."""

    @property
    def by_score(self) -> bool:
        """Whether it is ordered by score, the highest first."""
        ...

    def lines(self, beyond: Cursor | None, direction: Direction, limit: int) -> list[OutcomeLine]:
        """Return the next outcomes `after` or `before` a cursor, in the order of the list."""
        ...

    def count(self) -> tuple[int, int]:
        """Return the number of matching outcomes, and how many of them have no score."""
        ...


@dataclass(frozen=True, slots=True)
class StoredList:
    """The list as stored, read from the store's indexes. `cells` counts all outcomes of the judge."""

    moment: Snapshot
    run_id: str
    judge: str
    wanted: ListFilter
    cells: Mapping[Cell, int]
    ranges: tuple[CellRange, ...]

    @property
    def by_score(self) -> bool:
        """Whether it is ordered by score, by request or because only parts of cells are listed."""
        return self.wanted.order != "sample" or not all(each.whole for each in self.ranges)

    def lines(self, beyond: Cursor | None, direction: Direction, limit: int) -> list[OutcomeLine]:
        """Return the next outcomes `after` or `before` a cursor, in the order of the list."""
        if self.by_score:
            edge = None if beyond is None or beyond.score is None else (beyond.score, beyond.position)
            ranges = [each.scored for each in self.ranges if each.cell.kind == "verdict"]
            return self.moment.by_score(
                self.run_id, self.judge, ranges, beyond=edge, direction=direction, limit=limit
            )
        chosen = [each.cell for each in self.ranges]
        return self.moment.in_cells(
            self.run_id,
            self.judge,
            None if len(chosen) == len(self.cells) else chosen,
            code=self.wanted.code,
            beyond=None if beyond is None else beyond.position,
            direction=direction,
            limit=limit,
        )

    def count(self) -> tuple[int, int]:
        """Return the number of matching outcomes, and how many of them have no score."""
        if self.wanted.code is not None:
            chosen = [each.cell for each in self.ranges]
            n = self.moment.count_coded(self.run_id, self.judge, chosen, self.wanted.code)
            return n, n
        whole = [each.cell for each in self.ranges if each.whole]
        parts = [each.scored for each in self.ranges if not each.whole]
        n = sum(self.cells[cell] for cell in whole)
        unscored = sum(self.cells[cell] for cell in whole if cell.kind != "verdict")
        return n + self.moment.count_scored(self.run_id, self.judge, parts), unscored


def stored_list(
    moment: Snapshot, run_id: str, judge: str, wanted: ListFilter, cells: Mapping[Cell, int], turned: bool
) -> StoredList:
    """Return the list of a judge's outcomes, which `cells` counts. `turned` is as in its report."""
    found = tuple(each for cell in cells for each in _ranges_of(cell, wanted, turned))
    return StoredList(moment, run_id, judge, wanted, cells, found)


def _ranges_of(cell: Cell, wanted: ListFilter, turned: bool) -> list[CellRange]:
    """Return the matching part of a cell: none, some or all of it."""
    parts = [CellRange(cell, cell.label)]
    if wanted.threshold is not None and cell.label in KNOWN:
        edge = wanted.threshold
        low, high = KNOWN if turned else KNOWN[::-1]
        parts = [CellRange(cell, low, -inf, edge), CellRange(cell, high, edge, inf)]
    kept = [each for each in parts if fits(wanted, cell.kind, each.said, cell.gold)]
    kept = [CellRange(cell, cell.label)] if len(kept) > 1 else kept
    if not wanted.is_ranged:
        return kept
    least, end = wanted.range
    cut = (replace(each, low=max(each.low, least), high=min(each.high, end)) for each in kept)
    return [each for each in cut if cell.kind == "verdict" and each.low < each.high]


def said_at(threshold: float, score: float, turned: bool) -> str:
    """Return the label of a score at a threshold: hallucinated from it on, or below it if `turned`."""
    return HALLUCINATED if (score >= threshold) != turned else FAITHFUL


def fits(wanted: ListFilter, kind: str, said: str | None, gold: str | None) -> bool:
    """Return whether an outcome matches the filter. Of the code, it only checks that verdicts have none."""
    if wanted.code is not None and kind == "verdict":
        return False
    if wanted.said is not None:
        if wanted.said in KINDS:
            if kind != KINDS[wanted.said]:
                return False
        elif said != wanted.said:
            return False
    if wanted.truth is not None and gold != (None if wanted.truth == UNLABELLED else wanted.truth):
        return False
    right = is_right(said, gold)
    return wanted.right is None or (right is not None and right == (wanted.right == "right"))


# --- views ----------------------------------------------------------------------------------------


def list_view(
    source: OutcomeSource,
    wanted: ListFilter,
    n_all: int,
    turned: bool,
    *,
    after: str | None = None,
    before: str | None = None,
    limit: int = AT_ONCE,
) -> ListView:
    """Return at most `limit` outcomes of the list: those `after` a cursor, or those `before` one."""
    by_score = source.by_score
    cursor = Cursor.parse(before or after or "", by_score)
    direction: Direction = "before" if before and cursor else "after"
    lines = next_lines(source, wanted, cursor, direction, limit + 1)
    further = len(lines) > limit
    lines = lines[-limit:] if direction == "before" else lines[:limit]
    began = cursor is None
    earlier, later = (further, True) if direction == "before" else (not began, further)
    n, unscored = source.count()
    return ListView(
        lines=tuple(_line(each, wanted, turned) for each in lines),
        n=n,
        n_all=n_all,
        n_unscored=unscored if by_score else 0,
        by_score=by_score,
        earlier=_cursor(lines[0], by_score) if lines and earlier else None,
        later=_cursor(lines[-1], by_score) if lines and later else None,
    )


def next_lines(
    source: OutcomeSource, wanted: ListFilter, beyond: Cursor | None, direction: Direction, limit: int
) -> list[OutcomeLine]:
    """Return the next outcomes `after` or `before` a cursor, in the order of the filter.

    The lowest score first is the list of a source backwards.
    """
    if wanted.order != "lowest":
        return source.lines(beyond, direction, limit)
    return source.lines(beyond, "before" if direction == "after" else "after", limit)[::-1]


def neighbours(
    moment: Snapshot, run_id: str, judge: str, wanted: ListFilter, position: int
) -> tuple[str | None, str | None]:
    """Return the ids of the samples before and after the one at a position, in the list with this filter.

    Flags are ignored: the verdicts are as judged. Both are None if the sample has no place in the list's
    order.
    """
    scoring = moment.record(run_id).scoring.get(judge) if wanted.threshold is not None else None
    if scoring is None:
        wanted = wanted.but(threshold=None)
    turned = scoring is not None and scoring.turned
    source = stored_list(moment, run_id, judge, wanted, moment.cells(run_id, judge), turned)
    return beside(source, wanted, moment.lines_at(run_id, judge, [position]), position)


def beside(
    source: OutcomeSource, wanted: ListFilter, at: Sequence[OutcomeLine], position: int
) -> tuple[str | None, str | None]:
    """Return the ids of the samples before and after a position of a list; `at` is the outcome there."""
    cursor = Cursor(position)
    if source.by_score:
        if not at or at[0].score is None:
            return None, None
        cursor = Cursor(position, at[0].score)
    before, after = (next_lines(source, wanted, cursor, where, 1) for where in ("before", "after"))
    return (before[0].sample_id if before else None), (after[0].sample_id if after else None)


def _cursor(line: OutcomeLine, by_score: bool) -> str:
    return str(Cursor(line.position, line.score if by_score else None))


def _line(line: OutcomeLine, wanted: ListFilter, turned: bool) -> ListLine:
    said = line.label
    if wanted.threshold is not None and said in KNOWN and line.score is not None:
        said = said_at(wanted.threshold, line.score, turned)
    return ListLine(
        position=line.position,
        sample_id=line.sample_id,
        kind=line.kind,
        said=said,
        code=line.code,
        gold=line.gold,
        right=is_right(said, line.gold),
        score=line.score,
        probability=line.probability,
        excerpt=shorten((line.output or "")[: 20 * EXCERPT], EXCERPT),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A judge's verdicts decided by other kinds of claims: report, scores, and all outcomes in order."""

    report: JudgeReport
    scores: JudgeScores
    outcomes: tuple[BareOutcome, ...]

    @property
    def cells(self) -> dict[Cell, int]:
        """The number of outcomes in each cell."""
        found: dict[Cell, int] = {}
        for each in self.outcomes:
            cell = Cell(each.kind, each.label, each.gold)
            found[cell] = found.get(cell, 0) + 1
        return found


def flags_of(moment: Snapshot, run_id: str, judge: str, cells: Iterable[Cell]) -> tuple[str, ...] | None:
    """Return the kinds of claims that decide this judge's verdicts; None if claims do not decide them."""
    verdicts = [cell for cell in cells if cell.kind == "verdict"]
    for line in moment.in_cells(run_id, judge, verdicts, limit=VERDICTS_READ):
        for outcome in islice(moment.outcomes(run_id, judge=judge, sample_id=line.sample_id), 1):
            if by_claims(outcome) and isinstance(outcome, Verdict):
                flag = outcome.details["flag"]
                return tuple(map(str, flag)) if isinstance(flag, list | tuple) else ()
    return None


def decided(moment: Snapshot, record: RunRecord, judge: str, flag: Sequence[str]) -> Decided:
    """Decide all verdicts of a judge again. Raises `SpecError` for unknown kinds of claims."""
    check_flag(flag)
    samples = {sample.id: sample for sample in moment.samples(record.id)}
    outcomes = [reflagged(outcome, flag) for outcome in moment.outcomes(record.id)]
    counted = count_outcomes(record, samples, outcomes, flag)
    places = moment.positions(record.id)
    return Decided(
        report=next(each for each in counted.report.judges if each.judge == judge),
        scores=counted.scores[judge],
        outcomes=tuple(
            _flagged(places[outcome.sample_id], outcome, samples[outcome.sample_id].label)
            for outcome in outcomes
            if outcome.judge == judge
        ),
    )


def _flagged(position: int, outcome: Outcome, gold: str | None) -> BareOutcome:
    match outcome:
        case Verdict():
            return BareOutcome(position, "verdict", outcome.label, gold, outcome.score, None)
        case Failure():
            return BareOutcome(position, "failure", None, gold, None, outcome.code)
        case Abstention():
            return BareOutcome(position, "abstention", None, gold, None, outcome.reason)


@dataclass(frozen=True, slots=True)
class MemoryList:
    """A list whose matching outcomes, `found`, are in memory, in order: verdicts that were decided again, or
    samples in which words were found.
    """

    moment: Snapshot
    run_id: str
    judge: str
    by_score: bool
    found: tuple[BareOutcome, ...]
    n: int
    n_unscored: int

    def lines(self, beyond: Cursor | None, direction: Direction, limit: int) -> list[OutcomeLine]:
        """Return the next outcomes `after` or `before` a cursor."""
        start, end = 0, len(self.found)
        if beyond is not None:
            edge = self._key(beyond)
            if direction == "after":
                start = bisect_right(self.found, edge, key=self._key)
            else:
                end = bisect_left(self.found, edge, key=self._key)
        first, last = (max(end - limit, start), end) if direction == "before" else (start, start + limit)
        chosen = self.found[first:last]
        texts = {
            line.position: line
            for line in self.moment.lines_at(self.run_id, self.judge, [each.position for each in chosen])
        }
        return [_said_now(each, texts[each.position]) for each in chosen if each.position in texts]

    def count(self) -> tuple[int, int]:
        """Return the number of matching outcomes, and how many of them have no score."""
        return self.n, self.n_unscored

    def _key(self, at: BareOutcome | Cursor) -> tuple[float, int]:
        return (-(at.score or 0.0), at.position) if self.by_score else (0.0, at.position)


def _said_now(outcome: BareOutcome, stored: OutcomeLine) -> OutcomeLine:
    """Return the line with the outcome's label and score. Another verdict has no probability."""
    if (outcome.label, outcome.score) == (stored.label, stored.score):
        return stored
    return replace(stored, label=outcome.label, score=outcome.score, probability=None)


def memory_list(
    moment: Snapshot,
    run_id: str,
    judge: str,
    wanted: ListFilter,
    found: Iterable[BareOutcome],
    turned: bool,
) -> MemoryList:
    """Return the list of those of a judge's outcomes that match the filter."""
    at, (least, end) = wanted.threshold, wanted.range

    def said(each: BareOutcome) -> str | None:
        if at is None or each.label not in KNOWN or each.score is None:
            return each.label
        return said_at(at, each.score, turned)

    fitting = [
        each
        for each in found
        if fits(wanted, each.kind, said(each), each.gold)
        and wanted.code in (None, each.code)
        and (not wanted.is_ranged or (each.score is not None and least <= each.score < end))
    ]
    by_score = wanted.order != "sample"
    scored = [each for each in fitting if each.score is not None]
    if by_score:
        scored.sort(key=lambda each: (-(each.score or 0.0), each.position))
    return MemoryList(
        moment=moment,
        run_id=run_id,
        judge=judge,
        by_score=by_score,
        found=tuple(scored if by_score else fitting),
        n=len(fitting),
        n_unscored=len(fitting) - len(scored),
    )
