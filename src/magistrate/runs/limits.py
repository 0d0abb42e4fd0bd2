"""Limits of a run on concurrency, time, calls, tokens and cost, and the budget that keeps count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from magistrate._work import check_limit
from magistrate.engines.base import CONCURRENCY
from magistrate.errors import SpecError
from magistrate.types import Usage

DEADLINE = 300.0
GIVE_UP_AFTER = 20

Cost = Callable[[Usage], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a run. None means no limit.

    At most `concurrency` samples are in progress at once, and a verdict may take `deadline` seconds. After
    `give_up_after` engine failures in a row no new judgement begins. Nor does one begin that, if it costs as
    much as the most expensive one so far, would exceed `max_calls`, `max_tokens` (prompt and generated) or
    `max_cost` (US dollars). Answers from the cache are not counted. All three include what the run spent
    before it was resumed.
    After `max_seconds` the work in progress is cancelled; a resumed run judges it, and has `max_seconds`
    again. Raises `SpecError` for values out of range.
    """

    concurrency: int = CONCURRENCY
    deadline: float = DEADLINE
    give_up_after: int = GIVE_UP_AFTER
    max_calls: int | None = None
    max_tokens: int | None = None
    max_seconds: float | None = None
    max_cost: float | None = None

    def __post_init__(self) -> None:
        for name in ("concurrency", "give_up_after", "max_calls", "max_tokens"):
            value = getattr(self, name)
            if value is None and name.startswith("max_"):
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
        """Return whether `n` judgements of one sample may begin. Waits until this can be decided."""
        ...

    def close(self) -> None:
        """Admit nothing more, and wake all waiting callers."""
        ...


@dataclass(slots=True)
class Budget:
    """Tracks what is spent of `limits`, and decides whether more judgements may begin.

    `cost` returns the dollars that usage costs, None if no price is known. `spent` is the usage before this
    start, and `dearest` the greatest usage of one judgement in it. A judgement may begin if it fits beside
    those in progress, assuming that each takes as much as the most expensive one so far. Until one has spent
    anything, samples are judged one at a time.
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
        """Implements `Gate.admitted`."""
        while not self.refused and not self._fits(n):
            if self._under_way == 0:
                self.refused = True
                break
            await self._changed.wait()
        if not self.refused:
            self._under_way += n
        return not self.refused

    def close(self) -> None:
        """Implements `Gate.close`."""
        self.refused = True
        self._wake()

    def spend(self, usage: Usage) -> None:
        """Record the usage of a judgement that has ended."""
        self.spent += usage
        self._compare(usage)
        self._under_way -= 1
        self._wake()

    def _compare(self, usage: Usage) -> None:
        """Update the maximum usage of one judgement. A usage of zero is ignored."""
        for name, _, measure in self._limited:
            if (amount := measure(usage)) > 0:
                self._dearest[name] = max(self._dearest.get(name, 0.0), amount)

    @property
    def reached(self) -> str:
        """A message that states the limits and how much of each is spent."""
        told = []
        if (calls := self.limits.max_calls) is not None:
            told.append(f"{self.spent.calls:,} of at most {calls:,} calls have been made (max_calls)")
        if (tokens := self.limits.max_tokens) is not None:
            told.append(f"{_tokens(self.spent):,} of at most {tokens:,} tokens have been used (max_tokens)")
        if (dollars := self.limits.max_cost) is not None and self.cost is not None:
            told.append(
                f"${self.cost(self.spent):,.4f} of at most ${dollars:,.4f} have been spent (max_cost)"
            )
        return " and ".join(told)

    @property
    def _limited(self) -> Iterator[tuple[str, float, Cost]]:
        """The name, the maximum and the measure of usage of each limited quantity."""
        if self.limits.max_calls is not None:
            yield "calls", self.limits.max_calls, _calls
        if self.limits.max_tokens is not None:
            yield "tokens", self.limits.max_tokens, _tokens
        if self.limits.max_cost is not None and self.cost is not None:
            yield "cost", self.limits.max_cost, self.cost

    def _fits(self, n: int) -> bool:
        """Return whether `n` more judgements fit, estimated from the most expensive one so far."""
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


def _calls(usage: Usage) -> float:
    return usage.calls


def _tokens(usage: Usage) -> float:
    return usage.prompt + usage.generated
