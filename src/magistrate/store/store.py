"""The store: runs with samples and outcomes, and data sets, in an SQLite file or a PostgreSQL database."""

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
from magistrate.store.audit import AuditLog, log_change
from magistrate.store.codec import dumps, recipes_body, scoring_body
from magistrate.store.columns import ColumnReads
from magistrate.store.connection import RunLock, explained, held, hold, open_engine, place_of
from magistrate.store.dataset_lists import DatasetLists
from magistrate.store.datasets import DatasetShelf
from magistrate.store.figures import KeptFigures, RunLists, keep_figures
from magistrate.store.label_comments import Comments
from magistrate.store.labels import Labels
from magistrate.store.outbox import Outbox
from magistrate.store.outcome_lists import OutcomeLists
from magistrate.store.rule_edits import RuleEdits
from magistrate.store.runs import (
    LAST,
    WORDS_COMPARED,
    FinishedStatus,
    RunRecord,
    SampleRow,
    near,
    record_of,
    require_run,
    resolve,
    shown,
)
from magistrate.store.sample_search import SampleSearch
from magistrate.store.shared_runs import SharedRuns
from magistrate.store.shares import SHARES, ShareStore
from magistrate.store.trace_deletion import TraceDeletion
from magistrate.store.traces import Traces
from magistrate.store.users import Users
from magistrate.store.watch_figures import WatchLists
from magistrate.store.watched import Sources, Watched
from magistrate.types import Outcome, Recipe, Sample, Scoring, Usage

_ID_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"
_IDS_TRIED = 100


@dataclass(frozen=True, slots=True)
class Snapshot(RunLists, DatasetLists, OutcomeLists, ColumnReads, SampleSearch, WatchLists):
    """A consistent view of the store at one moment, valid inside the `with` that created it.

    Methods with a run id raise `SpecError` if there is no run of exactly this id.
    """

    _connection: Connection

    def record(self, run_id: str) -> RunRecord:
        """Return the record of the run."""
        require_run(self._connection, run_id)
        return record_of(self._connection, run_id)

    def samples(self, run_id: str, damaged: list[str] | None = None) -> Iterator[Sample]:
        """Yield a run's samples in the order they were added.

        Damaged ones are skipped and named in `damaged`. Without that list they raise `StoreError`.
        """
        require_run(self._connection, run_id)
        return runs.samples_of(self._connection, run_id, damaged)

    def samples_with(self, run_id: str, known: dict[str, Sample]) -> list[Sample]:
        """Return a run's samples. Contents in `known`, by key, are not read again; others are added to it."""
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
        """Yield a run's outcomes by sample, then by judge. Without `with_steps`, their `steps` are empty.

        Damaged ones are skipped and named in `damaged`. Without that list they raise `StoreError`.
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
        """Return a run's samples by id, and their outcomes. Damaged records are skipped and named in
        `damaged`.

        `damaged` is complete once all outcomes are read.
        """
        found = {sample.id: sample for sample in self.samples(run_id, damaged)}
        said = self.outcomes(run_id, judge=judge, with_steps=with_steps, damaged=damaged)
        return found, (outcome for outcome in said if outcome.sample_id in found)

    def bare_outcomes(self, run_id: str, judge: str) -> Iterator[Outcome]:
        """Yield a judge's outcomes by sample, with labels, scores and codes only."""
        require_run(self._connection, run_id)
        return outcomes.bare_outcomes_of(self._connection, run_id, judge)

    def sample(self, run_id: str, sample_id: str) -> Sample:
        """Return one sample of a run. `SpecError` lists similar ids if it does not exist."""
        require_run(self._connection, run_id)
        found = runs.sample_of(self._connection, run_id, sample_id)
        if found is None:
            known = runs.sample_ids(self._connection, run_id, WORDS_COMPARED)
            raise SpecError(f"run {run_id} has no sample {shown(sample_id)}; {near(sample_id, known)}")
        return found


class Store(DatasetShelf):
    """Runs in one SQLite file or PostgreSQL database, created or upgraded when opened; a context manager.

    The writes of a method are committed when it returns: `kill -9` loses none of them, a power failure at
    most the last moments. Several processes may use one store. Readers see every commit at once and never
    wait for a writer. Use a `Store` in one thread at a time; open another one for another thread. Every
    method raises `StoreError` if the store cannot be read or written, `SpecError` if a run or a sample is
    not known.
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
        """Open the store at a path, an `sqlite:///PATH` or a `postgresql://USER:PASSWORD@HOST/DATABASE`
        URL.

        Folders of a path are created, a server's database is not. `busy_seconds` is how long a write waits
        for that of another program. `clock` returns times with a zone. `randomness` draws the suffixes of
        run ids, by default from the system.
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
    def shared_runs(self) -> SharedRuns:
        """Runs that several processes judge together."""
        return SharedRuns(self._writing, self._reading)

    @property
    def labels(self) -> Labels:
        """Queues of items to label, and the labels of people."""
        return Labels(self._writing, self._reading, self._writing_for_good)

    @property
    def comments(self) -> Comments:
        """Comments of people on items of label queues."""
        return Comments(self._writing, self._reading, self._writing_for_good)

    @property
    def watched(self) -> Watched:
        """The state of watching and of its alerts."""
        return Watched(self._writing, self._reading)

    @property
    def trace_deletion(self) -> TraceDeletion:
        """Deletion of traces with everything derived from them."""
        return TraceDeletion(self._writing, self._reading)

    @property
    def sources(self) -> Sources:
        """The cursors of the servers that spans are pulled from."""
        return Sources(self._writing, self._reading)

    @property
    def users(self) -> Users:
        """The users of a server."""
        return Users(self._writing, self._reading)

    @property
    def audit(self) -> AuditLog:
        """Who changed what and when."""
        return AuditLog(self._writing, self._reading)

    @property
    def rule_edits(self) -> RuleEdits:
        """Revisions of rules that were saved on the page."""
        return RuleEdits(self._writing, self._reading)

    @property
    def outbox(self) -> Outbox:
        """Messages to other programs."""
        return Outbox(self._writing, self._reading)

    @property
    def shares(self) -> ShareStore:
        """Which shares of runs are begun and judged."""
        return ShareStore(self._writing, self._now)

    # --- runs as a whole ------------------------------------------------------------------------

    def find_run(self, ref: str) -> RunRecord:
        """Return the run with this id, name or id prefix, or the `last` one created.

        `SpecError` lists similar ones if none is found, and all if several are.
        """
        with self._reading() as connection:
            return record_of(connection, resolve(connection, ref))

    def runs(
        self, limit: int | None = None, tag: str | None = None, dataset: str | None = None
    ) -> list[RunRecord]:
        """Return runs, newest first: at most `limit`, with this tag, over the data set of this name."""
        with self._reading() as connection:
            return runs.runs_where(connection, limit=limit, tag=tag, dataset=dataset)

    def unfinished(self, dataset_digest: str) -> list[RunRecord]:
        """Return runs over the data of this digest that are not `done`, newest first."""
        with self._reading() as connection:
            return runs.runs_where(connection, unfinished_digest=dataset_digest)

    # --- contents of a run ----------------------------------------------------------------------

    def samples(self, run_id: str) -> Iterator[Sample]:
        """Yield a run's samples in the order they were added, from a consistent snapshot."""
        self._check_run(run_id)
        return self._stream(lambda connection: runs.samples_of(connection, run_id))

    def sample_ids(self, run_id: str) -> list[str]:
        """Return the ids of a run's samples, in the order they were added."""
        with self._reading() as connection:
            require_run(connection, run_id)
            return runs.sample_ids(connection, run_id)

    def samples_by_page(self, run_id: str) -> Iterator[Sample]:
        """Yield a run's samples in order, in pages, so that no transaction stays open during processing."""
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
        """Return one sample of a run. `SpecError` lists similar ids if it does not exist."""
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
        """Yield a run's outcomes in the order of its samples, then of judge names.

        They come from a consistent snapshot. Without `with_steps`, their `steps` are empty.
        """
        self._check_run(run_id)
        return self._stream(
            lambda connection: outcomes.outcomes_of(
                connection, run_id, judge=judge, sample_id=sample_id, with_steps=with_steps
            )
        )

    def judged(self, run_id: str) -> set[tuple[str, str]]:
        """Return the pairs of sample id and judge that have an outcome of any kind."""
        return set(self._pairs(run_id))

    def failed(self, run_id: str) -> dict[tuple[str, str], str]:
        """Return the pairs of sample id and judge whose outcome is a failure, with its code."""
        return {pair: code for pair, (code, _) in self._pairs(run_id).items() if code is not None}

    def spent(self, run_id: str) -> Usage:
        """Return the total usage of all outcomes of a run."""
        with self._reading() as connection:
            require_run(connection, run_id)
            return outcomes.usage_of(connection, run_id)

    def dearest(self, run_id: str) -> Usage:
        """Return the usage of the run's outcome with the most tokens."""
        with self._reading() as connection:
            require_run(connection, run_id)
            return outcomes.dearest_of(connection, run_id)

    def attempts(self, run_id: str) -> dict[tuple[str, str], int]:
        """Return the number of attempts of each pair of sample id and judge that had more than one."""
        return {pair: attempt for pair, (_, attempt) in self._pairs(run_id).items() if attempt > 1}

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Open a consistent view of the store, for queries that must agree with each other."""
        with self._reading() as connection:
            yield Snapshot(connection)

    def _pairs(self, run_id: str) -> dict[tuple[str, str], tuple[str | None, int]]:
        with self._reading() as connection:
            require_run(connection, run_id)
            return outcomes.pairs_of(connection, run_id)

    def _check_run(self, run_id: str) -> None:
        with self._reading() as connection:
            require_run(connection, run_id)

    def hold(self, run_id: str, share: int | None = None) -> RunLock:
        """Lock this run, or one share of it, so that only one process judges it, until the lock is released
        or the process ends.

        `StoreError` names the process that holds the lock already.
        """
        self._check_run(run_id)
        with explained(self.shown):
            return hold(self._place, self._engine, run_id, share)

    def held(self, run_id: str) -> bool:
        """Return whether a process is judging this run now."""
        with explained(self.shown):
            return held(self._place, self._engine, run_id)

    def seen(self, record: RunRecord) -> RunRecord:
        """Return the record with its real status: a `running` run without a process was `killed`.

        A run of which one share ended is `running` while another share is judged.
        """
        if record.status == "running":
            return record if self.held(record.id) else replace(record, status="killed")
        if SHARES in record.settings and record.status != "done" and self.held(record.id):
            return replace(record, status="running")
        return record

    # --- execution of a run ---------------------------------------------------------------------

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
        joins: Callable[[RunRecord], bool] | None = None,
    ) -> str:
        """Create a run with status `running` and return its id, such as `20261121-143012-x7k2` (UTC).

        With `joins`, the newest run over the same data for which it is true is returned instead, if any.

        `recipes` and `scoring` are by judge, under the judge's name in outcomes. `scoring` states how
        scores are read; without it no metric of scores can be reported. `settings` are plain values.
        `dataset_version` names the stored data set that was read, such as `refunds@2`. Names may repeat,
        but must not be empty or `last`.
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
                if joins is not None and (found := runs.find(connection, dataset_digest, joins)) is not None:
                    return found
                if not runs.run_exists(connection, run_id):
                    runs.insert_run(connection, {**row, "id": run_id}, tags)
                    return run_id
        raise StoreError(f"no free run id was found in {_IDS_TRIED} attempts; the random numbers repeat")

    def add_samples(self, run_id: str, samples: Iterable[Sample]) -> int:
        """Append samples to a run, 500 per transaction, and return their number.

        Raises `InputError` if an id repeats within the run or a value cannot be stored. Earlier chunks are
        kept.
        """
        added, remaining = 0, iter(samples)
        while chunk := list(islice(remaining, runs.ROWS_AT_ONCE)):
            self._add_outcomes(run_id, (), samples=[SampleRow.of(sample) for sample in chunk])
            added += len(chunk)
        return added

    def add_outcome(self, run_id: str, outcome: Outcome, *, replace_failure: bool = False) -> None:
        """Store one outcome with its steps in one transaction, committed on return.

        With `replace_failure`, it replaces an earlier failure of this judge for this sample, and counts as
        one more attempt. Raises `StoreError` if there is another outcome already; `InputError` if a value
        is not finite or not plain.
        """
        self._add_outcomes(run_id, [outcome], replace_failure)

    def add_outcomes(
        self,
        run_id: str,
        outcomes: Iterable[Outcome],
        *,
        replace_failure: bool = False,
        samples: Sequence[SampleRow] = (),
        seconds: float = 0.0,
    ) -> int:
        """Store many outcomes, 500 per transaction, and return their number.

        `samples` that the run lacks are appended in the first transaction, and `seconds` are added to its
        working time. `replace_failure` and errors are those of `add_outcome`, and of `add_samples`. Earlier
        chunks are kept.
        """
        added, remaining = 0, iter(outcomes)
        while (chunk := list(islice(remaining, runs.ROWS_AT_ONCE))) or samples or seconds:
            self._add_outcomes(run_id, chunk, replace_failure, samples, seconds)
            added, samples, seconds = added + len(chunk), (), 0.0
        return added

    def add_recorded(
        self,
        run_id: str,
        judge: str,
        recipe: Recipe,
        scoring: Scoring,
        outcomes_of_judge: Sequence[Outcome],
        settings: Mapping[str, Any],
    ) -> None:
        """Add another tool's judge to a run, with all its outcomes and more settings, in one transaction.

        Raises the same errors as `add_outcome`.
        """
        with explained(self.shown):
            try:
                rows = [outcomes.prepared(outcome) for outcome in outcomes_of_judge]
                with self._writer.begin():
                    require_run(self._writer, run_id)
                    runs.add_judge(self._writer, run_id, judge, recipe, scoring, settings)
                    for at in range(0, len(rows), runs.ROWS_AT_ONCE):
                        outcomes.insert_outcomes(self._writer, run_id, rows[at : at + runs.ROWS_AT_ONCE])
            except IntegrityError as error:
                raise self._why_no_outcome(run_id, outcomes_of_judge) from error

    def finish_run(
        self,
        run_id: str,
        status: FinishedStatus,
        *,
        n_total: int | None = None,
        reason: str | None = None,
    ) -> None:
        """Set the final status of the run, with a `reason` if any.

        `n_total` replaces the planned number of samples if given.
        """
        if status not in get_args(FinishedStatus):
            known = ", ".join(get_args(FinishedStatus))
            raise SpecError(f"a run cannot finish as {status!r}; known: {known}")
        now = self._now()
        with self._writing() as connection:
            require_run(connection, run_id)
            runs.finish_run(connection, run_id, status, now, n_total, reason)

    def reopen_run(self, run_id: str) -> None:
        """Set the run back to `running`, without an end time and reason."""
        with self._writing() as connection:
            require_run(connection, run_id)
            runs.finish_run(connection, run_id, "running", None, None, None)

    def expect(self, run_id: str, n_total: int) -> None:
        """Set the number of samples to judge."""
        with self._writing() as connection:
            require_run(connection, run_id)
            runs.change_run(connection, run_id, n_total=n_total)

    def add_seconds(self, run_id: str, seconds: float) -> None:
        """Add to the run's working time."""
        with self._writing() as connection:
            require_run(connection, run_id)
            runs.add_seconds(connection, run_id, seconds)

    def replace_sample(self, run_id: str, sample: Sample) -> None:
        """Replace the content of a sample of the run, for example when its output was generated again."""
        with self._writing() as connection:
            require_run(connection, run_id)
            if not runs.replace_sample(connection, run_id, sample):
                raise SpecError(f"run {run_id} has no sample {shown(sample.id)}; add it first")

    def keep_figures(self, run_id: str, revision: int, kept: Sequence[KeptFigures]) -> bool:
        """Store metrics computed at a revision of the run. False if it has changed since, or is gone."""
        with self._writing() as connection:
            return keep_figures(connection, run_id, revision, kept)

    # --- names, tags, deletion: `by` is who does it, for the audit log ----------------------------

    def rename(self, ref: str, name: str | None, *, by: str | None = None) -> RunRecord:
        """Set the name of a run, or remove it."""
        name = _checked_name(name)
        with self._writing() as connection:
            run_id = resolve(connection, ref)
            runs.rename_run(connection, run_id, name)
            log_change(connection, by, "rename run", run_id, self._now(), f"to {name}" if name else "no name")
            return record_of(connection, run_id)

    def tag(
        self, ref: str, add: Iterable[str] = (), remove: Iterable[str] = (), *, by: str | None = None
    ) -> RunRecord:
        """Add and remove tags of a run. Tags already present or absent are ignored."""
        add, remove = _checked_tags(add), _checked_tags(remove)
        with self._writing() as connection:
            run_id = resolve(connection, ref)
            runs.change_tags(connection, run_id, add, remove)
            changes = (*(f"+{tag}" for tag in add), *(f"-{tag}" for tag in remove))
            log_change(connection, by, "tag run", run_id, self._now(), " ".join(changes))
            return record_of(connection, run_id)

    def delete(self, ref: str, *, by: str | None = None) -> RunRecord:
        """Delete a run, its outcomes and the samples that nothing else uses, and return its record."""
        with self._writing() as connection:
            found = record_of(connection, resolve(connection, ref))
            runs.delete_run(connection, found.id)
            details = f"{found.n_outcomes:,} outcomes over {found.dataset}"
            log_change(connection, by, "delete run", found.id, self._now(), details)
            return found

    # --- writing, and reasons of rejections ------------------------------------------------------

    def _add_outcomes(
        self,
        run_id: str,
        chunk: Sequence[Outcome],
        replace_failure: bool = False,
        samples: Sequence[SampleRow] = (),
        seconds: float = 0.0,
    ) -> None:
        appended = False
        with explained(self.shown):
            try:
                rows = [outcomes.prepared(outcome) for outcome in chunk]
                with self._writer.begin():
                    if samples:
                        runs.append_samples(self._writer, run_id, samples)
                    appended = True
                    if replace_failure:
                        outcomes.replace_failures(self._writer, run_id, rows)
                    if rows:
                        outcomes.insert_outcomes(self._writer, run_id, rows)
                    if seconds:
                        runs.add_seconds(self._writer, run_id, seconds)
            except IntegrityError as error:
                if not appended:
                    raise self._why_no_samples(run_id, [row.sample_id for row in samples]) from error
                raise self._why_no_outcome(run_id, chunk) from error

    def _why_no_samples(self, run_id: str, sample_ids: Sequence[str]) -> InputError:
        with self._writer.begin():
            require_run(self._writer, run_id)
            taken = set()
            for sample_id in sample_ids:
                if sample_id in taken or runs.has_sample(self._writer, run_id, sample_id):
                    return InputError(
                        f"sample id {shown(sample_id)} is given twice; ids must differ within a run"
                    )
                taken.add(sample_id)
        return InputError("the store rejected the samples; run again")

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
                        f"run {run_id} already has an outcome of judge {outcome.judge!r} for sample "
                        f"{shown(sample_id)}"
                    )
                taken.add(pair)
        return StoreError("the store rejected the outcomes; run again, committed data is safe")


def _checked_name(name: str | None) -> str | None:
    if name is not None and (not name.strip() or name == LAST):
        raise SpecError(
            f"a run cannot be named {name!r}: a name must have a visible character and must not be {LAST!r}"
        )
    return name


def _checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    checked = (tags,) if isinstance(tags, str) else tuple(tags)
    if not all(tag.strip() for tag in checked):
        raise SpecError(f"a tag must have a visible character, got {list(checked)}")
    return checked
