"""One run as a page and as JSON: its facts, its judges' metrics, and one judge in detail."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, Field, ValidationError

from magistrate._text import shorten
from magistrate.errors import SpecError
from magistrate.report.charts import VIEW_BOX
from magistrate.report.counts import RunFigures, count, facts_of, stored_figures
from magistrate.report.values import JudgeReport, Report, comparison, run_facts
from magistrate.server.figures import (
    MOST_COUNTED,
    CodeLine,
    CrossTable,
    Detail,
    FlagPart,
    JudgeReader,
    RunQuery,
    ThresholdPart,
    detail_of,
)
from magistrate.server.outcomes import AT_ONCE, KINDS, ListFilter, ListView, Order, Right
from magistrate.server.responses import (
    error_responses,
    json_response,
    link,
    page,
    query_of,
    run_address,
    sample_address,
)
from magistrate.server.slices import SlicesView
from magistrate.server.state import RequestStore, RunCache, run_cache_of
from magistrate.store import RunRecord, Snapshot, Store
from magistrate.store.figures import RunLine
from magistrate.types import ClaimKind

GROWN = 1.1  # growth of the outcomes of a run in progress after which its metrics are computed again


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a run over all its judges. `n_expected` is None if unknown."""

    n_done: int
    n_failures: int
    n_expected: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRow:
    """A judge in the table of several, in words: number of verdicts, three metrics, time per sample.

    `cells` is empty if nothing is computed yet.
    """

    judge: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run. `n_counted` outcomes are in its metrics, None if there are none yet.

    `progress` is None unless the run is in progress. `detail` is of the selected judge, None in a run
    without judges. `pending` is set while something is being computed.
    """

    record: RunRecord
    facts: tuple[tuple[str, str], ...]
    progress: Progress | None
    n_counted: int | None
    judges: tuple[JudgeRow, ...]
    detail: Detail | None
    pending: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """A run and the metrics of its judges at `counted_revision`, None if not computed yet.

    `current` is set if they are those of the current run. If not, they will be soon.
    """

    record: RunRecord
    counted_revision: int | None
    current: bool
    judges: tuple[JudgeReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeData:
    """One judge's metrics, at a threshold, with other kinds of claims flagged, and by slices, as requested.

    `report` is None if nothing is computed yet; `pending` and `refused` are as in `Detail`.
    """

    judge: str
    report: JudgeReport | None
    threshold: ThresholdPart | None
    flags: FlagPart | None
    codes: tuple[CodeLine, ...]
    labels: CrossTable | None
    slices: SlicesView | None
    pending: bool
    refused: str | None


def run_view(store: Store, cache: RunCache, run_id: str, query: RunQuery) -> RunView:
    """Return the current state of a run. Raises `SpecError` if there is no such run or judge."""
    with store.snapshot() as moment:
        record = store.seen(moment.record(run_id))
        counted = _counted(moment, cache, record)
        judge = judge_of(record, query.judge)
        detail = None
        if judge is not None:
            detail = detail_of(JudgeReader(moment, cache, record, judge), counted, query)
        report = counted.report if counted else Report(facts_of(record), ())
        cells = {name: rest for name, *rest in comparison(report)}
        is_running = record.status == "running"
        return RunView(
            record=record,
            facts=tuple(run_facts(report, record)),
            progress=progress_of(record, record.n_outcomes, record.n_failures) if is_running else None,
            n_counted=_n_counted(counted) if counted else None,
            judges=tuple(JudgeRow(judge=each, cells=tuple(cells.get(each, ()))) for each in record.judges),
            detail=detail,
            pending=_is_old(counted, record) or (detail is not None and detail.pending),
        )


def run_data(store: Store, cache: RunCache, run_id: str) -> RunData:
    """Return a run and its metrics. Raises `SpecError` if there is no such run."""
    with store.snapshot() as moment:
        record = store.seen(moment.record(run_id))
        counted = _counted(moment, cache, record)
        return RunData(
            record=record,
            counted_revision=counted.revision if counted else None,
            current=not _is_old(counted, record),
            judges=counted.report.judges if counted else (),
        )


def judge_data(store: Store, cache: RunCache, run_id: str, query: RunQuery) -> JudgeData:
    """Return one judge's metrics. Raises `SpecError` if there is no such run or judge."""
    found = _detail(store, cache, run_id, query)
    return JudgeData(
        judge=found.judge,
        report=found.part.report if found.part else None,
        threshold=found.part.threshold if found.part else None,
        flags=found.flags,
        codes=found.codes,
        labels=found.table,
        slices=found.slices,
        pending=found.pending or found.part is None,
        refused=found.refused,
    )


def outcome_list(store: Store, cache: RunCache, run_id: str, query: RunQuery) -> ListView:
    """Return a page of the list of a judge's outcomes. Raises `SpecError` as `judge_data` does."""
    return _detail(store, cache, run_id, query).outcomes


def _detail(store: Store, cache: RunCache, run_id: str, query: RunQuery) -> Detail:
    with store.snapshot() as moment:
        record = store.seen(moment.record(run_id))
        judge = judge_of(record, query.judge)
        if judge is None:
            raise SpecError(f"run {run_id} has no judge")
        counted = _counted(moment, cache, record)
        return detail_of(JudgeReader(moment, cache, record, judge), counted, query)


def judge_of(record: RunRecord, named: str | None) -> str | None:
    """Return the named judge, or the first one; None in a run without judges."""
    if named is None:
        return next(iter(record.judges), None)
    if named not in record.judges:
        known = ", ".join(shorten(repr(each)) for each in record.judges[:20]) or "none"
        raise SpecError(f"run {record.id} has no judge {shorten(repr(named))}; it has: {known}")
    return named


def _counted(moment: Snapshot, cache: RunCache, record: RunRecord) -> RunFigures | None:
    """Return the run's current metrics, or the last ones while newer ones are being computed."""

    def now() -> RunFigures | None:
        found = stored_figures(moment, record)
        if found is not None and found.revision == record.revision:
            return found
        if record.n_outcomes > MOST_COUNTED:
            return None
        if record.status != "running":
            cache.counter.ask(record.id)  # stores the metrics, also for the list of runs
        return count(moment, record)

    found = cache.get(("counted", record.id, record.revision), now)
    if found is None:
        known = [each for each in (cache.counter.latest(record.id), stored_figures(moment, record)) if each]
        found = max(known, key=lambda each: each.revision, default=None)
        grown = found is None or record.n_outcomes >= GROWN * _n_counted(found)
        if _is_old(found, record) and (grown or record.status != "running"):
            cache.counter.ask(record.id)
    return found and replace(found, report=replace(found.report, run=facts_of(record)))


def _is_old(counted: RunFigures | None, record: RunRecord) -> bool:
    return counted is None or counted.revision != record.revision


def _n_counted(counted: RunFigures) -> int:
    return sum(each.n_judged for each in counted.report.judges)


def progress_of(run: RunRecord | RunLine, n_done: int, n_failures: int) -> Progress:
    """Return the progress of a run with `n_done` outcomes, `n_failures` of them failures."""
    expected = None if run.n_total is None else run.n_total * max(len(run.judges), 1)
    return Progress(n_done=n_done, n_failures=n_failures, n_expected=expected)


MOST_LISTED = 1_000
LONGEST_SEARCH = 200
ERRORS = error_responses(404, 422, 503)
TEXTS = ("said", "truth", "code", "q")
"""Fields that may hold anything, lone surrogates too, so they are read from the raw query."""

NO_CHOICE = dict.fromkeys(("said", "truth", "right", "code", "q", "least", "most"))
"""The conditions that leave outcomes out of the list, none of them set."""

Text = Annotated[str | None, Field(max_length=10_000)]
Cursor = Annotated[str | None, Field(max_length=60)]
Words = Annotated[str | None, Field(max_length=LONGEST_SEARCH)]
Score = Annotated[float | None, Field(ge=0, le=1)]

router = APIRouter()
api = APIRouter(tags=["runs"])


class FiguresQuery(BaseModel):
    """The requested metrics of a judge.

    From `threshold`, in the judge's own scores, on, a verdict is hallucinated. `flag` are the kinds of
    claims by which a rubric's verdicts are decided again. `by` is a field of metadata to slice by.
    """

    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    flag: Annotated[list[ClaimKind], Field(max_length=3)] = []
    by: Annotated[str | None, Field(max_length=200)] = None


class OutcomesQuery(BaseModel):
    """The requested outcomes of a judge, and the page of their list.

    `said` is a label, `-failed` or `-abstained`; `truth` a label, or `-` for none. Each word of `q` must
    occur in a sample. Scores are from `least` to `most`. `after` and `before` are cursors: the list's `later`
    and `earlier`.
    """

    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    flag: Annotated[list[ClaimKind], Field(max_length=3)] = []
    said: Text = None
    truth: Text = None
    right: Right | None = None
    code: Text = None
    q: Words = None
    least: Score = None
    most: Score = None
    order: Order = "sample"
    after: Cursor = None
    before: Cursor = None
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = AT_ONCE


class PageQuery(FiguresQuery, OutcomesQuery):
    """Both queries combined, as used by a page."""


def page_query(request: Request) -> RunQuery:
    """Parse the query of a page's address. Empty fields, as sent by forms, are ignored.

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
        errors = [{**each, "loc": ("query", *each["loc"])} for each in error.errors()]
        raise RequestValidationError(errors) from None
    return run_query_of(request, found, _last(request, "judge"))


def run_query_of(request: Request, found: FiguresQuery | OutcomesQuery, judge: str | None) -> RunQuery:
    """Convert a parsed query to a `RunQuery` for one judge."""
    listed = found if isinstance(found, OutcomesQuery) else OutcomesQuery()
    return RunQuery(
        judge=judge,
        wanted=ListFilter(
            said=_last(request, "said"),
            truth=_last(request, "truth"),
            code=_last(request, "code"),
            q=_words(request),
            least=listed.least,
            most=listed.most,
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


def _words(request: Request) -> str | None:
    """Return the words to look for, as they were sent; 422 if there are too many."""
    found = _last(request, "q")
    if found is not None and len(found) > LONGEST_SEARCH:
        raise HTTPException(422, f"words to look for have at most {LONGEST_SEARCH} characters together")
    return found


def _last(request: Request, name: str) -> str | None:
    return query_of(request).get(name, [""])[-1] or None


PageParams = Annotated[RunQuery, Depends(page_query)]
"""The query of a run's page: which judge, which outcomes, and how they are counted."""


@router.get("/runs/{run_id}")
def run_page(request: Request, run_id: str, store: RequestStore, query: PageParams) -> Response:
    """Show a run, one of its judges in detail, and a page of the list of its outcomes."""
    view = run_view(store, run_cache_of(request), run_id, query)
    return page(
        request,
        "run.html",
        view=view,
        wanted=query.wanted,
        by=query.by,
        to=_Links(run_id, query, view.detail.judge if view.detail else None),
        cut=threshold_text,
        box=VIEW_BOX,
        started=request.app.state.starter.of_run(view.record.id),
    )


@router.get("/runs/{run_id}/find")
def find(request: Request, run_id: str, store: RequestStore) -> Response:
    """Redirect to the sample of exactly this id; 404, with similar ids, if there is none."""
    query = query_of(request)
    sample_id = query.get("sample", [""])[-1]
    with store.snapshot() as moment:
        found = moment.sample(run_id, sample_id)
    return RedirectResponse(sample_address(run_id, found.id, judge=query.get("judge", [""])[-1]), 303)


def threshold_text(threshold: float) -> str:
    """Format a threshold with all of its digits and no superfluous zeros.

    >>> threshold_text(0.5), threshold_text(0.6125), threshold_text(1.0), threshold_text(5e-05)
    ('0.5', '0.6125', '1', '0.00005')
    """
    return (
        f"{threshold:.17f}".rstrip("0").rstrip(".")
        if "e" in repr(threshold)
        else f"{threshold!r}".removesuffix(".0")
    )


class _Links:
    """The addresses that a run's page links to: itself with one change, and the pages below it."""

    def __init__(self, run_id: str, query: RunQuery, judge: str | None) -> None:
        self._run_id = run_id
        self._query = query
        self._judge = judge

    @property
    def here(self) -> str:
        """The path of the page."""
        return run_address(self._run_id)

    def act(self, action: str) -> str:
        """Return the path that a form of the page is sent to."""
        return f"{self.here}/{action}"

    def kept(self, without: Iterable[str]) -> list[tuple[str, str]]:
        """Return the fields that a form sends besides its own."""
        given = {"judge": self._query.judge, "by": self._query.by, **self._query.wanted.query}
        pairs = [
            (name, value) for name, value in given.items() if value is not None and name not in set(without)
        ]
        return [
            (name, str(each))
            for name, value in pairs
            for each in (value if isinstance(value, tuple) else (value,))
        ]

    def judge(self, judge: str) -> str:
        """Return the address of another judge of the run."""
        return f"{run_address(self._run_id, judge=judge)}#judge"

    def list(self, **cursor: str) -> str:
        """Return the address of the same list from a cursor on."""
        return self._to({**self._query.wanted.query, **cursor})

    @property
    def everything(self) -> str:
        """The list without any filter."""
        return self._with(**NO_CHOICE)

    def download(self, kind: str) -> str:
        """Return the address of a file with the outcomes of the list."""
        return link(self.act("download"), format=kind, judge=self._judge, **self._query.wanted.query)

    def cell(self, truth: str, said: str) -> str:
        """Return the address of the outcomes in a cell of the matrix."""
        return f"{self._with(**{**NO_CHOICE, 'said': said, 'truth': truth})}#samples"

    def code(self, kind: str, code: str) -> str:
        """Return the address of the outcomes without a verdict that have this code."""
        word = {kind: word for word, kind in KINDS.items()}[kind]
        return f"{self._with(**{**NO_CHOICE, 'said': word, 'code': code})}#samples"

    def threshold(self, value: float | None) -> str:
        """Return the address with another threshold, or as judged."""
        return self._with(threshold=value)

    def flag(self, kinds: tuple[str, ...]) -> str:
        """Return the address with verdicts decided by these kinds of claims; as judged if empty."""
        return self._with(flag=kinds)

    def sample(self, sample_id: str) -> str:
        """Return the address of a sample of the list, whose page keeps the list's filter."""
        query = {"judge": self._judge, **self._query.wanted.query}
        return sample_address(self._run_id, sample_id, **query)

    def _with(self, **changes: Any) -> str:
        return self._to(self._query.wanted.but(**changes).query)

    def _to(self, query: dict[str, Any]) -> str:
        return run_address(self._run_id, judge=self._query.judge, by=self._query.by, **query)


# --- as JSON --------------------------------------------------------------------------------------


@api.get("/runs/{run_id}", response_model=RunData, responses=ERRORS)
def run(request: Request, run_id: str, store: RequestStore) -> Response:
    """Get a run with the metrics of all its judges, as far as they are computed."""
    return json_response(asdict(run_data(store, run_cache_of(request), run_id)))


@api.get("/runs/{run_id}/judges/{judge:path}/figures", response_model=JudgeData, responses=ERRORS)
def figures(
    request: Request, run_id: str, judge: str, store: RequestStore, query: Annotated[FiguresQuery, Query()]
) -> Response:
    """Get one judge's metrics, at a threshold, by other kinds of claims, or by a field of metadata."""
    wanted = replace(run_query_of(request, query, judge), limit=1)
    return json_response(asdict(judge_data(store, run_cache_of(request), run_id, wanted)))


@api.get("/runs/{run_id}/judges/{judge:path}/outcomes", response_model=ListView, responses=ERRORS)
def outcomes(
    request: Request,
    run_id: str,
    judge: str,
    store: RequestStore,
    query: Annotated[OutcomesQuery, Query()],
) -> Response:
    """List a judge's matching outcomes. Pass `later` as `after` for the next page."""
    wanted = run_query_of(request, query, judge)
    return json_response(asdict(outcome_list(store, run_cache_of(request), run_id, wanted)))
