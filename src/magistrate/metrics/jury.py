"""Several judges of the same samples: one score of theirs, labels from their votes, errors that they share.

Scores are pooled in one of these ways:

================  ================================================================================
mean              the weighted mean
median            the weighted median, the midpoint if two scores qualify
logit             the weighted mean of the log odds, as a probability: confident members count
                  for more (a logarithmic opinion pool, Genest and Zidek 1986)
majority          the weighted share of the members whose label is the worse one
geometric_median  the point with the least weighted sum of distances, smoothed within `SMOOTH`
                  (Pillutla and others 2022): close to the mean of members that agree, and
                  moved little by a single outlier. Without smoothing it would be the median,
                  since scores lie on one line
================  ================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import TYPE_CHECKING, Any, Literal, get_args

from magistrate.errors import InputError
from magistrate.metrics.classification import Estimate
from magistrate.metrics.distributions import ratio
from magistrate.metrics.resampling import DRAWS, SEED, estimates_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

Pooling = Literal["mean", "median", "logit", "majority", "geometric_median"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)

CERTAIN = 0.01
"""Scores nearer to 0 or 1 than this count as this near in `logit`, so that no single member decides alone."""
SMOOTH = 0.05
STEPS = 200


def pooled(
    scores: Sequence[float],
    votes: Sequence[bool],
    how: Pooling = "mean",
    weights: Sequence[float] | None = None,
) -> float:
    """Pool several scores in [0, 1] into one. `votes` tell which members gave the label of high scores.

    `weights` are positive, one per member; None for equal ones. Raises `InputError` if there are no scores,
    or if the numbers of scores, votes and weights differ.

    >>> pooled([0.1, 0.2, 0.9], [False, False, True], "median"), pooled([0.5, 0.9], [True, True], "mean")
    (0.2, 0.7)
    """
    heavy = [1.0] * len(scores) if weights is None else list(weights)
    if not scores or not len(scores) == len(votes) == len(heavy):
        raise InputError(
            f"{len(scores)} scores, {len(votes)} votes and {len(heavy)} weights cannot be combined"
        )
    whole = sum(heavy)
    match how:
        case "mean":
            found = _mean(scores, heavy)
        case "majority":
            found = sum(weight for weight, vote in zip(heavy, votes, strict=True) if vote) / whole
        case "logit":
            odds = [min(max(score, CERTAIN), 1 - CERTAIN) for score in scores]
            found = 1 / (1 + exp(-_mean([log(each / (1 - each)) for each in odds], heavy)))
        case "median":
            found = _median(scores, heavy)
        case "geometric_median":
            found = _median(scores, heavy)
            for _ in range(STEPS):  # Weiszfeld's algorithm: a mean in which distant scores weigh less
                near = [
                    weight / sqrt((score - found) ** 2 + SMOOTH**2)
                    for score, weight in zip(scores, heavy, strict=True)
                ]
                before, found = found, _mean(scores, near)
                if abs(found - before) < 1e-12:
                    break
    return min(max(found, 0.0), 1.0)


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


def _median(scores: Sequence[float], weights: Sequence[float]) -> float:
    ranked = sorted(zip(scores, weights, strict=True))
    half, below = sum(weights) / 2, 0.0
    for at, (score, weight) in enumerate(ranked):
        below += weight
        if below > half * (1 + 1e-12):
            return score
        if below >= half * (1 - 1e-12) and at + 1 < len(ranked):
            return (score + ranked[at + 1][0]) / 2
    return ranked[-1][0]


# --- labels from votes alone ------------------------------------------------------------------------
#
# Dawid and Skene (1979): labels and the reliability of each rater, without truth. Each rater is assumed to
# err independently, with its own confusion matrix. EM estimates the matrices, the shares of the labels and
# the probability of each label of each item. The assumption is strong: errors that raters share look like
# agreement, so similar judges make the labels too certain, or even wrong. If there are labels,
# `error_correlation` measures how similar the errors are.

LEAST_RATERS, LEAST_ITEMS = 3, 50
MOST_ROUNDS = 500
STILL = 1e-4
"""EM has converged once no probability of any label moves further than this in a round."""
RIGHT, WRONG = 2.0, 1.0
"""Counts that each row of a confusion matrix begins with, Beta(2, 1) for two labels: a rater is expected to
be right rather than wrong, and no vote is ever impossible."""
NO_VOTE = -1


@dataclass(frozen=True, slots=True)
class DawidSkene:
    """The EM estimate from votes on n items by k raters with m labels.

    `posterior` `[n, m]` holds the probability of each label; rows sum to 1. `shares` `[m]` are the shares of
    the labels, `confusion` `[k, m, m]` has a row for each true label, and `rounds` and `converged` tell how
    EM ended. If EM was not usable, `fallback` is the reason, `posterior` is the share of the votes, and
    `shares` and `confusion` are None; otherwise `fallback` is None.
    """

    posterior: NDArray[np.float64]
    fallback: str | None
    shares: NDArray[np.float64] | None = None
    confusion: NDArray[np.float64] | None = None
    rounds: int = 0
    converged: bool = False


def dawid_skene(votes: ArrayLike, n_labels: int = 2) -> DawidSkene:
    """Fit votes `[n, k]`: labels from 0 to `n_labels` - 1, or `NO_VOTE` if a rater gave none.

    Every item needs a vote. With fewer than `LEAST_RATERS` raters, or fewer than `LEAST_ITEMS` items with at
    least two votes, the posterior is the share of the votes and `fallback` is the reason. The same happens
    if EM ends with raters that are wrong more often than right, so that the labels may be swapped. Raises
    `InputError` for anything other than such votes.
    """
    import numpy as np

    given = _checked(votes, n_labels)
    several = int(((given != NO_VOTE).sum(1) >= 2).sum())
    voted = (given[:, :, None] == np.arange(n_labels)).astype(np.float64)  # [n, k, m]
    mean = voted.sum(1) / voted.sum((1, 2))[:, None]
    if given.shape[1] < LEAST_RATERS:
        return DawidSkene(mean, f"at least {LEAST_RATERS} raters are needed; there are {given.shape[1]}")
    if several < LEAST_ITEMS:
        return DawidSkene(
            mean, f"{LEAST_ITEMS} items with at least two votes are needed; there are {several}"
        )
    posterior, rounds, converged = mean, 0, False
    prior = np.full((n_labels, n_labels), WRONG) + np.eye(n_labels) * (RIGHT - WRONG)
    while not converged and rounds < MOST_ROUNDS:
        rounds += 1
        shares = (posterior.sum(0) + 1) / (len(given) + n_labels)
        counts = np.einsum("nt,nkm->ktm", posterior, voted) + prior
        confusion = counts / counts.sum(2, keepdims=True)
        log_joint = np.log(shares) + np.einsum("nkm,ktm->nt", voted, np.log(confusion))
        weights = np.exp(log_joint - log_joint.max(1, keepdims=True))
        before, posterior = posterior, weights / weights.sum(1, keepdims=True)
        converged = float(np.abs(posterior - before).max()) < STILL
    if (right := float(np.mean(np.diagonal(confusion, axis1=1, axis2=2)))) <= 0.5:
        return DawidSkene(
            mean, f"raters come out as right in only {right:.0%} of all cases: the labels may be swapped"
        )
    return DawidSkene(posterior, None, shares, confusion, rounds, converged)


def _checked(votes: ArrayLike, n_labels: int) -> NDArray[np.int64]:
    import numpy as np

    given = np.asarray(votes)
    if given.ndim != 2 or not given.size or not np.issubdtype(given.dtype, np.integer):
        raise InputError(f"votes must be whole numbers [n, k], got {given.dtype} of shape {given.shape}")
    if n_labels < 2 or ((given < NO_VOTE) | (given >= n_labels)).any():
        raise InputError(f"votes must be labels from 0 to {n_labels - 1}, or {NO_VOTE} for none")
    if (given == NO_VOTE).all(1).any():
        raise InputError("every item needs a vote; remove items without one")
    return given.astype(np.int64)


# --- errors in common -------------------------------------------------------------------------------
#
# Two judges that are wrong about the same samples are worth little more than one. The correlation of two
# judges' errors is Pearson's correlation of the two columns *wrong or right* (phi). k judges whose errors
# have the mean correlation r are worth k / (1 + (k - 1) r) independent ones (Kish 1965): 1 for r = 1, k for
# r = 0.

NEVER_DIFFER = "no two members both make some errors, so nothing can be said about common errors"


@dataclass(frozen=True, slots=True)
class ErrorCorrelation:
    """Correlation of the errors of k judges on the same samples.

    `pairs[i][j]` in [-1, 1] is the correlation of the errors of judges i and j, None if one of them never
    errs or always does. `mean` is the mean of all defined pairs. `effective` is the number of independent
    votes that the judges are worth, in [1, k]: k / (1 + (k - 1) mean), where a negative mean counts as 0.
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
