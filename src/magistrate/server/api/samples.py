"""Samples as data, with everything that judges made of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from magistrate.server.api.telling import refusals, told
from magistrate.server.pages.sample import asked_id
from magistrate.server.stores import AStore
from magistrate.server.views.sample import SampleView, sample_view

router = APIRouter(tags=["samples"])

REFUSALS = refusals(404, 422, 503)

Name = Annotated[str, Query(max_length=1000)]


@router.get("/runs/{run_id}/samples/{sample_id:path}", response_model=SampleView, responses=REFUSALS)
def sample(run_id: str, sample_id: str, store: AStore, judge: Name = "") -> Response:
    """A sample with all of its outcomes and their steps; an id that a path cannot carry goes into a query."""
    return _data(sample_view(store, run_id, sample_id, judge or None, all_steps=True))


@router.get("/runs/{run_id}/sample", response_model=SampleView, responses=REFUSALS)
def sample_of_any_id(
    request: Request,
    run_id: str,
    store: AStore,
    id: Annotated[str, Query()],
    judge: Name = "",
) -> Response:
    """The same for an id of any letters at all, or of none."""
    return _data(sample_view(store, run_id, asked_id(request), judge or None, all_steps=True))


def _data(view: SampleView) -> Response:
    return told(asdict(view))
