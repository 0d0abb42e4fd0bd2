"""Estimate of a run before it starts: calls, tokens, seconds and cost, with its terminal output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from magistrate.datasets.rows import Unread
from magistrate.engines.none import NO_MODEL
from magistrate.metrics.classification import fields_of
from magistrate.report.formatting import duration, plain, tally
from magistrate.report.values import context_advice

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeEstimate:
    """Estimated work of one judge.

    Of `samples`, the judge `abstains` (by reason) on some, `failing` cannot be planned, `no_output` have no
    output yet, and `asked` remain. `calls`, `prompt_tokens` and `answer_tokens` are upper bounds, or None
    if the judge does not declare its requests. `elsewhere` of the calls go to the judge's own engine.
    `seconds` is None without an earlier run (`rate_of`). `cost`, in US dollars and for the run's engine
    only, is None without a price. `counted` is the number of samples whose tokens were counted, if not all.
    Then all other counts except `samples` and abstentions for missing fields are scaled up, and are no
    bounds.
    """

    judge: str
    samples: int
    asked: int
    abstains: Mapping[str, int] = field(default_factory=dict)
    failing: int = 0
    no_output: int = 0
    calls: int | None = None
    prompt_tokens: int | None = None
    answer_tokens: int | None = None
    elsewhere: int = 0
    seconds: float | None = None
    cost: float | None = None
    counted: int | None = None
    rate_of: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        told = fields_of(
            self, elsewhere="calls_elsewhere", rate_of="seconds_from_run", counted="estimated_from"
        )
        del told["judge"]
        return told


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Estimated work of a run, by judge. `price` describes the price of tokens; None if unknown.

    `unread` reports the unreadable rows, None if they were not counted. `like_context` are columns that
    look like a context, if some sample has none.
    """

    dataset: str
    model: str
    samples: int
    judges: tuple[JudgeEstimate, ...]
    price: str | None = None
    unread: Unread | None = None
    like_context: tuple[str, ...] = ()

    @property
    def estimated_from(self) -> int | None:
        """The number of samples whose tokens were counted; None if all were."""
        return min((each.counted for each in self.judges if each.counted is not None), default=None)

    @property
    def without_verdict(self) -> str | None:
        """The judges that will give no verdict, in words; None if every judge may give some."""
        told = []
        for each in self.judges:
            if each.samples and sum(each.abstains.values()) == each.samples:
                advice = context_advice(self.like_context) if "no_context" in each.abstains else ""
                why = f"no verdict on any of {each.samples} samples: {tally(each.abstains)}"
                told.append(f"{each.judge}: {why}{advice}")
        return ". ".join(told) or None

    @property
    def calls(self) -> int | None:
        """Calls of all judges, or None if one of them is unknown. The same holds for the totals below."""
        return _sum([each.calls for each in self.judges])

    @property
    def prompt_tokens(self) -> int | None:
        """Prompt tokens, with shared prefixes counted every time."""
        return _sum([each.prompt_tokens for each in self.judges])

    @property
    def answer_tokens(self) -> int | None:
        """Generated tokens, at most."""
        return _sum([each.answer_tokens for each in self.judges])

    @property
    def seconds(self) -> float | None:
        """Seconds, at the speed of earlier runs."""
        return _sum([each.seconds for each in self.judges])

    @property
    def cost(self) -> float | None:
        """US dollars, at most."""
        return _sum([each.cost for each in self.judges])

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; None means unknown."""
        return {
            "dataset": self.dataset,
            "model": self.model,
            "samples": self.samples,
            "calls": self.calls,
            "prompt_tokens": self.prompt_tokens,
            "answer_tokens": self.answer_tokens,
            "seconds": self.seconds,
            "cost": self.cost,
            "price": self.price,
            "estimated_from": self.estimated_from,
            "unread": None if self.unread is None else self.unread.to_dict(),
            "judges": {each.judge: each.to_dict() for each in self.judges},
        }


def render(estimate: Estimate, console: Console) -> None:
    """Print one row per judge, and notes on the numbers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    model = "no model" if estimate.model == NO_MODEL else plain(estimate.model)
    head = f"{plain(estimate.dataset)}  ·  {estimate.samples:,} samples  ·  {model}"
    console.print(Text(head, style="bold"))
    console.print()
    table = Table(
        box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )
    table.add_column("judge", overflow="fold")
    priced = estimate.price is not None
    for name in ("asked", "calls", "tokens read", "written", "time", *(["cost"] if priced else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for each in estimate.judges:
        table.add_row(Text(plain(each.judge)), *_cells(each, f"{each.asked:,}", priced))
    if len(estimate.judges) > 1:
        table.add_section()
        table.add_row("together", *_cells(estimate, "", priced))
    console.print(table)
    for note in notes(estimate):
        console.print(Text(plain(note)))


def notes(estimate: Estimate) -> Iterator[str]:
    """Yield notes that explain the numbers, one line each."""
    if estimate.unread is not None and estimate.unread.n:
        yield f"{estimate.unread}."
    if estimate.unread is not None:
        yield from (f"{str(blank)[:1].upper()}{str(blank)[1:]}." for blank in estimate.unread.blanks)
    for each in estimate.judges:
        if each.abstains:
            yield f"{each.judge} will abstain on: {tally(each.abstains)}."
        if each.failing:
            yield f"{each.judge} cannot plan its calls for {each.failing:,} samples."
        if each.no_output:
            yield f"{each.no_output:,} samples have no output yet; these figures do not include them."
        if each.calls is None:
            yield f"{each.judge} does not plan its calls; its calls, tokens and cost are unknown, not zero."
        elif each.elsewhere:
            yield (
                f"{each.elsewhere:,} calls of {each.judge} go to its own engine; their cost is not included."
            )
    if estimate.estimated_from is not None:
        yield (
            f"Extrapolated from {estimate.estimated_from:,} evenly spaced samples: these are expected "
            "values, not upper bounds."
        )
    else:
        yield "Calls and tokens are upper bounds; no model was asked."
    yield "Tokens read are counted per prompt; common beginnings are computed only once."
    if any(each.seconds is not None for each in estimate.judges):
        runs = dict.fromkeys(each.rate_of for each in estimate.judges if each.rate_of)
        yield f"Time is based on the speed of {', '.join(runs) or 'earlier runs'}."
    if any(each.seconds is None for each in estimate.judges):
        yield "Time is unknown, because no finished run had the same judge and model."
    if estimate.price is not None:
        yield f"Price: {estimate.price}."


def _cells(each: JudgeEstimate | Estimate, asked: str, priced: bool) -> list[str]:
    counts: list[int | None] = [each.calls, each.prompt_tokens, each.answer_tokens]
    cells = [asked, *(_known(count, "{:,}".format) for count in counts), _known(each.seconds, duration)]
    return [*cells, _known(each.cost, dollars)] if priced else cells


def dollars(amount: float) -> str:
    """Format US dollars with the decimals that matter.

    >>> dollars(12.3456), dollars(0.0123), dollars(0)
    ('$12.35', '$0.0123', '$0.00')
    """
    return f"${amount:,.2f}" if amount == 0 or amount >= 1 else f"${amount:.4f}"


def _known(value: Any, shown: Callable[[Any], str]) -> str:
    return "unknown" if value is None else shown(value)


Number = TypeVar("Number", int, float)


def _sum(values: list[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
