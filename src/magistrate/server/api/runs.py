"""Runs as data."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, Field

from magistrate.server.pages.runs import Number, filter_of
from magistrate.server.stores import AStore
from magistrate.server.views.runs import AT_ONCE, MOST_AT_ONCE, RunsView, runs_view
from magistrate.store.run_lists import RunFilter

router = APIRouter(tags=["runs"])


class RunChange(BaseModel, extra="forbid"):
    """What is to change of a run; what is left out stays."""

    name: str | None = Field(None, max_length=200)
    add_tags: list[str] = Field([], max_length=50)
    remove_tags: list[str] = Field([], max_length=50)


@router.get("/runs")
def runs(
    store: AStore,
    wanted: Annotated[RunFilter, Depends(filter_of)],
    before: Number = None,
    after: Number = None,
    limit: Annotated[int, Query(ge=1, le=MOST_AT_ONCE)] = AT_ONCE,
) -> RunsView:
    """Runs, newest first; `older` goes into `before` for the next ones."""
    return runs_view(store, wanted, before=before, after=after, limit=limit)


@router.delete("/runs/{run_id}", status_code=204)
def delete(run_id: str, store: AStore) -> Response:
    """Delete a run with its outcomes; 503 while a process is at it."""
    with store.hold(store.find_run(run_id).id):
        store.delete(run_id)
    return Response(status_code=204)
