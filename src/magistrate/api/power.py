"""How many labelled samples a comparison of two judges needs."""

from __future__ import annotations

from collections.abc import Sequence

from magistrate.analysis.planning import CORRELATION, Plan, plan, plan_from
from magistrate.api.compare import sides_of
from magistrate.api.stored import RunRef, StorePlace
from magistrate.errors import InputError, SpecError

VALUE, BASE_RATE = 0.7, 0.5
LEAST_DIFFERENCE = 0.001  # below it formulas give numbers of samples that nobody labels


def samples_needed(
    metric: str,
    difference: float,
    *,
    value: float | None = None,
    base_rate: float | None = None,
    agreement: float | None = None,
    correlation: float | None = None,
    power: float = 0.8,
    alpha: float = 0.05,
    comparisons: int = 1,
    pilot: Sequence[RunRef] = (),
    store: StorePlace | None = None,
) -> Plan:
    """How many labelled samples show a `difference` in `metric` with this power, at this level.

    That is of one metric of one pair, named beforehand; with more `comparisons` at once the level is divided
    by their number, as in the first step of Holm's correction.
    Either from what is assumed of the judges (`value` .7, `base_rate` .5, independent errors), or from a
    `pilot` of two runs, or of one that has two judges. Raises `SpecError` for what does not go together,
    `InputError` for what cannot be.
    """
    if difference < LEAST_DIFFERENCE:
        raise InputError(f"the difference must be at least {LEAST_DIFFERENCE:g}, got {difference:g}")
    unused = {"auroc": ("agreement", agreement)}.get(metric, ("correlation", correlation))
    if not pilot and unused[1] is not None:
        other = "is of labels, and auroc is of scores; give --correlation"
        told = other if metric == "auroc" else f"is of two areas (auroc), not of {metric}; give --agreement"
        raise SpecError(f"--{unused[0]} {told}")
    if not pilot:
        return plan(
            metric,
            difference,
            value=VALUE if value is None else value,
            base_rate=BASE_RATE if base_rate is None else base_rate,
            agreement=agreement,
            correlation=CORRELATION if correlation is None else correlation,
            power=power,
            alpha=alpha,
            comparisons=comparisons,
        )
    given = {"value": value, "base-rate": base_rate, "agreement": agreement, "correlation": correlation}
    if said := [name for name, each in given.items() if each is not None]:
        raise SpecError(f"--{said[0]} is an assumption, and a pilot says it itself; give one or the other")
    sides = sides_of(pilot, store=store)
    if len(sides) != 2:
        names = ", ".join(side.name for side in sides)
        raise SpecError(f"a pilot is two judges, these are {len(sides)}: {names}; name them as RUN:JUDGE")
    return plan_from(sides, metric, difference, power=power, alpha=alpha, comparisons=comparisons)
