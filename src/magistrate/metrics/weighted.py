"""The share of hits in a sample that was drawn with known probabilities, with its interval.

A sample drawn with probability π represents 1/π samples: the share is the sum of 1/π over the hits, divided
by the sum over all (Hájek 1971, the ratio form of Horvitz and Thompson 1952). Its variance is that of the
linearised ratio, summed by group, since groups are drawn together. The interval is Wilson's at the number of
independent draws with the same variance. It also holds at 0 and 1, where that number is Kish's (1965).
"""

from __future__ import annotations

from collections.abc import Sequence

from magistrate.errors import InputError
from magistrate.metrics.classification import CONFIDENCE, Estimate
from magistrate.metrics.distributions import stdtrit, wilson_interval

NO_DATA = "no data"


def weighted_share(hits: Sequence[bool], inclusion: Sequence[float], groups: Sequence[str]) -> Estimate:
    """Return the share of hits in the population that was drawn from, with its 95 % interval.

    `inclusion` are the probabilities in (0, 1] with which each was drawn, `groups` are the same for those
    drawn together. Without data it is undefined, for the reason "no data".

    >>> weighted_share([], [], []).undefined
    'no data'
    >>> round(weighted_share([True, False], [1.0, 0.1], ["a", "b"]).value, 3)
    0.091
    """
    import numpy as np

    if not len(hits) == len(inclusion) == len(groups):
        raise InputError(
            f"lists must have the same length: got {len(hits)}, {len(inclusion)} and {len(groups)}"
        )
    if not len(hits):
        return Estimate.none(NO_DATA)
    drawn, hit = np.asarray(inclusion, dtype=np.float64), np.asarray(hits, dtype=np.float64)
    if not ((drawn > 0) & (drawn <= 1)).all():
        raise InputError("probabilities of inclusion must be above 0 and at most 1")
    weights = 1 / drawn
    value = float((weights * hit).sum() / weights.sum())
    _, members = np.unique(np.asarray(groups), return_inverse=True)
    n_groups = int(members.max()) + 1
    if n_groups == 1:
        return Estimate(value, None, None, "no interval from one group")
    together = np.bincount(members, weights)
    kish = float(together.sum() ** 2 / (together**2).sum())
    residuals = np.bincount(members, weights * (hit - value)) / weights.sum()
    variance = float((residuals**2).sum()) * n_groups / (n_groups - 1)
    effective = kish if variance == 0 else value * (1 - value) / variance
    # With few groups the variance is itself uncertain (Korn and Graubard 1998).
    middle = (1 + CONFIDENCE) / 2
    known = float(stdtrit(len(hits) - 1, middle) / stdtrit(n_groups - 1, middle)) ** 2 if variance else 1.0
    low, high = wilson_interval(value, max(min(effective * min(known, 1.0), len(hits)), 1.0), CONFIDENCE)
    return Estimate(value, min(low, value), max(high, value))
