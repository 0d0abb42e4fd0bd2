"""Runs as data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from magistrate.server.api.telling import refusals, told
from magistrate.server.pages.runs import Number, delete_run, filter_of
from magistrate.server.stores import AStore
from magistrate.server.views.runs import AT_ONCE, MOST_AT_ONCE, RunsView, runs_view
from magistrate.store.figures import RunFilter

router = APIRouter(tags=["runs"])


@router.get("/runs", response_model=RunsView, responses=refusals(422, 503))
def runs(
    store: AStore,
    wanted: Annotated[RunFilter, Depends(filter_of)],
    before: Number = None,
    after: Number = None,
    limit: Annotated[int, Query(ge=1, le=MOST_AT_ONCE)] = AT_ONCE,
) -> Response:
    """Runs, newest first; `older` goes into `before` for the next ones."""
    return told(asdict(runs_view(store, wanted, before=before, after=after, limit=limit)))


@router.delete("/runs/{run_id}", status_code=204, responses=refusals(404, 409, 422, 503))
def delete(run_id: str, store: AStore) -> Response:
    """Delete a run with its outcomes; 409 while a process is at it."""
    delete_run(store, run_id)
    return Response(status_code=204)
