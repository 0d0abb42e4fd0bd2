"""A bounded queue of background jobs, for what takes longer than a page may, and a cache."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock, Thread, current_thread
from traceback import extract_tb
from typing import Any, Generic, TypeVar, cast

from fastapi import Request

from magistrate import _logging
from magistrate.errors import MagistrateError
from magistrate.server.responses import status_of

KEPT = 16
MOST_WAITING = 16
ERROR_SECONDS = 20.0  # how long an error is kept: it may have been temporary
CLOSE_SECONDS = 5.0  # how long `close` waits for the jobs that are running
CACHE_SIZE = 64

STOPPING = "the server is stopping"
TOO_MUCH = "too much is being worked out at the moment; ask again in a while"

T = TypeVar("T")
_log = _logging.get("server")


@dataclass(frozen=True, slots=True)
class Finished(Generic[T]):
    """The result of a job, and how many seconds it took."""

    value: T
    seconds: float


@dataclass(frozen=True, slots=True)
class Pending:
    """A job without a result yet: `ahead` other jobs come before it; `done` is finished when it is."""

    ahead: int
    done: Future[None] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there is no result; `error` is what the job raised, None if the queue did not take it."""

    message: str
    error: Exception | None = None

    @property
    def status(self) -> int:
        """The HTTP status of a response that says this."""
        return 503 if self.error is None else status_of(self.error)


class JobQueue:
    """Background jobs, one for each key, with their newest `kept` results.

    At most `workers` jobs run at a time, each in a thread that exists only while there is work;
    `most_waiting` more may wait, and they start in the order in which they were submitted. Submitting a key
    again while its job is there gives that job, or its result. Results that were not asked for the longest
    are dropped first, unfinished jobs never. An error is a result, too, kept for `error_seconds` of `clock`.

    All methods may be called from any thread.
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
        self._jobs: OrderedDict[Hashable, _Job] = OrderedDict()  # asked for last comes last
        self._waiting: deque[_Job] = deque()
        self._n_running = 0
        self._threads: set[Thread] = set()
        self._closed = False
        self._lock = Lock()

    def submit(self, key: Hashable, work: Callable[[], T]) -> Finished[T] | Pending | Refused:
        """The result for this key; else its job, which calls `work`. The key says all it depends on."""
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
        """The same without starting a job: None if the key was never submitted, or was dropped."""
        with self._lock:
            return self._find(key)

    def cancel(self, key: Hashable) -> bool:
        """Take a waiting job out of the queue; False if there is none, or it is running or finished."""
        with self._lock:
            job = self._jobs.get(key)
            if job is None or job not in self._waiting:
                return False
            self._waiting.remove(job)
            del self._jobs[key]
        job.finish(Refused(STOPPING), self._clock())
        return True

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Start no more jobs; waits at most `seconds` for those that are running."""
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
        """How many jobs are running."""
        return self._n_running

    @property
    def n_unfinished(self) -> int:
        """How many jobs are running or waiting."""
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
        """What a thread does: job after job until none waits."""
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
        self.done.set_running_or_notify_cancel()  # one waiter that gives up does not end it for the others

    def finish(self, result: Finished[Any] | Refused, now: float) -> None:
        self.result, self.finished = result, now
        del self.work
        self.done.set_result(None)


def _result(work: Callable[[], Any], seconds: Callable[[], float]) -> Finished[Any] | Refused:
    try:
        return Finished(work(), seconds())
    except MagistrateError as error:
        return Refused(str(error), error.with_traceback(None))  # its frames may hold large values
    except Exception as error:
        kind = type(error).__name__
        last = extract_tb(error.__traceback__)[-1]
        _log.error("jobs.failed", reason=f"{kind}: {error}", place=f"{last.name} {last.lineno}")
        return Refused(
            f"an error in the program ({kind}); the server's log says more", error.with_traceback(None)
        )


class LRUCache:
    """At most `size` values by key; the one that was not asked for the longest is dropped first.

    All methods may be called from any thread. None is not kept.
    """

    def __init__(self, size: int = CACHE_SIZE) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> Any:
        """The value of this key; None if there is none."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: Any) -> None:
        """Keep a value, in place of the one that this key had."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._size:
                self._values.popitem(last=False)

    def get_or_make(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of this key, which `make` gives the first time. The key says all it depends on."""
        found = self.get(key)
        if found is None:
            found = make()
            if found is not None:
                self.put(key, found)
        return cast("T", found)


def jobs_of(request: Request) -> JobQueue:
    """The background jobs of the application that a request came to."""
    found: JobQueue = request.app.state.jobs
    return found
