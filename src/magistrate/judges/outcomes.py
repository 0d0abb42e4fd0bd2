"""Handling of judgements that go wrong: turns errors into failures or abstentions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from magistrate import _logging
from magistrate._work import DeadlineExceeded, Stopped
from magistrate.engines.base import Engine
from magistrate.errors import (
    EngineBusy,
    EngineGone,
    EngineRefused,
    EngineTimeout,
    InvalidOutput,
    MissingPackage,
    ModelError,
    OverLength,
    StoreError,
)
from magistrate.judges.base import Judge, run_judge
from magistrate.types import Abstention, Failure, FailureCode, Outcome, Sample

# Failure codes of specific errors; all others are `engine_error`.
CODES: Mapping[type[Exception], FailureCode] = {
    InvalidOutput: "invalid_output",
    EngineBusy: "rate_limited",
    EngineRefused: "refused",
    EngineTimeout: "timeout",
}
# After one of these errors no other call can succeed, so the stream ends.
FATAL = (EngineGone, ModelError, MissingPackage, StoreError)


def code_of(error: Exception) -> FailureCode:
    """Return the failure code of an error."""
    return next((code for kind, code in CODES.items() if isinstance(error, kind)), "engine_error")


def is_cancelled() -> bool:
    """Return whether this task itself was cancelled, not only something that it awaited."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def member_outcome(judge: Judge, sample: Sample, engine: Engine) -> Outcome:
    """Return the outcome of one of several judges. Its own errors become a `Failure`.

    Raises only errors that end all of them: those in `FATAL`, an expired deadline, a cancellation.
    """
    name = judge.info.name
    try:
        return replace(await run_judge(judge, sample, engine), sample_id=sample.id, judge=name)
    except (*FATAL, Stopped, DeadlineExceeded):
        raise
    except OverLength as error:
        return Abstention(sample.id, name, "over_length", str(error))
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        return Failure(sample.id, name, "cancelled", "the engine cancelled the request")
    except Exception as error:
        return Failure(sample.id, name, code_of(error), _logging.error_text(error))
