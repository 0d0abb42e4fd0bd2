"""Where runs are kept: an SQLite file or a PostgreSQL database of runs, their samples and what came out."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from magistrate.store import locks
from magistrate.store.connect import explained, open_engine, place_of
from magistrate.store.datasets import DatasetShelf, DatasetVersion
from magistrate.store.locks import RunLock
from magistrate.store.reading import Reading
from magistrate.store.records import FinishedStatus, RunRecord, Status
from magistrate.store.snapshot import Snapshot
from magistrate.store.writing import Writing

__all__ = ["DatasetVersion", "FinishedStatus", "RunLock", "RunRecord", "Snapshot", "Status", "Store"]


class Store(Reading, Writing, DatasetShelf):
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

    def hold(self, run_id: str) -> RunLock:
        """The right to judge this run: one process has it at a time, until it lets go or ends.

        `StoreError` names the process that has it already.
        """
        self._check_run(run_id)
        with explained(self.shown):
            return locks.hold(self._place, self._engine, run_id)

    def held(self, run_id: str) -> bool:
        """Is a process judging this run right now?"""
        with explained(self.shown):
            return locks.held(self._place, self._engine, run_id)

    def seen(self, record: RunRecord) -> RunRecord:
        """The record as things are: a run that says it is `running` and that nobody is at was `killed`."""
        if record.status != "running" or self.held(record.id):
            return record
        return replace(record, status="killed")
