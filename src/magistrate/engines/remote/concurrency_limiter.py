"""Limits how many calls are under way at a server: more while it answers, fewer when it is overloaded.

Additive increase, multiplicative decrease, as TCP does it: every round of answers allows one more call, a
sign of overload halves what was under way. The level that was too much before is tried again, but rarely.
First come, first served. Calls may come from several threads and event loops, and a call that is cancelled
while it waits leaves no place taken.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

DECREASE = 0.5  # of what was under way, when the server was overloaded
CAREFUL = 8  # rounds of answers until the level that overloaded the server is tried again


@dataclass(slots=True, order=True)
class _Waiter:
    """A call that waits for a place; waiters are ordered by ticket."""

    ticket: int
    loop: asyncio.AbstractEventLoop = field(compare=False)
    admitted: asyncio.Future[None] = field(compare=False)
    has_place: bool = field(default=False, compare=False)
    gone: bool = field(default=False, compare=False)


class ConcurrencyLimiter:
    """Places for calls: `limit` of them now, between 1 and `most`; `first` at the start, `most` where None.

    A call takes a ticket, enters, and leaves. A retry enters with the same ticket, ahead of calls that came
    later. `clock` returns seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float], first: int | None = None) -> None:
        # Reentrant: garbage collection may end a forgotten call, and so free its place, while we hold it.
        self._lock = threading.RLock()
        self._clock = clock
        self._most = most
        self._limit = float(most if first is None else min(first, most))
        self._never_overloaded = True
        self._ceiling = float("inf")  # the level at which the server was overloaded last
        self._round = 0  # number of decreases so far
        self._taken = 0
        self._tickets = 0
        self._waiting: list[_Waiter] = []
        self._paused_until = -float("inf")

    @property
    def limit(self) -> int:
        """How many calls may be under way now."""
        return int(self._limit)

    @property
    def taken(self) -> int:
        """How many calls are under way."""
        return self._taken

    @property
    def waiting(self) -> int:
        """How many calls wait for a place."""
        with self._lock:
            return sum(not each.gone for each in self._waiting)

    def ticket(self) -> int:
        """A number higher than all before it."""
        with self._lock:
            self._tickets += 1
            return self._tickets

    async def enter(self, ticket: int) -> int:
        """Wait for a place and take it; `leave` frees it. Returns the round in which the call begins."""
        loop = asyncio.get_running_loop()
        with self._lock:
            waiter = _Waiter(ticket, loop, loop.create_future())
            heapq.heappush(self._waiting, waiter)
            self._admit()
        if waiter.has_place:
            return self._round
        try:
            await waiter.admitted
        except BaseException:
            with self._lock:
                waiter.gone = True
                if waiter.has_place:
                    self.leave()
            raise
        return self._round

    def leave(self) -> None:
        """Free the place."""
        with self._lock:
            self._taken -= 1
            self._admit()

    def answered(self, *, quick: bool = False) -> None:
        """Raise the limit a little after an answer, if all places were taken.

        While the server was never overloaded and all answers are `quick`, the limit doubles every round.
        """
        with self._lock:
            self._never_overloaded = self._never_overloaded and quick
            if self._taken < self.limit:
                return
            rounds = CAREFUL if self._limit + 1 >= self._ceiling else 1
            more = 1.0 if self._never_overloaded else 1 / (rounds * self._limit)
            self._limit = min(self._most, self._limit + more)
            if self._limit >= self._ceiling + 1:
                self._ceiling = float("inf")  # the server now takes more than it did

    def overloaded(self, begun: int) -> None:
        """Lower the limit because a call that began in round `begun` was too much.

        Calls that began before the last decrease tell nothing new.
        """
        with self._lock:
            self._never_overloaded = False
            if begun == self._round:
                self._ceiling = min(self._limit, float(self._taken))
                self._limit = max(1.0, self._ceiling * DECREASE)
                self._round += 1

    def pause(self, seconds: float) -> None:
        """Let no call begin for this long."""
        with self._lock:
            self._paused_until = max(self._paused_until, self._clock() + seconds)

    @property
    def pause_left(self) -> float:
        """Seconds until calls may begin again, 0 if they may now."""
        return max(0.0, self._paused_until - self._clock())

    def _admit(self) -> None:
        """Give free places to those who came first, skipping waiters whose event loop has ended."""
        while self._waiting and self._taken < self.limit:
            waiter = heapq.heappop(self._waiting)
            if waiter.gone:
                continue
            try:
                waiter.loop.call_soon_threadsafe(_notify, waiter.admitted)
            except RuntimeError:
                continue
            waiter.has_place = True
            self._taken += 1


def _notify(admitted: asyncio.Future[None]) -> None:
    if not admitted.done():
        admitted.set_result(None)
