"""Calls to a server: tried again where that helps, never more at once than the server bears."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from magistrate.engines.remote.room import Room
from magistrate.engines.settings import CONCURRENCY
from magistrate.errors import EngineBusy, EngineError, EngineTimeout, InvalidOutput
from magistrate.types import Usage

if TYPE_CHECKING:
    from tenacity import RetryCallState

TIMEOUT = 120.0  # seconds for a call, all its tries together, from when it first has a place
RETRIES = 3
BUSY_RETRIES = 8  # a server that says so has not begun, and others are kept away from it meanwhile
FIRST_WAIT, LONGEST_WAIT = 0.25, 8.0  # seconds before a second try, doubled before every further one
# Of the time that a call has: where answers take longer, no more calls are let in, or only one more a round.
SOON, QUICK = 1 / 2, 1 / 8
FIRST = 2  # calls that a server of one's own gets at first, where it does not say how many it answers at once
MOST = 1000  # calls that are ever under way at a server
JITTER = 0.1  # of a wait that the server asked for is added at most, so that not all come back at once

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a call may take with all its tries, in seconds, and how often it is tried again: after an
    error, and where the server said that too much was asked at once."""

    timeout: float = TIMEOUT
    retries: int = RETRIES
    busy_retries: int = BUSY_RETRIES


LOOKING = Patience(retries=1, busy_retries=3)  # for a first look at a server, which somebody waits for


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What became of all calls so far: `attempts` were sent, `retries` of them again; `failures` are calls
    that ended with an error, `busy` and `timeouts` attempts that the server was too slow or too crowded for.
    `waits` are attempts that waited for a place or out a pause, `waited` seconds together. Now `under_way`
    calls have one of `limit` places, of `most` at most."""

    calls: int = 0
    attempts: int = 0
    retries: int = 0
    failures: int = 0
    busy: int = 0
    timeouts: int = 0
    waits: int = 0
    waited: float = 0.0
    under_way: int = 0
    limit: int = 0
    most: int = 0


@dataclass(slots=True)
class _Call:
    """One call on its way: its place in the queue, its last moment, and what its failed attempts spent.

    `busy` is how often the server said that too much was asked at once, `broken` how often it failed
    otherwise. With `tells` its answer says how much the server bears.
    """

    ticket: int
    tells: bool = True
    until: float | None = None
    attempts: int = 0
    busy: int = 0
    broken: int = 0
    failed: Usage = field(default_factory=Usage)
    last: Exception | None = None


class Caller:
    """Makes calls to one server, for all threads and event loops. `who` names it in errors.

    At most `concurrency` of its calls are under way at once, and of all that `share` the server no more than
    this bears: that is found out from `first` calls on, from any number where None, or known to those who
    share the places of `server` already. `clock` answers seconds, `sleep` waits for some, and `draw` answers
    a number in [0, 1).
    """

    def __init__(
        self,
        who: str,
        patience: Patience,
        concurrency: int = CONCURRENCY,
        *,
        first: int | None = None,
        server: Room | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._who, self._patience = who, patience
        self._clock, self._sleep, self._draw = clock, sleep, draw
        self._room = server or Room(MOST, clock, first)  # what the server bears, whoever asks
        self._share = Room(concurrency, clock)  # what this caller may take of it
        self._counting = threading.RLock()
        self._counted = Counters(most=concurrency)

    @property
    def counters(self) -> Counters:
        """What became of all calls so far."""
        return replace(
            self._counted, under_way=self._share.taken, limit=min(self._room.limit, self._counted.most)
        )

    def sharing(self, concurrency: int) -> Caller:
        """A caller of its own for the same server: at most `concurrency` of its calls are under way at once,
        and what one learns of the server the other knows."""
        return Caller(
            self._who,
            self._patience,
            concurrency,
            server=self._room,
            clock=self._clock,
            sleep=self._sleep,
            draw=self._draw,
        )

    async def answered(
        self, ask: Callable[[], Awaitable[Answer]], *, tells: bool = True
    ) -> tuple[Answer, Usage]:
        """What `ask` answers, asked anew after an error that a retry can help; and what the tries that failed
        have spent. With `tells` a quick answer says that the server bears more."""
        from tenacity import AsyncRetrying, retry_if_exception

        self._count(calls=1)
        call = _Call(self._room.ticket(), tells)
        retrying = AsyncRetrying(
            retry=retry_if_exception(worth_a_retry),
            wait=lambda state: self._wait(call, state),
            stop=lambda state: self._is_over(call, state),
            sleep=self._sleep,
            reraise=True,
        )
        try:
            return await retrying(self._attempt, call, ask), call.failed
        except Exception:
            self._count(failures=1)
            raise

    # --- one call --------------------------------------------------------------------------------

    async def _attempt(self, call: _Call, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """One try: a place first, and the end of a pause, then the answer within what time is left."""
        asked = self._clock()
        async with self._in_time(call):
            begun = await self._enter(call.ticket)
        try:
            if call.until is None:
                call.until = self._clock() + self._patience.timeout
            async with self._in_time(call):
                await self._sit_out(call)
            waited = max(0.0, self._clock() - asked)
            call.attempts += 1
            self._count(attempts=1, retries=int(call.attempts > 1), waits=int(waited > 0), waited=waited)
            return await self._answered(call, ask, begun)
        finally:
            self._room.leave()
            self._share.leave()

    async def _enter(self, ticket: int) -> int:
        """Wait for a place among one's own calls, then at the server; answers the round of this one."""
        await self._share.enter(ticket)
        try:
            return await self._room.enter(ticket)
        except BaseException:
            self._share.leave()
            raise

    async def _answered(self, call: _Call, ask: Callable[[], Awaitable[Answer]], begun: int) -> Answer:
        """The answer of one try; what is learnt from it is how much the server bears."""
        asked = self._clock()
        try:
            async with self._in_time(call, asking=True):
                answer = await ask()
        except EngineError as error:
            self._learn(error, begun)
            busy = isinstance(error, EngineBusy)
            call.busy, call.broken = call.busy + busy, call.broken + (not busy)
            call.last = error
            call.failed += getattr(error, "usage", Usage(calls=1))
            raise
        took = (self._clock() - asked) / self._patience.timeout
        if call.tells and took <= SOON:
            self._room.eased(quick=took <= QUICK)
        return answer

    @asynccontextmanager
    async def _in_time(self, call: _Call, *, asking: bool = False) -> AsyncIterator[None]:
        """Raise `EngineTimeout` where the call's time ends in here, what failed last where it only waited."""
        left = None if call.until is None else call.until - self._clock()
        try:
            async with asyncio.timeout(left) as limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            if call.last is not None and not asking:
                raise call.last from error
            before = f"; before that: {call.last}" if call.last is not None else ""
            late = f"{self._who} did not answer within {self._patience.timeout:g} seconds{before}"
            raise EngineTimeout(late) from error

    async def _sit_out(self, call: _Call) -> None:
        """Wait until the server wants to be asked again. Raises `EngineBusy` where that is too late."""
        while (left := self._room.pause_left) > 0:
            if call.until is not None and self._clock() + left >= call.until:
                told = f"{self._who} asks to wait {left:,.0f} seconds, longer than the call may take"
                raise EngineBusy(f"{told} ({self._patience.timeout:g} seconds)", retry_after=left)
            await self._sleep(left * (1 + JITTER * self._draw()))

    def _learn(self, error: EngineError, begun: int) -> None:
        """What an error says of how much the server bears."""
        if isinstance(error, EngineBusy):
            self._count(busy=1)
            if error.retry_after is not None:
                self._room.pause(error.retry_after)
        elif isinstance(error, EngineTimeout):
            self._count(timeouts=1)
        else:
            return
        self._room.crowded(begun)

    def _wait(self, call: _Call, state: RetryCallState) -> float:
        """Seconds until the next try."""
        error = None if state.outcome is None else state.outcome.exception()
        asked = error.retry_after if isinstance(error, EngineBusy) else None
        times = call.busy if isinstance(error, EngineBusy) else call.broken
        longest = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** max(times - 1, 0))
        return max((asked or 0.0) * (1 + JITTER * self._draw()), longest * (1 + self._draw()) / 2)

    def _is_over(self, call: _Call, state: RetryCallState) -> bool:
        """Whether no further try is to be made, because there were enough or the time would be over."""
        if call.busy > self._patience.busy_retries or call.broken > self._patience.retries:
            return True
        return call.until is not None and self._clock() + state.upcoming_sleep >= call.until

    def _count(self, **more: float) -> None:
        with self._counting:
            now: dict[str, Any] = {name: getattr(self._counted, name) + n for name, n in more.items()}
            self._counted = replace(self._counted, **now)


def worth_a_retry(error: BaseException) -> bool:
    """Whether asking again can help: not where the answer came and could not be used, or was refused."""
    return isinstance(error, EngineError) and error.retryable and not isinstance(error, InvalidOutput)
