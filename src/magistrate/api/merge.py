"""Join the shares of a run that were judged into stores of their own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from magistrate.api.run import Run
from magistrate.errors import SpecError, StoreError
from magistrate.runs.resume import is_shared, recipe_differences, scoring_differences
from magistrate.store import RunRecord, Store
from magistrate.store.connection import exists
from magistrate.store.shares import SHARES, RunShares, shares_of

StorePlace = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Merged:
    """The joined run, its shares, and how many outcomes were not in it before."""

    run: Run
    shares: RunShares
    added: int


@dataclass(frozen=True, slots=True)
class _Source:
    """The newest run in shares of a store."""

    store: Store
    record: RunRecord
    shares: RunShares


def merge(stores: Sequence[StorePlace], to: StorePlace) -> Merged:
    """Join the newest run in shares of each store into one run in the store `to`, created if needed.

    The run is `done` if all of its shares are judged. Merging the same stores again adds nothing; others can
    be merged into the same run later. An outcome that the run has already is kept. Raises `SpecError` if a
    store has no such run, or one of other data, judges or number of shares, and `StoreError` if a run is
    being judged.
    """
    if not stores:
        raise SpecError("there is nothing to merge; give the stores of the shares")
    with ExitStack() as opened:
        sources = [_source(opened, place) for place in stores]
        for each in sources[1:]:
            _check_same(sources[0], each)
        target = opened.enter_context(Store.open(to))
        run_id = _joined_run(target, sources)
        with target.hold(run_id):
            added = sum(_copy(each, target, run_id) for each in sources)
            shares = shares_of(target.find_run(run_id))
            assert shares is not None, "the run is made with shares"
            if added or target.find_run(run_id).status != "done":
                target.shares.finish(run_id, (), "done")
        return Merged(Run(run_id, target.place), shares, added)


def _source(opened: ExitStack, place: StorePlace) -> _Source:
    if not exists(place):
        raise SpecError(f"there is no store at {os.fspath(place)}")
    store = opened.enter_context(Store.open(place))
    for record in store.runs():
        if (shares := shares_of(record)) is None:
            continue
        if store.held(record.id):
            raise StoreError(f"store {store.shown}: run {record.id} is being judged; wait for it or stop it")
        return _Source(store, record, shares)
    raise SpecError(f"store {store.shown} has no run that was judged in shares (--shard)")


def _check_same(first: _Source, other: _Source) -> None:
    """Raise `SpecError` with the differences if two shares are not of the same run."""
    a, b = first.record, other.record
    found = []
    if a.dataset_digest != b.dataset_digest:
        then, now = (f"{each.dataset} ({each.dataset_digest[:12]}…)" for each in (a, b))
        found.append(f"its data are {now}, not {then}")
    if first.shares.of != other.shares.of:
        found.append(f"it is in {other.shares.of} shares, not {first.shares.of}")
    found += [*recipe_differences(a.recipes, b.recipes), *scoring_differences(a.scoring, b.scoring)]
    if found:
        with_which = f"run {a.id} of {first.store.shown}"
        raise SpecError(
            f"run {b.id} of {other.store.shown} cannot be merged with {with_which}: {'; '.join(found)}"
        )


def _joined_run(target: Store, sources: Sequence[_Source]) -> str:
    """Return the run to copy into: an unfinished one, one that has these sources already, or a new one."""
    first, ids = sources[0], {each.record.id for each in sources}
    record, of = first.record, first.shares.of

    def suits(candidate: RunRecord) -> bool:
        shares = shares_of(candidate)
        if shares is None or not is_shared(candidate, record.recipes, record.scoring, of):
            return False
        return candidate.status != "done" or candidate.id in ids or bool(ids & shares.merged.keys())

    return target.create_run(
        dataset=record.dataset,
        dataset_digest=record.dataset_digest,
        dataset_version=record.dataset_version,
        model=record.model,
        engine_fingerprint=record.engine_fingerprint,
        recipes=record.recipes,
        scoring=record.scoring,
        name=record.name,
        n_total=record.n_total,
        tags=record.tags,
        settings={**record.settings, SHARES: RunShares(of=of).plain()},
        package_version=record.package_version,
        joins=suits,
    )


def _copy(source: _Source, target: Store, run_id: str) -> int:
    """Copy the samples and outcomes that the run lacks. Returns the number of outcomes."""
    theirs, store = source.record, source.store
    if (store.place, theirs.id) == (target.place, run_id):
        return 0
    stored = set(target.sample_ids(run_id))
    target.add_samples(run_id, (each for each in store.samples_by_page(theirs.id) if each.id not in stored))
    judged = target.judged(run_id)
    outcomes = store.outcomes(theirs.id, with_steps=True)
    added = target.add_outcomes(
        run_id, (each for each in outcomes if (each.sample_id, each.judge) not in judged)
    )
    target.shares.merge(run_id, source.shares, theirs.id, theirs.seconds or 0.0)
    return added
