"""Fits a stack to labelled samples, and measures it on samples that it was not fitted to.

The weights come from a logistic regression on standardized values, with a penalty on their squares and
optionally none below zero. Every family of data sets has equal weight, and so has either label within it, so
that neither the size of a set nor its share of hallucinated samples matters. While the weights are fitted,
every set has its own intercept, so that they learn to tell outputs of a set apart, not sets. Then one
intercept is fitted to all of them. The penalty is chosen inside every fit by held-out parts: families if
there are at least three, else folds that share no context. Judges' scores enter as log odds, signals as they
are. A signal without a value (such as numbers, if the output has none) is set to its mean and adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from magistrate._text import counted, decimal
from magistrate.errors import InputError, require_extra
from magistrate.judges.stack_folder import Scale, Weights, scaled, standardized
from magistrate.metrics.classification import Estimate, classification
from magistrate.metrics.distributions import expit, grouped_folds
from magistrate.metrics.paired import Figures
from magistrate.metrics.reliability import reliability
from magistrate.metrics.resampling import FEW_CONTEXTS, estimates_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]


FOLDS, MOST_FOLDS = 5, 20
STRENGTHS = (0.001, 0.01, 0.1, 1.0)
"""Inverse penalties that are tried, as scikit-learn's `C` with weights of mean 1."""
LEAST, LEAST_A_PART = 60, 15
"""Samples in all, and of the rarer label for every part: ten to twenty a weight (Peduzzi and others 1996)."""
FAMILIES = 3  # from this number on, families are held out inside a fit
SHRUNK = 0.1  # share of the unit matrix in the covariance, so that it can be inverted
HELD = 1e-3  # penalty that keeps the intercept of a set with one label finite
STILL = 1e-9  # a smaller spread counts as zero
INSIDE, SLACK = 0.999, 1.2
"""A sample is too far away at `SLACK` times the distance that `INSIDE` of the training samples keep to."""


@dataclass(frozen=True, slots=True)
class Table:
    """The values of k parts on n labelled samples.

    `values` float `[n, k]` in [0, 1], higher is more suspicious, in the order of `names`, each on its scale,
    NaN if a signal has no value; `truth` bool `[n]` is True for hallucinated; `groups` int `[n]` is the same
    for the same context; `families` and `sets` `[n]` name the family of the data set, and the set itself.
    `counts` float `[n]` is how many samples each one stands for (None: one).
    """

    names: tuple[str, ...]
    scales: tuple[Scale, ...]
    values: Floats
    truth: Flags
    groups: Ints
    families: NDArray[np.str_]
    sets: NDArray[np.str_]
    counts: Floats | None = None

    @property
    def n(self) -> int:
        """The number of samples."""
        return int(self.truth.size)

    def take(self, places: Ints | Flags) -> Table:
        """Return the table of a subset of the samples."""
        return Table(
            self.names,
            self.scales,
            self.values[places],
            self.truth[places],
            self.groups[places],
            self.families[places],
            self.sets[places],
            None if self.counts is None else self.counts[places],
        )


def fitted(table: Table, *, positive: bool = False, folds: int = FOLDS, seed: int = 0) -> Weights:
    """Fit weights to all samples. Raises `InputError` if a part is constant."""
    require_extra("analysis", "threadpoolctl", "scipy")
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threadpool_limits(1):  # for matrices this small, threads only wait for each other
        return _fitted(table, positive, folds, seed)


def _fitted(table: Table, positive: bool, folds: int, seed: int) -> Weights:
    import numpy as np

    even = evenly(table)
    moved = scaled(table.values, table.scales)
    shares = np.where(np.isnan(moved), 0.0, even[:, None])
    shares = shares / np.maximum(shares.sum(axis=0), 1e-12)
    means = np.nansum(shares * moved, axis=0)
    spreads = np.sqrt(np.nansum(shares * (moved - means) ** 2, axis=0))
    if still := [name for name, spread in zip(table.names, spreads, strict=True) if spread < STILL]:
        raise InputError(
            f"{', '.join(still)} has the same value for every sample, or none at all, so nothing can be "
            "learnt"
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
    """Reject samples that are too few for the number of parts."""
    import numpy as np

    k = len(table.names)
    fewest = int(min(table.truth.sum(), (~table.truth).sum()))
    needed = LEAST_A_PART * k
    if table.n >= LEAST and fewest >= needed:
        return
    label = "hallucinated" if table.truth.sum() == fewest else "faithful"
    raise InputError(
        f"a stack of {k} parts needs at least {LEAST} labelled samples with a value of every part, {needed} "
        f"of each label; there are {table.n}, {fewest} of them {label}, in {np.unique(table.groups).size} "
        "contexts. Add more --data, or use fewer --of"
    )


def evenly(table: Table) -> Floats:
    """Return weights `[n]` of mean 1 that give equal weight to every family, and to its two labels."""
    import numpy as np

    weights = np.zeros(table.n)
    counts = np.ones(table.n) if table.counts is None else table.counts
    for family in np.unique(table.families):
        for label in (True, False):
            cell = (table.families == family) & (table.truth == label)
            if cell.any():
                weights[cell] = counts[cell] / counts[cell].sum()
    # Families with one label only would shift the balance of the labels, and so the intercept.
    for label in (True, False):
        weights[table.truth == label] /= 2 * weights[table.truth == label].sum()
    return weights * table.n


def folds_of(table: Table, folds: int, seed: int) -> Iterator[tuple[Ints, Ints]]:
    """Yield the indices outside and inside each fold. No context is in two folds."""
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
    """Yield every family with the indices of all samples that share no context with it, and its own.

    Nothing is yielded if there is only one family. Families without enough other samples are skipped.
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
    """Return the inverse penalty with the least log loss on held-out parts; the smallest of equal ones."""
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
    """Return weights `[k]` of least weighted log loss + sum of squares / (2 strength), and one intercept."""
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
    """Return the point `[m]` of least weighted log loss of columns `[n, m]` + half the penalized squares."""
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


METRICS = ("balanced_accuracy", "auroc", "f1", "precision", "recall")
EVEN = 0.5  # the base rate of the figures, and the threshold of a probability
COVERED = 0.9  # a smaller share of verdicts on a left-out family causes a remark
WORSE = 0.01  # the AUROC by which a part alone must be better to cause a remark


@dataclass(frozen=True, slots=True)
class Held:
    """Figures on `n` held-out samples, over the `judged` ones that were not too far from the training data.

    Labels use a threshold of .5 on the probability at a base rate of .5. The ECE is at that base rate too.
    """

    n: int
    judged: int
    hallucinated: int
    figures: Mapping[str, Estimate]
    ece: float | None
    ece_by_chance: float | None

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return {
            "n": self.n,
            "judged": self.judged,
            "hallucinated": self.hallucinated,
            "figures": {name: each.to_dict() for name, each in self.figures.items()},
            "ece": self.ece,
            "ece_by_chance": self.ece_by_chance,
        }


@dataclass(frozen=True, slots=True)
class StackFit:
    """Weights fitted to all of `table`, and figures of fits on held-out samples.

    `out_of_fold` is over folds that share no context. `left_out` has every family judged by a stack of all
    the others. `alone` has the AUROC of every part by itself on every family and on all samples, None if
    undefined.
    """

    table: Table
    weights: Weights
    positive: bool
    folds: int
    seed: int
    out_of_fold: Held
    left_out: Mapping[str, Held]
    alone: Mapping[str, Mapping[str, float | None]]
    remarks: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return {
            "n": self.table.n,
            "hallucinated": int(self.table.truth.sum()),
            "contexts": len(set(self.table.groups.tolist())),
            "weights": dict(zip(self.table.names, self.weights.weights.tolist(), strict=True)),
            "intercept": self.weights.intercept,
            "strength": self.weights.strength,
            "positive": self.positive,
            "folds": self.folds,
            "seed": self.seed,
            "out_of_fold": self.out_of_fold.to_dict(),
            "left_out": {name: each.to_dict() for name, each in self.left_out.items()},
            "alone": {name: dict(each) for name, each in self.alone.items()},
            "remarks": list(self.remarks),
        }


ALL = "all"


def fit(table: Table, *, positive: bool = False, folds: int = FOLDS, seed: int = 0) -> StackFit:
    """Fit a stack to labelled samples and measure it on held-out ones.

    `positive` forbids weights below zero. Raises `InputError` for too few samples or impossible folds.
    """
    import numpy as np

    check(table)

    def held_out(parts: list[tuple[Ints, Ints]]) -> tuple[Floats, Flags]:
        odds, near = np.zeros(table.n), np.zeros(table.n, dtype=np.bool_)
        for train, test in parts:
            own = fitted(table.take(train), positive=positive, folds=folds, seed=seed)
            odds[test] = own.log_odds(table.values[test])
            near[test] = own.distances(table.values[test]) <= own.limit
        return odds, near

    within = list(folds_of(table, folds, seed))
    tested = np.zeros(table.n, dtype=np.bool_)
    for _, test in within:
        tested[test] = True
    out_of_fold = _held(table, *held_out(within), np.flatnonzero(tested))
    left_out = {}
    for name, train, test in families_of(table):
        with suppress(InputError):  # too few other samples are left: a remark reports it
            left_out[name] = _held(table, *held_out([(train, test)]), test)
    weights = fitted(table, positive=positive, folds=folds, seed=seed)
    if not weights.weights.any():
        raise InputError(
            f"none of {', '.join(table.names)} is higher for hallucinated outputs, so no weight can be "
            "fitted. Check the parts first, and whether labels are swapped"
        )
    found = StackFit(table, weights, positive, folds, seed, out_of_fold, left_out, _alone(table))
    return replace(found, remarks=tuple(_remarks(found)))


def _held(table: Table, odds: Floats, near: Flags, places: Ints) -> Held:
    kept = places[near[places]]
    truth, scores = table.truth[kept], expit(odds[kept])
    both = 0 < truth.sum() < truth.size
    if table.counts is None:
        metrics = classification(truth, scores >= EVEN, scores, table.groups[kept]).metrics
    else:
        metrics = _weighted(table.take(kept), scores)
    found = reliability(truth, scores, base_rate=EVEN) if both and table.counts is None else None
    return Held(
        n=int(places.size),
        judged=int(kept.size),
        hallucinated=int(table.truth[places].sum()),
        figures={name: metrics[name] for name in METRICS},
        ece=None if found is None else found.ece,
        ece_by_chance=None if found is None else found.ece_by_chance,
    )


def _weighted(table: Table, scores: Floats) -> Mapping[str, Estimate]:
    """Return `METRICS` of a weighted sample: each row counts as often as the samples that it stands for."""
    counts = 1.0 if table.counts is None else table.counts
    figures = Figures(table.truth, scores >= EVEN, scores, METRICS)
    undefined = dict.fromkeys(METRICS, "undefined on these samples")
    return estimates_of(METRICS, lambda drawn: figures(drawn * counts), table.groups, undefined)


def _alone(table: Table) -> dict[str, dict[str, float | None]]:
    import numpy as np

    def area(values: Floats, kept: NDArray[Any]) -> float | None:
        kept = kept & ~np.isnan(values)
        truth = table.truth[kept]
        if not 0 < truth.sum() < truth.size:
            return None
        counts = np.ones(truth.size) if table.counts is None else table.counts[kept]
        return float(Figures(truth, truth, values[kept], ("auroc",))(counts[None])[0, 0])

    families = sorted(set(table.families.tolist()))
    return {
        name: {family: area(table.values[:, at], table.families == family) for family in families}
        | {ALL: area(table.values[:, at], table.truth | True)}
        for at, name in enumerate(table.names)
    }


def _remarks(found: StackFit) -> Iterator[str]:
    area = found.out_of_fold.figures["auroc"]
    if area.low is None or area.low <= EVEN:
        yield (
            f"On these {found.out_of_fold.judged} samples, the stack is not shown to rank better than "
            f"chance, even on folds of its own data (AUROC {area})."
        )
    families = sorted(set(found.table.families.tolist()))
    if len(families) == 1:
        yield (
            "All data are from one family, so it is unknown how the stack works on other data. Add --data of "
            "several families."
        )
    elif apart := [name for name in families if name not in found.left_out]:
        yield (
            f"It is unknown how the stack works on {', '.join(apart)} when trained without it: too few of "
            "the other samples have other contexts."
        )
    for family, held in found.left_out.items():
        yield from _beside(found, family, held)
        if held.judged < COVERED * held.n:
            yield (
                f"Trained without {family}, the stack abstains on {held.n - held.judged} of its {held.n} "
                "samples, because they are too different from the others."
            )
    for name, weight in zip(found.table.names, found.weights.weights, strict=True):
        if weight < 0:
            yield (
                f"{name} has a negative weight together with the others ({weight:+.2f}); this may not hold "
                "on other data; --non-negative forbids it."
            )
        elif weight == 0:
            yield f"{name} adds nothing to the others (weight 0): remove it."
    if (contexts := len(set(found.table.groups.tolist()))) < FEW_CONTEXTS:
        yield f"Only {counted(contexts, 'independent context')}: intervals are wide, and only approximate."


def _beside(found: StackFit, family: str, held: Held) -> Iterator[str]:
    """Yield a remark if one part alone does better than the stack on a family that was left out."""
    own = held.figures["auroc"].value
    areas = [(area, name) for name, by in found.alone.items() if (area := by[family]) is not None]
    if own is None or not areas or len(areas) == 1:
        return
    best, name = max(areas)
    if best > own + WORSE:
        yield (
            f"On {family}, {name} alone ranks better than the stack trained without it: AUROC "
            f"{decimal(best)} against {decimal(own)}."
        )
