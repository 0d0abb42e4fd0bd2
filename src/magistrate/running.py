"""Samples in, outcomes out as they are ready: bounded concurrency, deadlines, failures as values."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from magistrate.engines.base import Engine, require
from magistrate.engines.wrappers import Recorded
from magistrate.errors import (
    EngineGone,
    InvalidOutput,
    MissingExtra,
    ModelError,
    OverLength,
    SpecError,
    StoreError,
)
from magistrate.judges.base import Judge
from magistrate.types import Abstention, Failure, FailureCode, Outcome, Sample

Task = Callable[[Sample], Any]

CONCURRENCY = 16
DEADLINE = 300.0

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
    would fail for every sample: `EngineGone`, `ModelError`, `MissingExtra`.
    """
    recorded = Recorded(engine, clock)
    start = clock()
    name = judge.info.name
    try:
        async with asyncio.timeout(deadline):
            outcome = await judge.judge(sample, recorded)
    except FATAL:
        raise
    except OverLength as error:
        outcome = Abstention(sample.id, name, "over_length", str(error))
    except TimeoutError:
        outcome = Failure(sample.id, name, "timeout", f"no verdict within {deadline:g} seconds")
    except Exception as error:
        code: FailureCode = "invalid_output" if isinstance(error, InvalidOutput) else "engine_error"
        outcome = Failure(sample.id, name, code, f"{type(error).__name__}: {error}")
    return replace(outcome, steps=tuple(recorded.steps), usage=recorded.usage, seconds=clock() - start)


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
    output, or a mapping with `output` and perhaps `context`. At most `concurrency` samples are under
    way. Raises `CapabilityError` before anything is spent, and what `judge_one` raises.
    """
    if concurrency < 1:
        raise SpecError(f"concurrency must be at least 1, got {concurrency}")
    names = [judge.info.name for judge in judges]
    if not names or len(set(names)) != len(names):
        raise SpecError(f"judges need different names, and there must be one at least; got {names}")
    for judge in judges:
        require(engine.info, judge.info.needs, f"judge {judge.info.name!r}")
    ready: asyncio.Queue[Judged | Exception | None] = asyncio.Queue(maxsize=4 * concurrency)
    source = _Source(iter(samples))
    workers = [
        asyncio.create_task(_work(source, judges, engine, task, deadline, ready)) for _ in range(concurrency)
    ]
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
    if failure is not None:
        raise failure


class _Source:
    """Samples that several workers pull from, until one of them closes it."""

    def __init__(self, samples: Iterator[Sample]) -> None:
        self._samples = samples
        self._closed = False

    def close(self) -> None:
        self._closed = True

    def __iter__(self) -> Iterator[Sample]:
        while not self._closed:
            try:
                yield next(self._samples)
            except StopIteration:
                return


async def _work(
    source: _Source,
    judges: Sequence[Judge],
    engine: Engine,
    task: Task | None,
    deadline: float,
    ready: asyncio.Queue[Judged | Exception | None],
) -> None:
    """Judge one sample after the other until there are none (None), or one fails for good (its error)."""
    try:
        for sample in source:
            for pending in asyncio.as_completed(_outcomes(sample, judges, engine, task, deadline)):
                await ready.put(await pending)
    except Exception as error:
        await ready.put(error)
    else:
        await ready.put(None)


def _outcomes(
    sample: Sample, judges: Sequence[Judge], engine: Engine, task: Task | None, deadline: float
) -> list[Awaitable[Judged]]:
    made = asyncio.ensure_future(_produce(sample, task, deadline))

    async def one(judge: Judge) -> Judged:
        produced = await asyncio.shield(made)
        if isinstance(produced, str):
            return Judged(sample, Failure(sample.id, judge.info.name, "task_error", produced))
        return Judged(produced, await judge_one(produced, judge, engine, deadline=deadline))

    return [one(judge) for judge in judges]


async def _produce(sample: Sample, task: Task | None, deadline: float) -> Sample | str:
    """The sample with the task's output, or in words why there is none."""
    if task is None:
        return sample if sample.output is not None else "the sample has no output and no task to produce one"
    try:
        async with asyncio.timeout(deadline):
            if inspect.iscoroutinefunction(task):
                answer = await task(sample)
            else:
                answer = await asyncio.to_thread(task, sample)
                if inspect.isawaitable(answer):
                    answer = await answer
    except TimeoutError:
        return f"the task gave no output within {deadline:g} seconds"
    except Exception as error:
        return f"the task failed: {type(error).__name__}: {error}"
    return _with_answer(sample, answer)


def _with_answer(sample: Sample, answer: Any) -> Sample | str:
    if isinstance(answer, str):
        return replace(sample, output=answer)
    if isinstance(answer, Mapping) and isinstance(answer.get("output"), str):
        context = answer.get("context", sample.context)
        context = (context,) if isinstance(context, str) else tuple(context or ())
        if all(isinstance(text, str) for text in context):
            return replace(sample, output=answer["output"], context=context)
    return (
        f"the task must answer a text or a mapping with 'output' (and 'context'), not {type(answer).__name__}"
    )
