"""Comparisons of judges, as a page and as JSON; they are computed in the background."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import BaseModel

from magistrate._text import percent, seen, signed
from magistrate.analysis.comparison import Comparison
from magistrate.analysis.comparison_text import name_of, p_of
from magistrate.metrics.paired import COMPARED
from magistrate.report.comparison import KEY, family_told
from magistrate.report.formatting import tally
from magistrate.server.jobs import Finished, JobQueue, Pending, Refused, jobs_of
from magistrate.server.rendering import link, page, run_address, sample_address
from magistrate.server.responses import Refusal, error_responses
from magistrate.server.runs import Number, Words, runs_view
from magistrate.server.store_pool import RequestStore, StorePool, stores_of
from magistrate.server.views.compare import (
    AT_ONCE,
    MOST_AT_ONCE,
    MOST_SIDES,
    ChosenSide,
    CompareView,
    Sides,
    Who,
    check_metrics,
    compare_view,
    compared,
    find_sides,
    word_of,
)
from magistrate.store import Store
from magistrate.store.figures import RunFilter

CHOICES = 20  # runs to choose from at once
AGAIN = 0.8  # seconds until a page looks again
MOST_SECONDS = 30.0  # that a program may wait for a comparison

router = APIRouter()
api = APIRouter(tags=["comparisons"])

Many = Annotated[list[str], Query(max_length=50)]


@dataclass(frozen=True, slots=True)
class CompareQuery:
    """The query of a comparison: `runs` are the words of its sides, `at` the revisions that were compared."""

    runs: list[str]
    metrics: tuple[str, ...]
    at: tuple[int, ...]
    pair: int
    right: Who | None
    start: int


def compare_query(
    run: Annotated[Many, Query(description="ID or ID:JUDGE; `%` escapes what is no letter")] = [],  # noqa: B006
    metric: Annotated[
        Many, Query(description="what is asked about; balanced accuracy where none is named")
    ] = [],  # noqa: B006
    at: Annotated[str, Query(pattern=r"^(\d{1,15}(\.\d{1,15}){0,20})?$")] = "",
    pair: Annotated[int, Query(ge=0, lt=1000, description="whose flips are listed")] = 0,
    right: Annotated[Who | None, Query(description="flips on which this side is right")] = None,
    start: Annotated[int, Query(ge=0, lt=2**31)] = 0,
) -> CompareQuery:
    """The query of an address. Raises `InputError` for an unknown metric."""
    revisions = tuple(int(each) for each in at.split(".") if each)
    return CompareQuery(run, check_metrics(metric), revisions, pair, right, start)


CompareParams = Annotated[CompareQuery, Depends(compare_query)]


def comparison_of(
    jobs: JobQueue, stores: StorePool, query: CompareQuery, sides: tuple[ChosenSide, ...]
) -> tuple[tuple[int, ...], Finished[Comparison] | Pending | Refused]:
    """The comparison of these sides, and the revisions of their runs that it is of.

    A run under way changes all the time, so a page that waited for the run at one revision asks for that one.
    """

    def key(at: tuple[int, ...]) -> tuple[Any, ...]:
        named = tuple((each.run, each.name, each.judge) for each in sides)
        return "comparison", named, at, query.metrics

    def work() -> Comparison:
        with stores.one() as store:
            return compared(store, sides, query.metrics)

    if len(query.at) == len(sides) and (before := jobs.find(key(query.at))) is not None:
        return query.at, before
    now = tuple(each.revision for each in sides)
    return now, jobs.submit(key(now), work)


@router.get("/compare")
def compare_page(
    request: Request,
    store: RequestStore,
    query: CompareParams,
    q: Words = "",
    data: Annotated[str, Query(max_length=10)] = "same",
    choose: Annotated[str, Query(max_length=10)] = "",
    before: Number = None,
    after: Number = None,
) -> Response:
    """The comparison, or a list of runs to choose from."""
    sides = find_sides(store, query.runs)
    listing = bool(choose) or before is not None or after is not None
    if listing or sides.problem or len(sides.sides) < 2:
        place = {"q": q, "data": data, "before": before, "after": after}
        return _choice(request, store, query, sides, place, listing)
    if "q" in request.query_params or "data" in request.query_params:
        return RedirectResponse(_Links(query, sides.sides).here, 303)
    at, found = comparison_of(jobs_of(request), stores_of(request), query, sides.sides)
    view = None
    if isinstance(found, Finished):
        view = compare_view(
            store, found.value, sides.sides, at, pair=query.pair, right=query.right, start=query.start
        )
    return page(
        request,
        "compare.html",
        status=found.status if isinstance(found, Refused) else 200,
        view=view,
        chosen=sides.sides,
        pending=found if isinstance(found, Pending) else None,
        told=found.message if isinstance(found, Refused) else None,
        passing=isinstance(found, Refused) and found.status == 503,
        again=round(1000 * AGAIN),
        to=_Links(query, sides.sides, at),
        reach=_reach(view) if view else 1.0,
        key=KEY,
        family=family_told(view.primary, view.corrected_together) if view else "",
        words={"name_of": name_of, "p_of": p_of, "percent": percent, "signed": signed, "tally": tally},
    )


def _reach(view: CompareView) -> float:
    """How far from zero the differences and their intervals reach, to draw all at one scale."""
    ends = [
        abs(end)
        for pair in view.pairs
        for each in pair.differences.values()
        for end in (each.value, each.low, each.high)
        if end is not None
    ]
    return max([*ends, 0.05])


def _choice(
    request: Request, store: Store, query: CompareQuery, sides: Sides, place: dict[str, Any], listing: bool
) -> Response:
    """The page of runs to choose from: those of the first chosen run's dataset, unless all are asked for."""
    dataset = sides.sides[0].dataset if sides.sides and place["data"] == "same" else None
    view = runs_view(
        store,
        RunFilter(words=tuple(place["q"].split()), dataset=dataset),
        before=place["before"],
        after=place["after"],
        limit=CHOICES,
    )
    problem = sides.problem
    chosen = {each.word for each in sides.sides}
    listed = {word_of(run.id, judge.judge) for run in view.rows for judge in run.judges}
    wrong = problem is not None and not listing
    return page(
        request,
        "choose.html",
        status=(404 if sides.unknown else 422) if wrong else 200,
        view=view,
        problem=problem,
        place=place,
        chosen=chosen,
        aside=[each for each in sides.sides if each.word not in listed],
        dataset=dataset,
        known=COMPARED,
        metrics=query.metrics,
        most=MOST_SIDES,
        word_of=word_of,
        name_of=name_of,
    )


class _Links:
    """The addresses that a comparison links to; `at` are the revisions that were compared."""

    def __init__(self, query: CompareQuery, sides: tuple[ChosenSide, ...], at: tuple[int, ...] = ()) -> None:
        self._sides = sides
        self._what: dict[str, Any] = {"run": [each.word for each in sides]}
        if query.metrics:
            self._what["metric"] = list(query.metrics)
        # A run under way will have changed at the next request; the links go to this comparison all the same.
        going = any(each.status == "running" for each in sides)
        self._at = {"at": ".".join(map(str, at))} if at else {}
        self._kept = self._at if going else {}
        self._flips = {"pair": query.pair or None, "right": query.right}
        self._start = query.start

    @property
    def here(self) -> str:
        """This comparison, as the runs are now."""
        return link("/compare", **self._what)

    @property
    def again(self) -> str:
        """This page, once the comparison is computed."""
        start = self._start or None
        return link("/compare", **self._what, **self._flips, start=start, **self._at)

    @property
    def choose(self) -> str:
        """The list to choose others from."""
        return link("/compare", **self._what, choose="list")

    @property
    def data(self) -> str:
        """The same as data."""
        return link("/api/compare", **self._what, **self._flips, **self._kept)

    def pair(self, number: int) -> str:
        """The same with another pair shown."""
        return link("/compare", **self._what, pair=number or None, **self._kept) + "#pair"

    def flips(self, right: Who | None = None, start: int = 0) -> str:
        """The same with other flips listed."""
        shown = self._flips | {"right": right, "start": start or None}
        return link("/compare", **self._what, **shown, **self._kept) + "#flips"

    def without(self, side: int) -> str:
        """The comparison of all others."""
        rest = [each for at, each in enumerate(self._what["run"]) if at != side]
        return link("/compare", **{**self._what, "run": rest})

    def run(self, side: int) -> str:
        """The run of a side, with its judge."""
        return run_address(self._sides[side].run, judge=self._sides[side].judge)

    def sample(self, side: int, sample_id: str) -> str:
        """A sample as a side judged it."""
        return sample_address(self._sides[side].run, sample_id, judge=self._sides[side].judge)


# --- as JSON --------------------------------------------------------------------------------------


class Working(BaseModel):
    """A comparison that is being worked out: `ahead` others come before it; ask `again` there."""

    detail: str
    ahead: int
    again: str


@api.get(
    "/compare",
    response_model=CompareView,
    responses={
        202: {"model": Working, "description": "Not worked out yet; Retry-After says when to ask again"},
        **error_responses(404, 422),
        503: {"model": Refusal, "description": "Too much is being worked out, or the store cannot be read"},
    },
)
async def compare(
    request: Request,
    query: CompareParams,
    limit: Annotated[int, Query(ge=1, le=MOST_AT_ONCE, description="flips at once")] = AT_ONCE,
    wait: Annotated[float, Query(ge=0, le=MOST_SECONDS, description="seconds to wait for it")] = 0,
) -> Response:
    """Judges beside each other on the samples that all have judged, with the flips of one pair.

    One run compares its judges; of several runs each gives the judge named with it, or all it has. `at`
    comes with an answer 202 and asks for that very comparison, though a run went on since.
    """
    stores, jobs = stores_of(request), jobs_of(request)
    sides = await run_in_threadpool(_sides, stores, query)
    at, found = comparison_of(jobs, stores, query, sides.sides)
    if isinstance(found, Pending) and wait:
        await asyncio.wait([asyncio.wrap_future(found.done)], timeout=wait)
        query = CompareQuery(query.runs, query.metrics, at, query.pair, query.right, query.start)
        at, found = comparison_of(jobs, stores, query, sides.sides)
    if isinstance(found, Refused):
        raise HTTPException(found.status, seen(found.message))
    if isinstance(found, Pending):
        again = request.url.include_query_params(at=".".join(map(str, at)))
        body = {"detail": "being worked out", "ahead": found.ahead, "again": f"{again.path}?{again.query}"}
        return JSONResponse(body, 202, {"Retry-After": "1"})
    view = await run_in_threadpool(_view, stores, found, sides, at, query, limit)
    return Response(json.dumps(view, allow_nan=False), media_type="application/json")


def _sides(stores: StorePool, query: CompareQuery) -> Sides:
    with stores.one() as store:
        found = find_sides(store, query.runs)
    if found.problem is not None:
        raise HTTPException(404 if found.unknown else 422, seen(found.problem))
    if len(found.sides) < 2:
        raise HTTPException(422, "a comparison takes two judges or more; name another with run=ID:JUDGE")
    return found


def _view(
    stores: StorePool,
    found: Finished[Comparison],
    sides: Sides,
    at: tuple[int, ...],
    query: CompareQuery,
    limit: int,
) -> dict[str, object]:
    with stores.one() as store:
        view = compare_view(
            store,
            found.value,
            sides.sides,
            at,
            pair=query.pair,
            right=query.right,
            start=query.start,
            limit=limit,
        )
    return asdict(view)
