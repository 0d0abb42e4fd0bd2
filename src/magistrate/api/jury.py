"""`jury`: compare a stored jury with its members, or treat several judges of a run as a jury."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from magistrate.analysis.columns import known_scoring, one_judge
from magistrate.analysis.jury import JuryReport, Pool, jury_report, votes_of_judges, votes_of_jury
from magistrate.api.stored import RunRef, StorePlace, record_of
from magistrate.errors import InputError, SpecError
from magistrate.metrics.jury import POOLINGS, Pooling
from magistrate.store import Store
from magistrate.types import Outcome, Verdict


def jury(
    run: RunRef,
    judges: Sequence[str] = (),
    *,
    aggregate: Pooling | None = None,
    store: StorePlace | None = None,
) -> JuryReport:
    """Measure the jury of a run: each member alone, the jury without each, and how correlated their errors
    are.

    `judges` is one judge that is a jury, or several of the run's judges to treat as a jury; by default the
    run's only judge or all of them. `aggregate` pools the scores in another way than the jury did (several
    judges: by the mean). Raises `SpecError` for an unknown run or judge, and `InputError` for a judge that
    is not a jury, or if nothing was judged.
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
    """Return how a jury pooled, as recorded in its verdicts. Without a verdict, the defaults are returned."""
    found = next((each.details for each in outcomes if isinstance(each, Verdict)), {})
    weights, how = found.get("weights"), found.get("aggregate", "mean")
    if how not in POOLINGS:
        raise InputError(
            f"the run combined scores by {how!r}, which this version does not know; known: "
            f"{', '.join(POOLINGS)}"
        )
    return Pool(
        how,
        tuple(weights) if weights else None,
        least=found.get("least", 2),
        threshold=0.5 if threshold is None else threshold,
    )
