"""Paired comparisons: metrics of several judges on the same samples, tests, and their power.

All figures of all judges are functions of the same weights, so differences are computed draw by draw. What
makes a sample hard for both judges cancels out.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from typing import TYPE_CHECKING

from magistrate.errors import InputError
from magistrate.metrics.classification import METRICS
from magistrate.metrics.distributions import binomial_cdf, brentq, ndtri, ratio, stdtrit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Shares = NDArray[np.float64]
    """`[truth, A right, B right]`, 2 x 2 x 2: how many of all samples are of each kind; sums to 1."""


COMPARED = (*METRICS, "brier")
"""What judges are compared by: higher is better for all but `brier`."""
PRIMARY = "balanced_accuracy"
"""What judges are compared by, by default: it counts both classes alike, whatever their
shares, it needs no scores, and it heads every report."""
ALPHA, POWER = 0.05, 0.8


def exact_mcnemar(only_first: int, only_second: int) -> float:
    """Return the exact p value of McNemar's test: how many samples only one of two judges got right.

    It assumes independent samples. It is 1 if both judges are always right and wrong together.
    """

    return min(1.0, 2 * binomial_cdf(min(only_first, only_second), only_first + only_second, 0.5))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct the p values of one family for their number by Holm's (1979) method. None stays None."""
    # Not by statsmodels: it runs the garbage collector at every call, which dominates the time.
    known = sorted((p, at) for at, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, at) in enumerate(known):
        highest = max(highest, p * (len(known) - rank))
        corrected[at] = min(highest, 1.0)
    return corrected


def smallest_difference(error: float | None, n_groups: int, comparisons: int = 1) -> float | None:
    """Return the smallest true difference that this many samples would detect with a power of 80 %.

    `error` is the standard error of the difference over `n_groups` contexts. The level is .05 divided by
    `comparisons`, as in the first step of Holm's method. None if there is no usable error.
    """

    if not error or n_groups < 2 or comparisons < 1:
        return None
    freedom = n_groups - 1
    return float(stdtrit(freedom, 1 - ALPHA / comparisons / 2) + stdtrit(freedom, POWER)) * error


class Figures:
    """The figures of one judge over n samples as a function of weights `[b, n]`.

    `truth` and `said` bool `[n]`, True is hallucinated; `scores` `[n]` in [0, 1]. Raises `InputError` for a
    name that is not in `COMPARED`.
    """

    def __init__(
        self,
        truth: NDArray[np.bool_],
        said: NDArray[np.bool_],
        scores: NDArray[np.float64],
        names: Sequence[str] = COMPARED,
    ) -> None:
        import numpy as np

        self._truth, self._said = truth, said
        if unknown := [name for name in names if name not in COMPARED]:
            raise InputError(f"unknown metric {unknown[0]!r}; known: {', '.join(COMPARED)}")
        self.names = tuple(names)
        cells = [truth & said, ~truth & said, ~truth & ~said, truth & ~said, (scores - truth) ** 2]
        self._pieces = np.stack(cells, axis=1).astype(np.float64)
        self._ranks = _Ranks(truth, scores) if "auroc" in names else None

    def __call__(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the figures `[b, names]` of each draw; NaN where one is undefined."""
        import numpy as np

        sums = weights @ self._pieces
        tp, fp, tn, fn, brier = sums.T
        n = sums[:, :4].sum(1)
        found = {
            "accuracy": ratio(tp + tn, n),
            "balanced_accuracy": (ratio(tp, tp + fn) + ratio(tn, tn + fp)) / 2,
            "precision": ratio(tp, tp + fp),
            "recall": ratio(tp, tp + fn),
            "f1": ratio(2 * tp, 2 * tp + fp + fn),
            "brier": ratio(brier, n),
        }
        if self._ranks is not None:
            found["auroc"] = self._ranks.area(weights)
        return np.stack([found[name] for name in self.names], axis=1)

    def support(self, name: str, groups: NDArray[np.int64]) -> int:
        """Return the number of contexts behind a figure: the fewest behind any of its parts."""
        import numpy as np

        truth, said = self._truth, self._said
        halves = [truth, ~truth]
        parts = {
            "balanced_accuracy": halves,
            "auroc": halves,
            "precision": [said],
            "recall": [truth],
            "f1": [truth | said],
        }
        counted = parts.get(name, [np.ones_like(truth)])
        return min(int(np.unique(groups[part]).size) for part in counted)


class _Ranks:
    """The rank of the score of each hallucinated sample among those of the faithful ones."""

    def __init__(self, truth: NDArray[np.bool_], scores: NDArray[np.float64]) -> None:
        import numpy as np

        self._positive = np.flatnonzero(truth)
        negative = np.flatnonzero(~truth)
        self._negative = negative[np.argsort(scores[negative], kind="stable")]
        ranked = scores[self._negative]
        self._below = np.searchsorted(ranked, scores[self._positive], side="left")
        self._not_above = np.searchsorted(ranked, scores[self._positive], side="right")

    def area(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the area under the ROC curve `[b]` for weights `[b, n]`; ties count half."""
        import numpy as np

        drawn = np.ascontiguousarray(weights.T)  # one row per sample, so that each is contiguous in memory
        sums = np.zeros((self._negative.size + 1, drawn.shape[1]))
        np.cumsum(drawn[self._negative], axis=0, out=sums[1:])
        positive = drawn[self._positive]
        beaten = (sums[self._below] + sums[self._not_above]) / 2
        return ratio(np.einsum("nb,nb->b", positive, beaten), positive.sum(0) * sums[-1])


# --- sample sizes ---------------------------------------------------------------------------------
#
# Every sample is of one of eight kinds: truly hallucinated or faithful, and each of two judges right or
# wrong. The metrics are ratios of sums over these kinds, so the variance of a difference follows from their
# shares by the delta method. n samples show the difference with the requested power if
#
#     n = ((z of 1 - alpha / 2) s0 + (z of power) s1)² / difference²
#
# s1² is the variance of one sample at the given shares, s0² at those of two judges that do not differ: the
# same shares averaged over swapping the judges. For accuracy this is the sample size of McNemar's test
# (Connor 1987). For the area under the ROC curve it rests on the variance of Hanley and McNeil (1982, 1983).


POWERED = ("accuracy", "balanced_accuracy", "precision", "recall", "f1", "auroc")


def assumed(
    metric: str, value: float, difference: float, base_rate: float, agreement: float | None
) -> Shares:
    """Return the shares of two judges whose `metric` is `value` and `value + difference`.

    Each judge is right equally often on hallucinated and faithful samples. `agreement` is how often the two
    give the same label, in either class; without it they err independently. Raises `InputError`, with the
    possible range, if no judges have these values.
    """
    import numpy as np

    rights = [_right(metric, each, base_rate) for each in (value, value + difference)]
    a, b = rights
    least, most = abs(a + b - 1), 1 - abs(a - b)
    both_same = a * b + (1 - a) * (1 - b) if agreement is None else agreement
    if not least - 1e-12 <= both_same <= most + 1e-12:
        raise InputError(
            f"judges that are right on {a:.3f} and {b:.3f} of all samples can agree on {least:.3f} to "
            f"{most:.3f} of them, not on {both_same:g}; change --agreement"
        )
    right = (both_same + a + b - 1) / 2
    cells = np.array([[1 - a - b + right, b - right], [a - right, right]]).clip(0)
    return np.stack([(1 - base_rate) * cells, base_rate * cells])


def _right(metric: str, value: float, base_rate: float) -> float:
    """Return how often a judge whose metric is `value` is right, in either class."""

    def excess(right: float) -> float:
        positive, false_alarm = base_rate * right, (1 - base_rate) * (1 - right)
        if metric == "precision":
            return positive / (positive + false_alarm) - value
        if metric == "f1":
            return 2 * positive / (positive + false_alarm + base_rate) - value
        return right - value

    if not 0 < value < 1:
        raise InputError(f"a judge's {metric} must be between 0 and 1, got {value:g}")
    return float(brentq(excess, 1e-12, 1 - 1e-12)) if metric in ("precision", "f1") else value


def samples_needed(
    metric: str, shares: Shares, difference: float, *, alpha: float = 0.05, power: float = 0.8
) -> int:
    """Return the number of samples that show a `difference` in `metric` of judges with these `shares`."""

    alike = (shares + shares.transpose(0, 2, 1)) / 2
    s0, s1 = deviation(metric, alike), deviation(metric, shares)
    if not s0:
        raise InputError("the two judges never differ, so no number of samples can show a difference")
    spread = float(ndtri(1 - alpha / 2)) * s0 + float(ndtri(power)) * s1
    return ceil((spread / difference) ** 2 - 1e-9)


def deviation(metric: str, shares: Shares) -> float:
    """Return the standard deviation of the difference of `metric` between the judges, times the root of n."""
    gradient = _gradient(metric, shares, second=True) - _gradient(metric, shares, second=False)
    mean = float((shares * gradient).sum())
    return sqrt(max(0.0, float((shares * gradient**2).sum()) - mean**2))


def value_of(metric: str, shares: Shares, *, second: bool) -> float | None:
    """Return one judge's metric at these shares; None if it is undefined."""
    values = [
        float(above / below) if below else None for _, _, above, below in _ratios(metric, shares, second)
    ]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def _ratios(
    metric: str, shares: Shares, second: bool
) -> list[tuple[NDArray[np.float64], NDArray[np.float64], float, float]]:
    """Return the ratios whose mean is the metric: weights `[2, 2, 2]` above and below the line, and sums."""
    import numpy as np

    ones = np.ones((2, 2, 2))
    truth = ones * np.array([0.0, 1.0])[:, None, None]
    right = ones * (np.array([0.0, 1.0])[None, None, :] if second else np.array([0.0, 1.0])[None, :, None])
    tp, fp, tn = truth * right, (1 - truth) * (1 - right), (1 - truth) * right
    fn = truth * (1 - right)
    known = {
        "accuracy": [(right, ones)],
        "balanced_accuracy": [(tp, truth), (tn, 1 - truth)],
        "precision": [(tp, tp + fp)],
        "recall": [(tp, truth)],
        "f1": [(2 * tp, 2 * tp + fp + fn)],
    }
    if metric not in known:
        raise InputError(f"unknown metric {metric!r}; known: {', '.join(known)}")
    return [
        (above, below, float((shares * above).sum()), float((shares * below).sum()))
        for above, below in known[metric]
    ]


def _gradient(metric: str, shares: Shares, *, second: bool) -> NDArray[np.float64]:
    """Return the derivative of one judge's metric by each of the eight shares."""
    import numpy as np

    parts = []
    for above, below, over, under in _ratios(metric, shares, second):
        if not under:
            raise InputError(f"{metric} is undefined for these judges (division by zero)")
        parts.append((above - over / under * below) / under)
    return np.asarray(sum(parts)) / len(parts)


def auroc_samples_needed(
    value: float,
    difference: float,
    base_rate: float,
    correlation: float,
    *,
    alpha: float = 0.05,
    power: float = 0.8,
) -> int:
    """Return the number of samples that show that one area is `value` and another `value + difference`.

    `correlation` in [0, 1) is the correlation between the two estimated areas.
    """

    if not (0 < value < 1 and 0 < value + difference < 1):
        raise InputError(f"areas must be between 0 and 1, got {value:g} and {value + difference:g}")
    if not 0 <= correlation < 1:
        raise InputError(f"--correlation must be at least 0 and below 1, got {correlation:g}")
    middle = value + difference / 2
    null = sqrt(2 * (1 - correlation) * _area_variance(middle, base_rate))
    one, two = _area_variance(value, base_rate), _area_variance(value + difference, base_rate)
    other = sqrt(one + two - 2 * correlation * sqrt(one * two))
    spread = float(ndtri(1 - alpha / 2)) * null + float(ndtri(power)) * other
    return ceil((spread / difference) ** 2 - 1e-9)


def _area_variance(area: float, base_rate: float) -> float:
    """Return n times the variance of an estimated area for large n (Hanley and McNeil 1982)."""
    one_faithful = area / (2 - area) - area**2  # two hallucinated samples score above it
    one_hallucinated = 2 * area**2 / (1 + area) - area**2
    return one_faithful / (1 - base_rate) + one_hallucinated / base_rate
