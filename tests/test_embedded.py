"""A Lark grammar holds the text of a string inside an object."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from magistrate.constraints import Lark, check, compile_check, constraint, express
from magistrate.constraints.lark import follow
from magistrate.errors import ConstraintError, InvalidOutput

SUMS = r"""
// sums of numbers and names
start: term ("+" term)*
term: NUMBER | "\"" NAME "\"" | "(" start ")" | "tab\there"  # a text with marks of its own
NUMBER: /[0-9]{1,3}/ ("." /[0-9]/)?
NAME: /[a-z]{1,4}/
"""


class Account(BaseModel):
    sum: Annotated[str, Lark(SUMS)]
    other: Annotated[str, Lark("start: /[^x]{1,3}/")]
    count: Annotated[int, Field(ge=0, le=3)]


def written(sum: str, other: str = "y") -> str:
    return json.dumps({"sum": sum, "other": other, "count": 1}, separators=(",", ":"))


@pytest.mark.parametrize("sum", ["1", "1+2", '(1+22.5)+"ab"', "((7))", "tab\there+1"])
def test_a_string_in_its_language_is_written(sum: str) -> None:
    shape = constraint(Account)
    shape.require_bounds()
    compile_check(shape)
    assert follow(shape.grammar, written(sum)) == "valid" == check(written(sum), shape)
    value = shape.parse(written(sum))
    assert isinstance(value, Account) and value.sum == sum


@pytest.mark.parametrize(
    "changes", [{"sum": "1+"}, {"sum": '"a"b"'}, {"sum": ""}, {"sum": "1", "other": "x"}]
)
def test_another_is_not(changes: dict[str, str]) -> None:
    shape = constraint(Account)
    assert follow(shape.grammar, written(**changes)) != "valid"
    assert check(written(**changes), shape) == "invalid"
    with pytest.raises(InvalidOutput, match="does not match its grammar"):
        shape.parse(written(**changes))


def test_a_regular_expression_matches_what_needs_no_escape() -> None:
    shape = constraint(Account)
    for other in ("a\nb", 'a"b', "a\\b"):
        assert follow(shape.grammar, written("1", other)) == "invalid"


def test_it_may_be_null_and_stand_beside_quotes_and_sets() -> None:
    schema = {
        "type": "object",
        "properties": {
            "lark": {"type": ["string", "null"], "x-lark": 'start: "a"+'},
            "quote": {"type": "string", "x-quote": {"of": "text"}},
            "set": {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True},
            "name": {"type": "string", "pattern": "^[A-Z]{2}$"},
        },
        "required": ["lark", "quote", "set", "name"],
        "additionalProperties": False,
    }
    shape = constraint(schema).over(text="one two")
    shape.require_bounds()
    for text in (
        '{"lark":"aaa","quote":"two","set":[2,1],"name":"XY"}',
        '{"lark":null,"quote":"one two","set":[],"name":"XY"}',
    ):
        assert follow(shape.grammar, text) == "valid"
        assert shape.parse(text) == json.loads(text)
    assert follow(shape.grammar, '{"lark":"b') == "invalid"
    assert follow(shape.grammar, '{"lark":null,"quote":"two one') == "invalid"


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        ("start: %json {}", "is not allowed"),
        ("start: <|end|>", "is not allowed"),
        ('start[lazy]: "a"', "is not allowed"),
        ('begin: "a"', "needs a rule named start"),
        ('"a"', "must start with a rule"),
        ("start: missing", "unknown name"),
        ("", "must start with a rule"),
        (3, "must start with a rule"),
    ],
)
def test_what_cannot_stand_in_a_string_is_an_error_with_its_place(grammar: Any, says: str) -> None:
    with pytest.raises(ConstraintError, match=re.escape(says)) as caught:
        constraint({"type": "object", "properties": {"a": {"type": "string", "x-lark": grammar}}})
    assert caught.value.pointer == "#/properties/a/x-lark"


def test_a_server_is_told_what_it_can_hold_to() -> None:
    shape = constraint(Account)
    expressed = express(shape, "json_schema")
    assert expressed.lost == ("#/properties/sum: its grammar", "#/properties/other: its grammar")
    assert "x-lark" not in json.dumps(expressed.payload)
    assert follow(express(shape, "lark").payload, written("1+2")) == "valid"
