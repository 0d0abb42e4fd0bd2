"""How many calls may be under way at a server: more while it answers, fewer when it is too much for it.

Additive increase, multiplicative decrease, as networks do it: every round of answers makes room for one more,
a sign of too much halves what was under way. What was too much before is tried again, but rarely.
First come, first served; calls may come from several threads and event loops, and what is given up while it
waits leaves no place taken.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

BACK = 0.5  # of what was under way, when that was too much
CAREFUL = 8  # rounds of answers until as many as were too much are let in again


@dataclass(slots=True, order=True)
class _Waiter:
    """Who waits for a place, in the order of tickets."""

    ticket: int
    loop: asyncio.AbstractEventLoop = field(compare=False)
    admitted: asyncio.Future[None] = field(compare=False)
    has_place: bool = field(default=False, compare=False)
    gone: bool = field(default=False, compare=False)


class Room:
    """Places for calls: `limit` of them now, at least 1 and at most `most`; `first` of them at first.

    A call takes a ticket, enters, and leaves; one that is tried again enters with the same ticket, before
    those that came later. `clock` answers seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float], first: int | None = None) -> None:
        # Collecting garbage may end a forgotten call, and with it free a place, at any moment: also in here.
        self._lock = threading.RLock()
        self._clock = clock
        self._most = most
        self._limit = float(most if first is None else min(first, most))
        self._unknown = True  # nothing was ever too much
        self._ceiling = float("inf")  # so many were too much
        self._round = 0  # how often it became fewer
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
        """How many are under way."""
        return self._taken

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        with self._lock:
            return sum(not each.gone for each in self._waiting)

    def ticket(self) -> int:
        """A number that is higher than all before it."""
        with self._lock:
            self._tickets += 1
            return self._tickets

    async def enter(self, ticket: int) -> int:
        """Wait for a place and take it, to be freed by `leave`; answers the round that the call begins in."""
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

    def eased(self, *, quick: bool = False) -> None:
        """A call was answered: where all places are taken, there may be a little more, and while nothing was
        ever too much and all answers are `quick`, twice as many after every round of them."""
        with self._lock:
            self._unknown = self._unknown and quick
            if self._taken < self.limit:
                return
            rounds = CAREFUL if self._limit + 1 >= self._ceiling else 1
            more = 1.0 if self._unknown else 1 / (rounds * self._limit)
            self._limit = min(self._most, self._limit + more)
            if self._limit >= self._ceiling + 1:
                self._ceiling = float("inf")  # it bears more than it did

    def crowded(self, begun: int) -> None:
        """A call of the round `begun` was too much. What began before the last decrease tells nothing new."""
        with self._lock:
            self._unknown = False
            if begun == self._round:
                self._ceiling = min(self._limit, float(self._taken))
                self._limit = max(1.0, self._ceiling * BACK)
                self._round += 1

    def pause(self, seconds: float) -> None:
        """Let nobody begin for so long."""
        with self._lock:
            self._paused_until = max(self._paused_until, self._clock() + seconds)

    @property
    def pause_left(self) -> float:
        """Seconds until anybody may begin, 0 where anybody may."""
        return max(0.0, self._paused_until - self._clock())

    def _admit(self) -> None:
        """Give free places to those who came first. Whose loop has ended, nobody waits for."""
        while self._waiting and self._taken < self.limit:
            waiter = heapq.heappop(self._waiting)
            if waiter.gone:
                continue
            try:
                waiter.loop.call_soon_threadsafe(_tell, waiter.admitted)
            except RuntimeError:
                continue
            waiter.has_place = True
            self._taken += 1


def _tell(admitted: asyncio.Future[None]) -> None:
    if not admitted.done():
        admitted.set_result(None)
