"""Judges samples concurrently. Each outcome is yielded as soon as it is ready, and failures are values.

Every call of an engine is recorded as a step of the evidence.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Container,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from magistrate import _logging
from magistrate._async import in_thread
from magistrate._work import Deadline, DeadlineExceeded, Stopped
from magistrate.engines.base import (
    GREEDY,
    Attempt,
    Capture,
    Choice,
    Engine,
    EngineInfo,
    Generation,
    Likelihood,
    Option,
    Sampling,
    UnusableAnswer,
    in_role,
    require,
)
from magistrate.errors import (
    EngineGone,
    InvalidOutput,
    OverLength,
    SpecError,
)
from magistrate.judges.base import Judge, run_judge
from magistrate.judges.outcomes import FATAL, code_of, is_cancelled
from magistrate.runs.limits import DEADLINE, UNLIMITED, Gate, Limits
from magistrate.types import Abstention, Failure, FailureCode, Outcome, Prompt, Sample, Step, Usage

if TYPE_CHECKING:
    from magistrate.constraints import Constraint


Task = Callable[[Sample], Any]
Ask = Callable[[Sample, Judge], Awaitable[Outcome]]
Answer = TypeVar("Answer")

GRACE = 5.0  # seconds that cancelled work gets to end
GROUP = 500  # outcomes that are yielded together, at most
QUIET = 8  # rounds of the event loop without a new outcome that end a group

ENGINE_FAILURES: frozenset[FailureCode] = frozenset({"engine_error", "rate_limited", "timeout", "refused"})


@dataclass(frozen=True, slots=True)
class Judged:
    """A sample with its outcome. The sample's output may come from the task."""

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
    """Run one judge on one sample within `deadline` seconds. The outcome carries steps, usage and seconds.

    Errors become a `Failure` or, if the sample does not fit the model, an `Abstention`. Raises only errors
    that would occur for every sample (`EngineGone`, `ModelError`, `MissingPackage`, `StoreError`), and a
    cancellation of the caller.
    """
    recorded = Recorded(engine, clock)
    start = clock()
    name = judge.info.name
    outcome: Outcome
    try:
        outcome = await within(deadline, _contained(run_judge(judge, sample, recorded)))
    except (*FATAL, Stopped):
        raise
    except OverLength as error:
        outcome = Abstention(sample.id, name, "over_length", str(error))
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        outcome = Failure(sample.id, name, "cancelled", "the engine cancelled the request")
    except DeadlineExceeded as error:
        outcome = Failure(sample.id, name, "timeout", f"no verdict {error}")
    except Exception as error:
        outcome = Failure(sample.id, name, code_of(error), _logging.error_text(error))
    return replace(
        outcome,
        sample_id=sample.id,
        judge=name,
        steps=tuple(recorded.steps),
        usage=recorded.usage,
        seconds=clock() - start,
    )


async def _contained(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Return the result of `work`. `SystemExit` becomes an ordinary error: a judge cannot end the program."""
    try:
        return await work
    except SystemExit as error:
        raise RuntimeError(f"SystemExit: {error}") from error


async def within(seconds: float, work: Coroutine[Any, Any, Answer]) -> Answer:
    """Return the result of `work`, if it is done within `seconds` of its first step.

    Raises `DeadlineExceeded` otherwise, also if `work` does not stop when cancelled, or finishes late
    because it computes without a pause.
    """
    deadline = Deadline(seconds)

    async def begun() -> Answer:
        with deadline:
            answer = await work
            deadline.check()
            return answer

    task = asyncio.ensure_future(begun())
    stopped = True
    try:
        await asyncio.sleep(0)  # quick work ends in its first step, and a timer would take longer than it
        while not task.done() and (left := deadline.left) > 0:
            await asyncio.wait([task], timeout=left)
        if task.done():
            return task.result()
    finally:
        if not task.done():
            deadline.stop()
            task.cancel()
            await asyncio.wait([task], timeout=GRACE)
            stopped = task.done()
        task.add_done_callback(_forgotten)
        if not deadline.begun:
            work.close()
    told = "" if stopped else "; it did not stop when cancelled"
    raise DeadlineExceeded(f"within {seconds:g} seconds{told}")


def _forgotten(task: asyncio.Future[Any]) -> None:
    """Retrieve the error of an abandoned task, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def check_stream(judges: Sequence[Judge], info: EngineInfo) -> None:
    """Reject judges that cannot run on this engine, before anything is spent.

    Raises `SpecError`, and `CapabilityError` if the engine lacks what a judge needs.
    """
    names = [judge.info.name for judge in judges]
    if not names:
        raise SpecError("there is no judge; give at least one")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SpecError(
            f"two judges are named {twice!r}; leave one out, or rename one: --judge {twice}:name=OTHER"
        )
    for judge in judges:
        if judge.info.lacks:
            raise SpecError(f"judge {judge.info.name!r} {judge.info.lacks}")
        if judge.info.fitted_to is not None:
            _check_model(judge.info.name, *judge.info.fitted_to, info)
        if judge.info.needs:
            require(info, judge.info.needs, f"judge {judge.info.name!r}")


def _check_model(judge: str, model: str, fingerprint: str, info: EngineInfo) -> None:
    """Reject a model other than the one a judge was fitted to. Only fingerprints are compared."""
    if fingerprint != info.fingerprint:
        raise SpecError(
            f"judge {judge!r} was fitted to answers of {model} ({fingerprint[:12]}), but this model is "
            f"{info.model} ({info.fingerprint[:12]}); calibrate or train it with this model, or use that one"
        )


async def stream(
    samples: Iterable[Sample],
    judges: Sequence[Judge],
    engine: Engine,
    *,
    undelivered: list[Judged] | None = None,
    **options: Any,
) -> AsyncIterator[Judged]:
    """Yield the outcomes of `stream_groups`, which gets the `options`, one by one."""
    left = [] if undelivered is None else undelivered
    groups = stream_groups(samples, judges, engine, undelivered=left, **options)
    async with aclosing(groups):  # type: ignore[type-var]
        async for group in groups:
            for number, judged in enumerate(group, 1):
                try:
                    yield judged
                except GeneratorExit:
                    left.extend(group[number:])
                    raise


async def stream_groups(
    samples: Iterable[Sample],
    judges: Sequence[Judge],
    engine: Engine,
    *,
    task: Task | None = None,
    made: Container[str] = frozenset(),
    done: Container[tuple[str, str]] = frozenset(),
    limits: Limits = UNLIMITED,
    gate: Gate | None = None,
    ask: Ask | None = None,
    undelivered: list[Judged] | None = None,
) -> AsyncIterator[list[Judged]]:
    """Yield the outcomes of every judge on every sample as soon as they are ready, in groups.

    A group holds what became ready while the one before it was taken, and what follows without a pause, at
    most `GROUP`. An outcome that comes alone is yielded alone, without waiting for others.

    Samples are read as they are needed, so their number is unlimited. `task` makes the outputs first: it is
    called with the sample, in a thread unless it is async, and returns the output, or a mapping with
    `output` and optionally `context`. A label that was given to another output is dropped. The task is not
    called for samples whose ids are in `made`. Pairs of sample id and judge name in `done` are not judged.
    Of `limits`, only concurrency, deadline and `give_up_after` apply here. `gate` may end the stream early.
    `ask` runs a judge on a sample elsewhere, by default `judge_one` does so here.
    If the stream is closed early, outcomes that were ready are appended to `undelivered`. Raises what
    `check_stream`, `judge_one` and `samples` raise, and `EngineGone` after too many engine failures in a
    row. All but the errors of `check_stream` are raised only after the outcomes of the work in progress have
    been yielded.
    """
    check_stream(judges, engine.info)
    ready: asyncio.Queue[Judged | BaseException | None] = asyncio.Queue(max(4 * limits.concurrency, GROUP))
    source = _pulled(samples)
    if ask is None:
        ask = partial(judge_one, engine=engine, deadline=limits.deadline)
    worker = _Worker(judges, ask, task, limits.deadline, made, done, gate, ready)
    workers = [asyncio.create_task(worker.run(source)) for _ in range(limits.concurrency)]
    failure: BaseException | None = None
    failed, quiet = 0, 0
    group: list[Judged] = []
    try:
        working = len(workers)
        while working or group:
            if group and ready.empty() and quiet < QUIET and working:
                quiet += 1
                await asyncio.sleep(0)
                continue
            if group and (ready.empty() or len(group) >= GROUP):
                taken, group, quiet = group, [], 0
                yield taken
                continue
            item, quiet = await ready.get(), 0
            if isinstance(item, Judged):
                group.append(item)
                failed = failed + 1 if engine_failed(item.outcome) else 0
                if failed < limits.give_up_after:
                    continue
                item = EngineGone(f"the engine failed {failed} times in a row; last: {item.outcome}")
            else:
                working -= 1
            if item is not None:
                # Work in progress on other samples is still good. No new work begins.
                failure = failure or item
                source.close()
                if gate is not None:
                    gate.close()
    finally:
        for each in workers:
            each.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        source.close()
        if undelivered is not None:
            undelivered.extend(group)
        while undelivered is not None and not ready.empty():
            if isinstance(left := ready.get_nowait(), Judged):
                undelivered.append(left)
    if failure is not None:
        raise failure


def engine_failed(outcome: Outcome) -> bool:
    """Return whether an engine call failed, rather than the judge's own code or the sample."""
    if not isinstance(outcome, Failure) or outcome.code not in ENGINE_FAILURES or not outcome.steps:
        return False
    return "error" in outcome.steps[-1].result


def _pulled(samples: Iterable[Sample]) -> Generator[Sample]:
    """The samples as one generator, which several workers share and each of them can close."""
    yield from samples


@dataclass(frozen=True, slots=True)
class _Worker:
    """Judges one sample after another and puts the outcomes into a queue."""

    judges: Sequence[Judge]
    ask: Ask
    task: Task | None
    deadline: float
    made: Container[str]
    done: Container[tuple[str, str]]
    gate: Gate | None
    ready: asyncio.Queue[Judged | BaseException | None]

    async def run(self, source: Iterable[Sample]) -> None:
        """Judge samples until none is left, then put None into the queue. A fatal error is put instead."""
        try:
            for sample in source:
                if not await self._sample(sample):
                    break
        except BaseException as error:  # the stream must receive every error
            if is_cancelled():
                raise
            await self.ready.put(error)
        else:
            await self.ready.put(None)

    async def _sample(self, sample: Sample) -> bool:
        """Run all judges concurrently. A fatal error of one is raised after the others have finished.

        Returns False if the gate admits no more work.
        """
        judges = [judge for judge in self.judges if (sample.id, judge.info.name) not in self.done]
        if not judges:
            return True
        if self.gate is not None and not await self.gate.admitted(len(judges)):
            return False
        produced = await _produce(sample, None if sample.id in self.made else self.task, self.deadline)
        if isinstance(produced, str):
            for judge in judges:
                failure = Failure(sample.id, judge.info.name, "task_error", produced)
                await self.ready.put(Judged(sample, failure))
            return True
        if len(judges) == 1:
            await self._judge(produced, judges[0])
            await asyncio.sleep(0)  # the outcome is looked at before the next sample begins
            return True
        pending = [self._judge(produced, judge) for judge in judges]
        for result in await asyncio.gather(*pending, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        return True

    async def _judge(self, sample: Sample, judge: Judge) -> None:
        outcome = await self.ask(sample, judge)
        await self.ready.put(Judged(sample, outcome))


# --- outputs made by a task ---------------------------------------------------------------------


async def _produce(sample: Sample, task: Task | None, deadline: float) -> Sample | str:
    """Return the sample with the task's output, or a message that says why there is none."""
    if task is None:
        return sample if sample.output is not None else "the sample has no output and no task to produce one"
    try:
        return await within(deadline, _answered(task, sample))
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        return "the task was cancelled"
    except DeadlineExceeded as error:
        return f"the task returned no output {error}"


async def _answered(task: Task, sample: Sample) -> Sample | str:
    try:
        answer = task(sample) if inspect.iscoroutinefunction(task) else await in_thread(task, sample)
        if inspect.isawaitable(answer):
            answer = await answer
    except (Exception, SystemExit) as error:
        return f"the task failed: {_logging.error_text(error)}"
    return _with_answer(sample, answer)


def _with_answer(sample: Sample, answer: Any) -> Sample | str:
    given = answer if isinstance(answer, Mapping) else {"output": answer}
    output, context = given.get("output"), given.get("context", sample.context)
    context = (context,) if isinstance(context, str) else context or ()
    if not isinstance(output, str):
        found = type(answer).__name__ if answer is not given else f"a mapping whose output is {output!r:.80}"
        return f"the task must return a text or a mapping with 'output' (and 'context'), not {found}"
    if not isinstance(context, Sequence) or not all(isinstance(text, str) for text in context):
        return f"the task's context must be a text or a list of texts, not {context!r:.80}"
    if sample.output not in (None, output):
        # Label and spans were given to another output.
        sample = replace(sample, label=None, spans=())
    return replace(sample, output=output, context=tuple(context))


Returned = TypeVar("Returned", Generation, Choice, Likelihood)


# --- the record of the calls --------------------------------------------------------------------


class Recorded:
    """An engine that records every call, also a failed one, as a `Step`. Use one for each judgement."""

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], float] = time.perf_counter,
        steps: list[Step] | None = None,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self.steps: list[Step] = [] if steps is None else steps

    @property
    def info(self) -> EngineInfo:
        """The info of the wrapped engine."""
        return self._engine.info

    def beside(self, other: Engine) -> Recorded:
        """Return `other`, wrapped to add its calls to these steps, and cached if this engine is."""
        return Recorded(in_role(self._engine, other), self._clock, self.steps)

    @property
    def usage(self) -> Usage:
        """The total usage of all calls so far."""
        return sum((step.usage for step in self.steps), Usage())

    async def count(self, prompt: Prompt) -> int:
        """Count tokens with the wrapped engine. Records no step."""
        return await self._engine.count(prompt)

    async def generate(
        self, prompt: Prompt, constraint: Constraint | None = None, *, sampling: Sampling = GREEDY
    ) -> Generation:
        """Generate with the wrapped engine, and record the call."""

        def kept(answer: Generation) -> dict[str, Any]:
            facts: dict[str, Any] = {
                "text": _logging.without_keys(answer.text),
                "finish": answer.finish,
                "steered": answer.steered,
                "constraint": None if constraint is None else constraint.digest,
                **_noted(answer),
            }
            return {**facts, "trace": [asdict(step) for step in answer.trace]} if answer.trace else facts

        return await self._record(
            "generate", prompt, self._engine.generate(prompt, constraint, sampling=sampling), kept
        )

    async def choose(
        self, prompt: Prompt, options: Sequence[Option], *, capture: Capture | None = None
    ) -> Choice:
        """Choose with the wrapped engine, and record the call."""

        def kept(answer: Choice) -> dict[str, Any]:
            shares = None if answer.probabilities is None else dict(answer.probabilities)
            return {
                "best": answer.best,
                "probabilities": shares,
                "mass": answer.mass,
                "method": answer.method,
                **({} if answer.bound is None else {"bound": answer.bound}),
                **_noted(answer),
            }

        return await self._record(
            "choose", prompt, self._engine.choose(prompt, options, capture=capture), kept
        )

    async def likelihood(self, prompt: Prompt, text: str, *, capture: Capture | None = None) -> Likelihood:
        """Compute a likelihood with the wrapped engine, and record the call."""
        return await self._record(
            "likelihood",
            prompt,
            self._engine.likelihood(prompt, text, capture=capture),
            lambda answer: {
                "text": text,
                "logprobs": [float(each) for each in answer.logprobs],
                **_noted(answer),
            },
        )

    async def _record(
        self,
        verb: Literal["generate", "choose", "likelihood"],
        prompt: Prompt,
        call: Awaitable[Returned],
        kept: Callable[[Returned], Mapping[str, Any]],
    ) -> Returned:
        shown = tuple((message.role, message.text) for message in prompt.messages)
        start = self._clock()
        try:
            answer = await call
        except BaseException as error:
            what = {"error": _logging.error_text(error)}
            spent = Usage(calls=1)
            if isinstance(error, InvalidOutput):
                what["text"] = _logging.without_keys(error.text)
            if isinstance(error, UnusableAnswer):
                spent = error.usage
                self._tell_before(verb, shown, error.attempts, error.thinking)
            self.steps.append(Step(verb, shown, what, spent, self._clock() - start))
            raise
        if isinstance(answer, Generation):
            self._tell_before(verb, shown, answer.attempts, answer.thinking)
        elif isinstance(answer, Choice):
            self._tell_before(verb, shown, (), answer.thinking)
        self.steps.append(Step(verb, shown, kept(answer), answer.usage, self._clock() - start))
        return answer

    def _tell_before(
        self,
        verb: Literal["generate", "choose", "likelihood"],
        shown: tuple[tuple[str, str], ...],
        attempts: Sequence[Attempt],
        thinking: str,
    ) -> None:
        """Record rejected attempts and thinking as steps. Their usage is counted with the answer."""
        for each in attempts:
            refused = {"text": _logging.without_keys(each.text), "error": _logging.without_keys(each.problem)}
            self.steps.append(Step(verb, shown, refused, Usage(), 0.0))
        if thinking:
            self.steps.append(Step(verb, shown, {"thinking": _logging.without_keys(thinking)}, Usage(), 0.0))


def _noted(answer: Returned) -> dict[str, Any]:
    return {"notes": list(answer.notes)} if answer.notes else {}
