"""The figures of a run: a row a contender, work and number in flight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import Any

from magistrate.bench.contender import Measured


@dataclass(frozen=True, slots=True)
class Kind:
    """How a work becomes a figure: its unit, whether more is better, and the value of one measurement."""

    unit: str
    more_is_better: bool
    value: Callable[[Measured], float]


def _per_second(measured: Measured) -> float:
    return measured.count / measured.seconds


def _tokens_per_second(measured: Measured) -> float:
    return measured.tokens / measured.seconds


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "verdict_only": Kind("1/s", True, _per_second),
        "verdict_with_reasons": Kind("1/s", True, _per_second),
        "unconstrained": Kind("1/s", True, _per_second),
        "prefill": Kind("tokens/s", True, _tokens_per_second),
        "decode": Kind("tokens/s", True, _tokens_per_second),
        "mask": Kind("µs", False, lambda measured: 1e6 * measured.seconds / measured.count),
        "overhead": Kind("%", False, lambda measured: measured.extra["percent"]),
        "cold_start": Kind("s", False, lambda measured: measured.seconds),
        "memory": Kind("MB", False, lambda measured: measured.extra["peak"]),
        "soak": Kind("MB", False, lambda measured: measured.extra["growth"]),
    }
)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: the median of `rounds` rounds with the least and the most, or `error` and no value.

    `tokens` is the mean length of an answer, `valid` the share in [0, 1] of answers that were what was
    asked for; None where there is nothing of the kind.
    """

    engine: str
    model: str
    work: str
    in_flight: int
    value: float | None
    unit: str
    rounds: int = 0
    low: float | None = None
    high: float | None = None
    tokens: float | None = None
    valid: float | None = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `error` only where there is one."""
        named = {name: getattr(self, name) for name in self.__slots__}
        if self.error is None:
            del named["error"]
        return named


def summed_up(
    engine: str, model: str, work: str, in_flight: int, rounds: Sequence[Measured], error: str | None = None
) -> Row:
    """The row of what `rounds` measured, one at least; `error` is what ended them early."""
    kind = KINDS[work]
    values = [kind.value(measured) for measured in rounds]
    answers = sum(measured.count for measured in rounds)
    has_answers = kind.unit == "1/s"
    return Row(
        engine,
        model,
        work,
        in_flight,
        median(values),
        kind.unit,
        len(values),
        min(values),
        max(values),
        sum(measured.tokens for measured in rounds) / answers if has_answers else None,
        sum(measured.valid for measured in rounds) / answers if has_answers else None,
        error,
    )


def not_measured(engine: str, model: str, work: str, in_flight: int, error: str) -> Row:
    """The row of what could not be measured."""
    return Row(engine, model, work, in_flight, None, KINDS[work].unit, error=error)
