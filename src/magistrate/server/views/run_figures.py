"""A judge's figures on the page of its run, as judged and at any threshold.

What depends on the outcomes alone is worked out once; a threshold then costs a search in sorted scores and
the intervals. Nothing is binned: the counts are those of the scores themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from magistrate.metrics.classification import Classification, classification
from magistrate.metrics.thresholds import Aim, best_cut
from magistrate.report.charts import Chart, charts_of
from magistrate.report.counts import JudgeScores
from magistrate.report.summary import remarks
from magistrate.report.values import JudgeReport
from magistrate.types import FAITHFUL, HALLUCINATED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MOST_DIGITS = 16  # that a float between 0 and 1 has
BEST = Aim("maximize", "balanced_accuracy")


@dataclass(frozen=True, slots=True, kw_only=True)
class AtThreshold:
    """A judge's labels and figures as they are at a threshold of its own scores.

    `n_hallucinated` of `n` verdicts that say faithful or hallucinated say the one from there on. `report` has
    them in its matrix, metrics, counts and remarks; its intervals take every sample for one of its own
    context. Figures of scores, such as AUROC and calibration, are as judged.
    """

    threshold: float
    n: int
    n_hallucinated: int
    report: JudgeReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A judge's report and all that its scores say.

    `own` is the judge's threshold, as the run stored it; None where the run has none, and where its labels
    are not those of that threshold. `best` is a threshold with the highest balanced accuracy on this data,
    which is `best_value`; None where a class is missing. The scores are sorted.
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


def figures_of(report: JudgeReport, scores: JudgeScores) -> Figures:
    """What a judge's report and scores give."""
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
    """The figures at a threshold in [0, 1]; `auroc` and everything else about scores stays as it is.

    The run must say how scores are read.
    """
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
    """How many of some sorted scores say hallucinated: those from the threshold on, or below it."""
    import numpy as np

    below = int(np.searchsorted(ordered, threshold, side="left"))
    return below if turned else int(ordered.size) - below


# --- thresholds ------------------------------------------------------------------------------------


def _gives_the_labels(figures: Figures) -> bool:
    """Whether the stored threshold calls as many of each truth hallucinated as the judge did."""
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
    """The number between `low` and `high`, both in [0, 1], that takes the fewest digits; .5 if it can be.

    The one of both that is `end` counts as between them. None where there is none.

    >>> roundest(0.431, 0.52, 0.52), roundest(0.4312, 0.4387, 0.4387), roundest(0.499, 0.5, 0.5)
    (0.5, 0.435, 0.5)
    """
    for digits in range(MOST_DIGITS + 1):
        for number in (0.5, (low + high) / 2, end):
            found = number if number == 0.5 else round(number, digits)
            if low < found < high or found == end:
                return found
    return None
