"""Labelling as a JSON API: queues, the next item, answers and export, for your own programs.

A client names the annotator in `annotator`. A user's client may omit it, and may name nobody else. It may
also be omitted without a token, when one person uses the server. The API never returns judges' verdicts, so
that every label is independent of them.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from pydantic import BaseModel, Field

from magistrate.errors import InputError, SpecError
from magistrate.labels.decisions import findings
from magistrate.labels.estimates import progress
from magistrate.labels.files import rows_to_write
from magistrate.labels.tasks import LabelTask, next_task
from magistrate.labels.tools import Form
from magistrate.server.label_items import MEANWHILE, add_comment, comments_for
from magistrate.server.labels import MOST_NUMBER, Annotators
from magistrate.server.responses import answering_with, error_responses, json_response
from magistrate.server.roles import visitor_of
from magistrate.server.state import RequestStore
from magistrate.store.label_comments import LONGEST_COMMENT, Comment
from magistrate.store.labels import (
    LONGEST_ANNOTATOR,
    LONGEST_NAME,
    LONGEST_NOTE,
    MOST_SPANS,
    Answer,
    Queue,
    Quote,
)
from magistrate.types import Span

MOST_PASSED = 50
LARGEST = MOST_NUMBER - 1

api = APIRouter(tags=["labelling"])
Number = Annotated[int, Path(ge=1, le=LARGEST)]
Offset = Annotated[int, Field(ge=0, le=LARGEST)]


class QueueLine(BaseModel):
    """A queue and the number of its items."""

    name: str
    source: str
    policy: str
    items: int
    population: int


class QueueLines(BaseModel):
    """All queues, newest first."""

    queues: list[QueueLine]


class QueueFigures(QueueLine):
    """A queue with its progress; `share` is weighted by inclusion probabilities."""

    n_labels: int
    n_decided: int
    n_conflicts: int
    n_unsure: int
    n_open: int
    n_waiting: int
    share: dict[str, float | str | None]
    words: str


class ToClaim(BaseModel, extra="forbid"):
    """The annotator who wants an item, and the numbers of items to skip."""

    annotator: str | None = Field(None, max_length=LONGEST_ANNOTATOR)
    but: list[Annotated[int, Field(ge=1, le=LARGEST)]] = Field([], max_length=MOST_PASSED)


class GivenTask(BaseModel):
    """An item leased to the annotator for 15 minutes. `context` holds the texts that quotes refer to."""

    queue: str
    number: int
    id: str
    output: str
    context: list[str]
    input: str | None
    revision: int
    kinds: list[str]
    instructions: str


class NextTask(BaseModel):
    """The next item, null if there is none now."""

    item: GivenTask | None


class LabelSpan(BaseModel, extra="forbid"):
    """A hallucinated span: code-point offsets of the output, from `start` to before `end`."""

    start: Offset
    end: Offset
    kind: str = Field("hallucinated", min_length=1, max_length=LONGEST_NAME)


class LabelQuote(BaseModel, extra="forbid"):
    """The passage of the context that proves it: code-point offsets into text `source`, from 0."""

    source: Offset
    start: Offset
    end: Offset


class ToLabel(BaseModel, extra="forbid"):
    """An annotator's answer. `revision` is their newest revision that the client knows, 0 for none."""

    label: Literal["faithful", "hallucinated", "unsure", "skip"]
    annotator: str | None = Field(None, max_length=LONGEST_ANNOTATOR)
    spans: list[LabelSpan] = Field([], max_length=MOST_SPANS)
    quote: LabelQuote | None = None
    note: str = Field("", max_length=LONGEST_NOTE)
    seconds: float | None = Field(None, ge=0, lt=1e6, allow_inf_nan=False)
    revision: int = Field(0, ge=0, le=LARGEST)


class Labelled(BaseModel):
    """The stored answer."""

    label: str
    revision: int
    annotator: str


class ToComment(BaseModel, extra="forbid"):
    """A comment on an item."""

    text: str = Field(min_length=1, max_length=LONGEST_COMMENT)
    annotator: str | None = Field(None, max_length=LONGEST_ANNOTATOR)


class CommentLine(BaseModel):
    """A stored comment: who wrote it, and when."""

    author: str
    text: str
    at: str


class CommentLines(BaseModel):
    """The comments on an item, oldest first."""

    comments: list[CommentLine]


class LabelRows(BaseModel):
    """Labels as written by `magistrate labels export`."""

    rows: list[dict[str, Any]]


@api.get("/labels", response_model=QueueLines, responses=error_responses(503))
def queues(store: RequestStore) -> Response:
    """All label queues."""
    return json_response({"queues": [_line(each) for each in store.labels.queues()]})


@api.get("/labels/{name}", response_model=QueueFigures, responses=error_responses(404, 422, 503))
def queue(name: str, store: RequestStore) -> Response:
    """A queue, its progress, and the hallucinated share."""
    found = store.labels.find(name)
    done = progress(found, findings(store, found), store.labels.samples(found.name))
    counts = {key: value for key, value in done.to_dict().items() if key in QueueFigures.model_fields}
    return json_response({**_line(found), **counts, "words": done.words})


@api.post("/labels/{name}/next", response_model=NextTask, responses=error_responses(400, 404, 422, 503))
def give_out(request: Request, name: str, body: ToClaim, store: RequestStore) -> Response:
    """Lease the next item that the annotator has not labelled and nobody else has leased."""
    found = store.labels.find(name)
    task = next_task(store, found, _annotator(request, body.annotator), datetime.now(UTC), body.but)
    return json_response({"item": None if task is None else _task(task)})


@api.post(
    "/labels/{name}/items/{number}",
    response_model=Labelled,
    responses=error_responses(400, 404, 409, 422, 503),
)
def submit(request: Request, name: str, number: Number, body: ToLabel, store: RequestStore) -> Response:
    """Store an answer, once even if sent twice; 409 if the annotator gave another answer meanwhile."""
    found = store.labels.find(name)
    who = _annotator(request, body.annotator)
    answer = Answer(
        label=body.label,
        spans=tuple(Span(each.start, each.end, each.kind) for each in body.spans),
        quote=None if body.quote is None else Quote(body.quote.source, body.quote.start, body.quote.end),
        note=body.note,
        seconds=body.seconds,
    )
    now = datetime.now(UTC)
    store.labels.item(found.name, number - 1)  # 404 without such an item, before an answer is checked
    with answering_with(InputError, 422):
        by = visitor_of(request).who
        stored = store.labels.add(found.name, number - 1, who, answer, revision=body.revision, now=now, by=by)
    if stored is None:
        raise HTTPException(409, MEANWHILE)
    return json_response({"label": stored.label, "revision": stored.revision, "annotator": who})


@api.get(
    "/labels/{name}/items/{number}/comments",
    response_model=CommentLines,
    responses=error_responses(404, 422, 503),
)
def comments(
    request: Request,
    name: str,
    number: Number,
    store: RequestStore,
    annotator: Annotated[str | None, Query(max_length=LONGEST_ANNOTATOR)] = None,
) -> Response:
    """The comments on an item; 422 before the annotator's own label, as they may tell those of others."""
    who = _annotator(request, annotator)
    with answering_with(InputError, 422):
        found = comments_for(store, store.labels.find(name), number - 1, who)
    return json_response({"comments": [_comment(each) for each in found]})


@api.post(
    "/labels/{name}/items/{number}/comments",
    response_model=CommentLine,
    responses=error_responses(400, 404, 422, 503),
)
def add(request: Request, name: str, number: Number, body: ToComment, store: RequestStore) -> Response:
    """Append a comment to an item; the last one is stored once if it is sent twice."""
    who = _annotator(request, body.annotator)
    with answering_with(InputError, 422):
        made = add_comment(request, store, store.labels.find(name), number - 1, who, body.text)
    return json_response(_comment(made))


@api.get("/labels/{name}/export", response_model=LabelRows, responses=error_responses(404, 422, 503))
def export(
    name: str,
    store: RequestStore,
    gold: Annotated[bool, Query()] = False,
    comments: Annotated[bool, Query()] = False,
    form: Annotated[Form | None, Query(alias="for")] = None,
) -> Response:
    """All annotators' labels, with `gold` the final ones, with `comments` what people wrote on items.

    `for` selects the format of another tool.
    """
    found = store.labels.find(name)
    with answering_with(SpecError, 422):
        rows = rows_to_write(store, found, gold=gold, comments=comments, form=form)
    return json_response({"rows": rows})


def _annotator(request: Request, given: str | None) -> str:
    annotators: Annotators = request.app.state.annotators
    who = (visitor_of(request).user or annotators.usual) if given is None else given
    if who is None:
        raise HTTPException(422, "give the name of the annotator in 'annotator'")
    with answering_with(SpecError, 422):
        return annotators.chosen(request, who)


def _comment(comment: Comment) -> dict[str, str]:
    at = comment.at.isoformat(timespec="seconds")
    return {"author": comment.author, "text": comment.text, "at": at}


def _line(queue: Queue) -> dict[str, Any]:
    return {
        "name": queue.name,
        "source": queue.source,
        "policy": queue.policy,
        "items": queue.n_items,
        "population": queue.population,
    }


def _task(task: LabelTask) -> dict[str, Any]:
    told = asdict(task)
    del told["sample"]
    sample = task.sample
    texts = {"output": sample.output or "", "context": list(sample.sources), "input": sample.input}
    return {**told, "id": sample.id, **texts}
