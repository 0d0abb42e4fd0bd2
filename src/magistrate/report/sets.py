"""Several runs side by side: a row for each data set, a column for each judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from magistrate._text import decimal
from magistrate.report.formatting import interval, plain
from magistrate.report.values import JudgeReport, Report

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = {"auroc": "AUROC", "balanced_accuracy": "bal. acc."}
NONE = "–"
NOTE = (
    "AUROC ranks by score; balanced accuracy (bal. acc.) is of the labels. Brackets: 95 % intervals. n: "
    "samples of the set; a judge's figures are of its verdicts on labelled samples."
)


def render_sets(reports: Sequence[Report], console: Console) -> None:
    """Print AUROC and balanced accuracy of every judge on every data set, each of a run of its own."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    judges = list(dict.fromkeys(judge.judge for report in reports for judge in report.judges))
    table = Table(
        box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )
    table.add_column("set", no_wrap=True)
    table.add_column("n", justify="right")
    for name in judges:
        table.add_column(plain(name), overflow="fold")
    for report in reports:
        found = {judge.judge: judge for judge in report.judges}
        cells = [_cell(found[name]) if name in found else NONE for name in judges]
        table.add_row(Text(plain(report.run.dataset)), str(report.run.n_total), *map(Text, cells))
    console.print(table)
    console.print(Text(NOTE, style="dim"))


def _cell(judge: JudgeReport) -> str:
    """A line for each figure, and one for the verdicts that are missing."""
    if judge.result is None:
        return NONE
    found = [(word, judge.result.metrics[name]) for name, word in SHOWN.items()]
    lines = [f"{word} {decimal(figure.value)} {interval(figure)}" for word, figure in found]
    if judge.n_ok < judge.n_total:
        lines.append(f"{judge.n_ok} of {judge.n_total} judged")
    return "\n".join(line.rstrip() for line in lines)
