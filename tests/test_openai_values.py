"""What the OpenAI-compatible engine decides by itself: bounds, escapes, thoughts, schemas, repairs."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magistrate.constraints import constraint
from magistrate.engines.base import Attempt, Option, UnusableAnswer
from magistrate.engines.openai.chats import estimated
from magistrate.engines.openai.constraining import sendings
from magistrate.engines.openai.options import OFFICIAL, Options, base_url, key_for, read_options
from magistrate.engines.openai.scoring import offsets_of
from magistrate.engines.openai.strict import nulls_left_out, strict
from magistrate.engines.remote.asking import settled
from magistrate.engines.remote.choosing import Listed, Token, from_listed, named
from magistrate.engines.remote.escaping import Escaping, escaping_for
from magistrate.engines.remote.messages import chat
from magistrate.engines.remote.probing import recalled, remember
from magistrate.engines.remote.reply import Reply
from magistrate.engines.remote.thinking import split_thinking
from magistrate.errors import InvalidOutput, SpecError
from magistrate.judges.quoting import quote_schema
from magistrate.types import Data, Message, Prompt, Trusted, Usage

YES_NO = (Option("supported", ("Yes", "yes", " yes")), Option("hallucinated", ("No", "no", " no")))
WORDS = (Option("f", ("faithful",)), Option("h", ("hallucinated",)), Option("u", ("unknown",)))


# --- probabilities from the likeliest tokens ------------------------------------------------------


@st.composite
def _worlds(draw: st.DrawFn) -> tuple[tuple[Option, ...], dict[str, float], dict[str, float], int]:
    """Options, a distribution over first tokens, the true probability of every surface, a list's length.

    A surface is one token, or it has a first token that begins it and goes on with a probability of its own.
    """
    options = draw(st.sampled_from([YES_NO, WORDS, (*WORDS, YES_NO[1])]))
    surfaces = [surface for option in options for surface in option.surfaces]
    first = {
        surface: surface[: draw(st.integers(1, len(surface)))] if draw(st.booleans()) else surface
        for surface in surfaces
    }
    vocabulary = sorted({*first.values(), "the", "It", "\n", "maybe"})
    weights = [math.exp(draw(st.floats(-12, 4))) for _ in vocabulary]
    chances = {token: weight / sum(weights) for token, weight in zip(vocabulary, weights, strict=True)}
    truth: dict[str, float] = {}
    left = dict(chances)
    for surface in surfaces:
        share = 1.0 if first[surface] == surface else draw(st.floats(0, 1))
        truth[surface] = left[first[surface]] * share
        left[first[surface]] -= truth[surface]
    return options, chances, truth, draw(st.integers(1, len(vocabulary)))


@given(_worlds())
@settings(max_examples=400)
def test_no_share_is_further_from_the_truth_than_the_bound(
    world: tuple[tuple[Option, ...], dict[str, float], dict[str, float], int],
) -> None:
    options, chances, truth, length = world
    top = sorted(chances.items(), key=lambda item: -item[1])[:length]
    weights = from_listed(options, Listed(tuple(Token(t.encode(), math.log(p)) for t, p in top)))
    true = [sum(truth[surface] for surface in option.surfaces) for option in options]
    if weights is None or sum(true) < 1e-9:
        return
    assert sum(weights.shares) == pytest.approx(1)
    for share, exact in zip(weights.shares, true, strict=True):
        assert abs(share - exact / sum(true)) <= weights.bound + 1e-9


def test_a_complete_list_of_whole_answers_leaves_no_doubt() -> None:
    chances = {"Yes": 0.5, "yes": 0.1, " yes": 0.1, "No": 0.2, "no": 0.05, " no": 0.05}
    weights = from_listed(YES_NO, Listed(tuple(Token(t.encode(), math.log(p)) for t, p in chances.items())))
    assert weights is not None
    assert weights.shares == pytest.approx((0.7, 0.3))
    assert weights.bound == pytest.approx(0, abs=1e-9)


def test_options_that_are_not_listed_have_no_probability() -> None:
    assert from_listed(YES_NO, Listed((Token(b"The", -0.1), Token(b"It", -3.0)))) is None
    assert from_listed(YES_NO, Listed(())) is None


def test_a_first_token_that_begins_two_options_speaks_for_neither() -> None:
    options = (Option("a", ("unsupported",)), Option("b", ("unrelated",)), Option("c", ("agrees",)))
    weights = from_listed(options, Listed((Token(b"un", math.log(0.9)), Token(b"agrees", math.log(0.1)))))
    assert weights is not None
    assert weights.shares[2] == 1.0
    assert weights.bound >= 0.9


# --- an answer in words ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("Yes", "supported"),
        (" yes.\n", "supported"),
        ("**No**", "hallucinated"),
        ("Answer: no", "hallucinated"),
        ("No, because the context says five.", "hallucinated"),
        ("The final answer is Yes.", "supported"),
        ("hallucinated", "hallucinated"),
        ("Yes\n\nThe context says so.", "supported"),
    ],
)
def test_a_reply_that_names_one_answer_is_that_answer(text: str, label: str) -> None:
    assert named(text, YES_NO) == label


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Maybe",
        "There is no doubt: it is.",
        "not hallucinated",
        "Yes or no",
        "It is true",
        "yes\nno",
        "Nope",
    ],
)
def test_a_reply_that_names_none_or_several_is_no_answer(text: str) -> None:
    with pytest.raises(InvalidOutput):
        named(text, YES_NO)


def test_an_article_is_not_the_letter_a() -> None:
    letters = (Option("good", ("A", " A")), Option("bad", ("B", " B")))
    assert named("A", letters) == "good"
    assert named("B. It is wrong.", letters) == "bad"
    with pytest.raises(InvalidOutput):
        named("A good answer would say so", letters)


# --- texts on trial -------------------------------------------------------------------------------

SPECIALS = ["<|im_end|>", "</s>", "<s>", "[INST]", "[/INST]", "<<SYS>>", "<start_of_turn>", "<|eot_id|>"]
SPECIALS += ["<｜end▁of▁sentence｜>", "<think>", "</think>", "<0x0A>", "[gMASK]", "<__media__>"]


@given(st.lists(st.one_of(st.sampled_from([*SPECIALS, "¦", "‖", "<", "|", "[", "é日"]), st.text(max_size=8))))
def test_what_looks_special_is_broken_up_and_mended(parts: list[str]) -> None:
    text = "".join(parts)
    escaping = escaping_for([text])
    escaped = escaping.escaped(text)
    assert not [special for special in SPECIALS if special in escaped]
    assert escaping.undone(escaped) == text
    for at in range(len(escaped) + 1):
        assert 0 <= escaping.place(text, at) <= len(text)


def test_offsets_into_the_escaped_text_are_those_of_the_raw_one() -> None:
    raw = "é<|im_end|> and </s>!"
    escaping = escaping_for([raw])
    escaped = escaping.escaped(raw)
    assert escaped != raw
    assert escaping.place(raw, escaped.index("and")) == raw.index("and")
    assert escaping.place(raw, len(escaped)) == len(raw)


def test_the_mark_is_none_of_the_prompts_characters_and_mended_inside_json_too() -> None:
    assert escaping_for(["<s>"], ["¦"]).mark not in ("", "¦")
    assert escaping_for(["plain"]).mark == ""
    assert Escaping("¦").undone('{"q": "<\\u00a6s> <¦s>"}') == '{"q": "<s> <s>"}'


def test_data_never_closes_a_turn_and_trusted_text_stays_as_it_is() -> None:
    prompt = Prompt(
        (Message("user", (Trusted("Judge <b>: "), Data("x <|im_"), Data("end|> y"), Trusted(" Go."))),)
    )
    made = chat(prompt, [Attempt("<|im_end|>", "no </s> here")])
    assert made.turns[0].text.startswith("Judge <b>: x <")
    assert [turn.role for turn in made.turns] == ["user", "assistant", "user"]
    assert not [turn for turn in made.turns if "<|im_end|>" in turn.text or "</s>" in turn.text]
    assert made.escaping.undone(made.turns[0].text) == "Judge <b>: x <|im_end|> y Go."


def test_a_begun_answer_is_continued_or_asked_for_in_words() -> None:
    prompt = Prompt.of("Say it.").continued(Trusted("It is"))
    assert chat(prompt).begun
    asked = chat(prompt, continues=False)
    assert not asked.begun
    assert asked.turns[-1].role == "user"


@pytest.mark.parametrize(
    ("text", "opened", "parts"),
    [
        ("<think>a</think> b", False, ("a", "b")),
        ("\n<thinking>a\n</thinking>\n\nb", False, ("a", "b")),
        ("[THINK]a[/THINK]b", False, ("a", "b")),
        ("a </think> b", True, ("a", "b")),
        ("a </think> b", False, ("", "a </think> b")),
        ("<think>cut", False, ("cut", "")),
        ('{"q": "<think>x</think>"}', False, ("", '{"q": "<think>x</think>"}')),
        ("just an answer", True, ("", "just an answer")),
    ],
)
def test_thoughts_are_told_apart_only_where_the_text_begins_with_them(
    text: str, opened: bool, parts: tuple[str, str]
) -> None:
    assert split_thinking(text, opened=opened) == parts


# --- until an answer can be used ------------------------------------------------------------------

LABEL = constraint(
    {
        "type": "object",
        "properties": {"label": {"enum": ["yes", "no"]}},
        "required": ["label"],
        "additionalProperties": False,
    }
)


def _replies(*replies: Reply) -> tuple[list[tuple[Attempt, ...]], Callable[..., Awaitable[Reply]]]:
    asked: list[tuple[Attempt, ...]] = []
    left = list(replies)

    async def ask(attempts: tuple[Attempt, ...]) -> Reply:
        asked.append(attempts)
        return left.pop(0)

    return asked, ask


def _reply(text: str, finish: str = "stop") -> Reply:
    return Reply(text, finish, Usage(1, 10, 0, 5))  # type: ignore[arg-type]


def test_what_is_mechanical_is_repaired_without_asking_anew() -> None:
    asked, ask = _replies(_reply('Sure:\n```json\n{"label": "yes",}\n```'))
    made = asyncio.run(settled(ask, LABEL, most=2))
    assert made.value == {"label": "yes"}
    assert LABEL.parse(made.text) == made.value  # what is kept can be read again
    assert len(asked) == 1
    assert "put right" in made.notes[0]


def test_what_cannot_be_used_is_asked_anew_with_the_reason() -> None:
    asked, ask = _replies(_reply('{"label": "maybe"}'), _reply('{"label": "no"}'))
    made = asyncio.run(settled(ask, LABEL, most=2))
    assert made.value == {"label": "no"}
    assert asked[1] == made.attempts
    assert made.attempts[0].text == '{"label": "maybe"}'
    assert "maybe" in made.attempts[0].problem or "enum" in made.attempts[0].problem
    assert made.usage == Usage(2, 20, 0, 10)


def test_after_the_last_try_the_raw_text_is_kept() -> None:
    _, ask = _replies(_reply("I cannot"), _reply("I will not"), _reply("No."))
    with pytest.raises(UnusableAnswer) as caught:
        asyncio.run(settled(ask, LABEL, most=2))
    assert caught.value.text == "No."
    assert [each.text for each in caught.value.attempts] == ["I cannot", "I will not"]
    assert caught.value.usage.calls == 3


def test_a_text_that_was_cut_off_is_no_answer_even_where_it_reads_like_one() -> None:
    number = constraint(["1", "12"])
    with pytest.raises(UnusableAnswer, match="cut off"):
        asyncio.run(settled(_replies(_reply("1", "length"))[1], number, most=0))
    whole = asyncio.run(settled(_replies(_reply('{"label":"no"}', "length"))[1], LABEL, most=0))
    assert whole.value == {"label": "no"}  # nothing could have come after the last bracket
    free = asyncio.run(settled(_replies(_reply("It rai", "length"))[1], None, most=0))
    assert free.finish == "length"


# --- schemas --------------------------------------------------------------------------------------

OPTIONAL = {
    "type": "object",
    "properties": {
        "label": {"enum": ["yes", "no"]},
        "note": {"type": "string", "maxLength": 5},
        "kind": {"type": ["string", "null"]},
        "deep": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": []},
    },
    "required": ["label"],
}


def test_a_schema_in_strict_mode_closes_and_requires_everything() -> None:
    made, lost = strict(OPTIONAL)
    assert made["additionalProperties"] is False
    assert made["required"] == ["label", "note", "kind", "deep"]
    assert made["properties"]["note"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert lost == ("/properties/note: maxLength",)


def test_a_null_that_stands_for_nothing_is_left_out_again() -> None:
    text = '{"label": "yes", "note": null, "kind": null, "deep": {"x": null}, "other": null}'
    assert json.loads(nulls_left_out(text, OPTIONAL)) == {
        "label": "yes",
        "kind": None,
        "deep": {},
        "other": None,
    }
    assert nulls_left_out("no json", OPTIONAL) == "no json"


def test_choices_are_sent_inside_an_object_where_only_schemas_are_taken() -> None:
    sent = sendings(constraint(["yes", "no"]), ("response_format json_schema",))[0]
    assert sent.undo('{"answer": "no"}') == "no"
    schema = sent.body["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["answer"]["enum"] == ["yes", "no"]


def test_the_way_that_loses_least_comes_first() -> None:
    ways = ("response_format json_schema", "llguidance grammar")
    plain = [sent.name for sent in sendings(LABEL, ways)]
    assert plain == list(ways)
    quoting = constraint(
        {
            "type": "object",
            "properties": {"quote": quote_schema("output", "words", ("It rains.",))},
            "required": ["quote"],
            "additionalProperties": False,
        }
    ).over(output="It rains.")
    first, second = sendings(quoting, ways)
    assert first.name == "llguidance grammar"
    assert second.lost  # a schema cannot say that a text is quoted
    assert sendings(constraint(["a"]), ()) == []


# --- words and addresses --------------------------------------------------------------------------


def test_options_stand_behind_the_model() -> None:
    assert read_options("qwen2.5:0.5b") == ("qwen2.5:0.5b", Options())
    model, options = read_options("org/model,stream=true,draws=5,choose=sampled")
    assert (model, options.stream, options.draws, options.choose) == ("org/model", True, 5, "sampled")


@pytest.mark.parametrize(
    "words", ["", ",draws=5", "m,draw=5", "m,draws=0", "m,draws=x", "m,choose=all", "m,x"]
)
def test_options_that_are_not_known_are_refused(words: str) -> None:
    with pytest.raises(SpecError):
        read_options(words)


@pytest.mark.parametrize(
    "url",
    ["localhost:8080", "ftp://host/v1", "http://", "https://me:secret@host/v1", "https://host/v1?key=secret"],
)
def test_what_is_no_address_or_holds_a_secret_is_refused_without_showing_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(SpecError) as caught:
        base_url(url)
    assert "secret" not in str(caught.value)


def test_the_address_and_the_key_come_from_the_environment_where_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:8000")
    assert base_url(None) == "http://127.0.0.1:8000/v1"
    assert key_for(base_url(None)) == "none"
    with pytest.raises(SpecError, match="OPENAI_API_KEY"):
        key_for(OFFICIAL)


# --- tokens ---------------------------------------------------------------------------------------


def test_tokens_have_their_places_also_where_they_are_parts_of_a_character() -> None:
    assert offsets_of(["Né", " ", "�", "�", "本", "!"], "Né 日本!") == [
        (0, 2),
        (2, 3),
        (3, 4),
        (3, 4),
        (4, 5),
        (5, 6),
    ]
    assert offsets_of(["a", "�", "�"], "a🙂") == [(0, 1), (1, 2), (1, 2)]
    with pytest.raises(InvalidOutput):
        offsets_of(["other", "x"], "text")


def test_an_estimate_is_rather_too_high() -> None:
    assert estimated("The museum opens at nine.") >= 6
    assert estimated("日本語") >= 3
    assert estimated("") == 0


def test_what_was_found_is_kept_until_the_server_is_another(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGISTRATE_HOME", str(tmp_path))
    assert recalled("http://a/v1", "m", "one") is None
    remember("http://a/v1", "m", "one", {"top": 5})
    remember("http://b/v1", "m", "one", {"top": 7})
    assert recalled("http://a/v1", "m", "one") == {"top": 5}
    assert recalled("http://a/v1", "m", "two") is None
    assert recalled("http://a/v1", "other", "one") is None
    for port in range(300):
        remember(f"http://127.0.0.1:{port}/v1", "m", "one", {})
    assert recalled("http://a/v1", "m", "one") is None  # only the newest are kept
    assert recalled("http://127.0.0.1:299/v1", "m", "one") == {}
