"""One sample of a run with all of its outcomes, as a page and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Request, Response

from magistrate.report.html.outcomes import is_right
from magistrate.server.rendering import page, query_of, run_address, sample_address
from magistrate.server.responses import error_responses, json_response
from magistrate.server.run import PageParams
from magistrate.server.store_pool import RequestStore
from magistrate.server.views.evidence import CLAIMS_AT_ONCE, evidence_of, steps_of
from magistrate.server.views.outcomes import ALL, ListFilter, neighbours
from magistrate.server.views.run import judge_of
from magistrate.store import Store
from magistrate.store.outcome_lists import Elsewhere
from magistrate.types import Abstention, Outcome, Sample, Verdict

Kind = Literal["verdict", "failure", "abstention"]
ERRORS = error_responses(404, 422, 503)

Name = Annotated[str, Query(max_length=1000)]

router = APIRouter()
api = APIRouter(tags=["samples"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A judge's outcome; `right` is None if its label or the true one is not faithful or hallucinated."""

    judge: str
    kind: Kind
    right: bool | None
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleView:
    """A sample with its outcomes.

    `position` is its number in the run, from 0, of `n_samples`. `judges` are all judges of the run, also
    those without an outcome for this sample; `judge` is the one that is shown, None in a run without judges.
    `previous` and `next` are ids. `elsewhere` has outcomes of the same sample in other runs, newest first.
    """

    run_id: str
    run_name: str | None
    dataset: str
    model: str
    position: int
    n_samples: int
    sample: Sample
    judges: tuple[str, ...]
    judge: str | None
    outcomes: tuple[Judged, ...]
    previous: str | None
    next: str | None
    elsewhere: tuple[Elsewhere, ...]

    @property
    def judged(self) -> Judged | None:
        """The outcome of the judge that is shown; None if it has not judged the sample yet."""
        return next((each for each in self.outcomes if each.judge == self.judge), None)


def sample_view(
    store: Store,
    run_id: str,
    sample_id: str,
    judge: str | None = None,
    *,
    wanted: ListFilter = ALL,
    all_steps: bool = False,
) -> SampleView:
    """The sample, with the steps of `judge` (by default the run's first judge) or of all judges.

    The samples before and after it are those of the list filtered by `wanted`, by default of the run.
    Raises `SpecError` if there is no such run, sample or judge.
    """
    with store.snapshot() as moment:
        record = moment.record(run_id)
        sample = moment.sample(run_id, sample_id)
        chosen = judge_of(record, judge)
        all_steps = all_steps or len(record.judges) == 1
        outcomes = moment.outcomes(run_id, sample_id=sample_id, with_steps=all_steps)
        found = {each.judge: each for each in outcomes}
        if chosen in found and not all_steps:
            (found[chosen],) = moment.outcomes(run_id, judge=chosen, sample_id=sample_id, with_steps=True)
        position = moment.position(run_id, sample_id)
        assert position is not None, "the sample was found"
        if wanted.query and chosen is not None:
            before, after = neighbours(moment, run_id, chosen, wanted, position)
        else:
            before, after = moment.beside(run_id, position)
        return SampleView(
            run_id=run_id,
            run_name=record.name,
            dataset=record.dataset,
            model=record.model,
            position=position,
            n_samples=record.n_samples,
            sample=sample,
            judges=record.judges,
            judge=chosen,
            outcomes=tuple(_judged(sample, found[name]) for name in record.judges if name in found),
            previous=before,
            next=after,
            elsewhere=tuple(moment.elsewhere(run_id, sample_id)),
        )


def _judged(sample: Sample, outcome: Outcome) -> Judged:
    kind: Kind = (
        "verdict"
        if isinstance(outcome, Verdict)
        else "abstention"
        if isinstance(outcome, Abstention)
        else "failure"
    )
    return Judged(judge=outcome.judge, kind=kind, right=is_right(sample, outcome), outcome=outcome)


@router.get("/runs/{run_id}/samples/{sample_id:path}")
def page_by_path(
    request: Request, run_id: str, sample_id: str, store: RequestStore, query: PageParams
) -> Response:
    """The sample of a plain id."""
    return _page(request, store, run_id, sample_id, query.wanted)


@router.get("/runs/{run_id}/sample")
def page_by_query(request: Request, run_id: str, store: RequestStore, query: PageParams) -> Response:
    """The sample of an id that no path can carry."""
    return _page(request, store, run_id, id_in_query(request), query.wanted)


def id_in_query(request: Request) -> str:
    """The sample's id in the query, which may be the empty text; 422 if there is none."""
    found = query_of(request).get("id")
    if found is None:
        raise HTTPException(422, "the address says no sample: ?id=… is missing")
    return found[-1]


def _page(request: Request, store: Store, run_id: str, sample_id: str, wanted: ListFilter) -> Response:
    judge = query_of(request).get("judge", [""])[-1] or None
    view = sample_view(store, run_id, sample_id, judge, wanted=wanted)
    outcome = view.judged.outcome if view.judged else None
    return page(
        request,
        "sample.html",
        view=view,
        evidence=evidence_of(view.sample, outcome, _number(query_of(request).get("claim", [""])[-1])),
        steps=steps_of(view.sample, outcome.steps) if outcome else (),
        n_steps=len(outcome.steps) if outcome else 0,
        claims_at_once=CLAIMS_AT_ONCE,
        within=wanted.chooses,
        to=_Links(view, {"judge": judge, **wanted.query}),
    )


def _number(text: str) -> int | None:
    """A number of a claim; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


class _Links:
    """The addresses that a sample's page links to, with the fields `kept` of its query."""

    def __init__(self, view: SampleView, kept: dict[str, Any]) -> None:
        self._view = view
        self._kept = kept

    def sample(self, sample_id: str) -> str:
        """Another sample of the run."""
        return sample_address(self._view.run_id, sample_id, **self._kept)

    def judge(self, judge: str) -> str:
        """The same sample by another judge."""
        return sample_address(self._view.run_id, self._view.sample.id, **{**self._kept, "judge": judge})

    def claim(self, number: int, anchor: str) -> str:
        """The same page with this claim chosen."""
        return (
            f"{sample_address(self._view.run_id, self._view.sample.id, **self._kept, claim=number)}#{anchor}"
        )

    @property
    def here(self) -> str:
        """The same page with no claim chosen."""
        return self.sample(self._view.sample.id)

    @property
    def data(self) -> str:
        """The sample and all of its outcomes as data."""
        return sample_address(self._view.run_id, self._view.sample.id, start="/api")

    @property
    def run(self) -> str:
        """The run, its list as it was."""
        return run_address(self._view.run_id, **self._kept)

    @staticmethod
    def elsewhere(run_id: str, sample_id: str, judge: str) -> str:
        """A sample of another run."""
        return sample_address(run_id, sample_id, judge=judge)


# --- as JSON --------------------------------------------------------------------------------------


@api.get("/runs/{run_id}/samples/{sample_id:path}", response_model=SampleView, responses=ERRORS)
def sample(run_id: str, sample_id: str, store: RequestStore, judge: Name = "") -> Response:
    """A sample with all of its outcomes and their steps; an id that a path cannot carry goes into a query."""
    return _data(sample_view(store, run_id, sample_id, judge or None, all_steps=True))


@api.get("/runs/{run_id}/sample", response_model=SampleView, responses=ERRORS)
def sample_of_any_id(
    request: Request,
    run_id: str,
    store: RequestStore,
    id: Annotated[str, Query()],
    judge: Name = "",
) -> Response:
    """The same for an id of any letters at all, or of none."""
    return _data(sample_view(store, run_id, id_in_query(request), judge or None, all_steps=True))


def _data(view: SampleView) -> Response:
    return json_response(asdict(view))
