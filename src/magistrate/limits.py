"""How much a run may do at once and in all, and what of it is spent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from magistrate.errors import SpecError
from magistrate.types import Usage

CONCURRENCY = 16
DEADLINE = 300.0
GIVE_UP_AFTER = 20

Cost = Callable[[Usage], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a run may take; None is no limit.

    At most `concurrency` samples are under way, and a verdict may take `deadline` seconds. After
    `give_up_after` judgements in a row that the engine failed, nothing more is begun. Nothing is begun either
    that would, as far as the average can tell, spend more than `max_tokens` (asked and written; what a cache
    answered is not counted) or `max_cost` (US dollars); both count what a run spent before it was resumed.
    After `max_seconds` what is under way is given up, to be judged when the run is resumed.
    Raises `SpecError` for values that nothing can be done within.
    """

    concurrency: int = CONCURRENCY
    deadline: float = DEADLINE
    give_up_after: int = GIVE_UP_AFTER
    max_tokens: int | None = None
    max_seconds: float | None = None
    max_cost: float | None = None

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise SpecError(f"concurrency must be at least 1, got {self.concurrency}")
        if self.give_up_after < 1:
            raise SpecError(f"give_up_after must be at least 1, got {self.give_up_after}")
        for name in ("deadline", "max_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise SpecError(f"{name} must be more than 0 seconds, got {value}")
        for name in ("max_tokens", "max_cost"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise SpecError(f"{name} must be more than 0, got {value}")


UNLIMITED = Limits()


class Gate(Protocol):
    """Lets judgements begin, or no more."""

    async def admitted(self, n: int) -> bool:
        """Whether `n` judgements of one sample may begin; waits until that can be told."""
        ...

    def close(self) -> None:
        """Let nothing more begin, and nobody wait."""
        ...


@dataclass(slots=True)
class Budget:
    """What is spent of `limits`, and whether more may begin.

    `cost` says in dollars what usage costs, None where nobody knows; `seen` outcomes have spent `spent`. A
    judgement may begin where it fits beside those under way if each takes what one took on average so far;
    the first one is waited for.
    """

    limits: Limits
    cost: Cost | None = None
    spent: Usage = field(default_factory=Usage)
    seen: int = 0
    refused: bool = False
    _under_way: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def admitted(self, n: int) -> bool:
        """As `Gate` has it."""
        while not self.refused and not self._fits(n):
            if self._under_way == 0:
                self.refused = True
                break
            await self._changed.wait()
        if not self.refused:
            self._under_way += n
        return not self.refused

    def close(self) -> None:
        """As `Gate` has it."""
        self.refused = True
        self._wake()

    def spend(self, usage: Usage) -> None:
        """A judgement under way has ended and spent so much."""
        self.spent += usage
        self.seen += 1
        self._under_way -= 1
        self._wake()

    @property
    def reached(self) -> str:
        """Which limit nothing more fits within, and what is spent of it, in words."""
        told = []
        if (tokens := self.limits.max_tokens) is not None:
            told.append(f"{_tokens(self.spent):,} of at most {tokens:,} tokens are spent (max_tokens)")
        if (dollars := self.limits.max_cost) is not None and self.cost is not None:
            told.append(f"${self.cost(self.spent):,.4f} of at most ${dollars:,.4f} are spent (max_cost)")
        return " and ".join(told)

    def _fits(self, n: int) -> bool:
        """Whether so many more fit, as far as what was spent so far can tell."""
        limited = [(self.limits.max_tokens, _tokens), (self.limits.max_cost, self.cost)]
        for most, measure in limited:
            if most is None or measure is None:
                continue
            if not self.seen and self._under_way:
                return False
            spent = measure(self.spent)
            each = spent / self.seen if self.seen else 0.0
            if spent >= most or spent + each * (self._under_way + n) > most:
                return False
        return True

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _tokens(usage: Usage) -> float:
    return usage.prompt + usage.generated
