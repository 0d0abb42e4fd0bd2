"""Intervals of figures over pairs of two things that were both sampled, such as contexts and attacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magistrate.errors import InputError
from magistrate.metrics.classification import Estimate, wilson_at
from magistrate.metrics.resampling import DRAWS, SEED, interval_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

_AT_ONCE = 4_000_000  # weights in memory at a time


def crossed_means(
    values: ArrayLike, rows: ArrayLike, columns: ArrayLike, *, draws: int = DRAWS, seed: int = SEED
) -> NDArray[np.float64]:
    """The mean of each of k `values` `[n, k]` in every draw, `[draws, k]`; NaN where a draw has none of them.

    The n values belong to pairs of a row and a column, int `[n]` each. A draw takes rows and columns anew,
    each with replacement, and a pair as often as the product of both (the pigeonhole bootstrap: Owen 2007).
    With one column it is the bootstrap of whole rows.
    """
    import numpy as np

    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or not table.size or {len(np.asarray(rows)), len(np.asarray(columns))} != {len(table)}:
        raise InputError(f"values must be [n, k] with n rows and n columns, got shape {table.shape}")
    source = np.random.default_rng(seed)
    members = [np.unique(np.asarray(each), return_inverse=True)[1] for each in (rows, columns)]
    sizes = [int(each.max()) + 1 for each in members]
    found, step = [], max(1, _AT_ONCE // len(table))
    for start in range(0, draws, step):
        count = min(step, draws - start)
        times = [source.multinomial(size, np.full(size, 1 / size), count) for size in sizes]
        weights = (times[0][:, members[0]] * times[1][:, members[1]]).astype(np.float64)
        with np.errstate(invalid="ignore"):
            found.append(weights @ table / weights.sum(axis=1, keepdims=True))
    return np.concatenate(found)


def share_of(hits: ArrayLike, drawn: NDArray[np.float64], n_groups: int) -> Estimate:
    """A share of `hits` bool `[n]` with its 95 % Wilson interval at the effective number of hits.

    That number is n divided by how many times greater the variance of `drawn` `[draws]` is than that of
    independent hits; never more than n, nor fewer than `n_groups`, and `n_groups` where all hits are the
    same, so that nothing of 20 is not taken for nothing ever (Franco and others 2019).
    """
    import numpy as np

    flags = np.asarray(hits, dtype=np.bool_)
    if not flags.size:
        return Estimate.none("there are no pairs with a verdict on both sides")
    share, n = float(flags.mean()), flags.size
    alone, spread = share * (1 - share) / n, float(np.nanvar(drawn))
    least = min(n_groups, n)
    effective = n * alone / spread if alone and spread else least
    effective = min(max(effective, least), n)
    return Estimate(share, *wilson_at(share, effective))


def mean_of(values: ArrayLike, drawn: NDArray[np.float64], n_groups: int) -> Estimate:
    """A mean of `values` `[n]` with the 95 % interval of its draws; none where every value is the same."""
    import numpy as np

    table = np.asarray(values, dtype=np.float64)
    if table.size and table.min() == table.max():
        return Estimate(float(table[0]), None, None, "no interval: it is the same in every pair")
    return interval_of(float(table.mean()) if table.size else None, drawn, n_groups)
