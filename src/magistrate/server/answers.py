"""Answers that take longer than a page may: worked out aside, one after another, and kept for whoever asks.

A page asks, shows that there is nothing yet, and looks again; whoever asks the same meanwhile waits for the
same work.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock, Thread
from traceback import extract_tb
from typing import Any, Generic, TypeVar

from fastapi import Request

from magistrate import _logging
from magistrate.errors import MagistrateError
from magistrate.server.refusals import status_of

KEPT = 16
MOST_WAITING = 16
ERROR_SECONDS = 20.0  # how long an error is kept: it may have been of the moment
LAST_SECONDS = 5.0  # how long the end of the application waits for the work under way

STOPPING = "the server is stopping"
TOO_MUCH = "too much is being worked out at the moment; ask again in a while"

T = TypeVar("T")
_log = _logging.get("server")


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What was worked out, and how long that took."""

    value: T
    seconds: float


@dataclass(frozen=True, slots=True)
class Pending:
    """Nothing yet: `ahead` other works come before this one; `done` is finished when this one is."""

    ahead: int
    done: Future[None] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there is no answer, in words; `error` is what went wrong, None where too much was asked."""

    told: str
    error: Exception | None = None

    @property
    def status(self) -> int:
        """The status of an answer that tells this."""
        return 503 if self.error is None else status_of(self.error)


class Answers:
    """At most `kept` answers by key, worked out by one thread that is there while there is work.

    `most_waiting` works may wait for their turn; the first asked is the first worked out. What is under way
    or waiting is never dropped, of what was worked out that which nobody has asked for the longest. An error
    is an answer, too, for `error_seconds`. All methods may be called from any thread.
    """

    def __init__(
        self,
        *,
        kept: int = KEPT,
        most_waiting: int = MOST_WAITING,
        error_seconds: float = ERROR_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kept, self._most_waiting = kept, most_waiting
        self._error_seconds, self._clock = error_seconds, clock
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()  # what was asked last comes last
        self._waiting: deque[_Entry] = deque()
        self._thread: Thread | None = None
        self._ended = False
        self._lock = Lock()

    def ask(self, key: Hashable, work: Callable[[], T]) -> Answer[T] | Pending | Refused:
        """The answer of this key, else `work` is done for it. A key says all that the answer depends on."""
        with self._lock:
            found = self._found(key)
            if found is not None:
                return found
            if self._ended:
                return Refused(STOPPING)
            if len(self._waiting) >= self._most_waiting:
                return Refused(TOO_MUCH)
            entry = self._entries[key] = _Entry(work)
            self._waiting.append(entry)
            if self._thread is None:
                self._thread = Thread(target=self._go, name="magistrate-answers", daemon=True)
                self._thread.start()
            return Pending(self._ahead(entry), entry.done)

    def known(self, key: Hashable) -> Answer[Any] | Pending | Refused | None:
        """The same, without any work for it: None where nobody asked or it was dropped."""
        with self._lock:
            return self._found(key)

    def close(self, seconds: float = LAST_SECONDS) -> None:
        """Work out nothing more; waits so long for what is under way."""
        with self._lock:
            self._ended = True
            dropped = list(self._waiting)
            self._waiting.clear()
            thread = self._thread
        for entry in dropped:
            entry.end(Refused(STOPPING), self._clock())
        if thread is not None:
            thread.join(seconds)

    def _found(self, key: Hashable) -> Answer[Any] | Pending | Refused | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if isinstance(entry.found, Refused) and self._clock() - entry.ended >= self._error_seconds:
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return Pending(self._ahead(entry), entry.done) if entry.found is None else entry.found

    def _ahead(self, entry: _Entry) -> int:
        """How many works come before this one: the one under way and those that were asked earlier."""
        return self._waiting.index(entry) + 1 if entry in self._waiting else 0

    def _go(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                entry = self._waiting.popleft()
            began = self._clock()
            found = _worked_out(entry.work, lambda: self._clock() - began)  # noqa: B023 - called at once
            with self._lock:
                entry.end(found, self._clock())
                old = [key for key, each in self._entries.items() if each.found is not None]
                for key in old[: max(len(old) - self._kept, 0)]:
                    del self._entries[key]


class _Entry:
    """One key's work, and what came of it once it is done."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.found: Answer[Any] | Refused | None = None
        self.ended = 0.0
        self.done: Future[None] = Future()
        self.done.set_running_or_notify_cancel()  # whoever waits and goes away does not end it for others

    def end(self, found: Answer[Any] | Refused, now: float) -> None:
        self.found, self.ended = found, now
        del self.work
        self.done.set_result(None)


def _worked_out(work: Callable[[], Any], seconds: Callable[[], float]) -> Answer[Any] | Refused:
    try:
        return Answer(work(), seconds())
    except MagistrateError as error:
        return Refused(str(error), error.with_traceback(None))  # what it leads to may be large
    except Exception as error:
        kind = type(error).__name__
        last = extract_tb(error.__traceback__)[-1]
        _log.error("answers.failed", reason=f"{kind}: {error}", place=f"{last.name} {last.lineno}")
        return Refused(
            f"an error in the program ({kind}); the server's log says more", error.with_traceback(None)
        )


def answers_of(request: Request) -> Answers:
    """The answers of the application that a request came to."""
    found: Answers = request.app.state.answers
    return found
