"""The data that the store knows, as pages: what runs judged, stored sets, public sets, and one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.exceptions import HTTPException

from magistrate._text import shorten
from magistrate.datasets import describe
from magistrate.errors import SpecError
from magistrate.server.responses import link, page
from magistrate.server.runs import JudgeHead, RunRow, runs_view
from magistrate.server.state import Refused, RequestStore, RunCache, run_cache_of
from magistrate.store import DatasetVersion, Snapshot, Store
from magistrate.store.dataset_lists import JudgedData
from magistrate.store.figures import RunFilter

AT_ONCE = 30
RUNS_SHOWN = 50
JUDGES_DRAWN = 12
MOST_READ = 2_000  # samples whose labels are read while somebody waits
WIDTH, HEIGHT = 400, 120  # of a chart's plot, in its coordinates

Labels = dict[str | None, int]
Words = Annotated[str, Query(max_length=200)]

router = APIRouter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The figure of one run in a chart over time, in the chart's coordinates.

    `low` and `high` are the ends of its interval, None if it has none.
    """

    run: RunRow
    head: JudgeHead
    x: float
    y: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A judge's figures of one metric in the runs over one data set, oldest first."""

    judge: str
    metric: str
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataView:
    """Data with the runs that judged it, newest first; `n_runs` of them in all.

    `start` is how the page that starts runs names it, None if it cannot be judged from there. `stored` is set
    for a stored set. `labels` is None while they are being counted. `others` are data of the same name with
    other content.
    """

    title: str
    digest: str
    n_samples: int
    labels: Labels | None
    stored: DatasetVersion | None
    start: str | None
    runs: tuple[RunRow, ...]
    n_runs: int
    courses: tuple[Course, ...]
    others: tuple[JudgedData, ...]


def data_address(digest: str) -> str:
    """Return the address of the page of data that runs judged."""
    return link("/datasets/data", digest=digest)


def set_address(ref: str) -> str:
    """Return the address of the page of a stored set's version."""
    return link("/datasets/data", stored=ref)


def courses_of(rows: Sequence[RunRow]) -> tuple[Course, ...]:
    """Return the figures of each judge and metric over these runs, which are the newest first."""
    found: dict[tuple[str, str], list[tuple[RunRow, JudgeHead]]] = {}
    for run in reversed(rows):
        for head in run.judges:
            if head.metric is not None and head.value is not None:
                found.setdefault((head.judge, head.metric), []).append((run, head))
    several = ((key, points) for key, points in found.items() if len(points) > 1)
    return tuple(
        Course(judge=judge, metric=metric, places=tuple(_places(points)))
        for (judge, metric), points in sorted(several, key=lambda each: -len(each[1]))[:JUDGES_DRAWN]
    )


def _places(points: Sequence[tuple[RunRow, JudgeHead]]) -> list[Place]:
    def up(value: float | None) -> float | None:
        return None if value is None else round(HEIGHT * (1 - value), 1)

    step = WIDTH / (len(points) - 1)
    return [
        Place(
            run=run,
            head=head,
            x=round(at * step, 1),
            y=up(head.value) or 0.0,
            low=up(head.low),
            high=up(head.high),
        )
        for at, (run, head) in enumerate(points)
    ]


def judged_view(store: Store, digest: str) -> DataView:
    """Return the data of this digest. Raises `SpecError` if no run judged it."""
    with store.snapshot() as moment:
        found = moment.judged_data(digest=digest, limit=1)
        if not found:
            raise SpecError(f"no run judged data with the digest {shorten(repr(digest))}; see /datasets")
        (data,) = found
        labels = moment.run_labels(data.last_run)
        named = moment.judged_data(data.name.split(), limit=AT_ONCE)
    view = runs_view(store, RunFilter(digest=digest), limit=RUNS_SHOWN)
    return DataView(
        title=data.version or data.name,
        digest=data.digest,
        n_samples=data.n_samples,
        labels=labels,
        stored=None,
        start=f"run:{digest}" if data.n_done else None,
        runs=view.rows,
        n_runs=view.n,
        courses=courses_of(view.rows),
        others=tuple(each for each in named if each.name == data.name and each.digest != digest),
    )


def stored_view(store: Store, cache: RunCache, ref: str) -> DataView:
    """Return a version of a stored set. Raises `SpecError` if there is none."""
    with store.snapshot() as moment:
        stored = moment.stored_set(ref)
        key, digest = ("set_labels", stored.digest), stored.digest
        labels: Labels | Refused | None
        if stored.n_samples <= MOST_READ:
            labels = cache.get(key, lambda: moment.set_labels(digest))
        else:
            labels = cache.get_in_background(key, lambda later: later.set_labels(digest))
    if isinstance(labels, Refused):
        raise HTTPException(labels.status, labels.message)
    view = runs_view(store, RunFilter(version=stored.ref), limit=RUNS_SHOWN)
    return DataView(
        title=stored.ref,
        digest=stored.digest,
        n_samples=stored.n_samples,
        labels=labels,
        stored=stored,
        start=f"stored:{stored.ref}",
        runs=view.rows,
        n_runs=view.n,
        courses=courses_of(view.rows),
        others=(),
    )


def _labels(moment: Snapshot, cache: RunCache, data: JudgedData) -> Labels:
    key = ("labels", data.last_run, data.revision)
    return cache.get(key, lambda: moment.run_labels(data.last_run))


@router.get("/datasets")
def datasets_page(
    request: Request,
    store: RequestStore,
    q: Words = "",
    before: Annotated[int | None, Query(ge=0, le=2**63 - 1)] = None,
) -> Response:
    """Show what runs judged, the stored sets, and the public sets."""
    with store.snapshot() as moment:
        found = moment.judged_data(q.split(), before=before, limit=AT_ONCE + 1)
        cache = run_cache_of(request)
        judged = [(each, _labels(moment, cache, each)) for each in found[:AT_ONCE]]
        stored = moment.stored_sets() if before is None else []
    words = [word.casefold() for word in q.split()]
    named = describe() if before is None else []
    return page(
        request,
        "datasets.html",
        q=q,
        judged=judged,
        older=found[AT_ONCE - 1].number if len(found) > AT_ONCE else None,
        stored=[each for each in stored if all(word in each.ref.casefold() for word in words)],
        named=[each for each in named if all(word in each.name.casefold() for word in words)],
        data_address=data_address,
        set_address=set_address,
    )


@router.get("/datasets/data")
def data_page(
    request: Request,
    store: RequestStore,
    digest: Annotated[str, Query(max_length=1000)] = "",
    stored: Annotated[str, Query(max_length=300)] = "",
) -> Response:
    """Show one data set with the runs that judged it: by the digest of a run's data, or by a stored name."""
    if bool(digest) == bool(stored):
        raise HTTPException(422, "the address names one data set: ?digest=… or ?stored=NAME@VERSION")
    view = judged_view(store, digest) if digest else stored_view(store, run_cache_of(request), stored)
    size = (WIDTH, HEIGHT)
    return page(request, "dataset.html", view=view, size=size, data_address=data_address)
