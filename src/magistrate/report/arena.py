"""Renders an arena in the terminal as one table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from magistrate.analysis.arena import ArenaReport, Standing, Unplayed
from magistrate.analysis.ranking import Candidate
from magistrate.report.formatting import cut, decimal, interval, lines, numbers, plain, tally
from magistrate.report.ranking import LONGEST, points

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

KEY = (
    "Rating: Elo points around 1,000, from a Bradley-Terry model with ties on the committee's votes. "
    "Faithful: the share of faithful answers among those with a verdict, each judged separately. Brackets: "
    "95 %. A rank shows who is better, not how good; for that, see the share."
)


def render_arena(report: ArenaReport, console: Console) -> None:
    """Print the candidates with ranks, ratings and faithful shares."""
    for part in _parts(report):
        console.print(part)


def _parts(report: ArenaReport) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text(plain(report.name), style="bold cyan")
    spent = report.spent
    battles = 0 if report.ranking is None else report.ranking.n
    yield Text(
        f"{len(report.standings)} candidates, {report.n_questions:,} questions, {battles:,} battles; "
        f"{spent.prompt + spent.generated:,} tokens in {spent.calls:,} calls"
    )
    if report.ranking is not None and report.ranking.left_out:
        yield Text(plain(f"undecided battles: {tally(report.ranking.left_out)}"))
    if report.examined:
        yield Text(plain(f"cross-examinations by how they ended: {tally(report.examined)}"))
    yield ""
    yield _table(report)
    remarks = [] if report.ranking is None else list(report.ranking.remarks)
    if report.stopped is not None:
        yield ""
        yield Text(
            plain(f"not finished: {report.stopped}; run the same command to continue"), style="bold red"
        )
        yield lines(*(("not played", _left_over(each)) for each in report.unplayed), style="red")
    if report.ranking is None:
        remarks.append("There was no battle, so there are no ranks.")
    elif report.ranking.undefined is not None:
        yield ""
        yield Text(plain(f"no ranking: {report.ranking.undefined}"), style="bold red")
    if remarks:
        yield ""
        yield lines(*(("remark", each) for each in remarks), style="yellow")
    yield ""
    yield Text(plain("runs: " + ", ".join(f"{phase} {run}" for phase, run in report.runs.items())))
    yield Text(KEY, style="dim")


def _left_over(each: Unplayed) -> str:
    """Return what is left over of a phase, and between whom."""
    if each.left is None:
        return f"{each.phase}: not begun"
    between = f" ({', '.join(f'{n:,} {pair}' for pair, n in each.pairs.items())})" if each.pairs else ""
    return f"{each.phase}: {each.left:,} of {each.total:,}{between}"


def _table(report: ArenaReport) -> Table:
    places = {} if report.ranking is None else {each.name: each for each in report.ranking.candidates}
    order = sorted(report.standings, key=lambda each: _place(each, places, report))
    table = numbers("candidate", "rank", "rating", "won-lost-tied", "faithful", "judged", "no answer")
    for each in order:
        found = places.get(each.name)
        table.add_row(cut(each.name, LONGEST), *_battles(found), *_answers(each))
    return table


def _place(each: Standing, places: dict[str, Candidate], report: ArenaReport) -> tuple[int, str]:
    names = [] if report.ranking is None else [each.name for each in report.ranking.candidates]
    return (names.index(each.name) if each.name in places else len(names), each.name)


def _battles(found: Candidate | None) -> list[str]:
    if found is None:
        return ["-"] * 3
    rank = "-" if found.rank is None else str(found.rank)
    if found.best_rank is not None:
        rank += f" [{found.best_rank}, {found.worst_rank}]"
    return [rank, points(found.rating), f"{found.wins}-{found.losses}-{found.ties}"]


def _answers(each: Standing) -> list[str]:
    """Return the cells: faithful share, answers with a verdict of all answers, and missing answers."""
    share = each.faithful.value
    return [
        "-" if share is None else f"{decimal(share)} {interval(each.faithful)}",
        f"{each.n_verdicts}/{each.n_answers}",
        str(each.n_questions - each.n_answers),
    ]
