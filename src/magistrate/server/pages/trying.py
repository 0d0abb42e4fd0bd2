"""The page on which a judge is tried: a form, and at an address of its own what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent

from magistrate.errors import MagistrateError, SpecError
from magistrate.judges.registry import DEFAULT_JUDGE
from magistrate.server import tries
from magistrate.server.asking import LONGEST_WORDS, Question, question
from magistrate.server.judging import BusyError
from magistrate.server.rendering import page
from magistrate.server.views.evidence import CLAIMS_AT_ONCE, evidence_of
from magistrate.server.views.steps import STEPS_AT_ONCE, steps_of
from magistrate.server.views.trying import TryView, example, form_view, try_view

router = APIRouter()

AT_ONCE = 0.4  # seconds that a visitor waits for a judge that is quick, rather than to look twice
LOOK = 0.2  # seconds between two looks at how far a judgement is

Words = Annotated[str, Query(max_length=LONGEST_WORDS)]
Typed = Annotated[str, Form()]


@router.get("/try")
def form(
    request: Request,
    example_: Annotated[bool, Query(alias="example")] = False,
    again: Words = "",
    judge: Words = "",
) -> Response:
    """The form: empty, with the example, with a judge chosen, or as it was sent before."""
    filled = tries.Form()
    if again:
        filled = _tries(request).find(again).form
    elif example_:
        filled = example()
    elif judge:
        filled = tries.Form(judge=judge)
    return page(request, "try.html", view=form_view(filled), default=DEFAULT_JUDGE, status=200)


@router.post("/try")
def begin(
    request: Request,
    context: Annotated[list[str] | None, Form()] = None,
    output: Typed = "",
    input: Typed = "",
    expected: Typed = "",
    judge: Typed = "",
    options: Typed = "",
    model: Typed = "",
    more: Typed = "",
) -> Response:
    """Have it judged, or show the form again: with another box for a context, or with what was wrong."""
    boxes = [_lines(each) for each in context or ()]
    sent = tries.Form(
        output=_lines(output),
        context=tuple(boxes if more else [each for each in boxes if each.strip()]),
        input=_lines(input),
        expected=_lines(expected),
        judge=judge,
        options=options.strip(),
        model=model,
    )
    if more:
        return page(request, "try.html", view=form_view(sent, more=True), default=DEFAULT_JUDGE)
    try:
        made = _tries(request).begin(sent, _question(sent))
    except BusyError as error:
        response = _wrong(request, sent, error, 429)
        response.headers["Retry-After"] = str(error.seconds)
        return response
    except MagistrateError as error:
        return _wrong(request, sent, error, 422)
    made.judgement.wait(AT_ONCE)
    return RedirectResponse(f"/try/{made.id}", 303)


@router.get("/try/{id}")
def tried(request: Request, id: str, claim: Annotated[int | None, Query(ge=1, le=10**9)] = None) -> Response:
    """How far a judgement is, and what came out."""
    view = try_view(_tries(request).find(id))
    return page(
        request,
        "tried.html",
        view=view,
        evidence=evidence_of(view.sample, view.outcome, claim),
        steps=steps_of(view.sample, view.steps),
        n_steps=len(view.steps),
        steps_at_once=STEPS_AT_ONCE,
        claims_at_once=CLAIMS_AT_ONCE,
        to=_Addresses(view),
    )


@router.post("/try/{id}/stop")
def stop(request: Request, id: str) -> Response:
    """Give a judgement up."""
    kept = _tries(request)
    kept.stop(id)
    kept.find(id).judgement.wait(AT_ONCE)
    return RedirectResponse(f"/try/{id}", 303)


@router.get("/live/tries/{id}", response_class=EventSourceResponse)
async def followed(request: Request, id: str) -> AsyncIterator[ServerSentEvent]:
    """`changed` whenever a judgement has come a step further, `done` when it is done or gone."""
    kept, before = _tries(request), None
    yield ServerSentEvent(event="hello", data="following")
    while not await request.is_disconnected():
        try:
            view = try_view(kept.find(id))
        except SpecError:
            view = None
        if view is None or view.phase == "done":
            yield ServerSentEvent(event="done", data="look again")
            return
        now = (view.phase, len(view.steps))
        if before not in (None, now):
            yield ServerSentEvent(event="changed", data="look again")
        before = now
        await asyncio.sleep(LOOK)


class _Addresses:
    """Where the links of a try's page lead."""

    def __init__(self, view: TryView) -> None:
        self.here = f"/try/{view.id}"

    def claim(self, number: int, anchor: str) -> str:
        """The same page with this claim chosen."""
        return f"{self.here}?claim={number}#{anchor}"


def _tries(request: Request) -> tries.Tries:
    found: tries.Tries = request.app.state.tries
    return found


def _question(sent: tries.Form) -> Question:
    judge = sent.judge or DEFAULT_JUDGE
    return question(
        output=sent.output,
        context=sent.context,
        input=sent.input or None,
        expected=sent.expected or None,
        judge=f"{judge}:{sent.options}" if sent.options else judge,
        model=sent.model or None,
    )


def _wrong(request: Request, sent: tries.Form, error: MagistrateError, status: int) -> Response:
    view = form_view(sent, error=str(error))
    return page(request, "try.html", status=status, view=view, default=DEFAULT_JUDGE)


def _lines(text: str) -> str:
    """What a form sends ends its lines as the internet does."""
    return text.replace("\r\n", "\n")
