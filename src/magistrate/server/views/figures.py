"""A judge's figures in a run: as judged, at any threshold, and by slices of the data.

What depends on the outcomes alone is computed once; a threshold then costs a search in sorted scores and the
intervals. Nothing is binned: the counts are those of the scores themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from magistrate.analysis.columns import columns
from magistrate.datasets.selection import value_at
from magistrate.metrics.classification import Classification, Estimate, classification
from magistrate.metrics.thresholds import Aim, best_cut
from magistrate.report.charts import Chart, charts_of
from magistrate.report.counts import JudgeScores
from magistrate.report.summary import remarks
from magistrate.report.values import JudgeReport
from magistrate.store import Snapshot
from magistrate.types import FAITHFUL, HALLUCINATED, Scoring

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MOST_DIGITS = 16  # that a float between 0 and 1 has
BEST = Aim("maximize", "balanced_accuracy")


@dataclass(frozen=True, slots=True, kw_only=True)
class AtThreshold:
    """A judge's labels and figures at a threshold of its own scores.

    Of `n` verdicts that say faithful or hallucinated, `n_hallucinated` say hallucinated there. The matrix,
    metrics, counts and remarks of `report` are at the threshold, with intervals that take every sample to
    have a context of its own. Figures of scores, such as AUROC and calibration, are as judged.
    """

    threshold: float
    n: int
    n_hallucinated: int
    report: JudgeReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A judge's report, its sorted scores, and what follows from them.

    `own` is the judge's threshold, as the run stored it; None if the run has none, or if its labels are not
    those of that threshold. `best` is a threshold with the highest balanced accuracy on this data, which is
    `best_value`; both are None if a class is missing.
    """

    report: JudgeReport
    scores: JudgeScores
    charts: tuple[Chart, ...]
    own: float | None
    best: float | None
    best_value: float | None

    @property
    def n_scores(self) -> int:
        """How many verdicts say faithful or hallucinated."""
        return sum(group.size for group in _groups(self.scores))


def figures_of(report: JudgeReport, scores: JudgeScores, name: str) -> Figures:
    """The figures of a judge; the ids in its charts begin with `name`."""
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
    """The figures at a threshold in [0, 1]. The report must say how scores are read (`scoring`)."""
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
    """How many of these sorted scores say hallucinated: those from the threshold on, or below it."""
    import numpy as np

    below = int(np.searchsorted(ordered, threshold, side="left"))
    return below if turned else int(ordered.size) - below


# --- thresholds ------------------------------------------------------------------------------------


def _gives_the_labels(figures: Figures) -> bool:
    """Whether the stored threshold gives as many hallucinated for each true label as the judge did."""
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
    """A round threshold with the highest balanced accuracy."""
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
    """The number between `low` and `high`, both in [0, 1], with the fewest digits; .5 if it is between them.

    `end`, one of the two, counts as between them. None if there is no such number.

    >>> roundest(0.431, 0.52, 0.52), roundest(0.4312, 0.4387, 0.4387), roundest(0.499, 0.5, 0.5)
    (0.5, 0.435, 0.5)
    """
    for digits in range(MOST_DIGITS + 1):
        for number in (0.5, (low + high) / 2, end):
            found = number if number == 0.5 else round(number, digits)
            if low < found < high or found == end:
                return found
    return None


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SAMPLES_READ = 50  # to see which fields of metadata there are
FEW_VALUES = 20  # of a field among those samples
MOST_KEYS = 30
LONGEST_KEY = 100
MOST_SLICES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The samples with one value of a field: `n` have a true label and a verdict.

    `n_hallucinated` of them are hallucinated, `n_called` are judged to be. The interval of
    `balanced_accuracy` takes samples of the same context together.
    """

    value: str
    n: int
    n_hallucinated: int
    n_called: int
    balanced_accuracy: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicesView:
    """The slices by the field `by`, the largest first.

    `n_without` labelled samples have no such field; `n_more` values, of `n_rest` samples, are left out.
    """

    by: str
    slices: tuple[Slice, ...]
    n_without: int
    n_more: int
    n_rest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sliced:
    """Labelled samples with a verdict, in the order of the run, and which value each has.

    All arrays are `[n]`: `place` is that of the value in `values`, -1 for none; `truth` and `said` are True
    for hallucinated; `scores` are the judge's own, which `scoring` says how to read; `groups` are equal for
    samples of the same context.
    """

    by: str
    values: tuple[str, ...]
    place: NDArray[np.int64]
    truth: NDArray[np.bool_]
    said: NDArray[np.bool_]
    scores: NDArray[np.float64]
    groups: NDArray[np.int64]
    scoring: Scoring | None


def keys_of(moment: Snapshot, run_id: str) -> tuple[str, ...]:
    """The names of the metadata fields that have few values among the run's first samples."""
    found: dict[str, set[str]] = {}
    samples = list(islice(moment.samples(run_id), SAMPLES_READ))
    for sample in samples:
        for key, value in sample.metadata.items():
            if isinstance(value, str | int | bool) and len(key) <= LONGEST_KEY:
                found.setdefault(key, set()).add(str(value))
    few = [key for key, values in found.items() if len(values) <= min(FEW_VALUES, max(len(samples) // 2, 1))]
    return tuple(sorted(few)[:MOST_KEYS])


def sliced(moment: Snapshot, run_id: str, judge: str, by: str) -> Sliced:
    """The labelled samples of a run with one judge's verdicts, by a field of their metadata."""
    import numpy as np

    samples = {sample.id: sample for sample in moment.samples(run_id)}
    outcomes = list(moment.bare_outcomes(run_id, judge))
    found = columns(samples, outcomes, judge, moment.record(run_id).scoring.get(judge))
    named = [value_at(samples[sample_id], f"metadata.{by}") for sample_id in found.ids]
    ranked = _ranked(named)
    places = {value: at for at, value in enumerate(ranked)}
    return Sliced(
        by=by,
        values=ranked,
        place=np.array([-1 if value is None else places[value] for value in named], dtype=np.int64),
        truth=found.truth,
        said=found.said,
        scores=found.raw,
        groups=found.groups,
        scoring=found.scoring,
    )


def slices_view(found: Sliced, threshold: float | None) -> SlicesView:
    """The figures for each value, as judged or at a threshold of the judge's own scores."""
    said = found.said
    if threshold is not None and found.scoring is not None:
        said = (found.scores >= threshold) != found.scoring.turned
    slices = []
    for at, value in enumerate(found.values[:MOST_SLICES]):
        inside = found.place == at
        truth, called = found.truth[inside], said[inside]
        measured = classification(truth, called, groups=found.groups[inside])
        slices.append(
            Slice(
                value=value,
                n=int(inside.sum()),
                n_hallucinated=int(truth.sum()),
                n_called=int(called.sum()),
                balanced_accuracy=measured.metrics["balanced_accuracy"],
            )
        )
    return SlicesView(
        by=found.by,
        slices=tuple(slices),
        n_without=int((found.place < 0).sum()),
        n_more=max(len(found.values) - MOST_SLICES, 0),
        n_rest=int((found.place >= MOST_SLICES).sum()),
    )


def _ranked(values: Iterable[str | None]) -> tuple[str, ...]:
    """The distinct values, the most frequent first."""
    counts = Counter(value for value in values if value is not None)
    return tuple(sorted(counts, key=lambda value: (-counts[value], value)))
