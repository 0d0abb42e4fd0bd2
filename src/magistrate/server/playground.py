"""The playground: a form to try a judge on one sample, and the page of the result."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent

from magistrate.datasets import load
from magistrate.engines.models.catalogue import entries
from magistrate.engines.models.pull import is_pulled
from magistrate.errors import MagistrateError, SpecError
from magistrate.judges.registry import DEFAULT_JUDGE, usual_model
from magistrate.server.judges import JudgeLine, judges_view
from magistrate.server.judging import (
    LONGEST_WORDS,
    BusyError,
    Judgement,
    JudgingService,
    Phase,
    Question,
    models_here,
    question,
)
from magistrate.server.responses import page
from magistrate.server.samples import CLAIMS_AT_ONCE, STEPS_AT_ONCE, evidence_of, steps_of
from magistrate.types import HALLUCINATED, Outcome, Sample, Step

MOST_TRIES = 100
KEPT_SECONDS = 3600.0
MOST_CHARACTERS = 20_000_000  # of all texts together

FIELDS = frozenset({"output", "context", "messages", "input", "expected"})
"""Fields of a sample that can be filled in; judges that require any other are not offered."""

CONTEXTS = 2  # initial number of boxes for contexts
MOST_CONTEXTS = 50
WAIT_SECONDS = 0.4  # how long the form's response waits, so that the page has the outcome of a fast judge
LOOK_SECONDS = 0.2  # interval at which an event stream polls a judgement

PHASES: tuple[tuple[Phase, str], ...] = (
    ("waiting", "Waiting in the queue"),
    ("loading", "Loading the model"),
    ("judging", "Judging"),
)

Words = Annotated[str, Query(max_length=LONGEST_WORDS)]
Typed = Annotated[str, Form()]

router = APIRouter()

GONE = "this attempt does not exist; the last {most} are kept for at most an hour, until the server stops"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaygroundForm:
    """The input of the form, unchanged; missing fields are empty."""

    output: str = ""
    context: tuple[str, ...] = ()
    input: str = ""
    expected: str = ""
    judge: str = ""
    options: str = ""
    model: str = ""

    @property
    def size(self) -> int:
        """The number of characters of its texts."""
        return sum(map(len, (self.output, *self.context, self.input, self.expected)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """A submitted form and its judgement."""

    id: str
    form: PlaygroundForm
    judgement: Judgement
    made: float


class Playground:
    """Recent tries of visitors, in memory only, at addresses that cannot be guessed.

    The newest `most` tries of the last hour are kept, fewer if their texts are long. The oldest are removed
    first.
    """

    def __init__(
        self, judging: JudgingService, *, most: int = MOST_TRIES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._judging = judging
        self._most = most
        self._clock = clock
        self._kept: OrderedDict[str, Try] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, form: PlaygroundForm, question: Question) -> Try:
        """Begin to judge the content of a form. Raises `BusyError`."""
        judgement = self._judging.begin(question)
        made = Try(id=secrets.token_urlsafe(16), form=form, judgement=judgement, made=self._clock())
        with self._lock:
            self._kept[made.id] = made
            removed = self._remove_old()
        for each in removed:
            self._judging.cancel(each.judgement)  # it cannot be viewed any more
        return made

    def find(self, id: str) -> Try:
        """Return the try of this id. Raises `SpecError` if it does not exist any more."""
        with self._lock:
            found = self._kept.get(id)
            if found is None or self._clock() - found.made > KEPT_SECONDS:
                raise SpecError(GONE.format(most=self._most))
            return found

    def stop(self, id: str) -> None:
        """Cancel the judgement of a try. Raises `SpecError` if there is no such try."""
        self._judging.cancel(self.find(id).judgement)

    def _remove_old(self) -> list[Try]:
        """Remove old tries and those beyond a limit, never the newest one, and return them."""
        size = sum(each.form.size for each in self._kept.values())
        removed = []
        for id, each in list(self._kept.items())[:-1]:
            old = self._clock() - each.made > KEPT_SECONDS
            if not old and len(self._kept) <= self._most and size <= MOST_CHARACTERS:
                break
            removed.append(self._kept.pop(id))
            size -= each.form.size
        return removed


# --- views ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FormView:
    """The form. `boxes` are the contexts, at least `CONTEXTS` of them, some empty.

    `groups` are the judges that can be used here, `models` the models. `missing` are those that judges ask if
    none is named, and that were not pulled. `error` is the problem with the submitted input.
    """

    form: PlaygroundForm
    boxes: tuple[str, ...]
    groups: tuple[tuple[str, tuple[JudgeLine, ...]], ...]
    models: tuple[str, ...]
    missing: tuple[str, ...]
    error: str | None

    @property
    def full(self) -> bool:
        """Whether no further context can be added."""
        return len(self.boxes) >= MOST_CONTEXTS


@dataclass(frozen=True, slots=True, kw_only=True)
class TryView:
    """A judgement in progress or done. `seconds` is the time taken so far, `deadline` the limit.

    `error` is set if it could not be judged. `steps` are the engine's answers so far.
    """

    id: str
    form: PlaygroundForm
    sample: Sample
    judge: str
    asks: bool
    model: str
    phase: Phase
    seconds: float
    deadline: float
    steps: tuple[Step, ...]
    outcome: Outcome | None
    error: str | None

    @property
    def phases(self) -> tuple[tuple[Phase, str], ...]:
        """The phases until it is done, in words."""
        return tuple(each for each in PHASES if self.asks or each[0] in ("waiting", self.phase, "judging"))


def form_view(form: PlaygroundForm, *, error: str | None = None, more: bool = False) -> FormView:
    """Return the form with its input; with `more`, it has one more box for a context."""
    boxes = [*form.context, *([""] if more else [])]
    boxes += [""] * (CONTEXTS - len(boxes))
    offered = [(name, tuple(filter(_is_offered, judges))) for name, judges in judges_view().groups()]
    usual = {judge.model for _, judges in offered for judge in judges if judge.model}
    return FormView(
        form=form,
        boxes=tuple(boxes[:MOST_CONTEXTS]),
        groups=tuple((name, judges) for name, judges in offered if judges),
        models=tuple(models_here()),
        missing=tuple(each.name for each in entries() if each.name in usual and not is_pulled(each)),
        error=error,
    )


def try_view(tried: Try) -> TryView:
    """Return the progress of a try, and its outcome."""
    found, question = tried.judgement, tried.judgement.question
    phase, steps, outcome, error = found.phase, found.steps, None, None
    try:
        outcome = found.outcome()
    except Exception as raised:  # any error is shown on the page of this try
        error = f"{type(raised).__name__}: {raised}"
    done = outcome is not None or error is not None
    return TryView(
        id=tried.id,
        form=tried.form,
        sample=question.sample,
        judge=question.judge.info.name,
        asks=question.judge.info.asks,
        model=question.model or usual_model([question.judge]),
        phase="done" if done else phase,
        seconds=found.seconds,
        deadline=question.deadline,
        steps=outcome.steps if outcome is not None else steps,
        outcome=outcome,
        error=error,
    )


@cache
def example() -> PlaygroundForm:
    """Return a hallucinated sample of the built-in set."""
    sample = next(each for each in load("quickstart") if each.label == HALLUCINATED)
    return PlaygroundForm(output=sample.output or "", context=sample.context, input=sample.input or "")


def _is_offered(judge: JudgeLine) -> bool:
    return judge.asked_here and FIELDS.issuperset(judge.requires)


# --- pages ----------------------------------------------------------------------------------------


@router.get("/try")
def form(
    request: Request,
    example_: Annotated[bool, Query(alias="example")] = False,
    again: Words = "",
    judge: Words = "",
) -> Response:
    """Show the form: empty, with the example, with a judge selected, or as it was submitted before."""
    filled = PlaygroundForm()
    if again:
        filled = playground_of(request).find(again).form
    elif example_:
        filled = example()
    elif judge:
        filled = PlaygroundForm(judge=judge)
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
    """Begin to judge, or show the form again with one more box for a context or with the error."""
    boxes = [_lines(each) for each in context or ()]
    sent = PlaygroundForm(
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
        made = playground_of(request).begin(sent, _question(sent))
    except BusyError as error:
        response = _wrong(request, sent, error, 429)
        response.headers["Retry-After"] = str(error.seconds)
        return response
    except MagistrateError as error:
        return _wrong(request, sent, error, 422)
    made.judgement.wait(WAIT_SECONDS)
    return RedirectResponse(f"/try/{made.id}", 303)


@router.get("/try/{id}")
def tried(request: Request, id: str, claim: Annotated[int | None, Query(ge=1, le=10**9)] = None) -> Response:
    """Show the page of a try: its progress, or its outcome with the evidence."""
    view = try_view(playground_of(request).find(id))
    return page(
        request,
        "tried.html",
        view=view,
        evidence=evidence_of(view.sample, view.outcome, claim),
        steps=steps_of(view.sample, view.steps),
        n_steps=len(view.steps),
        steps_at_once=STEPS_AT_ONCE,
        claims_at_once=CLAIMS_AT_ONCE,
        to=_Links(view),
    )


@router.post("/try/{id}/stop")
def stop(request: Request, id: str) -> Response:
    """Cancel a judgement."""
    kept = playground_of(request)
    kept.stop(id)
    kept.find(id).judgement.wait(WAIT_SECONDS)
    return RedirectResponse(f"/try/{id}", 303)


@router.get("/live/tries/{id}", response_class=EventSourceResponse)
async def followed(request: Request, id: str) -> AsyncIterator[ServerSentEvent]:
    """Stream `changed` whenever a judgement has progressed, and `done` when it is done or gone."""
    kept, before = playground_of(request), None
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
        await asyncio.sleep(LOOK_SECONDS)


class _Links:
    """The addresses that a try's page links to."""

    def __init__(self, view: TryView) -> None:
        self.here = f"/try/{view.id}"

    def claim(self, number: int, anchor: str) -> str:
        """Return the address of the same page with this claim selected."""
        return f"{self.here}?claim={number}#{anchor}"


def playground_of(request: Request) -> Playground:
    """Return the playground of the application that handles a request."""
    found: Playground = request.app.state.playground
    return found


def _question(sent: PlaygroundForm) -> Question:
    judge = sent.judge or DEFAULT_JUDGE
    return question(
        output=sent.output,
        context=sent.context,
        input=sent.input or None,
        expected=sent.expected or None,
        judge=f"{judge}:{sent.options}" if sent.options else judge,
        model=sent.model or None,
    )


def _wrong(request: Request, sent: PlaygroundForm, error: MagistrateError, status: int) -> Response:
    view = form_view(sent, error=str(error))
    return page(request, "try.html", status=status, view=view, default=DEFAULT_JUDGE)


def _lines(text: str) -> str:
    """Return the text with plain line ends; forms send CR LF."""
    return text.replace("\r\n", "\n")
