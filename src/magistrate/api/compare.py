"""`compare` judges of stored runs, and compute the sample size of a comparison: `samples_needed`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from magistrate.analysis import comparison
from magistrate.analysis.columns import one_judge
from magistrate.analysis.comparison import Comparison, Side
from magistrate.analysis.power import CORRELATION, Plan, plan, plan_from
from magistrate.api.run import Run
from magistrate.api.stored import Judged, RunRef, StorePlace, judged_at, record_of
from magistrate.datasets.rows import unread_of
from magistrate.errors import InputError, SpecError
from magistrate.metrics.paired import COMPARED
from magistrate.store import RunRecord, Snapshot, Store
from magistrate.types import Sample


def compare(
    *runs: RunRef,
    judges: Sequence[str] = (),
    metrics: Sequence[str] = (),
    store: StorePlace | None = None,
    seed: int = 0,
) -> Comparison:
    """Compare judges on the samples that all of them have judged, and return which one is better.

    A run may be named as `RUN:JUDGE`. A single run compares its judges. Of several runs, each contributes
    the judges named in `judges`, or its only one. `metrics` are the metrics asked about (by default
    balanced accuracy, or accuracy if all samples are of one class). Their p values are corrected together,
    and only they can show that a judge is better. The other metrics are exploratory. Raises `SpecError` for
    unknown names, `InputError` if nothing can be compared.
    """
    if unknown := [name for name in metrics if name not in COMPARED]:
        raise SpecError(f"unknown metric {unknown[0]!r}; known: {', '.join(COMPARED)}")
    return comparison.compare(sides_of(runs, judges, store), metrics, seed=seed)


def sides_of(
    runs: Sequence[RunRef], judges: Sequence[str] = (), store: StorePlace | None = None
) -> list[Side]:
    """Return the selected judges, each with a unique name. Raises `SpecError` for fewer than two."""
    chosen = [each for run in runs for each in _chosen(run, judges, len(runs) == 1, store)]
    _check([(record, judge) for _, record, judge in chosen])
    contents: dict[str, Sample] = {}
    read: list[Judged] = []
    for place, those in groupby(chosen, key=lambda each: each[0]):
        with Store.open(place) as opened, opened.snapshot() as moment:
            read += judged_at(moment, [(record, judge) for _, record, judge in those], contents)
    return _sides(read)


def sides_at(moment: Snapshot, chosen: Sequence[tuple[RunRecord, str]]) -> list[Side]:
    """Return the selected judges of runs of one store at one moment, like `sides_of`."""
    _check(chosen)
    return _sides(judged_at(moment, chosen))


def _check(chosen: Sequence[tuple[RunRecord, str]]) -> None:
    """Raise `SpecError` unless these are at least two judges without duplicates."""
    if len(chosen) < 2:
        had = f"{chosen[0][1]} of {chosen[0][0].name or chosen[0][0].id}" if chosen else "none"
        raise SpecError(f"a comparison needs at least two judges, got only {had}; add another run or judge")
    counts = Counter((record.id, judge) for record, judge in chosen)
    if twice := [judge for (_, judge), count in counts.items() if count > 1]:
        raise SpecError(f"{twice[0]} is given twice; a judge cannot be compared with itself")


def _sides(read: Sequence[Judged]) -> list[Side]:
    return [
        Side(
            name,
            side.record.id,
            side.judge,
            side.n_total,
            side.samples,
            side.outcomes,
            side.scoring,
            unread_of(side.record.settings),
        )
        for name, side in zip(_names(read), read, strict=True)
    ]


def _chosen(
    run: RunRef, judges: Sequence[str], alone: bool, store: StorePlace | None
) -> list[tuple[StorePlace, RunRecord, str]]:
    """Return the selected judges of one run, with their store."""
    record, named, place = _parsed(run, store)
    title = f"run {record.name or record.id}"
    if named is not None:
        return [(place, record, one_judge(record.judges, named, title))]
    if judges:
        wanted = [judge for judge in judges if judge in record.judges]
        if not wanted or (alone and len(wanted) < len(judges)):
            lost = next(judge for judge in judges if judge not in record.judges)
            known = ", ".join(record.judges) or "none"
            raise SpecError(f"{title} has no judge {lost!r}; it has: {known}")
        return [(place, record, judge) for judge in wanted]
    if alone:
        return [(place, record, judge) for judge in record.judges]
    return [(place, record, one_judge(record.judges, None, title))]


def _parsed(run: RunRef, store: StorePlace | None) -> tuple[RunRecord, str | None, StorePlace]:
    """Return the run and the judge of `RUN:JUDGE`; names of runs and judges may contain colons too."""
    try:
        record, place = record_of(run, store)
        return record, None, place
    except SpecError:
        if isinstance(run, Run) or ":" not in run:
            raise
        for at in (at for at, letter in enumerate(run) if letter == ":"):
            try:
                record, place = record_of(run[:at], store)
            except SpecError:
                continue
            return record, run[at + 1 :], place
        raise


def _names(sides: Sequence[Judged]) -> list[str]:
    """Return names for the sides: the judge, the run or both, whichever makes them unique."""
    by_judge = [side.judge for side in sides]
    by_run = [side.name for side in sides]
    both = [f"{side.name}:{side.judge}" for side in sides]
    for names in (by_judge, by_run, both):
        if len(set(names)) == len(names):
            return names
    return [f"{side.record.id}:{side.judge}" for side in sides]


# --- samples needed -------------------------------------------------------------------------------


VALUE, BASE_RATE = 0.7, 0.5
LEAST_DIFFERENCE = 0.001  # smaller differences give impractically large numbers of samples


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
    """Return how many labelled samples show a `difference` in `metric` with this power, at this level.

    This is for one metric of one pair, chosen in advance. With more `comparisons` at once, the level is
    divided by their number, as in the first step of Holm's correction. The computation uses either
    assumptions about the judges (`value` .7, `base_rate` .5, independent errors), or a `pilot` of two runs,
    or of one with two judges. Raises `SpecError` for options that cannot be combined, `InputError` for
    impossible values.
    """
    if difference < LEAST_DIFFERENCE:
        raise InputError(f"the difference must be at least {LEAST_DIFFERENCE:g}, got {difference:g}")
    unused = {"auroc": ("agreement", agreement)}.get(metric, ("correlation", correlation))
    if not pilot and unused[1] is not None:
        other = "is about labels, but auroc is about scores; use --correlation"
        told = other if metric == "auroc" else f"is only for auroc, not for {metric}; use --agreement"
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
        raise SpecError(f"--{said[0]} is an assumption that a pilot measures; give one or the other")
    sides = sides_of(pilot, store=store)
    if len(sides) != 2:
        names = ", ".join(side.name for side in sides)
        raise SpecError(f"a pilot needs two judges, got {len(sides)}: {names}; give them as RUN:JUDGE")
    return plan_from(sides, metric, difference, power=power, alpha=alpha, comparisons=comparisons)
