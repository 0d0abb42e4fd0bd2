"""Runs: their list as a page and as JSON, renaming, tagging and deleting one, and events when one changes.

An event (server-sent, as in the HTML Living Standard) only signals that something has changed. The page
then requests its content again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent

from magistrate.errors import SpecError, StoreError
from magistrate.report.counts import MADE_BY
from magistrate.server.responses import answering_with, error_responses, json_response, page, segment
from magistrate.server.roles import visitor_of
from magistrate.server.run import Progress, progress_of
from magistrate.server.state import RequestStore, StorePool, stores_of
from magistrate.store import Store
from magistrate.store.figures import Head, Point, RunFilter, RunLine, RunOrder

AT_ONCE = 30
MOST_AT_ONCE = 100
IN_A_TREND = 12
LOOK_SECONDS = 1.0  # interval at which an event stream polls the store
RUNS_FOLLOWED = 20
UNDER_WAY = RunFilter(status="running")
ORDERS = {
    "": "newest first",
    "oldest": "oldest first",
    "best": "best figure first",
    "worst": "worst figure first",
    "longest": "longest first",
    "largest": "most samples first",
    "name": "by name",
}

Words = Annotated[str, Query(max_length=200)]
Choice = Annotated[str, Query(max_length=1000)]
Order = Literal[RunOrder, ""]
Number = Annotated[int | None, Query(ge=0, le=2**63 - 1)]

router = APIRouter()
api = APIRouter(tags=["runs"])


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeHead:
    """A judge of a run with its main metric, and the same metric of earlier runs, oldest first.

    `value` and the ends of its 95 % interval are in [0, 1], None if nothing is measured yet. `coverage` is
    the share of the samples with a verdict. `counted` is False while not all outcomes are included. `trend`
    is of the same data set, judge and metric and ends with this run.
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
class RunRow:
    """A run in the list.

    Times are in UTC. `seconds` is its working time, None if unknown. `n_unread` rows of its data could not
    be read.
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
    """A page of the list.

    The next runs have numbers beyond `older` and `newer`, which are None at an end. `n` counts all matching
    runs; `choices` are values to filter by.
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
    order: RunOrder = "newest",
    before: int | None = None,
    after: int | None = None,
    limit: int = AT_ONCE,
) -> RunsView:
    """Return at most `limit` matching runs in this order: the next ones after the run numbered `before`, or
    those that come before the one numbered `after`.
    """
    with store.snapshot() as moment:
        lines = moment.runs(wanted, order=order, before=before, after=after, limit=limit + 1)
        further = len(lines) > limit
        lines = lines[-limit:] if after is not None else lines[:limit]
        trends = moment.trends((line.dataset for line in lines), IN_A_TREND * 4)
        under_way = {line.id: moment.progress(line.id) for line in lines if line.status == "running"}
        rows = tuple(_run_row(store, line, trends, under_way.get(line.id)) for line in lines)
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


def _run_row(
    store: Store,
    line: RunLine,
    trends: dict[tuple[str, str], list[Point]],
    counts: dict[str, int] | None,
) -> RunRow:
    held = counts is None or store.held(line.id)
    heads = {head.judge: head for head in line.heads if head.made_by == MADE_BY}
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
            _judge_head(judge, line, heads.get(judge), trends.get((line.dataset, judge), []))
            for judge in line.judges
        ),
        progress=None
        if counts is None
        else progress_of(line, sum(counts.values()), counts.get("failure", 0)),
    )


def _judge_head(judge: str, line: RunLine, head: Head | None, trend: list[Point]) -> JudgeHead:
    if head is None:
        return JudgeHead(
            judge=judge,
            metric=None,
            value=None,
            low=None,
            high=None,
            n_ok=0,
            n_total=line.n_total or 0,
            n_failures=0,
            coverage=None,
            counted=False,
            trend=(),
        )
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


# --- the list -------------------------------------------------------------------------------------


def filter_of(
    q: Words = "",
    dataset: Choice = "",
    judge: Choice = "",
    model: Choice = "",
    tag: Choice = "",
    status: Choice = "",
) -> RunFilter:
    """Return the filter in the query of an address. Empty fields are ignored."""
    return RunFilter(
        words=tuple(q.split()),
        dataset=dataset or None,
        judge=judge or None,
        model=model or None,
        tag=tag or None,
        status=status or None,
    )


@router.get("/")
def runs_page(
    request: Request,
    store: RequestStore,
    q: Words = "",
    dataset: Choice = "",
    judge: Choice = "",
    model: Choice = "",
    tag: Choice = "",
    status: Choice = "",
    order: Order = "",
    before: Number = None,
    after: Number = None,
) -> Response:
    """Show the first page: the matching runs, the newest first unless another order is asked for."""
    chosen = {"q": q, "dataset": dataset, "judge": judge, "model": model, "tag": tag, "status": status}
    view = runs_view(store, filter_of(**chosen), order=order or "newest", before=before, after=after)
    return page(
        request,
        "runs.html",
        view=view,
        chosen=chosen,
        order=order,
        orders=ORDERS,
        first=before is None and after is None,
    )


@api.get("/runs", response_model=RunsView, responses=error_responses(422, 503))
def runs(
    store: RequestStore,
    wanted: Annotated[RunFilter, Depends(filter_of)],
    order: RunOrder = "newest",
    before: Number = None,
    after: Number = None,
    limit: Annotated[int, Query(ge=1, le=MOST_AT_ONCE)] = AT_ONCE,
) -> Response:
    """List runs, newest first unless `order` says otherwise. Pass `older` as `before` for the next page."""
    view = runs_view(store, wanted, order=order, before=before, after=after, limit=limit)
    return json_response(asdict(view))


# --- one run changed ------------------------------------------------------------------------------


@router.post("/runs/{run_id}/rename")
def rename(
    request: Request, run_id: str, store: RequestStore, name: Annotated[str, Form(max_length=200)] = ""
) -> Response:
    """Set the name of the run, or remove it."""
    found = store.find_run(run_id)
    with answering_with(SpecError, 422):
        store.rename(found.id, name.strip() or None, by=visitor_of(request).who)
    return RedirectResponse(f"/runs/{segment(run_id)}", 303)


@router.post("/runs/{run_id}/tags")
def tag(
    request: Request,
    run_id: str,
    store: RequestStore,
    add: Annotated[str, Form(max_length=200)] = "",
    remove: Annotated[str, Form(max_length=200)] = "",
) -> Response:
    """Add a tag to the run or remove one."""
    added, removed = [add.strip()] if add.strip() else (), [remove] if remove else ()
    store.tag(run_id, add=added, remove=removed, by=visitor_of(request).who)
    return RedirectResponse(f"/runs/{segment(run_id)}", 303)


@router.get("/runs/{run_id}/delete")
def delete_page(request: Request, run_id: str, store: RequestStore) -> Response:
    """Ask for confirmation before a run is deleted."""
    return page(request, "delete.html", run=store.seen(store.find_run(run_id)))


@router.post("/runs/{run_id}/delete")
def delete_from_page(request: Request, run_id: str, store: RequestStore) -> Response:
    """Delete the run, unless a process is executing it."""
    delete_run(store, run_id, visitor_of(request).who)
    return RedirectResponse("/", 303)


def delete_run(store: Store, run_id: str, by: str) -> None:
    """Delete the run; 409 while a process is executing it, since that process would fail."""
    found = store.find_run(run_id)
    with answering_with(StoreError, 409), store.hold(found.id):
        store.delete(found.id, by=by)


@api.delete("/runs/{run_id}", status_code=204, responses=error_responses(404, 409, 422, 503))
def delete(request: Request, run_id: str, store: RequestStore) -> Response:
    """Delete a run with its outcomes; 409 while a process is executing it."""
    delete_run(store, run_id, visitor_of(request).who)
    return Response(status_code=204)


# --- events ---------------------------------------------------------------------------------------


@router.get("/live/runs", response_class=EventSourceResponse)
async def runs_changed(request: Request) -> AsyncIterator[ServerSentEvent]:
    """Stream an event whenever any run begins, progresses, ends or is deleted."""
    async for event in _changes(request, None):
        yield event


@router.get("/live/runs/{run_id}", response_class=EventSourceResponse)
async def run_changed(run_id: str, request: Request) -> AsyncIterator[ServerSentEvent]:
    """Stream an event whenever this run progresses, ends or is deleted."""
    async for event in _changes(request, run_id):
        yield event


async def _changes(request: Request, run_id: str | None) -> AsyncIterator[ServerSentEvent]:
    stores = stores_of(request)
    before = await run_in_threadpool(_pulse, stores, run_id)
    yield ServerSentEvent(event="hello", data="following")
    while not await request.is_disconnected():
        await asyncio.sleep(LOOK_SECONDS)
        now = await run_in_threadpool(_pulse, stores, run_id)
        if now != before:
            yield ServerSentEvent(event="changed", data="look again")
        before = now


def _pulse(stores: StorePool, run_id: str | None) -> tuple[int, ...]:
    """Return numbers that change when runs do; also which runs have a process, as a kill writes nothing."""
    with stores.one() as store:
        with store.snapshot() as moment:
            found = moment.pulse(run_id)
            going = [run_id] if run_id else [each.id for each in moment.runs(UNDER_WAY, limit=RUNS_FOLLOWED)]
        return (*found, *(int(store.held(each)) for each in going))
