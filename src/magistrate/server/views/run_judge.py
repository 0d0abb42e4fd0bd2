"""One judge's part in a run as its page shows it, with a threshold moved or kinds of claims flagged anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from magistrate.engines.prices import Price
from magistrate.judges.flagging import KINDS as CLAIM_KINDS
from magistrate.metrics.classification import Confusion
from magistrate.report.charts import Chart
from magistrate.report.values import JudgeReport
from magistrate.report.views import JudgeView, judge_view
from magistrate.server.views.run_figures import AtThreshold, Figures, at_threshold
from magistrate.server.views.run_list import KINDS, KNOWN, UNLABELLED
from magistrate.store import Snapshot
from magistrate.store.outcome_lists import Cell
from magistrate.types import Abstention, Failure

MOST_CODES = 12
MOST_LABELS = 8
MOST_CHOICES = 50
Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A chart, and where in it, in its own units, what is called hallucinated now and was as judged stands.

    `upright` says that a mark is a line from the lower end of the axes to the upper one, at `ends`.
    """

    chart: Chart
    now: Point | None
    judged: Point | None
    upright: bool
    ends: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdPart:
    """The threshold that is set, None where labels are as judged, and what can be told of others.

    `shown` is where a slider stands. Of `n` verdicts `n_now` say hallucinated, and `n_judged` did as judged.
    The others are as in `Figures`; `shares_contexts` says that intervals would be wider if they took samples
    of the same context together, as those of the labels as judged do.
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
    """By which kinds of claims a rubric's verdicts were decided, and by which they are to be decided anew.

    `chosen` is empty where they are as judged; `pending` says that they are being decided at the moment.
    """

    kinds: tuple[str, ...]
    own: tuple[str, ...]
    chosen: tuple[str, ...]
    pending: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLine:
    """Outcomes without a verdict that have the same code, and what one of them says."""

    kind: str
    code: str
    n: int
    message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossTable:
    """How often which label stands beside which true one, by the words that an address has for them.

    `counts[i][j]` is of the i-th truth and the j-th label; `n_more` outcomes have others.
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
    """A judge in detail: `view` has its figures in words, as they are at the threshold and with the flags."""

    report: JudgeReport
    view: JudgeView
    threshold: ThresholdPart | None
    pictures: tuple[Picture, ...]


def judge_part(figures: Figures, threshold: float | None, price: Price | None) -> JudgePart:
    """A judge's figures, at a threshold where there is one and scores that can be cut."""
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
    """Where what is called hallucinated stands in each chart, by its title."""
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
    """The switches of a rubric; chosen kinds that are its own change nothing."""
    anew = () if set(chosen) == set(own) else tuple(chosen)
    return FlagPart(kinds=CLAIM_KINDS, own=tuple(own), chosen=anew, pending=pending)


def code_lines(moment: Snapshot, run_id: str, judge: str, cells: Mapping[Cell, int]) -> tuple[CodeLine, ...]:
    """Failures and abstentions by code, the most frequent first, each with a message of one of them."""
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
    """Labels beside true ones where they are not only faithful and hallucinated; None where there is none."""
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
    found: dict[str | None, int] = {}
    for pair, n in verdicts.items():
        found[pair[side]] = found.get(pair[side], 0) + n
    return sorted(found, key=lambda label: (-found[label], label or ""))[:MOST_LABELS]


def _word(gold: str | None) -> str:
    return UNLABELLED if gold is None else gold


def choices_of(cells: Mapping[Cell, int], codes: Sequence[CodeLine]) -> Choices:
    """What there is to choose from, the most frequent first."""
    said: dict[str, int] = {}
    truth: dict[str, int] = {}
    named = {kind: word for word, kind in KINDS.items()}
    for cell, n in cells.items():
        word = named.get(cell.kind) or cell.label or ""
        said[word] = said.get(word, 0) + n
        truth[_word(cell.gold)] = truth.get(_word(cell.gold), 0) + n
    verdicts = [cell for cell in cells if cell.kind == "verdict"]
    return Choices(
        said=tuple(sorted(said, key=lambda word: -said[word])[:MOST_CHOICES]),
        truth=tuple(sorted(truth, key=lambda word: -truth[word])[:MOST_CHOICES]),
        codes=tuple(line.code for line in codes),
        has_right=any(cell.label in KNOWN and cell.gold in KNOWN for cell in verdicts),
    )
