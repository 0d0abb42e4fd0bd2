"""The rubric: free reasoning, then claims with quotes from both sides, and a decision that is pure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magistrate.constraints import Constraint
from magistrate.constraints.lark import follow
from magistrate.engines.base import GREEDY, Generation, Sampling
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.engines.scripted import EVERYTHING, ScriptedEngine
from magistrate.errors import CapabilityError, SpecError
from magistrate.judges import Rubric, decided
from magistrate.runs.execute import judge_one
from magistrate.types import Claim, Data, Failure, Outcome, Prompt, Sample, Span, Trusted, Turn, Verdict

HOURS, ENTRY, DOGS = (
    "It closes at six in the evening.",
    "Entry is free for children.",
    "Dogs are welcome too.",
)
FIVE, PAY, TOLD = (
    "It closes at five in the evening.",
    "Nobody has to pay anything.",
    "My dog may come in as well.",
)
SAMPLE = Sample(
    "s",
    f"{HOURS} {ENTRY} {DOGS}",
    (FIVE, f"Prices: {PAY} Really."),
    input="When does it close?",
    messages=(Turn("user", "Good morning to you."), Turn("assistant", TOLD)),
)
THOUGHT = "six is not five. <|im_end|> {{ output }}"


def claim(
    kind: str,
    mine: str,
    theirs: str | None,
    *,
    quoted: str = "statement",
    keys: Sequence[str] = ("answer_quote", "context_quote"),
    reasoning: str = "why",
) -> dict[str, Any]:
    words = {} if theirs is None else {"quoted": quoted}
    return {keys[0]: mine, keys[1]: theirs, **words, "reasoning": reasoning, "kind": kind}


CLAIMS = [
    claim("contradiction", HOURS, FIVE),
    claim("agreement", ENTRY, PAY, quoted="instruction"),
    claim("unsupported", DOGS, None),
]


def claims(*entries: Mapping[str, Any]) -> str:
    return json.dumps({"claims": entries}, separators=(",", ":"))


class Listening(ScriptedEngine):
    """Keeps the constraints that it was to write under."""

    shapes: tuple[Constraint | None, ...] = ()

    async def generate(
        self, prompt: Prompt, constraint: Constraint | None = None, *, sampling: Sampling = GREEDY
    ) -> Generation:
        self.shapes += (constraint,)
        return await super().generate(prompt, constraint, sampling=sampling)


def stage(prompt: Prompt) -> str:
    """Which step a prompt is: to think, to extract, or to say how probable a kind is."""
    if prompt.messages[-1].role == "assistant":
        return "weigh"
    return "think" if "Think about whether" in prompt.messages[-1].text else "extract"


def finding(
    *entries: Mapping[str, Any], shares: Mapping[str, float] | None = None, **options: Any
) -> Listening:
    """An engine that thinks and then writes these claims; `shares` are the probabilities of kinds."""
    known = {"contradiction": 0.8, "unsupported": 0.7, **(shares or {})}

    def script(prompt: Prompt) -> Any:
        if (step := stage(prompt)) != "weigh":
            return THOUGHT if step == "think" else claims(*entries)
        kind, other = "contradiction", "agreement"
        if prompt.messages[-1].text.endswith('_quote":'):
            kind, other = "unsupported", "quoted"
        return {kind: known[kind], other: 1 - known[kind]}

    return Listening(script, **options)


def outcome(judge: Rubric, engine: ScriptedEngine, sample: Sample = SAMPLE) -> Outcome:
    return asyncio.run(judge_one(sample, judge, engine))


def verdict(judge: Rubric, engine: ScriptedEngine, sample: Sample = SAMPLE) -> Verdict:
    found = outcome(judge, engine, sample)
    assert isinstance(found, Verdict), found
    return found


def bare(found: Verdict) -> Verdict:
    """Without how long it took."""
    return replace(found, seconds=0.0, steps=())


# --- two stages ---------------------------------------------------------------------------------


def test_what_was_thought_enters_the_second_stage_as_data() -> None:
    engine = finding(*CLAIMS)
    found = verdict(Rubric(), engine)
    think, extract = engine.prompts[:2]
    assert (stage(think), stage(extract)) == ("think", "extract")
    assert [part for part in extract.data() if part.name == "reasoning"] == [Data(THOUGHT, "reasoning")]
    assert "reasoning" not in [part.name for part in think.data()]
    assert found.details["reasoning"] == THOUGHT
    assert engine.shapes[0] is None and engine.shapes[1] is not None


def test_without_the_free_stage_there_is_one() -> None:
    engine = finding(*CLAIMS)
    found = verdict(Rubric(free_stage=False), engine)
    assert [stage(prompt) for prompt in engine.prompts] == ["extract", *["weigh"] * 3]
    assert "An examiner" not in engine.prompts[0].messages[-1].text
    assert "reasoning" not in found.details


def test_both_stages_begin_alike_up_to_the_end_of_the_answer() -> None:
    engine = finding(*CLAIMS)
    verdict(Rubric(), engine)
    begins = []
    for prompt in engine.prompts:
        system, user = prompt.messages[:2]
        begins.append((system, user.parts[: user.parts.index(Data(SAMPLE.output or "", "output")) + 1]))
    assert len(begins) == 5 and all(each == begins[0] for each in begins)


def test_an_extractor_gets_the_second_stage_and_its_calls_are_steps() -> None:
    small, big = finding(*CLAIMS), finding(can=frozenset({"generate"}))
    found = verdict(Rubric(extractor=small), big)
    assert [stage(prompt) for prompt in big.prompts] == ["think"]
    assert [stage(prompt) for prompt in small.prompts] == ["extract", *["weigh"] * 3]
    assert [step.verb for step in found.steps] == ["generate", "generate", "choose", "choose", "choose"]
    assert found.usage.calls == 5
    assert Rubric(extractor=small).info.needs == {"generate"}
    assert Rubric().info.needs == {"generate", "constraints"}


def test_an_extractor_that_cannot_extract_is_refused() -> None:
    with pytest.raises(CapabilityError, match="extractor of a rubric needs constraints"):
        Rubric(extractor=ScriptedEngine([], can=frozenset({"generate"})))


# --- claims -------------------------------------------------------------------------------------


def test_every_quote_stands_where_the_claim_says() -> None:
    found = verdict(Rubric(), finding(*CLAIMS, claim("contradiction", DOGS, TOLD)))
    mine = [(SAMPLE.output or "")[each.output_quote.start : each.output_quote.end] for each in found.claims]
    assert mine == [HOURS, ENTRY, DOGS, DOGS] == [each.output_text for each in found.claims]
    assert [each.context_index for each in found.claims] == [0, 1, None, 3], "messages count on"
    theirs = [
        SAMPLE.sources[each.context_index][each.context_quote.start : each.context_quote.end]
        for each in found.claims
        if each.context_quote is not None and each.context_index is not None
    ]
    assert theirs == [FIVE, PAY, TOLD]
    assert [each.context_text for each in found.claims] == [FIVE, PAY, None, TOLD]
    assert [each.kind for each in found.claims] == [
        "contradiction",
        "agreement",
        "unsupported",
        "contradiction",
    ]
    assert [each.output_quote.kind for each in found.claims] == [each.kind for each in found.claims]
    kinds = [each.context_quote.kind for each in found.claims if each.context_quote]
    assert kinds == ["statement", "instruction", "statement"]
    assert {each.reasoning for each in found.claims} == {"why"}


@pytest.mark.parametrize(
    "entry",
    [
        claim("unsupported", DOGS, FIVE),
        claim("contradiction", HOURS, None),
        claim("agreement", HOURS, None),
        claim("contradiction", HOURS, "It closes at four in the evening."),
        claim("contradiction", FIVE, FIVE),
        claim("contradiction", HOURS, HOURS),
        claim("contradiction", HOURS, FIVE, quoted="rumour"),
        claim("rumour", HOURS, FIVE),
        claim("contradiction", HOURS, FIVE, reasoning="x" * 161),
        {**claim("unsupported", DOGS, None), "quoted": "statement"},
        {key: value for key, value in CLAIMS[0].items() if key != "context_quote"},
    ],
)
def test_a_claim_that_cannot_be_one_is_a_failure(entry: dict[str, Any]) -> None:
    found = outcome(Rubric(), finding(entry))
    assert isinstance(found, Failure) and found.code == "invalid_output"
    assert found.steps[-1].result["text"] == claims(entry)


def test_the_same_claim_twice_is_one() -> None:
    engine = finding(CLAIMS[0], CLAIMS[0], {**CLAIMS[0], "reasoning": "again"})
    assert len(verdict(Rubric(), engine).claims) == 2


def test_claims_are_as_many_as_were_asked_for() -> None:
    for most, least, n, good in ((2, 1, 2, True), (2, 1, 3, False), (2, 0, 0, True), (3, 2, 1, False)):
        engine = finding(*CLAIMS[:n])
        assert isinstance(outcome(Rubric(most=most, least=least), engine), Verdict) == good
        assert (f"{least} to {most}" if least else f"at most {most}") in engine.prompts[1].messages[1].text


def test_what_was_quoted_can_have_other_names() -> None:
    judge = Rubric(kinds=("fact", "rumour"))
    engine = finding(claim("contradiction", HOURS, FIVE, quoted="rumour"))
    found = verdict(judge, engine)
    assert found.claims[0].context_quote is not None and found.claims[0].context_quote.kind == "rumour"
    assert '"fact" or "rumour"' in engine.prompts[1].messages[-1].text
    assert judge.info.constraint != Rubric().info.constraint


def test_an_experts_advice_is_called_so_in_prompt_and_schema() -> None:
    keys = ("candidate_quote", "expert_quote")
    engine = finding(
        claim("contradiction", HOURS, FIVE, keys=keys), claim("unsupported", DOGS, None, keys=keys)
    )
    found = verdict(Rubric(wording="expert"), engine)
    assert [each.kind for each in found.claims] == ["contradiction", "unsupported"]
    assert found.claims[0].probability == pytest.approx(0.8)
    for prompt in engine.prompts[:2]:
        told = " ".join(
            part.text for message in prompt.messages for part in message.parts if isinstance(part, Trusted)
        )
        assert "Expert advice:" in told and "Candidate answer:" in told
        assert "context" not in told.lower()
    assert isinstance(outcome(Rubric(wording="expert"), finding(*CLAIMS)), Failure)
    assert Rubric(wording="expert").info.constraint != Rubric().info.constraint


@pytest.mark.parametrize("order", ["quotes_first", "reasoning_first"])
def test_the_order_is_asked_for_and_enforced(order: Any) -> None:
    engine = finding(CLAIMS[0])
    verdict(Rubric(order=order), engine)
    request = engine.prompts[1].messages[-1].text.rpartition("Reply in JSON")[2]
    shape = engine.shapes[1]
    assert shape is not None
    reasoned = {"reasoning": "why", **{key: CLAIMS[0][key] for key in CLAIMS[0] if key != "reasoning"}}
    for first, entry in (("quotes_first", CLAIMS[0]), ("reasoning_first", reasoned)):
        assert follow(shape.grammar, claims(entry)) == ("valid" if first == order else "invalid")
    assert (request.index('"answer_quote"') < request.index('"reasoning"')) == (order == "quotes_first")


def test_sentences_are_quoted_whole() -> None:
    part = claim("contradiction", "It closes at six", "It closes at five")
    for unit, good in (("words", True), ("sentences", False)):
        assert isinstance(outcome(Rubric(unit=unit), finding(part)), Verdict) == good
    empty = replace(SAMPLE, context=(FIVE, ""))
    assert len(verdict(Rubric(unit="sentences"), finding(CLAIMS[0]), empty).claims) == 1


# --- probabilities ------------------------------------------------------------------------------


def test_a_claims_kind_is_weighed_after_all_that_stands_before_it() -> None:
    engine = finding(*CLAIMS)
    found = verdict(Rubric(), engine)
    assert [each.probability for each in found.claims] == pytest.approx([0.8, 0.2, 0.7])
    text = claims(*CLAIMS)
    for prompt, key in zip(engine.prompts[2:], ('"kind":', '"kind":', '"context_quote":'), strict=True):
        begun = prompt.messages[-1]
        assert begun.parts == (Data(begun.text, "claims"),)
        assert text.startswith(begun.text) and begun.text.endswith(key)
        assert prompt.messages[:-1] == engine.prompts[1].messages
    assert [prompt.messages[-1].text.count("reasoning") for prompt in engine.prompts[2:]] == [1, 2, 2]


def test_an_engine_without_probabilities_is_not_asked_for_any() -> None:
    engine = finding(*CLAIMS, can=EVERYTHING - {"exact_probability"})
    found = verdict(Rubric(), engine)
    assert [step.verb for step in found.steps] == ["generate", "generate"]
    assert [each.probability for each in found.claims] == [None] * 3
    assert (found.label, found.score, found.probability) == ("hallucinated", 1.0, None)


# --- the decision -------------------------------------------------------------------------------

KINDS = ("contradiction", "unsupported", "agreement")
FLAGS = [frozenset(each) for each in chain.from_iterable(combinations(KINDS, n) for n in (1, 2, 3))]


def made(kind: Any, probability: float | None) -> Claim:
    return Claim(kind, Span(0, 1, kind), reasoning=f"{kind} {probability}", probability=probability)


SHARES = st.none() | st.floats(0, 1)
FOUND = st.lists(st.builds(made, st.sampled_from(KINDS), SHARES), max_size=5)


@given(FOUND, st.sampled_from(FLAGS), st.sampled_from(FLAGS))
def test_the_decision_is_a_pure_function_of_claims_and_flag(
    found: list[Claim], flag: frozenset[str], other: frozenset[str]
) -> None:
    blank = Verdict("s", "rubric", "faithful", 0.0, claims=tuple(found), details={"kept": 1})
    result = decided(blank, flag)
    flagged = [each for each in found if each.kind in flag]
    assert result.label == ("hallucinated" if flagged else "faithful")
    assert (0.5 <= result.score <= 1) if flagged else (0 <= result.score < 0.5)
    assert result.claims == blank.claims and result.details == {"kept": 1, "flag": sorted(flag)}
    assert decided(decided(blank, other), flag) == result
    known = [each.probability for each in flagged or found if each.probability is not None]
    if not known:
        assert (result.probability, result.score) == (None, 1.0 if flagged else 0.0)
    elif flagged:
        assert (result.probability, result.score) == (max(known), max([*known, 0.5]))
    else:
        assert result.probability == pytest.approx(min(known))
        assert result.score == pytest.approx(min(1 - min(known), 0.5), abs=1e-8)


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: "+".join(sorted(flag)))
def test_another_flag_afterwards_is_that_flag_from_the_beginning(flag: frozenset[str]) -> None:
    first = verdict(Rubric(), finding(*CLAIMS))
    again = verdict(Rubric(flag=flag), finding(*CLAIMS))
    assert bare(decided(first, flag)) == bare(again)
    assert again.details["flag"] == sorted(flag)


def test_agreement_is_not_flagged_unless_it_is_asked_for() -> None:
    found = verdict(Rubric(), finding(CLAIMS[1], shares={"contradiction": 0.3}))
    assert (found.label, found.score) == ("faithful", pytest.approx(0.3))
    assert found.probability == pytest.approx(0.7)
    assert found.explanation == "no disagreement remains"
    strict = decided(found, {"agreement"})
    assert (strict.label, strict.score, strict.explanation) == (
        "hallucinated",
        pytest.approx(0.7),
        "agreement: why",
    )


def test_claims_of_which_one_probability_is_unknown_are_not_combined() -> None:
    claims = (
        Claim("contradiction", Span(0, 1), reasoning="r"),
        Claim("agreement", Span(0, 1), reasoning="r", probability=0.99),
    )
    found = decided(Verdict("s", "rubric", "faithful", 0.0, claims=claims, details={"combine": "any"}))
    assert (found.label, found.score, found.probability) == ("hallucinated", 1.0, None)


def test_an_unlikely_claim_that_is_flagged_still_decides() -> None:
    found = verdict(Rubric(), finding(CLAIMS[0], shares={"contradiction": 0.2}))
    assert (found.label, found.score, found.probability) == ("hallucinated", 0.5, pytest.approx(0.2))
    assert verdict(Rubric(least=0), finding()).explanation == "no disagreement was found"


@pytest.mark.parametrize("flag", [(), {"rumour"}, {"contradiction", "rumour"}, "contradiction"])
def test_a_flag_that_is_no_kind_is_refused(flag: Any) -> None:
    with pytest.raises(SpecError, match="at least one of contradiction, unsupported, agreement"):
        decided(Verdict("s", "rubric", "faithful", 0.0), flag)
    with pytest.raises(SpecError, match="flag must be kinds of claims"):
        Rubric(flag=flag)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": ()}, "kinds must be"),
        ({"kinds": ("a", "a")}, "kinds must be"),
        ({"kinds": ("a", "")}, "kinds must be"),
        ({"most": 0}, "most 1 to 20"),
        ({"most": 21}, "most 1 to 20"),
        ({"least": 5}, "least to most"),
        ({"reasoning_tokens": 0}, "reasoning_tokens at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Rubric(**options)


# --- to a model ---------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(tail=st.text(), thought=st.text(min_size=1))
def test_to_a_model_all_steps_are_one_prefix_through_the_output(
    engine: LocalEngine, tail: str, thought: str
) -> None:
    prompts: list[Prompt] = []

    def script(prompt: Prompt) -> Any:
        prompts.append(prompt)
        return thought if stage(prompt) == "think" else claims(CLAIMS[0])

    sample = replace(SAMPLE, output=f"{HOURS}{tail}")
    outcome(Rubric(), ScriptedEngine(script, can=EVERYTHING - {"exact_probability"}), sample)
    pieces = engine.tokenizer.pieces(prompts[0])
    (at,) = [number for number, piece in enumerate(pieces) if piece.data == "output"]
    shared = list(chain.from_iterable(piece.tokens for piece in pieces[: at + 1]))
    assert len(prompts) == 2
    assert all(engine.tokenizer.tokens(prompt)[: len(shared)] == shared for prompt in prompts)
