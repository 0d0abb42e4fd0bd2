"""The first page: all runs, newest first."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import RedirectResponse

from magistrate.errors import SpecError, StoreError
from magistrate.server.refusals import refusing
from magistrate.server.rendering import page, segment
from magistrate.server.stores import AStore
from magistrate.server.views.runs import runs_view
from magistrate.store import Store
from magistrate.store.figures import RunFilter

router = APIRouter()

Words = Annotated[str, Query(max_length=200)]
Choice = Annotated[str, Query(max_length=1000)]
Number = Annotated[int | None, Query(ge=0, le=2**63 - 1)]


def filter_of(
    q: Words = "",
    dataset: Choice = "",
    judge: Choice = "",
    model: Choice = "",
    tag: Choice = "",
    status: Choice = "",
) -> RunFilter:
    """What the address says is wanted; an empty word says nothing."""
    return RunFilter(
        words=tuple(q.split()),
        dataset=dataset or None,
        judge=judge or None,
        model=model or None,
        tag=tag or None,
        status=status or None,
    )


@router.get("/")
def runs(
    request: Request,
    store: AStore,
    q: Words = "",
    dataset: Choice = "",
    judge: Choice = "",
    model: Choice = "",
    tag: Choice = "",
    status: Choice = "",
    before: Number = None,
    after: Number = None,
) -> Response:
    """The runs that are wanted, a stretch of them."""
    chosen = {"q": q, "dataset": dataset, "judge": judge, "model": model, "tag": tag, "status": status}
    view = runs_view(store, filter_of(**chosen), before=before, after=after)
    return page(request, "runs.html", view=view, chosen=chosen, first=before is None and after is None)


@router.post("/runs/{run_id}/rename")
def rename(run_id: str, store: AStore, name: Annotated[str, Form(max_length=200)] = "") -> Response:
    """Give the run another name, or none."""
    found = store.find_run(run_id)
    with refusing(SpecError, 422):
        store.rename(found.id, name.strip() or None)
    return RedirectResponse(f"/runs/{segment(run_id)}", 303)


@router.post("/runs/{run_id}/tags")
def tag(
    run_id: str,
    store: AStore,
    add: Annotated[str, Form(max_length=200)] = "",
    remove: Annotated[str, Form(max_length=200)] = "",
) -> Response:
    """Add a tag to the run or take one away."""
    store.tag(run_id, add=[add.strip()] if add.strip() else (), remove=[remove] if remove else ())
    return RedirectResponse(f"/runs/{segment(run_id)}", 303)


@router.get("/runs/{run_id}/delete")
def ask(request: Request, run_id: str, store: AStore) -> Response:
    """Ask once more before a run is gone."""
    return page(request, "delete.html", run=store.seen(store.find_run(run_id)))


@router.post("/runs/{run_id}/delete")
def delete(run_id: str, store: AStore) -> Response:
    """Delete the run, unless a process is at it: it would go on and fail."""
    delete_run(store, run_id)
    return RedirectResponse("/", 303)


def delete_run(store: Store, run_id: str) -> None:
    """Delete the run; 409 while a process is at it."""
    found = store.find_run(run_id)
    with refusing(StoreError, 409), store.hold(found.id):
        store.delete(found.id)
