"""An engine around an engine on a server: tried again where that helps, never more at once than it bears."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from magistrate.engines.base import (
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
from magistrate.engines.remote.calling import TIMEOUT, Caller, Counters, Patience
from magistrate.engines.settings import CONCURRENCY
from magistrate.types import Prompt, Usage

if TYPE_CHECKING:
    from magistrate.constraints import Constraint

Answer = TypeVar("Answer", Generation, Choice, Likelihood)


def steady(
    engine: Engine,
    *,
    concurrency: int | None = None,
    first: int | None = None,
    timeout: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    draw: Callable[[], float] = random.random,
) -> Steady:
    """`engine`, asked again where a retry can help, by no more calls at once than its server bears.

    At most `concurrency` calls (16 where None) are under way at once. A server of which nothing is known yet
    gets `first` of them, all where None, and more while its answers come soon. A call has `timeout` seconds
    (120 where None) for all its tries from when it first has a place.
    `clock` answers seconds, `sleep` waits for some, and `draw` answers a number in [0, 1).
    """
    who = f"{engine.info.name}:{engine.info.model}"
    patience = Patience(timeout=TIMEOUT if timeout is None else timeout)
    caller = Caller(
        who, patience, concurrency or CONCURRENCY, first=first, clock=clock, sleep=sleep, draw=draw
    )
    return Steady(engine, caller)


class Steady:
    """As `steady` says. One of them serves all threads and event loops that ask it."""

    def __init__(self, engine: Engine, caller: Caller) -> None:
        self._engine, self._caller = engine, caller

    @property
    def info(self) -> EngineInfo:
        """The wrapped engine's."""
        return self._engine.info

    @property
    def counters(self) -> Counters:
        """What became of all calls so far."""
        return self._caller.counters

    def sharing(self, concurrency: int) -> Steady:
        """The same engine for another user, who has at most `concurrency` calls under way at once. What the
        server bears they find out together."""
        return Steady(self._engine, self._caller.sharing(concurrency))

    def close(self) -> None:
        """Close what the wrapped engine holds open."""
        if (close := getattr(self._engine, "close", None)) is not None:
            close()

    async def count(self, prompt: Prompt) -> int:
        """As the wrapped engine."""
        return (await self._caller.answered(lambda: self._engine.count(prompt), tells=False))[0]

    async def generate(
        self, prompt: Prompt, constraint: Constraint | None = None, *, sampling: Sampling = GREEDY
    ) -> Generation:
        """As the wrapped engine; `usage` counts the tries that failed, too."""
        return await self._spent(lambda: self._engine.generate(prompt, constraint, sampling=sampling))

    async def choose(
        self, prompt: Prompt, options: Sequence[Option], *, capture: Capture | None = None
    ) -> Choice:
        """As the wrapped engine; `usage` counts the tries that failed, too."""
        return await self._spent(lambda: self._engine.choose(prompt, options, **_wish(capture)))

    async def likelihood(self, prompt: Prompt, text: str, *, capture: Capture | None = None) -> Likelihood:
        """As the wrapped engine; `usage` counts the tries that failed, too."""
        return await self._spent(lambda: self._engine.likelihood(prompt, text, **_wish(capture)))

    async def _spent(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        answer, failed = await self._caller.answered(ask)
        return answer if failed == Usage() else replace(answer, usage=answer.usage + failed)


def _wish(capture: Capture | None) -> dict[str, Capture]:
    """Named only where it is wanted, so that an engine that cannot capture need not know the word."""
    return {} if capture is None else {"capture": capture}
