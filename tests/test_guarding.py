"""A judge in front of an application: what gets out, what does not, and what happens when nobody can tell."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from magistrate import Blocked, Guarded, JudgeInfo, ScriptedEngine, guard
from magistrate.errors import CapabilityError, EngineGone, SpecError
from magistrate.judges.sentences import Sentences
from magistrate.types import Abstention, Failure, Sample, Verdict

GOOD, BAD = {"faithful": 0.9, "hallucinated": 0.1}, {"faithful": 0.1, "hallucinated": 0.9}
GIVEN = {"answer": "It closes at six.", "context": ["It closes at five."]}


def guarded(
    script: Any, gives: Any = GIVEN, *, delay: float = 0.0, judge: str = "faithfulness", **options: Any
) -> Callable[[], Any]:
    engine = ScriptedEngine(script, delay=delay)

    @guard(model=engine, judge=judge, **options)
    def answer() -> Any:
        """Says when it closes."""
        return gives

    return answer


def test_a_faithful_answer_gets_out_as_it_is() -> None:
    answer = guarded([GOOD])
    assert answer() is GIVEN
    assert (answer.__name__, answer.__doc__) == ("answer", "Says when it closes.")


def test_a_hallucinated_answer_is_held_back_with_its_verdict() -> None:
    with pytest.raises(Blocked, match="hallucinated") as held:
        guarded([BAD])()
    assert held.value.answer is GIVEN
    assert isinstance(held.value.outcome, Verdict) and held.value.outcome.score == pytest.approx(0.9)


def test_a_fallback_answers_in_its_place() -> None:
    def sorry(held: Guarded) -> str:
        assert not held.allowed and held.answer is GIVEN
        return f"I do not know ({held.outcome.label})"  # type: ignore[union-attr]

    assert guarded([BAD], fallback=sorry)() == "I do not know (hallucinated)"


@pytest.mark.parametrize(
    "gives",
    [
        GIVEN,
        ("It closes at six.", "It closes at five."),
        ("It closes at six.", ["It closes at five."]),
        {"output": "It closes at six.", "retrieved_contexts": ["It closes at five."], "question": "When?"},
        Sample("s", "It closes at six.", ("It closes at five.",)),
        {
            "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "Six."}],
            "context": "Five.",
        },
    ],
)
def test_an_answer_with_its_context_has_many_forms(gives: Any) -> None:
    assert guarded([GOOD], gives)() is gives


@pytest.mark.parametrize("label", ["Hallucinated", "hallucinated ", "unfaithful", ""])
@pytest.mark.parametrize("wrapped", ["itself", "sentences"])
def test_a_label_that_the_judge_does_not_declare_lets_nothing_out(label: str, wrapped: str) -> None:
    @dataclass(frozen=True)
    class Misspelt:
        info = JudgeInfo("misspelt", labels=("faithful", "hallucinated"), reads=("output",), kind="code")

        async def judge(self, sample: Sample, engine: Any) -> Verdict:
            return Verdict(sample.id, "misspelt", label, 0.9)

    judge: Any = Misspelt() if wrapped == "itself" else Sentences(of=Misspelt())
    with pytest.raises(Blocked) as held:
        guard(judge=judge)(lambda: GIVEN)()
    outcome = held.value.outcome
    assert isinstance(outcome, Failure) and outcome.code == "invalid_output"
    assert f"label is {label!r}; its labels are faithful, hallucinated" in outcome.message


def test_other_forms_are_read_by_a_function() -> None:
    @dataclass
    class Reply:
        text: str
        sources: list[str]

    reply = Reply("It closes at six.", ["It closes at five."])
    assert guarded([GOOD], reply, read=lambda each: (each.text, each.sources))() is reply


@pytest.mark.parametrize("gives", ["It closes at six.", None, {"context": "c"}, ("a", "b", "c"), ("a", 3)])
def test_what_is_no_answer_with_context_is_an_error_and_not_a_pass(gives: Any) -> None:
    with pytest.raises(SpecError, match="guarded function"):
        guarded([GOOD], gives, on_failure="open", on_timeout="open")()


@pytest.mark.parametrize(("way", "passes"), [("open", True), ("closed", False)])
def test_a_deadline_opens_or_closes(way: str, passes: bool) -> None:
    seen: list[Guarded] = []
    start = time.perf_counter()
    answer = guarded(
        [GOOD], delay=30, deadline=0.2, on_timeout=way, fallback=lambda _: None, watch=seen.append
    )
    assert (answer() is GIVEN) == passes
    assert time.perf_counter() - start < 5
    (told,) = seen
    assert isinstance(told.outcome, Failure) and told.outcome.code == "timeout" and told.allowed == passes


@pytest.mark.parametrize(("way", "passes"), [("open", True), ("closed", False)])
@pytest.mark.parametrize(
    ("script", "gives", "kind"),
    [
        ([ValueError("bug")], GIVEN, Failure),
        ([EngineGone("gone")], GIVEN, Failure),
        ([], {"answer": "It closes at six.", "context": []}, Abstention),
    ],
)
def test_a_judge_that_cannot_tell_opens_or_closes(
    script: Any, gives: Any, kind: type, way: str, passes: bool
) -> None:
    seen: list[Guarded] = []
    answer = guarded(script, gives, on_failure=way, fallback=lambda _: None, watch=seen.append)
    assert (answer() is gives) == passes
    assert isinstance(seen[0].outcome, kind)


def test_unless_told_otherwise_nothing_gets_out_unjudged() -> None:
    for script, delay in (([EngineGone("gone")], 0), ([GOOD], 30)):
        with pytest.raises(Blocked):
            guarded(script, delay=delay, deadline=0.2)()


@pytest.mark.alone
def test_async_functions_stay_async_and_are_judged_at_once() -> None:
    engine = ScriptedEngine(lambda prompt: GOOD, delay=0.2)

    @guard(model=engine, judge="faithfulness")
    async def answer(number: int) -> dict[str, Any]:
        return {**GIVEN, "id": str(number)}

    async def main() -> list[Any]:
        return await asyncio.gather(*(answer(number) for number in range(8)))

    start = time.perf_counter()
    assert [each["id"] for each in asyncio.run(main())] == [str(number) for number in range(8)]
    assert time.perf_counter() - start < 1.2


def test_it_works_inside_a_running_loop() -> None:
    async def main() -> Any:
        return guarded([GOOD])()

    assert asyncio.run(main()) is GIVEN


def test_an_error_of_the_function_is_its_own() -> None:
    @guard(model=ScriptedEngine([]), judge="faithfulness")
    def broken() -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        broken()


def test_other_labels_can_hold_an_answer_back() -> None:
    options = {"judge": "relevance", "block": ["irrelevant"]}
    gives = {"question": "When?", **GIVEN}
    assert guarded([{"relevant": 0.8, "irrelevant": 0.2}], gives, **options)() is gives
    with pytest.raises(Blocked):
        guarded([{"relevant": 0.2, "irrelevant": 0.8}], gives, **options)()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"judge": "moderation"}, r"has no label hallucinated; its labels are safe, flagged"),
        ({"judge": "nobody"}, "unknown judge"),
        ({"deadline": 0}, "deadline"),
        ({"on_timeout": "ajar"}, "on_timeout is 'open' or 'closed'"),
        ({"on_failure": ""}, "on_failure is 'open' or 'closed'"),
    ],
)
def test_what_could_never_guard_is_refused_before_the_first_answer(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        guard(**{"judge": "faithfulness", **options})


def test_a_guard_that_can_never_judge_is_an_error_and_not_open() -> None:
    deaf = ScriptedEngine([], can=frozenset({"generate"}))
    for model, error in (("no-such-model", SpecError), (deaf, CapabilityError)):

        @guard(model=model, on_failure="open", on_timeout="open", judge="faithfulness")
        def answer() -> Any:
            return GIVEN

        with pytest.raises(error, match=r"no-such-model|choose"):
            answer()


def test_an_answer_in_pieces_is_refused() -> None:
    def streamed() -> Any:
        yield "It "

    with pytest.raises(SpecError, match="in pieces"):
        guard(judge="faithfulness")(streamed)
