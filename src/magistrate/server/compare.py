"""Comparisons of judges, as a page and as JSON, computed in the background."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import BaseModel

from magistrate._text import p_of, percent, seen, shorten, signed
from magistrate.analysis.comparison import (
    Comparison,
    Difference,
    Flip,
    PairResult,
    SideResult,
    name_of,
    sentences_of,
)
from magistrate.analysis.comparison import (
    compare as compare_sides,
)
from magistrate.api.compare import sides_at
from magistrate.errors import InputError, SpecError
from magistrate.metrics.classification import Estimate
from magistrate.metrics.paired import COMPARED
from magistrate.report.comparison import KEY, family_text
from magistrate.report.formatting import tally
from magistrate.server.responses import Refusal, error_responses, link, page, run_address, sample_address
from magistrate.server.run import judge_of
from magistrate.server.runs import Number, Words, runs_view
from magistrate.server.state import (
    Finished,
    JobQueue,
    Pending,
    Refused,
    RequestStore,
    StorePool,
    jobs_of,
    stores_of,
)
from magistrate.store import RunRecord, Store
from magistrate.store.figures import RunFilter

MOST_SIDES = 6
"""Six sides are fifteen pairs; more take long, and their correction leaves little to be shown."""
_MOST_WORDS = 2 * MOST_SIDES
_MOST_UNKNOWN = 3  # searching names similar to an unknown one reads all runs


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSide:
    """A judge of a run to compare, with the run's revision. `word` identifies it in addresses."""

    word: str
    run: str
    name: str | None
    judge: str
    dataset: str
    status: str
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The sides in an address, and the reason why they cannot be compared, None if they can.

    `unknown` is set if the problem is an unknown run or judge.
    """

    sides: tuple[ChosenSide, ...]
    problem: str | None = None
    unknown: bool = False


def word_of(run_id: str, judge: str) -> str:
    """Encode a judge of a run as one word of an address: run id, colon, judge name.

    Characters that a page cannot contain are percent-encoded, and so is `%`.

    >>> word_of("20260102-1", "strict: 5 %"), word_of("20260102-1", "\\x1b")
    ('20260102-1:strict: 5 %25', '20260102-1:%1B')
    """
    letters = (
        letter if letter.isprintable() and letter != "%" else quote(letter, safe="", errors="surrogatepass")
        for letter in judge
    )
    return f"{run_id}:{''.join(letters)}"


def run_and_judge(word: str) -> tuple[str, str | None]:
    """Return the run's id and the judge, None if the word names only a run. Run ids contain no colon."""
    run_id, colon, judge = word.partition(":")
    if not colon:
        return run_id, None
    try:
        return run_id, unquote(judge, errors="surrogatepass")
    except UnicodeDecodeError:
        return run_id, unquote(judge)  # not the name of any judge


def find_sides(store: Store, words: Sequence[str]) -> Sides:
    """Return the sides for these words. A word names a judge of a run, or all judges of a run."""
    found: list[ChosenSide] = []
    records: dict[str, RunRecord] = {}
    unknown: list[str] = []
    with store.snapshot() as moment:
        for word in words[:_MOST_WORDS]:
            run_id, judge = run_and_judge(word)
            try:
                if run_id not in records:
                    records[run_id] = store.seen(moment.record(run_id))
                found += _chosen(records[run_id], judge)
            except SpecError as error:
                unknown.append(str(error))
                if len(unknown) == _MOST_UNKNOWN:
                    break
    sides = tuple({(each.run, each.judge): each for each in found}.values())
    return Sides(
        sides=sides[:_MOST_WORDS],
        problem=unknown[0] if unknown else _problem(found, sides, len(words)),
        unknown=bool(unknown),
    )


def _problem(found: Sequence[ChosenSide], sides: Sequence[ChosenSide], n_words: int) -> str | None:
    """Return why these sides cannot be compared; None if they can."""
    if len(sides) < len(found):
        twice = next(each for at, each in enumerate(found) if each in found[:at])
        called = f"{shorten(twice.judge)} of run {shorten(twice.name or twice.run)}"
        return f"{called} is given twice; a judge cannot be compared with itself"
    if len(sides) > MOST_SIDES or n_words > _MOST_WORDS:
        return f"at most {MOST_SIDES} judges can be compared at once; remove some"
    return None


def _chosen(record: RunRecord, judge: str | None) -> list[ChosenSide]:
    if judge_of(record, judge) is None:
        raise SpecError(f"run {record.id} has no judge yet")
    return [
        ChosenSide(
            word=word_of(record.id, each),
            run=record.id,
            name=record.name,
            judge=each,
            dataset=record.dataset,
            status=record.status,
            revision=record.revision,
        )
        for each in (record.judges if judge is None else (judge,))
    ]


AT_ONCE = 25
MOST_AT_ONCE = 500
EXCERPT = 240  # characters of an output

Who = Literal["first", "second"]


def check_metrics(names: Sequence[str]) -> tuple[str, ...]:
    """Return these metrics in the usual order; empty means the default. `InputError` for unknown ones."""
    if unknown := [name for name in names if name not in COMPARED]:
        raise InputError(f"unknown metric {shorten(repr(unknown[0]))}; known: {', '.join(COMPARED)}")
    return tuple(name for name in COMPARED if name in names)


def compared(store: Store, sides: Sequence[ChosenSide], metrics: Sequence[str]) -> Comparison:
    """Compare these sides in the current store. Raises `InputError` if they cannot be compared."""
    with store.snapshot() as moment:
        records = {run: moment.record(run) for run in dict.fromkeys(side.run for side in sides)}
        read = sides_at(moment, [(records[side.run], side.judge) for side in sides])
    return compare_sides(read, metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideView:
    """A side: its own coverage, and its metrics on the samples that all sides share.

    `name` is unique among the sides. `changed` is set if its run has changed since the comparison.
    """

    name: str
    run: str
    run_name: str | None
    judge: str
    status: str
    changed: bool
    n_total: int
    n_ok: int
    n_failures: int
    n_abstentions: int
    coverage: float | None
    labels: dict[str, int]
    figures: dict[str, Estimate]


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceView:
    """The first side's metric minus the second's, with its 95 % interval; fields as in `Difference`."""

    value: float | None
    low: float | None
    high: float | None
    undefined: str | None
    p: float | None
    p_corrected: float | None
    exploratory: bool
    detectable: float | None
    better: Who | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairView:
    """Two of the sides, by number: how often each was right, and the differences of their metrics.

    The counts of who was right and the p value of McNemar's test are None without gold labels.
    """

    first: int
    second: int
    both_right: int | None
    only_first_right: int | None
    only_second_right: int | None
    both_wrong: int | None
    mcnemar_p: float | None
    differences: dict[str, DifferenceView]
    sentences: tuple[str, ...]
    n_flips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipRow:
    """A sample to which two sides gave different labels. `excerpt` is the beginning of its output."""

    sample_id: str
    gold: str | None
    first: str
    second: str
    first_score: float
    second_score: float
    right: Who | None
    excerpt: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipsView:
    """A page of the flips of one pair, those with the largest difference of scores first.

    There are `n` flips, filtered to those on which `right` is right, unless it is None. `previous` and
    `next` are the start numbers of the pages before and after this one, None at an end.
    """

    pair: int
    right: Who | None
    n: int
    start: int
    previous: int | None
    next: int | None
    rows: tuple[FlipRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareView:
    """A comparison, with fields as in `analysis.comparison.Comparison`, and the flips of one pair."""

    n: int
    n_all: int
    n_contexts: int
    left_out: dict[str, int]
    gold: bool
    metrics: tuple[str, ...]
    primary: tuple[str, ...]
    corrected_together: int
    draws: int
    seed: int
    sides: tuple[SideView, ...]
    pairs: tuple[PairView, ...]
    remarks: tuple[str, ...]
    flips: FlipsView


def compare_view(
    store: Store,
    comparison: Comparison,
    sides: Sequence[ChosenSide],
    at: Sequence[int],
    *,
    pair: int = 0,
    right: Who | None = None,
    start: int = 0,
    limit: int = AT_ONCE,
) -> CompareView:
    """Return a comparison of these sides at the revisions `at`, with flips from number `start` on.

    Raises `SpecError` if there is no pair of this number.
    """
    if pair >= len(comparison.pairs):
        raise SpecError(f"there are {len(comparison.pairs)} pairs, numbered from 0; there is no pair {pair}")
    numbers = list(combinations(range(len(sides)), 2))
    return CompareView(
        n=comparison.n,
        n_all=comparison.n_all,
        n_contexts=comparison.n_contexts,
        left_out=dict(comparison.left_out),
        gold=comparison.gold,
        metrics=comparison.metrics,
        primary=comparison.primary,
        corrected_together=comparison.family,
        draws=comparison.draws,
        seed=comparison.seed,
        sides=tuple(map(_side, comparison.sides, sides, at)),
        pairs=tuple(
            _pair(comparison, each, *both) for each, both in zip(comparison.pairs, numbers, strict=True)
        ),
        remarks=comparison.remarks,
        flips=_flips(store, comparison, sides[numbers[pair][0]].run, pair, right, start, limit),
    )


def _side(result: SideResult, chosen: ChosenSide, revision: int) -> SideView:
    return SideView(
        name=result.name,
        run=chosen.run,
        run_name=chosen.name,
        judge=chosen.judge,
        status=chosen.status,
        changed=chosen.revision != revision,
        n_total=result.n_total,
        n_ok=result.n_ok,
        n_failures=result.failures,
        n_abstentions=result.abstentions,
        coverage=result.coverage,
        labels=dict(result.labels),
        figures=dict(result.figures),
    )


def _pair(comparison: Comparison, pair: PairResult, first: int, second: int) -> PairView:
    return PairView(
        first=first,
        second=second,
        both_right=pair.both_right,
        only_first_right=pair.only_first,
        only_second_right=pair.only_second,
        both_wrong=pair.both_wrong,
        mcnemar_p=pair.mcnemar,
        differences={name: _difference(each) for name, each in pair.differences.items()},
        sentences=sentences_of(replace(comparison, pairs=(pair,))),
        n_flips=len(pair.flips),
    )


def _difference(each: Difference) -> DifferenceView:
    who: dict[int, Who | None] = {1: "first", -1: "second", 0: None}
    return DifferenceView(
        value=each.value.value,
        low=each.value.low,
        high=each.value.high,
        undefined=each.value.undefined,
        p=each.p,
        p_corrected=each.corrected,
        exploratory=each.exploratory,
        detectable=each.detectable,
        better=who[each.better],
    )


def _flips(
    store: Store, comparison: Comparison, run_id: str, number: int, right: Who | None, start: int, limit: int
) -> FlipsView:
    pair = comparison.pairs[number]
    who: dict[str | None, Who | None] = {pair.first: "first", pair.second: "second"}
    fit = [each for each in pair.flips if right is None or who.get(each.right) == right]
    shown = fit[start : start + limit]
    with store.snapshot() as moment:
        outputs = moment.outputs(run_id, [each.sample_id for each in shown])
    return FlipsView(
        pair=number,
        right=right,
        n=len(fit),
        start=start,
        previous=max(start - limit, 0) if start else None,
        next=start + limit if start + limit < len(fit) else None,
        rows=tuple(_row(each, who.get(each.right), outputs.get(each.sample_id)) for each in shown),
    )


def _row(flip: Flip, right: Who | None, output: str | None) -> FlipRow:
    return FlipRow(
        sample_id=flip.sample_id,
        gold=flip.gold,
        first=flip.first,
        second=flip.second,
        first_score=flip.first_score,
        second_score=flip.second_score,
        right=right,
        excerpt=None if output is None else shorten(output, EXCERPT),
    )


CHOICES = 20  # runs per page to choose from
AGAIN = 0.8  # seconds until a page polls again
MOST_SECONDS = 30.0  # maximum time that a client may wait for a comparison

router = APIRouter()
api = APIRouter(tags=["comparisons"])

Many = Annotated[list[str], Query(max_length=50)]


@dataclass(frozen=True, slots=True)
class CompareQuery:
    """The query of a comparison. `runs` are the words of its sides, `at` the revisions that were compared."""

    runs: list[str]
    metrics: tuple[str, ...]
    at: tuple[int, ...]
    pair: int
    right: Who | None
    start: int


def compare_query(
    run: Annotated[Many, Query(description="ID or ID:JUDGE; escape special characters with `%`")] = [],  # noqa: B006
    metric: Annotated[Many, Query(description="the metrics to test; balanced accuracy by default")] = [],  # noqa: B006
    at: Annotated[str, Query(pattern=r"^(\d{1,15}(\.\d{1,15}){0,20})?$")] = "",
    pair: Annotated[int, Query(ge=0, lt=1000, description="whose flips are listed")] = 0,
    right: Annotated[Who | None, Query(description="flips on which this side is right")] = None,
    start: Annotated[int, Query(ge=0, lt=2**31)] = 0,
) -> CompareQuery:
    """Parse the query of an address. Raises `InputError` for an unknown metric."""
    revisions = tuple(int(each) for each in at.split(".") if each)
    return CompareQuery(run, check_metrics(metric), revisions, pair, right, start)


CompareParams = Annotated[CompareQuery, Depends(compare_query)]


def comparison_of(
    jobs: JobQueue, stores: StorePool, query: CompareQuery, sides: tuple[ChosenSide, ...]
) -> tuple[tuple[int, ...], Finished[Comparison] | Pending | Refused]:
    """Return the comparison of these sides, and the revisions of their runs that it was computed for.

    A run in progress changes all the time, so a page that waited for one revision asks for that one again.
    """

    def key(at: tuple[int, ...]) -> tuple[Any, ...]:
        named = tuple((each.run, each.name, each.judge) for each in sides)
        return "comparison", named, at, query.metrics

    def work() -> Comparison:
        with stores.one() as store:
            return compared(store, sides, query.metrics)

    if len(query.at) == len(sides) and (before := jobs.find(key(query.at))) is not None:
        return query.at, before
    now = tuple(each.revision for each in sides)
    return now, jobs.submit(key(now), work)


@router.get("/compare")
def compare_page(
    request: Request,
    store: RequestStore,
    query: CompareParams,
    q: Words = "",
    data: Annotated[str, Query(max_length=10)] = "same",
    choose: Annotated[str, Query(max_length=10)] = "",
    before: Number = None,
    after: Number = None,
) -> Response:
    """Show the comparison, or a list of runs to choose from."""
    sides = find_sides(store, query.runs)
    listing = bool(choose) or before is not None or after is not None
    if listing or sides.problem or len(sides.sides) < 2:
        place = {"q": q, "data": data, "before": before, "after": after}
        return _choice(request, store, query, sides, place, listing)
    if "q" in request.query_params or "data" in request.query_params:
        return RedirectResponse(_Links(query, sides.sides).here, 303)
    at, found = comparison_of(jobs_of(request), stores_of(request), query, sides.sides)
    view = None
    if isinstance(found, Finished):
        view = compare_view(
            store, found.value, sides.sides, at, pair=query.pair, right=query.right, start=query.start
        )
    return page(
        request,
        "compare.html",
        status=found.status if isinstance(found, Refused) else 200,
        view=view,
        chosen=sides.sides,
        pending=found if isinstance(found, Pending) else None,
        message=found.message if isinstance(found, Refused) else None,
        passing=isinstance(found, Refused) and found.status == 503,
        again=round(1000 * AGAIN),
        to=_Links(query, sides.sides, at),
        reach=_reach(view) if view else 1.0,
        key=KEY,
        family=family_text(view.primary, view.corrected_together) if view else "",
        words={"name_of": name_of, "p_of": p_of, "percent": percent, "signed": signed, "tally": tally},
    )


def _reach(view: CompareView) -> float:
    """Return the largest absolute difference or interval end, to draw all at one scale."""
    ends = [
        abs(end)
        for pair in view.pairs
        for each in pair.differences.values()
        for end in (each.value, each.low, each.high)
        if end is not None
    ]
    return max([*ends, 0.05])


def _choice(
    request: Request, store: Store, query: CompareQuery, sides: Sides, place: dict[str, Any], listing: bool
) -> Response:
    """Show the page of runs to choose from: those of the first chosen run's data set, or all on request."""
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
        metrics=query.metrics,
        most=MOST_SIDES,
        word_of=word_of,
        name_of=name_of,
    )


class _Links:
    """The addresses that a comparison links to. `at` are the revisions that were compared."""

    def __init__(self, query: CompareQuery, sides: tuple[ChosenSide, ...], at: tuple[int, ...] = ()) -> None:
        self._sides = sides
        self._what: dict[str, Any] = {"run": [each.word for each in sides]}
        if query.metrics:
            self._what["metric"] = list(query.metrics)
        # A run in progress will have changed at the next request, but the links must lead to this comparison.
        going = any(each.status == "running" for each in sides)
        self._at = {"at": ".".join(map(str, at))} if at else {}
        self._kept = self._at if going else {}
        self._flips = {"pair": query.pair or None, "right": query.right}
        self._start = query.start

    @property
    def here(self) -> str:
        """This comparison, for the current revisions."""
        return link("/compare", **self._what)

    @property
    def again(self) -> str:
        """This page, to reload once the comparison is computed."""
        start = self._start or None
        return link("/compare", **self._what, **self._flips, start=start, **self._at)

    @property
    def choose(self) -> str:
        """The list to choose other sides from."""
        return link("/compare", **self._what, choose="list")

    @property
    def data(self) -> str:
        """The comparison as JSON."""
        return link("/api/compare", **self._what, **self._flips, **self._kept)

    def pair(self, number: int) -> str:
        """Return the address with another pair shown."""
        return link("/compare", **self._what, pair=number or None, **self._kept) + "#pair"

    def flips(self, right: Who | None = None, start: int = 0) -> str:
        """Return the address with other flips listed."""
        shown = self._flips | {"right": right, "start": start or None}
        return link("/compare", **self._what, **shown, **self._kept) + "#flips"

    def without(self, side: int) -> str:
        """Return the address of the comparison without one side."""
        rest = [each for at, each in enumerate(self._what["run"]) if at != side]
        return link("/compare", **{**self._what, "run": rest})

    def run(self, side: int) -> str:
        """Return the address of a side's run, with its judge."""
        return run_address(self._sides[side].run, judge=self._sides[side].judge)

    def sample(self, side: int, sample_id: str) -> str:
        """Return the address of a sample as judged by a side."""
        return sample_address(self._sides[side].run, sample_id, judge=self._sides[side].judge)


# --- as JSON --------------------------------------------------------------------------------------


class Working(BaseModel):
    """A comparison that is being computed after `ahead` others. Poll the address `again`."""

    detail: str
    ahead: int
    again: str


@api.get(
    "/compare",
    response_model=CompareView,
    responses={
        202: {"model": Working, "description": "Not computed yet; try again after Retry-After"},
        **error_responses(404, 422),
        503: {"model": Refusal, "description": "Too much is being computed, or the store cannot be read"},
    },
)
async def compare(
    request: Request,
    query: CompareParams,
    limit: Annotated[int, Query(ge=1, le=MOST_AT_ONCE, description="flips at once")] = AT_ONCE,
    wait: Annotated[float, Query(ge=0, le=MOST_SECONDS, description="seconds to wait for it")] = 0,
) -> Response:
    """Compare judges on the samples that all have judged, with the flips of one pair.

    A single run compares its judges. Of several runs, each contributes the judge named with it, or all its
    judges. `at` is returned with status 202 and requests that same comparison, even if a run has changed
    since.
    """
    stores, jobs = stores_of(request), jobs_of(request)
    sides = await run_in_threadpool(_sides, stores, query)
    at, found = comparison_of(jobs, stores, query, sides.sides)
    if isinstance(found, Pending) and wait:
        await asyncio.wait([asyncio.wrap_future(found.done)], timeout=wait)
        query = CompareQuery(query.runs, query.metrics, at, query.pair, query.right, query.start)
        at, found = comparison_of(jobs, stores, query, sides.sides)
    if isinstance(found, Refused):
        raise HTTPException(found.status, seen(found.message))
    if isinstance(found, Pending):
        again = request.url.include_query_params(at=".".join(map(str, at)))
        body = {"detail": "being computed", "ahead": found.ahead, "again": f"{again.path}?{again.query}"}
        return JSONResponse(body, 202, {"Retry-After": "1"})
    view = await run_in_threadpool(_view, stores, found, sides, at, query, limit)
    return Response(json.dumps(view, allow_nan=False), media_type="application/json")


def _sides(stores: StorePool, query: CompareQuery) -> Sides:
    with stores.one() as store:
        found = find_sides(store, query.runs)
    if found.problem is not None:
        raise HTTPException(404 if found.unknown else 422, seen(found.problem))
    if len(found.sides) < 2:
        raise HTTPException(422, "a comparison needs at least two judges; add another with run=ID:JUDGE")
    return found


def _view(
    stores: StorePool,
    found: Finished[Comparison],
    sides: Sides,
    at: tuple[int, ...],
    query: CompareQuery,
    limit: int,
) -> dict[str, object]:
    with stores.one() as store:
        view = compare_view(
            store,
            found.value,
            sides.sides,
            at,
            pair=query.pair,
            right=query.right,
            start=query.start,
            limit=limit,
        )
    return asdict(view)
