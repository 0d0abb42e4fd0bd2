"""`guard`: a decorator that judges a function's answers, and holds back those that are not faithful.

`Guard` makes the decision, here and in front of a server (`server.guard`) or an application
(`integrations.asgi`). Without a verdict, it lets answers through or not as configured, and reports that.
"""

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
Because = Literal["verdict", "timeout", "failure", "abstention"]

DEADLINE = 10.0


@dataclass(frozen=True, slots=True)
class Guarded:
    """One answer: what the function returned, the judge's outcome, and whether it was let through.

    `way` is whether the guard was open or closed to an answer without a verdict, None if there is a
    verdict.
    """

    answer: Any
    outcome: Outcome
    allowed: bool
    way: Way | None = None

    @property
    def because(self) -> Because:
        """What decided: a verdict, or the reason why there was none."""
        match self.outcome:
            case Verdict():
                return "verdict"
            case Failure(code="timeout"):
                return "timeout"
            case Failure():
                return "failure"
            case Abstention():
                return "abstention"

    @property
    def reason(self) -> str:
        """Why it was let through or held back, as a sentence that does not repeat the judge's explanation."""
        match self.outcome:
            case Verdict(label=label, score=score):
                return f"{self.outcome.judge} says {label} ({score:.3f})"
            case Failure(code=code):
                told = f"{self.outcome.judge} gave no verdict: {code}"
            case Abstention(reason=reason):
                told = f"{self.outcome.judge} gave no verdict: it abstained, {reason}"
        name = "on_timeout" if self.because == "timeout" else "on_failure"
        return f"{told}; {name} is {self.way}"

    @property
    def header(self) -> str:
        """The decision as a header: `allow; because=verdict`, `deny; because=timeout; fail=closed`."""
        told = f"{'allow' if self.allowed else 'deny'}; because={self.because}"
        return told if self.way is None else f"{told}; fail={self.way}"


class Blocked(MagistrateError):
    """An answer was held back. `answer` is the function's return value, `outcome` the judge's outcome."""

    def __init__(self, answer: Any, outcome: Outcome) -> None:
        super().__init__(f"the answer was held back: {outcome}")
        self.answer = answer
        self.outcome = outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A judge in front of answers, with a policy for answers that get no verdict, or none in time.

    `deadline` is in seconds. Verdicts with a label in `block` hold an answer back. Raises `SpecError` for a
    judge that cannot give one of these labels.
    """

    judge: Judge
    model: str | Path | Engine | None = None
    deadline: float = DEADLINE
    on_timeout: Way = "closed"
    on_failure: Way = "closed"
    block: Collection[str] = (HALLUCINATED,)

    def __post_init__(self) -> None:
        labels = self.judge.info.labels
        if unknown := sorted(set(self.block) - set(labels)):
            raise SpecError(
                f"judge {self.judge.info.name!r} has no label {', '.join(unknown)}; its labels are "
                f"{', '.join(labels)}: give those that block an answer, as in block=['flagged']"
            )
        for name, way in (("on_timeout", self.on_timeout), ("on_failure", self.on_failure)):
            if way not in ("open", "closed"):
                raise SpecError(f"{name} is 'open' or 'closed', got {way!r}")
        if not self.deadline > 0:
            raise SpecError(f"deadline must be more than 0 seconds, got {self.deadline}")

    def decided(self, answer: Any, outcome: Outcome) -> Guarded:
        """Return the decision on an answer with this outcome."""
        if isinstance(outcome, Verdict):
            return Guarded(answer, outcome, outcome.label not in self.block)
        timed_out = isinstance(outcome, Failure) and outcome.code == "timeout"
        way = self.on_timeout if timed_out else self.on_failure
        return Guarded(answer, outcome, way == "open", way)

    async def judged(self, sample: Sample) -> Outcome:
        """Return the outcome. Errors, including the loss of the engine, become outcomes too.

        Raises errors of the guard's configuration (`SpecError`, `CapabilityError`), which are never let
        through.
        """
        name = self.judge.info.name
        try:
            async with asyncio.timeout(self.deadline):
                engine = await _async.in_thread(registry.engine_for, [self.judge], self.model)
                check_stream([self.judge], engine.info)
                return await judge_one(sample, self.judge, engine, deadline=self.deadline)
        except TimeoutError:
            return self.late(sample)
        except (SpecError, CapabilityError):
            raise
        except MagistrateError as error:
            return Failure(sample.id, name, "engine_error", _logging.error_text(error))

    def late(self, sample: Sample) -> Failure:
        """Return the outcome of a sample that got no verdict in time."""
        told = f"no verdict within {self.deadline:g} seconds"
        return Failure(sample.id, self.judge.info.name, "timeout", told)


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
    """Judge every answer of a function, sync or async, before it is returned.

    The function returns an answer with its context: a mapping with the column names of data sets
    (`{"answer": …, "context": …}`), a pair of both, or anything that `read` converts to one of these. The
    return value is passed on unchanged, unless the verdict's label is in `block`. Then `Blocked` is raised,
    or the result of `fallback` is returned. `deadline` is in seconds. If it passes without a verdict,
    `on_timeout` decides whether the answer is returned (`open`) or not (`closed`); `on_failure` does so for
    a judge that failed or abstained. `watch` is called with every decision; its exceptions propagate.
    Raises `SpecError` for a judge that cannot give one of the labels to block, an unknown model, and a
    function that returns no answer with its context; `CapabilityError` for an engine that cannot do what
    the judge needs.
    """
    guarding = Guard(
        judge=registry.judge(judge),
        model=model,
        deadline=deadline,
        on_timeout=on_timeout,
        on_failure=on_failure,
        block=block,
    )

    async def passed(answer: Any) -> Any:
        guarded = guarding.decided(answer, await guarding.judged(sample_of(answer, read)))
        if watch is not None:
            watch(guarded)
        if guarded.allowed:
            return answer
        if fallback is not None:
            return fallback(guarded)
        raise Blocked(answer, guarded.outcome)

    def decorate(function: Callable[P, Answer]) -> Callable[P, Answer]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise SpecError(
                "a generator function cannot be guarded: its answer leaves in pieces before it can be judged"
            )
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


def sample_of(answer: Any, read: Callable[[Any], Any] | None = None) -> Sample:
    """Convert an answer with its context to a sample. Raises `SpecError` if that is not possible."""
    given = answer if read is None else read(answer)
    if isinstance(given, tuple) and len(given) == 2:
        given = {"output": given[0], "context": given[1]}
    if isinstance(given, Sample):
        return given.answered()
    if not isinstance(given, Mapping):
        raise SpecError(
            "a guarded function must return an answer with its context, as {'answer': …, 'context': …} or a "
            f"pair; this one returned {type(given).__name__}: convert it with guard(read=…)"
        )
    try:
        return to_sample(given, id="answer")
    except RowError as error:
        raise SpecError(f"the result of the guarded function cannot be judged: {error}") from None
