"""Print comparisons of judges, and the sample sizes that they need, in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from magistrate._text import counted, decimal, p_of, percent, signed
from magistrate.analysis.comparison import (
    HEADS,
    Comparison,
    Difference,
    PairResult,
    bounds,
    name_of,
    outcome_of,
)
from magistrate.analysis.power import Plan
from magistrate.report.formatting import (
    cut,
    distinct_names,
    estimated,
    first_remark,
    lines,
    numbers,
    plain,
    tally,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table


MOST_TABLES = 6
FIRST = ("balanced_accuracy", "f1", "auroc")  # shown if there is no room for every metric
ROOM = 20  # columns for a value with its interval
WIDE = 76  # width in columns from which all parts of a difference and whole labels are shown
LONGEST = 20  # columns for the name of a judge
KEY = (
    "Brackets: 95 % intervals, from a bootstrap of whole contexts, wider if there are few; differences are "
    "computed draw by draw. Detectable: the difference that these samples would show 4 times in 5, after "
    "correction. Exploratory: not chosen beforehand, so it shows nothing and its p value is not corrected. "
    "Lower is better only for the Brier score."
)


def render_comparison(
    comparison: Comparison, console: Console, listed: int = 10, *, full: bool = True
) -> None:
    """Print every side, the differences of every pair in numbers and words, and `listed` flips of each.

    Unless `full`, print one screen: the sides, what is shown of each pair, and one remark. Without gold
    labels the flips are all that there is, so they are printed too.
    """
    parts = (
        _parts(comparison, console, listed) if full or not comparison.gold else _short(comparison, console)
    )
    for part in parts:
        console.print(part)


def _short(comparison: Comparison, console: Console) -> Iterator[RenderableType]:
    from rich.text import Text

    asked = [name for name in comparison.metrics if name in (*comparison.primary, *FIRST)]
    yield from _head(comparison, console.width, asked)
    yield ""
    for sentence in comparison.sentences:
        yield Text(plain(sentence))
    if remark := first_remark(comparison.remarks):
        yield ""
        yield remark
    yield ""
    yield Text("Brackets: 95 % intervals. --full: each pair in figures, and its flips.", style="dim")


def _head(comparison: Comparison, width: int, metrics: Sequence[str]) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text(
        f"on the {comparison.n} shared samples of {comparison.n_all} "
        f"({percent(comparison.n / comparison.n_all)}); {counted(comparison.n_contexts, 'context')}",
        style="bold",
    )
    if comparison.left_out:
        yield Text(plain(f"left out: {tally(comparison.left_out)}"))
    yield ""
    yield _sides(comparison)
    if comparison.gold:
        yield ""
        yield _figures(comparison, width, metrics)


def _parts(comparison: Comparison, console: Console, listed: int) -> Iterator[RenderableType]:
    from rich.text import Text

    yield from _head(comparison, console.width, comparison.metrics)
    few = len(comparison.pairs) <= MOST_TABLES
    for pair in comparison.pairs:
        yield ""
        yield Text.assemble(("── ", "dim"), (plain(f"{pair.first} minus {pair.second}"), "bold cyan"))
        yield from _pair(pair, few, console.width)
        yield from _flips(pair, console.width, listed if few else 0)
    if not few:
        yield ""
        yield Text(f"{len(comparison.pairs)} pairs: --json has the figures and flips of each.", style="dim")
    if comparison.sentences:
        yield ""
        yield lines(*(("·", each) for each in comparison.sentences))
    if comparison.remarks:
        yield ""
        yield lines(*(("remark", each) for each in comparison.remarks), style="yellow")
    if comparison.gold:
        yield ""
        yield Text(f"{KEY} {family_text(comparison.primary, comparison.family)}", style="dim")


def family_text(asked: Sequence[str], family: int) -> str:
    """Return which metrics were asked about, and what their p values are corrected for."""
    names = " and ".join(HEADS.get(name, name) for name in asked)
    if family < 2:
        return f"Chosen: {names}; one p value, so there is no correction."
    return f"Chosen: {names}; {family} p values are corrected together by Holm's method."


def _sides(comparison: Comparison) -> Table:
    """Return a table of coverage and labels with one row per side."""
    table = numbers("judge", "ok", "coverage", "failed", "abstained")
    table.add_column("labels on shared samples")
    for side in comparison.sides:
        table.add_row(
            plain(side.name),
            f"{side.n_ok}/{side.n_total}",
            percent(side.coverage),
            str(side.failures),
            str(side.abstentions),
            plain(tally(side.labels)),
        )
    return table


def _figures(comparison: Comparison, width: int, metrics: Sequence[str]) -> Table:
    """Return a table of metrics by side. Many sides become rows, with as many metrics as fit."""
    sides = comparison.sides
    if ROOM * len(sides) + len("balanced accuracy") <= width:
        table = numbers("metric", *distinct_names([side.name for side in sides], ROOM - 2))
        for name in metrics:
            table.add_row(HEADS.get(name, name), *(estimated(side.figures[name]) for side in sides))
        return table
    first = [name for name in FIRST if name in metrics]
    ranked = [*first, *(name for name in metrics if name not in first)]
    shown = ranked[: max((width - LONGEST) // ROOM, 1)]
    table = numbers("judge", *(HEADS.get(name, name) for name in shown))
    for side in sides:
        table.add_row(plain(side.name), *(estimated(side.figures[name]) for name in shown))
    return table


def _pair(pair: PairResult, few: bool, width: int) -> Iterator[RenderableType]:
    from rich.text import Text

    if pair.mcnemar is None:
        return
    told = (
        f"right: both {pair.both_right}, only {pair.first} {pair.only_first}, only {pair.second} "
        f"{pair.only_second}, neither {pair.both_wrong}; exact McNemar p {p_of(pair.mcnemar)}, exploratory"
    )
    yield Text(plain(told))
    if few:
        detectable = ["detectable"] if width >= WIDE else []
        table = numbers("metric", "difference", "p", "corrected", *detectable, "")
        for name, each in pair.differences.items():
            table.add_row(HEADS.get(name, name), *_difference(each, bool(detectable)))
        yield table


def _difference(each: Difference, detectable: bool) -> Iterator[str]:
    yield f"{signed(each.value.value)} {bounds(each.value.low, each.value.high)}".rstrip()
    yield p_of(each.p)
    yield p_of(each.corrected)
    if detectable:
        yield decimal(each.detectable)
    yield outcome_of(each)


def _flips(pair: PairResult, width: int, listed: int) -> Iterator[RenderableType]:
    from rich.text import Text

    if not pair.flips:
        yield Text("no flips: both give the same label to every sample")
        return
    shown = (
        f", the {min(listed, len(pair.flips))} with the largest difference"
        if listed < len(pair.flips)
        else ""
    )
    if not listed:
        yield Text(f"{len(pair.flips)} flips; --list N shows them")
        return
    yield ""
    yield Text(f"{len(pair.flips)} flips{shown}", style="bold")
    table = numbers("sample")
    table.columns[0].no_wrap = True
    both = (pair.first, pair.second)
    right = dict(zip(both, distinct_names(both, 14), strict=True))
    for name in ("gold", *distinct_names(both, 16), "right"):
        table.add_column(name, no_wrap=True)
    room = max(16, width - 64)
    label = 12 if width >= WIDE else 6  # labels are shortened, scores are not
    for flip in pair.flips[:listed]:
        table.add_row(
            cut(flip.sample_id, min(room, 40)),
            cut(flip.gold or "-", label),
            f"{cut(flip.first, label)} {decimal(flip.first_score)}",
            f"{cut(flip.second, label)} {decimal(flip.second_score)}",
            right.get(flip.right or "", "-"),
        )
    yield table


# --- samples needed -------------------------------------------------------------------------------


def render_plan(plan: Plan, console: Console) -> None:
    """Print the number of samples, its assumptions, and the numbers for other differences."""
    from rich.text import Text

    needed = plan.n_clustered if plan.n_clustered is not None else plan.n
    chance = f"with a power of {plan.power:g} at a level of {plan.alpha:g}"
    if plan.comparisons > 1:
        chance += f" / {plan.comparisons}"
    chance += ", two-sided"
    console.print(
        Text.assemble(
            (f"{needed:,} labelled samples", "bold"),
            f", each judged by both, are needed to show a difference of {plan.difference:g} in "
            f"{name_of(plan.metric)} ",
            f"{chance}.",
        )
    )
    if plan.design is not None and plan.design > 1:
        console.print(
            Text(
                f"{plan.n:,} if each sample had its own context; times {plan.design:.2f}, because samples in "
                "the pilot share contexts."
            )
        )
    console.print()
    clustered = plan.design is not None and plan.design > 1
    table = numbers("difference", "samples", *(["own contexts"] if clustered else []))
    for difference, n in plan.others.items():
        own = "-" if n is None else f"{n:,}"
        shown = f"{n * (plan.design or 1):,.0f}" if n is not None and clustered else own
        style = "bold" if difference == plan.difference else ""
        table.add_row(f"{difference:g}", shown, *([own] if clustered else []), style=style)
    console.print(table)
    console.print()
    console.print(lines(*(("rests on" if not at else "", each) for at, each in enumerate(plan.assumptions))))
