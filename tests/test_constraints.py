"""Laws of constraints: what becomes one, what its masks let through, what comes back."""

from __future__ import annotations

import datetime
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer
from pydantic import BaseModel, Field

from magistrate.constraints import Constraint, Lark, check, compile_check, constraint
from magistrate.errors import ConstraintError, InvalidOutput
from tiers import tries

BYTES = LLTokenizer("byte")


def matcher(rule: Constraint) -> LLMatcher:
    return LLMatcher(BYTES, LLMatcher.grammar_from_lark(rule.grammar), log_level=0)


def lets_through(rule: Constraint, text: str) -> bool:
    """The masks, asked byte by byte."""
    walk, raw = matcher(rule), list(text.encode())
    return walk.try_consume_tokens(raw) == len(raw) and walk.is_accepting()


def wander(rule: Constraint, chance: random.Random) -> str:
    """A text written by drawing at random among the bytes that the masks allow."""
    walk, written = matcher(rule), bytearray()
    while not walk.is_stopped():
        bits = np.unpackbits(np.frombuffer(walk.compute_bitmask(), np.uint8), bitorder="little")
        allowed = [int(byte) for byte in np.flatnonzero(bits) if byte < 256]
        if walk.is_accepting() and (not allowed or chance.random() < 0.3):
            break
        telling = [byte for byte in allowed if byte in b'"\\]},.u0e-']
        written.append(chance.choice(telling if telling and chance.random() < 0.4 else allowed))
        assert walk.consume_token(written[-1])
        assert len(written) < 5000
    return written.decode()


# --- types come back as themselves --------------------------------------------------------------


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(Enum):
    LOW = 1
    HIGH = 2


Short = Annotated[str, Field(max_length=8)]


@dataclass(frozen=True)
class Part:
    count: Annotated[int, Field(ge=0, le=5)]
    colour: Colour
    day: datetime.date


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=1, le=9)]


class Dog(BaseModel):
    kind: Literal["dog"]
    name: Short


@dataclass(frozen=True)
class Whole:
    why: Short
    parts: Annotated[list[Part], Field(max_length=2)]
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    pair: tuple[bool, Short]
    level: Level = Level.LOW
    note: Short | None = None
    share: Annotated[float, Field(ge=0, le=1)] = 0.5


WHOLE = (
    '{"why":"a\\"b","parts":[{"count":1,"colour":"red","day":"2024-02-29"}],"pet":{"kind":"dog","name":"Rex"},'
    '"pair":[true,"x"],"level":2,"note":null,"share":0.25}'
)


def test_a_nested_dataclass_comes_back_whole() -> None:
    rule = constraint(Whole)
    rule.require_bounds()
    compile_check(rule)
    part = Part(1, Colour.RED, datetime.date(2024, 2, 29))
    expected = Whole('a"b', [part], Dog(kind="dog", name="Rex"), (True, "x"), Level.HIGH, None, 0.25)
    assert rule.parse(WHOLE) == expected
    assert lets_through(rule, WHOLE)
    assert rule.name == "Whole"


def test_keys_are_exactly_the_declared_ones_in_their_order() -> None:
    rule = constraint(Part)
    assert lets_through(rule, '{"count":1,"colour":"red","day":"2024-01-01"}')
    for text in (
        '{"colour":"red","count":1,"day":"2024-01-01"}',
        '{"count":1, "colour":"red","day":"2024-01-01"}',
    ):
        assert not lets_through(rule, text)
        assert rule.parse(text) == Part(1, Colour.RED, datetime.date(2024, 1, 1))
    whole = json.loads(WHOLE)
    for key in ("note", "share"):  # a default does not make a key optional
        with pytest.raises(InvalidOutput):
            constraint(Whole).parse(json.dumps({k: v for k, v in whole.items() if k != key}))
    with pytest.raises(InvalidOutput):
        constraint(Whole).parse(json.dumps(whole | {"more": 1}))


@pytest.mark.parametrize(
    ("spec", "kind", "text", "value"),
    [
        (Colour, "choice", "red", Colour.RED),
        (Level, "json", "2", Level.HIGH),
        (Literal["yes", "no"], "choice", "no", "no"),
        (Literal[1, "a"], "json", '"a"', "a"),
        (bool, "json", "true", True),
        (Short, "json", '"\\u00e9"', "é"),
        (Annotated[list[bool], Field(max_length=2)], "json", "[true]", [True]),
        (Annotated[int, Field(ge=0, le=9)] | None, "json", "null", None),
        (re.compile("a[bc]{2}"), "regex", "abc", "abc"),
        (["x", "y z"], "choice", "y z", "y z"),
        (Lark('start: "a" /[0-9]/'), "lark", "a1", "a1"),
        ({"type": "object", "properties": {"a": {"type": "null"}}}, "json", '{"a":null}', {"a": None}),
    ],
)
def test_every_kind_parses_to_what_was_passed_in(spec: Any, kind: str, text: str, value: Any) -> None:
    rule = constraint(spec)
    rule.require_bounds()
    compile_check(rule)
    assert rule.kind == kind
    assert rule.parse(text) == value and type(rule.parse(text)) is type(value)
    assert check(text, rule) == "valid"
    assert constraint(rule) is rule
    for wrong in ("", text + "!", text[:-1]):
        with pytest.raises(InvalidOutput) as caught:
            rule.parse(wrong)
        assert caught.value.text == wrong


@pytest.mark.parametrize("text", ["[1", "NaN", '{"a":1,"a":1}', '{"a":11}', '{"a":"1"}', '{"a":true}', "{}"])
def test_an_output_that_breaks_its_schema_never_parses(text: str) -> None:
    class Model(BaseModel):
        a: Annotated[int, Field(ge=0, le=10)]

    with pytest.raises(InvalidOutput):
        constraint(Model).parse(text)


@pytest.mark.parametrize(
    "spec",
    [3, None, "text", object(), lambda x: x, [], [1], ["a", "a"], [""], True, re.compile(b"a"), set[int]],
)
def test_what_is_no_constraint_is_refused(spec: Any) -> None:
    with pytest.raises(ConstraintError):
        constraint(spec)


def test_the_digest_is_the_same_in_every_process_and_tells_constraints_apart() -> None:
    code = (
        "from magistrate.constraints import constraint as c; "
        "print(c(['a', 'b']).digest, c({'const': 1}).digest)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert printed == [constraint(["a", "b"]).digest, constraint({"const": 1}).digest]
    assert (
        len({constraint(c).digest for c in (["a", "b"], ["b", "a"], re.compile("a|b"), {"enum": ["a", "b"]})})
        == 4
    )
    assert constraint(["a"]) == constraint(["a"]) and hash(constraint(["a"])) == hash(constraint(["a"]))


def test_nothing_heavy_is_imported_with_the_package() -> None:
    heavy = "{'llguidance', 'jsonschema', 'pydantic', 'numpy'}"
    code = f"import sys, magistrate.constraints; print(*{heavy} & set(sys.modules))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == ""


# --- the walk over a schema ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "pointer", "says"),
    [
        ({"type": "string", "maxLenght": 3}, "#/maxLenght", 'did you mean "maxLength"'),
        ({"type": "object", "properties": {"a/b": {"type": "strin"}}}, "#/properties/a~1b/type", '"string"'),
        ({}, "#", "empty schema"),
        (True, "#", "anything"),
        ({"title": "only words"}, "#", "empty schema"),
        ({"type": "string", "maxLength": "3"}, "#/maxLength", "integer"),
        ({"enum": []}, "#/enum", "nothing"),
        ({"type": "string", "pattern": "(?=a)b"}, "#/pattern", "lookarounds"),
        ({"type": "string", "pattern": r"(a)\1"}, "#/pattern", "backreferences"),
        ({"type": "string", "pattern": r"\ba"}, "#/pattern", "anchors"),
        ({"type": "string", "pattern": "("}, "#/pattern", "not a regular expression"),
        ({"type": "string", "format": "email"}, "#/format", "known: date"),
        ({"type": "string", "format": "date", "pattern": "a"}, "#/format", "one pattern"),
        ({"$ref": "https://example.com/x"}, "#/$ref", "#/$defs/NAME"),
        ({"$ref": "#/$defs/x", "$defs": {"y": {"type": "null"}}}, "#/$ref", "known: y"),
        ({"type": "object", "additionalProperties": {"type": "null"}}, "#/additionalProperties", "unlimited"),
        ({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["b"]}, "#/required", "b"),
        ({"type": "number", "minimum": 0, "maximum": 1e16}, "#", "15 digits"),
        ({"type": "number", "minimum": 0.1, "maximum": 0.2, "multipleOf": 0.5}, "#", "no multiple"),
        ({"const": 1e300}, "#/const", "1e15"),
        ({"anyOf": [{"type": "null"}, {"type": "null", "$id": "x"}]}, "#/anyOf/1/$id", "$id"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "#/oneOf", "anyOf"),
        ({"const": "\ud800"}, "#", "JSON"),
        ({"type": "array", "items": 3}, "#/items", "object"),
        ({"type": "array", "prefixItems": [False]}, "#/prefixItems/0", "allows nothing"),
        (
            {"anyOf": [{"type": "null"}, {"type": "string", "minLength": 5, "maxLength": 3}]},
            "#/anyOf/1/minLength",
            "no value is between minLength 5 and maxLength 3",
        ),
        (
            {"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 1},
            "#/minItems",
            "no value",
        ),
        ({"type": "string", "enum": [1, 2]}, "#/enum", "no value that type allows"),
        ({"type": "integer", "const": "a"}, "#/const", "no value that type allows"),
        (
            {"type": "array", "prefixItems": [{"type": "null"}], "items": False, "minItems": 2},
            "#/minItems",
            "more than the 1 items",
        ),
        (
            {"type": "array", "items": {"type": "string", "maxLength": 3}, "uniqueItems": True},
            "#/uniqueItems",
            "needs an enum for items",
        ),
        ({"type": "array", "items": {"enum": [1, 1.0]}, "uniqueItems": True}, "#/uniqueItems", "themselves"),
        (
            {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 65}, "uniqueItems": True},
            "#/uniqueItems",
            "too many",
        ),
        ({"type": "string", "not": {"const": "a"}}, "#/not", "list what is allowed"),
        (
            {"type": "object", "if": {"contains": {}}, "then": {"type": "object"}},
            "#/if",
            "alternatives in anyOf",
        ),
    ],
)
def test_a_schema_that_would_not_be_held_to_is_refused_with_its_place(
    schema: Any, pointer: str, says: str
) -> None:
    with pytest.raises(ConstraintError) as caught:
        constraint(schema)
    assert caught.value.pointer == pointer
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "keyword",
    [
        "contains",
        "minContains",
        "maxContains",
        "unevaluatedItems",
        "unevaluatedProperties",
        "additionalItems",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "$anchor",
        "$dynamicAnchor",
        "$dynamicRef",
        "$recursiveRef",
        "$recursiveAnchor",
        "$vocabulary",
    ],
)
def test_every_keyword_of_the_standard_that_masks_cannot_hold_is_refused_by_name(keyword: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        constraint({"type": "object", "properties": {"a": {"type": "null", keyword: {}}}})
    assert caught.value.pointer == f"#/properties/a/{keyword}"
    assert f'"{keyword}" cannot be enforced during generation; ' in str(caught.value)


def test_annotations_change_nothing() -> None:
    words = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/s",
        "title": "t",
        "description": "d",
        "default": 1,
        "examples": [{}],
        "$comment": "c",
        "deprecated": True,
        "readOnly": True,
        "writeOnly": False,
        "x-anything": 3,
    }
    rule = constraint({"$ref": "#/$defs/a", "$defs": {"a": {"const": 1, "title": "u"}}} | words)
    plain = constraint({"$ref": "#/$defs/a", "$defs": {"a": {"const": 1}}})
    assert rule.grammar == plain.grammar
    assert rule.parse("1") == 1 and check("2 ", rule) == "invalid"


def test_a_grammar_that_does_not_compile_is_a_constraint_error() -> None:
    for rule in (
        constraint(Lark("start: (")),
        constraint({"type": "string", "pattern": "^a$", "minLength": 3, "maxLength": 4}),
    ):
        with pytest.raises(ConstraintError, match="cannot be compiled"):
            compile_check(rule)


# --- bounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "string"}, "#"),
        ({"type": ["null", "string"]}, "#"),
        ({"type": "array", "items": {}, "maxItems": 3}, "#/items"),
        ({"type": "object", "properties": {"a": True}}, "#/properties/a"),
        ({"type": "string", "pattern": "^a+$"}, "#/pattern"),
        ({"type": "string", "pattern": "a"}, "#/pattern"),
        ({"type": "string", "pattern": "^(?:a{2,}|b)$"}, "#/pattern"),
        ({"type": "array", "items": {"type": "null"}}, "#"),
        ({"type": "array", "maxItems": 2}, "#"),
        ({"type": "array", "maxItems": 2, "items": {"type": "integer"}}, "#/items"),
        ({"type": "array", "prefixItems": [{"type": "null"}], "maxItems": 2}, "#"),
        ({"type": "integer", "minimum": 0}, "#"),
        ({"type": "number", "exclusiveMaximum": 0}, "#"),
        ({"type": "object"}, "#"),
        ({"minimum": 0, "maximum": 1}, "#"),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, "#/anyOf/1"),
        (
            {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/s"}},
                "$defs": {"s": {"type": "string"}},
            },
            "#/$defs/s",
        ),
        (
            {"allOf": [{"type": "object", "properties": {}}, {"type": "object", "properties": {}}]},
            "#/allOf/0",
        ),
        ({"type": "array", "maxItems": 1, "items": {"$ref": "#"}}, "#/items/$ref"),
    ],
)
def test_what_has_no_bound_is_named_with_its_place(schema: Any, pointer: str) -> None:
    rule = constraint(schema)
    with pytest.raises(ConstraintError) as caught:
        rule.require_bounds()
    assert caught.value.pointer == pointer


class Tree(BaseModel):
    leaves: Annotated[list[Tree], Field(max_length=2)]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (str, "Field(max_length=…)"),
        (list[bool], "maxItems"),
        (int, "Field(ge=…, le=…)"),
        (Tree, "refers to itself"),
        (re.compile("a*"), "{m,n}"),
        (re.compile("a|b+"), "{m,n}"),
    ],
)
def test_the_message_says_what_to_write_instead(spec: Any, says: str) -> None:
    with pytest.raises(ConstraintError, match=re.escape(says)):
        constraint(spec).require_bounds()


# --- masks --------------------------------------------------------------------------------------

WITHIN: list[tuple[dict[str, Any], list[str]]] = [
    ({"type": ["null", "boolean"]}, ["null", "true", "1", '""', "[]"]),
    (
        {"enum": ["a\n\u2028", 1.5, None, {"b": 1, "a": [0]}]},
        ['"a\\n\u2028"', "1.5", "null", '{"b":1,"a":[0]}', "1", '"a"'],
    ),
    ({"const": 'é\\"'}, ['"é\\\\\\""', '"é"']),
    (
        {"type": "string", "minLength": 2, "maxLength": 3},
        [
            '"a"',
            '"ab"',
            '"abc"',
            '"abcd"',
            '"\\n\\n\\n"',
            '"\\n\\n\\n\\n"',
            '"éé😀"',
            '"éé😀x"',
            '"\\u0007ab"',
            '"a\nb"',
        ],
    ),
    (
        {"type": "array", "items": {"enum": ["a", 1]}, "uniqueItems": True},
        ["[]", '["a"]', '[1,"a"]', "[1,1]", '["a",1,"a"]', "[2]"],
    ),
    ({"type": "string", "pattern": "^a[bc]{1,2}$"}, ['"ab"', '"abcb"', '"xab"', '"abx"', '"abc"']),
    ({"type": "string", "pattern": "b", "maxLength": 3}, ['"abc"', '"ac"', '"b"', '"abcd"']),
    (
        {"type": "string", "format": "date"},
        ['"2024-02-29"', '"2023-02-29"', '"2100-02-29"', '"2000-02-29"', '"2024-13-01"'],
    ),
    (
        {"type": "integer", "minimum": -3, "exclusiveMaximum": 12},
        ["-4", "-3", "0", "11", "12", "1.5", "-0.5"],
    ),
    ({"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": 7}, ["14", "15", "0", "98", "105"]),
    (
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        ["0", "0.5", "0.000001", "1", "1.000001", "-0.5"],
    ),
    (
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.001},
        ["0", "0.0005", "0.001", "0.000999"],
    ),
    ({"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.01}, ["0.29", "0.07", "0.295", "1.01"]),
    (
        {"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2},
        ["[]", "[null]", "[null,null]", "[null,null,null]", "[1]"],
    ),
    (
        {"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": False},
        ["[]", "[null]", "[null,true]", "[true]", "[null,true,1]"],
    ),
    (
        {"type": "array", "prefixItems": [{"type": "null"}], "items": {"const": 1}, "maxItems": 2},
        ["[null,1]", "[null,2]", "[null,1,1]"],
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"type": "null"}, "b": {"const": 1}},
            "required": ["b"],
            "additionalProperties": False,
        },
        ['{"a":null,"b":1}', '{"b":1}', '{"a":null}', "{}", '{"b":1,"c":1}', '{"a":1,"b":1}'],
    ),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}}, ["null", "1"]),
    ({"$ref": "#/definitions/a", "definitions": {"a": {"type": "null"}}}, ["null", "1"]),
    ({"anyOf": [{"type": "string", "maxLength": 1}, {"type": "null"}]}, ['"a"', '"ab"', "null", "1"]),
    (
        {"type": "string", "maxLength": 4, "allOf": [{"minLength": 2}, {"pattern": "^a"}]},
        ['"ab"', '"a"', '"ba"', '"abcde"'],
    ),
    (
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"k": {"const": "a"}, "x": {"type": "null"}},
                    "required": ["k", "x"],
                    "additionalProperties": False,
                },
                {
                    "type": "object",
                    "properties": {"k": {"const": "b"}},
                    "required": ["k"],
                    "additionalProperties": False,
                },
                {"type": "null"},
            ]
        },
        ['{"k":"a","x":null}', '{"k":"b"}', '{"k":"a"}', '{"k":"b","x":null}', "null", "1"],
    ),
]


def exactly(schema: dict[str, Any], text: str) -> bool:
    """jsonschema's answer, numbers as written: 0.29 is a multiple of 0.01. Formats as Python reads them."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    if schema.get("multipleOf") == 0.01:
        return 0 <= value <= 1 and len(text.partition(".")[2]) <= 2
    checker = Draft202012Validator.FORMAT_CHECKER
    return Draft202012Validator(schema, format_checker=checker).is_valid(value)


def test_masks_let_through_exactly_what_jsonschema_accepts() -> None:
    for schema, texts in WITHIN:
        rule = constraint(schema)
        for text in texts:
            assert lets_through(rule, text) == exactly(schema, text), (schema, text)
            assert (check(text + " ", rule) == "valid") == exactly(schema, text), (schema, text)


def test_the_table_has_every_enforced_keyword() -> None:
    from magistrate.constraints.schema import ENFORCED

    tried = set(re.findall(r'"([$\w]+)":', json.dumps([schema for schema, _ in WITHIN])))
    assert tried >= ENFORCED


def test_digits_come_to_an_end() -> None:
    rule = constraint({"type": "number", "minimum": 0, "maximum": 1})
    assert lets_through(rule, "0.333333")
    assert not lets_through(rule, "0.3333333") and not lets_through(rule, "1e-1")
    wide = constraint({"type": "number", "minimum": 0, "maximum": 10**12})
    assert lets_through(wide, "123456789012.25") and not lets_through(wide, "123456789012.2525")


def test_strings_hold_no_control_character_and_no_half_of_a_pair() -> None:
    rule = constraint({"type": "string", "maxLength": 5})
    for text in ('"\x00"', '"\x1f"', '"\\ud83d"', '"\\ud83d\\ude00"'):
        assert not lets_through(rule, text)
    for raw in (b'"\xff"', b'"\xed\xa0\x80"', b'"\xc3"'):
        assert matcher(rule).try_consume_tokens(list(raw)) < len(raw)


@pytest.mark.parametrize(
    "choice",
    ['a"b', "a\\b", "a\nb\t\r", "é😀\u0301", "\x00\x7f", "a/b", "<|im_end|>", "%json {}", "\\n", " "],
)
def test_a_choice_is_written_letter_by_letter(choice: str) -> None:
    rule = constraint([choice, "other"])
    assert lets_through(rule, choice) and rule.parse(choice) == choice
    assert not lets_through(rule, choice + "x")


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (re.compile('a/b\n"'), ['a/b\n"'], ["ab"]),
        (re.compile("[^a-y/]{2}"), ["zé", "\n\n"], ["a!", "//"]),
        (re.compile("ab", re.IGNORECASE), ["aB"], ["ac"]),
        (re.compile("(?i)a(?-i:b)"), ["Ab"], ["AB"]),
        (re.compile("a.b"), ["axb"], ["a\nb"]),
        (re.compile("a.b", re.DOTALL), ["a\nb"], ["ab"]),
        (re.compile("a  b # words", re.VERBOSE), ["ab"], ["a  b"]),
        (re.compile(r"^\d{1,2}$"), ["12"], ["123", ""]),
        (re.compile(r"\w\W"), ["é-"], ["-a", "é\u0301"]),
        (re.compile("(?P<x>a|bc)??"), ["", "bc"], ["b"]),
        (re.compile(r"[&~\]^-]{1,9}"), ["&~]^-"], ["a"]),
    ],
)
def test_a_regular_expression_means_what_python_means(
    pattern: re.Pattern[str], right: list[str], wrong: list[str]
) -> None:
    rule = constraint(pattern)
    compile_check(rule)
    for text in right:
        assert lets_through(rule, text) and rule.parse(text) == text and pattern.fullmatch(text)
    for text in wrong:
        assert not lets_through(rule, text)


@pytest.mark.parametrize(
    "pattern", ["(?=a)a", "(?<!a)b", r"(a)\1", "a^b", "a$b", r"\bab", "a++", "(?>a)", "(a)(?(1)b|c)"]
)
def test_what_cannot_be_held_to_while_writing_is_refused(pattern: str) -> None:
    with pytest.raises(ConstraintError, match="cannot be enforced"):
        constraint(re.compile(pattern))


STRINGS: list[Callable[[int], dict[str, Any]]] = [
    lambda n: {"type": "string", "maxLength": n},
    lambda n: {"type": "string", "pattern": r"^\W\S\D\w\d\s[^\W\d]$"},
    lambda n: {"type": "string", "pattern": r"a[^\w]|\S{2}", "maxLength": n + 2},
    lambda n: {"type": "string", "format": ["date", "time", "date-time", "duration", "uuid", "ipv4"][n % 6]},
]
NUMBERS = st.builds(
    lambda low, width, kind, step: (
        {"type": kind, "exclusiveMinimum": low, "maximum": round(low + width, 7)}
        | ({"multipleOf": step} if step else {})
    ),
    st.sampled_from([-10.5, -1, 0, 0.25, 3, 1e6]),
    st.sampled_from([12, 12.75, 1000.1234567]),
    st.sampled_from(["integer", "number"]),
    st.sampled_from([None, 0.5, 2, 0.1]),
).filter(lambda schema: schema["type"] == "number" or schema.get("multipleOf") in (None, 2))
LEAVES = (
    st.builds(lambda make, n: make(n), st.sampled_from(STRINGS), st.integers(0, 5))
    | NUMBERS
    | st.sampled_from(
        [{"type": "null"}, {"type": "boolean"}, {"enum": ["a", 1, None]}, {"const": {"a": ["b"]}}]
    )
)


def combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    named = st.dictionaries(st.sampled_from(["a", "b", 'q"\\', "é"]), inner, max_size=3)
    return (
        st.builds(lambda items, n: {"type": "array", "items": items, "maxItems": n}, inner, st.integers(0, 3))
        | st.builds(
            lambda items: {"type": "array", "prefixItems": items, "items": False},
            st.lists(inner, min_size=1, max_size=3),
        )
        | st.builds(lambda branches: {"anyOf": branches}, st.lists(inner, min_size=1, max_size=3))
        | named.flatmap(
            lambda properties: st.lists(st.sampled_from([*properties] or ["a"]), unique=True).map(
                lambda required: {
                    "type": "object",
                    "properties": properties,
                    "required": required if properties else [],
                }
            )
        )
    )


@settings(max_examples=tries(120), deadline=None)
@given(st.recursive(LEAVES, combined, max_leaves=5), st.integers(0, 2**32))
def test_whatever_is_drawn_under_the_masks_is_valid_outside_them(schema: dict[str, Any], seed: int) -> None:
    rule = constraint(schema)
    rule.require_bounds()
    text = wander(rule, random.Random(seed))
    assert rule.parse(text) == json.loads(text)
    assert check(text, rule) == "valid"
    assert "invalid" not in {check(text[:end], rule) for end in range(0, len(text), 3)}
    assert json.dumps(json.loads(text), separators=(",", ":")).count('":') == text.count('":')


@pytest.mark.parametrize(
    "spec", [Whole, Part, Cat | Dog, datetime.datetime, datetime.time, datetime.timedelta, Level]
)
def test_whatever_is_drawn_for_a_class_becomes_an_instance(spec: Any) -> None:
    rule, chance = constraint(spec), random.Random(7)
    rule.require_bounds()
    for _ in range(30):
        value = rule.parse(wander(rule, chance))
        assert spec is not Whole or (isinstance(value.parts, list) and isinstance(value.level, Level))


# --- limits -------------------------------------------------------------------------------------

DEEP: dict[str, Any] = {"type": "null"}
for _ in range(150):
    DEEP = {"type": "array", "items": DEEP, "maxItems": 1}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^((a{1,999}){1,999}){1,999}$"},
        {"type": "string", "pattern": "^(" + "|".join(f"a{{{n}}}b" for n in range(1, 900)) + ")$"},
        {"type": "string", "pattern": "^(?:[ab]{0,50}[bc]{0,50}){0,200}$"},
        {"type": "string", "maxLength": 10**9},
        {"type": "array", "items": {"type": "null"}, "maxItems": 10**9},
        {"enum": [f"value {n}" for n in range(60_000)]},
        {"enum": ["x" * 1_000_000]},
        DEEP,
        pytest.param(
            {
                "type": "object",
                "properties": {f"p{n}": {"type": "null"} for n in range(5000)},
                "additionalProperties": False,
            },
            marks=pytest.mark.full,
        ),
        pytest.param(
            {"anyOf": [{"type": "array", "items": {"const": n}, "maxItems": 1000} for n in range(2000)]},
            marks=pytest.mark.full,
        ),
    ],
    ids=lambda schema: str(schema)[:40],
)
@pytest.mark.timeout(30)
def test_whatever_is_asked_for_is_answered_soon(schema: dict[str, Any]) -> None:
    """It compiles or it is a `ConstraintError`; either way within seconds."""
    begun = time.perf_counter()
    try:
        rule = constraint(schema)
        compile_check(rule)
        matcher(rule).compute_bitmask()
    except ConstraintError as error:
        assert len(str(error)) < 1000
    assert time.perf_counter() - begun < 20  # a shared machine; alone it is seconds


def test_a_schema_of_any_depth_is_refused_in_words() -> None:
    node: dict[str, object] = {"type": "string", "maxLength": 3}
    for depth in range(1_000):
        node = {"type": "array", "items": node, "maxItems": 1}
        if depth > 800:
            with pytest.raises(ConstraintError, match=r"nested too deeply|not plain JSON"):
                constraint(node)
