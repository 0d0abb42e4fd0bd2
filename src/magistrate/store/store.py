"""The store: runs, their samples and outcomes, and data sets, in an SQLite file or a PostgreSQL database."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, get_args

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

import magistrate.store.outcomes as outcomes
import magistrate.store.runs as runs
from magistrate._version import __version__
from magistrate.errors import InputError, SpecError, StoreError
from magistrate.store.codec import dumps, recipes_body, sample_body, scoring_body
from magistrate.store.connection import RunLock, explained, held, hold, open_engine, place_of
from magistrate.store.datasets import DatasetShelf
from magistrate.store.figures import KeptFigures, RunLists, keep_figures
from magistrate.store.labels import Labels
from magistrate.store.outbox import Outbox
from magistrate.store.outcome_lists import OutcomeLists
from magistrate.store.runs import (
    LAST,
    WORDS_COMPARED,
    FinishedStatus,
    RunRecord,
    near,
    record_of,
    require_run,
    resolve,
    shown,
)
from magistrate.store.sources import Sources
from magistrate.store.trace_deletion import TraceDeletion
from magistrate.store.traces import Traces
from magistrate.store.watch_figures import WatchLists
from magistrate.store.watched import Watched
from magistrate.types import Outcome, Recipe, Sample, Scoring, Usage

_ID_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"
_IDS_TRIED = 100


@dataclass(frozen=True, slots=True)
class Snapshot(RunLists, OutcomeLists, WatchLists):
    """The store at one moment, whatever is written meanwhile; valid inside the `with` that made it.

    Methods that take a run's id raise `SpecError` where there is no run of exactly this id.
    """

    _connection: Connection

    def record(self, run_id: str) -> RunRecord:
        """What is known of the run as a whole."""
        require_run(self._connection, run_id)
        return record_of(self._connection, run_id)

    def samples(self, run_id: str, damaged: list[str] | None = None) -> Iterator[Sample]:
        """A run's samples in the order they were added.

        One that is damaged is left out and named in `damaged`; without that list it raises `StoreError`.
        """
        require_run(self._connection, run_id)
        return runs.samples_of(self._connection, run_id, damaged)

    def samples_with(self, run_id: str, known: dict[str, Sample]) -> list[Sample]:
        """The same, but contents that are `known` by their keys are not read anew; the others are added."""
        require_run(self._connection, run_id)
        return runs.samples_with(self._connection, run_id, known)

    def outcomes(
        self,
        run_id: str,
        *,
        judge: str | None = None,
        sample_id: str | None = None,
        with_steps: bool = False,
        damaged: list[str] | None = None,
    ) -> Iterator[Outcome]:
        """A run's outcomes by sample, then by judge; without `with_steps` their `steps` are empty.

        One that is damaged is left out and named in `damaged`; without that list it raises `StoreError`.
        """
        require_run(self._connection, run_id)
        return outcomes.outcomes_of(
            self._connection,
            run_id,
            judge=judge,
            sample_id=sample_id,
            with_steps=with_steps,
            damaged=damaged,
        )

    def readable(
        self, run_id: str, damaged: list[str], *, judge: str | None = None, with_steps: bool = False
    ) -> tuple[dict[str, Sample], Iterator[Outcome]]:
        """A run's samples by id, and the outcomes of these; `damaged` names what is left out for being so.

        It is whole once the outcomes are read to their end.
        """
        found = {sample.id: sample for sample in self.samples(run_id, damaged)}
        said = self.outcomes(run_id, judge=judge, with_steps=with_steps, damaged=damaged)
        return found, (outcome for outcome in said if outcome.sample_id in found)

    def bare_outcomes(self, run_id: str, judge: str) -> Iterator[Outcome]:
        """A judge's outcomes by sample, with their labels, scores and codes and nothing else."""
        require_run(self._connection, run_id)
        return outcomes.bare_outcomes_of(self._connection, run_id, judge)

    def sample(self, run_id: str, sample_id: str) -> Sample:
        """One sample of a run; `SpecError` lists near ids where it has none of this id."""
        require_run(self._connection, run_id)
        found = runs.sample_of(self._connection, run_id, sample_id)
        if found is None:
            known = runs.sample_ids(self._connection, run_id, WORDS_COMPARED)
            raise SpecError(f"run {run_id} has no sample {shown(sample_id)}; {near(sample_id, known)}")
        return found


class Store(DatasetShelf):
    """Runs in one SQLite file or PostgreSQL database, created or upgraded when opened; a context manager.

    What a method has written is committed when it returns: `kill -9` loses nothing of it, a power cut
    at most the last moments. Several processes may use one store, readers see every commit at once and
    never wait for a writer. One `Store` is used by one thread at a time; open another for another
    thread. Every method raises `StoreError` where the store cannot be read or written, `SpecError` where
    a run or a sample is not known.
    """

    @classmethod
    def open(
        cls,
        place: str | os.PathLike[str],
        *,
        busy_seconds: float = 60.0,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        randomness: random.Random | None = None,
    ) -> Store:
        """The store at a path, an `sqlite:///PATH` or a `postgresql://USER:PASSWORD@HOST/DATABASE` URL.

        Folders of a path are made, a server's database is not. `busy_seconds` is how long a write waits
        for another program's; `clock` gives times with a zone; `randomness` draws the ends of run ids,
        by default the system's.
        """
        found = place_of(place)
        engine = open_engine(found, busy_seconds)
        with explained(found.shown):
            return cls(found, engine, clock, randomness or random.SystemRandom())

    @property
    def traces(self) -> Traces:
        """Spans, targets, rules and decisions of what is watched."""
        return Traces(self._writing, self._reading)

    @property
    def labels(self) -> Labels:
        """Queues of what people are to label, and what they said."""
        return Labels(self._writing, self._writing_for_good, self._reading)

    @property
    def watched(self) -> Watched:
        """How far watching is, and the states of its alerts."""
        return Watched(self._writing, self._reading)

    @property
    def trace_deletion(self) -> TraceDeletion:
        """What deletes traces with all that was made of them."""
        return TraceDeletion(self._writing, self._reading)

    @property
    def sources(self) -> Sources:
        """How far the servers were read from which spans are pulled."""
        return Sources(self._writing, self._reading)

    @property
    def outbox(self) -> Outbox:
        """What goes out to other programs."""
        return Outbox(self._writing, self._reading)

    # --- questions ------------------------------------------------------------------------------

    # --- runs as a whole ------------------------------------------------------------------------

    def find_run(self, ref: str) -> RunRecord:
        """The run of an id, of a name, of the beginning of an id, or the `last` one created.

        `SpecError` lists near ones where none is found, and all where several are.
        """
        with self._reading() as connection:
            return record_of(connection, resolve(connection, ref))

    def runs(
        self, limit: int | None = None, tag: str | None = None, dataset: str | None = None
    ) -> list[RunRecord]:
        """Runs, newest first: at most `limit`, with this tag, over the dataset of this name."""
        with self._reading() as connection:
            return runs.runs_where(connection, limit=limit, tag=tag, dataset=dataset)

    def unfinished(self, dataset_digest: str) -> list[RunRecord]:
        """Runs over the data of this digest that are not `done`, newest first."""
        with self._reading() as connection:
            return runs.runs_where(connection, unfinished_digest=dataset_digest)

    # --- what is in a run -----------------------------------------------------------------------

    def samples(self, run_id: str) -> Iterator[Sample]:
        """A run's samples in the order they were added, as a stream over one moment's state."""
        self._check_run(run_id)
        return self._stream(lambda connection: runs.samples_of(connection, run_id))

    def sample_ids(self, run_id: str) -> list[str]:
        """The ids of a run's samples, in the order they were added."""
        with self._reading() as connection:
            require_run(connection, run_id)
            return runs.sample_ids(connection, run_id)

    def samples_by_page(self, run_id: str) -> Iterator[Sample]:
        """A run's samples in their order, some at a time: nothing stays open while somebody works on them."""
        last = -1
        while True:
            with self._reading() as connection:
                require_run(connection, run_id)
                page = runs.samples_after(connection, run_id, last)
            if not page:
                return
            last = page[-1][0]
            yield from (sample for _, sample in page)

    def sample(self, run_id: str, sample_id: str) -> Sample:
        """One sample of a run; `SpecError` lists near ids where it has none of this id."""
        with self.snapshot() as moment:
            return moment.sample(run_id, sample_id)

    def outcomes(
        self,
        run_id: str,
        *,
        judge: str | None = None,
        sample_id: str | None = None,
        with_steps: bool = False,
    ) -> Iterator[Outcome]:
        """A run's outcomes in the order of its samples, then of judge names, as a stream.

        All are of one moment's state, whatever is written meanwhile. Without `with_steps` their `steps`
        are empty.
        """
        self._check_run(run_id)
        return self._stream(
            lambda connection: outcomes.outcomes_of(
                connection, run_id, judge=judge, sample_id=sample_id, with_steps=with_steps
            )
        )

    def judged(self, run_id: str) -> set[tuple[str, str]]:
        """The pairs of sample id and judge that have an outcome, of whatever kind."""
        return set(self._pairs(run_id))

    def failed(self, run_id: str) -> dict[tuple[str, str], str]:
        """The pairs of sample id and judge whose outcome is a failure, with its code."""
        return {pair: code for pair, (code, _) in self._pairs(run_id).items() if code is not None}

    def spent(self, run_id: str) -> Usage:
        """What all outcomes of a run have spent together."""
        with self._reading() as connection:
            require_run(connection, run_id)
            return outcomes.usage_of(connection, run_id)

    def dearest(self, run_id: str) -> Usage:
        """What the outcome of a run has spent that took the most tokens."""
        with self._reading() as connection:
            require_run(connection, run_id)
            return outcomes.dearest_of(connection, run_id)

    def attempts(self, run_id: str) -> dict[tuple[str, str], int]:
        """How often each pair of sample id and judge was tried, where it was more than once."""
        return {pair: attempt for pair, (_, attempt) in self._pairs(run_id).items() if attempt > 1}

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """The store at one moment, for answers that must agree with each other."""
        with self._reading() as connection:
            yield Snapshot(connection)

    def _pairs(self, run_id: str) -> dict[tuple[str, str], tuple[str | None, int]]:
        with self._reading() as connection:
            require_run(connection, run_id)
            return outcomes.pairs_of(connection, run_id)

    def _check_run(self, run_id: str) -> None:
        with self._reading() as connection:
            require_run(connection, run_id)

    def hold(self, run_id: str) -> RunLock:
        """Lock this run: one process at a time may judge it, until it releases the lock or ends.

        `StoreError` names the process that has it already.
        """
        self._check_run(run_id)
        with explained(self.shown):
            return hold(self._place, self._engine, run_id)

    def held(self, run_id: str) -> bool:
        """Whether a process is judging this run right now."""
        with explained(self.shown):
            return held(self._place, self._engine, run_id)

    def seen(self, record: RunRecord) -> RunRecord:
        """The record with its real status: a run that is `running` without a process was `killed`."""
        if record.status != "running" or self.held(record.id):
            return record
        return replace(record, status="killed")

    # --- a run as it goes -----------------------------------------------------------------------

    def create_run(
        self,
        *,
        dataset: str,
        dataset_digest: str,
        model: str,
        engine_fingerprint: str,
        recipes: Mapping[str, Recipe],
        scoring: Mapping[str, Scoring] | None = None,
        settings: Mapping[str, Any] | None = None,
        name: str | None = None,
        n_total: int | None = None,
        tags: Iterable[str] = (),
        dataset_version: str | None = None,
        package_version: str = __version__,
    ) -> str:
        """A new run, `running`; the answer is its id, such as `20261121-143012-x7k2` (UTC).

        `recipes` are by judge, under the name that the judge's outcomes bear, and so is `scoring`: how its
        scores are read, without which nothing that ranks by them can be reported; `settings` plain values;
        `dataset_version` says which stored data set was read, such as `refunds@2`. Names may repeat, but
        not be empty or `last`.
        """
        now = self._now()
        row = {
            "name": _checked_name(name),
            "created_at": now,
            "status": "running",
            "dataset": dataset,
            "dataset_digest": dataset_digest,
            "dataset_version": dataset_version,
            "model": model,
            "engine_fingerprint": engine_fingerprint,
            "n_total": n_total,
            "package_version": package_version,
            "recipes": recipes_body(recipes),
            "scoring": scoring_body(scoring or {}),
            "settings": dumps(dict(settings or {})),
        }
        tags = _checked_tags(tags)
        for _ in range(_IDS_TRIED):
            run_id = f"{now:%Y%m%d-%H%M%S}-{''.join(self._randomness.choices(_ID_LETTERS, k=4))}"
            with self._writing() as connection:
                if not runs.run_exists(connection, run_id):
                    runs.insert_run(connection, {**row, "id": run_id}, tags)
                    return run_id
        raise StoreError(f"no free run id was found in {_IDS_TRIED} draws; the randomness repeats itself")

    def add_samples(self, run_id: str, samples: Iterable[Sample]) -> int:
        """Append samples to a run, 500 a transaction; the answer is how many.

        `InputError` where an id repeats within the run or a value cannot be stored; chunks before that
        one stay.
        """
        added, remaining = 0, iter(samples)
        while chunk := [
            (sample.id, sample.label, _sample_body(sample)) for sample in islice(remaining, runs.ROWS_AT_ONCE)
        ]:
            with explained(self.shown):
                try:
                    with self._writer.begin():
                        runs.append_samples(self._writer, run_id, chunk)
                except IntegrityError as error:
                    raise self._why_no_samples(run_id, [sample_id for sample_id, _, _ in chunk]) from error
            added += len(chunk)
        return added

    def add_outcome(self, run_id: str, outcome: Outcome, *, replace_failure: bool = False) -> None:
        """Store one outcome with its steps in one transaction, committed when this returns.

        With `replace_failure`, an earlier failure of this judge for this sample gives way, and the
        outcome counts as one attempt more. `StoreError` where there is an outcome otherwise; `InputError`
        where a value is not finite or not plain.
        """
        self._add_outcomes(run_id, [outcome], replace_failure)

    def add_outcomes(self, run_id: str, outcomes: Iterable[Outcome]) -> int:
        """Store many outcomes, 500 a transaction; the answer is how many.

        Errors are those of `add_outcome`; chunks before that one stay.
        """
        added, remaining = 0, iter(outcomes)
        while chunk := list(islice(remaining, runs.ROWS_AT_ONCE)):
            self._add_outcomes(run_id, chunk)
            added += len(chunk)
        return added

    def finish_run(
        self,
        run_id: str,
        status: FinishedStatus,
        *,
        n_total: int | None = None,
        reason: str | None = None,
    ) -> None:
        """The run is over, now, for this `reason` if any.

        `n_total` replaces the planned number of samples where given.
        """
        if status not in get_args(FinishedStatus):
            known = ", ".join(get_args(FinishedStatus))
            raise SpecError(f"a run cannot finish as {status!r}; known: {known}")
        now = self._now()
        with self._writing() as connection:
            require_run(connection, run_id)
            runs.finish_run(connection, run_id, status, now, n_total, reason)

    def reopen_run(self, run_id: str) -> None:
        """The run goes on: it is `running`, has not finished, and no reason is kept why it stopped."""
        with self._writing() as connection:
            require_run(connection, run_id)
            runs.finish_run(connection, run_id, "running", None, None, None)

    def expect(self, run_id: str, n_total: int) -> None:
        """The run has so many samples to judge."""
        with self._writing() as connection:
            require_run(connection, run_id)
            runs.expect(connection, run_id, n_total)

    def add_seconds(self, run_id: str, seconds: float) -> None:
        """The run has been at work for so many more seconds."""
        with self._writing() as connection:
            require_run(connection, run_id)
            runs.add_seconds(connection, run_id, seconds)

    def replace_sample(self, run_id: str, sample: Sample) -> None:
        """A sample of the run holds something else now, as when its output was made anew."""
        body = _sample_body(sample)
        with self._writing() as connection:
            require_run(connection, run_id)
            if not runs.replace_sample(connection, run_id, sample.id, sample.label, body):
                raise SpecError(f"run {run_id} has no sample {shown(sample.id)}; add it first")

    def keep_figures(self, run_id: str, revision: int, kept: Sequence[KeptFigures]) -> bool:
        """Keep what was counted of the run at a revision; False where it has changed since, or is gone."""
        with self._writing() as connection:
            return keep_figures(connection, run_id, revision, kept)

    # --- names, tags, the end -------------------------------------------------------------------

    def rename(self, ref: str, name: str | None) -> RunRecord:
        """Give a run another name, or none."""
        name = _checked_name(name)
        with self._writing() as connection:
            run_id = resolve(connection, ref)
            runs.rename_run(connection, run_id, name)
            return record_of(connection, run_id)

    def tag(self, ref: str, add: Iterable[str] = (), remove: Iterable[str] = ()) -> RunRecord:
        """Add tags to a run and remove others; those it has, or has not, change nothing."""
        add, remove = _checked_tags(add), _checked_tags(remove)
        with self._writing() as connection:
            run_id = resolve(connection, ref)
            runs.change_tags(connection, run_id, add, remove)
            return record_of(connection, run_id)

    def delete(self, ref: str) -> RunRecord:
        """Delete a run, its outcomes and the samples that nothing else uses; the answer is what it was."""
        with self._writing() as connection:
            record = record_of(connection, resolve(connection, ref))
            runs.delete_run(connection, record.id)
            return record

    # --- how it is done, and why it was refused --------------------------------------------------

    def _add_outcomes(self, run_id: str, chunk: Sequence[Outcome], replace_failure: bool = False) -> None:
        with explained(self.shown):
            try:
                rows = [outcomes.prepared(outcome) for outcome in chunk]
                with self._writer.begin():
                    if replace_failure:
                        outcomes.replace_failures(self._writer, run_id, rows)
                    outcomes.insert_outcomes(self._writer, run_id, rows)
            except IntegrityError as error:
                raise self._why_no_outcome(run_id, chunk) from error

    def _why_no_samples(self, run_id: str, sample_ids: Sequence[str]) -> InputError:
        with self._writer.begin():
            require_run(self._writer, run_id)
            taken = set()
            for sample_id in sample_ids:
                if sample_id in taken or runs.has_sample(self._writer, run_id, sample_id):
                    return InputError(
                        f"sample id {shown(sample_id)} is there twice; ids must differ within a run"
                    )
                taken.add(sample_id)
        return InputError("the samples were refused by the store; run again")

    def _why_no_outcome(self, run_id: str, chunk: Sequence[Outcome]) -> Exception:
        with self._writer.begin():
            require_run(self._writer, run_id)
            taken = set()
            for outcome in chunk:
                sample_id, pair = outcome.sample_id, (outcome.sample_id, outcome.judge)
                if not runs.has_sample(self._writer, run_id, sample_id):
                    return SpecError(
                        f"run {run_id} has no sample {shown(sample_id)}; add samples before their outcomes"
                    )
                if pair in taken or outcomes.has_outcome(self._writer, run_id, *pair):
                    return StoreError(
                        f"run {run_id} has an outcome of judge {outcome.judge!r} "
                        f"for sample {shown(sample_id)} already"
                    )
                taken.add(pair)
        return StoreError("the outcomes were refused; run again, what was committed is kept")


def _sample_body(sample: Sample) -> str:
    try:
        return sample_body(sample)
    except InputError as error:
        raise InputError(f"sample {shown(sample.id)}: {error}") from error


def _checked_name(name: str | None) -> str | None:
    if name is not None and (not name.strip() or name == LAST):
        raise SpecError(
            f"a run cannot be named {name!r}: names hold a visible character and are not {LAST!r}"
        )
    return name


def _checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    checked = (tags,) if isinstance(tags, str) else tuple(tags)
    if not all(tag.strip() for tag in checked):
        raise SpecError(f"tags hold a visible character, got {list(checked)}")
    return checked
