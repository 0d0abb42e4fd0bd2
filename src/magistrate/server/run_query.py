"""What an address asks of a run's judge: a threshold, flags, a list and a place in it, slices."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError

from magistrate.server.addresses import query_of
from magistrate.server.views.run_detail import Asked
from magistrate.server.views.run_list import AT_ONCE, ListFilter, Order, Right
from magistrate.types import ClaimKind

MOST_AT_ONCE = 1_000
TEXTS = ("said", "truth", "code")
"""Fields that may hold anything, halves of surrogate pairs too, so they are read as they were sent."""

Text = Annotated[str | None, Field(max_length=10_000)]
Cursor = Annotated[str | None, Field(max_length=60)]


class FiguresQuery(BaseModel):
    """Which figures of a judge are wanted.

    `threshold` is one of the judge's own scores, from which on a verdict says hallucinated; `flag` the kinds
    of claims by which a rubric's verdicts are decided anew; `by` a field of metadata to slice by.
    """

    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    flag: Annotated[list[ClaimKind], Field(max_length=3)] = []
    by: Annotated[str | None, Field(max_length=200)] = None


class OutcomesQuery(BaseModel):
    """Which outcomes of a judge are wanted, and where in their list.

    `said` is a label, `-failed` or `-abstained`; `truth` a label, or `-` for none. `after` and `before` are
    what the list names `later` and `earlier`.
    """

    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    flag: Annotated[list[ClaimKind], Field(max_length=3)] = []
    said: Text = None
    truth: Text = None
    right: Right | None = None
    code: Text = None
    order: Order = "sample"
    after: Cursor = None
    before: Cursor = None
    limit: Annotated[int, Field(ge=1, le=MOST_AT_ONCE)] = AT_ONCE


class PageQuery(FiguresQuery, OutcomesQuery):
    """Both, as a page is asked."""


def page_asked(request: Request) -> Asked:
    """What the address of a page asks; a field that says nothing, as forms send it, is none.

    Raises `RequestValidationError`.
    """
    given = {
        name: values if name == "flag" else values[-1]
        for name, values in query_of(request).items()
        if name in PageQuery.model_fields and name not in (*TEXTS, "limit") and any(values)
    }
    try:
        found = PageQuery.model_validate(given)
    except ValidationError as error:
        told = [{**each, "loc": ("query", *each["loc"])} for each in error.errors()]
        raise RequestValidationError(told) from None
    return asked_of(request, found, _last(request, "judge"))


def asked_of(request: Request, found: FiguresQuery | OutcomesQuery, judge: str | None) -> Asked:
    """The same of a query that was read, for one judge."""
    listed = found if isinstance(found, OutcomesQuery) else OutcomesQuery()
    return Asked(
        judge=judge,
        wanted=ListFilter(
            said=_last(request, "said"),
            truth=_last(request, "truth"),
            code=_last(request, "code"),
            right=listed.right,
            order=listed.order,
            threshold=found.threshold,
            flag=tuple(sorted(set(found.flag))),
        ),
        by=found.by if isinstance(found, FiguresQuery) else None,
        after=listed.after,
        before=listed.before,
        limit=listed.limit,
    )


def _last(request: Request, name: str) -> str | None:
    return query_of(request).get(name, [""])[-1] or None
