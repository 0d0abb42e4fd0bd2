"""Correlation of the errors of several judges, and the number of independent votes they are worth.

Two judges that are wrong about the same samples are worth little more than one. The correlation of two
judges' errors is Pearson's correlation of the two columns *wrong or right* (phi). k judges whose errors have
the mean correlation r are worth k / (1 + (k - 1) r) independent ones (Kish 1965): 1 for r = 1, k for r = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from magistrate.metrics.classification import Estimate
from magistrate.metrics.distributions import ratio
from magistrate.metrics.resampling import DRAWS, SEED, estimates_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

NEVER_DIFFER = "no two members both make some errors, so nothing can be said about common errors"


@dataclass(frozen=True, slots=True)
class ErrorCorrelation:
    """Correlation of the errors of k judges on the same samples.

    `pairs[i][j]` in [-1, 1] is the correlation of the errors of judges i and j, None if one of them never
    errs or always does. `mean` is the mean of all defined pairs. `effective` is the number of independent
    votes in [1, k]; for it a negative mean counts as 0.
    """

    pairs: tuple[tuple[float | None, ...], ...]
    mean: Estimate
    effective: Estimate

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return {
            "pairs": [list(row) for row in self.pairs],
            "mean": self.mean.to_dict(),
            "effective_votes": self.effective.to_dict(),
        }


def effective_votes(correlation: float, k: int) -> float:
    """Return the number of independent votes that k judges with this mean error correlation are worth.

    >>> effective_votes(0.0, 3), effective_votes(1.0, 3), effective_votes(-0.2, 3)
    (3.0, 1.0, 3.0)
    """
    return k / (1 + (k - 1) * max(correlation, 0.0))


def error_correlation(
    wrong: ArrayLike, groups: ArrayLike, *, draws: int = DRAWS, seed: int = SEED
) -> ErrorCorrelation:
    """Measure the correlation of errors bool `[n, k]`, with bootstrap intervals over `groups` int `[n]`."""
    import numpy as np

    errs = np.asarray(wrong, dtype=np.float64)
    n, k = errs.shape
    upper = np.triu_indices(k, 1)
    if not n:
        none = Estimate.none("there is no sample with a label and a verdict of every member")
        return ErrorCorrelation(tuple((None,) * k for _ in range(k)), none, none)
    pieces = np.concatenate([np.ones((n, 1)), errs, errs[:, upper[0]] * errs[:, upper[1]]], axis=1)

    def correlations(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the correlation of each pair, `[b, pairs]`; NaN if a judge never errs, or always does."""
        sums = weights @ pieces
        share, both = sums[:, 1 : k + 1] / sums[:, :1], sums[:, k + 1 :] / sums[:, :1]
        spread = share * (1 - share)
        return ratio(
            both - share[:, upper[0]] * share[:, upper[1]],
            np.sqrt(spread[:, upper[0]] * spread[:, upper[1]]),
        )

    def figures(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        found = correlations(weights)
        known = ~np.isnan(found)
        mean = ratio(np.where(known, found, 0).sum(1), known.sum(1).astype(np.float64))
        return np.stack([mean, k / (1 + (k - 1) * np.maximum(mean, 0))], axis=1)

    names = ("mean", "effective")
    estimates = estimates_of(
        names, figures, groups, dict.fromkeys(names, NEVER_DIFFER), draws=draws, seed=seed
    )
    matrix: list[list[float | None]] = [[None] * k for _ in range(k)]
    for one, two, value in zip(*upper, correlations(np.ones((1, n)))[0], strict=True):
        matrix[one][two] = matrix[two][one] = None if np.isnan(value) else float(value)
    return ErrorCorrelation(tuple(map(tuple, matrix)), estimates["mean"], estimates["effective"])
