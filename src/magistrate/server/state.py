"""State that the server keeps between requests: open stores, background jobs, and cached values.

A job is for work that takes too long for a page. The metrics of a finished run are computed once, in the
background, and stored. Values derived from them for one page are cached in memory.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, LifoQueue
from threading import Event, Lock, Thread, current_thread
from traceback import extract_tb
from typing import Annotated, Any, Generic, TypeVar, cast

from fastapi import Depends, Request

from magistrate import _logging
from magistrate.errors import MagistrateError, SpecError
from magistrate.report.counts import MADE_BY, RunFigures, counted
from magistrate.server.responses import status_of
from magistrate.server.roles import FindUser
from magistrate.store import Snapshot, Store
from magistrate.store.users import User

# --- open stores ------------------------------------------------------------------------------------


BUSY_SECONDS = 5.0  # how long a page waits for another program's write before it fails


class StorePool:
    """A pool of open stores at one place. An unused store is kept for the next request."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._waiting: LifoQueue[Store] = LifoQueue()

    @contextmanager
    def one(self) -> Iterator[Store]:
        """Yield an open store for the duration of the block. Raises `StoreError` if it cannot be opened."""
        try:
            store = self._waiting.get_nowait()
        except Empty:
            store = Store.open(self._place, busy_seconds=BUSY_SECONDS)
        try:
            yield store
        finally:
            self._waiting.put(store)

    def close(self) -> None:
        """Close the unused stores."""
        while True:
            try:
                self._waiting.get_nowait().close()
            except Empty:
                return


def user_finder(stores: StorePool) -> FindUser:
    """Return a function that finds the user of a token in the store."""

    def find(token: bytes) -> User | None:
        with stores.one() as store:
            return store.users.find(token)

    return find


def stores_of(request: Request) -> StorePool:
    """Return the stores of the application that handles a request."""
    found: StorePool = request.app.state.stores
    return found


def _request_store(request: Request) -> Iterator[Store]:
    with stores_of(request).one() as store:
        yield store


RequestStore = Annotated[Store, Depends(_request_store)]
"""An endpoint's own open store, for as long as the request lasts."""


# --- background jobs --------------------------------------------------------------------------------


KEPT = 16
MOST_WAITING = 16
ERROR_SECONDS = 20.0  # how long an error is kept: it may have been temporary
CLOSE_SECONDS = 5.0  # how long `close` waits for the jobs that are running
CACHE_SIZE = 64

STOPPING = "the server is stopping"
TOO_MUCH = "too much is being computed now; try again later"

T = TypeVar("T")
_log = _logging.get("server")


@dataclass(frozen=True, slots=True)
class Finished(Generic[T]):
    """The result of a job, and its duration in seconds."""

    value: T
    seconds: float


@dataclass(frozen=True, slots=True)
class Pending:
    """A job without a result yet, after `ahead` other jobs. `done` completes when it is finished."""

    ahead: int
    done: Future[None] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there is no result. `error` is the job's exception, None if the queue rejected the job."""

    message: str
    error: Exception | None = None

    @property
    def status(self) -> int:
        """The HTTP status of a response that reports this."""
        return 503 if self.error is None else status_of(self.error)


class JobQueue:
    """Background jobs, one per key, with their newest `kept` results.

    At most `workers` jobs run at a time, each in a thread that exists only while there is work.
    `most_waiting` more may wait; they start in the order of submission. Submitting a key again returns its
    existing job or result. The least recently requested results are dropped first, unfinished jobs never.
    An error is a result too, kept for `error_seconds` of `clock`.

    All methods are thread-safe.
    """

    def __init__(
        self,
        *,
        name: str = "magistrate-jobs",
        workers: int = 1,
        most_waiting: int = MOST_WAITING,
        kept: int = KEPT,
        error_seconds: float = ERROR_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._workers, self._most_waiting = name, workers, most_waiting
        self._kept, self._error_seconds, self._clock = kept, error_seconds, clock
        self._jobs: OrderedDict[Hashable, _Job] = OrderedDict()  # least recently requested first
        self._waiting: deque[_Job] = deque()
        self._n_running = 0
        self._threads: set[Thread] = set()
        self._closed = False
        self._lock = Lock()

    def submit(self, key: Hashable, work: Callable[[], T]) -> Finished[T] | Pending | Refused:
        """Return the result for this key, else its job, which calls `work`. The key determines the result."""
        with self._lock:
            found = self._find(key)
            if found is not None:
                return found
            if self._closed:
                return Refused(STOPPING)
            if self._n_running + len(self._waiting) >= self._workers + self._most_waiting:
                return Refused(TOO_MUCH)
            job = self._jobs[key] = _Job(work)
            self._waiting.append(job)
            if len(self._threads) < self._workers:
                thread = Thread(target=self._work, name=self._name, daemon=True)
                self._threads.add(thread)
                thread.start()
            return self._pending(job)

    def find(self, key: Hashable) -> Finished[Any] | Pending | Refused | None:
        """Return the result or job without starting one; None if the key is unknown or was dropped."""
        with self._lock:
            return self._find(key)

    def cancel(self, key: Hashable) -> bool:
        """Remove a waiting job from the queue; False if there is none, or it is running or finished."""
        with self._lock:
            job = self._jobs.get(key)
            if job is None or job not in self._waiting:
                return False
            self._waiting.remove(job)
            del self._jobs[key]
        job.finish(Refused(STOPPING), self._clock())
        return True

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Start no more jobs, and wait at most `seconds` for those that are running."""
        with self._lock:
            self._closed = True
            dropped, threads = list(self._waiting), list(self._threads)
            self._waiting.clear()
        for job in dropped:
            job.finish(Refused(STOPPING), self._clock())
        end = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(end - time.monotonic(), 0))

    @property
    def n_running(self) -> int:
        """The number of running jobs."""
        return self._n_running

    @property
    def n_unfinished(self) -> int:
        """The number of running and waiting jobs."""
        with self._lock:
            return self._n_running + len(self._waiting)

    def _find(self, key: Hashable) -> Finished[Any] | Pending | Refused | None:
        job = self._jobs.get(key)
        if job is None:
            return None
        if isinstance(job.result, Refused) and self._clock() - job.finished >= self._error_seconds:
            del self._jobs[key]
            return None
        self._jobs.move_to_end(key)
        return self._pending(job) if job.result is None else job.result

    def _pending(self, job: _Job) -> Pending:
        waits = job in self._waiting
        return Pending(self._waiting.index(job) + self._n_running if waits else 0, job.done)

    def _work(self) -> None:
        """Run jobs in this thread until none waits."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads.discard(current_thread())
                    return
                job = self._waiting.popleft()
                self._n_running += 1
            began = self._clock()
            result = _result(job.work, lambda: self._clock() - began)  # noqa: B023 - called at once
            with self._lock:
                self._n_running -= 1
                job.finish(result, self._clock())
                old = [key for key, each in self._jobs.items() if each.result is not None]
                for key in old[: max(len(old) - self._kept, 0)]:
                    del self._jobs[key]


class _Job:
    """The work of one key, and its result once it is finished."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.result: Finished[Any] | Refused | None = None
        self.finished = 0.0
        self.done: Future[None] = Future()
        self.done.set_running_or_notify_cancel()  # so that a waiter cannot cancel it for the others

    def finish(self, result: Finished[Any] | Refused, now: float) -> None:
        self.result, self.finished = result, now
        del self.work
        self.done.set_result(None)


def _result(work: Callable[[], Any], seconds: Callable[[], float]) -> Finished[Any] | Refused:
    try:
        return Finished(work(), seconds())
    except MagistrateError as error:
        return Refused(str(error), error.with_traceback(None))  # its frames may keep large values alive
    except Exception as error:
        kind = type(error).__name__
        last = extract_tb(error.__traceback__)[-1]
        _log.error("jobs.failed", reason=f"{kind}: {error}", place=f"{last.name} {last.lineno}")
        return Refused(f"an error in the program ({kind}); see the server's log", error.with_traceback(None))


class LRUCache:
    """At most `size` values by key; the least recently used one is dropped first.

    All methods are thread-safe. None is not stored.
    """

    def __init__(self, size: int = CACHE_SIZE) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> Any:
        """Return the value of this key, or None."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: Any) -> None:
        """Store a value, replacing an earlier one of this key."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._size:
                self._values.popitem(last=False)

    def get_or_make(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of this key, calling `make` the first time. The key must determine the value."""
        found = self.get(key)
        if found is None:
            found = make()
            if found is not None:
                self.put(key, found)
        return cast("T", found)


def jobs_of(request: Request) -> JobQueue:
    """Return the background jobs of the application that handles a request."""
    found: JobQueue = request.app.state.jobs
    return found


# --- figures of runs --------------------------------------------------------------------------------


SWEEP_SECONDS = 5.0  # interval at which stopped runs without metrics are searched
SWEEP_AT_ONCE = 20
LATEST_KEPT = 50


class RunCounter:
    """Computes the metrics of runs in the background: on request, and for any run that lacks them.

    The store keeps the metrics of stopped runs. Those of runs in progress are in `latest`.
    """

    def __init__(self, stores: StorePool) -> None:
        self._stores = stores
        self._jobs = JobQueue(name="magistrate-counter", kept=0)
        self._latest = LRUCache(LATEST_KEPT)
        self._failed: set[str] = set()
        self._stopped = Event()
        self._thread = Thread(target=self._sweep, name="magistrate-sweep", daemon=True)

    def start(self) -> None:
        """Begin to search for runs without metrics, newest first."""
        self._thread.start()

    def stop(self) -> None:
        """Stop computing; waits a while for the current run."""
        self._stopped.set()
        self._jobs.close()
        if self._thread.is_alive():
            self._thread.join(timeout=SWEEP_SECONDS)

    def ask(self, run_id: str) -> Finished[None] | Pending | Refused:
        """Request the metrics of this run."""
        return self._jobs.submit(run_id, partial(self._count, run_id))

    def latest(self, run_id: str) -> RunFigures | None:
        """Return the last computed metrics of a run, if they are recent."""
        found: RunFigures | None = self._latest.get(run_id)
        return found

    def _sweep(self) -> None:
        """Process one run at a time, so that a requested run waits for at most one other."""
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
        except Exception as error:  # an error of one run must not stop the others
            _log.warning("counter.refused", run=run_id, reason=f"{type(error).__name__}: {error}")
            self._failed.add(run_id)
            return
        if kept < found.revision and found.report.run.status != "running":
            self._failed.add(run_id)  # the store is read-only: do not compute the same run forever
        self._latest.put(run_id, found)


class RunCache:
    """Cached values computed from stored runs, by keys that determine them."""

    def __init__(self, stores: StorePool, jobs: JobQueue, counter: RunCounter) -> None:
        self.counter = counter
        self._stores = stores
        self._jobs = jobs
        self._values = LRUCache()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of this key, calling `make` the first time; None is not cached."""
        return self._values.get_or_make(key, make)

    def get_in_background(self, key: Hashable, make: Callable[[Snapshot], T]) -> T | Refused | None:
        """Return the result of `make` in a background job, or why there is none; None until it is done."""

        def work() -> T:
            with self._stores.one() as store, store.snapshot() as moment:
                return make(moment)

        found = self._jobs.submit(key, work)
        if isinstance(found, Finished):
            return found.value
        return found if isinstance(found, Refused) else None


def run_cache_of(request: Request) -> RunCache:
    """Return the cache of the application that handles a request."""
    found: RunCache = request.app.state.run_cache
    return found
