"""A stack: few signals and judges weighed against each other on labels, and what that is worth elsewhere.

The weights are those of a logistic regression on standardized values, with a penalty on their squares and,
where asked for, none below zero. Every family of data sets counts the same, and so does either label within
it, so that neither the size of a set nor its share of the hallucinated is learnt. While the weights are
fitted every set has an intercept of its own: what tells its outputs apart is learnt, not what tells sets
apart. Then one intercept is fitted to all of them. How strong the penalty is, is chosen inside every fit on
parts that it had not seen: families where there are three or more, else folds that share no context. Judges'
scores enter as log odds, signals as they are. A signal that has nothing to look at (numbers, where the output
has none) adds nothing: it stands at its mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from magistrate.errors import InputError, require_extra
from magistrate.metrics.distributions import expit, grouped_folds

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]

Scale = Literal["log_odds", "share"]
FOLDS, MOST_FOLDS = 5, 20
STRENGTHS = (0.001, 0.01, 0.1, 1.0)
"""Inverse penalties that are tried, as scikit-learn's `C` with weights of mean 1."""
CLIP = 0.005
"""Scores nearer to 0 or 1 count as this near: how sure a judge says it is tells little beyond."""
LEAST, LEAST_A_PART = 60, 15
"""Samples in all, and of the rarer label for every part: ten to twenty a weight (Peduzzi and others 1996)."""
FAMILIES = 3  # of so many on, what is left out inside a fit are families
SHRUNK = 0.1  # the share of the covariance that is the unit matrix, so that it can be inverted
HELD = 1e-3  # keeps the intercept of a set with one label only from running away
STILL = 1e-9  # a smaller spread is none
INSIDE, SLACK = 0.999, 1.2
"""A sample is too far away at `SLACK` times the distance that `INSIDE` of the training samples keep to."""


@dataclass(frozen=True, slots=True)
class Table:
    """What parts said of n labelled samples.

    `values` float `[n, k]` in [0, 1], the higher the more suspicious, in the order of `names`, each on its
    scale, NaN where a signal has nothing to look at; `truth` bool `[n]` is True for the hallucinated;
    `groups` int `[n]` is the same for the same context; `families` and `sets` `[n]` name the family of
    the data set, and itself.
    """

    names: tuple[str, ...]
    scales: tuple[Scale, ...]
    values: Floats
    truth: Flags
    groups: Ints
    families: NDArray[np.str_]
    sets: NDArray[np.str_]

    @property
    def n(self) -> int:
        """How many samples."""
        return int(self.truth.size)

    def take(self, places: Ints | Flags) -> Table:
        """The same of some of the samples."""
        return Table(
            self.names,
            self.scales,
            self.values[places],
            self.truth[places],
            self.groups[places],
            self.families[places],
            self.sets[places],
        )


@dataclass(frozen=True, slots=True)
class Weights:
    """What a fit has found: a sample's log odds are `intercept` + the sum of `weights` times its z values.

    z is (scaled value - `means`) / `spreads`, all `[k]`; the log odds are those where either label is as
    likely. `metric` `[k, k]` and `limit` say how far from the training samples is too far. `strength` is the
    inverse penalty that was chosen.
    """

    scales: tuple[Scale, ...]
    means: Floats
    spreads: Floats
    weights: Floats
    intercept: float
    metric: Floats
    limit: float
    strength: float

    def z(self, values: Floats) -> Floats:
        """Standardized values `[n, k]` of values `[n, k]` in [0, 1], 0 for a NaN."""
        return standardized(scaled(values, self.scales), self.means, self.spreads)

    def contributions(self, values: Floats) -> Floats:
        """What each part adds to the log odds `[n, k]`."""
        return self.z(values) * self.weights

    def log_odds(self, values: Floats) -> Floats:
        """`[n]`, where either label is as likely."""
        found: Floats = self.contributions(values).sum(axis=1) + self.intercept
        return found

    def distances(self, values: Floats) -> Floats:
        """Mahalanobis distances `[n]` from the middle of the training samples."""
        import numpy as np

        z = self.z(values)
        found: Floats = np.sqrt(np.einsum("nk,kl,nl->n", z, self.metric, z))
        return found


def scaled(values: Floats, scales: Sequence[Scale]) -> Floats:
    """Values `[n, k]` in [0, 1], each on its scale."""
    import numpy as np

    held = np.clip(values, CLIP, 1 - CLIP)
    odds = np.array([scale == "log_odds" for scale in scales])
    return np.where(odds, np.log(held / (1 - held)), values)


def standardized(moved: Floats, means: Floats, spreads: Floats) -> Floats:
    """Values `[n, k]` as distances from the mean, 0 where there is none."""
    import numpy as np

    return np.where(np.isnan(moved), 0.0, (moved - means) / spreads)


def fitted(table: Table, *, positive: bool = False, folds: int = FOLDS, seed: int = 0) -> Weights:
    """Weights fitted to all samples. Raises `InputError` where a part never changes."""
    require_extra("analysis", "threadpoolctl", "scipy")
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threadpool_limits(1):  # on matrices as small as these threads only wait for each other
        return _fitted(table, positive, folds, seed)


def _fitted(table: Table, positive: bool, folds: int, seed: int) -> Weights:
    import numpy as np

    even = evenly(table)
    moved = scaled(table.values, table.scales)
    counted = np.where(np.isnan(moved), 0.0, even[:, None])
    counted = counted / np.maximum(counted.sum(axis=0), 1e-12)
    means = np.nansum(counted * moved, axis=0)
    spreads = np.sqrt(np.nansum(counted * (moved - means) ** 2, axis=0))
    if still := [name for name, spread in zip(table.names, spreads, strict=True) if spread < STILL]:
        raise InputError(
            f"{', '.join(still)} says the same of every sample, or nothing of any: there is nothing to learn"
        )
    z = standardized(moved, means, spreads)
    strength = _strength(z, table, even, positive, folds, seed)
    weights, intercept = _logistic(z, table, even, strength, positive)
    covariance = (1 - SHRUNK) * (z * even[:, None]).T @ z / even.sum() + SHRUNK * np.eye(z.shape[1])
    metric = np.linalg.inv(covariance)
    distances = np.sqrt(np.einsum("nk,kl,nl->n", z, metric, z))
    limit = SLACK * float(np.quantile(distances, INSIDE, method="higher"))
    return Weights(table.scales, means, spreads, weights, intercept, metric, limit, strength)


def check(table: Table) -> None:
    """Refuse samples that are too few for so many parts."""
    import numpy as np

    k = len(table.names)
    fewest = int(min(table.truth.sum(), (~table.truth).sum()))
    needed = LEAST_A_PART * k
    if table.n >= LEAST and fewest >= needed:
        return
    label = "hallucinated" if table.truth.sum() == fewest else "faithful"
    raise InputError(
        f"a stack of {k} parts needs at least {LEAST} labelled samples that all of them judge, {needed} of "
        f"either label; there are {table.n}, {fewest} of them {label}, in {np.unique(table.groups).size} "
        "contexts. Give more --data, or fewer --of"
    )


def evenly(table: Table) -> Floats:
    """Weights `[n]` of mean 1 by which every family counts the same, and either label half of it."""
    import numpy as np

    weights = np.zeros(table.n)
    for family in np.unique(table.families):
        for label in (True, False):
            cell = (table.families == family) & (table.truth == label)
            if cell.any():
                weights[cell] = 1 / cell.sum()
    # A family without one of the labels would tip the balance that the intercept stands for.
    for label in (True, False):
        weights[table.truth == label] /= 2 * weights[table.truth == label].sum()
    return weights * table.n


def folds_of(table: Table, folds: int, seed: int) -> Iterator[tuple[Ints, Ints]]:
    """Places of the others and of the fold, fold by fold; no context is in two of them."""
    import numpy as np

    contexts = min(np.unique(table.groups[table.truth == label]).size for label in (True, False))
    if not 2 <= folds <= min(MOST_FOLDS, contexts):
        raise InputError(
            f"folds must be 2 to {min(MOST_FOLDS, contexts)} here, where {contexts} contexts have the rarer "
            f"label; got {folds}"
        )
    for train, test in grouped_folds(table.truth, table.groups, folds, seed):
        if 0 < table.truth[train].sum() < train.size:
            yield train, test


def families_of(table: Table) -> Iterator[tuple[str, Ints, Ints]]:
    """Every family with the places of all others, but for those of its contexts, and its own.

    None where there is only one family, and of those beside which too little is left.
    """
    import numpy as np

    names = np.unique(table.families)
    for name in names if names.size > 1 else ():
        own = table.families == name
        train = np.flatnonzero(~own & ~np.isin(table.groups, table.groups[own]))
        test = np.flatnonzero(own)
        if 0 < table.truth[train].sum() < train.size:
            yield str(name), train, test


def _strength(z: Floats, table: Table, even: Floats, positive: bool, folds: int, seed: int) -> float:
    """The inverse penalty with the least log loss on parts that a fit had not seen; of equals the least."""
    import numpy as np

    apart = [(train, test) for _, train, test in families_of(table)]
    if len(apart) < FAMILIES:
        apart = list(folds_of(table, folds, seed))
    lost = np.zeros(len(STRENGTHS))
    for at, strength in enumerate(STRENGTHS):
        for train, test in apart:
            weights, intercept = _logistic(z[train], table.take(train), even[train], strength, positive)
            margin = np.where(table.truth[test], 1.0, -1.0) * (z[test] @ weights + intercept)
            lost[at] += (even[test] * np.logaddexp(0, -margin)).sum()
    return STRENGTHS[int(lost.argmin())]


def _logistic(z: Floats, table: Table, even: Floats, strength: float, positive: bool) -> tuple[Floats, float]:
    """Weights `[k]` with the least weighted log loss + sum of squares / (2 strength), and one intercept."""
    import numpy as np

    k = z.shape[1]
    of_sets = (table.sets[:, None] == np.unique(table.sets)).astype(np.float64)
    bounds = [(0.0 if positive else None, None)] * k + [(None, None)] * of_sets.shape[1]
    pulled = np.repeat([1 / strength, HELD], [k, of_sets.shape[1]])
    weights = _minimized(np.hstack([z, of_sets]), np.zeros(table.n), table.truth, even, pulled, bounds)[:k]
    one = np.ones((table.n, 1))
    (intercept,) = _minimized(one, z @ weights, table.truth, even, np.zeros(1), [(None, None)])
    return weights, float(intercept)


def _minimized(
    columns: Floats, offset: Floats, truth: Flags, even: Floats, pulled: Floats, bounds: Any
) -> Floats:
    """The point `[m]` with the least weighted log loss of columns `[n, m]` + half the pulled squares."""
    import numpy as np
    from scipy.optimize import minimize

    sign = np.where(truth, 1.0, -1.0)

    def loss(point: Floats) -> tuple[float, Floats]:
        margin = sign * (columns @ point + offset)
        value = (even * np.logaddexp(0, -margin)).sum() + (pulled * point**2).sum() / 2
        return float(value), columns.T @ (-even * sign * expit(-margin)) + pulled * point

    options = {"maxiter": 1000, "ftol": 1e-12, "gtol": 1e-8}
    start = np.zeros(columns.shape[1])
    found: Floats = minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B", options=options).x
    return found
