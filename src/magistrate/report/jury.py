"""Print a jury and its members in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from magistrate._text import counted, decimal, percent, signed
from magistrate.analysis.jury import JuryReport, Row
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
    from rich.text import Text

LONGEST = 32  # columns for a member's name
MOST_PAIRS = 8  # members up to which the table of pairs is shown
KEY = (
    "Brackets: 95 % intervals; for the gain and for errors from a bootstrap of whole contexts. Errors: the "
    "correlation of being wrong on the same samples. Effective votes: the number of members with independent "
    "errors that would be equally good, k / (1 + (k - 1) r)."
)


def render_jury(report: JuryReport, console: Console, listed: int = 10, *, full: bool = True) -> None:
    """Print the jury, its members, their correlated errors, label-free estimates, and `listed` disputes.

    Unless `full`, print one screen: the jury with and without each member, the gain, and one remark.
    """
    for part in _parts(report, console, listed) if full else _short(report):
        console.print(part)


def _short(report: JuryReport) -> Iterator[RenderableType]:
    from rich.text import Text

    yield from _head(report)
    yield ""
    yield _rows(report, full=False)
    yield from _gain(report)
    if report.n_common:
        yield _votes(report)
    if remark := first_remark(report.remarks):
        yield ""
        yield remark
    yield ""
    disputed = f", {counted(len(report.disputed), 'disputed sample')}" if report.disputed else ""
    yield Text(
        f"Brackets: 95 % intervals. --full: other ways to pool, correlated errors{disputed}.", style="dim"
    )


def _parts(report: JuryReport, console: Console, listed: int) -> Iterator[RenderableType]:
    from rich.text import Text

    yield from _head(report)
    yield ""
    yield _rows(report)
    yield from _gain(report)
    if report.n_common:
        yield ""
        yield from _errors(report)
    yield ""
    yield from _unlabelled(report)
    if report.remarks:
        yield ""
        yield lines(*(("remark", each) for each in report.remarks), style="yellow")
    yield from _disputed(report, console.width, listed)
    if report.n_common:
        yield ""
        yield Text(KEY, style="dim")


def _head(report: JuryReport) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text(plain(report.source), style="bold cyan")
    contexts = f", {counted(report.n_contexts, 'context')}" if report.n_common else ""
    measured = f"{report.n_common} of them labelled and judged by every member{contexts}"
    yield Text(plain(f"run {report.run}  ·  {report.n_judged} of {report.n_total} samples; {measured}"))
    if report.left_out:
        yield Text(plain(f"not measured: {tally(report.left_out)}"))


def _gain(report: JuryReport) -> Iterator[RenderableType]:
    from rich.text import Text

    if report.best is not None:
        yield ""
        gain = report.gain
        within = "" if gain.low is None else f" [{signed(gain.low)}, {signed(gain.high)}]"
        yield Text(
            plain(
                f"jury minus {report.best}, the best single member: balanced accuracy "
                f"{signed(gain.value)}{within}"
            ),
            style="bold",
        )


def _rows(report: JuryReport, *, full: bool = True) -> Table:
    table = numbers("judge", "verdicts", "balanced accuracy", "AUROC")

    def add(row: Row, style: str = "") -> None:
        table.add_row(
            cut(row.name, LONGEST),
            str(row.verdicts),
            estimated(row.metrics["balanced_accuracy"]),
            estimated(row.metrics["auroc"]),
            style=style,
        )

    add(report.jury, "bold")
    for group in (report.members, report.without, (*report.pools, report.unlabelled.row) if full else ()):
        table.add_section()
        for row in group:
            add(row)
    return table


def _errors(report: JuryReport) -> Iterator[RenderableType]:
    from rich.text import Text

    names = [row.name for row in report.members]
    if len(names) <= MOST_PAIRS:
        short = distinct_names(names, 14)
        table = numbers("correlation of errors", *short)
        for at, name in enumerate(names):
            row = report.errors.pairs[at]
            table.add_row(
                cut(name, LONGEST), *("" if at == to else decimal(row[to]) for to in range(len(names)))
            )
        yield table
    yield _votes(report)
    if report.errors.mean.undefined:
        yield Text(report.errors.mean.undefined, style="dim")


def _votes(report: JuryReport) -> Text:
    from rich.text import Text

    return Text.assemble(
        "mean correlation of errors ",
        estimated(report.errors.mean),
        f"; {len(report.members)} members are worth ",
        estimated(report.errors.effective),
        " independent votes",
    )


def _unlabelled(report: JuryReport) -> Iterator[RenderableType]:
    from rich.text import Text

    found = report.unlabelled
    if found.recall is None or found.specificity is None:
        told = f"without labels (Dawid and Skene): shares of votes are used instead, because {found.fallback}"
        yield Text(told, style="dim")
        return
    rounds = f"{found.rounds} rounds{'' if found.converged else ', not converged'}"
    yield Text(
        f"without labels (Dawid and Skene, {rounds}): {percent(found.share)} hallucinated; each member "
        "compared with the others"
    )
    table = numbers("member", "finds hallucinated", "finds faithful")
    for name, recall in found.recall.items():
        table.add_row(cut(name, LONGEST), percent(recall), percent(found.specificity[name]))
    yield table


def _disputed(report: JuryReport, width: int, listed: int) -> Iterator[RenderableType]:
    from rich.text import Text

    found = report.disputed
    if not found or not listed:
        return
    yield ""
    shown = f", the {min(listed, len(found))} with the largest difference" if len(found) > listed else ""
    yield Text(f"{len(found)} disputed samples{shown}", style="bold")
    names = [row.name for row in report.members][:MOST_PAIRS]
    table = numbers("sample", "gold", *distinct_names(names, 14))
    room = width - 24 - 14 - 16 * len(names)
    if room >= 12:
        table.add_column("output", overflow="fold")
    for each in found[:listed]:
        row = [cut(each.sample_id, 24), cut(each.label or "-", 12)]
        row += [decimal(each.scores.get(name)) for name in names]
        table.add_row(*row, *([cut(each.excerpt, room)] if room >= 12 else []))
    yield table
