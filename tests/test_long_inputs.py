"""Inputs that do not fit a model: refused unasked, or judged in windows or by their best passages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magistrate.constraints import Constraint
from magistrate.engines.base import GREEDY, Choice, Engine, EngineInfo, Generation, Option, Sampling
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import SpecError
from magistrate.judges import Candidates, Judge, JudgeInfo, Passages, Rubric, Windows, classifier, instance
from magistrate.judges.base import SPECIALS, planned_calls, shortage
from magistrate.judges.registry import judge as named
from magistrate.runs.execute import judge_one
from magistrate.types import Abstention, Data, Message, Outcome, Prompt, Sample, Trusted, Turn, Verdict

FAITHFULNESS: Any = instance("faithfulness")
SENTENCES = [f"Room {number} closes at five." for number in range(40)]
CONTEXT = (" ".join(SENTENCES[:25]), " ".join(SENTENCES[25:]))
SAMPLE = Sample(
    "s", "Room 7 closes at six in the evening.", CONTEXT, input="When?", messages=(Turn("user", "Good day."),)
)
LONG = " ".join(["word"] * 5000)
YES = {"faithful": 0.9, "hallucinated": 0.1}


def words(prompt: Prompt) -> int:
    return asyncio.run(ScriptedEngine([]).count(prompt))


def contexts(prompt: Prompt) -> list[str]:
    return [part.text for part in prompt.data() if part.name == "context"]


def ink(*texts: str) -> str:
    return "".join("".join(text.split()) for text in texts)


def room_for(n: int, judge: Judge = FAITHFULNESS, sample: Sample = SAMPLE) -> int:
    """A limit that leaves room for n words of context."""
    calls = planned_calls(judge, replace(sample, context=()))
    return max(words(call.prompt) + call.answer + call.extra for call in calls) + n


def outcome(judge: Judge, engine: Engine, sample: Sample = SAMPLE) -> Outcome:
    return asyncio.run(judge_one(sample, judge, engine))


def verdict(judge: Judge, engine: Engine, sample: Sample = SAMPLE) -> Verdict:
    found = outcome(judge, engine, sample)
    assert isinstance(found, Verdict), found
    return found


def refused(judge: Judge, engine: ScriptedEngine, sample: Sample = SAMPLE) -> str:
    """What the judge says of a sample that is too long; it has asked nothing."""
    found = outcome(judge, engine, sample)
    assert isinstance(found, Abstention), found
    assert (found.reason, found.judge, found.usage.calls, engine.prompts) == (
        "over_length",
        judge.info.name,
        0,
        [],
    )
    return found.message


# --- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        "faithfulness",
        "faithfulness:explain=before",
        "faithfulness:explain=after",
        "faithfulness:prior=empty_context,permute=true",
        "hallucination",
        "candidates",
        "rubric",
        "rubric:free_stage=false",
        "sentences",
        "moderation",
        "relevance",
        "context_relevance",
    ],
)
def test_what_does_not_fit_is_known_before_anything_is_asked(spec: str) -> None:
    sample = replace(SAMPLE, output=LONG, context=(LONG,), input=LONG)
    message = refused(named(spec), ScriptedEngine([], context_window=4000), sample)
    assert (
        "is 4,000" in message
        and "context window of script" in message
        and "The model was not asked" in message
    )
    assert "windows:of=NAME" in message


def test_the_message_counts_what_it_takes() -> None:
    takes = room_for(0) - 1 + words(Prompt.of(" ".join(CONTEXT))) + 2
    engine = ScriptedEngine([YES, YES], context_window=takes)
    assert f"a call needs {takes} tokens and 1 for its answer" in refused(FAITHFULNESS, engine)
    assert f"is {takes}" in refused(FAITHFULNESS, engine)
    assert isinstance(outcome(FAITHFULNESS, ScriptedEngine([YES], context_window=takes + 1)), Verdict)


TERSE = classifier(
    "terse", "{{ output }} {{ reply }}", {"faithful": 0, "hallucinated": 1}, explain="after"
)  # what an explanation is read again with is longer than this


@pytest.mark.parametrize(
    "judge",
    [Rubric(), Rubric(least=4, reasoning_tokens=64), TERSE],
    ids=["as it comes", "at least four", "an explanation after"],
)
def test_nothing_is_asked_where_only_a_later_step_does_not_fit(judge: Judge) -> None:
    first, *_, last = (words(call.prompt) + call.answer + call.extra for call in planned_calls(judge, SAMPLE))
    assert first < last
    for window in (first, last - 1):
        refused(judge, ScriptedEngine([], context_window=window))
    asked = ScriptedEngine(["x", "x"], context_window=last)
    assert not isinstance(outcome(judge, asked), Abstention)
    assert asked.prompts


def test_nothing_is_asked_where_only_the_extractor_is_too_small() -> None:
    big, small = ScriptedEngine([]), ScriptedEngine([], context_window=500)
    refused(Rubric(extractor=small), big)
    assert small.prompts == []


def test_nothing_is_asked_where_only_one_sentence_is_too_long() -> None:
    sample = replace(SAMPLE, output=f"One. {LONG}. Three.")
    refused(named("sentences"), ScriptedEngine([], context_window=1000), sample)


PARTS = st.lists(st.builds(Trusted, st.text()) | st.builds(Data, st.text()), max_size=3).map(tuple)


@settings(max_examples=50, deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=3))
def test_a_prompt_has_no_more_tokens_than_are_reckoned_without_counting(
    engine: LocalEngine, parts: list[Any]
) -> None:
    prompt = Prompt(tuple(Message("user", each) for each in parts))
    bytes_of = sum(len(message.text.encode("utf-8", "replace")) for message in prompt.messages)
    assert len(engine.tokenizer.tokens(prompt)) <= bytes_of + SPECIALS * (len(parts) + 1)


def test_a_long_prompt_is_counted_by_the_models_own_tokenizer(engine: LocalEngine) -> None:
    sample = replace(SAMPLE, context=(LONG, LONG))
    short = asyncio.run(shortage(FAITHFULNESS, sample, engine))
    (call,) = planned_calls(FAITHFULNESS, sample)
    takes = len(engine.tokenizer.tokens(call.prompt))
    assert takes > engine.info.context_window
    assert short is not None and f"a call needs {takes:,} tokens" in short


# --- windows ------------------------------------------------------------------------------------


def in_windows(n: int, **options: Any) -> tuple[Verdict, list[list[str]]]:
    """The verdict over windows of n words, and the context of each."""
    limit = room_for(n)
    engine = ScriptedEngine(lambda prompt: YES)
    found = verdict(Windows(FAITHFULNESS, tokens=limit, **options), engine)
    assert all(words(prompt) < limit for prompt in engine.prompts)
    assert {part for prompt in engine.prompts for part in prompt.data() if part.name != "context"} == {
        Data("user: Good day.", "messages"),
        Data("When?", "input"),
        Data(SAMPLE.output or "", "output"),
    }
    return found, [contexts(prompt) for prompt in engine.prompts]


@pytest.mark.parametrize("n", [8, 20, 37, 60, 150])
@pytest.mark.parametrize("overlap", [0, 1, 2, 100])
def test_windows_fit_and_together_they_hold_every_sentence(n: int, overlap: int) -> None:
    found, windows = in_windows(n, overlap=overlap)
    held = [[each for each in SENTENCES if each in " ".join(window)] for window in windows]
    assert [each for each in SENTENCES if any(each in one for one in held)] == SENTENCES
    assert all(ink(*window) == ink(*one) for window, one in zip(windows, held, strict=True)), (
        "whole sentences"
    )
    assert len(windows) == len(found.details["windows"]) > 1
    for before, after in pairwise(held):
        repeated = [each for each in after if each in before]
        assert repeated == before[len(before) - len(repeated) :]
        assert len(repeated) == min(overlap, len(before)) or len(after) == len(repeated) + 1 <= overlap


def test_there_are_no_more_windows_than_needed() -> None:
    """Of twelve sentences each, with one of the window before."""
    _, windows = in_windows(12 * 5 + 2, overlap=1)
    assert [ink(*window).count("Room") for window in windows] == [12, 12, 12, 7]


def test_the_whole_context_is_judged_at_once_where_it_fits() -> None:
    plain, engine = verdict(FAITHFULNESS, ScriptedEngine([YES])), ScriptedEngine([YES])
    found = verdict(Windows(FAITHFULNESS), engine)
    assert contexts(engine.prompts[0]) == list(CONTEXT)
    assert (found.score, found.details) == (plain.score, plain.details)
    assert found.judge == "windows"


def scores_by_window(prompt: Prompt) -> dict[str, float]:
    p = 0.1 if "Room 7 closes" in " ".join(contexts(prompt)) else 0.6
    return {"faithful": 1 - p, "hallucinated": p}


@pytest.mark.parametrize(
    ("aggregate", "score", "probability"),
    [("all", 0.1, 0.9), ("any", 0.6, 0.6), ("mean", 0.35, None), ("noisy_or", 0.64, None)],
)
def test_one_score_of_the_windows(aggregate: Any, score: float, probability: float | None) -> None:
    context = (" ".join(SENTENCES[:8]), " ".join(SENTENCES[10:18]))
    sample = replace(SAMPLE, context=context)
    judge = Windows(FAITHFULNESS, aggregate=aggregate, tokens=room_for(8 * 5 + 1), overlap=0)
    found = verdict(judge, ScriptedEngine(scores_by_window), sample)
    assert found.details["windows"] == pytest.approx([0.1, 0.6])
    assert found.details["aggregate"] == aggregate
    assert found.score == pytest.approx(score)
    assert found.label == ("hallucinated" if score >= 0.5 else "faithful")
    assert found.probability == (None if probability is None else pytest.approx(probability))


@pytest.mark.parametrize(("name", "score"), [("faithfulness", 0.1), ("context_relevance", 0.6)])
def test_the_best_window_is_the_one_that_speaks_for_the_sample(name: str, score: float) -> None:
    """The lowest score where a low one is good, the highest where a high one is."""
    inner = instance(name)
    judge = Windows(inner, tokens=room_for(8 * 5 + 1, inner), overlap=0)
    sample = replace(SAMPLE, context=(" ".join(SENTENCES[:8]), " ".join(SENTENCES[10:18])))

    def script(prompt: Prompt) -> dict[str, float]:
        low = scores_by_window(prompt)["hallucinated"]
        return {"faithful": 1 - low, "hallucinated": low, "relevant": low, "irrelevant": 1 - low}

    found = verdict(judge, ScriptedEngine(script), sample)
    assert found.score == pytest.approx(score)
    assert found.details["windows"] == pytest.approx([0.1, 0.6])


@pytest.mark.parametrize("aggregate", ["all", "any", "mean"])
def test_quotes_come_back_to_where_they_stand_in_the_context(aggregate: Any) -> None:
    rubric = Rubric(free_stage=False, least=0)
    wanted = {"Room 7 closes at five.": 0, "Room 31 closes at five.": 1, "Good day to you, sir.": 2}

    def script(prompt: Prompt) -> str:
        told = {"quoted": "statement", "reasoning": "why", "kind": "contradiction"}
        shown = prompt.messages[1].text
        entries = [
            {"answer_quote": "Room 7 closes at six", "context_quote": quote, **told}
            for quote in wanted
            if quote in shown
        ]
        return json.dumps({"claims": entries})

    sample = replace(SAMPLE, messages=(Turn("user", "Good day to you, sir."),))
    engine = ScriptedEngine(script, can=frozenset({"generate", "constraints"}))
    judge = Windows(rubric, aggregate=aggregate, tokens=room_for(70, rubric, sample))
    found = verdict(judge, engine, sample)
    assert len(engine.prompts) > 2 and len(found.claims) >= 1
    quotes = set()
    for claim in found.claims:
        assert claim.context_quote is not None and claim.context_index is not None
        text = sample.sources[claim.context_index]
        quotes.add(text[claim.context_quote.start : claim.context_quote.end])
        assert wanted[text[claim.context_quote.start : claim.context_quote.end]] == claim.context_index
    assert aggregate != "mean" or quotes == set(wanted)


def test_a_sentence_longer_than_a_window_is_cut_between_words() -> None:
    text = " ".join(f"word{number}" for number in range(200))
    engine = ScriptedEngine(lambda prompt: YES)
    judge = Windows(FAITHFULNESS, tokens=room_for(30), overlap=0)
    verdict(judge, engine, replace(SAMPLE, context=(text,)))
    pieces = [piece for prompt in engine.prompts for piece in contexts(prompt)]
    assert " ".join(pieces) == text
    assert len(pieces) >= 200 / 30


@pytest.mark.parametrize("kind", [Windows, Passages])
def test_an_output_that_does_not_fit_is_refused(kind: Callable[..., Judge]) -> None:
    message = refused(
        kind(FAITHFULNESS), ScriptedEngine([], context_window=4000), replace(SAMPLE, output=LONG)
    )
    assert ("even without its context" in message) == (kind is Windows)
    assert "windows:of" not in message


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("kind", [Windows, Passages])
def test_where_there_is_no_room_for_any_context_it_is_refused(kind: Callable[..., Judge], n: int) -> None:
    for context in (CONTEXT, ("x",), ("a b",)):
        refused(kind(FAITHFULNESS, tokens=room_for(n)), ScriptedEngine([]), replace(SAMPLE, context=context))


CHARACTERS = st.text(alphabet="ab.!?\n  \u2028é日。”😀\u0301")


@given(st.lists(CHARACTERS, min_size=1, max_size=3), st.integers(2, 12))
def test_windows_together_are_the_whole_context(texts: list[str], n: int) -> None:
    sample = replace(SAMPLE, context=tuple(texts))
    for overlap in (0, 1):
        engine = ScriptedEngine(lambda prompt: YES)
        outcome(Windows(FAITHFULNESS, tokens=room_for(n), overlap=overlap), engine, sample)
        shown = [contexts(prompt) for prompt in engine.prompts]
        together = ink(*(text for window in shown for text in window))
        assert together == ink(*texts) if overlap == 0 else len(together) >= len(ink(*texts))
        assert len(shown) == 1 or all(window and all(map(str.strip, window)) for window in shown)


# --- passages -----------------------------------------------------------------------------------

FILLER = [f"Line {number} says nothing that matters to anybody here today." for number in range(60)]
DOGS, CATS = "Dogs have to wait outside at all times.", "Cats may come in on Sundays."
MIXED = (" ".join([*FILLER[:20], DOGS, *FILLER[20:30]]), " ".join([*FILLER[30:45], CATS, *FILLER[45:]]))
ABOUT = replace(SAMPLE, output="Cats and dogs may come in on Sundays.", context=MIXED)


def test_the_most_relevant_passages_are_kept_in_their_order() -> None:
    engine = ScriptedEngine([YES])
    found = verdict(Passages(FAITHFULNESS, tokens=room_for(260, sample=ABOUT)), engine, ABOUT)
    (prompt,) = engine.prompts
    shown = contexts(prompt)
    assert DOGS in shown[0] and CATS in shown[-1]
    assert words(prompt) < room_for(260, sample=ABOUT)
    pieces = [MIXED[index][start:end] for index, start, end in found.details["passages"]]
    assert pieces == shown and found.details["passages"] == sorted(found.details["passages"])
    assert found.details["characters_left_out"] == len(ink(*MIXED)) - len(ink(*shown)) > 0


def test_more_room_holds_more_of_the_context() -> None:
    left = []
    for n in (150, 200, 300, 400, 500):
        found = verdict(
            Passages(FAITHFULNESS, tokens=room_for(n, sample=ABOUT)), ScriptedEngine([YES]), ABOUT
        )
        left.append(found.details["characters_left_out"])
    assert left == sorted(left, reverse=True) and len(set(left)) > 2


def test_where_it_fits_the_whole_context_is_used_and_nothing_said_of_it() -> None:
    engine = ScriptedEngine([YES])
    found = verdict(Passages(FAITHFULNESS), engine, ABOUT)
    assert contexts(engine.prompts[0]) == list(MIXED)
    assert found.details == {"method": "exact"}


def test_quotes_come_back_from_passages_too() -> None:
    rubric = Rubric(free_stage=False)
    told = {"quoted": "statement", "reasoning": "why", "kind": "contradiction"}
    entry = {"answer_quote": "Cats and dogs may", "context_quote": CATS, **told}
    engine = ScriptedEngine([json.dumps({"claims": [entry]})], can=frozenset({"generate", "constraints"}))
    found = verdict(Passages(rubric, tokens=room_for(260, rubric, ABOUT)), engine, ABOUT)
    (claim,) = found.claims
    assert claim.context_quote is not None and claim.context_index == 1
    assert MIXED[1][claim.context_quote.start : claim.context_quote.end] == CATS


# --- settings -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planless:
    """A judge that does not say what it will ask."""

    @property
    def info(self) -> JudgeInfo:
        return JudgeInfo("planless")

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        return Verdict(sample.id, "planless", "faithful", 0.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Windows(Planless()), "'planless' does not plan its calls"),
        (lambda: Passages(Planless()), "'planless' does not plan its calls"),
        (lambda: Windows(FAITHFULNESS, tokens=-1), "must not be negative"),
        (lambda: Windows(FAITHFULNESS, overlap=-1), "must not be negative"),
        (lambda: Passages(FAITHFULNESS, tokens=-1), "must not be negative"),
        (lambda: Windows(instance("relevance"), aggregate="mean"), "aggregate=mean needs a judge"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Callable[[], Judge], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()


def test_they_say_what_they_do_with_what_does_not_fit() -> None:
    assert FAITHFULNESS.info.long == "refuse"
    assert Windows(FAITHFULNESS, tokens=500).info.long == "windows of 500 tokens, best"
    assert Passages(FAITHFULNESS).info.long == "most relevant passages, as many as fit"
    for judge in (Windows(FAITHFULNESS), Passages(FAITHFULNESS)):
        assert judge.info.prompt == FAITHFULNESS.info.prompt


# --- what is computed twice ---------------------------------------------------------------------

REMAINDER = 16  # tokens of a step: what steps that run together have in common may be computed by each
REST = 64  # tokens of a step: what stands behind the output, and what was written before


class Dictated:
    """A real engine whose words are given to it: it computes a prompt as ever and then writes this text."""

    def __init__(self, engine: LocalEngine, text: str | None) -> None:
        self._engine, self._text = engine, text
        self.prompts: list[Prompt] = []

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    async def count(self, prompt: Prompt) -> int:
        return await self._engine.count(prompt)

    async def generate(
        self, prompt: Prompt, constraint: Constraint | None = None, *, sampling: Sampling = GREEDY
    ) -> Generation:
        self.prompts.append(prompt)
        if self._text is None or constraint is None:
            return await self._engine.generate(prompt, constraint, sampling=sampling)
        answer = await self._engine.generate(prompt, sampling=Sampling(max_tokens=1))
        return replace(answer, text=self._text, value=constraint.parse(self._text))

    async def choose(self, prompt: Prompt, options: Sequence[Option], **others: Any) -> Choice:
        self.prompts.append(prompt)
        return await self._engine.choose(prompt, options)


OPEN = "The museum closes at six in the evening.", "Entry is free for children.", "Dogs are welcome too."
LISTED = json.dumps({"candidates": [{"reason": "odd", "quote": quote} for quote in OPEN]})


@pytest.mark.full
@pytest.mark.parametrize(
    ("title", "judge", "text", "calls"),
    [
        ("Together", Candidates(exhaustive=True), LISTED, 4),
        ("One by one", Candidates(threshold=0.99), LISTED, 4),
        ("Rubric", Rubric(most=1, reasoning_tokens=24), None, 3),
        ("Sentences", named("sentences"), None, 3),
        ("Orders", named("faithfulness:permute=true"), None, 2),
        ("Explained", named("faithfulness:explain=before"), None, 2),
    ],
)
def test_a_sample_is_computed_once_for_all_steps(
    title: str, judge: Judge, text: str | None, calls: int, engine: LocalEngine
) -> None:
    """What steps have in common, and it is most of them, is not computed again."""
    page = "".join(f"{title}: the museum closes at five, says page {number}. " for number in range(20))
    sample = Sample("s", " ".join(OPEN), (page,), input="When does it close?")
    dictated = Dictated(engine, text)
    found = verdict(judge, dictated, sample)
    prompts = [engine.tokenizer.tokens(prompt) for prompt in dictated.prompts]
    distinct = {tuple(tokens[:end]) for tokens in prompts for end in range(1, len(tokens) + 1)}
    assert found.usage.calls == len(prompts) == calls
    assert found.usage.prompt == sum(map(len, prompts))
    assert found.usage.prompt - found.usage.cached <= len(distinct) + REMAINDER * calls
    assert found.usage.prompt - found.usage.cached <= max(map(len, prompts)) + REST * (calls - 1)
