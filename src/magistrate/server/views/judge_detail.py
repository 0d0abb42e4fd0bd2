"""One judge on the page of its run: figures, failures, slices and its list of outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from magistrate.api.run import price_of_run
from magistrate.engines.prices import Price
from magistrate.judges.rubric import KINDS as CLAIM_KINDS
from magistrate.metrics.classification import Confusion
from magistrate.report.charts import Chart
from magistrate.report.counts import Counted, JudgeScores
from magistrate.report.values import JudgeReport
from magistrate.report.views import JudgeView, judge_view
from magistrate.server.jobs import Refused
from magistrate.server.run_cache import RunCache
from magistrate.server.views.figures import (
    SAMPLES_READ,
    AtThreshold,
    Figures,
    Sliced,
    SlicesView,
    at_threshold,
    figures_of,
    keys_of,
    sliced,
    slices_view,
)
from magistrate.server.views.outcomes import (
    ALL,
    AT_ONCE,
    KINDS,
    KNOWN,
    UNLABELLED,
    Decided,
    ListFilter,
    ListView,
    decided,
    decided_list,
    flags_of,
    list_view,
    stored_list,
)
from magistrate.store import RunRecord, Snapshot
from magistrate.store.outcome_lists import Cell
from magistrate.types import Abstention, Failure

MOST_CODES = 12
MOST_LABELS = 8
MOST_CHOICES = 50
MOST_AT_ONCE = 500
"""Outcomes that are counted while somebody waits: a tenth of a millisecond each."""
MOST_SLICED = 1_000
"""Outcomes that are sliced while somebody waits."""

Point = tuple[float, float]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A chart with a mark, in the chart's own units, at the threshold: as it is set `now` and as `judged`.

    `upright` says that the mark is a line from the lower end of the axes to the upper one, at `ends`.
    """

    chart: Chart
    now: Point | None
    judged: Point | None
    upright: bool
    ends: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdPart:
    """The threshold that is set, None if labels are as judged, and what is known about others.

    `shown` is the position of the slider. Of `n` verdicts `n_now` say hallucinated, and `n_judged` did as
    judged. The other fields are as in `Figures`; `shares_contexts` says that intervals would be wider if
    they took samples of the same context together, as those of the labels as judged do.
    """

    value: float | None
    shown: float
    n: int
    n_now: int
    n_judged: int
    own: float | None
    best: float | None
    best_value: float | None
    turned: bool
    shares_contexts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagPart:
    """The kinds of claims by which a rubric's verdicts were decided, and by which they are decided now.

    `chosen` is empty if they are as judged; `pending` says that they are being decided at the moment.
    """

    kinds: tuple[str, ...]
    own: tuple[str, ...]
    chosen: tuple[str, ...]
    pending: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLine:
    """Outcomes without a verdict that have the same code, and the message of one of them."""

    kind: str
    code: str
    n: int
    message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossTable:
    """How often each label goes with each true label, in the words of an address.

    `counts[i][j]` is for the i-th true label and the j-th label; `n_more` outcomes have others.
    """

    truths: tuple[str, ...]
    labels: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    n_more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the list can be filtered by."""

    said: tuple[str, ...]
    truth: tuple[str, ...]
    codes: tuple[str, ...]
    has_right: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgePart:
    """A judge's figures: `view` has them in words, at the threshold and with the flags that are set."""

    report: JudgeReport
    view: JudgeView
    threshold: ThresholdPart | None
    pictures: tuple[Picture, ...]


def judge_part(figures: Figures, threshold: float | None, price: Price | None) -> JudgePart:
    """A judge's figures; at the threshold, if there is one and the judge has scores."""
    cuts = figures.n_scores > 0 and figures.report.scoring is not None
    moved = at_threshold(figures, threshold) if cuts and threshold is not None else None
    report = moved.report if moved else figures.report
    return JudgePart(
        report=report,
        view=judge_view(report, 1, (), price),
        threshold=_threshold(figures, moved) if cuts else None,
        pictures=tuple(_pictures(figures, moved)),
    )


def _threshold(figures: Figures, moved: AtThreshold | None) -> ThresholdPart:
    report = figures.report
    known = [report.verdicts.get(label, 0) for label in KNOWN]
    return ThresholdPart(
        value=moved.threshold if moved else None,
        shown=moved.threshold if moved else 0.5 if figures.own is None else figures.own,
        n=figures.n_scores,
        n_now=moved.n_hallucinated if moved else known[0],
        n_judged=known[0],
        own=figures.own,
        best=figures.best,
        best_value=figures.best_value,
        turned=report.turned,
        shares_contexts=report.result is not None and report.n_contexts < report.n_measured,
    )


def _pictures(figures: Figures, moved: AtThreshold | None) -> list[Picture]:
    judged = _marks(figures.report, figures.own)
    now = _marks(moved.report, moved.threshold) if moved else judged
    return [
        Picture(
            chart=chart,
            now=_placed(chart, now),
            judged=_placed(chart, judged) if moved else None,
            upright=chart.title == "Scores",
            ends=chart.area.y,
        )
        for chart in figures.charts
    ]


def _placed(chart: Chart, marks: Mapping[str, Point]) -> Point | None:
    mark = marks.get(chart.title)
    return None if mark is None else chart.area.at(*mark)


def _marks(report: JudgeReport, threshold: float | None) -> dict[str, Point]:
    """The position of the threshold in each chart, by its title."""
    found: dict[str, Point] = {} if threshold is None else {"Scores": (threshold, 0.0)}
    c: Confusion | None = report.result.confusion if report.result else None
    if c is not None and c.positives and c.negatives:
        recall = c.true_positive / c.positives
        found["ROC"] = (c.false_positive / c.negatives, recall)
        if called := c.true_positive + c.false_positive:
            found["Precision and recall"] = (recall, c.true_positive / called)
    return found


# --- what is beside the figures -------------------------------------------------------------------


def flag_part(own: Sequence[str], chosen: Sequence[str], pending: bool) -> FlagPart:
    """The switches of a rubric; to choose the kinds that it has anyway changes nothing."""
    anew = () if set(chosen) == set(own) else tuple(chosen)
    return FlagPart(kinds=CLAIM_KINDS, own=tuple(own), chosen=anew, pending=pending)


def code_lines(moment: Snapshot, run_id: str, judge: str, cells: Mapping[Cell, int]) -> tuple[CodeLine, ...]:
    """Failures and abstentions by code, the most frequent first, with the message of one of each."""
    if all(cell.kind == "verdict" for cell in cells):
        return ()
    codes = moment.failure_codes(run_id, judge, MOST_CODES)
    return tuple(
        CodeLine(kind=kind, code=code, n=n, message=_message(moment, run_id, judge, cells, kind, code))
        for (kind, code), n in codes.items()
    )


def _message(
    moment: Snapshot, run_id: str, judge: str, cells: Mapping[Cell, int], kind: str, code: str
) -> str | None:
    chosen = [cell for cell in cells if cell.kind == kind]
    for line in moment.in_cells(run_id, judge, chosen, code=code, limit=1):
        for outcome in moment.outcomes(run_id, judge=judge, sample_id=line.sample_id):
            if isinstance(outcome, Failure | Abstention):
                return outcome.message or None
    return None


def cross_table(cells: Mapping[Cell, int]) -> CrossTable | None:
    """Labels against true labels, if there are others than faithful and hallucinated; else None."""
    verdicts = {(cell.gold, cell.label): n for cell, n in cells.items() if cell.kind == "verdict"}
    if not verdicts or all(gold in KNOWN and label in KNOWN for gold, label in verdicts):
        return None
    golds, labels = _ranked(verdicts, 0), _ranked(verdicts, 1)
    counts = tuple(tuple(verdicts.get((gold, label), 0) for label in labels) for gold in golds)
    return CrossTable(
        truths=tuple(_word(gold) for gold in golds),
        labels=tuple(label for label in labels if label is not None),
        counts=counts,
        n_more=sum(verdicts.values()) - sum(map(sum, counts)),
    )


def _ranked(verdicts: Mapping[tuple[str | None, str | None], int], side: int) -> list[str | None]:
    """The most frequent labels of one side."""
    found: Counter[str | None] = Counter()
    for pair, n in verdicts.items():
        found[pair[side]] += n
    return sorted(found, key=lambda label: (-found[label], label or ""))[:MOST_LABELS]


def _word(gold: str | None) -> str:
    return UNLABELLED if gold is None else gold


def choices_of(cells: Mapping[Cell, int], codes: Sequence[CodeLine]) -> Choices:
    """What the list can be filtered by, the most frequent values first."""
    said: Counter[str] = Counter()
    truth: Counter[str] = Counter()
    named = {kind: word for word, kind in KINDS.items()}
    for cell, n in cells.items():
        said[named.get(cell.kind) or cell.label or ""] += n
        truth[_word(cell.gold)] += n
    verdicts = [cell for cell in cells if cell.kind == "verdict"]
    return Choices(
        said=tuple(word for word, _ in said.most_common(MOST_CHOICES)),
        truth=tuple(word for word, _ in truth.most_common(MOST_CHOICES)),
        codes=tuple(line.code for line in codes),
        has_right=any(cell.label in KNOWN and cell.gold in KNOWN for cell in verdicts),
    )


# --- the whole of it ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuery:
    """What to show of a run: which judge, which of its outcomes and from where on, sliced by which field."""

    judge: str | None = None
    wanted: ListFilter = ALL
    by: str | None = None
    after: str | None = None
    before: str | None = None
    limit: int = AT_ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """A judge of a run: its figures, None if nothing is counted yet, and a part of the list of its outcomes.

    `keys` are fields of metadata to slice by. `slices` is None if none were asked for or they are not
    computed yet. `pending` says that something is being computed, `refused` why something cannot be had.
    """

    judge: str
    part: JudgePart | None
    flags: FlagPart | None
    codes: tuple[CodeLine, ...]
    table: CrossTable | None
    choices: Choices
    keys: tuple[str, ...]
    slices: SlicesView | None
    outcomes: ListView
    pending: bool
    refused: str | None


@dataclass(frozen=True, slots=True)
class JudgeReader:
    """Reads one judge of a run at one moment; what was computed before for the same revision is cached."""

    moment: Snapshot
    cache: RunCache
    record: RunRecord
    judge: str

    def cached(self, what: str, make: Callable[[], T]) -> T:
        """What `make` gives; it depends on nothing but the judge's outcomes."""
        return self.cache.get((what, self.record.id, self.record.revision, self.judge), make)

    def computed(
        self, what: str, more: object, make: Callable[[Snapshot], T], most: int
    ) -> T | Refused | None:
        """The same for slow work: at once if the run has at most `most` outcomes, else in the background."""
        key = (what, self.record.id, self.record.revision, self.judge, more)
        if self.record.n_outcomes <= most:
            return self.cache.get(key, lambda: make(self.moment))
        return self.cache.get_in_background(key, make)

    @property
    def cells(self) -> Mapping[Cell, int]:
        """How many outcomes are in which cell."""
        return self.cached("cells", lambda: self.moment.cells(self.record.id, self.judge))

    @property
    def own_flags(self) -> tuple[str, ...] | None:
        """The kinds of claims that decide the verdicts; None if claims do not decide them."""
        return self.cached("flags", lambda: (flags_of(self.moment, self.record.id, self.judge, self.cells),))[
            0
        ]

    def flagged(self, flag: tuple[str, ...]) -> Decided | Refused | None:
        """The verdicts decided by other kinds of claims; None while they are being decided."""
        return self.computed(
            "decided",
            tuple(sorted(flag)),
            lambda moment: decided(moment, self.record, self.judge, flag),
            MOST_AT_ONCE,
        )

    def figures(
        self, counted: Counted | None, redecided: Decided | None, flag: tuple[str, ...]
    ) -> Figures | None:
        """The judge's figures as counted, or with the verdicts decided anew."""
        found: tuple[JudgeReport, JudgeScores] | None = None
        revision = self.record.revision
        if redecided is not None:
            found = redecided.report, redecided.scores
        elif counted is not None:
            report = next((each for each in counted.report.judges if each.judge == self.judge), None)
            found = None if report is None else (report, counted.scores[self.judge])
            revision = counted.revision
        if found is None:
            return None
        report, scores = found
        key = ("figures", self.record.id, revision, self.judge, flag if redecided else ())
        return self.cache.get(key, lambda: figures_of(report, scores, "c"))

    def slices(self, by: str) -> Sliced | Refused | None:
        """The outcomes by a field of metadata; None while they are being read."""
        run_id, judge = self.record.id, self.judge
        return self.computed("slices", by, lambda moment: sliced(moment, run_id, judge, by), MOST_SLICED)

    def keys(self) -> tuple[str, ...]:
        """The fields of metadata to slice by."""
        key = ("keys", self.record.id, min(self.record.n_samples, SAMPLES_READ))
        return self.cache.get(key, lambda: keys_of(self.moment, self.record.id))

    def codes(self) -> tuple[CodeLine, ...]:
        """Failures and abstentions by code."""
        return self.cached("codes", lambda: code_lines(self.moment, self.record.id, self.judge, self.cells))


def detail_of(reader: JudgeReader, counted: Counted | None, query: RunQuery) -> Detail:
    """The judge in detail; `counted` are the figures of the run, at whatever revision."""
    own, flag = reader.own_flags, query.wanted.flag
    redecided: Decided | Refused | None = None
    switches = None if own is None else flag_part(own, flag, pending=False)
    if switches is not None and switches.chosen:
        redecided = reader.flagged(switches.chosen)
        switches = flag_part(own or (), flag, pending=redecided is None)
    problem = redecided.message if isinstance(redecided, Refused) else None
    fresh = redecided if isinstance(redecided, Decided) else None
    figures = reader.figures(counted, fresh, tuple(sorted(flag)))
    cuts = figures is not None and figures.n_scores and figures.report.scoring is not None
    threshold = query.wanted.threshold if cuts else None
    labelled = figures is not None and figures.report.result is not None
    turned = figures is not None and figures.report.turned
    slices = reader.slices(query.by) if query.by and labelled else None
    view = None
    if isinstance(slices, Refused):
        problem = slices.message
    elif slices is not None:
        view = slices_view(slices, threshold)
    cells = fresh.cells if fresh else reader.cells
    codes = reader.codes()
    return Detail(
        judge=reader.judge,
        part=None if figures is None else judge_part(figures, threshold, price_of_run(reader.record)),
        flags=switches,
        codes=codes,
        table=None if threshold is not None else cross_table(cells),
        choices=choices_of(cells, codes),
        keys=reader.keys() if labelled else (),
        slices=view,
        outcomes=_list(reader, query, fresh, cells, query.wanted.but(threshold=threshold), turned),
        pending=(switches is not None and switches.pending) or bool(query.by and labelled and slices is None),
        refused=problem,
    )


def _list(
    reader: JudgeReader,
    query: RunQuery,
    fresh: Decided | None,
    cells: Mapping[Cell, int],
    wanted: ListFilter,
    turned: bool,
) -> ListView:
    place = reader.moment, reader.record.id, reader.judge, wanted
    source = decided_list(*place, fresh) if fresh else stored_list(*place, cells, turned)
    n_all = sum(cells.values())
    return list_view(source, wanted, n_all, turned, after=query.after, before=query.before, limit=query.limit)
