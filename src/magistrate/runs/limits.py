"""Limits of a run on concurrency, time, tokens and cost, and the budget that keeps count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from magistrate._deadline import check_limit
from magistrate.engines.base import CONCURRENCY
from magistrate.errors import SpecError
from magistrate.types import Usage

DEADLINE = 300.0
GIVE_UP_AFTER = 20

Cost = Callable[[Usage], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a run may take; None is no limit.

    At most `concurrency` samples are under way, and a verdict may take `deadline` seconds. After
    `give_up_after` judgements in a row that the engine failed, nothing more is begun. Nothing is begun either
    that would, if it takes as much as the dearest one so far, spend more than `max_tokens` (asked and
    written; what a cache answered is not counted) or `max_cost` (US dollars); both count what a run spent
    before it was resumed.
    After `max_seconds` what is under way is given up, to be judged when the run is resumed, which has as many
    seconds again.
    Raises `SpecError` for values that nothing can be done within.
    """

    concurrency: int = CONCURRENCY
    deadline: float = DEADLINE
    give_up_after: int = GIVE_UP_AFTER
    max_tokens: int | None = None
    max_seconds: float | None = None
    max_cost: float | None = None

    def __post_init__(self) -> None:
        for name in ("concurrency", "give_up_after", "max_tokens"):
            value = getattr(self, name)
            if value is None and name == "max_tokens":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SpecError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in ("deadline", "max_seconds", "max_cost"):
            value = getattr(self, name)
            if value is not None or name == "deadline":
                check_limit(name, value)


UNLIMITED = Limits()


class Gate(Protocol):
    """Decides whether judgements may begin."""

    async def admitted(self, n: int) -> bool:
        """Whether `n` judgements of one sample may begin; waits until that can be told."""
        ...

    def close(self) -> None:
        """Let nothing more begin, and wake all that wait."""
        ...


@dataclass(slots=True)
class Budget:
    """What is spent of `limits`, and whether more may begin.

    `cost` says in dollars what usage costs, None where nobody knows; `spent` is what was spent before, and
    `dearest` what one judgement of it took at most. A judgement may begin where it fits beside those under
    way if each takes as much as the dearest so far; until one has spent anything, they come one at a time.
    """

    limits: Limits
    cost: Cost | None = None
    spent: Usage = field(default_factory=Usage)
    dearest: Usage = field(default_factory=Usage)
    refused: bool = False
    _dearest: dict[str, float] = field(default_factory=dict)
    _under_way: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._compare(self.dearest)

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
        self._compare(usage)
        self._under_way -= 1
        self._wake()

    def _compare(self, usage: Usage) -> None:
        """Remember what one judgement takes at most, of those that took anything."""
        for name, _, measure in self._limited:
            if (amount := measure(usage)) > 0:
                self._dearest[name] = max(self._dearest.get(name, 0.0), amount)

    @property
    def reached(self) -> str:
        """Which limit nothing more fits within, and what is spent of it, in words."""
        told = []
        if (tokens := self.limits.max_tokens) is not None:
            told.append(f"{_tokens(self.spent):,} of at most {tokens:,} tokens are spent (max_tokens)")
        if (dollars := self.limits.max_cost) is not None and self.cost is not None:
            told.append(f"${self.cost(self.spent):,.4f} of at most ${dollars:,.4f} are spent (max_cost)")
        return " and ".join(told)

    @property
    def _limited(self) -> Iterator[tuple[str, float, Cost]]:
        """What is limited, how much of it there may be, and what usage takes of it."""
        if self.limits.max_tokens is not None:
            yield "tokens", self.limits.max_tokens, _tokens
        if self.limits.max_cost is not None and self.cost is not None:
            yield "cost", self.limits.max_cost, self.cost

    def _fits(self, n: int) -> bool:
        """Whether so many more fit, as far as those before can tell."""
        for name, most, measure in self._limited:
            spent = measure(self.spent)
            if spent >= most:
                return False
            if name not in self._dearest:
                if self._under_way:
                    return False
            elif spent + self._dearest[name] * (self._under_way + n) > most:
                return False
        return True

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _tokens(usage: Usage) -> float:
    return usage.prompt + usage.generated
