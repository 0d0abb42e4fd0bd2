"""Retries calls to a server where that can help, within a deadline and the server's concurrency limit.

The official clients retry too, but each call by itself: they know no deadline over all attempts, do not stop
other calls while a server is overloaded, and start all calls at once. So their retries are off, and this is
the one place that repeats a call.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
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
from magistrate.engines.remote.concurrency_limiter import ConcurrencyLimiter
from magistrate.errors import EngineBusy, EngineError, EngineTimeout, InvalidOutput
from magistrate.types import Prompt, Usage

if TYPE_CHECKING:
    from magistrate.constraints import Constraint

TIMEOUT = 120.0  # seconds for a call with all its attempts, counted from its first place at the server
RETRIES = 3
BUSY_RETRIES = 8  # an overloaded server has not begun the call, and other calls are held back meanwhile
FIRST_WAIT, LONGEST_WAIT = 0.25, 8.0  # seconds before the second attempt, doubled before each further one
# Fractions of the timeout: slower answers than SOON do not raise the concurrency limit, and slower ones than
# QUICK raise it by one a round at most.
SOON, QUICK = 1 / 2, 1 / 8
FIRST = 2  # calls that a local server gets at first, unless it says how many it answers at once
MOST = 1000  # calls that are ever under way at a server
JITTER = 0.1  # of a wait that the server asked for is added at most, so that not all calls return at once

Answer = TypeVar("Answer")
Verb = TypeVar("Verb", Generation, Choice, Likelihood)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long a call may take with all its attempts, in seconds, and how often it is retried: `retries`
    times after errors, `busy_retries` times when the server says that it is overloaded."""

    timeout: float = TIMEOUT
    retries: int = RETRIES
    busy_retries: int = BUSY_RETRIES


CONNECTING = RetryPolicy(retries=1, busy_retries=3)  # for the first requests, which somebody waits for


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What happened to all calls so far.

    `attempts` were sent, `retries` of them again. `failures` are calls that ended with an error; `busy` and
    `timeouts` are attempts that met an overloaded or a slow server. `waits` are attempts that waited for a
    place or for the end of a pause, `waited` seconds together. Now `under_way` calls have one of `limit`
    places; there are never more than `most`.
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
    """One call: its place in the queue, its deadline, and what its failed attempts spent.

    `busy` counts attempts that met an overloaded server, `broken` those that failed otherwise. If `measured`,
    the time of its answer says how much the server can take.
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

    At most `concurrency` of its calls are under way at once. `server` limits the calls of all callers that
    share that server; without one, a limit is made that starts at `first` calls, at any number where None,
    and adapts. `clock` returns seconds, `sleep` waits for some, `draw` returns a number in [0, 1).
    """

    def __init__(
        self,
        who: str,
        policy: RetryPolicy,
        concurrency: int = CONCURRENCY,
        *,
        first: int | None = None,
        server: ConcurrencyLimiter | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._who, self._policy = who, policy
        self._clock, self._sleep, self._draw = clock, sleep, draw
        self._server = server or ConcurrencyLimiter(MOST, clock, first)
        self._own = ConcurrencyLimiter(concurrency, clock)
        self._counting = threading.RLock()
        self._counters = Counters(most=concurrency)

    @property
    def counters(self) -> Counters:
        """What happened to all calls so far."""
        limit = min(self._server.limit, self._counters.most)
        return replace(self._counters, under_way=self._own.taken, limit=limit)

    def sharing(self, concurrency: int) -> RetryingCaller:
        """Another caller for the same server with its own `concurrency`; both learn the server's limit."""
        return RetryingCaller(
            self._who,
            self._policy,
            concurrency,
            server=self._server,
            clock=self._clock,
            sleep=self._sleep,
            draw=self._draw,
        )

    async def call(
        self, ask: Callable[[], Awaitable[Answer]], *, measured: bool = True
    ) -> tuple[Answer, Usage]:
        """The answer of `ask`, retried after errors where that can help, and what failed attempts spent.

        With `measured` a quick answer raises the server's limit.
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
        """Wait for a place and for the end of a pause, then ask within the time that is left."""
        asked = self._clock()
        async with self._before_deadline(call):
            begun = await self._enter(call.ticket)
        try:
            if call.deadline is None:
                call.deadline = self._clock() + self._policy.timeout
            async with self._before_deadline(call):
                await self._wait_out_pause(call)
            waited = max(0.0, self._clock() - asked)
            call.attempts += 1
            self._count(attempts=1, retries=int(call.attempts > 1), waits=int(waited > 0), waited=waited)
            return await self._ask(call, ask, begun)
        finally:
            self._server.leave()
            self._own.leave()

    async def _enter(self, ticket: int) -> int:
        """Take a place among this caller's own calls, then one at the server; returns the server's round."""
        await self._own.enter(ticket)
        try:
            return await self._server.enter(ticket)
        except BaseException:
            self._own.leave()
            raise

    async def _ask(self, call: _Call, ask: Callable[[], Awaitable[Answer]], begun: int) -> Answer:
        """Ask once, and learn from the outcome how much the server can take."""
        asked = self._clock()
        try:
            async with self._before_deadline(call, asking=True):
                answer = await ask()
        except EngineError as error:
            busy = isinstance(error, EngineBusy)
            if isinstance(error, EngineBusy) and error.retry_after is not None:
                self._server.pause(error.retry_after)
            if busy or isinstance(error, EngineTimeout):
                self._count(**{"busy" if busy else "timeouts": 1})
                self._server.overloaded(begun)
            call.busy, call.broken = call.busy + busy, call.broken + (not busy)
            call.last = error
            call.spent += getattr(error, "usage", Usage(calls=1))
            raise
        took = (self._clock() - asked) / self._policy.timeout
        if call.measured and took <= SOON:
            self._server.answered(quick=took <= QUICK)
        return answer

    @asynccontextmanager
    async def _before_deadline(self, call: _Call, *, asking: bool = False) -> AsyncIterator[None]:
        """Raise `EngineTimeout` when the deadline passes inside; if the call only waited, its last error."""
        left = None if call.deadline is None else call.deadline - self._clock()
        try:
            async with asyncio.timeout(left) as limit:
                yield
        except TimeoutError as error:
            if not limit.expired():
                raise
            if call.last is not None and not asking:
                raise call.last from error
            before = f"; before that: {call.last}" if call.last is not None else ""
            late = f"{self._who} did not answer within {self._policy.timeout:g} seconds{before}"
            raise EngineTimeout(late) from error

    async def _wait_out_pause(self, call: _Call) -> None:
        """Wait as long as the server asked for. Raises `EngineBusy` where the deadline comes first."""
        while (left := self._server.pause_left) > 0:
            if call.deadline is not None and self._clock() + left >= call.deadline:
                message = f"{self._who} asks to wait {left:,.0f} seconds, longer than the call may take"
                raise EngineBusy(f"{message} ({self._policy.timeout:g} seconds)", retry_after=left)
            await self._sleep(left * (1 + JITTER * self._draw()))

    def _next_wait(self, call: _Call, error: Exception) -> float | None:
        """Seconds until the next attempt; None where the call must end with `error`."""
        if not worth_a_retry(error):
            return None
        if call.busy > self._policy.busy_retries or call.broken > self._policy.retries:
            return None
        busy = isinstance(error, EngineBusy)
        asked = error.retry_after if isinstance(error, EngineBusy) else None
        longest = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** max((call.busy if busy else call.broken) - 1, 0))
        wait = max((asked or 0.0) * (1 + JITTER * self._draw()), longest * (1 + self._draw()) / 2)
        too_late = call.deadline is not None and self._clock() + wait >= call.deadline
        return None if too_late else wait

    def _count(self, **more: float) -> None:
        with self._counting:
            now: dict[str, Any] = {name: getattr(self._counters, name) + n for name, n in more.items()}
            self._counters = replace(self._counters, **now)


def worth_a_retry(error: BaseException) -> bool:
    """Whether asking again can help: not after a refusal, nor after a complete answer that cannot be used."""
    return isinstance(error, EngineError) and error.retryable and not isinstance(error, InvalidOutput)


# --- the same for a whole engine -----------------------------------------------------------------


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
    """`engine` with retries, a deadline and a concurrency limit.

    At most `concurrency` calls (16 where None) are under way at once. The first calls are limited to `first`
    at once, to all of them where None, and the limit adapts to how the server answers. A call has `timeout`
    seconds (120 where None) for all its attempts, counted from its first place at the server. The other
    arguments are those of `RetryingCaller`.
    """
    who = f"{engine.info.name}:{engine.info.model}"
    policy = RetryPolicy(timeout=TIMEOUT if timeout is None else timeout)
    caller = RetryingCaller(
        who, policy, concurrency or CONCURRENCY, first=first, clock=clock, sleep=sleep, draw=draw
    )
    return RetryingEngine(engine, caller)


class RetryingEngine:
    """An engine whose calls go through a `RetryingCaller`; for all threads and event loops.

    `usage` of an answer also counts the attempts that failed.
    """

    def __init__(self, engine: Engine, caller: RetryingCaller) -> None:
        self._engine, self._caller = engine, caller

    @property
    def info(self) -> EngineInfo:
        """The wrapped engine's."""
        return self._engine.info

    @property
    def counters(self) -> Counters:
        """What happened to all calls so far."""
        return self._caller.counters

    def sharing(self, concurrency: int) -> RetryingEngine:
        """The same engine for another user, who has at most `concurrency` calls under way at once."""
        return RetryingEngine(self._engine, self._caller.sharing(concurrency))

    def close(self) -> None:
        """Close the wrapped engine's connections."""
        if (close := getattr(self._engine, "close", None)) is not None:
            close()

    async def count(self, prompt: Prompt) -> int:
        """As the wrapped engine."""
        return (await self._caller.call(lambda: self._engine.count(prompt), measured=False))[0]

    async def generate(
        self, prompt: Prompt, constraint: Constraint | None = None, *, sampling: Sampling = GREEDY
    ) -> Generation:
        """As the wrapped engine."""
        return await self._call(lambda: self._engine.generate(prompt, constraint, sampling=sampling))

    async def choose(
        self, prompt: Prompt, options: Sequence[Option], *, capture: Capture | None = None
    ) -> Choice:
        """As the wrapped engine."""
        return await self._call(lambda: self._engine.choose(prompt, options, capture=capture))

    async def likelihood(self, prompt: Prompt, text: str, *, capture: Capture | None = None) -> Likelihood:
        """As the wrapped engine."""
        return await self._call(lambda: self._engine.likelihood(prompt, text, capture=capture))

    async def _call(self, ask: Callable[[], Awaitable[Verb]]) -> Verb:
        answer, failed = await self._caller.call(ask)
        return answer if failed == Usage() else replace(answer, usage=answer.usage + failed)
