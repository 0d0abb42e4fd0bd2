"""A probe that was trained, in the terminal: what it reads, and what it is worth on folds it had not seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from magistrate.report.facts import NAMES
from magistrate.report.plain import plain
from magistrate.report.tables import estimated, numbers

if TYPE_CHECKING:
    from rich.console import Console

    from magistrate.training.probe import Probed

READING = (
    "Held out: folds that share no context. Brackets: 95 % intervals. Either label is taken to be as likely, "
    "so the score is no calibrated probability where that is not so. A probe says little of other kinds of "
    "text."
)


def render_probe(found: Probed, left_out: Mapping[str, int], console: Console) -> None:
    """What it reads, its figures, and how they are to be read."""
    from rich.text import Text

    file = found.file
    console.print(Text(plain(file.line()), style="bold"))
    told = [f"{sum(each.hallucinated for each in file.data)} hallucinated", f"{file.contexts} contexts"]
    told += [f"left out: {n} ({reason})" for reason, n in left_out.items()]
    console.print(Text(plain("  ·  ".join(told))))
    console.print()
    table = numbers("figure", "held out")
    for name in file.figures:
        shown = NAMES.get(name, name).replace("\n", " ")
        table.add_row(Text(plain(shown)), estimated(found.figures.metrics[name]))
    console.print(table)
    console.print()
    console.print(Text(READING, style="dim"))
