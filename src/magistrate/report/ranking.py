"""Print a ranking of candidates in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from magistrate._text import percent
from magistrate.analysis.ranking import Ranking
from magistrate.metrics.classification import Estimate
from magistrate.report.formatting import cut, distinct_names, lines, numbers, plain, tally

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

LONGEST = 32  # columns for a candidate's name
MOST_ACROSS = 12  # candidates up to which the table of wins is shown
KEY = (
    "Rating: Elo points around 1,000, from a Bradley-Terry model with ties (Davidson); 400 points more mean "
    "ten wins per loss. Brackets and ranks: 95 %, from a bootstrap of whole questions."
)


def render_ranking(report: Ranking, console: Console) -> None:
    """Print candidates with their ratings and ranks, and the table of wins."""
    for part in _parts(report):
        console.print(part)


def _parts(report: Ranking) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text(plain(report.source), style="bold cyan")
    counted = f"{report.n} comparisons of {len(report.candidates)} candidates, {report.n_questions} questions"
    same = "" if report.consistent is None else f"; both orders agree in {percent(report.consistent)}"
    yield Text(counted + same)
    if report.left_out:
        yield Text(plain(f"left out: {tally(report.left_out)}"))
    yield ""
    yield _candidates(report)
    if report.undefined is not None:
        yield ""
        yield Text(plain(f"no ranking: {report.undefined}"), style="bold red")
    if len(report.candidates) <= MOST_ACROSS:
        yield ""
        yield _wins(report)
    if report.remarks:
        yield ""
        yield lines(*(("remark", each) for each in report.remarks), style="yellow")
    if report.undefined is None:
        yield ""
        yield Text(KEY, style="dim")


def _candidates(report: Ranking) -> Table:
    table = numbers("candidate", "rank", "rating", "won", "lost", "tied")
    for each in report.candidates:
        rank = "-" if each.rank is None else str(each.rank)
        if each.best_rank is not None:
            rank += f" [{each.best_rank}, {each.worst_rank}]"
        table.add_row(
            cut(each.name, LONGEST),
            rank,
            points(each.rating),
            str(each.wins),
            str(each.losses),
            str(each.ties),
        )
    return table


def points(rating: Estimate) -> str:
    """Format a rating with its interval."""
    if rating.value is None:
        return "-"
    if rating.low is None or rating.high is None:
        return f"{rating.value:,.0f}"
    return f"{rating.value:,.0f} [{rating.low:,.0f}, {rating.high:,.0f}]"


def _wins(report: Ranking) -> Table:
    """Return the table of how often the row beat the column, with the ties of both after an equals sign."""
    names = [each.name for each in report.candidates]
    table = numbers("won = tied", *distinct_names(names, 12))
    for at, name in enumerate(names):
        cells = [
            ""
            if at == to
            else f"{report.wins[at][to]}" + (f" ={tied}" if (tied := report.tied[at][to]) else "")
            for to in range(len(names))
        ]
        table.add_row(cut(name, LONGEST), *cells)
    return table
