"""`POST /api/guard`: whether an answer may get out, within a time budget, as an application asks beforehand.

Which judge decides is the server's to say, so that nobody who asks can choose one that lets everything pass.
There is always a decision: where the judge was late, failed or declined, the request said whether the guard
is open or closed then, and the answer says that this is what happened.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from magistrate import _async, _logging
from magistrate.api import judge as api_judge
from magistrate.api.guard import DEADLINE, Because, Guard, Guarded, Way
from magistrate.errors import CapabilityError, MagistrateError, SpecError
from magistrate.judges import registry
from magistrate.report.export import outcome_data
from magistrate.server.judging import (
    CLIENT_GONE,
    MOST_TEXTS,
    OUTCOME,
    BusyError,
    JudgingService,
    Question,
    awaited,
    check_texts,
)
from magistrate.server.responses import Refusal, json_response
from magistrate.types import Failure, FailureCode, Outcome, Sample

HEADER = "Magistrate-Guard"
LONGEST_BUDGET = 600_000  # milliseconds

api = APIRouter(tags=["judging"])
_log = _logging.get("server")


@dataclass(frozen=True)
class Doorkeeper:
    """The guard of a server: a judge in words, which is made when it is first asked, and its model."""

    words: str
    model: str | None = None

    @cached_property
    def guard(self) -> Guard:
        """What decides. Raises `SpecError` for a judge that is not known or never says hallucinated."""
        return Guard(judge=registry.judge(self.words), model=self.model)

    def check(self) -> None:
        """Raise what keeps the judge from being one that guards."""
        _ = self.guard


class ToGuard(BaseModel, extra="forbid"):
    """An answer of an application: may it get out?

    `context` is what it must be faithful to, `input` what was asked. `budget_ms` milliseconds are what a
    verdict may take. `on_timeout` and `on_failure` say whether an answer without a verdict gets out (`open`)
    or not (`closed`): because there was none in time, or because the judge failed or declined.
    """

    output: str
    context: str | Annotated[list[str], Field(max_length=MOST_TEXTS)]
    input: str | None = None
    budget_ms: float = Field(1000 * DEADLINE, ge=1, le=LONGEST_BUDGET, allow_inf_nan=False)
    on_timeout: Way = "closed"
    on_failure: Way = "closed"


class Decided(BaseModel):
    """Whether an answer may get out, and why.

    `because` is `verdict` where the judge decided; else there was no verdict, and `fail` says whether the
    guard was open or closed to that. `outcome` is what the judge said.
    """

    decision: Literal["allow", "deny"]
    because: Because
    fail: Way | None
    reason: str
    outcome: OUTCOME


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Refusal, "description": "The body is no text in UTF-8"},
    422: {"model": Refusal, "description": "This cannot be judged: it is no decision, and lets nothing pass"},
    503: {"model": Refusal, "description": "The guard of this server can judge nothing: its log says why"},
}


@api.post("/guard", response_model=Decided, responses=ERRORS)
async def guard(request: Request, body: ToGuard) -> Response:
    """Decide of one answer, in the time that the request allows; the header `Magistrate-Guard` says it too.

    Take nothing but `"decision": "allow"` for a yes: an error is no decision.
    """
    doorkeeper: Doorkeeper = request.app.state.guard
    try:
        standing = await _async.in_thread(lambda: doorkeeper.guard)
    except MagistrateError as error:
        return _refused(error, 503)
    guarding = replace(
        standing, deadline=body.budget_ms / 1000, on_timeout=body.on_timeout, on_failure=body.on_failure
    )
    try:
        sample = api_judge.sample_of(output=body.output, context=body.context, input=body.input)
        check_texts(sample)
    except MagistrateError as error:
        return _refused(error, 422)
    try:
        outcome = await _judged(request, guarding, sample)
    except (SpecError, CapabilityError) as error:
        return _refused(error, 503)
    if outcome is None:
        return Response(status_code=CLIENT_GONE)
    decided = guarding.decided(body.output, outcome)
    return json_response(_data(decided), headers={HEADER: decided.header})


async def _judged(request: Request, guarding: Guard, sample: Sample) -> Outcome | None:
    """The outcome; None if nobody waits for it any more. What keeps one request from a verdict is one too."""
    service: JudgingService = request.app.state.judging
    name = guarding.judge.info.name
    model = None if guarding.model is None else str(guarding.model)
    asked = Question(sample=sample, judge=guarding.judge, name=name, model=model, deadline=guarding.deadline)
    try:
        return await awaited(request, service, service.begin(asked))
    except (SpecError, CapabilityError, asyncio.CancelledError):
        raise
    except BusyError as error:
        return _failure(sample, name, "rate_limited", error)
    except Exception as error:
        return _failure(sample, name, "engine_error", error)


def _failure(sample: Sample, judge: str, code: FailureCode, error: Exception) -> Failure:
    return Failure(sample.id, judge, code, _logging.error_text(error))


def _data(decided: Guarded) -> dict[str, Any]:
    return {
        "decision": "allow" if decided.allowed else "deny",
        "because": decided.because,
        "fail": decided.way,
        "reason": decided.reason,
        "outcome": outcome_data(decided.outcome, steps=False),
    }


def _refused(error: MagistrateError, status: int) -> Response:
    if status == 503:
        _log.warning("guard.cannot_judge", reason=str(error))
    return json_response({"detail": str(error)}, status)
