"""Samples in, outcomes out as they are ready: bounded concurrency, deadlines, failures as values."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from magistrate.background import in_thread
from magistrate.engines.base import Engine, EngineInfo, require
from magistrate.engines.wrappers import Recorded
from magistrate.errors import (
    EngineBusy,
    EngineGone,
    EngineTimeout,
    InvalidOutput,
    MissingExtra,
    ModelError,
    OverLength,
    SpecError,
    StoreError,
)
from magistrate.judges.base import Judge
from magistrate.judges.considering import considered
from magistrate.types import Abstention, Failure, FailureCode, Outcome, Sample, Verdict

Task = Callable[[Sample], Any]

CONCURRENCY = 16
DEADLINE = 300.0

# A failure's code for the errors that have one of their own.
CODES: Mapping[type[Exception], FailureCode] = {
    InvalidOutput: "invalid_output",
    EngineBusy: "rate_limited",
    EngineTimeout: "timeout",
}
# After these nothing else can succeed, so the stream ends instead of failing sample after sample.
FATAL = (EngineGone, ModelError, MissingExtra, StoreError)


@dataclass(frozen=True, slots=True)
class Judged:
    """An outcome with the sample that it is about, as the task left it."""

    sample: Sample
    outcome: Outcome


async def judge_one(
    sample: Sample,
    judge: Judge,
    engine: Engine,
    *,
    deadline: float = DEADLINE,
    clock: Callable[[], float] = time.perf_counter,
) -> Outcome:
    """One judge on one sample, within `deadline` seconds; the outcome carries steps, usage and seconds.

    What goes wrong is a `Failure` or, where the sample does not fit, an `Abstention`. Raises only what
    would fail for every sample: `EngineGone`, `ModelError`, `MissingExtra`, `StoreError`.
    """
    recorded = Recorded(engine, clock)
    start = clock()
    name = judge.info.name
    outcome: Outcome
    try:
        async with asyncio.timeout(deadline) as limit:
            outcome = _sound(await considered(judge, sample, recorded))
    except FATAL:
        raise
    except OverLength as error:
        outcome = Abstention(sample.id, name, "over_length", str(error))
    except asyncio.CancelledError:
        if _is_cancelled():
            raise
        outcome = Failure(sample.id, name, "cancelled", "the engine gave the request up")
    except Exception as error:
        code: FailureCode = CODES.get(type(error), "engine_error")
        message = f"{type(error).__name__}: {error}"
        if limit.expired():
            code, message = "timeout", f"no verdict within {deadline:g} seconds"
        outcome = Failure(sample.id, name, code, message)
    return replace(
        outcome,
        sample_id=sample.id,
        judge=name,
        steps=tuple(recorded.steps),
        usage=recorded.usage,
        seconds=clock() - start,
    )


def check_stream(judges: Sequence[Judge], info: EngineInfo, concurrency: int, deadline: float) -> None:
    """Refuse what could never be judged, before anything is spent.

    Raises `SpecError`, and `CapabilityError` where the engine lacks what a judge needs.
    """
    if concurrency < 1:
        raise SpecError(f"concurrency must be at least 1, got {concurrency}")
    if not deadline > 0:
        raise SpecError(f"deadline must be more than 0 seconds, got {deadline}")
    names = [judge.info.name for judge in judges]
    if not names:
        raise SpecError("there is no judge; name one at least")
    if len(set(names)) != len(names):
        raise SpecError(f"judges need different names, got {', '.join(names)}")
    for judge in judges:
        require(info, judge.info.needs, f"judge {judge.info.name!r}")


async def stream(
    samples: Iterable[Sample],
    judges: Sequence[Judge],
    engine: Engine,
    *,
    task: Task | None = None,
    concurrency: int = CONCURRENCY,
    deadline: float = DEADLINE,
) -> AsyncIterator[Judged]:
    """Outcomes of every judge on every sample, each as soon as it is ready.

    Samples are pulled as they are needed, so any number of them can be judged. `task` makes the
    outputs first: it is called with the sample, in a thread unless it is async, and answers the
    output, or a mapping with `output` and perhaps `context`; a label that was given to another output
    is dropped. At most `concurrency` samples are under way. Raises what `check_stream` and `judge_one`
    raise, and what `samples` raise, the last two once all that was under way has come out.
    """
    check_stream(judges, engine.info, concurrency, deadline)
    ready: asyncio.Queue[Judged | Exception | None] = asyncio.Queue(maxsize=4 * concurrency)
    source = _pulled(samples)
    work = _Work(judges, engine, task, deadline, ready)
    workers = [asyncio.create_task(work.through(source)) for _ in range(concurrency)]
    failure: Exception | None = None
    try:
        working = len(workers)
        while working:
            item = await ready.get()
            if isinstance(item, Judged):
                yield item
                continue
            working -= 1
            if item is not None:
                # What the others are about to finish is still good; nobody begins anything new.
                failure = failure or item
                source.close()
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        source.close()
    if failure is not None:
        raise failure


def _pulled(samples: Iterable[Sample]) -> Generator[Sample]:
    """Samples that several workers pull from, until one of them closes it."""
    yield from samples


@dataclass(frozen=True, slots=True)
class _Work:
    """What every worker does with a sample, and where the outcomes go."""

    judges: Sequence[Judge]
    engine: Engine
    task: Task | None
    deadline: float
    ready: asyncio.Queue[Judged | Exception | None]

    async def through(self, source: Iterable[Sample]) -> None:
        """Judge one sample after the other until there are none (None), or one fails for good (its error)."""
        try:
            for sample in source:
                await self._sample(sample)
        except Exception as error:
            await self.ready.put(error)
        else:
            await self.ready.put(None)

    async def _sample(self, sample: Sample) -> None:
        """All judges at once; a fatal error of one is raised when the others are through."""
        produced = await _produce(sample, self.task, self.deadline)
        if isinstance(produced, str):
            for judge in self.judges:
                failure = Failure(sample.id, judge.info.name, "task_error", produced)
                await self.ready.put(Judged(sample, failure))
            return
        pending = [self._judge(produced, judge) for judge in self.judges]
        for result in await asyncio.gather(*pending, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def _judge(self, sample: Sample, judge: Judge) -> None:
        outcome = await judge_one(sample, judge, self.engine, deadline=self.deadline)
        await self.ready.put(Judged(sample, outcome))


def _sound(outcome: Outcome) -> Outcome:
    """A judge's answer, if it can be one. Raises `InvalidOutput`."""
    if not isinstance(outcome, Verdict | Failure | Abstention):
        raise InvalidOutput(
            f"the judge answered {type(outcome).__name__}, not a Verdict, Failure or Abstention", str(outcome)
        )
    if isinstance(outcome, Verdict) and not 0 <= outcome.score <= 1:
        raise InvalidOutput(f"the judge's score is {outcome.score}; it must be in [0, 1]", str(outcome))
    return outcome


def _is_cancelled() -> bool:
    """Whether a CancelledError means this very task, and not only something that it waited for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


# --- outputs that are made first ----------------------------------------------------------------


async def _produce(sample: Sample, task: Task | None, deadline: float) -> Sample | str:
    """The sample with the task's output, or in words why there is none."""
    if task is None:
        return sample if sample.output is not None else "the sample has no output and no task to produce one"
    try:
        async with asyncio.timeout(deadline) as limit:
            is_async = inspect.iscoroutinefunction(task)
            answer = task(sample) if is_async else await in_thread(task, sample)
            if inspect.isawaitable(answer):
                answer = await answer
    except asyncio.CancelledError:
        if _is_cancelled():
            raise
        return "the task was cancelled"
    except (Exception, SystemExit) as error:
        if limit.expired():
            return f"the task gave no output within {deadline:g} seconds"
        return f"the task failed: {type(error).__name__}: {error}"
    return _with_answer(sample, answer)


def _with_answer(sample: Sample, answer: Any) -> Sample | str:
    given = answer if isinstance(answer, Mapping) else {"output": answer}
    output, context = given.get("output"), given.get("context", sample.context)
    context = (context,) if isinstance(context, str) else context or ()
    if not isinstance(output, str):
        found = type(answer).__name__ if answer is not given else f"a mapping whose output is {output!r:.80}"
        return f"the task must answer a text or a mapping with 'output' (and 'context'), not {found}"
    if not isinstance(context, Sequence) or not all(isinstance(text, str) for text in context):
        return f"the task's context must be a text or a list of texts, not {context!r:.80}"
    if sample.output not in (None, output):
        # A person's label and spans are about the output that they saw.
        sample = replace(sample, label=None, spans=())
    return replace(sample, output=output, context=tuple(context))
