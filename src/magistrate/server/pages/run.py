"""The page of one run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse

from magistrate.report.charts import VIEW_BOX
from magistrate.server.addresses import query_of, run_address, sample_address
from magistrate.server.memory import memory_of
from magistrate.server.rendering import page
from magistrate.server.run_query import page_asked
from magistrate.server.stores import AStore
from magistrate.server.views.run import run_view
from magistrate.server.views.run_detail import Asked
from magistrate.server.views.run_list import KINDS

router = APIRouter()


AsAsked = Annotated[Asked, Depends(page_asked)]
"""What the query of a page says is wanted of a judge and of its list."""


@router.get("/runs/{run_id}")
def run(request: Request, run_id: str, store: AStore, asked: AsAsked) -> Response:
    """A run, one of its judges in detail, and a stretch of its outcomes."""
    view = run_view(store, memory_of(request), request.app.state.counter, run_id, asked)
    return page(
        request,
        "run.html",
        view=view,
        wanted=asked.wanted,
        by=asked.by,
        to=_Addresses(run_id, asked, view.detail.judge if view.detail else None),
        cut=cut,
        box=VIEW_BOX,
    )


@router.get("/runs/{run_id}/find")
def find(request: Request, run_id: str, store: AStore) -> Response:
    """The page of the sample of exactly this id; 404 with near ones where there is none."""
    query = query_of(request)
    sample_id = query.get("sample", [""])[-1]
    with store.snapshot() as moment:
        found = moment.sample(run_id, sample_id)
    return RedirectResponse(sample_address(run_id, found.id, judge=query.get("judge", [""])[-1]), 303)


def cut(threshold: float) -> str:
    """A threshold with all of its digits, but no more zeros than it needs.

    >>> cut(0.5), cut(0.6125), cut(1.0), cut(5e-05)
    ('0.5', '0.6125', '1', '0.00005')
    """
    return (
        f"{threshold:.17f}".rstrip("0").rstrip(".")
        if "e" in repr(threshold)
        else f"{threshold!r}".removesuffix(".0")
    )


class _Addresses:
    """Where the links of a run's page lead: the same page with one thing changed, and what lies below it."""

    def __init__(self, run_id: str, asked: Asked, judge: str | None) -> None:
        self._run_id = run_id
        self._asked = asked
        self._judge = judge

    @property
    def here(self) -> str:
        """The path of the page."""
        return run_address(self._run_id)

    def act(self, action: str) -> str:
        """The path of what changes the run, or finds something in it."""
        return f"{self.here}/{action}"

    def kept(self, without: Iterable[str]) -> list[tuple[str, str]]:
        """What a form sends along besides its own fields."""
        told = {"judge": self._asked.judge, "by": self._asked.by, **self._asked.wanted.query}
        pairs = [
            (name, value) for name, value in told.items() if value is not None and name not in set(without)
        ]
        return [
            (name, str(each))
            for name, value in pairs
            for each in (value if isinstance(value, tuple) else (value,))
        ]

    def judge(self, judge: str) -> str:
        """Another judge of the run."""
        return f"{run_address(self._run_id, judge=judge)}#judge"

    def list(self, **cursor: str) -> str:
        """The same list from a cursor on."""
        return self._to({**self._asked.wanted.query, **cursor})

    @property
    def everything(self) -> str:
        """The list without any filter."""
        return self._with(said=None, truth=None, right=None, code=None)

    def cell(self, truth: str, said: str) -> str:
        """What stands behind a cell of the matrix."""
        return f"{self._with(said=said, truth=truth, right=None, code=None)}#samples"

    def code(self, kind: str, code: str) -> str:
        """The outcomes without a verdict that have this code."""
        word = {kind: word for word, kind in KINDS.items()}[kind]
        return f"{self._with(said=word, truth=None, right=None, code=code)}#samples"

    def threshold(self, value: float | None) -> str:
        """The same at another threshold, or as judged."""
        return self._with(threshold=value)

    def flag(self, kinds: tuple[str, ...]) -> str:
        """The same, decided anew by these kinds of claims; by none as judged."""
        return self._with(flag=kinds)

    def sample(self, sample_id: str) -> str:
        """A sample of the list, which knows the list that it is in."""
        query = {"judge": self._judge, **self._asked.wanted.query}
        return sample_address(self._run_id, sample_id, **query)

    def _with(self, **changes: Any) -> str:
        return self._to(self._asked.wanted.but(**changes).query)

    def _to(self, query: dict[str, Any]) -> str:
        return run_address(self._run_id, judge=self._asked.judge, by=self._asked.by, **query)
