"""What a figure could have been with other samples: a bootstrap that draws whole groups anew.

Samples that share a context are not independent, so a draw takes groups with replacement and every sample
of a group as often as its group was drawn (the cluster bootstrap: Field and Welsh 2007). What is resampled
are weights, not rows, so a statistic is a function of weights and works on many draws at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from magistrate.errors import InputError
from magistrate.stats.classification import CONFIDENCE, Estimate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]

DRAWS, SEED = 2000, 0
LEAST_GROUPS = 5
"""Fewer groups than this have no interval: the draws would be of the same few again and again."""
LEAST_DEFINED = 0.5
"""An interval needs a value in at least this share of the draws."""

_AT_ONCE = 4_000_000  # weights in memory at a time


def draws_of(
    statistic: Statistic, groups: ArrayLike, *, draws: int = DRAWS, seed: int = SEED
) -> NDArray[np.float64]:
    """The statistic in every draw, `[draws, k]`.

    `statistic` gets weights `[b, n]`, how often each sample was drawn, and answers `[b, k]` values, NaN where
    a draw does not define one. `groups` int `[n]` in [0, n) says which samples belong together. Draws of one
    seed are the same whatever the statistic, so figures of two statistics can be subtracted draw by draw.
    """
    import numpy as np

    numbers = np.asarray(groups)
    if numbers.ndim != 1 or not numbers.size or not np.issubdtype(numbers.dtype, np.integer):
        raise InputError(f"groups must be a flat list of numbers, got {numbers.dtype} of {numbers.shape}")
    _, members = np.unique(numbers, return_inverse=True)
    size = int(members.max()) + 1
    source, found = np.random.default_rng(seed), []
    step = max(1, _AT_ONCE // numbers.size)
    for start in range(0, draws, step):
        count = min(step, draws - start)
        times = np.array(
            [np.bincount(source.integers(size, size=size), minlength=size) for _ in range(count)]
        )
        weights = times[:, members].astype(np.float64)
        found.append(np.asarray(statistic(weights), dtype=np.float64).reshape(count, -1))
    return np.concatenate(found)


def interval_of(value: float | None, drawn: NDArray[np.float64], n_groups: int) -> Estimate:
    """The 95 % percentile interval of a figure from its draws `[draws]`, widened to hold the figure.

    Where there are too few groups, where few draws define the figure, or where all of them are the same (as
    for a judge that was never wrong), there is no interval and `undefined` says why.
    """
    import numpy as np

    if value is None or np.isnan(value):
        return Estimate.none("this data does not define it")
    if n_groups < LEAST_GROUPS:
        return Estimate(float(value), None, None, f"no interval from {n_groups} independent contexts")
    known = drawn[~np.isnan(drawn)]
    if known.size < LEAST_DEFINED * drawn.size:
        return Estimate(float(value), None, None, "no interval: most draws do not define it")
    low, high = np.quantile(known, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    if low == high:
        return Estimate(float(value), None, None, "no interval: it is the same in every draw")
    return Estimate(float(value), min(float(low), float(value)), max(float(high), float(value)))


def two_sided_p(drawn: NDArray[np.float64]) -> float | None:
    """The bootstrap p value of a difference `[draws]` from zero: how far its draws lie on both sides of it.

    (1 + the rarer side) / (1 + draws), doubled (Davison and Hinkley 1997, 4.2.3); None without any draw.
    """
    import numpy as np

    known = drawn[~np.isnan(drawn)]
    if not known.size:
        return None
    rarer = min(int((known <= 0).sum()), int((known >= 0).sum()))
    return float(min(1.0, 2 * (1 + rarer) / (1 + known.size)))
