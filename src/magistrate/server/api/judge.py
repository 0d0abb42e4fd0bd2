"""One sample judged at once, for use inside a program."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import Annotated, Any, Literal, Union, get_type_hints

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field, create_model

from magistrate import _async
from magistrate.errors import EngineGone, MagistrateError, MissingExtra, ModelError, SpecError
from magistrate.judges.registry import DEFAULT_JUDGE
from magistrate.report.export import outcome_data
from magistrate.runs.limits import DEADLINE
from magistrate.server.api.telling import Refusal, told
from magistrate.server.asking import LONGEST_DEADLINE, LONGEST_WORDS, question
from magistrate.server.judging import BusyError, Judgement, Judging
from magistrate.types import Abstention, Failure, Outcome, Step, Verdict

router = APIRouter(tags=["judging"])

MOST_TEXTS = 10_000
NOT_WELL = (ModelError, MissingExtra, EngineGone)
GONE = 499  # nobody is there to read it; proxies write this into their logs


class Turn(BaseModel, extra="forbid"):
    """One message of a conversation."""

    role: str = Field(max_length=100)
    content: str


class ToJudge(BaseModel, extra="forbid"):
    """A sample, and who is to judge it.

    Without `output` the assistant's last message is on trial. `context` is what it must be faithful to,
    `expected` what judges with a reference compare it with. `judge` names an installed judge, perhaps with
    options, as in `faithfulness:explain=after`; `model` one of those that are here. `deadline` is in seconds.
    """

    output: str | None = None
    context: str | Annotated[list[str], Field(max_length=MOST_TEXTS)] = []
    input: str | None = None
    expected: str | None = None
    messages: Annotated[list[Turn], Field(max_length=MOST_TEXTS)] = []
    judge: str = Field(DEFAULT_JUDGE, max_length=LONGEST_WORDS)
    model: str | None = Field(None, max_length=LONGEST_WORDS)
    deadline: float = Field(DEADLINE, gt=0, le=LONGEST_DEADLINE, allow_inf_nan=False)


def _answer(kind: type) -> Any:
    """What an outcome looks like as data."""
    hints = get_type_hints(kind)
    shape: dict[str, Any] = {each.name: (hints[each.name], ...) for each in fields(kind)}
    shape["kind"] = (Literal[kind.__name__.lower()], ...)
    shape["steps"] = (tuple[Step, ...], Field((), description="only with ?steps=true"))
    return create_model(f"Judged{kind.__name__}", __doc__=(kind.__doc__ or "").strip(), **shape)


ANSWER: Any = Union[_answer(Verdict), _answer(Failure), _answer(Abstention)]  # noqa: UP007 - made here
REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": Refusal, "description": "The body is no text in UTF-8"},
    404: {"model": Refusal, "description": "Nobody knows the judge or the model"},
    422: {"model": Refusal, "description": "This cannot be judged, or may not be asked from outside"},
    429: {"model": Refusal, "description": "Too much is being judged; Retry-After says when to come again"},
    503: {"model": Refusal, "description": "The model that is needed is not here or not well"},
}


@router.post("/judge", response_model=ANSWER, responses=REFUSALS)
async def judge(request: Request, body: ToJudge, steps: Annotated[bool, Query()] = False) -> Response:
    """Judge one sample. `kind` says what came out; a judgement that failed is an answer, too.

    Many at once share one engine, which judges them together. Who goes away stops the judgement.
    """
    judging: Judging = request.app.state.judging
    try:
        asked = await _async.in_thread(question, **body.model_dump())
    except MagistrateError as error:
        return _refused(error, 404 if isinstance(error, SpecError) else 422)
    try:
        outcome = await _outcome(request, judging, judging.begin(asked))
    except BusyError as error:
        return _refused(error, 429, {"Retry-After": str(error.seconds)})
    except MagistrateError as error:
        return _refused(error, 503 if isinstance(error, NOT_WELL) else 422)
    return Response(status_code=GONE) if outcome is None else told(outcome_data(outcome, steps=steps))


async def _outcome(request: Request, judging: Judging, judgement: Judgement) -> Outcome | None:
    """What comes out, None where nobody is there any more to hear it."""
    answer, gone = asyncio.create_task(judgement.finished()), asyncio.create_task(_left(request))
    try:
        await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        if not answer.done():
            judging.cancel(judgement)
        answer.cancel()
        gone.cancel()


async def _left(request: Request) -> None:
    """Ends when the visitor does not wait any more."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _refused(error: MagistrateError, status: int, headers: dict[str, str] | None = None) -> Response:
    return told({"detail": str(error)}, status, headers)
