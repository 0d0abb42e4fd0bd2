"""Retry calls to a server when that can help, with a deadline and an adaptive concurrency limit.

The official clients retry too, but each call on its own: they have no deadline over all attempts, do not
hold back other calls while a server is overloaded, and start all calls at once. So their retries are
disabled, and this is the only place that repeats a call.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from magistrate.engines.base import (
    CONCURRENCY,
    GREEDY,
    Capture,
    Choice,
    Engine,
    EngineInfo,
    Generation,
    Likelihood,
    Option,
    Sampling,
)
from magistrate.errors import EngineBusy, EngineError, EngineTimeout, InvalidOutput
from magistrate.types import Prompt, Usage

if TYPE_CHECKING:
    from magistrate.constraints import Constraint

TIMEOUT = 120.0  # seconds for a call with all its attempts, counted from its first place at the server
RETRIES = 3
BUSY_RETRIES = 8  # an overloaded server has not started the call, and other calls are held back meanwhile
FIRST_WAIT, LONGEST_WAIT = 0.25, 8.0  # seconds before the second attempt, doubled before each further one
# Fractions of the timeout: answers slower than SOON do not raise the concurrency limit, and answers slower
# than QUICK raise it by at most one per round.
SOON, QUICK = 1 / 2, 1 / 8
FIRST = 2  # concurrent calls to a local server at first, unless it reports how many it answers at once
MAX_CALLS = 1000  # the most concurrent calls to a server
DECREASE = 0.5  # factor for the concurrency after an overload
CAREFUL = 8  # rounds of answers until the level that overloaded the server is tried again
JITTER = 0.1  # added to a requested wait at most, as a fraction, so that not all calls return at once

Answer = TypeVar("Answer")
Verb = TypeVar("Verb", Generation, Choice, Likelihood)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Limits of a call: `timeout` in seconds over all its attempts, at most `retries` after errors and
    `busy_retries` when the server is overloaded."""

    timeout: float = TIMEOUT
    retries: int = RETRIES
    busy_retries: int = BUSY_RETRIES


CONNECTING = RetryPolicy(retries=1, busy_retries=3)  # for the first requests, while somebody waits


# --- the number of concurrent calls --------------------------------------------------------------


@dataclass(slots=True, order=True)
class _Waiter:
    """A call that waits for a place; waiters are ordered by ticket."""

    ticket: int
    loop: asyncio.AbstractEventLoop = field(compare=False)
    admitted: asyncio.Future[None] = field(compare=False)
    has_place: bool = field(default=False, compare=False)
    cancelled: bool = field(default=False, compare=False)


class ConcurrencyLimiter:
    """Places for concurrent calls, currently `limit` (1 to `most`); at the start `first`, or `most` if None.

    Additive increase, multiplicative decrease, as in TCP: every round of answers allows one more call, a
    sign of overload halves the number of calls. A level that was too high before is tried again, but
    rarely. A call takes a ticket, enters, and leaves. Calls are served first come, first served, and a
    retry enters with the ticket of its first attempt. Calls may come from several threads and event loops,
    and a call that is cancelled while it waits takes no place. `clock` returns seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float], first: int | None = None) -> None:
        # Reentrant: garbage collection may end a forgotten call, and so free its place, while we hold it.
        self._lock = threading.RLock()
        self._clock = clock
        self._most = most
        self._limit = float(most if first is None else min(first, most))
        self._never_overloaded = True
        self._ceiling = float("inf")  # the level at which the server was last overloaded
        self._round = 0  # number of decreases so far
        self._taken = 0
        self._tickets = 0
        self._waiting: list[_Waiter] = []
        self._paused_until = -float("inf")

    @property
    def limit(self) -> int:
        """How many calls may run now."""
        return int(self._limit)

    @property
    def taken(self) -> int:
        """How many calls are running."""
        return self._taken

    @property
    def waiting(self) -> int:
        """How many calls wait for a place."""
        with self._lock:
            return sum(not waiter.cancelled for waiter in self._waiting)

    def ticket(self) -> int:
        """Return a number higher than all before it."""
        with self._lock:
            self._tickets += 1
            return self._tickets

    async def enter(self, ticket: int) -> int:
        """Wait for a place and take it; `leave` frees it. Returns the round in which the call starts."""
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
                waiter.cancelled = True
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
                self._ceiling = float("inf")  # the server now accepts more than it did

    def overloaded(self, begun: int) -> None:
        """Lower the limit because a call that started in round `begun` overloaded the server.

        Calls that started before the last decrease are ignored.
        """
        with self._lock:
            self._never_overloaded = False
            if begun == self._round:
                self._ceiling = min(self._limit, float(self._taken))
                self._limit = max(1.0, self._ceiling * DECREASE)
                self._round += 1

    def pause(self, seconds: float) -> None:
        """Let no call start for this many seconds."""
        with self._lock:
            self._paused_until = max(self._paused_until, self._clock() + seconds)

    @property
    def pause_left(self) -> float:
        """Seconds until calls may start again, 0 if they may now."""
        return max(0.0, self._paused_until - self._clock())

    def _admit(self) -> None:
        """Give free places to the earliest waiters, skipping those whose event loop has ended."""
        while self._waiting and self._taken < self.limit:
            waiter = heapq.heappop(self._waiting)
            if waiter.cancelled:
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


# --- one caller ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Counters of all calls so far.

    `attempts` counts requests sent and `retries` the repeated ones among them. `failures` are calls that
    ended with an error; `busy` and `timeouts` are attempts that met an overloaded or a slow server. `waits`
    are attempts that waited for a place or for the end of a pause, for `waited` seconds in total. Currently
    `under_way` calls have one of `limit` places; there are never more than `most`.
    """

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
    """One call: its place in the queue, its deadline, and the usage of its failed attempts.

    `busy` counts attempts that met an overloaded server, `broken` those that failed otherwise. If
    `measured`, the time of its answer is used to adapt the limit.
    """

    ticket: int
    measured: bool = True
    deadline: float | None = None
    attempts: int = 0
    busy: int = 0
    broken: int = 0
    spent: Usage = field(default_factory=Usage)
    last: Exception | None = None


class RetryingCaller:
    """Makes calls to one server, from all threads and event loops. `who` names the server in errors.

    At most `concurrency` of its calls run at once. The server's limit, which callers made by `sharing` have
    in common, starts at `first` calls (`MAX_CALLS` if None) and adapts. `clock` returns seconds, `sleep`
    waits for some, and `draw` returns a number in [0, 1).
    """

    def __init__(
        self,
        who: str,
        policy: RetryPolicy,
        concurrency: int = CONCURRENCY,
        *,
        first: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._who, self._policy = who, policy
        self._clock, self._sleep, self._draw = clock, sleep, draw
        self._server = ConcurrencyLimiter(MAX_CALLS, clock, first)
        self._own = ConcurrencyLimiter(concurrency, clock)
        self._counting = threading.RLock()
        self._counters = Counters(most=concurrency)

    @property
    def counters(self) -> Counters:
        """Counters of all calls so far."""
        limit = min(self._server.limit, self._counters.most)
        return replace(self._counters, under_way=self._own.taken, limit=limit)

    def sharing(self, concurrency: int) -> RetryingCaller:
        """Return a caller for the same server with its own `concurrency`; both adapt the server's limit."""
        other = copy(self)
        other._own = ConcurrencyLimiter(concurrency, self._clock)
        other._counters = Counters(most=concurrency)
        return other

    async def call(
        self, ask: Callable[[], Awaitable[Answer]], *, measured: bool = True
    ) -> tuple[Answer, Usage]:
        """Return the answer of `ask`, retried when that can help, and the usage of failed attempts.

        With `measured`, a quick answer raises the server's limit.
        """
        self._count(calls=1)
        call = _Call(self._server.ticket(), measured)
        while True:
            try:
                return await self._attempt(call, ask), call.spent
            except Exception as error:
                wait = self._next_wait(call, error)
                if wait is None:
                    self._count(failures=1)
                    raise
            await self._sleep(wait)

    # --- one call --------------------------------------------------------------------------------

    async def _attempt(self, call: _Call, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Wait for a place and for the end of a pause, then ask within the remaining time."""
        arrived = self._clock()
        async with self._before_deadline(call):
            in_round = await self._enter(call.ticket)
        try:
            if call.deadline is None:
                call.deadline = self._clock() + self._policy.timeout
            async with self._before_deadline(call):
                await self._wait_out_pause(call)
            waited = max(0.0, self._clock() - arrived)
            call.attempts += 1
            self._count(attempts=1, retries=int(call.attempts > 1), waits=int(waited > 0), waited=waited)
            return await self._ask(call, ask, in_round)
        finally:
            self._server.leave()
            self._own.leave()

    async def _enter(self, ticket: int) -> int:
        """Take a place among this caller's own calls, then one at the server; return the server's round."""
        await self._own.enter(ticket)
        try:
            return await self._server.enter(ticket)
        except BaseException:
            self._own.leave()
            raise

    async def _ask(self, call: _Call, ask: Callable[[], Awaitable[Answer]], in_round: int) -> Answer:
        """Ask once, and adapt the server's limit to the outcome."""
        start = self._clock()
        try:
            async with self._before_deadline(call, sent=True):
                answer = await ask()
        except EngineError as error:
            busy, late = isinstance(error, EngineBusy), isinstance(error, EngineTimeout)
            if (pause := _retry_after(error)) is not None:
                self._server.pause(pause)
            if busy or late:
                self._server.overloaded(in_round)
            self._count(busy=busy, timeouts=late)
            call.busy, call.broken = call.busy + busy, call.broken + (not busy)
            call.last = error
            call.spent += getattr(error, "usage", Usage(calls=1))
            raise
        took = (self._clock() - start) / self._policy.timeout
        if call.measured and took <= SOON:
            self._server.answered(quick=took <= QUICK)
        return answer

    @asynccontextmanager
    async def _before_deadline(self, call: _Call, *, sent: bool = False) -> AsyncIterator[None]:
        """Raise `EngineTimeout` if the deadline passes inside, or the last error if the call only waited."""
        left = None if call.deadline is None else call.deadline - self._clock()
        try:
            async with asyncio.timeout(left) as limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            if call.last is not None and not sent:
                raise call.last from error
            before = f"; before that: {call.last}" if call.last is not None else ""
            late = f"{self._who} did not answer within {self._policy.timeout:g} seconds{before}"
            raise EngineTimeout(late) from error

    async def _wait_out_pause(self, call: _Call) -> None:
        """Wait as long as the server requested. Raises `EngineBusy` if the deadline comes first."""
        while (left := self._server.pause_left) > 0:
            if call.deadline is not None and self._clock() + left >= call.deadline:
                message = (
                    f"{self._who} asks to wait {left:,.0f} seconds, which is longer than the time "
                    "limit of the call"
                )
                raise EngineBusy(f"{message} ({self._policy.timeout:g} seconds)", retry_after=left)
            await self._sleep(left * (1 + JITTER * self._draw()))

    def _next_wait(self, call: _Call, error: Exception) -> float | None:
        """Return the seconds until the next attempt, or None if the call must end with `error`."""
        if not worth_a_retry(error):
            return None
        if call.busy > self._policy.busy_retries or call.broken > self._policy.retries:
            return None
        failed = call.busy if isinstance(error, EngineBusy) else call.broken
        longest = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** max(failed - 1, 0))
        asked_for = (_retry_after(error) or 0.0) * (1 + JITTER * self._draw())
        wait = max(asked_for, longest * (1 + self._draw()) / 2)
        too_late = call.deadline is not None and self._clock() + wait >= call.deadline
        return None if too_late else wait

    def _count(self, **more: float) -> None:
        with self._counting:
            now: dict[str, Any] = {name: getattr(self._counters, name) + n for name, n in more.items()}
            self._counters = replace(self._counters, **now)


def worth_a_retry(error: BaseException) -> bool:
    """Return whether a retry can help: not after a refusal, nor after a complete but unusable answer."""
    return isinstance(error, EngineError) and error.retryable and not isinstance(error, InvalidOutput)


def _retry_after(error: Exception) -> float | None:
    """Return the seconds that the server asked to wait, or None."""
    return error.retry_after if isinstance(error, EngineBusy) else None


# --- retries for a whole engine ------------------------------------------------------------------


def with_retries(
    engine: Engine,
    *,
    concurrency: int | None = None,
    first: int | None = None,
    timeout: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    draw: Callable[[], float] = random.random,
) -> RetryingEngine:
    """Wrap `engine` with retries, a deadline and a concurrency limit.

    At most `concurrency` calls (16 if None) run at once. At first only `first` calls may run at once (all
    of them if None), and the limit adapts to the server's answers. A call has `timeout` seconds (120 if
    None) for all its attempts, counted from when it first gets a place at the server. The other arguments
    are as in `RetryingCaller`.
    """
    who = f"{engine.info.name}:{engine.info.model}"
    policy = RetryPolicy(timeout=TIMEOUT if timeout is None else timeout)
    caller = RetryingCaller(
        who, policy, concurrency or CONCURRENCY, first=first, clock=clock, sleep=sleep, draw=draw
    )
    return RetryingEngine(engine, caller)


class RetryingEngine:
    """An engine whose calls go through a `RetryingCaller`; for all threads and event loops.

    `usage` of an answer includes the failed attempts.
    """

    def __init__(self, engine: Engine, caller: RetryingCaller) -> None:
        self._engine, self._caller = engine, caller

    @property
    def info(self) -> EngineInfo:
        """The wrapped engine's info."""
        return self._engine.info

    @property
    def counters(self) -> Counters:
        """Counters of all calls so far."""
        return self._caller.counters

    def sharing(self, concurrency: int) -> RetryingEngine:
        """Return the same engine for another user with at most `concurrency` concurrent calls."""
        return RetryingEngine(self._engine, self._caller.sharing(concurrency))

    def close(self) -> None:
        """Close the wrapped engine's connections."""
        if (close := getattr(self._engine, "close", None)) is not None:
            close()

    async def count(self, prompt: Prompt) -> int:
        """Count as the wrapped engine does, with retries."""
        return (await self._caller.call(lambda: self._engine.count(prompt), measured=False))[0]

    async def generate(
        self, prompt: Prompt, constraint: Constraint | None = None, *, sampling: Sampling = GREEDY
    ) -> Generation:
        """Generate as the wrapped engine does, with retries."""
        return await self._call(lambda: self._engine.generate(prompt, constraint, sampling=sampling))

    async def choose(
        self, prompt: Prompt, options: Sequence[Option], *, capture: Capture | None = None
    ) -> Choice:
        """Choose as the wrapped engine does, with retries."""
        return await self._call(lambda: self._engine.choose(prompt, options, capture=capture))

    async def likelihood(self, prompt: Prompt, text: str, *, capture: Capture | None = None) -> Likelihood:
        """Compute the likelihood as the wrapped engine does, with retries."""
        return await self._call(lambda: self._engine.likelihood(prompt, text, capture=capture))

    async def _call(self, ask: Callable[[], Awaitable[Verb]]) -> Verb:
        answer, failed = await self._caller.call(ask)
        return answer if failed == Usage() else replace(answer, usage=answer.usage + failed)
