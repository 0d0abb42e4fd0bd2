"""What servers with masks of their own are sent, and what is made of answers that had none."""

from __future__ import annotations

import json
import re
import time
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance.gbnf_to_lark import any_to_lark
from pydantic import BaseModel, Field

from magistrate.constraints import Constraint, Lark, Quote, constraint, express, repair
from magistrate.constraints.lark import compile_grammar, follow
from magistrate.errors import ConstraintError, InvalidOutput

Given = Quote["context"]


class Verdict(BaseModel):
    reason: Annotated[str, Field(max_length=20)]
    label: Literal["faithful", "hallucinated"]
    score: Annotated[int, Field(ge=0, le=10)]
    tags: Annotated[list[Literal["a", "b"]], Field(max_length=2)]
    code: Annotated[str, Field(pattern=r'^[A-Z"]{2}\d{1,3}$')]
    sure: bool | None


class Tree(BaseModel):
    kind: Literal["leaf", "fork"]
    below: Annotated[list[Tree], Field(min_length=0, max_length=2)]


RIGHT = {
    "reason": 'a "b"\né😀',
    "label": "faithful",
    "score": 7,
    "tags": ["b", "a"],
    "code": 'A"12',
    "sure": None,
}
WRONG: list[dict[str, Any]] = [
    {"reason": "x" * 21},
    {"label": "faithfull"},
    {"score": 11},
    {"score": -1},
    {"tags": ["a"] * 3},
    {"code": "A12"},
    {"code": "AB1234"},
    {"sure": 0},
    {"more": 1},
]
SHAPES: list[tuple[Constraint, list[str], list[str]]] = [
    (
        constraint(Verdict),
        [json.dumps(RIGHT, ensure_ascii=False, separators=(",", ":"))],
        [json.dumps(RIGHT | wrong, ensure_ascii=False, separators=(",", ":")) for wrong in WRONG]
        + ["{}", ""],
    ),
    (
        constraint(Tree, depth=3),
        ['{"kind":"fork","below":[{"kind":"leaf","below":[]},{"kind":"leaf","below":[]}]}'],
        ['{"kind":"fork","below":[{"kind":"leaf"}]}', '{"kind":"fork","below":[,]}'],
    ),
    (constraint(["yes", "no (really?)", 'x"\n é']), ["yes", "no (really?)", 'x"\n é'], ["ye", "no", '"yes"']),
    (
        constraint(re.compile(r"[^\d\s]{1,3}(?:-[0-9]{1,4}|\.é)?[\w-]{2}")),
        ["abc-12xy", "(.é_-"],
        ["1bc", "ab", "a" * 9],
    ),
    (
        constraint(
            {
                "type": "object",
                "properties": {
                    "a": {"type": "null"},
                    "b": {
                        "type": "array",
                        "prefixItems": [{"const": 1}],
                        "items": {"const": 2},
                        "maxItems": 3,
                    },
                    "c": {"type": "string", "format": "date"},
                },
                "required": ["b"],
                "additionalProperties": False,
            }
        ),
        ['{"b":[]}', '{"a":null,"b":[1,2,2],"c":"2024-02-29"}', '{"b":[1]}'],
        ['{"a":null}', '{"b":[1,2,2,2]}', '{"b":[2]}', '{"b":[],"c":"2023-02-29"}', '{,"b":[]}'],
    ),
]


def grammar_of(shape: Constraint, dialect: str) -> str:
    """What a server would make of the payload, as Lark for our own checker."""
    payload = express(shape, dialect).payload  # type: ignore[arg-type]
    if dialect == "lark":
        return str(payload)
    if dialect == "gbnf":
        return str(any_to_lark(payload))
    return "start: /" + payload.replace("/", "\\/") + "/\n"


@pytest.mark.parametrize("dialect", ["gbnf", "lark", "regex"])
@pytest.mark.parametrize(("shape", "right", "wrong"), SHAPES, ids=lambda each: getattr(each, "name", ""))
def test_every_dialect_says_the_same(
    shape: Constraint, right: list[str], wrong: list[str], dialect: Any
) -> None:
    assert express(shape, dialect).lost == ()
    grammar = grammar_of(shape, dialect)
    compile_grammar(grammar)
    assert {follow(grammar, text) for text in right} == {"valid"}
    assert "valid" not in {follow(grammar, text) for text in wrong}
    if dialect == "regex":
        pattern = re.compile(express(shape, "regex").payload)
        assert all(pattern.fullmatch(text) for text in right)
        assert not any(pattern.fullmatch(text) for text in wrong)


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=12))
def test_a_string_is_written_in_one_way(text: str) -> None:
    shape = constraint({"type": "string", "maxLength": 12})
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    written = json.dumps(text, ensure_ascii=False)
    plain = all(letter >= " " or letter in "\b\t\n\f\r" for letter in text)
    assert bool(re.fullmatch(express(shape, "regex").payload, written)) is plain


def test_what_a_dialect_cannot_say_is_named() -> None:
    quoting = constraint(
        {
            "type": "object",
            "properties": {
                "quote": {"type": "string", "x-quote": {"of": "context"}},
                "share": {"type": "number", "minimum": 0, "maximum": 1},
            },
            "required": ["quote", "share"],
            "additionalProperties": False,
        }
    ).over(context="The doors open at nine.")
    quote = "#/properties/quote: that it is a quote from 'context'"
    assert express(quoting, "json_schema").lost == (quote,)
    assert "x-quote" not in json.dumps(express(quoting, "json_schema").payload)
    bounds = ("#/properties/share: minimum", "#/properties/share: maximum")
    for dialect in ("gbnf", "regex"):
        assert express(quoting, dialect).lost == (quote, *bounds)  # type: ignore[arg-type]
        grammar = grammar_of(quoting, dialect)
        assert follow(grammar, '{"quote":"The doors","share":0.25}') == "valid"
        assert follow(grammar, json.dumps({"quote": "x" * 24, "share": 0})) == "invalid"
    assert express(quoting, "lark").lost == ()


def test_numbers_have_room_for_every_digit() -> None:
    for bounds in ({"minimum": 5, "exclusiveMaximum": 5000}, {"exclusiveMinimum": -5000, "maximum": 5}):
        shape = constraint({"type": "integer"} | bounds)
        sign = "-" if "maximum" in bounds else ""
        for dialect in ("gbnf", "regex"):
            assert follow(grammar_of(shape, dialect), f"{sign}4999") == "valid"
            assert follow(grammar_of(shape, dialect), f"{sign}49999") == "invalid"
    assert express(constraint({"type": "string", "enum": ["a", 1]}), "regex").payload == '(?:"a")'


@pytest.mark.parametrize(
    ("shape", "dialect", "says"),
    [
        (constraint(["a"]), "json_schema", "is plain text"),
        (constraint(Lark('start: "a"')), "gbnf", "only be sent as Lark"),
        (constraint({"type": "string", "x-lark": 'start: "a"'}), "regex", "only be sent as Lark"),
        (constraint({"allOf": [{"type": "null"}, {"type": "null"}]}), "regex", "merge"),
        (constraint(re.compile("(?i)a")), "gbnf", "flags"),
        (constraint({"type": "string"}), "lark", "maxLength"),
        (constraint(["a"]), "xml", "not a dialect"),
    ],
)
def test_what_cannot_be_said_at_all_is_an_error(shape: Constraint, dialect: Any, says: str) -> None:
    with pytest.raises(ConstraintError, match=says):
        express(shape, dialect)


# --- repair -------------------------------------------------------------------------------------

LABELS = constraint(["faithful", "hallucinated", "not sure"])
SHORT = constraint(
    {
        "type": "object",
        "properties": {
            "why": {"type": "string", "maxLength": 40},
            "label": {"enum": ["faithful", "hallucinated"]},
            "claims": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3},
        },
        "required": ["label"],
        "additionalProperties": False,
    }
)
FAITHFUL = {"label": "faithful"}


@pytest.mark.parametrize(
    "text",
    [
        '{"label": "faithful"}',
        '```json\n{"label": "faithful"}\n```',
        "{'label': \"faithful\"}",
        "{\"label\": 'faithful'}\n",
        "{'label': 'faithful',}",
        '{label: "faithful"}',
        "```\n{label: faithful,}\n```",
    ],
)
def test_an_answer_that_can_only_mean_one_thing_is_put_right(text: str) -> None:
    assert repair(text, SHORT) == FAITHFUL


@pytest.mark.parametrize(
    "text",
    [
        "",
        "It is faithful.",
        'Here is my answer:\n\n{"label": "faithful"}\n\nI hope it helps {so}.',
        '{"label": "faithful"}\nActually no.',
        '{"label": "faithful"} {"label": "faithful"}',
        '{"label": "faithful"} no: {"label": "hallucinated"}',
        '{"wrong": {"label": "faithful"}, "right": {"label": "hallu',
        '{"label": "hallucinated", "label": "faithful"}',
        "{'label': 'hallucinated', 'label': 'faithful'}",
        '{"label": "faithful" /* or hallucinated */}',
        '{"label": "faithful",} // no',
        '```json\n{"label": "faithful"}\n``` or not',
        '{"label": "faithful"',
        '{"label": "faithful", "claims": [',
        '{"label": "faithful", "why": "because [1',
        '{"label": "faith"}',
        '{"label": "faithful", "note": 1}',
        "{" * 5000,
        '{"a":' * 5000,
        '{"label": "faithful"}' + " " * 200_000,
    ],
)
def test_what_may_mean_something_else_stays_a_failure(text: str) -> None:
    begun = time.perf_counter()
    with pytest.raises(InvalidOutput):
        repair(text, SHORT)
    assert time.perf_counter() - begun < 10


@pytest.mark.parametrize("text", ["faithful", " Faithful.\n", '"faithful"', "`faithful`", "FAITHFUL"])
def test_a_choice_is_found_in_its_marks(text: str) -> None:
    assert repair(text, LABELS) == "faithful"


@pytest.mark.parametrize(
    "text",
    [
        "not faithful",
        "faithful or hallucinated",
        "unfaithful",
        "",
        "faithfu",
        "sure",
        "faithful!",
        "**faithful**",
    ],
)
def test_another_word_is_no_choice(text: str) -> None:
    with pytest.raises(InvalidOutput):
        repair(text, LABELS)


def test_a_repaired_quote_is_verbatim_still() -> None:
    class Found(BaseModel):
        given: Given

    shape = constraint(Found).over(context="The doors open at nine.")
    found = repair("{'given': 'open at nine'}", shape)
    assert isinstance(found, Found) and found.given.start == 10
    with pytest.raises(InvalidOutput, match="are not words"):
        repair("{'given': 'open at ten'}", shape)
