"""Estimate of a large job from rates measured on some of its rows, with its terminal output."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from magistrate.metrics.classification import Estimate
from magistrate.report.estimate import dollars
from magistrate.report.formatting import plain

if TYPE_CHECKING:
    from rich.console import Console

HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A kind of machine. It judges `speed` times as many rows a second as the machine that measured."""

    name: str
    price_per_hour: float
    speed: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A job on one kind of machine: hours of one machine, machines to be done in time, dollars for them."""

    machine: Machine
    hours: Estimate
    machines: int
    dollars: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one judge took for the measured rows.

    `seconds` is the time for all of them, and `seconds_per_row` with its interval the time for one. Tokens
    are per row. `price` describes the price of the model's tokens, None if it is not known; then `dollars`,
    per row, is None too. `elsewhere` says that the judge asks models besides `model`.
    """

    judge: str
    model: str
    recipe: str
    rows: int
    verdicts: int
    failures: int
    abstentions: int
    seconds: float
    seconds_per_row: Estimate
    tokens_in: Estimate
    tokens_out: Estimate
    dollars: Estimate | None
    price: str | None
    elsewhere: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleEstimate:
    """The estimated work of judging `rows` rows, by judge and machine.

    `within` are the hours to be done in, `prices` the name of the file of machines and `as_of` its date.
    `concurrency` is how many rows were judged at the same time while measuring.
    """

    dataset: str
    rows: int
    judges: tuple[Measured, ...]
    machines: tuple[Machine, ...]
    within: float
    concurrency: int
    prices: str
    as_of: str

    def plan(self, judge: Measured, machine: Machine) -> Plan:
        """Return the judge's job on this kind of machine."""
        hours = scaled(judge.seconds_per_row, self.rows / HOUR / machine.speed)
        assert hours.value is not None, "time is measured for every judge"
        least = hours.value if hours.high is None else hours.high
        return Plan(
            machine=machine,
            hours=hours,
            machines=max(1, math.ceil(least / self.within)),
            dollars=scaled(hours, machine.price_per_hour),
        )

    def token_dollars(self, judge: Measured) -> Estimate | None:
        """Return the price of the judge's tokens for all rows; None if it is not known."""
        return None if judge.dollars is None else scaled(judge.dollars, self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; None means unknown."""
        return {
            "dataset": self.dataset,
            "rows": self.rows,
            "within_hours": self.within,
            "concurrency": self.concurrency,
            "prices": self.prices,
            "as_of": self.as_of,
            "judges": {each.judge: self._judge(each) for each in self.judges},
            "notes": list(notes(self)),
        }

    def _judge(self, judge: Measured) -> dict[str, Any]:
        plans = [self.plan(judge, machine) for machine in self.machines]
        tokens = self.token_dollars(judge)
        return {
            "model": judge.model,
            "recipe": judge.recipe,
            "measured": {
                name: getattr(judge, name)
                for name in ("rows", "verdicts", "failures", "abstentions", "seconds")
            },
            "seconds_per_row": judge.seconds_per_row.to_dict(),
            "tokens_in_per_row": judge.tokens_in.to_dict(),
            "tokens_out_per_row": judge.tokens_out.to_dict(),
            "token_price": judge.price,
            "token_dollars": None if tokens is None else tokens.to_dict(),
            "machines": {
                plan.machine.name: {
                    "hours": plan.hours.to_dict(),
                    "machines": plan.machines,
                    "dollars": plan.dollars.to_dict(),
                }
                for plan in plans
            },
        }


def scaled(estimate: Estimate, by: float) -> Estimate:
    """Return an estimate with its interval, times `by`."""
    value, low, high = (
        None if each is None else each * by for each in (estimate.value, estimate.low, estimate.high)
    )
    return Estimate(value, low, high, estimate.undefined)


def render(estimate: ScaleEstimate, console: Console) -> None:
    """Print one row per judge and machine, and how the numbers were made."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    head = f"{plain(estimate.dataset)}  ·  {estimate.rows:,} rows  ·  done in {estimate.within:g} h"
    console.print(Text(head, style="bold"))
    console.print()
    table = Table(
        box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )
    table.add_column("judge", overflow="fold")
    table.add_column("machine", overflow="fold")
    for name in ("rows a second", "hours of one", "machines", "their price", "tokens"):
        table.add_column(name, justify="right")
    for judge in estimate.judges:
        tokens = estimate.token_dollars(judge)
        for place, machine in enumerate(estimate.machines):
            plan = estimate.plan(judge, machine)
            table.add_row(
                Text(plain(judge.judge) if place == 0 else ""),
                Text(plain(machine.name)),
                f"{machine.speed / (judge.seconds_per_row.value or math.inf):,.3g}",
                _range(plan.hours, _hours),
                f"{plan.machines:,}",
                _range(plan.dollars, dollars),
                "unknown" if tokens is None else _range(tokens, dollars),
            )
    console.print(table)
    for note in notes(estimate):
        console.print(Text(plain(note)))


def notes(estimate: ScaleEstimate) -> Iterator[str]:
    """Yield how the numbers were made and what they leave out, one line each."""
    for each in estimate.judges:
        told = f"{each.judge}: {each.rows:,} rows in {each.seconds:.3g} s here"
        read, written = each.tokens_in.value or 0, each.tokens_out.value or 0
        yield f"{told}, {read:,.0f} tokens read and {written:,.0f} written a row ({each.recipe})."
        if each.failures or each.abstentions:
            yield (
                f"{each.judge}: it failed on {each.failures:,} of them and abstained on "
                f"{each.abstentions:,}; their time is part of the rate."
            )
        if each.price is not None:
            yield f"{each.judge}: tokens of {each.model} at {each.price}."
        elif each.dollars is None:
            yield f"{each.judge}: tokens of {each.model} have no price in {estimate.prices}: unknown, not 0."
        if each.elsewhere:
            yield f"{each.judge} asks other models too, whose tokens are counted as those of {each.model}."
    yield (
        f"Extrapolated in proportion to rows from evenly spaced ones that were judged on this machine, "
        f"{estimate.concurrency} at a time, after a first one that loaded the model."
    )
    if any(each.seconds_per_row.low is not None for each in estimate.judges):
        yield (
            "Intervals (95 %) say how much rows differ from each other. They leave out start-up, limits of "
            "servers and how other machines differ; machines are counted for the upper end."
        )
    for each in estimate.judges:
        if each.seconds_per_row.low is None:
            yield f"{each.judge}: {each.seconds_per_row.undefined or 'no interval'}."
    for machine in estimate.machines:
        how = "as fast as" if machine.speed == 1 else f"{machine.speed:g} times as fast as"
        price = f"${machine.price_per_hour:g} an hour"
        yield f"{machine.name}: {price}, {how} this machine, by {estimate.prices}."
    yield f"Prices of {estimate.prices} are of {estimate.as_of}."


def _range(estimate: Estimate, shown: Callable[[float], str]) -> str:
    assert estimate.value is not None, "only measured values are shown"
    told = shown(estimate.value)
    if estimate.low is None or estimate.high is None:
        return told
    return f"{told} [{shown(estimate.low)}, {shown(estimate.high)}]"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


def without_verdict(judges: Sequence[Measured]) -> str | None:
    """Return which judges gave no verdict while measuring, in words; None if all did."""
    names = [each.judge for each in judges if not each.verdicts]
    return f"no verdict of {', '.join(names)} on the measured rows" if names else None
