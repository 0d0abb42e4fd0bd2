"""`jury`: what a stored jury is worth beside its members, or several judges of a run as if they were one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from magistrate.analysis.columns import known_scoring, one_judge
from magistrate.analysis.jury import JuryReport, Pool, jury_report, votes_of_judges, votes_of_jury
from magistrate.api.stored import RunRef, StorePlace, record_of
from magistrate.errors import InputError, SpecError
from magistrate.metrics.pooling import POOLINGS, Pooling
from magistrate.store import Store
from magistrate.types import Outcome, Verdict


def jury(
    run: RunRef,
    judges: Sequence[str] = (),
    *,
    aggregate: Pooling | None = None,
    store: StorePlace | None = None,
) -> JuryReport:
    """What the jury of a run is worth: each member alone, without each, how alike their errors are.

    `judges` is one, a jury, or several of the run's judges, taken as if they were a jury; left out, the run's
    only judge or all of them. `aggregate` pools their scores in another way than the jury did (several
    judges: by the mean). Raises `SpecError` for a run or judge that is not there, and `InputError` for a
    judge that is no jury, and where nothing was judged.
    """
    if aggregate is not None and aggregate not in POOLINGS:
        raise SpecError(f"unknown aggregate {aggregate!r}; known: {', '.join(POOLINGS)}")
    record, place = record_of(run, store)
    name = record.name or record.id
    chosen = list(dict.fromkeys(judges or record.judges))
    for each in chosen:
        one_judge(record.judges, each, f"run {name}")
    with Store.open(place) as opened, opened.snapshot() as moment:
        samples = {sample.id: sample for sample in moment.samples(record.id)}
        if len(chosen) > 1:
            said = {
                each: {outcome.sample_id: outcome for outcome in moment.bare_outcomes(record.id, each)}
                for each in chosen
            }
        else:
            outcomes = {each.sample_id: each for each in moment.outcomes(record.id, judge=chosen[0])}
    n_total = max(record.n_total or 0, len(samples))
    if len(chosen) > 1:
        turned = {each: known_scoring(record.scoring.get(each), each).turned for each in chosen}
        votes, pool = votes_of_judges(samples, said, turned), Pool()
        source = f"{len(chosen)} judges of the run, as a jury"
    else:
        votes, source = votes_of_jury(samples, outcomes, chosen[0]), chosen[0]
        scoring = record.scoring.get(chosen[0])
        pool = _pool(outcomes.values(), None if scoring is None else scoring.threshold)
    if aggregate is not None:
        pool = replace(pool, aggregate=aggregate)
    return jury_report(votes, pool, run=name, source=source, n_total=n_total)


def _pool(outcomes: Iterable[Outcome], threshold: float | None) -> Pool:
    """How a jury pooled, as its verdicts say; without a verdict there is nothing to pool."""
    found = next((each.details for each in outcomes if isinstance(each, Verdict)), {})
    weights, how = found.get("weights"), found.get("aggregate", "mean")
    if how not in POOLINGS:
        raise InputError(f"the run was pooled by {how!r}, which is not known here: {', '.join(POOLINGS)}")
    return Pool(
        how,
        tuple(weights) if weights else None,
        least=found.get("least", 2),
        threshold=0.5 if threshold is None else threshold,
    )
