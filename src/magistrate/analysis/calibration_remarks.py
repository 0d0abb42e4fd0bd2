"""What a reader of a calibration must not miss, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from magistrate._text import decimal, signed
from magistrate.metrics.classification import Estimate
from magistrate.metrics.reliability import LOSSES
from magistrate.metrics.resampling import FEW_CONTEXTS

if TYPE_CHECKING:
    from magistrate.analysis.calibration import Fit

LOSS_NAMES = {"ece": "ECE", "brier": "Brier score", "log_loss": "log loss"}
ENOUGH_FOR_STEPS = 1000


def remarks_of(fit: Fit) -> tuple[str, ...]:
    """Sentences about what limits a calibration, the gravest first."""
    return tuple(_remarks(fit))


def _remarks(fit: Fit) -> Iterator[str]:
    yield from _ranking(fit)
    yield from _help(fit)
    yield from _aim(fit)
    if fit.method == "isotonic" and fit.n < ENOUGH_FOR_STEPS:
        yield (
            f"Isotonic steps fitted to {fit.n} samples follow chance too; below some "
            f"{ENOUGH_FOR_STEPS:,} samples platt is usually the better one."
        )
    if fit.contexts < FEW_CONTEXTS:
        yield f"Only {fit.contexts} independent contexts: intervals are wide for that, and still rough."


def _ranking(fit: Fit) -> Iterator[str]:
    if fit.turned:
        yield (
            "A low score of this judge means hallucinated (its direction is maximize): all figures are of "
            "1 - score, and so is the map in the file."
        )
    area = fit.auroc
    if area.low is None or area.high is None:
        return
    shown = f"AUROC {decimal(area.value)} [{decimal(area.low)}, {decimal(area.high)}]"
    if area.low <= 0.5 <= area.high:
        yield (
            f"As far as {fit.n} samples can tell the judge ranks no better than chance ({shown}). "
            "Calibrating it gives every output about the base rate: honest, and no use for telling outputs "
            "apart."
        )
    elif area.high < 0.5:
        yield f"The judge ranks the wrong way round ({shown}). Look for the reason before you use it."


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
        yield f"Calibrating made it worse on held-out samples: {', '.join(worse)}."
    if still:
        yield f"No change on held-out samples that two decimals would show: {', '.join(still)}."
    if unsure:
        yield f"Not shown to help on held-out samples, the change may be none: {', '.join(unsure)}."


def _aim(fit: Fit) -> Iterator[str]:
    if fit.unreached:
        yield (
            f"In {fit.unreached} of {fit.folds} folds no threshold reached the aim on the other samples; "
            "nothing was flagged there, and the figures count that."
        )
    if fit.aim is not None and fit.aim.kind in ("precision", "recall"):
        reached = fit.after.figures[fit.aim.kind]
        if reached.value is None:
            yield f"Nothing was flagged in any held-out fold: whether the {fit.aim.kind} holds is not known."
        elif reached.value < fit.aim.least:
            ends = "" if reached.low is None else f" [{decimal(reached.low)}, {decimal(reached.high)}]"
            yield (
                f"On held-out samples the {fit.aim.kind} is {decimal(reached.value)}{ends}: short of the "
                f"{fit.aim.least:g} aimed at, which the threshold reaches on the samples it was chosen by."
            )
        elif reached.low is None or reached.low < fit.aim.least:
            ends = "has no interval" if reached.low is None else f"may be {decimal(reached.low)}"
            yield (
                f"On held-out samples the {fit.aim.kind} is {decimal(reached.value)} and {ends}: this many "
                f"samples do not show that it is {fit.aim.least:g}."
            )
    if fit.constant:
        yield "With this threshold every held-out sample gets the same label."


def _shown(change: Estimate) -> str:
    return f"{signed(change.value)} [{signed(change.low)}, {signed(change.high)}]"
