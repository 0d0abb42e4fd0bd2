"""Distributions, roots, ranks and curves that the metrics need, using only numpy and the standard library.

The functions have the names of their scipy and scikit-learn equivalents and agree with them to ten digits or
more (tests/test_distributions.py), so that neither package is needed to judge and to report.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import exp, inf, isinf, lgamma, log, log1p, nan, pi, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

_NORMAL = NormalDist()
_TINY = 1e-300  # replaces 0 in a continued fraction
_CLOSE = 1e-15  # tolerance at which a continued fraction has converged
_ALIKE = 1e-7  # tables whose probabilities are this close count as equally likely (Fisher's test)


# --- normal, Student's t, binomial ----------------------------------------------------------------


def ndtr(x: float) -> float:
    """Return the probability that a standard normal variable is at most `x`."""
    return _NORMAL.cdf(x) if not isinf(x) else float(x > 0)


def ndtri(p: float) -> float:
    """Return the `p` quantile of the standard normal distribution; infinite at 0 and 1."""
    return _NORMAL.inv_cdf(p) if 0 < p < 1 else (-inf if p == 0 else inf if p == 1 else nan)


def betainc(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), for a, b > 0 and x in [0, 1]."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the mirrored fraction converges faster
        return 1 - betainc(b, a, 1 - x)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a
    return front * _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function, by Lentz's method."""
    value, up, down = 1.0, 1.0, 1 - (a + b) * x / (a + 1)
    down = 1 / (down or _TINY)
    value = down
    for m in range(1, 100_000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            down = 1 / ((1 + term * down) or _TINY)
            up = (1 + term / up) or _TINY
            value *= up * down
        if abs(up * down - 1) < _CLOSE:
            break
    return value


def stdtr(freedom: float, x: float) -> float:
    """Return the probability that Student's t with these degrees of freedom is at most `x`."""
    if isinf(x):
        return float(x > 0)
    tail = betainc(freedom / 2, 0.5, freedom / (freedom + x * x)) / 2
    return tail if x < 0 else 1 - tail


@lru_cache(maxsize=4096)
def stdtrit(freedom: float, p: float) -> float:
    """Return the `p` quantile of Student's t with these degrees of freedom; infinite at 0 and 1."""
    if not 0 < p < 1:
        return ndtri(p)
    if p > 0.5:
        return -stdtrit(freedom, 1 - p)
    low = -1.0
    while stdtr(freedom, low) > p:
        low *= 2
    return brentq(lambda x: stdtr(freedom, x) - p, low, 0.0)


def two_sided_t(x: float, freedom: float) -> float:
    """Return the probability that Student's t is at least as far from 0 as `x`."""
    return betainc(freedom / 2, 0.5, freedom / (freedom + x * x)) if not isinf(x) else 0.0


def binomial_cdf(k: int, n: int, p: float) -> float:
    """Return the probability of at most `k` hits in `n` tries with the probability `p` each."""
    return 1.0 if k >= n else 0.0 if k < 0 else betainc(n - k, k + 1, 1 - p)


@lru_cache(maxsize=1024)
def wilson_interval(share: float, n: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a share of `n` > 0 samples. `n` need not be a whole number."""
    z = ndtri((1 + confidence) / 2)
    middle, width = share + z * z / (2 * n), z * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low, high = ((middle + sign * width) / (1 + z * z / n) for sign in (-1, 1))
    # Rounding must not exclude the share itself.
    return max(min(low, share), 0.0), min(max(high, share), 1.0)


# --- tests ----------------------------------------------------------------------------------------


def fisher_exact(a: int, b: int, c: int, d: int) -> float:
    """Return the two-sided p value of Fisher's exact test of the table [[a, b], [c, d]]."""
    row, column, n = a + b, a + c, a + b + c + d

    def chance(k: int) -> float:
        """The logarithm of the probability of `k` in the first cell, up to a constant."""
        cells = (k, row - k, column - k, n - row - column + k)
        return -sum(lgamma(each + 1) for each in cells)

    known = [chance(k) for k in range(max(0, row + column - n), min(row, column) + 1)]
    top = max(known)
    own = exp(chance(a) - top)
    weights = [exp(each - top) for each in known]
    return min(1.0, sum(each for each in weights if each <= own * (1 + _ALIKE)) / sum(weights))


def ks_2samp(one: ArrayLike, other: ArrayLike) -> tuple[float, float]:
    """Return the Kolmogorov-Smirnov distance between the distributions of two samples, and its p value.

    The p value is that of the limiting distribution with Stephens' (1970) correction for small samples.
    """
    import numpy as np

    first, second = np.sort(np.asarray(one, np.float64)), np.sort(np.asarray(other, np.float64))
    both = np.concatenate([first, second])
    below = [np.searchsorted(each, both, side="right") / each.size for each in (first, second)]
    distance = float(np.abs(below[0] - below[1]).max())
    root = sqrt(first.size * second.size / (first.size + second.size))
    reach = (root + 0.12 + 0.11 / root) * distance
    return distance, kolmogorov(reach)


def kolmogorov(x: float) -> float:
    """Return the probability that Kolmogorov's limiting variable is greater than `x`."""
    if x <= 0:
        return 1.0
    if x < 1:  # this series converges faster here
        terms = sum(exp(-((2 * k - 1) ** 2) * pi**2 / (8 * x * x)) for k in range(1, 20))
        return 1 - sqrt(2 * pi) / x * terms
    return 2 * sum((1 if k % 2 else -1) * exp(-2 * (k * x) ** 2) for k in range(1, 20))


# --- functions of arrays --------------------------------------------------------------------------


def expit(x: ArrayLike) -> Floats:
    """Return 1 / (1 + exp(-x)), without overflow."""
    import numpy as np

    values = np.asarray(x, dtype=np.float64)
    small = np.exp(-np.abs(values))
    return np.where(values >= 0, 1 / (1 + small), small / (1 + small))


def logit(p: ArrayLike) -> Floats:
    """Return log(p / (1 - p))."""
    import numpy as np

    values = np.asarray(p, dtype=np.float64)
    return np.asarray(np.log(values) - np.log1p(-values))


def ratio(above: Floats, below: Floats) -> Floats:
    """Return the quotient of two arrays; NaN where the second is not above 0."""
    import numpy as np

    nothing = np.full(np.shape(below), np.nan)
    quotient: Floats = np.divide(above, below, out=nothing, where=below > 0)
    return quotient


def numbered(groups: ArrayLike) -> Ints:
    """Return groups, whole numbers, numbered from 0 in their order, as the inverse of `np.unique`.

    Numbers that are small already, as those of contexts are, are counted and need no sort.
    """
    import numpy as np

    numbers = np.asarray(groups)
    if numbers.size and numbers.min() >= 0 and numbers.max() < 4 * numbers.size:
        present = np.bincount(numbers) > 0
        return np.asarray((present.cumsum() - 1)[numbers], dtype=np.int64)
    return np.asarray(np.unique(numbers, return_inverse=True)[1], dtype=np.int64)


def rankdata(values: ArrayLike) -> Floats:
    """Return ranks from 1. Equal values share the mean of their ranks."""
    import numpy as np

    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return np.asarray((last - (counts - 1) / 2)[inverse], dtype=np.float64)


def roc_auc_score(truth: ArrayLike, scores: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Return the area under the ROC curve. `truth` bool `[n]` has both values; `weights` are `[n]`."""
    import numpy as np

    flags, values = np.asarray(truth, np.bool_), np.asarray(scores, np.float64)
    counted = np.ones(flags.size) if weights is None else np.asarray(weights, np.float64)
    _, inverse = np.unique(values, return_inverse=True)
    up, down = (np.bincount(inverse, counted * each, inverse.max() + 1) for each in (flags, ~flags))
    return float((up * (down.cumsum() - down / 2)).sum() / (up.sum() * down.sum()))


def roc_curve(truth: ArrayLike, scores: ArrayLike, *, corners: bool = False) -> tuple[Floats, Floats, Floats]:
    """Return false and true positive rates by falling threshold, starting at (0, 0), and the thresholds.

    With `corners`, points on a straight line between two others are left out.
    """
    import numpy as np

    hits, alarms, cuts = _counted(truth, scores)
    kept = np.ones(cuts.size, dtype=np.bool_)
    if corners:
        kept[1:-1] = (np.diff(hits, 2) != 0) | (np.diff(alarms, 2) != 0)
    return (
        np.concatenate([[0.0], alarms[kept] / alarms[-1]]),
        np.concatenate([[0.0], hits[kept] / hits[-1]]),
        np.concatenate([[np.inf], cuts[kept]]),
    )


def _counted(truth: ArrayLike, scores: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Return hits and false alarms at every distinct score, from the highest on, and those scores."""
    import numpy as np

    distinct, inverse = np.unique(np.asarray(scores, np.float64), return_inverse=True)
    flags = np.asarray(truth, np.bool_)
    hits = np.bincount(inverse, flags, distinct.size)[::-1].cumsum()
    alarms = np.bincount(inverse, ~flags, distinct.size)[::-1].cumsum()
    return hits, alarms, distinct[::-1]


# --- roots, folds ---------------------------------------------------------------------------------


def brentq(function: Callable[[float], float], low: float, high: float) -> float:
    """Return a root of `function` between `low` and `high`, where its signs differ, by bisection."""
    at_low = function(low)
    if at_low == 0:
        return low
    if (end := function(high)) == 0:
        return high
    if (at_low > 0) == (end > 0):
        raise ValueError(f"the function has the same sign at {low:g} and {high:g}")
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        value = function(middle)
        if value == 0:
            return middle
        if (value > 0) == (at_low > 0):
            low = middle
        else:
            high = middle


def grouped_folds(truth: Flags, groups: Ints, folds: int, seed: int) -> list[tuple[Ints, Ints]]:
    """Return the indices outside and inside each non-empty fold. No group is in two folds.

    Groups are assigned in random order, the most one-sided first, each to the fold that spreads both classes
    most evenly, or to the smaller of equally good ones. The folds are those of scikit-learn's
    `StratifiedGroupKFold` with the same seed.
    """
    import numpy as np

    _, members = np.unique(groups, return_inverse=True)
    counts = np.stack([np.bincount(members, each) for each in (truth, ~truth)], axis=1)
    order = np.random.RandomState(seed).permutation(len(counts))
    order = order[np.argsort(-counts[order].std(axis=1), kind="stable")]
    held, fold = np.zeros((folds, 2)), np.zeros(len(counts), dtype=np.int64)
    totals = np.maximum(counts.sum(axis=0), 1)
    for group in order:
        tried = held + np.eye(folds)[:, :, None] * counts[group]  # [assigned fold, fold, class]
        uneven = (tried / totals).std(axis=1).mean(axis=1)
        best = 0
        for number in range(1, folds):
            alike = bool(np.isclose(uneven[number], uneven[best]))
            if uneven[number] < uneven[best] or (alike and held[number].sum() < held[best].sum()):
                best = number
        fold[group] = best
        held[best] += counts[group]
    places = fold[members]
    return [
        (np.flatnonzero(places != number), np.flatnonzero(places == number))
        for number in range(folds)
        if (places == number).any()
    ]
