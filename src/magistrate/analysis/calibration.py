"""A calibration of a judge's scores: fitted to labels, and measured on held-out folds.

Binning, losses and maps are those of `metrics.calibration`. `remarks_of` lists the limits of a fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from magistrate._text import counted, decimal, signed
from magistrate._version import __version__
from magistrate.analysis.columns import Columns
from magistrate.errors import InputError, SpecError
from magistrate.judges.calibration_file import CalibrationFile, DataPart, JudgePart
from magistrate.judges.folders import EstimatePart, ModelPart
from magistrate.metrics.calibration import METHODS, Calibrator, Method, fitted, reference, shifted
from magistrate.metrics.classification import Estimate, PlainFields, classification
from magistrate.metrics.distributions import grouped_folds
from magistrate.metrics.reliability import (
    BINS,
    LOSSES,
    NO_INTERVAL,
    Binning,
    Reliability,
    bin_numbers,
    losses,
    reliability,
)
from magistrate.metrics.resampling import DRAWS, FEW_CONTEXTS, draws_of, interval_of
from magistrate.metrics.thresholds import (
    FOLDS,
    LEAST_OF_EITHER,
    LEAST_SAMPLES,
    RATES,
    Aim,
    Unreachable,
    best_cut,
    confusion_of,
    rates,
)

if TYPE_CHECKING:
    from magistrate.types import Recipe

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

MOST_FOLDS = 20
LEAST: Mapping[Method, int] = {"platt": LEAST_SAMPLES, "temperature": LEAST_SAMPLES, "isotonic": 200}
"""Fewer samples are refused: Platt's two numbers need some ten of the rarer class each (Peduzzi and others
1996), isotonic steps need hundreds before they are more than chance (Niculescu-Mizil and Caruana 2005)."""
LEAST_RISE = 0.01  # the least rise of the map from the lowest score to the highest
HALF = 0.5  # the threshold if no aim is given
COST = "cost"


@dataclass(frozen=True, slots=True)
class Measured(PlainFields):
    """The quality of scores as probabilities, and of the labels that a threshold gives them.

    `figures` holds an estimate for each of `LOSSES` and `RATES`, and `cost` if the aim is costs.
    """

    reliability: Reliability
    figures: Mapping[str, Estimate]


@dataclass(frozen=True, slots=True)
class Fit:
    """A calibration and its figures, all on held-out samples.

    `calibrator` and `threshold` are fitted to all n samples, of which `positives` are hallucinated, in
    `contexts` contexts. `before` measures the judge as it is, `after` the scores calibrated by maps that were
    fitted without the sample. `change` is after minus before for each figure. `unreached` counts the folds
    whose training samples allowed no threshold that reaches the aim; nothing was flagged there. `left_out`
    counts samples without label or verdict. If `turned`, everything refers to 1 - score, because a low score
    of the judge means hallucinated. `reference` are calibrated scores to compare those of later runs with.
    """

    method: Method
    calibrator: Calibrator
    threshold: float
    aim: Aim | None
    base_rate: float | None
    folds: int
    seed: int
    n: int
    positives: int
    contexts: int
    left_out: Mapping[str, int]
    auroc: Estimate
    before: Measured
    after: Measured
    change: Mapping[str, Estimate]
    unreached: int = 0
    constant: bool = False
    turned: bool = False
    remarks: tuple[str, ...] = ()
    reference: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return {
            "method": self.method,
            "parameters": {name: list(values) for name, values in self.calibrator.parameters.items()},
            "threshold": self.threshold,
            "aim": None if self.aim is None else str(self.aim),
            "base_rate": self.base_rate,
            "folds": self.folds,
            "seed": self.seed,
            "n": self.n,
            "hallucinated": self.positives,
            "contexts": self.contexts,
            "left_out": dict(self.left_out),
            "scores_turned": self.turned,
            "auroc": self.auroc.to_dict(),
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "change": {name: each.to_dict() for name, each in self.change.items()},
            "folds_without_threshold": self.unreached,
            "remarks": list(self.remarks),
        }


def fit(
    columns: Columns,
    method: Method = "platt",
    *,
    aim: Aim | None = None,
    folds: int = FOLDS,
    seed: int = 0,
    base_rate: float | None = None,
    binning: Binning = "mass",
    draws: int = DRAWS,
) -> Fit:
    """Calibrate the scores of a judge, and measure the result on held-out folds.

    `base_rate` in (0, 1) is the share of hallucinated outputs where the calibration will be used. The two
    classes are weighted to it in fits, thresholds and figures. Raises `InputError` for too few samples, if a
    higher score is not more often hallucinated, and if the run has no stored scoring; `Unreachable` if no
    threshold reaches `aim`; and `SpecError` for invalid options.
    """
    _check(columns, method, folds, base_rate)
    truth, scores = columns.truth, columns.scores
    calibrator = fitted(method, scores, truth, _weights(truth, base_rate))
    area = classification(truth, columns.said, scores, columns.groups).metrics["auroc"]
    _check_rise(calibrator, columns, area)
    threshold = _threshold(calibrator, scores, truth, aim, base_rate)
    held_out, said, unreached = np.empty(truth.size), np.zeros(truth.size, dtype=np.bool_), 0
    for train, test in folds_of(columns, folds, seed):
        own = fitted(method, scores[train], truth[train], _weights(truth[train], base_rate))
        held_out[test] = own.of_all(scores[test])
        try:
            said[test] = held_out[test] >= _threshold(own, scores[train], truth[train], aim, base_rate)
        except Unreachable:
            unreached += 1  # without a threshold nothing is flagged
    before, after, change = _measured(columns, held_out, said, aim, base_rate, binning, draws, seed)
    found = Fit(
        method=method,
        calibrator=calibrator,
        threshold=threshold,
        aim=aim,
        base_rate=base_rate,
        folds=folds,
        seed=seed,
        n=columns.n,
        positives=int(truth.sum()),
        contexts=columns.n_groups,
        left_out=columns.left_out,
        auroc=area,
        before=before,
        after=after,
        change=change,
        unreached=unreached,
        constant=bool(said.all() or not said.any()),
        turned=columns.turned,
        reference=reference(calibrator.of_all(scores), truth, columns.groups, base_rate, seed=seed),
    )
    return replace(found, remarks=remarks_of(found))


def _weights(truth: Flags, base_rate: float | None) -> Floats:
    return shifted(np.ones(truth.size), truth, base_rate)


def _threshold(own: Calibrator, scores: Floats, truth: Flags, aim: Aim | None, rate: float | None) -> float:
    """Return the threshold for calibrated scores, chosen on the samples that the map was fitted to."""
    if aim is None:
        return HALF
    return float(f"{best_cut(own.of_all(scores), truth, aim, _weights(truth, rate)):.10g}")


def folds_of(columns: Columns, folds: int, seed: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return the indices outside and inside each fold. No context is in two folds."""

    parts = grouped_folds(columns.truth, columns.groups, folds, seed)
    for train, _ in parts:
        if columns.truth[train].all() or not columns.truth[train].any():
            raise InputError(
                f"with {folds} folds that share no context, one fold would contain all samples of one class, "
                "because too many of them have the same context; label samples of more contexts, or use "
                "fewer --folds"
            )
    return parts


def _check(columns: Columns, method: Method, folds: int, base_rate: float | None) -> None:
    """Reject invalid options, and too few samples to split and to fit."""
    if method not in METHODS:
        raise SpecError(f"unknown method {method!r}; known: {', '.join(METHODS)}")
    if not 2 <= folds <= MOST_FOLDS:
        raise SpecError(f"folds must be 2 to {MOST_FOLDS}, got {folds}")
    if base_rate is not None and not 0 < base_rate < 1:
        raise SpecError(f"a base rate must be in (0, 1), got {base_rate}")
    positives = int(columns.truth.sum())
    places = [int(np.unique(columns.groups[each]).size) for each in (columns.truth, ~columns.truth)]
    negatives = columns.n - positives
    if columns.n >= LEAST[method] and min(positives, negatives) >= LEAST_OF_EITHER and min(places) >= folds:
        return
    left_out = ", ".join(f"{n} {reason}" for reason, n in columns.left_out.items())
    raise InputError(
        f"{method} needs at least {LEAST[method]} labelled samples with a verdict, with {LEAST_OF_EITHER} of "
        f"each class in at least {folds} contexts (one per fold); {columns.judge!r} has {columns.n}: "
        f"{positives} hallucinated in {counted(places[0], 'context')}, {negatives} faithful in {places[1]}"
        + (f"; left out: {left_out}" if left_out else "")
    )


def _check_rise(calibrator: Calibrator, columns: Columns, area: Estimate) -> None:
    """Reject a map by which a higher score is not more likely to be hallucinated."""
    made = calibrator.of_all(columns.scores[[columns.scores.argmin(), columns.scores.argmax()]])
    if made[1] - made[0] >= LEAST_RISE:
        return
    falls = made[0] - made[1] >= LEAST_RISE
    told = f"from {made[0]:.3f} down to {made[1]:.3f}" if falls else f"all of them to about {made[1]:.3f}"
    turned = ", reversed because a low score means hallucinated," if columns.turned else ""
    raise InputError(
        f"{calibrator.method} cannot calibrate {columns.judge!r}: it would map its scores{turned} {told}, "
        f"because they do not rise with the labels (AUROC {area}). Find the reason first: labels may be "
        "swapped, or the judge cannot tell these outputs apart"
    )


# --- figures --------------------------------------------------------------------------------------


def _measured(
    columns: Columns,
    held_out: Floats,
    said: Flags,
    aim: Aim | None,
    base_rate: float | None,
    binning: Binning,
    draws: int,
    seed: int,
) -> tuple[Measured, Measured, dict[str, Estimate]]:
    """Return the measures before and after, and their differences draw by draw."""
    truth, n_groups = columns.truth, columns.n_groups
    names: tuple[str, ...] = (*LOSSES, *RATES, *((COST,) if aim is not None and aim.kind == "costs" else ()))
    sides = ((columns.scores, columns.said), (held_out, said))
    parts = [_figures(truth, scores, labels, aim, binning) for scores, labels in sides]

    def statistic(weights: Floats) -> Floats:
        moved = shifted(weights, truth, base_rate)
        return np.column_stack([part(moved) for part in parts])

    values = statistic(np.ones((1, truth.size)))[0]
    drawn = draws_of(statistic, columns.groups, draws=draws, seed=seed)
    size, found = len(names), []
    for at, (scores, labels) in enumerate(sides):
        own = slice(at * size, (at + 1) * size)
        figures = _estimates(names, values[own], drawn[:, own], n_groups)
        if base_rate is None:
            figures |= _certain(columns, labels, figures)
        ece = figures["ece"]
        figures["ece"] = Estimate(ece.value, None, None, ece.undefined or NO_INTERVAL)
        diagram = reliability(truth, scores, binning=binning, base_rate=base_rate)
        found.append(Measured(diagram, figures))
    difference, moves = values[size:] - values[:size], drawn[:, size:] - drawn[:, :size]
    return found[0], found[1], _estimates(names, difference, moves, n_groups)


def _certain(columns: Columns, said: Flags, figures: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """Return closed-form intervals for shares that are the same in every draw: 7 of 7 is not certainty.

    With too few contexts these have no interval either.
    """
    exact = classification(columns.truth, said, groups=columns.groups).metrics
    return {name: exact[name] for name in exact if name in figures and figures[name].low is None}


def _figures(
    truth: Flags, scores: Floats, said: Flags, aim: Aim | None, binning: Binning
) -> Callable[[Floats], Floats]:
    """Return all figures `[b, k]` of scores and labels as a function of weights `[b, n]`."""
    lost = losses(truth, scores, bin_numbers(scores, BINS, binning))
    confused = confusion_of(truth, said)

    def of(weights: Floats) -> Floats:
        tp, fp, fn, tn = confused(weights)
        found = rates(tp, fp, fn, tn)
        columns = [lost(weights), *(found[name] for name in RATES)]
        if aim is not None and aim.kind == "costs":
            columns.append((aim.miss * fn + aim.false_alarm * fp) / (tp + fp + fn + tn))
        return np.column_stack(columns)

    return of


def _estimates(names: tuple[str, ...], values: Floats, drawn: Floats, n_groups: int) -> dict[str, Estimate]:
    return {name: interval_of(float(values[at]), drawn[:, at], n_groups) for at, name in enumerate(names)}


def file_of(fit: Fit, recipe: Recipe, name: str, dataset: str, digest: str) -> CalibrationFile:
    """Convert a fit to a file. `recipe` is that of the judge `name`, `digest` that of the data set."""
    return CalibrationFile(
        method=fit.method,
        parameters={name: list(values) for name, values in fit.calibrator.parameters.items()},
        threshold=fit.threshold,
        aim=None if fit.aim is None else str(fit.aim),
        base_rate=fit.base_rate,
        judge=JudgePart(name=name, words=recipe.judge, prompt=recipe.prompt, constraint=recipe.constraint),
        model=ModelPart(name=recipe.model, fingerprint=recipe.fingerprint),
        data=DataPart(
            dataset=dataset, digest=digest, n=fit.n, hallucinated=fit.positives, contexts=fit.contexts
        ),
        seed=fit.seed,
        folds=fit.folds,
        before=_parts_of(fit.before),
        after=_parts_of(fit.after),
        package=__version__,
        turned=fit.turned,
        scores=list(fit.reference),
    )


def _parts_of(measured: Measured) -> dict[str, EstimatePart]:
    return {name: EstimatePart.of(each) for name, each in measured.figures.items()}


# --- remarks --------------------------------------------------------------------------------------


LOSS_NAMES = {"ece": "ECE", "brier": "Brier score", "log_loss": "log loss"}
ENOUGH_FOR_STEPS = 1000


def remarks_of(fit: Fit) -> tuple[str, ...]:
    """Return sentences about the limits of a calibration, the gravest first."""
    return tuple(_remarks(fit))


def _remarks(fit: Fit) -> Iterator[str]:
    yield from _ranking(fit)
    yield from _help(fit)
    yield from _aim_reached(fit)
    if fit.method == "isotonic" and fit.n < ENOUGH_FOR_STEPS:
        yield (
            f"Isotonic steps fitted to {fit.n} samples also fit noise; below about {ENOUGH_FOR_STEPS:,} "
            "samples, platt is usually better."
        )
    if fit.contexts < FEW_CONTEXTS:
        contexts = counted(fit.contexts, "independent context")
        yield f"Only {contexts}: intervals are wide, and only approximate."


def _ranking(fit: Fit) -> Iterator[str]:
    if fit.turned:
        yield (
            "A low score of this judge means hallucinated (its direction is maximize): all figures, and the "
            "map in the file, use 1 - score."
        )
    area = fit.auroc
    if area.low is None or area.high is None:
        return
    shown = f"AUROC {decimal(area.value)} [{decimal(area.low)}, {decimal(area.high)}]"
    if area.low <= 0.5 <= area.high:
        yield (
            f"On these {fit.n} samples, the judge is not shown to rank better than chance ({shown}). "
            "Calibration then gives every output about the base rate: correct, but useless for telling "
            "outputs apart."
        )
    elif area.high < 0.5:
        yield f"The judge ranks outputs in the wrong order ({shown}). Find the reason before you use it."


def _help(fit: Fit) -> Iterator[str]:
    worse, unsure, still = list[str](), list[str](), list[str]()
    for name in LOSSES:
        change = fit.change[name]
        if change.low is None or change.high is None:
            unsure.append(f"{LOSS_NAMES[name]} ({change.undefined})")
        elif change.low > 0 and decimal(change.value) == decimal(0):
            still.append(LOSS_NAMES[name])
        elif change.low > 0:
            worse.append(f"{LOSS_NAMES[name]} {_shown(change)}")
        elif change.high >= 0:
            unsure.append(f"{LOSS_NAMES[name]} {_shown(change)}")
    if worse:
        yield f"Calibration made it worse on held-out samples: {', '.join(worse)}."
    if still:
        yield f"No visible change (two decimals) on held-out samples: {', '.join(still)}."
    if unsure:
        yield f"Not shown to help on held-out samples; the change may be chance: {', '.join(unsure)}."


def _aim_reached(fit: Fit) -> Iterator[str]:
    if fit.unreached:
        yield (
            f"In {fit.unreached} of {fit.folds} folds, no threshold reached the aim on the other samples; "
            "nothing was flagged there, and the figures include this."
        )
    if fit.aim is not None and fit.aim.kind in ("precision", "recall"):
        reached = fit.after.figures[fit.aim.kind]
        if reached.value is None:
            yield (
                f"Nothing was flagged in any held-out fold, so it is unknown whether the {fit.aim.kind} is "
                "reached."
            )
        elif reached.value < fit.aim.least:
            ends = "" if reached.low is None else f" [{decimal(reached.low)}, {decimal(reached.high)}]"
            yield (
                f"On held-out samples the {fit.aim.kind} is {decimal(reached.value)}{ends}: below the aim of "
                f"{fit.aim.least:g}, which the threshold reaches only on the samples it was chosen on."
            )
        elif reached.low is None or reached.low < fit.aim.least:
            ends = "has no interval" if reached.low is None else f"may be {decimal(reached.low)}"
            yield (
                f"On held-out samples the {fit.aim.kind} is {decimal(reached.value)} and {ends}: these "
                f"samples are too few to show that it is {fit.aim.least:g}."
            )
    if fit.constant:
        yield "With this threshold every held-out sample gets the same label."


def _shown(change: Estimate) -> str:
    return f"{signed(change.value)} [{signed(change.low)}, {signed(change.high)}]"
