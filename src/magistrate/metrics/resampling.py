"""The cluster bootstrap: intervals and p values by drawing whole groups with replacement.

Samples that share a context are not independent, so a draw takes groups with replacement and counts every
sample of a group as often as its group was drawn (Field and Welsh 2007). It resamples weights, not rows, so
a statistic is a function of weights and works on many draws at once.

With few groups the plain percentile interval is too narrow. Its percentiles are widened to those of
Student's t with G - 1 degrees of freedom and the variance of G - 1, for G groups (the expanded percentile
interval: Hesterberg 2015, section 4.3). The interval still stays within the range of the figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING

from magistrate._text import counted
from magistrate.errors import InputError
from magistrate.metrics.classification import CONFIDENCE, LEAST_GROUPS, Estimate
from magistrate.metrics.distributions import ndtr, ndtri, stdtr, stdtrit, two_sided_t, wilson_interval

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]


DRAWS, SEED = 2000, 0
FEW_CONTEXTS = 30
"""With fewer groups than this intervals and p values are rough, and a remark says so."""
LEAST_DEFINED = 0.5
"""An interval needs a value in at least this share of the draws."""

_AT_ONCE = 4_000_000  # weights in memory at a time


def draws_of(
    statistic: Statistic, groups: ArrayLike, *, draws: int = DRAWS, seed: int = SEED
) -> NDArray[np.float64]:
    """Return the statistic in every draw, `[draws, k]`.

    `statistic` gets weights `[b, n]`, how often each sample was drawn, and returns `[b, k]` values, NaN if
    undefined in a draw. `groups` int `[n]` in [0, n) is the same for samples that belong together. The draws
    depend only on the seed, so figures of two statistics can be subtracted draw by draw.
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


def estimates_of(
    names: Sequence[str],
    statistic: Statistic,
    groups: ArrayLike,
    undefined: Mapping[str, str],
    *,
    draws: int = DRAWS,
    seed: int = SEED,
) -> dict[str, Estimate]:
    """Return the figures `[b, names]` of a statistic by name, each with its interval.

    `undefined` holds, by name, the reason to give if the samples do not define a figure.
    """
    import numpy as np

    numbers = np.asarray(groups)
    values = statistic(np.ones((1, numbers.size)))[0]
    drawn = draws_of(statistic, numbers, draws=draws, seed=seed)
    n_groups = int(np.unique(numbers).size)
    return {
        name: Estimate.none(undefined[name])
        if np.isnan(values[at])
        else interval_of(float(values[at]), drawn[:, at], n_groups)
        for at, name in enumerate(names)
    }


def interval_of(value: float | None, drawn: NDArray[np.float64], n_groups: int) -> Estimate:
    """Return a figure with the expanded percentile interval of its draws `[draws]`, widened to contain it.

    If there are too few groups, if few draws define the figure, or if all draws are equal (as for a judge
    that was never wrong), there is no interval and `undefined` is the reason.
    """
    import numpy as np

    if value is None or np.isnan(value):
        return Estimate.none("it is undefined on this data")
    if n_groups < LEAST_GROUPS:
        return Estimate(
            float(value), None, None, f"no interval from {counted(n_groups, 'independent context')}"
        )
    known = drawn[~np.isnan(drawn)]
    if known.size < LEAST_DEFINED * drawn.size:
        return Estimate(float(value), None, None, "no interval: it is undefined in most draws")
    # The order statistic that excludes zero exactly if `two_sided_p` is at most 1 - CONFIDENCE.
    at = max(int(_tail(1 - CONFIDENCE, n_groups) * (known.size + 1)) - 1, 0)
    low, high = np.partition(known, [at, known.size - 1 - at])[[at, known.size - 1 - at]]
    if low == high:
        return Estimate(float(value), None, None, "no interval: it is the same in every draw")
    return Estimate(float(value), min(float(low), float(value)), max(float(high), float(value)))


def difference_of(
    value: float, drawn: NDArray[np.float64], n_groups: int, support: int
) -> tuple[Estimate, float | None]:
    """Return a difference with its 95 % interval, and the p value of no difference. The two agree.

    The interval spans both the expanded percentile interval and Student's interval from the spread of the
    draws, and the p value is the greater of their two. Either alone calls equal judges different too often:
    one if contexts are few, the other if the differences are skewed. A p value is never below that of an
    exact randomization test of as many contexts, `least_p`. A difference that is the same in every draw has
    no interval; its p value is that of the sign test for `support`, the fewest contexts that it rests on.
    """
    import numpy as np

    found = interval_of(value, drawn, n_groups)
    known = drawn[~np.isnan(drawn)]
    if found.value is None or n_groups < LEAST_GROUPS or known.size < LEAST_DEFINED * drawn.size:
        return found, None
    if found.low is None or found.high is None:
        return found, min(1.0, 2 * 0.5**support) if value else None
    error, freedom = standard_error(drawn, n_groups), n_groups - 1
    far = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    bounds = min(found.low, max(value - far, -1.0)), max(found.high, min(value + far, 1.0))
    student = two_sided_t(value / error, freedom)
    p = max(two_sided_p(drawn, n_groups) or 0.0, student, 0.5 ** (n_groups - 1))
    return Estimate(value, *bounds), min(1.0, p)


def two_sided_p(drawn: NDArray[np.float64], n_groups: int) -> float | None:
    """Return the bootstrap p value of a difference `[draws]` from zero, by the draws on both sides of zero.

    It is (1 + the rarer side) / (1 + draws), doubled (Davison and Hinkley 1997, 4.2.3), and converted by
    Student's t as in the expanded interval. None if there are no draws.
    """
    import numpy as np

    known = drawn[~np.isnan(drawn)]
    if not known.size:
        return None
    rarer = min(int((known <= 0).sum()), int((known >= 0).sum()))
    return _expanded((1 + rarer) / (1 + known.size), n_groups)


def least_p(n_groups: int, draws: int) -> float:
    """Return the smallest p value that so many contexts and draws can give, in (0, 1]."""
    return max(0.5 ** (n_groups - 1), _expanded(1 / (1 + draws), n_groups))


def standard_error(drawn: NDArray[np.float64], n_groups: int) -> float:
    """Return the standard error of a figure from its draws, for the variance of G - 1; 0 if too few."""
    import numpy as np

    known = drawn[~np.isnan(drawn)]
    return float(known.std(ddof=1)) * sqrt(n_groups / (n_groups - 1)) if known.size > 1 else 0.0


def _tail(level: float, n_groups: int) -> float:
    """Return the share of draws beyond either end of an interval that misses with probability `level`."""

    return float(ndtr(stdtrit(n_groups - 1, level / 2) * sqrt(n_groups / (n_groups - 1))))


def _expanded(tail: float, n_groups: int) -> float:
    """Return the two-sided p value if this share of the draws lies beyond zero: the inverse of `_tail`."""

    if tail >= 0.5 or n_groups < 2:
        return 1.0
    return float(2 * stdtr(n_groups - 1, ndtri(tail) * sqrt((n_groups - 1) / n_groups)))


# --- two crossed samples, such as contexts and attacks --------------------------------------------


def crossed_means(
    values: ArrayLike, rows: ArrayLike, columns: ArrayLike, *, draws: int = DRAWS, seed: int = SEED
) -> NDArray[np.float64]:
    """Return the mean of each of k `values` `[n, k]` in every draw, `[draws, k]`; NaN if a draw is empty.

    Each of the n values belongs to a pair of a row and a column, int `[n]` each. A draw takes rows and
    columns separately with replacement, and counts a pair as often as the product of both counts (the
    pigeonhole bootstrap: Owen 2007). With one column it is the bootstrap of whole rows.
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
    """Return the share of `hits` bool `[n]` with its 95 % Wilson interval at the effective number of hits.

    That number is n divided by the ratio of the variance of `drawn` `[draws]` to that of independent hits.
    It is at most n and at least `n_groups`. It is `n_groups` if all hits are equal, so that 0 of 20 is not
    taken as proof of never (Franco and others 2019).
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
    return Estimate(share, *wilson_interval(share, effective))


def mean_of(values: ArrayLike, drawn: NDArray[np.float64], n_groups: int) -> Estimate:
    """Return the mean of `values` `[n]` with the 95 % interval of its draws, if the values differ."""
    import numpy as np

    table = np.asarray(values, dtype=np.float64)
    if table.size and table.min() == table.max():
        return Estimate(float(table[0]), None, None, "no interval: it is the same in every pair")
    return interval_of(float(table.mean()) if table.size else None, drawn, n_groups)
