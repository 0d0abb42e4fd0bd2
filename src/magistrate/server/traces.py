"""Pages and API of watched traces: list of answers, one trace, and saving its sample to a data set.

The content of a trace is untrusted. Trace ids go into the query of a URL, not its path, because an id may
be any text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from threading import Lock
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, Field, ValidationError

from magistrate._text import shorten
from magistrate.datasets.spans.span import Span
from magistrate.datasets.spans.targets import keys_of
from magistrate.datasets.spans.tree import Node, tree_of
from magistrate.errors import SpecError, StoreError
from magistrate.report.formatting import duration
from magistrate.report.html.outcomes import json_text
from magistrate.server.responses import (
    answering_with,
    error_responses,
    json_response,
    link,
    page,
    query_of,
    sample_address,
)
from magistrate.server.roles import visitor_of
from magistrate.server.samples import CLAIMS_AT_ONCE, Evidence, evidence_of
from magistrate.server.state import RequestStore
from magistrate.server.watch import STAGES, STATES, WORDS
from magistrate.store import Snapshot, Store
from magistrate.store.datasets import DatasetVersion
from magistrate.store.decisions import SUPERSEDED, Decision
from magistrate.store.watch_figures import (
    MOST_LOOKED,
    AnswerFilter,
    AnswerList,
    OutcomePlace,
    Place,
    TraceAnswer,
    UnreadLine,
)
from magistrate.types import Outcome, Sample, Verdict

AT_ONCE = 30
FIELDS = ("rule", "state", "judge", "label", "words", "since", "until")
UNREAD = "unread"
"""The word in an address for traces that nobody has read, which have no answer yet."""
SPANS_SHOWN = 300
LONGEST_DATA = 20_000  # characters of a span's data that are shown
DEEPEST = 12  # levels of the tree that are indented
TEXTS_NAMED = 20
KEPT_IN = "flagged"  # the data set name offered if none exists
OFFERED = 50  # most data set names offered
TRIES = 5

router = APIRouter()
api = APIRouter(tags=["watching"])

_keeping = Lock()


# --- the list -------------------------------------------------------------------------------------


class _Times(BaseModel):
    since: datetime | None = None
    until: datetime | None = None


class _After(BaseModel):
    seen_at: datetime
    target: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    rule: Annotated[str, Field(max_length=1000)]
    version: Annotated[int, Field(ge=0, lt=1 << 31)]
    revision: Annotated[int, Field(ge=0, lt=1 << 31)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesView:
    """One page of the list of answers, or of unread traces.

    `n` is the number of all matches, None when searching by text or label. Then `looked` answers were
    examined so far. `rules` are the names of all rules.
    """

    listed: AnswerList
    unread: tuple[UnreadLine, ...]
    n: int | None
    looked: int
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The parsed query of the list."""

    given: Mapping[str, str]
    filter: AnswerFilter
    after: Place | None

    @property
    def unread(self) -> bool:
        return self.given.get("state") == UNREAD

    def to(self, **changed: str | None) -> str:
        """Return the URL of the same list with some parameters changed."""
        return link("/watch/traces", **{**self.given, **changed})


def _wanted(request: Request) -> _Wanted:
    """Parse the query, ignoring the empty fields that forms send. Raises `RequestValidationError`."""
    query = query_of(request)
    given = {name: text for name in FIELDS if (text := query.get(name, [""])[-1])}
    after = query.get("after", [""])[-1] or None
    with _refusing("query"):
        found = _Times.model_validate({name: given.get(name) for name in ("since", "until")})
        since, until = (_in_utc(at) for at in (found.since, found.until))
    with _refusing("after"):
        asked = None if after is None else _After.model_validate_json(after)
        place = None if asked is None else Place(**dict(asked) | {"seen_at": _in_utc(asked.seen_at)})
    state = given.get("state")
    if state is not None and state not in (*STAGES, *STATES, UNREAD):
        known = ", ".join((*STAGES, *STATES, UNREAD))
        raise RequestValidationError([{"loc": ("query", "state"), "msg": f"known are {known}"}])
    wanted = AnswerFilter(
        rule=given.get("rule"),
        states=() if state in (None, UNREAD) else STAGES.get(str(state), (str(state),)),
        label=given.get("label"),
        judge=given.get("judge"),
        since=since,
        until=until,
        words=given.get("words"),
    )
    return _Wanted(given, wanted, place)


@contextmanager
def _refusing(where: str) -> Iterator[None]:
    """Turn validation errors of a query parameter into status 422."""
    try:
        yield
    except ValidationError as error:
        errors = [{**each, "loc": (where, *each["loc"])} for each in error.errors(include_context=False)]
        raise RequestValidationError(errors) from None
    except OverflowError:
        raise RequestValidationError([{"loc": (where,), "msg": "this is not a valid time"}]) from None


def _in_utc(at: datetime | None) -> datetime | None:
    """Convert to UTC. A time without a zone, as forms send it, is taken as UTC."""
    return at if at is None else (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)


def traces_view(
    store: Store, wanted: AnswerFilter, after: Place | None, *, unread: bool = False
) -> TracesView:
    """Return one page of answers, newest first, or of unread traces, oldest first."""
    with store.snapshot() as moment:
        rules = tuple(each.name for each in moment.watched_rules())
        if unread:
            waiting = tuple(moment.unread_traces(AT_ONCE))
            nothing = AnswerList(lines=(), older=None, looked=0)
            n = moment.trace_counts().unread
            return TracesView(listed=nothing, unread=waiting, n=n, looked=0, rules=rules)
        listed = moment.answers_where(wanted, beyond=after, limit=AT_ONCE)
        searched = wanted.words is not None or wanted.label is not None
        n_all = None if searched else moment.count_answers(wanted)
    return TracesView(listed=listed, unread=(), n=n_all, looked=listed.looked, rules=rules)


@router.get("/watch/traces")
def traces_page(request: Request, store: RequestStore) -> Response:
    """Show the matching answers, newest first."""
    wanted = _wanted(request)
    view = traces_view(store, wanted.filter, wanted.after, unread=wanted.unread)
    older = view.listed.older
    return page(
        request,
        "traces.html",
        view=view,
        given=dict.fromkeys(FIELDS, "") | dict(wanted.given),
        filtered=bool(wanted.given),
        states=(*STAGES, *STATES, UNREAD),
        words=WORDS,
        most_looked=MOST_LOOKED,
        first=wanted.after is None,
        newest=wanted.to(),
        older=None if older is None else wanted.to(after=_as_text(older)),
        everything=link("/watch/traces"),
        trace=trace_address,
        last=_last,
    )


def _as_text(place: Place) -> str:
    return json.dumps(asdict(place) | {"seen_at": place.seen_at.isoformat()})


def _last(asked: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return asked[-1] if asked else None


def trace_address(trace_id: str, **query: Any) -> str:
    """Return the URL of a trace's page."""
    return link("/watch/trace", id=trace_id, **query)


# --- one trace ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRow:
    """A span in the tree of a trace, formatted for display.

    `level` is its depth. `taken_for` lists the parts of the sample that were extracted from it. `start` and
    `length` are fractions of the duration of the trace, None if unknown.
    """

    span_id: str
    name: str
    level: int
    what: str
    taken_for: tuple[str, ...]
    took: str
    start: float | None
    length: float | None
    error: bool
    remarks: tuple[str, ...]
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The origin of a part of the sample; `span` is None if the part was not found."""

    part: str
    span: str | None
    span_id: str | None
    key: str
    convention: str
    n_texts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A judge's result for an answer; `place` locates the stored outcome, None if it was deleted."""

    judge: str
    kind: str
    label: str | None
    score: float | None
    code: str | None
    place: OutcomePlace | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceView:
    """A trace with its answers and the decisions on them, and one answer in detail.

    `answer` is the one shown, None in a trace without answers. `decision` is one rule's decision on it.
    `sample` is what was or would be judged. `said` holds the results of its judges, of which `judge` is
    shown with `outcome`.
    """

    trace_id: str
    n_spans: int
    answers: tuple[TraceAnswer, ...]
    decisions: tuple[Decision, ...]
    answer: TraceAnswer | None
    decision: Decision | None
    sample: Sample | None
    said: tuple[Said, ...]
    judge: str | None
    outcome: Outcome | None
    spans: tuple[Span, ...]

    @property
    def mine(self) -> tuple[Decision, ...]:
        """The decisions on the answer shown."""
        return tuple(each for each in self.decisions if self.answer and each.target == self.answer.id)


def trace_view(
    store: Store,
    trace_id: str,
    *,
    target: str | None = None,
    rule: str | None = None,
    version: int | None = None,
    revision: int | None = None,
    judge: str | None = None,
) -> TraceView:
    """Return a trace, one of its answers (by default the first), and a rule's decision on it.

    Raises `SpecError` if there is no such trace.
    """
    spans = tuple(store.traces.trace(trace_id))
    with store.snapshot() as moment:
        if not moment.is_trace(trace_id):
            raise SpecError(f"no trace has the id {shorten(repr(trace_id))}")
        answers = tuple(moment.trace_answers(trace_id))
        decided = tuple(moment.trace_decisions(trace_id))
        answer = next((each for each in answers if target in (None, each.id)), None) or next(
            iter(answers), None
        )
        decision = _chosen(decided, answer, rule, version, revision)
        said = _said(moment, decision)
        shown = next((each for each in reversed(said) if judge in (None, each.judge)), None)
        sample, outcome = (None if answer is None else answer.sample), None
        if shown is not None and shown.place is not None:
            at = shown.place
            sample = moment.sample(at.run_id, at.sample_id)
            (outcome,) = moment.outcomes(at.run_id, judge=at.judge, sample_id=at.sample_id, with_steps=False)
    return TraceView(
        trace_id=trace_id,
        n_spans=len(spans),
        answers=answers,
        decisions=decided,
        answer=answer,
        decision=decision,
        sample=sample,
        said=said,
        judge=shown.judge if shown else None,
        outcome=outcome,
        spans=spans,
    )


def _chosen(
    decided: Sequence[Decision],
    answer: TraceAnswer | None,
    rule: str | None,
    version: int | None,
    revision: int | None,
) -> Decision | None:
    """Return a decision on the answer, of `rule` if given: the version and revision, else the current one."""
    mine = [each for each in decided if answer is not None and each.target == answer.id]
    if rule is not None:
        mine = [each for each in mine if each.rule == rule]
    exact = [each for each in mine if (each.version, each.revision) == (version, revision)]
    return next(iter(exact or mine), None)


def _said(moment: Snapshot, decision: Decision | None) -> tuple[Said, ...]:
    """Return each judge's result in order, then a failure that is no judge's result, if any."""
    if decision is None:
        return ()
    ids = [number for each in decision.asked if (number := each.get("outcome")) is not None]
    last = decision.outcome_id
    places = moment.outcome_places([*ids, *([] if last is None else [last])])
    found = [
        Said(
            judge=each["judge"],
            kind=each["kind"],
            label=each.get("label"),
            score=each.get("score"),
            code=each.get("code"),
            place=places.get(each.get("outcome", -1)),
        )
        for each in decision.asked
    ]
    if last is not None and last not in ids and last in places:
        at = places[last]
        found.append(Said(judge=at.judge, kind="failure", label=None, score=None, code=None, place=at))
    return tuple(found)


def sources_of(answer: TraceAnswer) -> tuple[Source, ...]:
    """Return the origins of the input, context and output of an answer."""
    found = []
    for part in ("input", "context", "output"):
        taken = answer.taken.get(part)
        found.append(
            Source(
                part=part,
                span=None if taken is None else taken["name"] or "a span without a name",
                span_id=None if taken is None else taken["span_id"],
                key="" if taken is None else taken["key"],
                convention="" if taken is None else taken["convention"],
                n_texts=0 if taken is None else len(taken["texts"]),
            )
        )
    return tuple(found)


def span_rows(spans: Sequence[Span], answer: TraceAnswer | None) -> tuple[SpanRow, ...]:
    """Return the first `SPANS_SHOWN` spans in tree order."""
    used: dict[str, dict[str, None]] = {}
    for part, taken in (answer.taken if answer is not None else {}).items():
        used.setdefault(taken["span_id"], {})[part] = None
    sample = answer.sample if answer is not None else None
    for document in sample.metadata.get("documents", ()) if sample is not None else ():
        used.setdefault(document["span_id"], {})["context"] = None
    begun = [span.start_ns for span in spans if span.start_ns]
    ended = [span.end_ns for span in spans if span.end_ns]
    whole = (min(begun), max(ended)) if begun and ended and max(ended) > min(begun) else None
    nodes = tree_of(spans).nodes[:SPANS_SHOWN]
    return tuple(_span_row(node, tuple(used.get(node.span.span_id, ())), whole) for node in nodes)


def _span_row(node: Node, taken_for: tuple[str, ...], whole: tuple[int, int] | None) -> SpanRow:
    span = node.span
    kind = f"{node.step.kind} by {', '.join(node.step.conventions)}" if node.known else "no known convention"
    took = None if span.end_ns is None else max(span.end_ns - span.start_ns, 0) / 1e9
    start = length = None
    if whole is not None and span.start_ns:
        size = whole[1] - whole[0]
        start = min(max((span.start_ns - whole[0]) / size, 0.0), 1.0)
        end = span.start_ns if span.end_ns is None else span.end_ns
        length = min(max((end - span.start_ns) / size, 0.0), 1.0 - start)
    held = {
        "attributes": dict(span.attributes),
        "events": [{"name": each.name, **each.attributes} for each in span.events],
        "resource": dict(span.resource),
    }
    keys = keys_of(span)
    return SpanRow(
        span_id=span.span_id,
        name=span.name or "without a name",
        level=min(node.depth, DEEPEST),
        what=kind if node.known or not keys else f"{kind}; keys: {', '.join(keys[:TEXTS_NAMED])}",
        taken_for=taken_for,
        took="not ended" if took is None else duration(took),
        start=start,
        length=length,
        error=span.status == "error",
        remarks=tuple(node.step.remarks),
        data=json_text({name: value for name, value in held.items() if value}, LONGEST_DATA),
    )


class _Links:
    """The URLs on a trace's page, with the interface that the templates of a sample's page expect."""

    def __init__(self, view: TraceView, rule: str | None) -> None:
        self._view = view
        self._kept: dict[str, Any] = {"rule": rule}
        if view.answer is not None and view.answer != view.answers[0]:
            self._kept["target"] = view.answer.id

    def claim(self, number: int, anchor: str) -> str:
        """Return the URL of this page with this claim selected."""
        address = trace_address(self._view.trace_id, **self._kept, judge=self._view.judge, claim=number)
        return f"{address}#{anchor}"

    @property
    def here(self) -> str:
        """The URL of this page with no claim selected."""
        return trace_address(self._view.trace_id, **self._kept)

    def answer(self, target: str) -> str:
        """Return the URL of another answer of the trace."""
        return trace_address(self._view.trace_id, target=target)

    def judge(self, judge: str) -> str:
        """Return the URL of this page for another judge."""
        return trace_address(self._view.trace_id, **self._kept, judge=judge)

    def decision(self, decision: Decision) -> str:
        """Return the URL of a decision of another rule, or of an earlier version."""
        told = {name: getattr(decision, name) for name in ("target", "rule", "version", "revision")}
        return trace_address(self._view.trace_id, **told)

    @staticmethod
    def outcome(said: Said) -> str | None:
        """Return the URL of the judge's outcome in its run, with its steps."""
        at = said.place
        return None if at is None else sample_address(at.run_id, at.sample_id, judge=at.judge)

    @property
    def data(self) -> str:
        """The URL of the trace as JSON."""
        return f"/api{self.here}"


@router.get("/watch/trace")
def trace_page(request: Request, store: RequestStore) -> Response:
    """Show one trace, with the evidence for the decision on one of its answers."""
    query = {name: values[-1] for name, values in query_of(request).items() if values[-1]}
    trace_id = query.get("id", "")
    chosen = {name: _number(query.get(name, "")) for name in ("version", "revision")}
    named = {name: query.get(name) for name in ("target", "rule", "judge")}
    view = trace_view(store, trace_id, **named, **chosen)  # type: ignore[arg-type]
    evidence: Evidence | None = None
    if view.sample is not None:
        evidence = evidence_of(view.sample, view.outcome, _number(query.get("claim", "")))
    return page(
        request,
        "trace.html",
        view=view,
        evidence=evidence,
        sources=sources_of(view.answer) if view.answer else (),
        spans=span_rows(view.spans, view.answer),
        claims_at_once=CLAIMS_AT_ONCE,
        to=_Links(view, query.get("rule")),
        words=WORDS,
        superseded=SUPERSEDED,
        flags=isinstance(view.outcome, Verdict),
        kept=_kept(store, query.get("kept")),
        sets=_names(store),
    )


def _number(text: str) -> int | None:
    """Parse a number of at most nine digits; None for other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _kept(store: Store, ref: str | None) -> DatasetVersion | None:
    """Return the data set that the URL says a sample was added to, if it exists."""
    try:
        return None if ref is None else store.find_dataset(ref)
    except SpecError:
        return None


def _names(store: Store) -> list[str]:
    """Return the names of existing data sets, most recently changed first."""
    newest = sorted(store.dataset_versions(), key=lambda each: each.created_at, reverse=True)
    return list(dict.fromkeys(each.name for each in newest))[:OFFERED] or [KEPT_IN]


# --- kept in a data set ---------------------------------------------------------------------------


@router.post("/watch/trace/keep")
def keep(
    request: Request,
    store: RequestStore,
    id: Annotated[str, Form(max_length=1000)],
    target: Annotated[str, Form(max_length=200)],
    name: Annotated[str, Form(max_length=200)],
    rule: Annotated[str, Form(max_length=1000)] = "",
    judge: Annotated[str, Form(max_length=1000)] = "",
) -> Response:
    """Add the sample of an answer to a data set, as a new version unless it is already in it."""
    view = trace_view(store, id, target=target, rule=rule or None, judge=judge or None)
    if view.answer is None or view.answer.id != target or view.sample is None:
        raise SpecError("this answer has no sample, so there is nothing to store")
    revision = view.decision.revision if view.decision is not None else view.answer.revision
    with answering_with(SpecError, 422):
        kept = replace(view.sample, id=kept_id(view.answer, id, revision))
        made = keep_sample(store, name.strip(), kept, by=visitor_of(request).who)
    return RedirectResponse(
        trace_address(id, target=target, rule=rule, judge=judge, kept=made.ref) + "#kept", 303
    )


def kept_id(answer: TraceAnswer, trace_id: str, revision: int) -> str:
    """Return the id of a sample in data sets: as in its rule's run, derived from trace and span."""
    place = f"{trace_id}.{answer.span_id}"
    return place if revision == 1 else f"{place}.{revision}"


def keep_sample(store: Store, name: str, sample: Sample, *, by: str | None = None) -> DatasetVersion:
    """Append a sample to a data set and return the newest version, unchanged if it has the sample already.

    Concurrent additions are not lost: a version that somebody else made meanwhile is merged into the next
    one.
    """
    mine = set[int]()
    with _keeping:
        base = next(reversed(store.dataset_versions(name)), None)
        for _ in range(TRIES):
            before = [] if base is None else [each.id for each in store.dataset_samples(base.digest)]
            if base is not None and sample.id in before:
                return base
            held = () if base is None else store.dataset_samples(base.digest)
            made = store.add_dataset(name, chain(held, [sample]), source="traces that were watched", by=by)
            mine.add(made.version)
            after = 0 if base is None else base.version
            between = range(after + 1, made.version)
            theirs = [each for each in store.dataset_versions(name) if each.version in between]
            theirs = [each for each in theirs if each.version not in mine]
            if not theirs:
                return made
            base = theirs[-1]
    raise StoreError(f"others are adding to {shorten(repr(name))} at the same time; try again")


# --- as JSON --------------------------------------------------------------------------------------

Words = Annotated[str, Query(max_length=1000)]


@api.get("/watch/traces", response_model=TracesView, responses=error_responses(422, 503))
def traces(
    request: Request,
    store: RequestStore,
    rule: Words = "",
    state: Words = "",
    judge: Words = "",
    label: Words = "",
    words: Words = "",
    since: Words = "",
    until: Words = "",
    after: Words = "",
) -> Response:
    """Answers with the decisions on them, newest first. Pass `older`, as JSON, in `after` to continue."""
    wanted = _wanted(request)
    return json_response(asdict(traces_view(store, wanted.filter, wanted.after, unread=wanted.unread)))


@api.get("/watch/trace", response_model=TraceView, responses=error_responses(404, 422, 503))
def trace(
    request: Request,
    store: RequestStore,
    id: Words,
    target: Words = "",
    rule: Words = "",
    judge: Words = "",
) -> Response:
    """A trace with its spans, its answers, and the decisions and judges' results on them."""
    query = {name: values[-1] for name, values in query_of(request).items() if values[-1]}
    named = {name: query.get(name) for name in ("target", "rule", "judge")}
    return json_response(asdict(trace_view(store, query.get("id", ""), **named)))  # type: ignore[arg-type]
