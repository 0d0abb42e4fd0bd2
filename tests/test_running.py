"""The stream: every outcome comes, as soon as it can, whatever breaks; nothing is left running."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from magistrate.engines.base import Engine
from magistrate.engines.scripted import EVERYTHING, ScriptedEngine
from magistrate.errors import (
    CapabilityError,
    EngineError,
    EngineGone,
    InvalidOutput,
    MagistrateError,
    MissingExtra,
    ModelError,
    OverLength,
    SpecError,
)
from magistrate.judges import Hallucination, Judge, JudgeInfo, instance
from magistrate.runs.execute import Judged, judge_one, stream
from magistrate.runs.limits import Limits
from magistrate.types import Abstention, Failure, Outcome, Prompt, Sample, Span, Verdict

FAITHFULNESS: Any = instance("faithfulness")
YES = {"faithful": 0.6, "hallucinated": 0.2}


def samples(n: int, **fields: Any) -> Iterator[Sample]:
    for number in range(n):
        yield Sample(f"s{number}", f"output {number}", ("the context",), **fields)


def number_of(prompt: Prompt) -> int:
    """The number in `output 7`, which is what the scripts below go by."""
    (output,) = (part.text for part in prompt.data() if part.name == "output")
    return int(output.split()[1])


def by_number(answers: dict[int, Any], otherwise: Any = YES, **options: Any) -> ScriptedEngine:
    return ScriptedEngine(lambda prompt: answers.get(number_of(prompt), otherwise), **options)


def run(
    source: Iterable[Sample], engine: Engine, judges: list[Judge] | None = None, **options: Any
) -> list[Outcome]:
    """Every outcome of a stream, and no task left behind."""
    asked = [FAITHFULNESS] if judges is None else judges

    async def collected() -> list[Outcome]:
        found = [j.outcome async for j in stream(source, asked, engine, **options)]
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return found

    return asyncio.run(collected())


def until_it_breaks(
    source: Iterable[Sample], engine: Engine, judges: list[Judge], error: type[Exception], **options: Any
) -> list[Judged]:
    """What came before the stream raised `error`, and no task left behind."""

    async def collected() -> list[Judged]:
        found = []
        with pytest.raises(error):
            async for judged in stream(source, judges, engine, **options):
                found.append(judged)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return found

    return asyncio.run(collected())


@dataclass(frozen=True)
class Says:
    """A judge that answers, or raises, what it is told."""

    answer: Any
    name: str = "says"

    @property
    def info(self) -> JudgeInfo:
        return JudgeInfo(self.name, reads=("output",), requires=())

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        if isinstance(self.answer, BaseException):
            raise self.answer
        answer: Outcome = self.answer(sample) if callable(self.answer) else self.answer
        return answer


# --- what comes out -----------------------------------------------------------------------------


def test_every_judge_has_one_outcome_for_every_sample() -> None:
    judges: list[Judge] = [FAITHFULNESS, replace(FAITHFULNESS, name="strict", threshold=0.1)]
    found = run(samples(50), ScriptedEngine(lambda prompt: YES), judges)
    expected = {(f"s{i}", name) for i in range(50) for name in ("faithfulness", "strict")}
    assert {(each.sample_id, each.judge) for each in found} == expected
    assert len(found) == len(expected)
    labels = {each.judge: each.label for each in found if isinstance(each, Verdict)}
    assert labels == {"faithfulness": "faithful", "strict": "hallucinated"}


def test_outcomes_come_as_they_are_ready() -> None:
    async def slow_first(prompt: Prompt) -> Any:
        await asyncio.sleep(0.2 if number_of(prompt) == 0 else 0)
        return YES

    found = run(samples(5), ScriptedEngine(slow_first), limits=Limits(concurrency=2))
    assert [each.sample_id for each in found] == ["s1", "s2", "s3", "s4", "s0"]
    assert found[-1].seconds > 0.15 > found[0].seconds


def test_evidence_is_kept() -> None:
    (verdict,) = run(samples(1), by_number({}))
    (step,) = verdict.steps
    assert step.verb == "choose"
    assert dict(step.prompt)["user"].count("output 0") == 1
    assert step.result["probabilities"] == pytest.approx({"faithful": 0.75, "hallucinated": 0.25})
    assert verdict.usage.calls == 1


@pytest.mark.parametrize("concurrency", [1, 3, 16])
def test_no_more_samples_are_under_way_than_allowed(concurrency: int) -> None:
    now, most = 0, 0

    async def counted(prompt: Prompt) -> Any:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.005)
        now -= 1
        return YES

    assert len(run(samples(40), ScriptedEngine(counted), limits=Limits(concurrency=concurrency))) == 40
    assert most == concurrency


def test_samples_are_pulled_as_they_are_needed() -> None:
    pulled = 0

    def endless() -> Iterator[Sample]:
        nonlocal pulled
        while True:
            pulled += 1
            yield Sample(f"s{pulled}", f"output {pulled}", ("context",))

    async def first(n: int) -> int:
        async with aclosing(_stream(endless(), by_number({}), limits=Limits(concurrency=4))) as outcomes:
            seen = 0
            async for _ in outcomes:
                seen += 1
                if seen == n:
                    break
        return seen

    assert asyncio.run(first(1000)) == 1000
    assert pulled < 1000 + 50


def _stream(source: Iterable[Sample], engine: Engine, **options: Any) -> Any:
    return stream(source, [FAITHFULNESS], engine, **options)


def test_cancelling_leaves_no_task_and_closes_the_source() -> None:
    closed = []

    def source() -> Iterator[Sample]:
        try:
            yield from samples(1000)
        finally:
            closed.append(True)

    async def main() -> None:
        judges: list[Judge] = [FAITHFULNESS, replace(FAITHFULNESS, name="other")]
        engine = ScriptedEngine(lambda prompt: YES, delay=60)

        async def consume() -> None:
            async with aclosing(stream(source(), judges, engine)) as outcomes:  # type: ignore[type-var]
                async for _ in outcomes:
                    pass

        consumer = asyncio.create_task(consume())
        await asyncio.sleep(0.05)
        assert len(asyncio.all_tasks()) > 16
        consumer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consumer
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert closed == [True]


def test_a_consumer_that_stops_early_leaves_no_task_and_closes_the_source() -> None:
    async def main() -> None:
        async with aclosing(_stream(samples(1000), by_number({}))) as outcomes:
            async for _ in outcomes:
                break
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


# --- what breaks is a value ---------------------------------------------------------------------

BREAKS: list[tuple[BaseException | Any, str, str]] = [
    (EngineError("it smokes"), "engine_error", "EngineError: it smokes"),
    (InvalidOutput("no JSON", "{"), "invalid_output", "InvalidOutput: no JSON"),
    (KeyError("x"), "engine_error", "KeyError: 'x'"),
    (TimeoutError("the socket"), "engine_error", "TimeoutError: the socket"),
    (asyncio.CancelledError(), "cancelled", "the engine cancelled the request"),
    ("a text", "invalid_output", "returned 'a text'"),
]


@pytest.mark.parametrize(("answer", "code", "message"), BREAKS, ids=[str(each[1:]) for each in BREAKS])
def test_what_breaks_is_a_failure_and_the_others_go_on(answer: Any, code: str, message: str) -> None:
    found = {each.sample_id: each for each in run(samples(9), by_number({4: answer}))}
    failure = found.pop("s4")
    assert isinstance(failure, Failure)
    assert (failure.code, failure.judge) == (code, "faithfulness")
    assert message in failure.message
    assert len(failure.steps) == 1, "the call that broke is evidence too"
    assert all(isinstance(each, Verdict) for each in found.values())


def test_the_text_that_did_not_pass_is_kept_as_evidence() -> None:
    judges: list[Judge] = [Hallucination()]
    (failure,) = run(samples(1), ScriptedEngine(['{"reasons": ["x"], "score": 2}']), judges)
    assert isinstance(failure, Failure)
    assert failure.code == "invalid_output"
    assert failure.steps[0].result["text"] == '{"reasons": ["x"], "score": 2}'


def test_a_sample_that_does_not_fit_is_an_abstention() -> None:
    found = run(samples(3), by_number({1: OverLength("9000 tokens of 8192")}))
    (abstention,) = (each for each in found if isinstance(each, Abstention))
    assert (abstention.sample_id, abstention.reason) == ("s1", "over_length")
    assert abstention.message == "9000 tokens of 8192"
    assert len(found) == 3


def test_a_verdict_that_takes_too_long_is_a_timeout() -> None:
    async def slow(prompt: Prompt) -> Any:
        await asyncio.sleep(60 if number_of(prompt) == 1 else 0)
        return YES

    start = time.monotonic()
    found = {
        each.sample_id: each for each in run(samples(3), ScriptedEngine(slow), limits=Limits(deadline=0.1))
    }
    assert time.monotonic() - start < 5
    failure = found["s1"]
    assert isinstance(failure, Failure)
    assert (failure.code, failure.message) == ("timeout", "no verdict within 0.1 seconds")


NONSENSE = [
    (None, "NoneType"),
    ("hallucinated", "str"),
    (True, "bool"),
    (Verdict("x", "x", "faithful", float("nan")), "nan"),
    (Verdict("x", "x", "faithful", 1.5), "1.5"),
    (Verdict("x", "x", "faithful", "high"), "TypeError"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("answer", "shown"), NONSENSE, ids=[shown for _, shown in NONSENSE])
def test_a_judge_that_answers_nonsense_has_failed(answer: Any, shown: str) -> None:
    (failure,) = run(samples(1), ScriptedEngine([]), [Says(answer)])
    assert isinstance(failure, Failure)
    assert shown in failure.message


def test_an_outcome_is_about_its_sample_and_by_its_judge_whatever_it_says() -> None:
    (verdict,) = run(samples(1), ScriptedEngine([]), [Says(Verdict("another", "nobody", "faithful", 0.1))])
    assert (verdict.sample_id, verdict.judge) == ("s0", "says")


def test_an_error_in_one_judge_is_none_of_the_other() -> None:
    judges: list[Judge] = [Says(ValueError("bug"), "broken"), FAITHFULNESS]
    found = {each.judge: each for each in run(samples(1), by_number({}), judges)}
    assert isinstance(found["broken"], Failure)
    assert isinstance(found["faithfulness"], Verdict)


def test_a_sample_without_output_is_a_failure() -> None:
    (failure,) = run([Sample("s0", None)], by_number({}))
    assert isinstance(failure, Failure)
    assert failure.code == "task_error"


# --- what ends the stream -----------------------------------------------------------------------


@pytest.mark.parametrize("error", [EngineGone("gone"), ModelError("no weights"), MissingExtra("x", "local")])
def test_after_a_fatal_error_what_is_under_way_still_comes(error: MagistrateError) -> None:
    begun = []

    async def script(prompt: Prompt) -> Any:
        number = number_of(prompt)
        begun.append(number)
        await asyncio.sleep(0.02 if number == 3 else 0.1)
        return error if number == 3 else YES

    found = until_it_breaks(
        samples(100), ScriptedEngine(script), [FAITHFULNESS], type(error), limits=Limits(concurrency=5)
    )
    assert sorted(each.sample.id for each in found) == ["s0", "s1", "s2", "s4"]
    assert all(isinstance(each.outcome, Verdict) for each in found)
    assert sorted(begun) == [0, 1, 2, 3, 4], "nobody began anything new"


def test_after_a_fatal_error_of_one_judge_the_other_finishes_its_sample() -> None:
    judges: list[Judge] = [Says(EngineGone("gone")), FAITHFULNESS]
    engine = ScriptedEngine(lambda prompt: YES, delay=0.05)
    found = until_it_breaks(samples(10), engine, judges, EngineGone, limits=Limits(concurrency=1))
    assert [(each.sample.id, each.outcome.judge) for each in found] == [("s0", "faithfulness")]


def test_a_source_that_breaks_keeps_what_was_judged() -> None:
    def broken() -> Iterator[Sample]:
        yield from samples(7)
        raise OSError("the disk is gone")

    found = until_it_breaks(broken(), by_number({}), [FAITHFULNESS], OSError, limits=Limits(concurrency=3))
    assert sorted(each.sample.id for each in found) == [f"s{i}" for i in range(7)]


def never(prompt: Prompt) -> Any:
    raise AssertionError("nothing may be asked")


@pytest.mark.parametrize(
    ("judges", "options", "error", "message"),
    [
        ([], {}, SpecError, "no judge"),
        ([FAITHFULNESS, FAITHFULNESS], {}, SpecError, "two judges are named 'faithfulness'"),
        ([Hallucination()], {}, CapabilityError, "'hallucination' needs constraints"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_spent(
    judges: list[Judge], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    engine = ScriptedEngine(never, can=EVERYTHING - {"constraints"})
    with pytest.raises(error, match=message):
        run(samples(3), engine, judges, **options)


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"deadline": 0}, "deadline"),
        ({"deadline": float("nan")}, "deadline"),
        ({"give_up_after": 0}, "give_up_after"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_seconds": -1.0}, "max_seconds"),
        ({"max_cost": float("nan")}, "max_cost"),
    ],
)
def test_limits_within_which_nothing_can_be_done_are_refused(limits: dict[str, Any], named: str) -> None:
    with pytest.raises(SpecError, match=named):
        Limits(**limits)


# --- what keeps failing --------------------------------------------------------------------------


def test_a_circuit_opens_after_engine_failures_in_a_row() -> None:
    engine = ScriptedEngine(lambda prompt: EngineError("no route to the model"))
    limits = Limits(concurrency=2, give_up_after=5)
    found = until_it_breaks(samples(100), engine, [FAITHFULNESS], EngineGone, limits=limits)
    assert 5 <= len(found) <= 7, "what was under way still comes out"
    assert all(isinstance(each.outcome, Failure) and each.outcome.steps for each in found)


def test_a_third_of_the_calls_failing_opens_no_circuit() -> None:
    broken = {number: EngineError("flaky") for number in range(0, 300, 3)}
    found = run(samples(300), by_number(broken))
    assert Counter(type(each) for each in found) == {Verdict: 200, Failure: 100}


def test_a_judge_that_fails_by_itself_opens_no_circuit() -> None:
    found = run(samples(50), by_number({}), [Broken()])
    assert [each.code for each in found if isinstance(each, Failure)] == ["engine_error"] * 50


@dataclass(frozen=True)
class Broken:
    info: ClassVar[JudgeInfo] = JudgeInfo("broken")

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        raise ZeroDivisionError("a mistake of mine")


@dataclass(frozen=True)
class Stubborn:
    """Goes on when it is told to stop."""

    info: ClassVar[JudgeInfo] = JudgeInfo("stubborn")

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)
        return Verdict(sample.id, "stubborn", "faithful", 0.1)


@pytest.mark.alone
def test_work_that_does_not_stop_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magistrate.runs.execute.GRACE", 0.1)

    async def judged() -> Outcome:
        start = time.monotonic()
        [sample] = samples(1)
        outcome = await judge_one(sample, Stubborn(), by_number({}), deadline=0.1)
        assert time.monotonic() - start < 0.4
        await asyncio.sleep(0.5)
        return outcome

    outcome = asyncio.run(judged())
    assert isinstance(outcome, Failure)
    assert (outcome.code, outcome.message) == (
        "timeout",
        "no verdict within 0.1 seconds; it did not stop when cancelled",
    )


class Unheard(BaseException):
    """What no ordinary handler sees."""


@pytest.mark.parametrize("error", [SystemExit(3), Unheard("x")])
def test_nothing_that_a_judge_raises_makes_a_stream_wait_for_ever(error: BaseException) -> None:
    @dataclass(frozen=True)
    class Ending:
        info: ClassVar[JudgeInfo] = JudgeInfo("ending")

        async def judge(self, sample: Sample, engine: Engine) -> Outcome:
            if sample.id == "s3":
                raise error
            return Verdict(sample.id, "ending", "faithful", 0.1)

    async def collected() -> list[Outcome]:
        return [each.outcome async for each in stream(samples(10), [Ending()], by_number({}))]

    if isinstance(error, SystemExit):
        found = {each.sample_id: each for each in asyncio.run(collected())}
        assert len(found) == 10
        assert isinstance(failure := found["s3"], Failure) and "SystemExit: 3" in failure.message
    else:
        with pytest.raises(Unheard):
            asyncio.run(asyncio.wait_for(collected(), 5))


def test_pairs_that_are_done_are_not_judged_again() -> None:
    engine = by_number({})
    done = {(f"s{number}", "faithfulness") for number in range(7)}
    found = run(samples(10), engine, done=done)
    assert sorted(each.sample_id for each in found) == ["s7", "s8", "s9"]
    assert len(engine.prompts) == 3


# --- outputs that are made first ----------------------------------------------------------------


def bare(n: int) -> Iterator[Sample]:
    """Samples whose output is still to be made."""
    for number in range(n):
        yield Sample(f"s{number}", None, ("the context",), input=f"question {number}")


def judged_outputs(task: Callable[[Sample], Any], source: Iterable[Sample], **options: Any) -> list[Judged]:
    async def collected() -> list[Judged]:
        engine = ScriptedEngine(lambda prompt: YES)
        found = [j async for j in stream(source, [FAITHFULNESS], engine, task=task, **options)]
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return sorted(found, key=lambda each: each.sample.id)

    return asyncio.run(collected())


def in_a_thread(sample: Sample) -> str:
    assert threading.current_thread() is not threading.main_thread()
    return f"answer to {sample.input}"


async def awaited(sample: Sample) -> str:
    await asyncio.sleep(0.001)
    return f"answer to {sample.input}"


class Application:
    """An object that is called, with an answer that is awaited."""

    def __call__(self, sample: Sample) -> Awaitable[str]:
        return awaited(sample)


@pytest.mark.parametrize("task", [in_a_thread, awaited, Application()], ids=["sync", "async", "object"])
def test_a_task_makes_the_outputs(task: Callable[[Sample], Any]) -> None:
    found = judged_outputs(task, bare(20))
    assert [each.sample.output for each in found] == [f"answer to {each.sample.input}" for each in found]
    assert all(isinstance(each.outcome, Verdict) for each in found)


def test_a_task_may_answer_a_context_too() -> None:
    answers = {"s0": {"output": "a", "context": ["found"]}, "s1": {"output": "b", "context": "one"}}
    first, second = judged_outputs(lambda sample: answers[sample.id], bare(2))
    assert (first.sample.output, first.sample.context) == ("a", ("found",))
    assert (second.sample.output, second.sample.context) == ("b", ("one",))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "not NoneType"),
        (7, "not int"),
        (["a"], "not list"),
        ({"outptu": "a"}, "output is None"),
        ({"output": 3}, "output is 3"),
        ({"output": "a", "context": 5}, "context must be"),
        ({"output": "a", "context": [None]}, "context must be"),
    ],
)
def test_a_task_that_answers_nonsense_has_failed(answer: Any, message: str) -> None:
    (only,) = judged_outputs(lambda sample: answer, bare(1))
    assert isinstance(only.outcome, Failure)
    assert only.outcome.code == "task_error"
    assert message in only.outcome.message


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration(), SystemExit(3), TimeoutError("slow")])
def test_a_task_that_raises_has_failed_and_the_others_go_on(error: BaseException) -> None:
    def task(sample: Sample) -> str:
        if sample.id == "s1":
            raise error
        return "fine"

    async def twin(sample: Sample) -> str:
        return task(sample)

    for each in (task, twin):
        found = judged_outputs(each, bare(3))
        assert [type(judged.outcome) for judged in found] == [Verdict, Failure, Verdict]
        failure = found[1].outcome
        assert isinstance(failure, Failure)
        assert "the task failed" in failure.message


@pytest.mark.alone
def test_a_task_that_takes_too_long_has_failed_and_holds_nobody_up() -> None:
    def task(sample: Sample) -> str:
        time.sleep(2 if sample.id == "s1" else 0)
        return "fine"

    start = time.monotonic()
    found = judged_outputs(task, bare(3), limits=Limits(deadline=0.1))
    assert time.monotonic() - start < 1.5
    failure = found[1].outcome
    assert isinstance(failure, Failure)
    assert failure.message == "the task returned no output within 0.1 seconds"


def test_as_many_synchronous_tasks_run_at_once_as_were_allowed() -> None:
    together = threading.Barrier(20, timeout=5)

    def task(sample: Sample) -> str:
        together.wait()
        return "fine"

    found = judged_outputs(task, bare(20), limits=Limits(concurrency=20))
    assert all(isinstance(each.outcome, Verdict) for each in found)


def test_a_label_goes_with_the_output_it_was_given_to() -> None:
    labelled = list(samples(1, label="hallucinated", spans=(Span(0, 3),)))
    (same,) = judged_outputs(lambda sample: "output 0", labelled)
    assert (same.sample.label, same.sample.spans) == ("hallucinated", (Span(0, 3),))
    (new,) = judged_outputs(lambda sample: "another output", labelled)
    assert (new.sample.label, new.sample.spans) == (None, ())


# --- one sample ---------------------------------------------------------------------------------


def test_one_judgement_can_be_cancelled() -> None:
    async def main() -> None:
        engine = ScriptedEngine(lambda prompt: YES, delay=60)
        judging = asyncio.create_task(judge_one(next(samples(1)), FAITHFULNESS, engine))
        await asyncio.sleep(0.01)
        judging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await judging

    asyncio.run(main())


def test_seconds_come_from_the_clock_that_is_passed_in() -> None:
    ticks = iter(range(100))
    one = judge_one(next(samples(1)), FAITHFULNESS, by_number({}), clock=lambda: float(next(ticks)))
    outcome = asyncio.run(one)
    assert outcome.seconds == 3
    assert outcome.steps[0].seconds == 1


# --- many ---------------------------------------------------------------------------------------


class Forgetful(ScriptedEngine):
    """Keeps nothing of what it was asked."""

    def __init__(self) -> None:
        super().__init__(lambda prompt: YES)
        self.prompts = _Bin()


class _Bin(list[Prompt]):
    def append(self, prompt: Prompt) -> None:
        pass


@pytest.mark.full
def test_ten_thousand_samples_stream_through_little_memory() -> None:
    import gc

    async def main() -> tuple[int, int]:
        seen, most = 0, 0
        outcomes: AsyncIterator[Judged] = stream(samples(10_000), [FAITHFULNESS], Forgetful())
        async for _ in outcomes:
            seen += 1
            if seen % 5_000 == 0:
                most = max(most, sum(type(each) in (Judged, Sample) for each in gc.get_objects()))
        return seen, most

    seen, most = asyncio.run(main())
    assert seen == 10_000
    assert 0 < most < 1000
