"""Tables in the terminal: words to the left, numbers to the right, no frame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from magistrate.report.figures import interval
from magistrate.report.plain import plain

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from magistrate.metrics.classification import Estimate


def numbers(*columns: str) -> Table:
    """A table without frame; its first column gives way where room is short, numbers never."""
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )
    table.add_column(plain(columns[0]), overflow="fold")
    for name in columns[1:]:
        table.add_column(plain(name), justify="right", no_wrap=True)
    return table


def estimated(estimate: Estimate) -> Text:
    """`.62 [.55, .69]`, or a dash."""
    from rich.text import Text

    from magistrate.report.figures import decimal

    if estimate.low is None:
        return Text(decimal(estimate.value), "bold")
    return Text.assemble((decimal(estimate.value), "bold"), " ", (interval(estimate), "dim"))


def lines(*rows: tuple[str, str], style: str = "") -> Table:
    """A dim name and foreign words beside it, one row a fact."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, words in rows:
        grid.add_row(plain(name), Text(plain(words), style=style))
    return grid


def cut(text: str, width: int) -> str:
    """Foreign text on one line of at most `width` characters."""
    line = " ".join(plain(text).split())
    return line if len(line) <= width else line[: max(width - 1, 0)] + "…"


def told_apart(names: Sequence[str], width: int) -> list[str]:
    """Each of several names, at most `width` characters of it: those that tell them apart, or else a number.

    >>> told_apart(["nightly, small", "nightly, large"], 8)
    ['…, small', '…, large']
    """
    whole = [" ".join(plain(name).split()) for name in names]
    heads = [cut(name, width) for name in whole]
    tails = [name if len(name) <= width else "…" + name[1 - width :] for name in whole]
    for shown in (heads, tails):
        if len(set(shown)) == len(set(whole)):
            return shown
    return [cut(f"{number} {name}", width) for number, name in enumerate(whole, 1)]


def tallied(left_out: Iterable[tuple[str, int]]) -> str:
    """Counts and their reasons: `2 failed, 1 not judged`."""
    return ", ".join(f"{count} {reason}" for reason, count in left_out)
