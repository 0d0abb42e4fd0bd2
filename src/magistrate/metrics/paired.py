"""Several judges on the same samples: what differs, by how much, and what could have been seen.

Every figure of every judge is a function of the same weights, so their differences are taken draw by draw:
what makes a sample hard for both sides cancels out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from magistrate.errors import InputError
from magistrate.metrics.classification import METRICS
from magistrate.metrics.resampling import ALPHA, ratio
from magistrate.metrics.thresholds import rates

COMPARED = (*METRICS, "brier")
"""What judges are compared by: higher is better for all but `brier`."""
PRIMARY = "balanced_accuracy"
"""What judges are compared by where nobody names anything else: it counts both classes alike, whatever their
shares, it needs no scores, and it heads every report."""
POWER = 0.8


def exact_mcnemar(only_first: int, only_second: int) -> float:
    """The exact p value of McNemar's test: how many samples only one of two judges got right.

    It takes samples as independent. 1 where the judges are right and wrong together.
    """
    from scipy.stats import binom

    return min(1.0, 2 * float(binom.cdf(min(only_first, only_second), only_first + only_second, 0.5)))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """The p values of one family, corrected for their number by Holm's (1979) method; None stays None."""
    # By hand: that of statsmodels collects garbage at every call, which takes longer than all the rest.
    known = sorted((p, at) for at, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, at) in enumerate(known):
        highest = max(highest, p * (len(known) - rank))
        corrected[at] = min(highest, 1.0)
    return corrected


def smallest_difference(error: float | None, n_groups: int, comparisons: int = 1) -> float | None:
    """The true difference that as many samples would show 4 times in 5 as the first of so many comparisons.

    `error` is the difference's standard error over `n_groups` contexts. The level is .05 divided by
    `comparisons`, as in the first step of Holm's method; None where there is no error to go by.
    """
    from scipy.stats import t

    if not error or n_groups < 2 or comparisons < 1:
        return None
    freedom = n_groups - 1
    return float(t.ppf(1 - ALPHA / comparisons / 2, freedom) + t.ppf(POWER, freedom)) * error


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
        self._truth, self._said = truth, said
        if unknown := [name for name in names if name not in COMPARED]:
            raise InputError(f"unknown metric {unknown[0]!r}; known: {', '.join(COMPARED)}")
        self.names = tuple(names)
        cells = [truth & said, ~truth & said, ~truth & ~said, truth & ~said, (scores - truth) ** 2]
        self._pieces = np.stack(cells, axis=1).astype(np.float64)
        self._ranks = _Ranks(truth, scores) if "auroc" in names else None

    def __call__(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """The figures `[b, names]` of each draw, NaN where one is not defined."""
        sums = weights @ self._pieces
        tp, fp, tn, fn, brier = sums.T
        found = rates(tp, fp, fn, tn) | {"brier": ratio(brier, tp + fp + fn + tn)}
        if self._ranks is not None:
            found["auroc"] = self._ranks.area(weights)
        return np.stack([found[name] for name in self.names], axis=1)

    def support(self, name: str, groups: NDArray[np.int64]) -> int:
        """How many contexts the figure rests on: the fewest that its numerators or denominators count in."""
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
    """Where the score of each hallucinated sample stands among those of the faithful ones."""

    def __init__(self, truth: NDArray[np.bool_], scores: NDArray[np.float64]) -> None:
        self._positive = np.flatnonzero(truth)
        negative = np.flatnonzero(~truth)
        self._negative = negative[np.argsort(scores[negative], kind="stable")]
        ranked = scores[self._negative]
        self._below = np.searchsorted(ranked, scores[self._positive], side="left")
        self._not_above = np.searchsorted(ranked, scores[self._positive], side="right")

    def area(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """How often a hallucinated sample scores above a faithful one, ties a half; `[b]` of `[b, n]`."""
        drawn = np.ascontiguousarray(weights.T)  # samples down, so that each is one stretch of memory
        sums = np.zeros((self._negative.size + 1, drawn.shape[1]))
        np.cumsum(drawn[self._negative], axis=0, out=sums[1:])
        positive = drawn[self._positive]
        beaten = (sums[self._below] + sums[self._not_above]) / 2
        return ratio(np.einsum("nb,nb->b", positive, beaten), positive.sum(0) * sums[-1])
