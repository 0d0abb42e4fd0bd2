"""`guard`: a decorator that judges a function's answers, and holds back those that are not faithful."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from magistrate import _async, _logging
from magistrate.datasets.rows import RowError
from magistrate.datasets.samples import to_sample
from magistrate.engines.base import Engine
from magistrate.errors import CapabilityError, MagistrateError, SpecError
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.runs.execute import check_stream, judge_one
from magistrate.types import HALLUCINATED, Abstention, Failure, Outcome, Sample, Verdict

P = ParamSpec("P")
Answer = TypeVar("Answer")
Way = Literal["open", "closed"]

DEADLINE = 10.0


@dataclass(frozen=True, slots=True)
class Guarded:
    """One answer: what the function returned, the judge's outcome, and whether it was let through."""

    answer: Any
    outcome: Outcome
    allowed: bool


class Blocked(MagistrateError):
    """An answer was held back. `answer` is what the function gave, `outcome` what the judge made of it."""

    def __init__(self, answer: Any, outcome: Outcome) -> None:
        super().__init__(f"the answer was held back: {outcome}")
        self.answer = answer
        self.outcome = outcome


def guard(
    *,
    judge: str | Judge = registry.DEFAULT_JUDGE,
    model: str | Path | Engine | None = None,
    deadline: float = DEADLINE,
    on_timeout: Way = "closed",
    on_failure: Way = "closed",
    block: Collection[str] = (HALLUCINATED,),
    read: Callable[[Any], Any] | None = None,
    fallback: Callable[[Guarded], Any] | None = None,
    watch: Callable[[Guarded], Any] | None = None,
) -> Callable[[Callable[P, Answer]], Callable[P, Answer]]:
    """Judge every answer of a function, sync or async, before it gets out.

    The function gives an answer with its context: a mapping with column names that datasets know
    (`{"answer": …, "context": …}`), a pair of both, or anything that `read` makes one of these of. What it
    gave is handed on as it is, unless the verdict's label is among `block`: then `Blocked` is raised, or what
    `fallback` makes of it is answered. `deadline` is in seconds. Where it passes without a verdict,
    `on_timeout` says whether the answer gets out (`open`) or not (`closed`); `on_failure` says so for a judge
    that failed or abstained. `watch` is told of every answer; what it raises is raised. Raises `SpecError`
    for a judge that cannot give one of the labels to block, a model that is not known, and a function that
    gives no answer with its context; `CapabilityError` for an engine that cannot do what the judge needs.
    """
    asked = registry.judge(judge)
    if unknown := sorted(set(block) - set(asked.info.labels)):
        raise SpecError(
            f"judge {asked.info.name!r} never says {', '.join(unknown)}; it says "
            f"{', '.join(asked.info.labels)}: name those that hold an answer back, as in block=['flagged']"
        )
    for name, way in (("on_timeout", on_timeout), ("on_failure", on_failure)):
        if way not in ("open", "closed"):
            raise SpecError(f"{name} is 'open' or 'closed', got {way!r}")
    if not deadline > 0:
        raise SpecError(f"deadline must be more than 0 seconds, got {deadline}")

    async def passed(answer: Any) -> Any:
        sample = _sample(answer, read)
        outcome = await _judged(sample, asked, model, deadline)
        guarded = Guarded(answer, outcome, _allowed(outcome, block, on_timeout, on_failure))
        if watch is not None:
            watch(guarded)
        if guarded.allowed:
            return answer
        if fallback is not None:
            return fallback(guarded)
        raise Blocked(answer, outcome)

    def decorate(function: Callable[P, Answer]) -> Callable[P, Answer]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise SpecError("a function that gives its answer in pieces cannot be judged before it gets out")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
                return await passed(await function(*args, **kwargs))

            return awaited  # type: ignore[return-value]

        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> Any:
            return _async.run(passed(function(*args, **kwargs)))

        return called

    return decorate


def _allowed(outcome: Outcome, block: Collection[str], on_timeout: Way, on_failure: Way) -> bool:
    match outcome:
        case Verdict():
            return outcome.label not in block
        case Failure(code="timeout"):
            return on_timeout == "open"
        case Failure() | Abstention():
            return on_failure == "open"


async def _judged(sample: Sample, judge: Judge, model: Any, deadline: float) -> Outcome:
    """The outcome; what goes wrong, the engine's loss included, is one too.

    Raises what is wrong with the guard itself (`SpecError`, `CapabilityError`), which nothing lets pass.
    """
    name = judge.info.name
    try:
        async with asyncio.timeout(deadline):
            engine = await _async.in_thread(registry.engine_for, [judge], model)
            check_stream([judge], engine.info)
            return await judge_one(sample, judge, engine, deadline=deadline)
    except TimeoutError:
        return Failure(sample.id, name, "timeout", f"no verdict within {deadline:g} seconds")
    except (SpecError, CapabilityError):
        raise
    except MagistrateError as error:
        return Failure(sample.id, name, "engine_error", _logging.error_text(error))


def _sample(answer: Any, read: Callable[[Any], Any] | None) -> Sample:
    given = answer if read is None else read(answer)
    if isinstance(given, tuple) and len(given) == 2:
        given = {"output": given[0], "context": given[1]}
    if isinstance(given, Sample):
        return given.answered()
    if not isinstance(given, Mapping):
        raise SpecError(
            "a guarded function gives an answer with its context, {'answer': …, 'context': …} or a pair; "
            f"this one gave {type(given).__name__}: make one of it with guard(read=…)"
        )
    try:
        return to_sample(given, id="answer")
    except RowError as error:
        raise SpecError(f"what the guarded function gave cannot be judged: {error}") from None
