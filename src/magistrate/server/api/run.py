"""A run, the figures of its judges and their outcomes as data."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from magistrate.server.api.telling import refusals, told
from magistrate.server.memory import memory_of
from magistrate.server.run_query import FiguresQuery, OutcomesQuery, asked_of
from magistrate.server.stores import AStore
from magistrate.server.views.run import JudgeData, RunData, judge_data, outcome_list, run_data
from magistrate.server.views.run_list import ListView

router = APIRouter(tags=["runs"])

REFUSALS = refusals(404, 422, 503)


@router.get("/runs/{run_id}", response_model=RunData, responses=REFUSALS)
def run(request: Request, run_id: str, store: AStore) -> Response:
    """A run with the figures of all its judges; without those that nobody has counted yet."""
    return told(asdict(run_data(store, memory_of(request), request.app.state.counter, run_id)))


@router.get("/runs/{run_id}/judges/{judge:path}/figures", response_model=JudgeData, responses=REFUSALS)
def figures(
    request: Request, run_id: str, judge: str, store: AStore, query: Annotated[FiguresQuery, Query()]
) -> Response:
    """One judge's figures, at a threshold, by other kinds of claims, or by a field of metadata."""
    wanted = replace(asked_of(request, query, judge), limit=1)
    return told(asdict(judge_data(store, memory_of(request), request.app.state.counter, run_id, wanted)))


@router.get("/runs/{run_id}/judges/{judge:path}/outcomes", response_model=ListView, responses=REFUSALS)
def outcomes(
    request: Request,
    run_id: str,
    judge: str,
    store: AStore,
    query: Annotated[OutcomesQuery, Query()],
) -> Response:
    """A judge's outcomes that fit; `later` goes into `after` for the next ones."""
    wanted = asked_of(request, query, judge)
    return told(asdict(outcome_list(store, memory_of(request), request.app.state.counter, run_id, wanted)))
