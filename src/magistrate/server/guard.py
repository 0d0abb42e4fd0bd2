"""`POST /api/guard`: decides, within a time limit, whether an application may send an answer.

The judge is configured on the server, so that a client cannot choose one that lets everything pass. There
is always a decision: if the judge was late, failed or abstained, the request determines whether the guard
is open or closed, and the response reports this.
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
from magistrate.server.responses import Refusal, error_responses, json_response
from magistrate.types import Failure, FailureCode, Outcome, Sample

HEADER = "Magistrate-Guard"
LONGEST_BUDGET = 600_000  # milliseconds

api = APIRouter(tags=["judging"])
_log = _logging.get("server")


@dataclass(frozen=True)
class Doorkeeper:
    """The guard of a server: the specification of its judge, created at the first use, and its model."""

    words: str
    model: str | None = None

    @cached_property
    def guard(self) -> Guard:
        """The guard. Raises `SpecError` for a judge that is not known or never gives hallucinated."""
        return Guard(judge=registry.judge(self.words), model=self.model)

    def check(self) -> None:
        """Raise an error if the judge cannot be used as a guard."""
        _ = self.guard


class ToGuard(BaseModel, extra="forbid"):
    """An answer of an application, to be allowed or denied.

    `context` is what it must be faithful to, `input` the question. A verdict may take `budget_ms`
    milliseconds. `on_timeout` and `on_failure` decide whether an answer without a verdict is allowed
    (`open`) or not (`closed`), because it was late, or because the judge failed or abstained.
    """

    output: str
    context: str | Annotated[list[str], Field(max_length=MOST_TEXTS)]
    input: str | None = None
    budget_ms: float = Field(1000 * DEADLINE, ge=1, le=LONGEST_BUDGET, allow_inf_nan=False)
    on_timeout: Way = "closed"
    on_failure: Way = "closed"


class Decided(BaseModel):
    """Whether an answer is allowed, and why.

    `because` is `verdict` if the judge decided. Otherwise there was no verdict, and `fail` is whether the
    guard was open or closed. `outcome` is the judge's outcome.
    """

    decision: Literal["allow", "deny"]
    because: Because
    fail: Way | None
    reason: str
    outcome: OUTCOME


ERRORS: dict[int | str, dict[str, Any]] = {
    **error_responses(400),
    422: {
        "model": Refusal,
        "description": "This cannot be judged; there is no decision, so nothing may pass",
    },
    503: {
        "model": Refusal,
        "description": "The guard of this server cannot judge; see its log for the reason",
    },
}


@api.post("/guard", response_model=Decided, responses=ERRORS)
async def guard(request: Request, body: ToGuard) -> Response:
    """Decide on one answer within the requested time. The header `Magistrate-Guard` repeats the decision.

    Only `"decision": "allow"` means yes: an error is not a decision.
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
    """Return the outcome, or None if the client has disconnected. Errors of one request are outcomes too."""
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
