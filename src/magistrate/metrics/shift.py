"""Whether scores come from where others came from: the two-sample test of Kolmogorov and Smirnov.

Samples that share a context are not independent, so one of each context is taken, at random with a seed. Both
sides are rounded alike, so that the same score computed in two ways is the same score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from magistrate.metrics.distributions import ks_2samp

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

LEAST, MOST_KEPT = 20, 500
"""Fewer scores on either side say nothing; of more than this a calibration keeps so many at random."""
LEVEL = 0.01  # the chance at most that a shift is seen where there is none
LEAST_DISTANCE = 0.1  # a smaller one is no reason to distrust a calibration, however sure it is
DIGITS = 6


@dataclass(frozen=True, slots=True)
class ScoreShift:
    """How far `n` scores are from `n_before` others: one a context on either side.

    `distance` is the greatest difference of the two shares of scores up to any one value, in [0, 1]; `p` is
    its p value where both come from one distribution.
    """

    distance: float
    p: float
    n: int
    n_before: int

    @property
    def shown(self) -> bool:
        """Whether the scores are shown to come from elsewhere, by enough to matter."""
        return self.p < LEVEL and self.distance >= LEAST_DISTANCE

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "distance": self.distance,
            "p": self.p,
            "n": self.n,
            "n_before": self.n_before,
            "shown": self.shown,
        }


def score_shift(scores: ArrayLike, groups: ArrayLike, before: ArrayLike) -> ScoreShift | None:
    """How far scores `[n]` are from those `before` `[m]`, which are of a context each and rounded.

    `groups` int `[n]` is the same for samples of one context. None where either side has too few contexts.
    """
    import numpy as np

    values, known = np.asarray(scores, dtype=np.float64), np.asarray(before, dtype=np.float64)
    own = np.round(values[one_of_each(groups)], DIGITS)
    if min(own.size, known.size) < LEAST:
        return None
    distance, p = ks_2samp(own, known)
    return ScoreShift(distance, p, int(own.size), int(known.size))


def reference(
    scores: ArrayLike, truth: ArrayLike, groups: ArrayLike, base_rate: float | None = None, *, seed: int = 0
) -> tuple[float, ...]:
    """Scores `[n]` to hold later ones against: at most `MOST_KEPT`, one a context, rounded and sorted.

    With a `base_rate` in (0, 1) so many of the more frequent class of `truth` bool `[n]` are left out at
    random that this is the share of the hallucinated.
    """
    import numpy as np

    values, flags = np.asarray(scores, dtype=np.float64), np.asarray(truth, dtype=np.bool_)
    chosen = one_of_each(groups, seed=seed)
    source = np.random.default_rng(seed)
    chosen = source.permutation(chosen)
    if base_rate is not None:
        bad, good = chosen[flags[chosen]], chosen[~flags[chosen]]
        whole = min(bad.size / base_rate, good.size / (1 - base_rate))
        chosen = np.concatenate([bad[: round(whole * base_rate)], good[: round(whole * (1 - base_rate))]])
        chosen = source.permutation(chosen)
    kept = np.sort(np.round(values[chosen[:MOST_KEPT]], DIGITS))
    return tuple(float(each) for each in kept)


def one_of_each(groups: ArrayLike, *, seed: int = 0) -> NDArray[np.int64]:
    """The places `[contexts]` of one sample of each context, chosen at random."""
    import numpy as np

    numbers = np.asarray(groups)
    order = np.random.default_rng(seed).permutation(numbers.size)
    _, first = np.unique(numbers[order], return_index=True)
    found: NDArray[np.int64] = np.sort(order[first])
    return found
