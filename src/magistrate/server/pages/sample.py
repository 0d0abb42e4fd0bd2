"""The page of one sample: what is on trial beside what it must be faithful to, and why a judge said what."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response

from magistrate.server.addresses import query_of, run_address, sample_address
from magistrate.server.pages.run import AsAsked
from magistrate.server.rendering import page
from magistrate.server.stores import AStore
from magistrate.server.views.evidence import CLAIMS_AT_ONCE, evidence_of
from magistrate.server.views.run_list import ListFilter
from magistrate.server.views.sample import SampleView, sample_view
from magistrate.server.views.steps import steps_of
from magistrate.store import Store

router = APIRouter()


@router.get("/runs/{run_id}/samples/{sample_id:path}")
def by_path(request: Request, run_id: str, sample_id: str, store: AStore, asked: AsAsked) -> Response:
    """The sample of a plain id."""
    return _page(request, store, run_id, sample_id, asked.wanted)


@router.get("/runs/{run_id}/sample")
def by_query(request: Request, run_id: str, store: AStore, asked: AsAsked) -> Response:
    """The sample of an id that no path can carry."""
    return _page(request, store, run_id, asked_id(request), asked.wanted)


def asked_id(request: Request) -> str:
    """The sample's id in the query, which may be empty; 422 where there is none."""
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
        to=_Addresses(view, {"judge": judge, **wanted.query}),
    )


def _number(text: str) -> int | None:
    """The number of a claim, None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


class _Addresses:
    """Where the links of a sample's page lead; `kept` of its query goes along."""

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
