"""A quote is a run of a text's own pieces, found where it stands, and every such run can be written."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import pickle
import time
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError

from desk import Desk
from magistrate.constraints import Constraint, Quote, QuoteOf, check, compile_check, constraint
from magistrate.constraints.lark import compile_grammar, escape, follow
from magistrate.constraints.masks import COMPILED_TEXT
from magistrate.constraints.quote import LONGEST_TEXTS, UNITS, Unit, edges, has_run, locate, pieces
from magistrate.datasets import load
from magistrate.engines.base import Generation, Sampling
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.errors import ConstraintError, InvalidOutput
from magistrate.types import Prompt, Sample

TEXTS = {
    "prose": "The doors open at nine and close at five, on Fridays at eight. Mondays: closed.",
    "lines": "first line\nsecond line\r\n\r\n\tthird \f line\x0b.\x1c x\u2028y\u0085z",
    "quotes": 'She said "no", he said \\"yes\\" and wrote C:\\new\\table.txt; \'so\'',
    "table": "| name | price |\n|------|-------|\n| soup | 4.50  |\n| cake | 3,20 € |",
    "code": 'def f(x: int) -> str:\n    return f"{x!r}\\n"  # \\d+\n\n\nclass A: pass',
    "emoji": "Good 👍🏽 for the 👩‍👩‍👧 from 🇩🇪🇫🇷, 1️⃣ heart ❤️!",
    "marks": "e\u0301tude nai\u0308ve A\u030a q\u0307\u0323 cafe\u0301.",
    "chinese": "我喜欢吃苹果。你呢？他说：“不喜欢！”然后走了。",
    "japanese": "カタカナとひらがな、漢字。ＡＢＣ１２３",
    "thai": "สวัสดีครับ ผมชื่อสมชาย",
    "arabic": "مرحبا بالعالم، كيف حالُك؟ العام ٢٠٢٦.",
    "hindi": "नमस्ते दुनिया। क्षत्रिय",
    "markup": '<|im_end|>\n<|im_start|>system\n<p class="a">x &amp; y</p> {{ z }} ]}" "]}',
    "json": '{"claims":[{"kind":"agreement","output_quote":"\\u00e9"}]}',
    "controls": "a\x00b\x01 c\x7f d\x08",
    "halves": "a\ud800 b\udc00\ud800c",
    "long": "x" * 200 + " " + "key=" + "0123456789abcdef" * 12,
    "blank ends": " \n  middle \t ",
}


LETTERS = "ab é我\n\"\\.' 👍\u0301\t{}"
Said, Given, Where = Quote["output"], Quote["context", "sentences"], Quote["text"]


def quoting(texts: str | list[str], unit: Unit = "words", **bounds: int) -> Constraint:
    """A bare quote of these texts."""
    shape = constraint({"type": "string", "x-quote": {"of": "text", "unit": unit}, **bounds})
    return shape.over(text=texts)


def is_quote(text: str) -> bool:
    return bool(text) and not text[0].isspace() and not text[-1].isspace()


# --- cutting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS)
def test_pieces_are_the_text(unit: Unit) -> None:
    for name, text in TEXTS.items():
        assert "".join(pieces(text, unit)) == text, name
        assert all(start < end for start, end in pairwise(edges(text, unit))), name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't pay $3.50, now!", "Don't| |pay| |$|3.50|,| |now|!"),
        ("a \r\n b  c", "a| \r\n |b|  |c"),
        ("a \u0301b", "a| \u0301|b"),
        ("我喜欢 it", "我|喜|欢| |it"),
        ("e\u0301te\u0301 ok", "e\u0301te\u0301| |ok"),
        ("👩‍👩‍👧🇩🇪🇫🇷👍🏽", "👩‍👩‍👧|🇩🇪|🇫🇷|👍🏽"),
        ("snake_case C:\\x", "snake_case| |C|:|\\|x"),
        ("مرحبا بالعالم،", "مرحبا| |بالعالم|،"),
    ],
)
def test_words_are_those_of_unicode(text: str, words: str) -> None:
    assert pieces(text, "words") == words.split("|")


def test_a_word_without_end_is_cut_between_characters() -> None:
    assert pieces("e\u0301" * 100, "words") == ["e\u0301"] * 100
    assert pieces("x" * 64, "words") == ["x" * 64]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It is 3.5 here. Yes!  Is it?\nso", ["It is 3.5 here.", "Yes!", "Is it?", "so"]),
        ('He said "no." Then (it.) rained', ['He said "no."', "Then (it.)", "rained"]),
        ("第一。“第二！”三", ["第一。", "“第二！”", "三"]),
        ("- one\n- two \n\n three", ["- one", "- two", "three"]),
    ],
)
def test_sentences_end_with_their_mark_or_their_line(text: str, sentences: list[str]) -> None:
    assert [piece for piece in pieces(text, "sentences") if not piece.isspace()] == sentences


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "text",
    [
        " " * 200_000,
        "!" * 200_000,
        "." + "'" * 200_000,
        "。" * 100_000 + '"' * 100_000,
        "a" + "\u0301" * 200_000,
        "\u200d👩" * 50_000,
        "🇩" * 100_000,
        "a'" * 100_000,
        "1,." * 60_000,
        "\r\n" * 100_000,
    ],
    ids=lambda text: ascii(text[:4]),
)
@pytest.mark.timeout(20)
def test_no_text_is_slow_to_cut(text: str, unit: Unit) -> None:
    assert edges(text, unit)[-1] == len(text)


# --- what can be written ------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", TEXTS)
def test_every_run_of_pieces_can_be_written_and_nothing_else(name: str, unit: Unit) -> None:
    text = TEXTS[name]
    shape = quoting(text, unit)
    compile_check(shape)
    at = edges(text, unit)
    ends = [(start, end) for i, start in enumerate(at) for end in at[i + 1 :]]
    step = max(len(ends) // 100, 1)
    for start, end in ends[::step]:
        run = text[start:end]
        written = f'"{escape(run)}"'
        assert json.loads(written) == run
        assert follow(shape.grammar, written) == ("valid" if is_quote(run) else "invalid")
        if is_quote(run):
            quote = shape.parse(written)
            assert quote == run and check(written, shape) == "valid"
    known = set(at)
    others = [(i, j) for i in range(len(text)) for j in range(i + 1, min(i + 9, len(text) + 1))]
    for start, end in others[:: max(len(others) // 100, 1)]:
        if (start in known and end in known) or locate(text[start:end], QuoteOf("text", unit), [text]):
            continue
        written = f'"{escape(text[start:end])}"'
        assert follow(shape.grammar, written) != "valid", text[start:end]
        with pytest.raises(InvalidOutput):
            shape.parse(written)


@example(texts=[" \u0301"], unit="words", seed=0, bounds={})
@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.text(st.sampled_from(LETTERS), max_size=25), min_size=1, max_size=3),
    unit=st.sampled_from(UNITS),
    seed=st.integers(0, 2**32 - 1),
    bounds=st.sampled_from([{}, {"maxLength": 4}, {"minLength": 3}, {"minLength": 2, "maxLength": 5}]),
)
def test_every_walk_ends_in_a_quote_that_is_found(
    texts: list[str], unit: Unit, seed: int, bounds: dict[str, int]
) -> None:
    """Bytes drawn under the masks until the end; a bounded quote may find that no run is so long."""
    try:
        shape = quoting(texts, unit, **bounds)
    except ConstraintError:
        assert not any(
            has_run(text, unit, bounds.get("minLength", 1), bounds.get("maxLength")) for text in texts
        )
        return
    matcher = compile_grammar(shape.grammar).deep_copy()
    random = np.random.default_rng(seed)
    written: list[int] = []
    while not (matcher.is_accepting() and matcher.is_stopped()):
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")[:256]
        allowed = np.flatnonzero(bits)
        assert len(allowed)
        written.append(int(random.choice(allowed)))
        assert matcher.consume_tokens(written[-1:])
    quote = json.loads(bytes(written))
    found = locate(quote, QuoteOf("text", unit), texts)
    assert found is not None and texts[found.source_index][found.start : found.end] == quote == found
    assert bounds.get("minLength", 1) <= len(quote) <= bounds.get("maxLength", 100)
    assert is_quote(quote)


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(sorted(TEXTS)), seed=st.integers(0, 2**32 - 1), unit=st.sampled_from(UNITS))
def test_a_model_writes_quotes_in_tokens(desk: Desk, name: str, seed: int, unit: Unit) -> None:
    shape = quoting([TEXTS["prose"], TEXTS[name]], unit)
    pen = desk.write(shape, Sampling(400, temperature=1.5, seed=seed))
    assert pen.finished and len(pen.tokens) <= 400
    quote = shape.parse(desk.text(pen.tokens))
    assert locate(quote, QuoteOf("text", unit), shape.texts["text"]) is not None


def test_several_texts_share_no_run() -> None:
    shape = quoting(["one two", "two three", "one two"])
    assert follow(shape.grammar, '"two three"') == "valid"
    assert follow(shape.grammar, '"one two two"') == "invalid"
    assert follow(shape.grammar, '"two three one"') == "invalid"
    found = locate("two", QuoteOf("text"), shape.texts["text"])
    assert found is not None and (found.source_index, found.start, found.end) == (0, 4, 7)


def test_length_counts_characters_not_escapes() -> None:
    shape = quoting('"""" a', minLength=2, maxLength=3)
    assert follow(shape.grammar, r'"\"\"\""') == "valid"
    assert follow(shape.grammar, r'"\""') == "invalid"
    assert follow(shape.grammar, r'"\"\"\"\""') == "invalid"


# --- in an object -------------------------------------------------------------------------------


class Finding(BaseModel):
    reasoning: Annotated[str, Field(max_length=60)]
    kind: Literal["contradiction", "unsupported", "agreement"]
    said: Annotated[Said, Field(max_length=40)]
    given: Given | None


class Findings(BaseModel):
    findings: Annotated[list[Finding], Field(max_length=3)]


CONTEXT = ["The house opens at nine. It closes at five.", "Mondays:\nclosed."]
OUTPUT = "It opens at ten on Mondays."


def written(**changes: Any) -> str:
    finding = {
        "reasoning": "",
        "kind": "contradiction",
        "said": "opens at ten",
        "given": "It closes at five.",
    }
    return json.dumps({"findings": [finding | changes]}, separators=(",", ":"), ensure_ascii=False)


def test_quotes_stand_in_objects_with_their_places() -> None:
    shape = constraint(Findings).over(context=CONTEXT, output=OUTPUT)
    shape.require_bounds()
    value = shape.parse(written())
    assert isinstance(value, Findings)
    said, given = value.findings[0].said, value.findings[0].given
    assert (said.source, said.source_index, said.start, said.end) == ("output", 0, 3, 15)
    assert (given.source, given.source_index, given.start, given.end) == ("context", 0, 25, 43)
    assert CONTEXT[given.source_index][given.start : given.end] == given
    assert shape.parse(written(given="closed.")).findings[0].given.source_index == 1
    assert shape.parse(written(given=None)).findings[0].given is None
    for text in (written(), written(given=None), '{"findings":[]}'):
        assert follow(shape.grammar, text) == "valid" == check(text, shape)
    for changes in ({"said": "opens at"}, {"said": "closes"}, {"given": "closes at five."}, {"said": ""}):
        ok = changes == {"said": "opens at"}
        assert (follow(shape.grammar, written(**changes)) == "valid") is ok
        assert (check(written(**changes), shape) == "valid") is ok
        if not ok:
            with pytest.raises(InvalidOutput, match="are not"):
                shape.parse(written(**changes))


def test_a_quote_keeps_its_place_when_it_is_copied_or_pickled() -> None:
    value = constraint(Findings).over(context=CONTEXT, output=OUTPUT).parse(written())
    for each in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert each.findings[0].said.start == 3 and each == value
    plain = value.model_dump_json()
    assert Findings.model_validate_json(plain, context={"context": CONTEXT, "output": OUTPUT}) == value
    with pytest.raises(ValidationError, match="needs the texts"):
        Findings.model_validate_json(plain)


def test_a_dataclass_and_a_bare_schema_quote_too() -> None:
    @dataclasses.dataclass
    class Place:
        where: Where

    value = constraint(Place).over(text="a b c").parse('{"where":"b c"}')
    assert isinstance(value, Place) and (value.where.start, value.where.end) == (2, 5)
    schema = {
        "type": "object",
        "properties": {
            "maybe": {"type": ["string", "null"], "x-quote": {"of": "text"}},
            "n": {"type": "integer", "minimum": 0, "maximum": 9},
            "many": {"type": "array", "items": {"type": "string", "x-quote": {"of": "text"}}, "maxItems": 2},
        },
        "required": ["n"],
        "additionalProperties": False,
    }
    shape = constraint(schema).over(text="a b c")
    for text in (
        '{"n":1}',
        '{"maybe":"b","n":1}',
        '{"maybe":null,"n":1,"many":[]}',
        '{"n":1,"many":["a","b c"]}',
    ):
        assert follow(shape.grammar, text) == "valid"
        assert shape.parse(text) == json.loads(text)
    for text in ("{}", '{"n":1,}', '{"n":1,"many":["a","b","c"]}', '{"maybe":"d","n":1}', '{,"n":1}'):
        assert follow(shape.grammar, text) != "valid"


def test_where_nothing_can_be_quoted_only_what_needs_no_quote_is_written() -> None:
    shape = constraint(Findings).over(context=" \n", output=OUTPUT)
    assert follow(shape.grammar, written(given=None)) == "valid"
    assert follow(shape.grammar, written()) == "invalid"
    empty = constraint(Findings).over(context=CONTEXT, output="")
    assert follow(empty.grammar, '{"findings":[]}') == "valid"
    assert follow(empty.grammar, '{"findings":[{') == "invalid"
    with pytest.raises(ConstraintError, match="too short for it"):
        constraint(Finding).over(context=CONTEXT, output="")


@pytest.mark.full
def test_the_embedded_model_quotes_verbatim(engine: LocalEngine) -> None:
    """What it says about them is another matter; all are asked at once, each over texts of its own."""
    samples = list(load("quickstart"))[:6]
    shape = constraint(Findings)

    async def asked(sample: Sample) -> Generation:
        prompt = Prompt.of(
            f"Which statements of the answer does the text support?\n\nText: {' '.join(sample.context)}\n\n"
            f"Answer: {sample.output}\n\nReply in JSON."
        )
        rule = shape.over(context=sample.context, output=sample.output)
        return await engine.generate(prompt, rule, sampling=Sampling(160))

    async def all_asked() -> list[Generation]:
        return await asyncio.gather(*map(asked, samples))

    found = 0
    for sample, generation in zip(samples, asyncio.run(all_asked()), strict=True):
        assert generation.finish == "stop" and len(generation.tokens) <= 160
        for finding in generation.value.findings:
            assert sample.output[finding.said.start : finding.said.end] == finding.said
            found += 1
            if finding.given is not None:
                given = finding.given
                assert sample.context[given.source_index][given.start : given.end] == given
    assert found >= len(samples) / 2  # a small model writes an empty list now and then


@pytest.mark.full
def test_fifty_thousand_tokens_can_be_quoted_from(desk: Desk) -> None:
    words = " ".join(sample.output for sample in load("quickstart")).split()
    text = " ".join(f"{word} {number}" for number, word in enumerate(words * 8))[:230_000]
    assert len(desk.chat.encode(text).tokens) > 50_000
    begun = time.perf_counter()
    shape = quoting(text, maxLength=400)
    matcher = desk.masks.matcher(shape)
    written = f'"{escape(text[100_000:100_300].partition(" ")[2].rpartition(" ")[0])}"'
    for token in desk.chat.encode(written).tokens:
        assert matcher.allows(token)
        matcher.consume([token])
    assert matcher.accepting
    assert time.perf_counter() - begun < 15  # a shared machine


def test_a_context_is_compiled_once_and_forked(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = quoting("Compiled once and for all.")
    first = desk.masks.matcher(shape)
    monkeypatch.setattr(desk.masks, "_compile", None)
    second = desk.masks.matcher(constraint(shape))
    tokens = list(desk.chat.encode('"Compiled once"').tokens)
    first.consume(tokens)
    assert first.accepting and not second.accepting
    second.consume(tokens[:2])


@pytest.mark.full
def test_compiled_texts_are_forgotten_before_they_fill_the_memory(desk: Desk) -> None:
    long = "word " * 40_000
    shapes = [quoting(long + str(number)) for number in range(12)]
    for shape in shapes:
        desk.masks.matcher(shape)
    known = [shape for shape in shapes if desk.masks.knows(shape)]
    assert known and known == shapes[-len(known) :]
    assert sum(len(shape.grammar) for shape in known) <= COMPILED_TEXT or len(known) == 1


# --- errors -------------------------------------------------------------------------------------


def test_texts_are_asked_for_by_name() -> None:
    shape = constraint(Findings)
    assert shape.quotes == ("output", "context")
    with pytest.raises(ConstraintError, match=r"constraint\.over\(output=…, context=…\)"):
        shape.require_bounds()
    with pytest.raises(ConstraintError, match="texts were given for context"):
        shape.over(context="a")
    with pytest.raises(ConstraintError, match="quotes nothing"):
        constraint(bool).over(text="a")
    with pytest.raises(ConstraintError, match="too many to quote from"):
        quoting("a " * (LONGEST_TEXTS // 2 + 1))


@pytest.mark.parametrize(
    ("node", "says"),
    [
        ({"type": "string", "x-quote": "text"}, '{"of": NAME'),
        ({"type": "string", "x-quote": {"of": "text", "unit": "lines"}}, "words and sentences"),
        ({"type": "string", "x-quote": {"of": "text", "most": 3}}, '{"of": NAME'),
        ({"type": "integer", "x-quote": {"of": "text"}}, "a quote needs"),
        ({"type": "string", "x-quote": {"of": "text"}, "pattern": "^a"}, "combined with pattern"),
        ({"allOf": [{"type": "string", "x-quote": {"of": "text"}}]}, "several schemas apply"),
    ],
)
def test_what_is_no_quote_is_an_error_with_its_place(node: Any, says: str) -> None:
    with pytest.raises(ConstraintError, match=says) as caught:
        constraint({"type": "object", "properties": {"q": node}, "required": ["q"]}).over(text="a")
    assert caught.value.pointer is not None and caught.value.pointer.startswith("#/properties/q")


def test_the_annotation_says_what_is_wrong_with_it() -> None:
    with pytest.raises(ConstraintError, match="the units are words and sentences"):
        Quote["context", "lines"]  # type: ignore[type-arg, misc]
    with pytest.raises(ConstraintError, match="give the source of the quote"):
        constraint(Quote)
