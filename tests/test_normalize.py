"""What a schema is rewritten to: recursion unrolled, older spellings, unique items; and what is refused."""

from __future__ import annotations

import dataclasses
import json
from itertools import product
from typing import Annotated, Any, Literal

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from magistrate.constraints import check, compile_check, constraint
from magistrate.constraints.lark import follow
from magistrate.errors import ConstraintError

ABSENT = object()
KINDS = ["x", "y", "z"]
NUMBERS = [0, 1, 2]
VALUES: dict[str, list[Any]] = {"kind": KINDS, "n": NUMBERS, "flag": [True, False], "note": [None]}
PROPERTIES = {
    "kind": {"enum": KINDS},
    "n": {"type": "integer", "minimum": 0, "maximum": 2},
    "flag": {"type": "boolean"},
    "note": {"type": "null"},
}


def objects() -> list[dict[str, Any]]:
    """Every object of these properties."""
    rows = product(*([*values, ABSENT] for values in VALUES.values()))
    named = [dict(zip(VALUES, row, strict=True)) for row in rows]
    return [{name: value for name, value in row.items() if value is not ABSENT} for row in named]


def closed(required: list[str], **conditions: Any) -> dict[str, Any]:
    shape = {"type": "object", "properties": PROPERTIES, "required": required, "additionalProperties": False}
    return shape | conditions


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def agrees(schema: dict[str, Any], instances: list[Any]) -> int:
    """The masks let through exactly what jsonschema accepts of `instances`; how many that is."""
    shape = constraint(schema)
    compile_check(shape)
    validator = Draft202012Validator(schema)
    accepted = 0
    for instance in instances:
        expected = validator.is_valid(instance)
        accepted += expected
        assert (follow(shape.grammar, compact(instance)) == "valid") is expected, instance
        assert (check(compact(instance) + " ", shape) == "valid") is expected, instance
    return accepted


@pytest.mark.parametrize(
    ("bounds", "count"),
    [({}, 16), ({"maxItems": 2}, 10), ({"minItems": 1, "maxItems": 1}, 3), ({"minItems": 3}, 6)],
)
def test_unique_items_come_in_any_order(bounds: dict[str, int], count: int) -> None:
    shape = {"type": "array", "items": {"enum": ["a", 1, 12]}, "uniqueItems": True} | bounds
    lists = [list(each) for n in range(5) for each in product(["a", 1, 12], repeat=n)]
    assert agrees(shape, lists) == count
    inside = {"type": "object", "properties": {"s": shape}, "required": ["s"], "additionalProperties": False}
    constraint(inside).require_bounds()
    assert agrees(inside, [{"s": each} for each in lists]) == count


def test_unique_items_hold_to_all_that_is_said_of_them() -> None:
    tens = {"type": "integer", "minimum": 0, "maximum": 20, "multipleOf": 10}
    shape = {"type": "array", "items": tens, "uniqueItems": True, "maxItems": 2}
    assert agrees(shape, [[], [0], [5], [10, 20], [20, 10], [10, 10], [0, 10, 20]]) == 4


def test_a_set_of_literals_and_a_map_over_them() -> None:
    class Marks(BaseModel):
        kinds: set[Literal["x", "y"]]
        scores: dict[Literal["x", "y"], Annotated[int, Field(ge=0, le=9)]]

    shape = constraint(Marks)
    shape.require_bounds()
    assert shape.parse('{"kinds":["y","x"],"scores":{"x":1,"y":2}}') == Marks(
        kinds={"x", "y"}, scores={"x": 1, "y": 2}
    )
    for text in ('{"kinds":[],"scores":{"x":1,"y":2}}', '{"kinds":["y"],"scores":{"x":1,"y":2}}'):
        assert follow(shape.grammar, text) == "valid"
    for text in ('{"kinds":["y","y"]', '{"kinds":[],"scores":{"z"'):
        assert follow(shape.grammar, text) == "invalid"


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 6}, {"enum": [5, 6, 7]}]},
        {"oneOf": [{"type": "number", "maximum": 5}, {"type": "number", "minimum": 3}]},
        {"oneOf": [closed(["n"]), closed(["flag"])]},
    ],
)
def test_branches_of_one_of_that_may_overlap_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ConstraintError, match="may both match") as caught:
        constraint(schema)
    assert caught.value.pointer == "#/oneOf"


def test_branches_of_one_of_that_exclude_each_other_are_held_to() -> None:
    tagged = [
        closed(["kind"]) | {"properties": {"kind": {"const": kind}, name: PROPERTIES[name]}}
        for kind, name in (("x", "n"), ("y", "flag"))
    ]
    assert agrees({"oneOf": tagged}, objects()) == 7
    assert agrees({"oneOf": [{"type": "null"}, {"type": "string", "enum": ["x"]}]}, [None, "x", "y", 1]) == 2


CONDITIONS = {
    "not": {"type": "null"},
    "if": {"required": ["n"]},
    "then": {"required": ["n"]},
    "else": {"required": ["n"]},
    "dependentRequired": {"n": ["kind"]},
    "dependentSchemas": {"n": {"required": ["kind"]}},
    "dependencies": {"n": ["kind"]},
}


@pytest.mark.parametrize("keyword", CONDITIONS)
def test_conditions_are_refused_with_their_place(keyword: str) -> None:
    schema = closed([], **{keyword: CONDITIONS[keyword]})
    for whole, pointer in ((schema, "#"), ({"allOf": [closed([]), schema]}, "#/allOf/1")):
        with pytest.raises(ConstraintError, match="cannot be enforced during generation") as caught:
            constraint(whole)
        assert caught.value.pointer == f"{pointer}/{keyword}"


# --- recursion ----------------------------------------------------------------------------------


class Tree(BaseModel):
    value: Annotated[int, Field(ge=0, le=9)]
    children: Annotated[list[Tree], Field(max_length=2)]


class Chain(BaseModel):
    link: Chain | None


class Even(BaseModel):
    odd: Odd | None


class Odd(BaseModel):
    even: Even | None


class Endless(BaseModel):
    inner: Endless


def tree(depth: int) -> dict[str, Any]:
    return {"value": depth, "children": [tree(depth - 1)] if depth > 1 else []}


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_type_that_holds_itself_goes_as_deep_as_is_said(depth: int) -> None:
    shape = constraint(Tree, depth=depth)
    shape.require_bounds()
    assert shape.parse(compact(tree(depth))) == Tree.model_validate(tree(depth))
    assert follow(shape.grammar, compact(tree(depth))) == "valid"
    assert follow(shape.grammar, compact(tree(depth + 1))) == "invalid"


def test_without_a_depth_recursion_is_an_error_that_says_how() -> None:
    with pytest.raises(ConstraintError, match=r"constraint\(…, depth=3\)"):
        constraint(Tree).require_bounds()
    with pytest.raises(ConstraintError, match="at least 1"):
        constraint(Tree, depth=0)
    with pytest.raises(ConstraintError, match="no text has at most"):
        constraint(Endless, depth=9)


def test_types_that_hold_each_other_count_together() -> None:
    shape = constraint(Even, depth=2)
    assert follow(shape.grammar, '{"odd":{"even":null}}') == "valid"
    assert follow(shape.grammar, '{"odd":{"even":{') == "invalid"
    assert follow(constraint(Chain, depth=2).grammar, '{"link":{"link":null}}') == "valid"


def test_a_schema_that_refers_to_its_root_is_unrolled() -> None:
    schema = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "maybe": {"$ref": "#"}},
        "required": ["next"],
        "additionalProperties": False,
    }
    shape = constraint(schema, depth=2)
    shape.require_bounds()
    assert follow(shape.grammar, '{"next":{"next":null},"maybe":{"next":null}}') == "valid"
    assert follow(shape.grammar, '{"next":{"next":null,"maybe') == "invalid"
    assert shape.parse('{"next":{"next":null}}') == {"next": {"next": None}}


# --- spellings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (
            {"type": "array", "items": [{"type": "null"}, {"type": "boolean"}], "additionalItems": False},
            ["[]", "[null]", "[null,true]"],
            ["[true]", "[null,true,null]"],
        ),
        (
            {
                "type": "object",
                "properties": {"a": {"$anchor": "here", "type": "null"}, "b": {"$ref": "#here"}},
                "required": ["b"],
                "additionalProperties": False,
            },
            ['{"b":null}'],
            ['{"b":true}'],
        ),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "null"}, "b": {"$ref": "#/properties/a"}},
                "required": ["b"],
                "additionalProperties": False,
            },
            ['{"b":null}', '{"a":null,"b":null}'],
            ["{}"],
        ),
    ],
)
def test_older_spellings_and_far_references_are_understood(
    schema: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    shape = constraint(schema)
    assert {follow(shape.grammar, text) for text in right} == {"valid"}
    assert "valid" not in {follow(shape.grammar, text) for text in wrong}
    assert {check(text, shape) for text in right} == {"valid"}


def test_a_recursive_dataclass_comes_back_whole() -> None:
    shape = constraint(Node, depth=3)
    value = shape.parse('{"name":"a","below":[{"name":"b","below":[]}]}')
    assert value == Node("a", [Node("b", [])])


@dataclasses.dataclass
class Node:
    name: Annotated[str, Field(max_length=5)]
    below: Annotated[list[Node], Field(max_length=2)]
