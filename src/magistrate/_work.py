"""The work on one sample: its deadline, its end from outside, and what is computed only once.

Work that computes without awaiting cannot be cancelled from outside. It calls `check()` between its steps, as
every judge of this package does, which raises once the deadline is over. If your own judge computes for long
without an `await`, call it too. All of this is in context variables, so it applies in tasks and in threads
started by `asyncio.to_thread`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token
from itertools import islice
from math import inf
from threading import Lock, local
from typing import Any, Generic, TypeVar, cast

from magistrate._fork import in_child
from magistrate.errors import SpecError

T = TypeVar("T")

EVERY = 1024  # short steps between two checks
POLL = 0.05  # seconds between two checks while another thread holds a lock


class DeadlineExceeded(Exception):
    """Work took longer than its deadline; the message contains the limit."""


class Stopped(asyncio.CancelledError):
    """Work was stopped because nobody waits for it any more."""


class Deadline:
    """Limits the work in `with Deadline(seconds):` to `seconds`. `used` seconds of these are already spent.

    The clock starts on entering the block, which is possible once. Without `seconds` the work only ends
    when `stop` is called. Deadlines nest: work is subject to all deadlines around it.
    """

    def __init__(
        self, seconds: float = inf, *, used: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        self.begun = False
        self._left = seconds - used
        self._clock = clock
        self._ends = inf
        self._uncounted, self._uncounted_before = [0.0], 0.0
        self._stopped = False
        self._outer: Deadline | None = None
        self._token: Token[Deadline | None] | None = None

    def __enter__(self) -> Deadline:
        self.begun = True
        self._uncounted = _uncounted()
        self._uncounted_before = self._uncounted[0]
        self._ends = self._clock() + self._left
        self._outer = _current.get()
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _current.reset(self._token)

    @property
    def left(self) -> float:
        """Seconds left, 0 or less once it is over; before the start, all of them."""
        if not self.begun:
            return self._left
        return self._ends + self._uncounted[0] - self._uncounted_before - self._clock()

    def stop(self) -> None:
        """Make the next check raise, in any thread, because nobody waits for the work any more."""
        self._stopped = True

    def check(self) -> None:
        """Raise `Stopped` or `DeadlineExceeded` if this deadline or one around it is over."""
        each: Deadline | None = self
        while each is not None:
            if each._stopped:
                raise Stopped("the caller no longer waits for this")
            if each.left <= 0:
                raise DeadlineExceeded(f"within {each.seconds:g} seconds")
            each = each._outer


_threads = local()


def _uncounted() -> list[float]:
    """Return the `uncounted` seconds of this thread, as a list of one that grows."""
    if not hasattr(_threads, "uncounted"):
        _threads.uncounted = [0.0]
    found: list[float] = _threads.uncounted
    return found


@contextmanager
def uncounted() -> Iterator[None]:
    """Time in this block counts for no deadline of this thread's event loop, whose tasks it stops.

    A store that another program keeps locked would else end calls that are answered and paid for.
    """
    begun = time.monotonic()
    try:
        yield
    finally:
        _uncounted()[0] += time.monotonic() - begun


_alone = Lock()
_current: ContextVar[Deadline | None] = ContextVar("magistrate_deadline", default=None)


def _forget() -> None:
    """Reset after a fork: the thread that held the lock is gone."""
    global _alone
    _alone = Lock()


in_child(_forget)


def check_limit(name: str, value: float) -> None:
    """Raise `SpecError` for a limit that is not a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise SpecError(f"{name} must be a finite number above 0, got {value!r}")


def check() -> None:
    """Raise if the current work is over: `DeadlineExceeded` after its time, `Stopped` if it was stopped.

    Takes less than a microsecond; does nothing outside a `Deadline`.
    """
    if (deadline := _current.get()) is not None:
        deadline.check()


def checked(items: Iterable[T], every: int = EVERY) -> Iterator[T]:
    """Return the same items, with a `check()` before the first and before each `every`th item after it."""
    size = getattr(items, "__len__", None)
    if size is not None and size() <= every:
        check()
        return iter(items)
    return _checked(iter(items), every)


def _checked(iterator: Iterator[T], every: int) -> Iterator[T]:
    for item in iterator:
        check()
        yield item
        yield from islice(iterator, every - 1)


def alone() -> AbstractContextManager[None]:
    """Return a context for a long step without checks: only one such step runs at a time in this process.

    The interpreter runs only one anyway. In parallel all of them would end late, and none could be stopped.
    """
    return held(_alone)


@contextmanager
def held(lock: Lock | Any) -> Iterator[None]:
    """Hold a lock like `with lock:`, but check the deadline while waiting for it."""
    while not lock.acquire(timeout=POLL):
        check()
    try:
        yield
    finally:
        lock.release()


# --- values that are computed once for a sample ----------------------------------------------------

MOST_KEPT = 8  # cached values at a time; each may take many times the memory of its text

_kept: ContextVar[OrderedDict[Hashable, Any] | None] = ContextVar("magistrate_scratch", default=None)


@contextmanager
def scratch() -> Iterator[None]:
    """Cache the results of `once` until the block ends. A nested block shares the outer one's cache."""
    if _kept.get() is not None:
        yield
        return
    token = _kept.set(OrderedDict())
    try:
        yield
    finally:
        _kept.reset(token)


def once(key: Hashable, make: Callable[[], T]) -> T:
    """Return the value of `make`, cached under `key` in this `scratch`; not cached outside of one."""
    kept = _kept.get()
    if kept is None:
        return make()
    if (found := kept.get(key)) is None:
        kept[key] = found = make()
        while len(kept) > MOST_KEPT:
            kept.popitem(last=False)
    return cast("T", found)


# --- and once for a process -------------------------------------------------------------------------


class PerProcess(Generic[T]):
    """A value made by `make` once per process; a forked process leaves its parent's value alone."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: dict[int, T] = {}

    def get(self) -> T:
        """Return this process's value."""
        if (process := os.getpid()) not in self._made:
            self._made[process] = self._make()
        return self._made[process]
