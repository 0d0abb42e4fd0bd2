"""One judge of a run on its page: metrics as judged and at any threshold, and its failures.

Values that depend only on the outcomes are computed once. A threshold then needs only a search in sorted
scores and the intervals. Nothing is binned: the counts are exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from magistrate.engines.prices import Price
from magistrate.judges.rubric import KINDS as CLAIM_KINDS
from magistrate.metrics.classification import Classification, Confusion, classification
from magistrate.metrics.thresholds import Aim, best_cut
from magistrate.report.charts import Chart, charts_of
from magistrate.report.counts import KNOWN, JudgeScores, RunFigures, price_of_run
from magistrate.report.summary import remarks
from magistrate.report.values import JudgeReport, JudgeView, judge_view
from magistrate.server.outcomes import (
    ALL,
    AT_ONCE,
    KINDS,
    UNLABELLED,
    Decided,
    ListFilter,
    ListView,
    OutcomeSource,
    beside,
    decided,
    flags_of,
    list_view,
    memory_list,
    stored_list,
)
from magistrate.server.slices import SAMPLES_READ, Sliced, SlicesView, keys_of, sliced, slices_view
from magistrate.server.state import Refused, RunCache
from magistrate.store import RunRecord, Snapshot
from magistrate.store.outcome_lists import Cell
from magistrate.store.sample_search import BareOutcome, FoundSamples
from magistrate.types import FAITHFUL, HALLUCINATED, Abstention, Failure

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


MOST_DIGITS = 16  # of a float between 0 and 1
BEST = Aim("maximize", "balanced_accuracy")


@dataclass(frozen=True, slots=True, kw_only=True)
class AtThreshold:
    """A judge's labels and metrics at a threshold of its own scores.

    Of `n` faithful or hallucinated verdicts, `n_hallucinated` are hallucinated at the threshold. The
    matrix, metrics, counts and remarks of `report` are at the threshold. Their intervals assume that every
    sample has its own context. Metrics of scores, such as AUROC and calibration, are as judged.
    """

    threshold: float
    n: int
    n_hallucinated: int
    report: JudgeReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A judge's report, its sorted scores, and values derived from them.

    `own` is the judge's threshold, as stored with the run; None if the run has none, or if its labels do
    not match that threshold. `best` is a threshold with the highest balanced accuracy on this data, which
    is `best_value`; both are None if a class is missing.
    """

    report: JudgeReport
    scores: JudgeScores
    charts: tuple[Chart, ...]
    own: float | None
    best: float | None
    best_value: float | None

    @property
    def n_scores(self) -> int:
        """The number of faithful or hallucinated verdicts."""
        return sum(group.size for group in _groups(self.scores))


def figures_of(report: JudgeReport, scores: JudgeScores, name: str) -> Figures:
    """Return the metrics of a judge. The ids in its charts begin with `name`."""
    import numpy as np

    found = Figures(
        report=report,
        scores=JudgeScores(*(np.sort(group) for group in _groups(scores))),
        charts=charts_of(scores, report),
        own=None,
        best=None,
        best_value=None,
    )
    if _gives_the_labels(found):
        assert report.scoring is not None
        found = replace(found, own=report.scoring.threshold)
    if report.scoring is None or report.result is None or len(scores.groups) < 2:
        return found
    best = _best(found)
    result = at_threshold(found, best).report.result
    value = None if result is None else result.metrics["balanced_accuracy"].value
    return replace(found, best=best, best_value=value)


def at_threshold(figures: Figures, threshold: float) -> AtThreshold:
    """Return the metrics at a threshold in [0, 1]. The report must have a `scoring`."""
    import numpy as np

    report, scores = figures.report, figures.scores
    called = [_called(group, threshold, report.turned) for group in _groups(scores)]
    n, n_called = figures.n_scores, sum(called)
    found = report.result
    if found is not None:
        tp, fp = called[:2]
        fn, tn = scores.hallucinated.size - tp, scores.faithful.size - fp
        cells = np.array([tp, fn, fp, tn])
        truth = np.repeat(np.array([True, True, False, False]), cells)
        said = np.repeat(np.array([True, False, True, False]), cells)
        moved = classification(truth, said)
        found = Classification(moved.confusion, {**moved.metrics, "auroc": found.metrics["auroc"]})
    others = {label: n for label, n in report.verdicts.items() if label not in (HALLUCINATED, FAITHFUL)}
    labels = {HALLUCINATED: n_called, FAITHFUL: n - n_called}
    verdicts = {label: count for label, count in {**labels, **others}.items() if count}
    shown = replace(report, result=found, verdicts=verdicts, threshold_gain=None)
    return AtThreshold(
        threshold=threshold, n=n, n_hallucinated=n_called, report=replace(shown, remarks=remarks(shown))
    )


def _groups(scores: JudgeScores) -> tuple[Floats, Floats, Floats]:
    return scores.hallucinated, scores.faithful, scores.unlabelled


def _called(ordered: Floats, threshold: float, turned: bool) -> int:
    """Return how many of these sorted scores mean hallucinated: those from the threshold on, or below it."""
    import numpy as np

    below = int(np.searchsorted(ordered, threshold, side="left"))
    return below if turned else int(ordered.size) - below


# --- thresholds ------------------------------------------------------------------------------------


def _gives_the_labels(figures: Figures) -> bool:
    """Return whether the stored threshold gives the judge's number of hallucinated for each gold label."""
    report, scores = figures.report, figures.scores
    if report.scoring is None or report.scoring.threshold is None or not figures.n_scores:
        return False
    hits, alarms = 0, 0
    if report.result is not None:
        c = report.result.confusion
        hits, alarms = c.true_positive, c.false_positive
    judged = [hits, alarms, report.verdicts.get(HALLUCINATED, 0) - hits - alarms]
    return judged == [_called(group, report.scoring.threshold, report.turned) for group in _groups(scores)]


def _best(figures: Figures) -> float:
    """Return a round threshold with the highest balanced accuracy."""
    import numpy as np

    turned = figures.report.turned
    truth, measured = figures.scores.measured(turned)
    n = int((measured >= best_cut(measured, truth, BEST)).sum())
    own = np.sort(np.concatenate([figures.scores.hallucinated, figures.scores.faithful]))
    at = n if turned else own.size - n
    low = float(own[at - 1]) if at else 0.0
    high = float(own[at]) if at < own.size else 1.0
    found = roundest(low, high, high)
    return high if found is None else found


def roundest(low: float, high: float, end: float) -> float | None:
    """Return the number between `low` and `high`, both in [0, 1], with the fewest digits; .5 if it is in
    between.

    `end`, one of the two, counts as in between. None if there is no such number.

    >>> roundest(0.431, 0.52, 0.52), roundest(0.4312, 0.4387, 0.4387), roundest(0.499, 0.5, 0.5)
    (0.5, 0.435, 0.5)
    """
    for digits in range(MOST_DIGITS + 1):
        for number in (0.5, (low + high) / 2, end):
            found = number if number == 0.5 else round(number, digits)
            if low < found < high or found == end:
                return found
    return None


# --- one judge on the page of its run ---------------------------------------------------------------


MOST_CODES = 12
MOST_LABELS = 8
MOST_CHOICES = 50
MOST_COUNTED = 500
"""Outcomes that are counted while somebody waits: a tenth of a millisecond each."""
MOST_DRAWN = 100_000
"""Scores whose charts and thresholds are computed while somebody waits: a microsecond each."""
MOST_SLICED = 1_000
"""Outcomes that are sliced while somebody waits."""
MOST_SEARCHED = 2_000
"""Outcomes of a run whose samples are searched while somebody waits."""

Point = tuple[float, float]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A chart with marks at the threshold, in the chart's coordinates: the current one (`now`) and the
    `judged` one.

    `upright` is set if the mark is a vertical line across the plot, between `ends`.
    """

    chart: Chart
    now: Point | None
    judged: Point | None
    upright: bool
    ends: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdPart:
    """The selected threshold, None if labels are as judged, and facts about others.

    `shown` is the position of the slider. Of `n` verdicts, `n_now` are hallucinated now, and `n_judged`
    were as judged. The other fields are as in `Figures`. `shares_contexts` is set if intervals would be
    wider when they resample samples of the same context together, as those of the labels as judged do.
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

    `chosen` is empty if they are as judged. `pending` is set while they are being decided.
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
    """The number of outcomes for each pair of label and gold label, in the words of an address.

    `counts[i][j]` is for the i-th gold label and the j-th label; `n_more` outcomes have others.
    """

    truths: tuple[str, ...]
    labels: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    n_more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The values that the list can be filtered by."""

    said: tuple[str, ...]
    truth: tuple[str, ...]
    codes: tuple[str, ...]
    has_right: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgePart:
    """A judge's metrics. `view` has them in words, at the selected threshold and with the selected flags."""

    report: JudgeReport
    view: JudgeView
    threshold: ThresholdPart | None
    pictures: tuple[Picture, ...]


def judge_part(figures: Figures, threshold: float | None, price: Price | None) -> JudgePart:
    """Return a judge's metrics, at the threshold if one is given and the judge has scores."""
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
    """Return the position of the threshold in each chart, by its title."""
    found: dict[str, Point] = {} if threshold is None else {"Scores": (threshold, 0.0)}
    c: Confusion | None = report.result.confusion if report.result else None
    if c is not None and c.positives and c.negatives:
        recall = c.true_positive / c.positives
        found["ROC"] = (c.false_positive / c.negatives, recall)
        if called := c.true_positive + c.false_positive:
            found["Precision and recall"] = (recall, c.true_positive / called)
    return found


# --- other parts of the page ----------------------------------------------------------------------


def flag_part(own: Sequence[str], chosen: Sequence[str], pending: bool) -> FlagPart:
    """Return the switches of a rubric. Selecting its original kinds counts as no change."""
    anew = () if set(chosen) == set(own) else tuple(chosen)
    return FlagPart(kinds=CLAIM_KINDS, own=tuple(own), chosen=anew, pending=pending)


def code_lines(moment: Snapshot, run_id: str, judge: str, cells: Mapping[Cell, int]) -> tuple[CodeLine, ...]:
    """Return failures and abstentions by code, the most frequent first, each with an example message."""
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
    """Return labels against gold labels, if there are others than faithful and hallucinated; else None."""
    verdicts = {(cell.gold, cell.label): n for cell, n in cells.items() if cell.kind == "verdict"}
    if not verdicts or all(gold in KNOWN and label in KNOWN for gold, label in verdicts):
        return None
    golds, labels = _ranked_labels(verdicts, 0), _ranked_labels(verdicts, 1)
    counts = tuple(tuple(verdicts.get((gold, label), 0) for label in labels) for gold in golds)
    return CrossTable(
        truths=tuple(_word(gold) for gold in golds),
        labels=tuple(label for label in labels if label is not None),
        counts=counts,
        n_more=sum(verdicts.values()) - sum(map(sum, counts)),
    )


def _ranked_labels(verdicts: Mapping[tuple[str | None, str | None], int], side: int) -> list[str | None]:
    """Return the most frequent labels of one side, hallucinated and faithful before all others."""
    found: Counter[str | None] = Counter()
    for pair, n in verdicts.items():
        found[pair[side]] += n
    ranked = sorted(found, key=lambda label: (-found[label], label or ""))
    # In the order of the other matrix, which has only these two.
    known = [label for label in KNOWN if label in found]
    return [*known, *(label for label in ranked if label not in known)][:MOST_LABELS]


def _word(gold: str | None) -> str:
    return UNLABELLED if gold is None else gold


def choices_of(cells: Mapping[Cell, int], codes: Sequence[CodeLine]) -> Choices:
    """Return the values that the list can be filtered by, the most frequent first."""
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


# --- the complete judge ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuery:
    """What to show of a run: the judge, the filter and page of its outcomes, and the field to slice by."""

    judge: str | None = None
    wanted: ListFilter = ALL
    by: str | None = None
    after: str | None = None
    before: str | None = None
    limit: int = AT_ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """A judge of a run: its metrics, None if not computed yet, and a page of the list of its outcomes.

    `keys` are fields of metadata to slice by. `slices` is None if not requested or not computed yet.
    `pending` is set while something is being computed, `refused` if something cannot be computed, with the
    reason.
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
class Searched:
    """The samples in which words occur, and a judge's outcomes for them, in order."""

    found: FoundSamples
    outcomes: tuple[BareOutcome, ...]


def searched(moment: Snapshot, run_id: str, judge: str, words: Sequence[str]) -> Searched:
    """Look for words in the samples of a run."""
    found = moment.find_samples(run_id, words)
    outcomes = moment.bare_rows(run_id, judge) if found.positions else iter(())
    return Searched(found, tuple(each for each in outcomes if each.position in found.positions))


@dataclass(frozen=True, slots=True)
class JudgeReader:
    """Reads one judge of a run at one moment. Results for the same revision are cached."""

    moment: Snapshot
    cache: RunCache
    record: RunRecord
    judge: str

    def cached(self, what: str, make: Callable[[], T]) -> T:
        """Return the result of `make`, which must depend only on the judge's outcomes."""
        return self.cache.get((what, self.record.id, self.record.revision, self.judge), make)

    def computed(
        self, what: str, more: object, make: Callable[[Snapshot], T], most: int
    ) -> T | Refused | None:
        """Return the result of slow work: at once for at most `most` outcomes, else in the background."""
        key = (what, self.record.id, self.record.revision, self.judge, more)
        if self.record.n_outcomes <= most:
            return self.cache.get(key, lambda: make(self.moment))
        return self.cache.get_in_background(key, make)

    @property
    def cells(self) -> Mapping[Cell, int]:
        """The number of outcomes in each cell."""
        return self.cached("cells", lambda: self.moment.cells(self.record.id, self.judge))

    @property
    def own_flags(self) -> tuple[str, ...] | None:
        """The kinds of claims that decide the verdicts; None if claims do not decide them."""
        return self.cached("flags", lambda: (flags_of(self.moment, self.record.id, self.judge, self.cells),))[
            0
        ]

    def flagged(self, flag: tuple[str, ...]) -> Decided | Refused | None:
        """Return the verdicts decided by other kinds of claims; None while they are being decided."""
        return self.computed(
            "decided",
            tuple(sorted(flag)),
            lambda moment: decided(moment, self.record, self.judge, flag),
            MOST_COUNTED,
        )

    def figures(
        self, counted: RunFigures | None, redecided: Decided | None, flag: tuple[str, ...]
    ) -> Figures | Refused | None:
        """Return the judge's metrics as counted, or with the verdicts decided again.

        None while there are none, or while their charts are being drawn.
        """
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
        if sum(group.size for group in _groups(scores)) <= MOST_DRAWN:
            return self.cache.get(key, lambda: figures_of(report, scores, "c"))
        return self.cache.get_in_background(key, lambda _: figures_of(report, scores, "c"))

    def slices(self, by: str) -> Sliced | Refused | None:
        """Return the outcomes by a field of metadata; None while they are being read."""
        run_id, judge = self.record.id, self.judge
        return self.computed("slices", by, lambda moment: sliced(moment, run_id, judge, by), MOST_SLICED)

    def searched(self, words: tuple[str, ...]) -> Searched | Refused | None:
        """Return the samples in which all words occur; None while they are being looked for."""
        run_id, judge = self.record.id, self.judge
        return self.computed(
            "searched", words, lambda moment: searched(moment, run_id, judge, words), MOST_SEARCHED
        )

    def keys(self) -> tuple[str, ...]:
        """Return the fields of metadata to slice by."""
        key = ("keys", self.record.id, min(self.record.n_samples, SAMPLES_READ))
        return self.cache.get(key, lambda: keys_of(self.moment, self.record.id))

    def codes(self) -> tuple[CodeLine, ...]:
        """Return failures and abstentions by code."""
        return self.cached("codes", lambda: code_lines(self.moment, self.record.id, self.judge, self.cells))


def detail_of(reader: JudgeReader, counted: RunFigures | None, query: RunQuery) -> Detail:
    """Return the judge in detail. `counted` are the metrics of the run, at any revision."""
    own, flag = reader.own_flags, query.wanted.flag
    redecided: Decided | Refused | None = None
    switches = None if own is None else flag_part(own, flag, pending=False)
    if switches is not None and switches.chosen:
        redecided = reader.flagged(switches.chosen)
        switches = flag_part(own or (), flag, pending=redecided is None)
    problem = redecided.message if isinstance(redecided, Refused) else None
    fresh = redecided if isinstance(redecided, Decided) else None
    drawn = reader.figures(counted, fresh, tuple(sorted(flag)))
    figures = drawn if isinstance(drawn, Figures) else None
    problem = drawn.message if isinstance(drawn, Refused) else problem
    is_counted = fresh is not None or (counted is not None and reader.judge in counted.scores)
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
    listed = _list(reader, query, fresh, cells, query.wanted.but(threshold=threshold), turned)
    if isinstance(listed, Refused):
        problem = listed.message
        listed = _empty(sum(cells.values()), searching=False)
    return Detail(
        judge=reader.judge,
        part=None if figures is None else judge_part(figures, threshold, price_of_run(reader.record)),
        flags=switches,
        codes=codes,
        table=None if threshold is not None else cross_table(cells),
        choices=choices_of(cells, codes),
        keys=reader.keys() if labelled else (),
        slices=view,
        outcomes=listed,
        pending=(switches is not None and switches.pending)
        or bool(query.by and labelled and slices is None)
        or listed.searching
        or (is_counted and drawn is None),
        refused=problem,
    )


def _list(
    reader: JudgeReader,
    query: RunQuery,
    fresh: Decided | None,
    cells: Mapping[Cell, int],
    wanted: ListFilter,
    turned: bool,
) -> ListView | Refused:
    """Return a page of the list, empty while its words are still being looked for, or why there is none."""
    source = source_of(reader, wanted, fresh, cells, turned)
    n_all = sum(cells.values())
    if source is None:
        return _empty(n_all, searching=True)
    if isinstance(source, Refused):
        return source
    found, n_unsearched = source
    view = list_view(found, wanted, n_all, turned, after=query.after, before=query.before, limit=query.limit)
    return replace(view, n_unsearched=n_unsearched)


def _empty(n_all: int, *, searching: bool) -> ListView:
    return ListView(
        lines=(),
        n=0,
        n_all=n_all,
        n_unscored=0,
        by_score=False,
        earlier=None,
        later=None,
        searching=searching,
    )


def source_of(
    reader: JudgeReader,
    wanted: ListFilter,
    fresh: Decided | None,
    cells: Mapping[Cell, int],
    turned: bool,
) -> tuple[OutcomeSource, int] | Refused | None:
    """Return the list with this filter, and how many samples its words were not looked for in.

    None while they are being looked for.
    """
    place = reader.moment, reader.record.id, reader.judge, wanted
    if not wanted.words:
        if fresh is not None:
            return memory_list(*place, fresh.outcomes, turned), 0
        return stored_list(*place, cells, turned), 0
    searched = reader.searched(wanted.words)
    if not isinstance(searched, Searched):
        return searched
    outcomes = searched.outcomes
    if fresh is not None:
        outcomes = tuple(each for each in fresh.outcomes if each.position in searched.found.positions)
    return memory_list(*place, outcomes, turned), searched.found.n_left_out


def beside_found(reader: JudgeReader, wanted: ListFilter, position: int) -> tuple[str | None, str | None]:
    """Return the ids of the samples before and after a position, among those in which words were found.

    Flags are ignored, as in `neighbours`. Both are None while the words are being looked for.
    """
    scoring = reader.record.scoring.get(reader.judge)
    wanted = wanted.but(threshold=None) if scoring is None else wanted
    turned = scoring is not None and scoring.turned
    source = source_of(reader, wanted, None, {}, turned)
    if source is None or isinstance(source, Refused):
        return None, None
    at = reader.moment.lines_at(reader.record.id, reader.judge, [position])
    return beside(source[0], wanted, at, position)
