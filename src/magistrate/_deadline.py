"""Deadlines and cancellation of work that computes without awaiting.

Work that computes without a pause cannot be cancelled from outside. It calls `check()` between its steps, as
every judge of this package does, which raises once the work is over. A judge of your own that computes for
long without an `await` should call it, too. The limits are in a context variable, so that they hold in tasks
and in threads that `asyncio.to_thread` starts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token
from math import inf
from threading import Lock
from typing import Any, TypeVar

from magistrate._fork import in_child
from magistrate.errors import SpecError

T = TypeVar("T")

EVERY = 1024  # small steps between two checks
POLL = 0.05  # seconds between two checks while another thread holds a lock


class DeadlineExceeded(Exception):
    """Work was not done in its time; the message says in which."""


class Stopped(asyncio.CancelledError):
    """Nobody waits for this work any more."""


class Deadline:
    """`seconds` that the work inside `with Deadline(seconds):` may take; `used` of them are gone already.

    The clock starts when the block is entered, which may happen once. Without `seconds` the work only ends
    when somebody calls `stop`. Deadlines nest: all that are around a piece of work hold for it.
    """

    def __init__(
        self, seconds: float = inf, *, used: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        self.begun = False
        self._left = seconds - used
        self._clock = clock
        self._ends = inf
        self._stopped = False
        self._outer: Deadline | None = None
        self._token: Token[Deadline | None] | None = None

    def __enter__(self) -> Deadline:
        self.begun = True
        self._ends = self._clock() + self._left
        self._outer = _current.get()
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _current.reset(self._token)

    @property
    def left(self) -> float:
        """Seconds that are left, 0 or less once it is over; all of them before it has begun."""
        return self._ends - self._clock() if self.begun else self._left

    def stop(self) -> None:
        """Let the next check raise, in whatever thread it happens: nobody waits for the work any more."""
        self._stopped = True

    def check(self) -> None:
        """Raise `Stopped` or `DeadlineExceeded` where the work is over, by this deadline or one around it."""
        each: Deadline | None = self
        while each is not None:
            if each._stopped:
                raise Stopped("nobody waits for this any more")
            if each.left <= 0:
                raise DeadlineExceeded(f"within {each.seconds:g} seconds")
            each = each._outer


_alone = Lock()
_current: ContextVar[Deadline | None] = ContextVar("magistrate_deadline", default=None)


def _forget() -> None:
    """After a fork the thread that computed alone is gone."""
    global _alone
    _alone = Lock()


in_child(_forget)


def check_limit(name: str, value: float) -> None:
    """Raise `SpecError` for a limit that nothing can be done within: no finite number of more than 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise SpecError(f"{name} must be a finite number of more than 0, got {value!r}")


def check() -> None:
    """Raise where the work at hand is over: `DeadlineExceeded` after its time, `Stopped` if it was given up.

    Takes less than a microsecond; does nothing outside of a `Deadline`.
    """
    if (deadline := _current.get()) is not None:
        deadline.check()


def checked(items: Iterable[T], every: int = EVERY) -> Iterator[T]:
    """The same items, with a `check()` before the first and then before each `every`th of them."""
    for number, item in enumerate(items):
        if number % every == 0:
            check()
        yield item


def alone() -> AbstractContextManager[None]:
    """For a step that computes long without a check: one such step at a time in this process.

    The interpreter runs one anyway; side by side all of them would end late, and none could be given up.
    """
    return held(_alone)


@contextmanager
def held(lock: Lock | Any) -> Iterator[None]:
    """As `with lock:`, for work that must not wait past its deadline."""
    while not lock.acquire(timeout=POLL):
        check()
    try:
        yield
    finally:
        lock.release()
