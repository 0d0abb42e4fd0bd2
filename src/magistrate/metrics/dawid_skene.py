"""Dawid and Skene (1979): labels and the reliability of each rater, from votes alone, without truth.

Each rater is assumed to err independently, with its own confusion matrix. EM estimates the matrices, the
shares of the labels and the probability of each label of each item. The assumption is strong: errors that
raters share look like agreement, so similar judges make the labels too certain, or even wrong. If there are
labels, `metrics.error_correlation` measures how similar the errors are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from magistrate.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

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


def dawid_skene(
    votes: ArrayLike,
    n_labels: int = 2,
    *,
    least_raters: int = LEAST_RATERS,
    least_items: int = LEAST_ITEMS,
) -> DawidSkene:
    """Fit votes `[n, k]`: labels from 0 to `n_labels` - 1, or `NO_VOTE` if a rater gave none.

    Every item needs a vote. With fewer than `least_raters` raters, or fewer than `least_items` items with at
    least two votes, the posterior is the share of the votes and `fallback` is the reason. The same happens
    if EM ends with raters that are wrong more often than right, so that the labels may be swapped. Raises
    `InputError` for anything other than such votes.
    """
    import numpy as np

    given = _checked(votes, n_labels)
    several = int(((given != NO_VOTE).sum(1) >= 2).sum())
    voted = (given[:, :, None] == np.arange(n_labels)).astype(np.float64)  # [n, k, m]
    mean = voted.sum(1) / voted.sum((1, 2))[:, None]
    if given.shape[1] < least_raters:
        return DawidSkene(mean, f"at least {least_raters} raters are needed; there are {given.shape[1]}")
    if several < least_items:
        return DawidSkene(
            mean, f"{least_items} items with at least two votes are needed; there are {several}"
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
