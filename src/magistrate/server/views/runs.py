"""The list of runs: what was judged by whom, how it went, and how it went before."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from magistrate.report.counts import MADE_BY
from magistrate.store import Store
from magistrate.store.run_lists import Head, Point, RunFilter, RunLine

AT_ONCE = 30
MOST_AT_ONCE = 100
IN_A_TREND = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeHead:
    """A judge's part in a run: the figure that heads it, and the same figure of earlier runs, oldest first.

    `value` and the ends of its 95 % interval are in [0, 1], None where nothing was measured or counted yet.
    `coverage` is the share of the samples with a verdict. `counted` is False while the figures are of fewer
    outcomes than there are, or of none. `trend` is of the same dataset, judge and metric, this run the last.
    """

    judge: str
    metric: str | None
    value: float | None
    low: float | None
    high: float | None
    n_ok: int
    n_total: int
    n_failures: int
    coverage: float | None
    counted: bool
    trend: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a run under way is, over all its judges; `n_expected` is None where nobody knows."""

    n_done: int
    n_failures: int
    n_expected: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run in the list.

    Times are in UTC, `seconds` how long it was at work, None where nobody knows; `n_unread` rows of its data
    could not be read.
    """

    id: str
    number: int
    name: str | None
    created_at: datetime
    status: str
    reason: str | None
    dataset: str
    model: str
    n_total: int | None
    n_unread: int
    seconds: float | None
    tags: tuple[str, ...]
    judges: tuple[JudgeHead, ...]
    progress: Progress | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsView:
    """A stretch of the list.

    The next runs lie beyond the numbers `older` and `newer`, which are None at an end. `n` counts all that
    are wanted; `choices` are values to filter by.
    """

    rows: tuple[RunRow, ...]
    n: int
    older: int | None
    newer: int | None
    choices: dict[str, list[str]]


def runs_view(
    store: Store,
    wanted: RunFilter,
    *,
    before: int | None = None,
    after: int | None = None,
    limit: int = AT_ONCE,
) -> RunsView:
    """At most `limit` of the wanted runs, newest first: those older than `before` or newer than `after`."""
    with store.snapshot() as moment:
        lines = moment.runs(wanted, before=before, after=after, limit=limit + 1)
        further = len(lines) > limit
        lines = lines[-limit:] if after is not None else lines[:limit]
        trends = moment.trends((line.dataset for line in lines), IN_A_TREND * 4)
        under_way = {line.id: moment.progress(line.id) for line in lines if line.status == "running"}
        rows = tuple(_row(store, line, trends, under_way.get(line.id)) for line in lines)
        first, last = (lines[0].number, lines[-1].number) if lines else (None, None)
        forward = further if after is None else bool(lines)
        back = bool(before is not None and lines) if after is None else further
        return RunsView(
            rows=rows,
            n=moment.count_runs(wanted),
            older=last if forward else None,
            newer=first if back else None,
            choices=moment.run_choices(),
        )


def _row(
    store: Store,
    line: RunLine,
    trends: dict[tuple[str, str], list[Point]],
    counts: dict[str, int] | None,
) -> RunRow:
    held = counts is None or store.held(line.id)
    heads = {head.judge: head for head in line.heads if head.made_by == MADE_BY}
    progress = None
    if counts is not None:
        expected = None if line.n_total is None else line.n_total * max(len(line.judges), 1)
        progress = Progress(
            n_done=sum(counts.values()), n_failures=counts.get("failure", 0), n_expected=expected
        )
    return RunRow(
        id=line.id,
        number=line.number,
        name=line.name,
        created_at=line.created_at,
        status=line.status if held else "killed",
        reason=line.reason,
        dataset=line.dataset,
        model=line.model,
        n_total=line.n_total,
        n_unread=0 if line.unread is None else line.unread.n,
        seconds=line.seconds,
        tags=line.tags,
        judges=tuple(
            _judge(judge, line, heads.get(judge), trends.get((line.dataset, judge), []))
            for judge in line.judges
        ),
        progress=progress,
    )


def _judge(judge: str, line: RunLine, head: Head | None, trend: list[Point]) -> JudgeHead:
    if head is None:
        return JudgeHead(
            judge=judge, metric=None, value=None, low=None, high=None, n_ok=0, n_total=line.n_total or 0,
            n_failures=0, coverage=None, counted=False, trend=(),
        )  # fmt: skip
    same = [point.value for point in trend if point.metric == head.metric and point.number <= line.number]
    return JudgeHead(
        judge=judge,
        metric=head.metric,
        value=head.value,
        low=head.low,
        high=head.high,
        n_ok=head.n_ok,
        n_total=head.n_total,
        n_failures=head.n_failures,
        coverage=head.n_ok / head.n_total if head.n_total else None,
        counted=head.revision == line.revision,
        trend=tuple(same[-IN_A_TREND:]),
    )
