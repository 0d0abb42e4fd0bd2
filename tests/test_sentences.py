"""Texts cut into sentences and passages, which of these matter, and the judge that goes by sentences."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magistrate.engines.base import Engine
from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import EngineError, SpecError
from magistrate.features.splitting import PASSAGE, Piece, Ranking, merged, passages, sentences, units
from magistrate.judges import Judge, JudgeInfo, Rubric, Sentences, instance
from magistrate.judges.composite import aggregated
from magistrate.runs.execute import judge_one
from magistrate.types import Abstention, AbstentionReason, Failure, Outcome, Prompt, Sample, Verdict

# --- sentences ----------------------------------------------------------------------------------


def split(text: str, language: str = "en") -> list[str]:
    return [text[start:end] for start, end in sentences(text, language)]


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("en", ["Dr. Smith came at 3.5 p.m. today!", '"Really?" she said.', "Yes."]),
        ("en", ["It costs $3.50 at example.com, e.g. online.", "Is that so?!", "Yes…"]),
        ("de", ["Er kam z.B. um 3 Uhr.", "Dann ging er am 1. Mai."]),
        ("fr", ["C’est l’été.", "Où est-il ?", "Ici !"]),
        ("ja", ["今日は晴れです。", "明日は「雨」です。", "本当？"]),
        ("zh", ["你好。", "他来了！", "真的吗？"]),
        ("hi", ["वह आया।", "वह गया।"]),
        ("ar", ["جاء الرجل.", "هل ذهب؟", "نعم."]),
        ("xx", ["An unknown language.", "It works."]),
    ],
)
def test_sentences_of_many_languages(language: str, expected: list[str]) -> None:
    between = "" if language in ("ja", "zh") else " "
    assert split(between.join(expected), language) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \r\n\t\u2028 ", []),
        ("no end", ["no end"]),
        ("  One. Two.  ", ["One.", "Two."]),
        ("A heading\nA line\r\n\r\n\r\nAnother. Last", ["A heading", "A line", "Another.", "Last"]),
        ("Sun 😀. Rain 👨‍👩‍👧 fell! e\u0301te.", ["Sun 😀.", "Rain 👨‍👩‍👧 fell!", "e\u0301te."]),
        ("Half \ud83d a pair. Then \udc00 more.", ["Half \ud83d a pair.", "Then \udc00 more."]),
        ("- one\n- two", ["- one", "- two"]),
        ("...", ["..."]),
    ],
)
def test_offsets_are_right_whatever_stands_there(text: str, expected: list[str]) -> None:
    assert split(text) == expected


STRANGE = "aB1 .!?…。\n\r\"'”)([«»😀\ud83d\u2028\u00a0é\u0301।\x1c\x85\u200b\ufeff\x00"
TEXTS = st.text() | st.text(alphabet=STRANGE)


@given(TEXTS, st.sampled_from(["en", "de", "ja", "zh", "hi", "ar", "xx"]))
def test_together_they_are_the_text_without_its_white_space(text: str, language: str) -> None:
    found = sentences(text, language)
    assert all(text[start:end] == text[start:end].strip() != "" for start, end in found)
    assert all(end <= start for (_, end), (start, _) in pairwise(found))
    assert "".join("".join(piece.split()) for piece in split(text, language)) == "".join(text.split())


HOSTILE = [
    ".",
    '"',
    "“",
    "‘",
    "'",
    "(",
    "[",
    "a. ",
    "a! ",
    "“a. ",
    "Dr. ",
    "。",
    "\u2028",
    "\n",
    " ",
    "1.",
    "é\u0301",
]


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.parametrize("piece", HOSTILE, ids=ascii)
def test_hostile_texts_take_time_in_proportion(piece: str) -> None:
    text = f"a{piece * 100_000}a"
    start = time.perf_counter()
    assert "".join(map("".join, map(str.split, split(text)))) == "".join(text.split())
    assert time.perf_counter() - start < 5


def test_a_long_line_is_cut_where_a_short_one_is() -> None:
    """Though the library is fed no more than a window of it."""
    one = "The museum closes at five, says Dr. Smith. Nobody “really” knows why! "
    assert split(one * 1000) == split(one) * 1000


# --- passages -----------------------------------------------------------------------------------


@given(st.lists(TEXTS, max_size=4))
def test_passages_are_runs_of_sentences_of_one_text(texts: list[str]) -> None:
    whole, found = units(texts), passages(texts)
    runs = [
        [each for each in whole if each.index == piece.index and piece.start <= each.start < piece.end]
        for piece in found
    ]
    assert [each for run in runs for each in run] == whole
    for piece, run in zip(found, runs, strict=True):
        assert (piece.start, piece.end) == (run[0].start, run[-1].end)
        assert piece.end - piece.start <= PASSAGE or len(run) == 1
    assert merged(whole, texts) == merged(found, texts)


def test_pieces_are_joined_where_only_white_space_is_between() -> None:
    texts = ("One. Two. Three.", "Four.")
    one, two, three, four = units(texts)
    assert merged([three, one, four], texts) == [one, three, four]
    assert merged([two, one, four], texts) == [Piece(0, 0, 9), four]
    assert merged([three, two, one], texts) == [Piece(0, 0, 16)]


# --- ranking ------------------------------------------------------------------------------------

DOCUMENTS = ["Dogs are welcome.", "It closes at five.", "...", "Entry is free for dogs and dogs alone."]


@pytest.mark.parametrize(
    ("query", "first"),
    [("When does it CLOSES?", 1), ("free entry", 3), ("welcome, dogs!", 0), ("nothing alike", 0), ("", 0)],
)
def test_what_shares_most_comes_first(query: str, first: int) -> None:
    order = Ranking(DOCUMENTS).order(query)
    assert order[0] == first
    assert sorted(order) == [0, 1, 2, 3]
    if query in ("nothing alike", ""):
        assert order == [0, 1, 2, 3], "equal ones stay as they are"


def test_scripts_without_spaces_are_ranked_too() -> None:
    assert Ranking(["猫が好き", "犬が好き", "雨が降る"]).order("雨")[0] == 2


@given(st.lists(TEXTS, max_size=6), TEXTS)
def test_an_order_has_every_text_once(texts: list[str], query: str) -> None:
    order = Ranking(texts).order(query)
    assert sorted(order) == list(range(len(texts)))
    assert order == Ranking(texts).order(query)


# --- aggregates ---------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_aggregates_keep_their_order(scores: list[float]) -> None:
    lowest, mean, highest, joint = (aggregated(scores, how) for how in ("all", "mean", "any", "noisy_or"))
    assert 0 <= lowest <= mean + 1e-9 and mean <= highest + 1e-9
    assert highest <= joint + 1e-9 and joint <= 1
    assert aggregated(scores[:1], "noisy_or") == pytest.approx(scores[0])


# --- the judge ----------------------------------------------------------------------------------

SIX, FREE, DOGS = "It closes at six 😀.", "Entry is free for all.", "Dogs are welcome too."
SAMPLE = Sample(
    "s", f"{SIX} {FREE}\r\n\r\n  {DOGS}\n", ("It closes at five.", "Nobody pays anything."), input="When?"
)
FAITHFULNESS: Any = instance("faithfulness")


def spoken(prompt: Prompt) -> str:
    (output,) = (part.text for part in prompt.data() if part.name == "output")
    return output


def doubting(doubts: dict[str, float]) -> ScriptedEngine:
    return ScriptedEngine(
        lambda prompt: {"faithful": 1 - doubts[spoken(prompt)], "hallucinated": doubts[spoken(prompt)]}
    )


def outcome(judge: Judge, engine: Engine, sample: Sample = SAMPLE) -> Outcome:
    return asyncio.run(judge_one(sample, judge, engine))


def verdict(judge: Judge, engine: Engine, sample: Sample = SAMPLE) -> Verdict:
    found = outcome(judge, engine, sample)
    assert isinstance(found, Verdict), found
    return found


def test_every_sentence_is_judged_alone() -> None:
    engine = doubting({SIX: 0.9, FREE: 0.2, DOGS: 0.6})
    found = verdict(Sentences(FAITHFULNESS), engine)
    assert [spoken(prompt) for prompt in engine.prompts] == [SIX, FREE, DOGS]
    shown = [part.text for part in engine.prompts[2].data() if part.name in ("context", "input")]
    assert shown == [*SAMPLE.context, SAMPLE.input]
    assert (found.label, found.score, found.probability) == (
        "hallucinated",
        pytest.approx(0.9),
        pytest.approx(0.9),
    )
    assert found.explanation == "of 3 sentences not supported: 1, 3"
    told = [((SAMPLE.output or "")[start:end], score) for start, end, score in found.details["sentences"]]
    assert told == [(SIX, pytest.approx(0.9)), (FREE, pytest.approx(0.2)), (DOGS, pytest.approx(0.6))]


def test_the_sentences_that_are_not_supported_are_claims() -> None:
    found = verdict(Sentences(FAITHFULNESS), doubting({SIX: 0.9, FREE: 0.2, DOGS: 0.6}))
    quotes = [(SAMPLE.output or "")[each.output_quote.start : each.output_quote.end] for each in found.claims]
    assert quotes == [each.output_text for each in found.claims]
    assert quotes == [SIX, DOGS]
    assert [(each.kind, each.probability) for each in found.claims] == [
        ("unsupported", pytest.approx(0.9)),
        ("unsupported", pytest.approx(0.6)),
    ]


@pytest.mark.parametrize(
    ("aggregate", "score", "real"), [("any", 0.6, True), ("mean", 0.4, False), ("noisy_or", 0.808, True)]
)
@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7])
def test_one_score_of_the_sentences(aggregate: Any, score: float, real: bool, threshold: float) -> None:
    judge = Sentences(FAITHFULNESS, aggregate=aggregate, threshold=threshold)
    found = verdict(judge, doubting({SIX: 0.2, FREE: 0.4, DOGS: 0.6}))
    assert found.score == pytest.approx(score)
    assert found.label == ("hallucinated" if score >= threshold else "faithful")
    expected = found.score if score >= threshold else 1 - found.score
    assert found.probability == (pytest.approx(expected) if real else None)


FILLER = [f"Line {number} says nothing of interest to anybody. " for number in range(40)]
LONG = (f"{''.join(FILLER[:20])}It closes at five. ", f"Dogs must wait outside. {''.join(FILLER[20:])}")


@pytest.mark.parametrize("k", [0, 1, 2])
def test_claims_of_a_sentence_come_back_to_where_they_stand(k: int) -> None:
    quotes = {SIX: ("closes at six 😀.", "It closes at five."), DOGS: (DOGS, "Dogs must wait outside.")}

    def script(prompt: Prompt) -> str:
        told = {"quoted": "statement", "reasoning": "why", "kind": "contradiction"}
        mine, theirs = quotes.get(spoken(prompt), ("", ""))
        entry = {"answer_quote": mine, "context_quote": theirs, **told}
        return json.dumps({"claims": [entry] if mine else []})

    engine = ScriptedEngine(script, can=frozenset({"generate", "constraints"}))
    sample = replace(SAMPLE, context=LONG)
    found = verdict(Sentences(Rubric(free_stage=False, least=0), passages=k), engine, sample)
    assert len(found.claims) == 2
    for index, (claim, (mine, theirs)) in enumerate(zip(found.claims, quotes.values(), strict=True)):
        assert claim.context_quote is not None and claim.context_index == index
        assert (sample.output or "")[claim.output_quote.start : claim.output_quote.end] == mine
        assert claim.output_text == mine
        assert LONG[index][claim.context_quote.start : claim.context_quote.end] == theirs


@dataclass(frozen=True)
class Declines:
    """A judge that has nothing to say of dogs."""

    reason: AbstentionReason | None = "uncertain"

    @property
    def info(self) -> JudgeInfo:
        return JudgeInfo("declines", labels=("faithful", "hallucinated"))

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        if "Dogs" not in (sample.output or ""):
            return Verdict(sample.id, "declines", "faithful", 0.0)
        if self.reason is None:
            return Failure(sample.id, "declines", "budget", "too dear")
        return Abstention(sample.id, "declines", self.reason, "who knows")


def test_a_sentence_without_a_verdict_leaves_the_whole_without_one() -> None:
    engine = ScriptedEngine([])
    found = outcome(Sentences(Declines()), engine)
    assert isinstance(found, Abstention)
    assert (found.judge, found.reason, found.message) == ("sentences", "uncertain", "sentence 3: who knows")
    found = outcome(Sentences(Declines(None)), engine)
    assert isinstance(found, Failure)
    assert (found.code, found.message) == ("budget", "sentence 3: too dear")
    assert isinstance(outcome(Sentences(Declines()), engine, replace(SAMPLE, output=SIX)), Verdict)

    def breaks(prompt: Prompt) -> Any:
        return EngineError("broken") if spoken(prompt) == FREE else {"faithful": 1.0}

    found = outcome(Sentences(FAITHFULNESS), ScriptedEngine(breaks))
    assert isinstance(found, Failure) and found.code == "engine_error"


# --- passages for each sentence -----------------------------------------------------------------


def shown_to(engine: ScriptedEngine) -> dict[str, list[str]]:
    return {
        spoken(prompt): [part.text for part in prompt.data() if part.name == "context"]
        for prompt in engine.prompts
    }


def test_a_sentence_is_held_against_its_best_passages() -> None:
    engine = doubting({SIX: 0.1, DOGS: 0.1})
    verdict(
        Sentences(FAITHFULNESS, passages=1), engine, replace(SAMPLE, output=f"{SIX} {DOGS}", context=LONG)
    )
    shown = shown_to(engine)
    assert [len(texts) for texts in shown.values()] == [1, 1]
    assert "It closes at five." in shown[SIX][0] and "Dogs must wait outside." in shown[DOGS][0]
    assert all(len(texts[0]) <= PASSAGE for texts in shown.values())


def test_passages_stand_in_their_order_and_all_are_shown_where_they_are_few() -> None:
    sample = replace(SAMPLE, output=DOGS, context=LONG)
    every = [passage.of(LONG) for passage in passages(LONG)]
    for k in range(1, len(every) + 3):
        engine = doubting({DOGS: 0.1})
        verdict(Sentences(FAITHFULNESS, passages=k), engine, sample)
        shown = shown_to(engine)[DOGS]
        if k < len(every):
            assert shown == [passage for passage in every if passage in shown] and len(shown) == k
        else:
            assert shown == list(LONG)


# --- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sentences(instance("relevance")), "'relevance' has relevant, irrelevant"),
        (
            lambda: Sentences(instance("moderation")),
            "needs a judge with the labels 'faithful' and 'hallucinated'",
        ),
        (lambda: Sentences(FAITHFULNESS, threshold=0), "threshold"),
        (lambda: Sentences(FAITHFULNESS, threshold=1), "threshold"),
        (lambda: Sentences(FAITHFULNESS, passages=-1), "passages"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Callable[[], Judge], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()


def test_it_says_what_it_is() -> None:
    info = Sentences(FAITHFULNESS).info
    assert (info.name, info.labels, info.direction) == ("sentences", ("faithful", "hallucinated"), "minimize")
    assert (info.reads, info.requires) == (FAITHFULNESS.info.reads, FAITHFULNESS.info.requires)
    assert info.prompt == FAITHFULNESS.info.prompt
