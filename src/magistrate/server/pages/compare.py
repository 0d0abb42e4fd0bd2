"""The page that compares judges: which ones is chosen in a list, the comparison is worked out aside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse

from magistrate._text import percent, signed
from magistrate.analysis.comparison import Comparison
from magistrate.analysis.comparison_text import name_of, p_of
from magistrate.metrics.paired import COMPARED
from magistrate.report.comparison import KEY, family_told
from magistrate.report.formatting import tally
from magistrate.server.addresses import run_address, sample_address
from magistrate.server.answers import Answer, Answers, Pending, Refused, answers_of
from magistrate.server.pages.runs import Number, Words
from magistrate.server.rendering import link, page
from magistrate.server.stores import AStore, Stores, stores_of
from magistrate.server.views.choosing import MOST_SIDES, Chosen, Wanted, wanted, word_of
from magistrate.server.views.compare import (
    CompareView,
    Who,
    check_metrics,
    compare_view,
    compared,
)
from magistrate.server.views.runs import runs_view
from magistrate.store import Store
from magistrate.store.run_lists import RunFilter

router = APIRouter()

CHOICES = 20  # runs to choose from at once
AGAIN = 0.8  # seconds until a page looks again

Many = Annotated[list[str], Query(max_length=50)]


@dataclass(frozen=True, slots=True)
class Asked:
    """What an address asks for: `runs` are words of sides, `at` the revisions that were worked out."""

    runs: list[str]
    metrics: tuple[str, ...]
    at: tuple[int, ...]
    pair: int
    right: Who | None
    start: int


def asked(
    run: Annotated[Many, Query(description="ID or ID:JUDGE; `%` escapes what is no letter")] = [],  # noqa: B006
    metric: Annotated[
        Many, Query(description="what is asked about; balanced accuracy where none is named")
    ] = [],  # noqa: B006
    at: Annotated[str, Query(pattern=r"^(\d{1,15}(\.\d{1,15}){0,20})?$")] = "",
    pair: Annotated[int, Query(ge=0, lt=1000, description="whose flips are listed")] = 0,
    right: Annotated[Who | None, Query(description="flips on which this side is right")] = None,
    start: Annotated[int, Query(ge=0, lt=2**31)] = 0,
) -> Asked:
    """The address as values. Raises `InputError` for an unknown metric."""
    revisions = tuple(int(each) for each in at.split(".") if each)
    return Asked(run, check_metrics(metric), revisions, pair, right, start)


AnAsked = Annotated[Asked, Depends(asked)]


def answer(
    answers: Answers, stores: Stores, asked: Asked, sides: tuple[Chosen, ...]
) -> tuple[tuple[int, ...], Answer[Comparison] | Pending | Refused]:
    """The comparison of these sides, and the revisions of their runs that it is of.

    A run under way changes all the time, so whoever waited for what it was at a moment asks for that moment.
    """

    def key(at: tuple[int, ...]) -> tuple[Any, ...]:
        named = tuple((each.run, each.name, each.judge) for each in sides)
        return "comparison", named, at, asked.metrics

    def work() -> Comparison:
        with stores.one() as store:
            return compared(store, sides, asked.metrics)

    if len(asked.at) == len(sides) and (before := answers.known(key(asked.at))) is not None:
        return asked.at, before
    now = tuple(each.revision for each in sides)
    return now, answers.ask(key(now), work)


@router.get("/compare")
def compare(
    request: Request,
    store: AStore,
    asked: AnAsked,
    q: Words = "",
    data: Annotated[str, Query(max_length=10)] = "same",
    choose: Annotated[str, Query(max_length=10)] = "",
    before: Number = None,
    after: Number = None,
) -> Response:
    """The comparison that is asked for, else a list of runs to choose from."""
    sides = wanted(store, asked.runs)
    listing = bool(choose) or before is not None or after is not None
    if listing or sides.problem or len(sides.sides) < 2:
        place = {"q": q, "data": data, "before": before, "after": after}
        return _choice(request, store, asked, sides, place, listing)
    if "q" in request.query_params or "data" in request.query_params:
        return RedirectResponse(_Addresses(asked, sides.sides).here, 303)
    at, found = answer(answers_of(request), stores_of(request), asked, sides.sides)
    view = None
    if isinstance(found, Answer):
        view = compare_view(
            store, found.value, sides.sides, at, pair=asked.pair, right=asked.right, start=asked.start
        )
    return page(
        request,
        "compare.html",
        status=found.status if isinstance(found, Refused) else 200,
        view=view,
        chosen=sides.sides,
        pending=found if isinstance(found, Pending) else None,
        told=found.told if isinstance(found, Refused) else None,
        passing=isinstance(found, Refused) and found.status == 503,
        again=round(1000 * AGAIN),
        to=_Addresses(asked, sides.sides, at),
        reach=_reach(view) if view else 1.0,
        key=KEY,
        family=family_told(view.primary, view.corrected_together) if view else "",
        words={"name_of": name_of, "p_of": p_of, "percent": percent, "signed": signed, "tally": tally},
    )


def _reach(view: CompareView) -> float:
    """How far from zero the differences and their intervals reach, so that all are drawn alike."""
    ends = [
        abs(end)
        for pair in view.pairs
        for each in pair.differences.values()
        for end in (each.value, each.low, each.high)
        if end is not None
    ]
    return max([*ends, 0.05])


def _choice(
    request: Request, store: Store, asked: Asked, sides: Wanted, place: dict[str, Any], listing: bool
) -> Response:
    """The runs to choose from, those of the data of the first one chosen, unless all are wanted."""
    dataset = sides.sides[0].dataset if sides.sides and place["data"] == "same" else None
    view = runs_view(
        store,
        RunFilter(words=tuple(place["q"].split()), dataset=dataset),
        before=place["before"],
        after=place["after"],
        limit=CHOICES,
    )
    problem = sides.problem
    chosen = {each.word for each in sides.sides}
    listed = {word_of(run.id, judge.judge) for run in view.rows for judge in run.judges}
    wrong = problem is not None and not listing
    return page(
        request,
        "choose.html",
        status=(404 if sides.unknown else 422) if wrong else 200,
        view=view,
        problem=problem,
        place=place,
        chosen=chosen,
        aside=[each for each in sides.sides if each.word not in listed],
        dataset=dataset,
        known=COMPARED,
        metrics=asked.metrics,
        most=MOST_SIDES,
        word_of=word_of,
        name_of=name_of,
    )


class _Addresses:
    """Where the links of a comparison lead; `at` are the revisions that it is of."""

    def __init__(self, asked: Asked, sides: tuple[Chosen, ...], at: tuple[int, ...] = ()) -> None:
        self._sides = sides
        self._what: dict[str, Any] = {"run": [each.word for each in sides]}
        if asked.metrics:
            self._what["metric"] = list(asked.metrics)
        # What goes on is another run at the next look; its flips are those of this one all the same.
        going = any(each.status == "running" for each in sides)
        self._at = {"at": ".".join(map(str, at))} if at else {}
        self._kept = self._at if going else {}
        self._flips = {"pair": asked.pair or None, "right": asked.right}
        self._start = asked.start

    @property
    def here(self) -> str:
        """This comparison, as the runs are now."""
        return link("/compare", **self._what)

    @property
    def again(self) -> str:
        """This very page, once it is worked out."""
        start = self._start or None
        return link("/compare", **self._what, **self._flips, start=start, **self._at)

    @property
    def choose(self) -> str:
        """The list to choose others from."""
        return link("/compare", **self._what, choose="list")

    @property
    def data(self) -> str:
        """The same as data."""
        return link("/api/compare", **self._what, **self._flips, **self._kept)

    def pair(self, number: int) -> str:
        """The same with another pair looked at."""
        return link("/compare", **self._what, pair=number or None, **self._kept) + "#pair"

    def flips(self, right: Who | None = None, start: int = 0) -> str:
        """The same with other flips listed."""
        shown = self._flips | {"right": right, "start": start or None}
        return link("/compare", **self._what, **shown, **self._kept) + "#flips"

    def without(self, side: int) -> str:
        """The comparison of all others."""
        rest = [each for at, each in enumerate(self._what["run"]) if at != side]
        return link("/compare", **{**self._what, "run": rest})

    def run(self, side: int) -> str:
        """The run of a side, with its judge."""
        return run_address(self._sides[side].run, judge=self._sides[side].judge)

    def sample(self, side: int, sample_id: str) -> str:
        """A sample as a side judged it."""
        return sample_address(self._sides[side].run, sample_id, judge=self._sides[side].judge)
