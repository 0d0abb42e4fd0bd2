"""Comparisons as data."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from magistrate._text import seen
from magistrate.analysis.comparison import Comparison
from magistrate.server.answers import Answer, Pending, Refused, answers_of
from magistrate.server.api.telling import Refusal, refusals
from magistrate.server.pages.compare import AnAsked, Asked, answer
from magistrate.server.stores import Stores, stores_of
from magistrate.server.views.choosing import Wanted, wanted
from magistrate.server.views.compare import AT_ONCE, MOST_AT_ONCE, CompareView, compare_view

router = APIRouter(tags=["comparisons"])

MOST_SECONDS = 30.0


class Working(BaseModel):
    """A comparison that is being worked out: `ahead` others come before it; ask `again` there."""

    detail: str
    ahead: int
    again: str


@router.get(
    "/compare",
    response_model=CompareView,
    responses={
        202: {"model": Working, "description": "Not worked out yet; Retry-After says when to ask again"},
        **refusals(404, 422),
        503: {"model": Refusal, "description": "Too much is being worked out, or the store cannot be read"},
    },
)
async def compare(
    request: Request,
    asked: AnAsked,
    limit: Annotated[int, Query(ge=1, le=MOST_AT_ONCE, description="flips at once")] = AT_ONCE,
    wait: Annotated[float, Query(ge=0, le=MOST_SECONDS, description="seconds to wait for it")] = 0,
) -> Response:
    """Judges beside each other on the samples that all have judged, with the flips of one pair.

    One run compares its judges; of several runs each gives the judge named with it, or all it has. `at`
    comes with an answer 202 and asks for that very comparison, though a run went on since.
    """
    stores, answers = stores_of(request), answers_of(request)
    sides = await run_in_threadpool(_wanted, stores, asked)
    at, found = answer(answers, stores, asked, sides.sides)
    if isinstance(found, Pending) and wait:
        await asyncio.wait([asyncio.wrap_future(found.done)], timeout=wait)
        asked = Asked(asked.runs, asked.metrics, at, asked.pair, asked.right, asked.start)
        at, found = answer(answers, stores, asked, sides.sides)
    if isinstance(found, Refused):
        raise HTTPException(found.status, seen(found.told))
    if isinstance(found, Pending):
        again = request.url.include_query_params(at=".".join(map(str, at)))
        body = {"detail": "being worked out", "ahead": found.ahead, "again": f"{again.path}?{again.query}"}
        return JSONResponse(body, 202, {"Retry-After": "1"})
    view = await run_in_threadpool(_view, stores, found, sides, at, asked, limit)
    return Response(json.dumps(view, allow_nan=False), media_type="application/json")


def _wanted(stores: Stores, asked: Asked) -> Wanted:
    with stores.one() as store:
        found = wanted(store, asked.runs)
    if found.problem is not None:
        raise HTTPException(404 if found.unknown else 422, seen(found.problem))
    if len(found.sides) < 2:
        raise HTTPException(422, "a comparison takes two judges or more; name another with run=ID:JUDGE")
    return found


def _view(
    stores: Stores,
    found: Answer[Comparison],
    sides: Wanted,
    at: tuple[int, ...],
    asked: Asked,
    limit: int,
) -> dict[str, object]:
    with stores.one() as store:
        view = compare_view(
            store,
            found.value,
            sides.sides,
            at,
            pair=asked.pair,
            right=asked.right,
            start=asked.start,
            limit=limit,
        )
    return asdict(view)
