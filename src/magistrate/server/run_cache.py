"""Figures of runs for the pages: counted in the background, and cached.

Figures of a finished run are counted once, in the background, and kept in the store; what is derived from
them for one page is cached in memory, or computed in the background if it takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from threading import Event, Thread
from typing import TypeVar

from fastapi import Request

from magistrate import _logging
from magistrate.errors import MagistrateError, SpecError
from magistrate.report.counts import MADE_BY, Counted, counted
from magistrate.server.jobs import Finished, JobQueue, LRUCache, Pending, Refused
from magistrate.server.store_pool import StorePool
from magistrate.store import Snapshot

SWEEP_SECONDS = 5.0  # between two looks for runs that have stopped and were not counted
SWEEP_AT_ONCE = 20
LATEST_KEPT = 50

T = TypeVar("T")
_log = _logging.get("server")


class RunCounter:
    """Counts the figures of runs in the background: those asked for, and any that nobody has counted yet.

    The store keeps the figures of runs that have stopped. Those of a run under way are in `latest`.
    """

    def __init__(self, stores: StorePool) -> None:
        self._stores = stores
        self._jobs = JobQueue(name="magistrate-counter", kept=0)
        self._latest = LRUCache(LATEST_KEPT)
        self._failed: set[str] = set()
        self._stopped = Event()
        self._thread = Thread(target=self._sweep, name="magistrate-sweep", daemon=True)

    def start(self) -> None:
        """Begin to look for runs that nobody has counted, newest first."""
        self._thread.start()

    def stop(self) -> None:
        """Count nothing more; waits a while for the run that is being counted."""
        self._stopped.set()
        self._jobs.close()
        if self._thread.is_alive():
            self._thread.join(timeout=SWEEP_SECONDS)

    def ask(self, run_id: str) -> Finished[None] | Pending | Refused:
        """Let this run be counted."""
        return self._jobs.submit(run_id, partial(self._count, run_id))

    def latest(self, run_id: str) -> Counted | None:
        """What was counted of a run last, if that was not long ago."""
        found: Counted | None = self._latest.get(run_id)
        return found

    def _sweep(self) -> None:
        """One uncounted run at a time, so that a run that somebody asks for waits for one other at most."""
        while not self._stopped.is_set():
            run_id = self._uncounted()
            job = None if run_id is None else self.ask(run_id)
            if isinstance(job, Pending):
                job.done.result()
            else:
                self._stopped.wait(SWEEP_SECONDS)

    def _uncounted(self) -> str | None:
        try:
            with self._stores.one() as store, store.snapshot() as moment:
                waiting = moment.uncounted(MADE_BY, SWEEP_AT_ONCE + len(self._failed))
        except MagistrateError as error:
            _log.warning("counter.waits", reason=str(error))
            return None
        return next((run_id for run_id in waiting if run_id not in self._failed), None)

    def _count(self, run_id: str) -> None:
        try:
            with self._stores.one() as store:
                found = counted(store, run_id)
                with store.snapshot() as moment:
                    kept, _ = moment.figures(run_id, MADE_BY)
        except SpecError:
            return  # the run was deleted
        except Exception as error:  # one run must not end the counting of all others
            _log.warning("counter.refused", run=run_id, reason=f"{type(error).__name__}: {error}")
            self._failed.add(run_id)
            return
        if kept < found.revision and found.report.run.status != "running":
            self._failed.add(run_id)  # the store cannot be written to: do not count the same run for ever
        self._latest.put(run_id, found)


class RunCache:
    """Values that are computed from stored runs, by keys that say all they depend on."""

    def __init__(self, stores: StorePool, jobs: JobQueue, counter: RunCounter) -> None:
        self.counter = counter
        self._stores = stores
        self._jobs = jobs
        self._values = LRUCache()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of this key, which `make` gives the first time; None is not kept."""
        return self._values.get_or_make(key, make)

    def get_in_background(self, key: Hashable, make: Callable[[Snapshot], T]) -> T | Refused | None:
        """What `make` gives in a background job, or why it gives nothing; None until it is done."""

        def work() -> T:
            with self._stores.one() as store, store.snapshot() as moment:
                return make(moment)

        found = self._jobs.submit(key, work)
        if isinstance(found, Finished):
            return found.value
        return found if isinstance(found, Refused) else None


def run_cache_of(request: Request) -> RunCache:
    """The cache of the application that a request came to."""
    found: RunCache = request.app.state.run_cache
    return found
