"""Pools several judges' scores of the same sample into one.

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
from math import exp, log, sqrt
from typing import Literal, get_args

from magistrate.errors import InputError

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
