"""Candidates: doubtful statements are quoted first, and each is checked on its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magistrate.constraints import Constraint
from magistrate.constraints.lark import follow
from magistrate.engines.base import GREEDY, Choice, Generation, Option, Sampling
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.engines.scripted import EVERYTHING, ScriptedEngine
from magistrate.errors import SpecError
from magistrate.judges import Candidates
from magistrate.runs.execute import judge_one
from magistrate.types import Data, Failure, Outcome, Prompt, Sample, Turn, Verdict

HOURS, ENTRY, DOGS = (
    "It closes at six in the evening.",
    "Entry is free for children.",
    "Dogs are welcome too.",
)
SAMPLE = Sample(
    "s",
    f"{HOURS} {ENTRY} {DOGS}",
    ("It closes at five in the evening.", "Nobody has to pay."),
    input="When does it close?",
    messages=(Turn("user", "I have a dog."),),
)


def listed(*quotes: str, reason: str = "odd") -> str:
    return json.dumps({"candidates": [{"reason": reason, "quote": quote} for quote in quotes]})


def said(prompt: Prompt) -> dict[str, str]:
    """The data parts of a prompt by name; of several the last."""
    return {part.name: part.text for part in prompt.data()}


class Listening(ScriptedEngine):
    """Keeps the constraints that it was to write under."""

    shapes: tuple[Constraint, ...] = ()

    async def generate(
        self, prompt: Prompt, constraint: Constraint | None = None, *, sampling: Sampling = GREEDY
    ) -> Generation:
        self.shapes += () if constraint is None else (constraint,)
        return await super().generate(prompt, constraint, sampling=sampling)


def doubting(doubts: Mapping[str, float], *, text: str | None = None, **options: Any) -> Listening:
    """An engine that lists the statements in `doubts` and finds each so doubtful."""

    def script(prompt: Prompt) -> Any:
        statement = said(prompt).get("statement")
        if statement is None:
            return listed(*doubts) if text is None else text
        return {"faithful": 0.9 * (1 - doubts[statement]), "hallucinated": 0.9 * doubts[statement]}

    return Listening(script, **options)


def outcome(judge: Candidates, engine: ScriptedEngine, sample: Sample = SAMPLE) -> Outcome:
    return asyncio.run(judge_one(sample, judge, engine))


def verdict(judge: Candidates, engine: ScriptedEngine, sample: Sample = SAMPLE) -> Verdict:
    found = outcome(judge, engine, sample)
    assert isinstance(found, Verdict), found
    return found


# --- what decides -------------------------------------------------------------------------------


def test_without_candidates_the_output_is_faithful_and_nothing_more_is_asked() -> None:
    found = verdict(Candidates(), doubting({}))
    assert (found.label, found.score, found.probability) == ("faithful", 0.0, None)
    assert found.explanation == "no doubtful statement was found"
    assert (found.claims, found.details["candidates"], found.usage.calls) == ((), 0, 1)


def test_the_first_that_is_confirmed_decides_and_the_rest_is_not_asked() -> None:
    engine = doubting({ENTRY: 0.2, HOURS: 0.8, DOGS: 0.9})
    found = verdict(Candidates(), engine)
    assert [said(prompt).get("statement") for prompt in engine.prompts] == [None, ENTRY, HOURS]
    assert (found.label, found.score) == ("hallucinated", pytest.approx(0.8))
    assert (found.probability, found.mass) == (pytest.approx(0.8), pytest.approx(0.9))
    assert found.explanation == f"“{HOURS}”: odd"
    assert (found.details["candidates"], found.details["checked"]) == (3, 2)
    assert [claim.kind for claim in found.claims] == ["agreement", "unsupported"]
    assert [claim.probability for claim in found.claims] == pytest.approx([0.8, 0.8])


def test_exhaustive_asks_about_all_and_the_least_supported_decides() -> None:
    engine = doubting({ENTRY: 0.2, HOURS: 0.8, DOGS: 0.9})
    found = verdict(Candidates(exhaustive=True), engine)
    assert {said(prompt).get("statement") for prompt in engine.prompts} == {None, ENTRY, HOURS, DOGS}
    assert (found.label, found.score, found.explanation) == (
        "hallucinated",
        pytest.approx(0.9),
        f"“{DOGS}”: odd",
    )
    assert [claim.kind for claim in found.claims] == ["agreement", "unsupported", "unsupported"]


def test_where_none_is_confirmed_the_most_doubtful_gives_the_score() -> None:
    found = verdict(Candidates(), doubting({ENTRY: 0.1, HOURS: 0.4}))
    assert (found.label, found.score, found.probability) == (
        "faithful",
        pytest.approx(0.4),
        pytest.approx(0.6),
    )
    assert found.explanation == "no doubtful statement was confirmed"
    assert [claim.kind for claim in found.claims] == ["agreement", "agreement"]


@pytest.mark.parametrize(
    ("threshold", "label"), [(0.3, "hallucinated"), (0.4, "hallucinated"), (0.45, "faithful")]
)
def test_the_threshold_says_what_is_confirmed(threshold: float, label: str) -> None:
    found = verdict(Candidates(threshold=threshold), doubting({HOURS: 0.4 + 1e-12}))
    assert found.label == label
    assert found.claims[0].kind == ("unsupported" if label == "hallucinated" else "agreement")
    assert found.probability == pytest.approx(0.4 if label == "hallucinated" else 0.6)


def test_an_engine_without_probabilities_gives_none() -> None:
    class LabelOnly(ScriptedEngine):
        async def choose(self, prompt: Prompt, options: Sequence[Option], **others: Any) -> Choice:
            found = await super().choose(prompt, options)
            return Choice(found.best, None, None, "label_only", found.usage)

    found = verdict(Candidates(), LabelOnly([listed(HOURS), {"hallucinated": 1.0}]))
    assert (found.label, found.score, found.probability, found.mass) == ("hallucinated", 1.0, None, None)
    assert found.claims[0].probability is None


def test_permuted_each_check_is_asked_in_both_orders() -> None:
    engine = doubting({HOURS: 0.3, DOGS: 0.1})
    verdict(Candidates(permute=True), engine)
    ends = [prompt.messages[-1].text.splitlines()[-1].rpartition("? ")[2] for prompt in engine.prompts[1:]]
    assert ends == ["Reply with one word, Yes or No.", "Reply with one word, No or Yes."] * 2


# --- quotes -------------------------------------------------------------------------------------


def test_quotes_stand_where_they_say() -> None:
    output = f"{DOGS} Ünïcödé 😀 {HOURS}\r\n{DOGS}"
    sample = replace(SAMPLE, output=output)
    found = verdict(Candidates(exhaustive=True), doubting({HOURS: 0.6, DOGS: 0.1}), sample)
    spans = [claim.output_quote for claim in found.claims]
    assert [output[span.start : span.end] for span in spans] == [HOURS, DOGS]
    assert spans[1].start == 0, "of several places the first"
    assert [claim.reasoning for claim in found.claims] == ["odd", "odd"]
    assert [claim.context_quote for claim in found.claims] == [None, None]


def test_a_quote_that_is_written_twice_is_checked_once() -> None:
    first = {"reason": "odd", "quote": HOURS}
    text = json.dumps({"candidates": [first, {**first, "reason": "again"}, {**first, "quote": DOGS}]})
    engine = doubting({HOURS: 0.1, DOGS: 0.2}, text=text)
    found = verdict(Candidates(), engine)
    assert [said(prompt)["statement"] for prompt in engine.prompts[1:]] == [HOURS, DOGS]
    assert [claim.reasoning for claim in found.claims] == ["odd", "odd"]
    assert found.details["candidates"] == 2


@pytest.mark.parametrize(
    "text",
    [
        listed("It closes at five in the evening."),
        listed("t closes at six in the evening"),
        listed(f" {HOURS}"),
        listed(HOURS, HOURS, DOGS, ENTRY),
        listed(HOURS, reason="x" * 121),
        listed(HOURS, reason='"'),
        listed(HOURS, reason=""),
        json.dumps({"candidates": [{"quote": HOURS}]}),
        '{"candidates":null}',
        "none",
        "",
    ],
)
@pytest.mark.parametrize("constrained", [True, False])
def test_what_is_no_list_of_quotes_is_a_failure_that_keeps_the_text(text: str, constrained: bool) -> None:
    found = outcome(Candidates(constrained=constrained), doubting({HOURS: 0.5}, text=text))
    assert isinstance(found, Failure)
    assert found.code == "invalid_output"
    assert found.steps[0].result["text"] == text


def test_unconstrained_what_the_model_wrote_is_parsed_as_it_is() -> None:
    judge = Candidates(constrained=False)
    text = f" {json.dumps(json.loads(listed(HOURS)), indent=1)}\n"
    engine = doubting({HOURS: 0.7}, text=text, can=EVERYTHING - {"constraints"})
    found = verdict(judge, engine)
    assert (found.label, found.score) == ("hallucinated", pytest.approx(0.7))
    assert found.steps[0].result["constraint"] is None
    assert judge.info.needs == {"generate", "choose"}
    assert Candidates().info.needs == {"generate", "choose", "constraints"}


# --- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "first", "last"), [("reason_first", "reason", "quote"), ("quote_first", "quote", "reason")]
)
def test_the_order_is_asked_for_and_enforced(order: Any, first: str, last: str) -> None:
    judge = Candidates(order=order)
    engine = doubting({})
    verdict(judge, engine)
    request = engine.prompts[0].messages[-1].text.rpartition("Reply in JSON")[2]
    assert request.index(f'"{first}"') < request.index(f'"{last}"')
    (shape,) = engine.shapes
    parts = {"reason": '"reason":"odd"', "quote": f'"quote":"{HOURS}"'}
    assert follow(shape.grammar, f'{{"candidates":[{{{parts[first]},{parts[last]}}}]}}') == "valid"
    assert follow(shape.grammar, f'{{"candidates":[{{{parts[last]},{parts[first]}}}]}}') == "invalid"
    assert follow(shape.grammar, '{"candidates":[]}') == "valid"


def test_every_setting_of_the_schema_is_another_recipe() -> None:
    judges = [Candidates(), Candidates(order="quote_first"), Candidates(unit="sentences"), Candidates(n=4)]
    assert len({judge.info.constraint for judge in judges}) == 4
    assert len({judge.info.prompt for judge in judges}) == 1


def test_sentences_are_quoted_whole() -> None:
    part = "It closes at six"
    for unit, allowed in (("words", True), ("sentences", False)):
        found = outcome(Candidates(unit=unit), doubting({part: 0.2}))
        assert isinstance(found, Verdict) == allowed
    assert verdict(Candidates(unit="sentences"), doubting({HOURS: 0.2, f"{ENTRY} {DOGS}": 0.6})).score == (
        pytest.approx(0.6)
    )


def test_at_least_so_many_are_asked_for_and_enforced() -> None:
    judge = Candidates(n=3, least=2)
    engine = doubting({HOURS: 0.2, DOGS: 0.1})
    assert verdict(judge, engine).details["candidates"] == 2
    assert "Name 2 to 3" in engine.prompts[0].messages[-1].text
    assert isinstance(outcome(judge, doubting({HOURS: 0.2})), Failure)
    assert judge.info.constraint != Candidates(n=3).info.constraint


@pytest.mark.parametrize(
    "options",
    [
        {"n": 0},
        {"n": 21},
        {"least": 4},
        {"least": -1},
        {"threshold": 0.0},
        {"threshold": 1.0},
        {"threshold": float("nan")},
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=next(iter(options))):
        Candidates(**options)


def test_a_long_output_leaves_room_for_a_quote_and_not_for_itself_again() -> None:
    sample = replace(SAMPLE, output=" ".join(f"{HOURS} {number}" for number in range(200)))
    listing, check = Candidates().plan(sample)
    doubts = {sample.output[:159] if sample.output else "": 0.1}
    engine = doubting(doubts, context_window=3000)
    assert isinstance(outcome(Candidates(), engine, sample), Verdict)
    words = [asyncio.run(engine.count(prompt)) for prompt in engine.prompts]
    planned = [asyncio.run(engine.count(call.prompt)) + call.extra for call in (listing, check)]
    assert words[0] == planned[0] and words[1] <= planned[1] < 3000 < 2 * len((sample.output or "").split())


# --- the order of a prompt ----------------------------------------------------------------------


def test_all_steps_begin_alike_up_to_the_end_of_the_answer() -> None:
    engine = doubting({HOURS: 0.1, ENTRY: 0.1, DOGS: 0.1})
    verdict(Candidates(exhaustive=True), engine)
    beginnings = []
    for prompt in engine.prompts:
        system, user = prompt.messages
        at = user.parts.index(Data(SAMPLE.output or "", "output"))
        assert {part.name for part in user.parts[at + 1 :] if isinstance(part, Data)} <= {"statement"}
        beginnings.append((system, user.parts[: at + 1]))
    assert len(beginnings) == 4
    assert all(one == other for one, other in pairwise(beginnings))


def through_the_output(engine: LocalEngine, prompt: Prompt) -> int:
    """How many tokens a prompt has up to the end of the output."""
    length = 0
    for piece in engine.tokenizer.pieces(prompt):
        length += len(piece.tokens)
        if piece.data == "output":
            return length
    raise AssertionError("no output")


@settings(max_examples=30, deadline=None)
@given(context=st.text(min_size=1), tail=st.text())
def test_to_a_model_too_all_steps_are_one_prefix_through_the_output(
    engine: LocalEngine, context: str, tail: str
) -> None:
    """Whatever the texts are: no token spans what is shared and what is not."""
    sample = replace(SAMPLE, context=(f"c{context}",), output=f"{SAMPLE.output}{tail}")
    scripted = doubting({HOURS: 0.1, ENTRY: 0.1})
    outcome(Candidates(n=3, exhaustive=True), scripted, sample)
    tokens = [engine.tokenizer.tokens(prompt) for prompt in scripted.prompts]
    shared = through_the_output(engine, scripted.prompts[0])
    assert len(tokens) == 3
    assert all(each[:shared] == tokens[0][:shared] for each in tokens)
