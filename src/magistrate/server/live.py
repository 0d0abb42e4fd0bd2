"""Server-sent events: something has changed, look again.

An event says that, and no more; the page asks for what it shows in the way it asked before.
Source: HTML Living Standard, server-sent events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import EventSourceResponse, ServerSentEvent

from magistrate.server.stores import Stores, stores_of
from magistrate.store.figures import RunFilter

router = APIRouter()

SECONDS = 1.0  # between two looks at the store
LOOKED_AT = 20
UNDER_WAY = RunFilter(status="running")


@router.get("/live/runs", response_class=EventSourceResponse)
async def runs_changed(request: Request) -> AsyncIterator[ServerSentEvent]:
    """An event whenever any run begins, goes on, ends or goes."""
    async for event in _changes(request, None):
        yield event


@router.get("/live/runs/{run_id}", response_class=EventSourceResponse)
async def run_changed(run_id: str, request: Request) -> AsyncIterator[ServerSentEvent]:
    """An event whenever this run goes on, ends or goes."""
    async for event in _changes(request, run_id):
        yield event


async def _changes(request: Request, run_id: str | None) -> AsyncIterator[ServerSentEvent]:
    stores = stores_of(request)
    before = await run_in_threadpool(_pulse, stores, run_id)
    yield ServerSentEvent(event="hello", data="following")
    while not await request.is_disconnected():
        await asyncio.sleep(SECONDS)
        now = await run_in_threadpool(_pulse, stores, run_id)
        if now != before:
            yield ServerSentEvent(event="changed", data="look again")
        before = now


def _pulse(stores: Stores, run_id: str | None) -> tuple[int, ...]:
    """The store's own, and which runs under way have a process: nothing is written where one is killed."""
    with stores.one() as store:
        with store.snapshot() as moment:
            found = moment.pulse(run_id)
            going = [run_id] if run_id else [each.id for each in moment.runs(UNDER_WAY, limit=LOOKED_AT)]
        return (*found, *(int(store.held(each)) for each in going))
