"""The page of one item of a label queue: its texts, the form, comments, and the handling of submissions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import TypeAdapter, ValidationError

from magistrate._text import shorten
from magistrate.errors import InputError, SpecError
from magistrate.features.splitting import Ranking, passages
from magistrate.labels.queues import KINDS
from magistrate.labels.tasks import lease_end
from magistrate.report.html.outcomes import (
    Mark,
    OutcomeText,
    Text,
    blocked,
    outcome_text,
    source_title,
)
from magistrate.server.labels import (
    Number,
    Standing,
    annotator_of,
    queue_address,
    required_annotator,
    standing,
)
from magistrate.server.responses import json_response, page, sample_address
from magistrate.server.roles import visitor_of
from magistrate.server.state import LRUCache, RequestStore
from magistrate.store import Store
from magistrate.store.label_comments import LONGEST_COMMENT, Comment
from magistrate.store.labels import UNDONE, Answer, Item, Label, Queue, Quote
from magistrate.types import Outcome, Sample, Span, Verdict

LONG = 2_000  # contexts with more characters get their best passages shown first
RANKED = 300_000  # most characters of a context to rank within the request
PASSAGES, EXCERPT = 3, 320

SPANS: TypeAdapter[list[tuple[int, int, str]]] = TypeAdapter(list[tuple[int, int, str]])
QUOTE: TypeAdapter[tuple[int, int, int]] = TypeAdapter(tuple[int, int, int])

router = APIRouter()
Typed = Annotated[str, Form()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A part of the context that is similar to the output; `number` is that of its mark, from 1."""

    number: int
    title: str
    excerpt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictLine:
    """A judge's result, with the URL of the full outcome."""

    judge: str
    said: OutcomeText
    score: float | None
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemView:
    """An item as an annotator sees it.

    `mine` is their label, None if they gave none or took it back. `revision` is their newest one, 0 for
    none. `verdicts` are the judges' results, None while hidden; `may_see` is true if they may be shown.
    `comments` are None as long as they are hidden too. `filled` holds the form's values: a rejected
    submission, else the stored label.
    """

    queue: Queue
    item: Item
    sample: Sample
    output: Text
    sources: tuple[Text, ...]
    asked: tuple[Text, ...]
    passages: tuple[Passage, ...]
    mine: Label | None
    revision: int
    filled: Answer
    verdicts: tuple[VerdictLine, ...] | None
    may_see: bool
    comments: tuple[Comment, ...] | None
    standing: Standing

    @property
    def number(self) -> int:
        """The position in the queue, from 1."""
        return self.item.position + 1

    @property
    def kinds(self) -> tuple[tuple[str, str], ...]:
        """The kinds of hallucinated spans, each with the CSS class of its marks."""
        return tuple((kind, css_kind(kind)) for kind in self.queue.settings.get("kinds", KINDS))

    @property
    def spans(self) -> list[list[Any]]:
        """The marked spans in the form's format: [start, end, kind]."""
        return [[span.start, span.end, span.kind] for span in self.filled.spans]


def css_kind(kind: str) -> str:
    """Return the CSS class of the marks of a kind."""
    word = kind.lower()
    if "conflict" in word or "contra" in word:
        return "contradiction"
    return "unsupported" if "baseless" in word or "unsupported" in word else "gold"


def item_view(
    request: Request,
    store: Store,
    name: str,
    number: int,
    who: str,
    *,
    verdict: bool = False,
    sent: Answer | None = None,
) -> ItemView:
    """Return an item for an annotator; with `verdict` also the judges' results, if they may be shown.

    Raises `SpecError` if there is no such item.
    """
    queue = store.labels.find(name)
    item, sample = store.labels.item(queue.name, number - 1)
    newest = store.labels.newest(queue.name, item.position, who)
    mine = None if newest is None or newest.label == UNDONE else newest
    blind = bool(queue.settings.get("blind", True))
    may_see = queue.run_id is not None and (mine is not None or not blind)
    shown = may_see and (verdict or not blind)
    comments = _comments(store, queue, item.position, mine)
    if shown or _by_others(comments, who):
        _note_seen(store, queue, item.position, who)
    filled = sent or mine or Answer(label="")
    marks = [Mark(span.start, span.end, css_kind(span.kind), span.kind) for span in filled.spans]
    cache: LRUCache = request.app.state.label_passages
    found = cache.get_or_make((queue.name, queue.created_at, item.position), lambda: _best(sample))
    sources = sample.sources
    beside: list[list[Mark]] = [[] for _ in sources]
    for at, (source, start, end) in enumerate(found, 1):
        beside[source].append(Mark(start, end, "passage", "one of the best-matching passages", at))
    return ItemView(
        queue=queue,
        item=item,
        sample=sample,
        output=Text("Output", blocked(sample.output or "", marks)),
        sources=tuple(
            Text(source_title(sample, at), blocked(text, beside[at], side="passage"))
            for at, text in enumerate(sources)
        ),
        asked=(Text("Input", blocked(sample.input, ())),) if sample.input else (),
        passages=tuple(
            Passage(
                number=at,
                title=source_title(sample, source),
                excerpt=shorten(sources[source][start:end], EXCERPT),
            )
            for at, (source, start, end) in enumerate(found, 1)
        ),
        mine=mine,
        revision=0 if newest is None else newest.revision,
        filled=filled,
        verdicts=_verdicts(store, queue, sample) if shown else None,
        may_see=may_see,
        comments=comments,
        standing=standing(request, store, queue, who),
    )


def _best(sample: Sample) -> tuple[tuple[int, int, int], ...]:
    """Return the passages of a long context that are most similar to the output, best first."""
    sources = sample.sources
    if not LONG < sum(map(len, sources)) <= RANKED:
        return ()
    found = passages(sources)
    order = Ranking([piece.of(sources) for piece in found]).order(sample.output or "")
    return tuple((found[at].index, found[at].start, found[at].end) for at in order[:PASSAGES])


def _comments(store: Store, queue: Queue, position: int, mine: Label | None) -> tuple[Comment, ...] | None:
    """Return the comments on an item; None before the annotator's own label, as they may tell others'."""
    if mine is None and queue.settings.get("blind", True):
        return None
    return tuple(store.comments.of(queue.name, position))


def _by_others(comments: tuple[Comment, ...] | None, who: str) -> bool:
    return any(each.author != who for each in comments or ())


def _note_seen(store: Store, queue: Queue, position: int, who: str) -> None:
    """Mark the annotator's later labels of an item: they depend on verdicts, or on what others say."""
    now = datetime.now(UTC)
    blind = bool(queue.settings.get("blind", True))
    store.labels.lease(queue.name, position, who, now if blind else lease_end(now), shown=True)


def _verdicts(store: Store, queue: Queue, sample: Sample) -> tuple[VerdictLine, ...]:
    """Return the judges' results for the sample; empty if the run was deleted."""
    try:
        with store.snapshot() as moment:
            said: list[Outcome] = list(moment.outcomes(str(queue.run_id), sample_id=sample.id))
    except SpecError:
        return ()
    return tuple(
        VerdictLine(
            judge=each.judge,
            said=outcome_text(each),
            score=each.score if isinstance(each, Verdict) else None,
            address=sample_address(str(queue.run_id), sample.id, judge=each.judge),
        )
        for each in said
    )


# --- what is sent ---------------------------------------------------------------------------------


def answer_of(
    sample: Sample, *, label: str, spans: str, quotes: str, quote: str, note: str, seconds: str, kind: str
) -> Answer:
    """Parse the form. Raises `InputError` with a message for the annotator.

    `spans` is JSON written by the page's script. Without the script, `quotes` is typed: words of the
    output, one quote per line, which get the kind `kind`.
    """
    try:
        marked = [Span(*each) for each in SPANS.validate_json(spans)] if spans.strip() else []
        place = Quote(*QUOTE.validate_json(quote)) if quote.strip() else None
    except ValidationError:
        raise InputError("the marked words cannot be read; reload the page") from None
    output = sample.output or ""
    for line in filter(None, map(str.strip, quotes.splitlines())):
        at = output.find(line)
        if at < 0:
            raise InputError(
                f"the output does not contain these words: {shorten(line, 100)!r}; copy them exactly"
            )
        marked.append(Span(at, at + len(line), kind))
    try:
        took = float(seconds) if seconds.strip() else None
    except ValueError:
        took = None
    if took is not None and not (isfinite(took) and 0 <= took < 1e6):
        took = None
    if not label:
        raise InputError("choose a label first")
    return Answer(
        label=label,
        spans=tuple(marked),
        quote=place,
        note=note.replace("\r\n", "\n"),
        seconds=took,
    )


UNLABELLED = "comments can be read and written once you have labelled the item"
MEANWHILE = "you have labelled this item in another window in the meantime; this is the current label"


@router.get("/label/{name}/{number:int}")
def item_page(
    request: Request,
    name: str,
    number: Number,
    store: RequestStore,
    verdict: Annotated[bool, Query()] = False,
) -> Response:
    """Show one item with the form to label it."""
    who = annotator_of(request)
    if who is None:
        return RedirectResponse(queue_address(store.labels.find(name).name), 303)
    return _page(request, item_view(request, store, name, number, who, verdict=verdict), who)


@router.post("/label/{name}/{number:int}")
def submit(
    request: Request,
    name: str,
    number: Number,
    store: RequestStore,
    label: Typed = "",
    spans: Typed = "",
    quotes: Typed = "",
    quote: Typed = "",
    note: Typed = "",
    seconds: Typed = "",
    kind: Typed = "",
    revision: Annotated[int, Form(ge=0, le=10**9)] = 0,
) -> Response:
    """Store a label, then redirect to the next item; a script gets JSON instead."""
    who = required_annotator(request)
    queue = store.labels.find(name)
    item, sample = store.labels.item(queue.name, number - 1)
    kinds = queue.settings.get("kinds", KINDS)
    by_script = "application/json" in request.headers.get("accept", "")
    answer: Answer | None = None
    try:
        answer = answer_of(
            sample,
            label=label,
            spans=spans,
            quotes=quotes,
            quote=quote,
            note=note,
            seconds=seconds,
            kind=kind if kind in kinds else kinds[0],
        )
        now = datetime.now(UTC)
        by = visitor_of(request).who
        stored = store.labels.add(queue.name, item.position, who, answer, revision=revision, now=now, by=by)
    except InputError as error:
        if by_script:
            return json_response({"detail": str(error)}, 422)
        # The form keeps the note and the label, but not the invalid spans.
        sent = Answer(label=label, note=note)
        view = item_view(request, store, name, number, who, sent=sent)
        return _page(request, view, who, error=str(error), status=422)
    if stored is None:
        if by_script:
            return json_response({"detail": MEANWHILE}, 409)
        view = item_view(request, store, name, number, who)
        return _page(request, view, who, error=MEANWHILE, status=409)
    if by_script:
        now_at = standing(request, store, queue, who)
        told = {"standing": now_at.words(who), "figure": now_at.figure}
        return json_response({"label": stored.label, "revision": stored.revision, **told})
    return RedirectResponse(queue_address(queue.name, "next"), 303)


@router.post("/label/{name}/{number:int}/comments")
def comment(request: Request, name: str, number: Number, store: RequestStore, text: Typed = "") -> Response:
    """Store a comment on an item and show the item again."""
    who = required_annotator(request)
    queue = store.labels.find(name)
    try:
        add_comment(request, store, queue, number - 1, who, text)
    except InputError as error:
        view = item_view(request, store, name, number, who)
        return _page(request, view, who, error=str(error), status=422, written=text)
    return RedirectResponse(f"{queue_address(queue.name, str(number))}#comments", 303)


def comments_for(store: Store, queue: Queue, position: int, who: str) -> tuple[Comment, ...]:
    """Return the comments on an item, and note that the annotator has seen them.

    Raises `InputError` if they may not see them yet.
    """
    found = _readable_comments(store, queue, position, who)
    if _by_others(found, who):
        _note_seen(store, queue, position, who)
    return found


def _readable_comments(store: Store, queue: Queue, position: int, who: str) -> tuple[Comment, ...]:
    store.labels.item(queue.name, position)  # `SpecError` without such an item
    newest = store.labels.newest(queue.name, position, who)
    mine = None if newest is None or newest.label == UNDONE else newest
    found = _comments(store, queue, position, mine)
    if found is None:
        raise InputError(UNLABELLED)
    return found


def add_comment(request: Request, store: Store, queue: Queue, position: int, who: str, text: str) -> Comment:
    """Store a comment. Raises `InputError` if the annotator may not see comments on the item yet."""
    _readable_comments(store, queue, position, who)
    by = visitor_of(request).who
    return store.comments.add(queue.name, position, who, text, now=datetime.now(UTC), by=by)


@router.post("/label/{name}/undo")
def undo(request: Request, name: str, store: RequestStore) -> Response:
    """Take back the last label and show its item again."""
    who = required_annotator(request)
    queue = store.labels.find(name)
    position = store.labels.undo(queue.name, who, datetime.now(UTC), by=visitor_of(request).who)
    if position is None:
        return RedirectResponse(queue_address(queue.name), 303)
    return RedirectResponse(queue_address(queue.name, str(position + 1)), 303)


def _page(
    request: Request,
    view: ItemView,
    who: str,
    *,
    error: str | None = None,
    status: int = 200,
    written: str = "",
) -> Response:
    return page(
        request,
        "label_item.html",
        status=status,
        view=view,
        who=who,
        error=error,
        written=written,
        longest=LONGEST_COMMENT,
        address=queue_address,
    )
