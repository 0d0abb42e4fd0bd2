"""What a stack is worth on samples that it was not fitted to: folds of its data, and families left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import log
from typing import TYPE_CHECKING, Any

from magistrate._text import decimal
from magistrate.errors import InputError
from magistrate.judges.stack_fit import FOLDS, Table, Weights, check, families_of, fitted, folds_of
from magistrate.metrics.calibration import reliability
from magistrate.metrics.classification import Estimate, classification
from magistrate.metrics.resampling import FEW_CONTEXTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from magistrate.judges.stack_fit import Flags, Floats, Ints

METRICS = ("balanced_accuracy", "auroc", "f1", "precision", "recall")
EVEN = 0.5  # the base rate at which figures are made, and the threshold of a probability
COVERED = 0.9  # a smaller share of verdicts on a left-out family is remarked on
WORSE = 0.01  # by how much a part alone must rank better to be remarked on


@dataclass(frozen=True, slots=True)
class Held:
    """Figures on `n` samples that the fit had not seen, over the `judged` ones that were not too far away.

    Labels are those of a probability of .5 at a base rate of .5; the ECE is at that base rate too.
    """

    n: int
    judged: int
    hallucinated: int
    figures: Mapping[str, Estimate]
    ece: float | None
    ece_by_chance: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
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
    """Weights fitted to all of `table`, and figures of fits that had not seen what they are measured on.

    `out_of_fold` is over folds that share no context; `left_out` has every family judged by a stack of all
    the others; `alone` the AUROC of every part by itself on every family and on all, where it has a value.
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
        """Plain values."""
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
    """Fit a stack to labelled samples and measure it on others.

    `positive` allows no weight below zero. Raises `InputError` for too few samples or folds that cannot be.
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
        with suppress(InputError):  # too few are left of the others: the remarks say so
            left_out[name] = _held(table, *held_out([(train, test)]), test)
    weights = fitted(table, positive=positive, folds=folds, seed=seed)
    if not weights.weights.any():
        raise InputError(
            f"by these labels none of {', '.join(table.names)} speaks against what is hallucinated: there is "
            "nothing to weigh. Look at the parts first, or at labels that are the wrong way round"
        )
    found = StackFit(table, weights, positive, folds, seed, out_of_fold, left_out, _alone(table))
    return replace(found, remarks=tuple(_remarks(found)))


def _held(table: Table, odds: Floats, near: Flags, places: Ints) -> Held:
    from scipy.special import expit

    kept = places[near[places]]
    truth, scores = table.truth[kept], expit(odds[kept])
    metrics = classification(truth, scores >= EVEN, scores, table.groups[kept]).metrics
    both = 0 < truth.sum() < truth.size
    found = reliability(truth, scores, base_rate=EVEN) if both else None
    return Held(
        n=int(places.size),
        judged=int(kept.size),
        hallucinated=int(table.truth[places].sum()),
        figures={name: metrics[name] for name in METRICS},
        ece=None if found is None else found.ece,
        ece_by_chance=None if found is None else found.ece_by_chance,
    )


def _alone(table: Table) -> dict[str, dict[str, float | None]]:
    import numpy as np
    from sklearn.metrics import roc_auc_score

    def area(values: Floats, kept: NDArray[Any]) -> float | None:
        kept = kept & ~np.isnan(values)
        truth = table.truth[kept]
        return float(roc_auc_score(truth, values[kept])) if 0 < truth.sum() < truth.size else None

    families = sorted(set(table.families.tolist()))
    return {
        name: {family: area(table.values[:, at], table.families == family) for family in families}
        | {ALL: area(table.values[:, at], table.truth | True)}
        for at, name in enumerate(table.names)
    }


def shift(base_rate: float) -> float:
    """What an assumed share of the hallucinated adds to log odds of even chances."""
    return log(base_rate / (1 - base_rate))


def _remarks(found: StackFit) -> Iterator[str]:
    area = found.out_of_fold.figures["auroc"]
    if area.low is None or area.low <= EVEN:
        yield (
            f"As far as {found.out_of_fold.judged} samples can tell the stack ranks no better than chance, "
            f"even on folds of its own data (AUROC {area})."
        )
    families = sorted(set(found.table.families.tolist()))
    if len(families) == 1:
        yield (
            "All data are of one family: nothing here says how the stack does on data of another making. "
            "Give --data of several."
        )
    elif apart := [name for name in families if name not in found.left_out]:
        yield (
            f"Nothing here says how the stack does on {', '.join(apart)} where it is left out: too few "
            "of the other samples are of other contexts."
        )
    for family, held in found.left_out.items():
        yield from _beside(found, family, held)
        if held.judged < COVERED * held.n:
            yield (
                f"Of {family}, left out, {held.n - held.judged} of {held.n} samples are too far from all "
                "others to be judged: it would abstain there."
            )
    for name, weight in zip(found.table.names, found.weights.weights, strict=True):
        if weight < 0:
            yield (
                f"{name} counts the wrong way round beside the others (weight {weight:+.2f}): what it does "
                "elsewhere is doubtful; --non-negative forbids that."
            )
        elif weight == 0:
            yield f"{name} adds nothing to the others (weight 0): leave it out."
    if (contexts := len(set(found.table.groups.tolist()))) < FEW_CONTEXTS:
        yield f"Only {contexts} independent contexts: intervals are wide for that, and still rough."


def _beside(found: StackFit, family: str, held: Held) -> Iterator[str]:
    """Whether one part alone does as well on a family that was left out."""
    own = held.figures["auroc"].value
    areas = [(area, name) for name, by in found.alone.items() if (area := by[family]) is not None]
    if own is None or not areas or len(areas) == 1:
        return
    best, name = max(areas)
    if best > own + WORSE:
        yield (
            f"On {family}, left out, {name} alone ranks better than the stack: AUROC {decimal(best)} against "
            f"{decimal(own)}."
        )
