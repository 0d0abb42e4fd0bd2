"""Where runs are kept: an SQLite file of runs, the samples they judged and what came out."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, get_args

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import IntegrityError

import magistrate.store.queries as queries
from magistrate.errors import InputError, SpecError, StoreError
from magistrate.store.codec import dumps, recipes_body, sample_body
from magistrate.store.connect import CLOSED, explained, for_writing, open_engine, sqlite_path
from magistrate.store.lookup import LAST, WORDS_COMPARED, near, record_of, require_run, resolve, shown
from magistrate.store.records import FinishedStatus, RunRecord, Status
from magistrate.types import Outcome, Recipe, Sample
from magistrate.version import __version__

__all__ = ["FinishedStatus", "RunRecord", "Status", "Store"]

Value = TypeVar("Value")
_ID_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"
_IDS_TRIED = 100


class Store:
    """Runs in one SQLite file, created or upgraded when it is opened; a context manager.

    What a method has written is committed when it returns: `kill -9` loses nothing of it, a power cut
    at most the last moments. Several processes may use one file, readers see every commit at once and
    never wait for a writer. One `Store` is used by one thread at a time; open another for another
    thread. Every method raises `StoreError` where the file cannot be read or written, `SpecError` where
    a run or a sample is not known.
    """

    def __init__(
        self, path: Path, engine: Engine, clock: Callable[[], datetime], randomness: random.Random
    ) -> None:
        self.path = path
        self._engine = engine
        self._clock = clock
        self._randomness = randomness
        self._writer = for_writing(engine.connect())

    @classmethod
    def open(
        cls,
        place: str | os.PathLike[str],
        *,
        busy_seconds: float = 10.0,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        randomness: random.Random | None = None,
    ) -> Store:
        """The store at a path or an `sqlite:///PATH` URL; its folders are made.

        `busy_seconds` is how long a write waits for another program's; `clock` gives times with a zone;
        `randomness` draws the ends of run ids, by default the system's.
        """
        path = sqlite_path(place)
        engine = open_engine(path, busy_seconds)
        with explained(path):
            return cls(path, engine, clock, randomness or random.SystemRandom())

    def close(self) -> None:
        """Let go of the file; the store cannot be used any more."""
        self._writer.close()
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- a run as it goes -----------------------------------------------------------------------

    def create_run(
        self,
        *,
        dataset: str,
        dataset_digest: str,
        model: str,
        engine_fingerprint: str,
        recipes: Mapping[str, Recipe],
        settings: Mapping[str, Any] | None = None,
        name: str | None = None,
        n_total: int | None = None,
        tags: Iterable[str] = (),
        package_version: str = __version__,
    ) -> str:
        """A new run, `running`; the answer is its id, such as `20261121-143012-x7k2` (UTC).

        `recipes` are by judge, under the name that the judge's outcomes bear; `settings` plain values.
        Names may repeat, but not be empty or `last`.
        """
        now = self._now()
        row = {
            "name": _checked_name(name),
            "created_at": now,
            "status": "running",
            "dataset": dataset,
            "dataset_digest": dataset_digest,
            "model": model,
            "engine_fingerprint": engine_fingerprint,
            "n_total": n_total,
            "package_version": package_version,
            "recipes": recipes_body(recipes),
            "settings": dumps(dict(settings or {})),
        }
        tags = _checked_tags(tags)
        for _ in range(_IDS_TRIED):
            run_id = f"{now:%Y%m%d-%H%M%S}-{''.join(self._randomness.choices(_ID_LETTERS, k=4))}"
            with self._writing() as connection:
                if not queries.run_exists(connection, run_id):
                    queries.insert_run(connection, {**row, "id": run_id}, tags)
                    return run_id
        raise StoreError(f"no free run id was found in {_IDS_TRIED} draws; the randomness repeats itself")

    def add_samples(self, run_id: str, samples: Iterable[Sample]) -> int:
        """Append samples to a run, 500 a transaction; the answer is how many.

        `InputError` where an id repeats within the run or a value cannot be stored; chunks before that
        one stay.
        """
        added, remaining = 0, iter(samples)
        while chunk := [
            (sample.id, _sample_body(sample)) for sample in islice(remaining, queries.ROWS_AT_ONCE)
        ]:
            with explained(self.path):
                try:
                    with self._writer.begin():
                        queries.append_samples(self._writer, run_id, chunk)
                except IntegrityError as error:
                    raise self._why_no_samples(run_id, [sample_id for sample_id, _ in chunk]) from error
            added += len(chunk)
        return added

    def add_outcome(self, run_id: str, outcome: Outcome) -> None:
        """Store one outcome with its steps in one transaction, committed when this returns.

        `StoreError` where this judge has an outcome for this sample already; `InputError` where a value
        is not finite or not plain.
        """
        with explained(self.path):
            try:
                with self._writer.begin():
                    queries.insert_outcome(self._writer, run_id, outcome)
            except IntegrityError as error:
                raise self._why_no_outcome(run_id, outcome) from error
            except InputError as error:
                raise InputError(
                    f"the outcome of judge {outcome.judge!r} for sample {shown(outcome.sample_id)}: {error}"
                ) from error

    def finish_run(self, run_id: str, status: FinishedStatus, *, n_total: int | None = None) -> None:
        """The run is over, now; `n_total` replaces the planned number of samples where given."""
        if status not in get_args(FinishedStatus):
            known = ", ".join(get_args(FinishedStatus))
            raise SpecError(f"a run cannot finish as {status!r}; known: {known}")
        now = self._now()
        with self._writing() as connection:
            require_run(connection, run_id)
            queries.finish_run(connection, run_id, status, now, n_total)

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
            return queries.runs_where(connection, limit=limit, tag=tag, dataset=dataset)

    def rename(self, ref: str, name: str | None) -> RunRecord:
        """Give a run another name, or none."""
        name = _checked_name(name)
        with self._writing() as connection:
            run_id = resolve(connection, ref)
            queries.rename_run(connection, run_id, name)
            return record_of(connection, run_id)

    def tag(self, ref: str, add: Iterable[str] = (), remove: Iterable[str] = ()) -> RunRecord:
        """Add tags to a run and remove others; those it has, or has not, change nothing."""
        add, remove = _checked_tags(add), _checked_tags(remove)
        with self._writing() as connection:
            run_id = resolve(connection, ref)
            queries.change_tags(connection, run_id, add, remove)
            return record_of(connection, run_id)

    def delete(self, ref: str) -> RunRecord:
        """Delete a run, its outcomes and the samples that no other run uses; the answer is what it was."""
        with self._writing() as connection:
            record = record_of(connection, resolve(connection, ref))
            queries.delete_run(connection, record.id)
            return record

    # --- what is in a run -----------------------------------------------------------------------

    def samples(self, run_id: str) -> Iterator[Sample]:
        """A run's samples in the order they were added, as a stream over one moment's state."""
        self._check_run(run_id)
        return self._stream(lambda connection: queries.samples_of(connection, run_id))

    def sample(self, run_id: str, sample_id: str) -> Sample:
        """One sample of a run; `SpecError` lists near ids where it has none of this id."""
        with self._reading() as connection:
            require_run(connection, run_id)
            found = queries.sample_of(connection, run_id, sample_id)
            if found is None:
                known = queries.sample_ids(connection, run_id, WORDS_COMPARED)
                raise SpecError(f"run {run_id} has no sample {shown(sample_id)}; {near(sample_id, known)}")
            return found

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
            lambda connection: queries.outcomes_of(
                connection, run_id, judge=judge, sample_id=sample_id, with_steps=with_steps
            )
        )

    # --- transactions ---------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with explained(self.path), self._writer.begin():
            yield self._writer

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with explained(self.path):
            if self._writer.closed:
                raise StoreError(CLOSED)
            with self._engine.connect() as connection, connection.begin():
                yield connection

    def _stream(self, question: Callable[[Connection], Iterator[Value]]) -> Iterator[Value]:
        with self._reading() as connection:
            yield from question(connection)

    def _check_run(self, run_id: str) -> None:
        with self._reading() as connection:
            require_run(connection, run_id)

    def _now(self) -> datetime:
        now = self._clock()
        if now.tzinfo is None:
            raise InputError(
                f"the clock gave a time without a zone: {now.isoformat()}; use datetime.now(UTC)"
            )
        return now.astimezone(UTC)

    def _why_no_samples(self, run_id: str, sample_ids: Sequence[str]) -> InputError:
        with self._writer.begin():
            require_run(self._writer, run_id)
            taken = set()
            for sample_id in sample_ids:
                if sample_id in taken or queries.has_sample(self._writer, run_id, sample_id):
                    return InputError(
                        f"sample id {shown(sample_id)} is there twice; ids must differ within a run"
                    )
                taken.add(sample_id)
        return InputError("the samples were refused by the store; run again")

    def _why_no_outcome(self, run_id: str, outcome: Outcome) -> Exception:
        with self._writer.begin():
            require_run(self._writer, run_id)
            if not queries.has_sample(self._writer, run_id, outcome.sample_id):
                return SpecError(
                    f"run {run_id} has no sample {shown(outcome.sample_id)}; "
                    "add samples before their outcomes"
                )
        return StoreError(
            f"run {run_id} has an outcome of judge {outcome.judge!r} "
            f"for sample {shown(outcome.sample_id)} already"
        )


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
