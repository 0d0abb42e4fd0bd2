"""Judge one sample over HTTP: input limits, running judgements, and `POST /api/judge`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext, suppress
from dataclasses import dataclass, fields
from functools import partial
from math import ceil
from statistics import fmean
from typing import Annotated, Any, Literal, Union, get_type_hints

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field, create_model

from magistrate import _async, _logging
from magistrate._work import Deadline
from magistrate.api import judge as api_judge
from magistrate.engines import models
from magistrate.engines.base import CONCURRENCY, Engine
from magistrate.engines.models.catalogue import names, unknown
from magistrate.errors import (
    DatasetError,
    EngineGone,
    InputError,
    MagistrateError,
    MissingExtra,
    ModelError,
    SpecError,
)
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.judges.registry import DEFAULT_JUDGE
from magistrate.report.export import outcome_data
from magistrate.runs.execute import GRACE, Recorded
from magistrate.runs.limits import DEADLINE
from magistrate.server.monitoring import Metrics
from magistrate.server.responses import Refusal, error_responses, json_response
from magistrate.server.state import JobQueue, Refused
from magistrate.types import Abstention, Failure, FailureCode, Outcome, Sample, Step, Usage, Verdict

LONGEST_WORDS = 300  # characters of a judge's specification
LONGEST_DEADLINE = 3600.0

# Some judges take time proportional to the product of both lengths, and block all of Python meanwhile.
LONGEST_OUTPUT = 200_000
LONGEST_EXPECTED = 20_000

NO_OUTPUT = "nothing to judge: give output, or messages whose last one is the assistant's answer"

MOST_WAITING = 64
TIMES_KEPT = 20  # number of recent durations used to predict the next ones
LONGEST_PAUSE = 60  # seconds, at most, in Retry-After

MOST_TEXTS = 10_000  # per context or conversation
UNAVAILABLE = (ModelError, MissingExtra, EngineGone)
CLIENT_GONE = 499  # the client has disconnected; proxies log this status

Phase = Literal["waiting", "loading", "judging", "done"]
EngineOf = Callable[[Sequence[Judge], str | None], Engine]

api = APIRouter(tags=["judging"])
_log = _logging.get("server")


# --- validating requests --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A sample to judge, with the judge, the model, and the deadline in seconds.

    `name` is the judge's without options. `model` is of the catalogue, None for the default one.
    """

    sample: Sample
    judge: Judge
    name: str
    model: str | None
    deadline: float


def question(
    *,
    output: str | None,
    context: str | Sequence[str] = (),
    input: str | None = None,
    expected: str | None = None,
    messages: Sequence[Mapping[str, Any]] = (),
    judge: str = DEFAULT_JUDGE,
    model: str | None = None,
    deadline: float = DEADLINE,
) -> Question:
    """Build a question from a visitor's input. May import a judge, which takes a while.

    It cannot name a file, a folder or a model that was not installed by people on this machine. Raises
    `SpecError`, with similar names, for an unknown judge or model, and `InputError` for input that cannot
    be judged or is not allowed from outside.
    """
    try:
        sample = api_judge.sample_of(
            output=output, context=context, input=input, expected=expected, messages=messages
        )
    except DatasetError:
        if output is None:
            raise InputError(NO_OUTPUT) from None
        raise
    check_texts(sample)
    name = judge.partition(":")[0].partition("@")[0]
    return Question(sample=sample, judge=judge_of(judge), name=name, model=model_of(model), deadline=deadline)


def judge_of(words: str) -> Judge:
    """Return the installed judge of that name, with the options that may be set from outside."""
    if len(words) > LONGEST_WORDS:
        raise InputError(f"the name of a judge must have at most {LONGEST_WORDS} characters")
    name = words.partition(":")[0].partition("@")[0]
    if name not in registry.judge_entries():
        raise SpecError(registry.unknown("judge", name, list(registry.judge_entries())))
    try:
        found = registry.judge(words, outside=True)
    except SpecError as error:  # the judge is known, so the options are invalid
        raise InputError(str(error)) from None
    if found.info.lacks:
        raise InputError(f"judge {found.info.name!r} {found.info.lacks}")
    return found


def model_of(name: str | None) -> str | None:
    """Return the model of that name if it was pulled; None, the judge's usual one, for an empty name."""
    if not name or name in models_here():
        return name or None
    base, _, weights = name.partition(":")
    if base not in names() or weights not in ("", *models.WEIGHTS):
        raise SpecError(unknown(name))
    raise InputError(
        f"the model {name} is not installed; on the machine of this server run: magistrate models pull {name}"
    )


def models_here() -> list[str]:
    """Return the models that were pulled, the default one first."""
    return [
        weights
        for entry in sorted(models.entries(), key=lambda entry: not entry.default)
        for weights in (models.entry(f"{entry.name}:{each}").spec for each in models.pulled(entry))
    ]


def check_texts(sample: Sample) -> None:
    """Reject texts that are not valid Unicode, and those that would block other visitors."""
    for what, text, most in (
        ("the output", sample.output, LONGEST_OUTPUT),
        ("what is expected", sample.expected, LONGEST_EXPECTED),
    ):
        if text is not None and len(text) > most:
            raise InputError(f"{what} has {len(text):,} characters; the limit is {most:,}")
    roles = (turn.role for turn in sample.messages)
    for text in (sample.output, sample.input, sample.expected, *sample.sources, *roles):
        try:
            (text or "").encode()
        except UnicodeEncodeError:
            raise InputError("a text contains half of a surrogate pair, which is not valid") from None


# --- judgements -----------------------------------------------------------------------------------


class BusyError(MagistrateError):
    """Too many samples are being judged; retry in `seconds`."""

    retryable = True

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many samples are being judged; try again in {seconds} s")
        self.seconds = seconds


class Judgement:
    """A sample that is being judged, readable from any thread. Times are seconds of `clock`."""

    def __init__(self, question: Question, clock: Callable[[], float]) -> None:
        self.question = question
        self.cancelled = False
        self._clock = clock
        self._began = clock()
        self._ended: float | None = None
        self._is_running = False
        self._engine: Engine | None = None
        self._steps: list[Step] = []
        self._task: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None
        self._deadline: Deadline | None = None
        self._lock = threading.Lock()
        self._answer: Future[Outcome] = Future()
        self._answer.set_running_or_notify_cancel()  # so that no waiter can cancel it

    @property
    def phase(self) -> Phase:
        """The phase: waiting for its turn, loading the model, judging, or done."""
        if self._answer.done():
            return "done"
        if not self._is_running:
            return "waiting"
        return "loading" if self._engine is None or getattr(self._engine, "loading", False) else "judging"

    @property
    def steps(self) -> tuple[Step, ...]:
        """The engine's answers so far."""
        return tuple(self._steps)

    @property
    def seconds(self) -> float:
        """How long it took, or has taken so far."""
        return (self._clock() if self._ended is None else self._ended) - self._began

    @property
    def left(self) -> float:
        """Seconds until its deadline; negative after it."""
        return self._began + self.question.deadline - self._clock()

    def outcome(self) -> Outcome | None:
        """Return the outcome, or None if there is none yet. Raises errors that are not about this sample
        only.
        """
        self.check_deadline()
        return self._answer.result() if self._answer.done() else None

    async def finished(self) -> Outcome:
        """Return the outcome, soon after the deadline at the latest. Raises as `outcome` does."""
        answer = asyncio.wrap_future(self._answer)
        # `_answer` raises the exception itself; that of this copy would be logged as never retrieved.
        answer.add_done_callback(lambda copy: copy.cancelled() or copy.exception())
        await asyncio.wait([answer], timeout=max(self.left, 0) + 0.01)
        self.check_deadline()
        if not self._answer.done():
            await asyncio.wait([answer], timeout=max(self.left + GRACE, 0) + 0.1)
            self.check_deadline()
        return self._answer.result()

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` for the outcome."""
        wait([self._answer], timeout=seconds)

    def run(self, engine_of: EngineOf) -> None:
        """Judge the sample in the calling thread, unless there is an outcome already."""
        with self._lock:
            if self._answer.done():
                return
            self._is_running = True
        try:
            self._engine = engine_of([self.question.judge], self.question.model)
            with Deadline(self.question.deadline, used=self.seconds) as self._deadline:
                asyncio.run(self._judge(self._engine))
        except Exception as error:
            self._settle(error)
        except BaseException as error:  # a library's panic, which nothing above this thread would report
            self._settle(self._failure("engine_error", _logging.error_text(error)))

    def cancel(self) -> None:
        """Stop, since nothing waits for the outcome any more."""
        with self._lock:
            self.cancelled = True
            waits = not self._is_running
            if self._deadline is not None:
                self._deadline.stop()
            if self._task is not None:
                loop, task = self._task
                with suppress(RuntimeError):  # its loop is closed: it has already ended
                    loop.call_soon_threadsafe(task.cancel)
        if waits:
            self._settle(self._cancelled)

    async def _judge(self, engine: Engine) -> None:
        """Set the outcome before the loop is closed, which may take as long as the loop's threads do."""
        task = asyncio.current_task()
        assert task is not None
        with self._lock:
            self._task = (asyncio.get_running_loop(), task)
            if self.cancelled:
                task.cancel()
        judge = self.question.judge
        model = Recorded(engine, steps=self._steps) if judge.info.asks else None
        try:
            async with asyncio.timeout(max(self.left, 0)):
                outcome = await api_judge.ajudge_sample(
                    self.question.sample, judge=judge, model=model, deadline=self.question.deadline
                )
        except TimeoutError:
            outcome = self._failure("timeout", self._late)
        except asyncio.CancelledError:
            outcome = self._cancelled
        self._settle(outcome)

    @property
    def _late(self) -> str:
        return f"no verdict within {self.question.deadline:g} seconds"

    @property
    def _cancelled(self) -> Failure:
        return self._failure("cancelled", "the client no longer waited")

    def _failure(self, code: FailureCode, message: str) -> Failure:
        spent = sum((step.usage for step in self._steps), Usage())
        judge = self.question.judge.info.name
        return Failure(self.question.sample.id, judge, code, message, self.steps, spent, self.seconds)

    def check_deadline(self) -> None:
        """Fail a judgement that got no turn in time, or whose judge did not stop when requested."""
        if self._answer.done():
            return
        if self.left <= 0 and not self._is_running:
            self._settle(self._failure("timeout", f"{self._late}; it was only waiting in the queue"))
        elif self.left < -GRACE:
            self._settle(self._failure("timeout", f"{self._late}; it did not stop when cancelled"))

    def _settle(self, answer: Outcome | Exception) -> None:
        """Set the outcome, unless there is one."""
        with self._lock:
            if self._answer.done():
                return
            self._ended = self._clock()
            if isinstance(answer, Exception):
                self._answer.set_exception(answer)
            else:
                self._answer.set_result(answer)
            self._steps = []  # the outcome has its own


class JudgingService:
    """Judges samples for visitors: `at_once` at a time, `waiting` more in order of arrival.

    A judge that is code may compute for seconds without a pause, so each judgement has an event loop in its
    own thread. The engines are shared, and their scheduler batches the judges' requests. `engine_of`
    returns the engine for a judge, loading its model if needed.
    """

    def __init__(
        self,
        *,
        engine_of: EngineOf = registry.engine_for,
        metrics: Metrics | None = None,
        at_once: int = CONCURRENCY,
        waiting: int = MOST_WAITING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine_of = engine_of
        self._metrics = metrics
        self._at_once = at_once
        self._clock = clock
        self._jobs = JobQueue(
            name="magistrate-judging", workers=at_once, most_waiting=waiting, kept=0, clock=clock
        )
        self._unfinished: dict[Judgement, None] = {}
        self._took: deque[float] = deque(maxlen=TIMES_KEPT)

    def begin(self, question: Question) -> Judgement:
        """Judge the sample now, or when its turn comes. Raises `BusyError` if too many are waiting."""
        for each in list(self._unfinished):
            each.check_deadline()
            if each.phase == "done":  # frees its place, if it is still in the queue
                self._leave_queue(each)
        made = Judgement(question, self._clock)
        self._unfinished[made] = None
        if isinstance(self._jobs.submit(made, partial(self._run, made)), Refused):
            self._unfinished.pop(made, None)
            raise BusyError(self._pause())
        return made

    def cancel(self, judgement: Judgement) -> None:
        """Stop a judgement that nothing waits for any more."""
        judgement.cancel()
        self._leave_queue(judgement)

    def close(self) -> None:
        """Stop all judgements and start no more."""
        self._jobs.close(0)
        for each in list(self._unfinished):
            each.cancel()

    @property
    def n_running(self) -> int:
        """The number of samples being judged now."""
        return self._jobs.n_running

    def _pause(self) -> int:
        """Return the estimated seconds until there is room."""
        times = list(self._took)
        mean = fmean(times) if times else 1.0
        return min(max(ceil(mean * self._jobs.n_unfinished / self._at_once / 2), 1), LONGEST_PAUSE)

    def _leave_queue(self, judgement: Judgement) -> None:
        if self._jobs.cancel(judgement):
            self._note(judgement)

    def _run(self, judgement: Judgement) -> None:
        began = self._clock()
        judgement.check_deadline()
        if judgement.phase != "done":
            with self._metrics.judging() if self._metrics else nullcontext():
                judgement.run(self._engine_of)
            self._took.append(self._clock() - began)
        self._note(judgement)

    def _note(self, judgement: Judgement) -> None:
        """Count a finished judgement and log its errors."""
        self._unfinished.pop(judgement, None)
        name = judgement.question.name
        try:
            outcome = judgement.outcome()
        except MagistrateError as error:
            _log.warning("judging.refused", judge=name, reason=str(error))
        except Exception as error:
            _log.error("judging.failed", judge=name, error=type(error).__name__, message=str(error))
        else:
            if self._metrics and outcome is not None:
                self._metrics.judged(name, outcome)


# --- POST /api/judge ------------------------------------------------------------------------------


class Turn(BaseModel, extra="forbid"):
    """One message of a conversation."""

    role: str = Field(max_length=100)
    content: str


class ToJudge(BaseModel, extra="forbid"):
    """A sample, and the judge to use.

    Without `output`, the assistant's last message is judged. `context` is what it must be faithful to;
    judges with a reference compare it with `expected`. `judge` names an installed judge, optionally with
    options, as in `faithfulness:explain=after`; `model` one of the installed models. `deadline` is in
    seconds.
    """

    output: str | None = None
    context: str | Annotated[list[str], Field(max_length=MOST_TEXTS)] = []
    input: str | None = None
    expected: str | None = None
    messages: Annotated[list[Turn], Field(max_length=MOST_TEXTS)] = []
    judge: str = Field(DEFAULT_JUDGE, max_length=LONGEST_WORDS)
    model: str | None = Field(None, max_length=LONGEST_WORDS)
    deadline: float = Field(DEADLINE, gt=0, le=LONGEST_DEADLINE, allow_inf_nan=False)


def _outcome_model(kind: type) -> Any:
    """Return the pydantic model of an outcome as JSON."""
    hints = get_type_hints(kind)
    shape: dict[str, Any] = {each.name: (hints[each.name], ...) for each in fields(kind)}
    shape["kind"] = (Literal[kind.__name__.lower()], ...)
    shape["steps"] = (tuple[Step, ...], Field((), description="only with ?steps=true"))
    return create_model(f"Judged{kind.__name__}", __doc__=(kind.__doc__ or "").strip(), **shape)


OUTCOME: Any = Union[_outcome_model(Verdict), _outcome_model(Failure), _outcome_model(Abstention)]  # noqa: UP007 - made here
ERRORS: dict[int | str, dict[str, Any]] = {
    **error_responses(400),
    404: {"model": Refusal, "description": "The judge or the model is unknown"},
    422: {"model": Refusal, "description": "This cannot be judged, or may not be requested remotely"},
    429: {"model": Refusal, "description": "Too many samples are being judged; try again after Retry-After"},
    503: {"model": Refusal, "description": "The required model is not installed or does not work"},
}


@api.post("/judge", response_model=OUTCOME, responses=ERRORS)
async def judge(request: Request, body: ToJudge, steps: Annotated[bool, Query()] = False) -> Response:
    """Judge one sample. `kind` is the type of the outcome; a failed judgement is a valid response too.

    Concurrent requests share one engine, which batches them. Closing the connection stops the judgement.
    """
    service: JudgingService = request.app.state.judging
    try:
        asked = await _async.in_thread(question, **body.model_dump())
    except MagistrateError as error:
        return _refused(error, 404 if isinstance(error, SpecError) else 422)
    try:
        outcome = await awaited(request, service, service.begin(asked))
    except BusyError as error:
        return _refused(error, 429, {"Retry-After": str(error.seconds)})
    except MagistrateError as error:
        return _refused(error, 503 if isinstance(error, UNAVAILABLE) else 422)
    return (
        Response(status_code=CLIENT_GONE)
        if outcome is None
        else json_response(outcome_data(outcome, steps=steps))
    )


async def awaited(request: Request, service: JudgingService, judgement: Judgement) -> Outcome | None:
    """Return the outcome, or None if the client has disconnected."""
    answer, gone = asyncio.create_task(judgement.finished()), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        if not answer.done():
            service.cancel(judgement)
        answer.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _refused(error: MagistrateError, status: int, headers: dict[str, str] | None = None) -> Response:
    return json_response({"detail": str(error)}, status, headers)
