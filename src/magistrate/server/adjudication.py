"""The page for deciding between conflicting labels, without seeing who gave them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import RedirectResponse

from magistrate.errors import InputError
from magistrate.labels.decisions import Finding, anonymous, findings
from magistrate.report.html.outcomes import Mark, Text, blocked, source_title
from magistrate.server.label_items import css_kind
from magistrate.server.labels import Number, annotator_of, queue_address, required_annotator
from magistrate.server.responses import page
from magistrate.server.roles import visitor_of
from magistrate.server.state import RequestStore
from magistrate.store import Store
from magistrate.store.label_comments import Comment
from magistrate.store.labels import DECIDED, Answer, Label, Queue
from magistrate.types import FAITHFUL, HALLUCINATED, Sample

router = APIRouter()

MEANWHILE = "somebody else has decided this item in the meantime; this is the current decision"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One annotator's label under a letter. `output` is the output with the words they marked."""

    letter: str
    label: Label
    output: Text
    quote: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictView:
    """An item with all its labels. `before` and `after` are the numbers of other conflicts.

    `comments` are those on the item, each with the letter of who wrote it, None for somebody without a label.
    """

    queue: Queue
    found: Finding
    sample: Sample
    sides: tuple[Side, ...]
    sources: tuple[Text, ...]
    asked: tuple[Text, ...]
    before: int | None
    after: int | None
    n_open: int
    comments: tuple[tuple[str | None, Comment], ...]

    @property
    def number(self) -> int:
        """The item's position in the queue, from 1."""
        return self.found.item.position + 1


def conflict_view(store: Store, name: str, number: int) -> ConflictView:
    """Return an item for an adjudicator. Raises `SpecError` if there is none."""
    queue = store.labels.find(name)
    item, sample = store.labels.item(queue.name, number - 1)
    every = findings(store, queue)
    found = every[item.position]
    sides = anonymous(queue, found)
    letters = {label.annotator: letter for letter, label in sides}
    waiting = [each.item.position + 1 for each in every if each.state == "conflict"]
    return ConflictView(
        queue=queue,
        found=found,
        sample=sample,
        sides=tuple(_side(letter, label, sample) for letter, label in sides),
        sources=tuple(
            Text(source_title(sample, at), blocked(text, ())) for at, text in enumerate(sample.sources)
        ),
        asked=(Text("Input", blocked(sample.input, ())),) if sample.input else (),
        before=max((each for each in waiting if each < number), default=None),
        after=min((each for each in waiting if each > number), default=None),
        n_open=len(waiting),
        comments=tuple(
            (letters.get(each.author), each) for each in store.comments.of(queue.name, item.position)
        ),
    )


def _side(letter: str, label: Label, sample: Sample) -> Side:
    marks = [Mark(span.start, span.end, css_kind(span.kind), span.kind) for span in label.spans]
    quote = label.quote
    words = None if quote is None else sample.sources[quote.source][quote.start : quote.end]
    output = Text(f"Output as {letter} marked it", blocked(sample.output or "", marks))
    return Side(letter=letter, label=label, output=output, quote=words)


@router.get("/label/{name}/conflicts")
def first_conflict(name: str, store: RequestStore) -> Response:
    """Redirect to the first item that waits for a decision, or to the queue's page if there is none."""
    queue = store.labels.find(name)
    for found in findings(store, queue):
        if found.state == "conflict":
            return RedirectResponse(queue_address(queue.name, "conflicts", str(found.item.position + 1)), 303)
    return RedirectResponse(queue_address(queue.name), 303)


@router.get("/label/{name}/conflicts/{number:int}")
def conflict_page(request: Request, name: str, number: Number, store: RequestStore) -> Response:
    """Show one item with the labels side by side."""
    return _page(request, conflict_view(store, name, number))


@router.post("/label/{name}/conflicts/{number:int}")
def decide(
    request: Request,
    name: str,
    number: Number,
    store: RequestStore,
    label: Annotated[str, Form()] = "",
    spans_of: Annotated[str, Form()] = "",
    reason: Annotated[str, Form()] = "",
    revision: Annotated[int, Form(ge=0, le=10**9)] = 0,
) -> Response:
    """Store a decision: a label, the marked words of one side or none, and the reason."""
    who = required_annotator(request)
    view = conflict_view(store, name, number)
    sides = {side.letter: side.label for side in view.sides}
    try:
        if label not in DECIDED:
            raise InputError(f"choose {FAITHFUL} or {HALLUCINATED}")
        chosen = sides.get(spans_of)
        spans = chosen.spans if chosen is not None and label == HALLUCINATED else ()
        made = store.labels.decide(
            view.queue.name,
            number - 1,
            Answer(label=label, spans=spans),
            reason=reason.replace("\r\n", "\n"),
            adjudicator=who,
            revision=revision,
            now=datetime.now(UTC),
            by=visitor_of(request).who,
        )
    except InputError as error:
        return _page(request, view, error=str(error), status=422, label=label, reason=reason)
    if made is None:
        return _page(request, conflict_view(store, name, number), error=MEANWHILE, status=409)
    if view.after is not None:
        return RedirectResponse(queue_address(view.queue.name, "conflicts", str(view.after)), 303)
    return RedirectResponse(queue_address(view.queue.name, "conflicts"), 303)


def _page(
    request: Request,
    view: ConflictView,
    *,
    error: str | None = None,
    status: int = 200,
    label: str = "",
    reason: str = "",
) -> Response:
    return page(
        request,
        "label_conflict.html",
        status=status,
        view=view,
        error=error,
        label=label,
        reason=reason,
        who=annotator_of(request),
        address=queue_address,
    )
