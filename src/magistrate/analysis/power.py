"""The number of labelled samples needed to tell two judges apart, from assumptions or from a pilot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magistrate._text import decimal, percent, table
from magistrate.analysis.columns import groups_of, known_scoring
from magistrate.analysis.comparison import Side, name_of, shared
from magistrate.errors import InputError
from magistrate.metrics.classification import LEAST_GROUPS
from magistrate.metrics.distributions import ndtri
from magistrate.metrics.paired import (
    POWERED,
    Figures,
    assumed,
    auroc_samples_needed,
    deviation,
    samples_needed,
    value_of,
)
from magistrate.metrics.resampling import draws_of
from magistrate.types import HALLUCINATED, Verdict

STEPS = (0.01, 0.02, 0.03, 0.05, 0.1)
CORRELATION = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """The number of samples that a paired comparison needs to show `difference` in `metric`.

    `n` is for samples that share no contexts. `design` is the factor by which more are needed if samples
    share contexts as in the pilot (at least 1), None without a pilot. `others` are the numbers for other
    differences, None if no judge is that good. `alpha` is divided by the number of simultaneous
    `comparisons`. `assumptions` lists what the numbers rest on.
    """

    metric: str
    difference: float
    power: float
    alpha: float
    base_rate: float
    n: int
    others: Mapping[float, int | None]
    assumptions: tuple[str, ...]
    design: float | None = None
    comparisons: int = 1

    @property
    def n_clustered(self) -> int | None:
        """`n` times `design`, rounded up."""
        return None if self.design is None else ceil(self.n * self.design)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return {
            "metric": self.metric,
            "difference": self.difference,
            "power": self.power,
            "alpha": self.alpha,
            "comparisons": self.comparisons,
            "base_rate": self.base_rate,
            "n": self.n,
            "design_effect": self.design,
            "n_clustered": self.n_clustered,
            "others": {f"{difference:g}": n for difference, n in self.others.items()},
            "assumptions": list(self.assumptions),
        }

    def _repr_html_(self) -> str:
        rows = [(f"{each:g}", "-" if n is None else f"{n:,}") for each, n in self.others.items()]
        title = f"{self.metric}: samples for a power of {self.power:g} at a level of {self.alpha:g}"
        told = table(("rests on",), [(each,) for each in self.assumptions])
        return table(("difference", "samples"), rows, title=title) + told


def _check(
    metric: str, difference: float, power: float, alpha: float, base_rate: float, comparisons: int
) -> None:
    if comparisons < 1:
        raise InputError(f"comparisons must be at least 1, got {comparisons}")
    if metric not in POWERED:
        raise InputError(f"unknown metric {metric!r}; known: {', '.join(POWERED)}")
    limits = {"difference": difference, "power": power, "alpha": alpha, "base rate": base_rate}
    for name, value in limits.items():
        if not 0 < value < 1:
            raise InputError(f"the {name} must be between 0 and 1, got {value:g}")
    if power <= alpha:
        raise InputError(f"the power must be above alpha, {alpha:g}, got {power:g}")


def plan(
    metric: str,
    difference: float,
    *,
    value: float = 0.7,
    base_rate: float = 0.5,
    agreement: float | None = None,
    correlation: float = CORRELATION,
    power: float = 0.8,
    alpha: float = 0.05,
    comparisons: int = 1,
) -> Plan:
    """Return the samples needed if one judge has `value` and the other `value + difference`.

    `agreement` is how often both give the same label (default: they err independently). `correlation` is that
    of two areas under the ROC curve, where agreement does not apply. Raises `InputError` for impossible
    values.
    """
    _check(metric, difference, power, alpha, base_rate, comparisons)
    level = alpha / comparisons

    def needed(each: float) -> int:
        if metric == "auroc":
            return auroc_samples_needed(value, each, base_rate, correlation, alpha=level, power=power)
        shares = assumed(metric, value, each, base_rate, agreement)
        return samples_needed(metric, shares, each, alpha=level, power=power)

    if value + difference >= 1:
        raise InputError(f"{value:g} plus {difference:g} is not below 1: no judge can have such a {metric}")
    n = needed(difference)
    others = {each: _tried(needed, each) for each in sorted({*STEPS, difference})}
    told = [f"{name_of(metric)}: {value:g} against {value + difference:g}"]
    told.append(f"{percent(base_rate)} of the samples are hallucinated")
    if metric == "auroc":
        told.append(f"the two areas are correlated by {correlation:g} (--correlation)")
        told.append("variances by Hanley and McNeil (1982), who assume exponential scores")
    else:
        told.append("each judge is equally often right on hallucinated and faithful samples")
        told.append(
            "the judges' errors are independent; fewer samples are needed if they err on the same ones "
            "(--agreement)"
            if agreement is None
            else f"they give the same label to {percent(agreement)} of the samples, equally in both classes"
        )
    told.append("each sample has its own context; more samples are needed if they share contexts (--pilot)")
    assumptions = (*told, _named(comparisons))
    return Plan(metric, difference, power, alpha, base_rate, n, others, assumptions, None, comparisons)


def _named(comparisons: int) -> str:
    """Return a text on how many comparisons the number is for."""
    if comparisons == 1:
        return "one metric of one pair, chosen beforehand (compare --metric); for more at once: --comparisons"
    return f"{comparisons} comparisons at once: the level is divided by {comparisons} (Holm's first step)"


def _tried(needed: Any, difference: float) -> int | None:
    try:
        found: int = needed(difference)
    except InputError:
        return None
    return found


def plan_from(
    pilot: Sequence[Side],
    metric: str,
    difference: float,
    *,
    power: float = 0.8,
    alpha: float = 0.05,
    comparisons: int = 1,
) -> Plan:
    """Return the samples needed by judges that err as in a pilot of two judges, for any difference.

    Raises `InputError` if the pilot has no labelled samples that both judged, or too few contexts.
    """
    if len(pilot) != 2:
        raise InputError(f"a pilot needs two judges, got {len(pilot)}")
    both = shared(pilot)
    if not both.gold:
        raise InputError("the pilot has no labelled sample that both judges judged")
    truth = np.array([sample.label == HALLUCINATED for sample in both.samples])
    said = [np.array([each.label == HALLUCINATED for each in column]) for column in both.verdicts]
    n, base_rate = truth.size, float(truth.mean())
    _check(metric, difference, power, alpha, min(max(base_rate, 1e-9), 1 - 1e-9), comparisons)
    level = alpha / comparisons
    groups = groups_of(both.samples)
    n_groups = int(groups.max()) + 1
    if n_groups < LEAST_GROUPS:
        raise InputError(f"a pilot needs at least {LEAST_GROUPS} contexts, got {n_groups}")
    shares = np.zeros((2, 2, 2))
    np.add.at(shares, (truth.astype(int), *((each == truth).astype(int) for each in said)), 1 / n)
    figures = [
        Figures(truth, labels, _risks(side, column, metric), [metric])
        for side, labels, column in zip(pilot, said, both.verdicts, strict=True)
    ]
    drawn = draws_of(lambda weights: figures[0](weights) - figures[1](weights), groups)[:, 0]
    known = drawn[~np.isnan(drawn)]
    spread = float(known.std(ddof=1)) * sqrt(n) if known.size > 1 else 0.0
    if not spread:
        raise InputError(
            "the two judges of the pilot never differ, so it says nothing about their difference"
        )
    first, second = pilot
    told = [f"a pilot of {n} samples and {n_groups} contexts: {first.name} and {second.name}"]
    if metric == "auroc":
        design = None
        found = {each: _normal(spread, each, level, power) for each in sorted({*STEPS, difference})}
        told.append(
            "the variance of the difference of the areas over whole contexts, which includes their "
            "correlation"
        )
    else:
        plain = deviation(metric, shares)
        if not plain:
            raise InputError(f"the two judges of the pilot never differ in {metric}")
        design = max(1.0, (spread / plain) ** 2) if n_groups < n else 1.0
        found = {
            each: samples_needed(metric, shares, each, alpha=level, power=power)
            for each in sorted({*STEPS, difference})
        }
        values = [value_of(metric, shares, second=each) for each in (False, True)]
        agreeing = float(shares[:, 0, 0].sum() + shares[:, 1, 1].sum())
        told.append(f"{name_of(metric)} of {decimal(values[0])} and {decimal(values[1])}")
        told.append(f"they give the same label to {percent(agreeing)} of the samples")
    told.append(f"{percent(base_rate)} of the samples are hallucinated")
    told += ["any difference has the same variance as between these two", _named(comparisons)]
    n_needed = found[difference]
    return Plan(
        metric, difference, power, alpha, base_rate, n_needed, found, tuple(told), design, comparisons
    )


def _risks(side: Side, verdicts: Sequence[Verdict], metric: str) -> NDArray[np.float64]:
    """Return a side's scores `[n]`, higher is more hallucinated.

    Raises `InputError` if the direction of the scores is needed and not known.
    """
    scores = np.array([each.score for each in verdicts], dtype=np.float64)
    turned = metric == "auroc" and known_scoring(side.scoring, side.name).turned
    return 1 - scores if turned else scores


def _normal(spread: float, difference: float, alpha: float, power: float) -> int:
    """Return the samples needed if the difference has this standard deviation per sample."""

    return ceil((float(ndtri(1 - alpha / 2) + ndtri(power)) * spread / difference) ** 2)
