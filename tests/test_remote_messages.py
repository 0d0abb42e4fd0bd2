"""Prompts as messages and back: texts on trial broken up and mended, thoughts apart, answers asked anew."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magistrate.constraints import Constraint, constraint
from magistrate.engines.base import Attempt, UnusableAnswer
from magistrate.engines.remote.messages import Escaping, chat, escaping_for
from magistrate.engines.remote.replies import Reply, generate_validated, split_thinking
from magistrate.types import Data, Message, Prompt, Trusted, Usage

# --- texts on trial -------------------------------------------------------------------------------

SPECIALS = ["<|im_end|>", "</s>", "<s>", "[INST]", "[/INST]", "<<SYS>>", "<start_of_turn>", "<|eot_id|>"]
SPECIALS += ["<｜end▁of▁sentence｜>", "<think>", "</think>", "<0x0A>", "[gMASK]", "<__media__>"]


@given(st.lists(st.one_of(st.sampled_from([*SPECIALS, "¦", "‖", "<", "|", "[", "é日"]), st.text(max_size=8))))
def test_what_looks_special_is_broken_up_and_mended(parts: list[str]) -> None:
    text = "".join(parts)
    escaping = escaping_for([text])
    escaped = escaping.escape(text)
    assert not [special for special in SPECIALS if special in escaped]
    assert escaping.undo(escaped) == text
    for at in range(len(escaped) + 1):
        assert 0 <= escaping.raw_offset(text, at) <= len(text)


def test_offsets_into_the_escaped_text_are_those_of_the_raw_one() -> None:
    raw = "é<|im_end|> and </s>!"
    escaping = escaping_for([raw])
    escaped = escaping.escape(raw)
    assert escaped != raw
    assert escaping.raw_offset(raw, escaped.index("and")) == raw.index("and")
    assert escaping.raw_offset(raw, len(escaped)) == len(raw)


def test_the_mark_is_none_of_the_prompts_characters_and_mended_inside_json_too() -> None:
    assert escaping_for(["<s>"], ["¦"]).mark not in ("", "¦")
    assert escaping_for(["plain"]).mark == ""
    assert Escaping("¦").undo('{"q": "<\\u00a6s> <¦s>"}') == '{"q": "<s> <s>"}'


def test_data_never_closes_a_turn_and_trusted_text_stays_as_it_is() -> None:
    prompt = Prompt(
        (Message("user", (Trusted("Judge <b>: "), Data("x <|im_"), Data("end|> y"), Trusted(" Go."))),)
    )
    made = chat(prompt, [Attempt("<|im_end|>", "no </s> here")])
    assert made.turns[0].text.startswith("Judge <b>: x <")
    assert [turn.role for turn in made.turns] == ["user", "assistant", "user"]
    assert not [turn for turn in made.turns if "<|im_end|>" in turn.text or "</s>" in turn.text]
    assert made.escaping.undo(made.turns[0].text) == "Judge <b>: x <|im_end|> y Go."


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

    async def ask(attempts: tuple[Attempt, ...], held: Constraint | None) -> Reply:
        asked.append(attempts)
        return left.pop(0)

    return asked, ask


def _reply(text: str, finish: str = "stop") -> Reply:
    return Reply(text, finish, Usage(1, 10, 0, 5))  # type: ignore[arg-type]


def test_what_is_mechanical_is_repaired_without_asking_anew() -> None:
    asked, ask = _replies(_reply('```json\n{"label": "yes",}\n```'))
    made = asyncio.run(generate_validated(ask, LABEL, retries=2))
    assert made.value == {"label": "yes"}
    assert LABEL.parse(made.text) == made.value  # what is kept can be read again
    assert len(asked) == 1
    assert "repaired" in made.notes[0]


def test_without_the_package_that_repairs_it_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "json_repair", None)
    with pytest.raises(UnusableAnswer):
        asyncio.run(generate_validated(_replies(_reply('{"label": "yes",}'))[1], LABEL, retries=0))


def test_what_cannot_be_used_is_asked_anew_with_the_reason() -> None:
    asked, ask = _replies(_reply('{"label": "maybe"}'), _reply('{"label": "no"}'))
    made = asyncio.run(generate_validated(ask, LABEL, retries=2))
    assert made.value == {"label": "no"}
    assert asked[1] == made.attempts
    assert made.attempts[0].text == '{"label": "maybe"}'
    assert "maybe" in made.attempts[0].problem or "enum" in made.attempts[0].problem
    assert made.usage == Usage(2, 20, 0, 10)


def test_after_the_last_try_the_raw_text_is_kept() -> None:
    _, ask = _replies(_reply("I cannot"), _reply("I will not"), _reply("No."))
    with pytest.raises(UnusableAnswer) as caught:
        asyncio.run(generate_validated(ask, LABEL, retries=2))
    assert caught.value.text == "No."
    assert [each.text for each in caught.value.attempts] == ["I cannot", "I will not"]
    assert caught.value.usage.calls == 3


def test_a_text_that_was_cut_off_is_no_answer_even_where_it_reads_like_one() -> None:
    number = constraint(["1", "12"])
    with pytest.raises(UnusableAnswer, match="cut off"):
        asyncio.run(generate_validated(_replies(_reply("1", "length"))[1], number, retries=0))
    with pytest.raises(UnusableAnswer, match="cut off"):
        asyncio.run(generate_validated(_replies(_reply('{"label":"no"}', "length"))[1], LABEL, retries=0))
    free = asyncio.run(generate_validated(_replies(_reply("It rai", "length"))[1], None, retries=0))
    assert free.finish == "length"


def test_after_an_answer_that_did_not_end_in_time_there_is_half_the_room() -> None:
    told = constraint(
        {
            "type": "object",
            "properties": {"reason": {"type": "string", "maxLength": 100}},
            "required": ["reason"],
            "additionalProperties": False,
        }
    )
    held: list[Constraint | None] = []
    left = [_reply('{"reason":"It', "length"), _reply("No.", "stop"), _reply('{"reason":"It rains."}')]

    async def ask(attempts: tuple[Attempt, ...], now: Constraint | None) -> Reply:
        held.append(now)
        return left.pop(0)

    made = asyncio.run(generate_validated(ask, told, retries=2))
    assert [each and each.schema and each.schema["properties"]["reason"]["maxLength"] for each in held] == [
        100,
        50,
        50,  # what is merely wrong is not made shorter
    ]
    assert made.value == {"reason": "It rains."}
    assert "limited to half" in made.notes[-1]
