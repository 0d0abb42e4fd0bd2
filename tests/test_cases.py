"""Conditions written out as cases, recursion unrolled, older spellings: the same texts, in fewer keywords."""

from __future__ import annotations

import dataclasses
import json
from itertools import product
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from magistrate.constraints import check, compile_check, constraint
from magistrate.constraints.bytewise import follow
from magistrate.constraints.cases import CONDITIONS
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


names = st.lists(st.sampled_from(sorted(VALUES)), max_size=2, unique=True)
parts = st.one_of(
    st.fixed_dictionaries({"required": names}),
    st.sampled_from(
        [
            {"properties": {"kind": {"const": "x"}}},
            {"properties": {"kind": {"const": "x"}}, "required": ["kind"]},
            {"properties": {"kind": {"enum": ["y", "z"]}}, "required": ["kind"]},
            {"properties": {"n": {"minimum": 1}}, "required": ["n"]},
            {"properties": {"n": {"not": {"const": 1}}}},
            {"properties": {"flag": {"const": True}, "n": {"const": 0}}},
            {"properties": {"note": False}},
            {"properties": {"kind": True, "n": True}, "additionalProperties": False},
            {"properties": {"kind": {"const": "x"}}, "additionalProperties": True},
            {"anyOf": [{"required": ["note"]}, {"properties": {"flag": {"const": False}}}]},
            {"type": "object"},
            True,
        ]
    ),
)


@settings(max_examples=100, deadline=None)
@given(
    required=names,
    condition=st.one_of(
        st.fixed_dictionaries({"if": parts}, optional={"then": parts, "else": parts}),
        st.fixed_dictionaries({"not": parts}),
        st.fixed_dictionaries({"dependentRequired": st.dictionaries(st.sampled_from(sorted(VALUES)), names)}),
        st.fixed_dictionaries(
            {"dependentSchemas": st.dictionaries(st.sampled_from(sorted(VALUES)), parts, max_size=2)}
        ),
        st.fixed_dictionaries(
            {"allOf": st.lists(st.fixed_dictionaries({"if": parts, "then": parts}), min_size=1, max_size=2)}
        ),
    ),
)
def test_cases_allow_what_the_conditions_do(required: list[str], condition: dict[str, Any]) -> None:
    """Over every object of four properties; a condition is refused by name or held to exactly."""
    schema = closed(required, **condition)
    try:
        constraint(schema)
    except ConstraintError as error:
        assert "cannot be written out as cases" in str(error) or "leave nothing" in str(error)
        if "leave nothing" in str(error):
            assert not any(Draft202012Validator(schema).is_valid(each) for each in objects())
        return
    agrees(schema, objects())


@pytest.mark.parametrize(
    ("schema", "count"),
    [
        (
            closed(["kind"], **{"if": {"properties": {"kind": {"const": "x"}}}, "then": {"required": ["n"]}}),
            66,
        ),
        (closed([], dependentRequired={"n": ["kind"]}), 78),
        (closed([], **{"not": {"required": ["n", "flag"]}}), 48),
        (
            closed(
                ["kind"],
                allOf=[
                    {"if": {"properties": {"kind": {"const": "x"}}}, "then": {"required": ["flag"]}},
                    {
                        "if": {"properties": {"kind": {"const": "y"}}},
                        "then": {"not": {"required": ["flag"]}},
                    },
                ],
            ),
            48,
        ),
    ],
)
def test_common_conditions_are_held_to(schema: dict[str, Any], count: int) -> None:
    assert agrees(schema, objects()) == count


@pytest.mark.parametrize(
    ("schema", "instances"),
    [
        ({"enum": [1, 2, "a", None], "not": {"type": "string"}}, [1, 2, "a", None]),
        ({"type": ["string", "null"], "maxLength": 1, "not": {"type": "null"}}, ["", "a", None]),
        ({"type": "integer", "minimum": 0, "maximum": 5, "not": {"enum": [2, 3]}}, [*range(-1, 7)]),
        ({"type": "integer", "minimum": 0, "maximum": 9, "not": {"multipleOf": 3}}, [*range(11)]),
        ({"type": "number", "minimum": 0, "maximum": 9, "not": {"minimum": 5}}, [0, 4.5, 5, 5.5, 9]),
        ({"type": "string", "maxLength": 4, "not": {"maxLength": 1}}, ["", "a", "ab", "abcd", "abcde"]),
        (
            {"type": "array", "items": {"type": "null"}, "maxItems": 3, "not": {"minItems": 2}},
            [[], [None], [None] * 2],
        ),
        (
            {
                "type": "array",
                "prefixItems": [{"type": "null"}],
                "items": {"type": "boolean"},
                "maxItems": 2,
                "if": {"minItems": 2},
                "then": {"minItems": 2},
            },
            [[], [None], [True], [None, True]],
        ),
        (
            {"type": "string", "maxLength": 2, "if": {"type": "string"}, "then": {"minLength": 2}},
            ["", "a", "ab"],
        ),
        ({"anyOf": [{"type": "null"}, {"type": "boolean", "not": {"const": True}}]}, [None, True, False]),
    ],
)
def test_what_is_not_an_object_has_cases_too(schema: dict[str, Any], instances: list[Any]) -> None:
    agrees(schema, instances)


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
    ("schema", "instances"),
    [
        ({"oneOf": [{"type": "integer", "minimum": 0, "maximum": 6}, {"enum": [5, 6, 7]}]}, [*range(-1, 9)]),
        (
            {
                "oneOf": [
                    {"type": "number", "minimum": 0, "maximum": 5},
                    {"type": "number", "minimum": 3, "maximum": 9},
                ]
            },
            [0, 2.5, 3, 4, 5, 5.5, 9, 10],
        ),
        ({"oneOf": [closed(["n"]), closed(["flag"])]}, objects()),
        ({"oneOf": [closed(["n"]), closed(["flag"]), closed(["note"])]}, objects()),
    ],
)
def test_branches_that_overlap_are_taken_apart(schema: dict[str, Any], instances: list[Any]) -> None:
    assert 0 < agrees(schema, instances) < len(instances)


@pytest.mark.parametrize("keyword", sorted(CONDITIONS))
def test_conditions_that_stand_in_the_way_of_nothing_are_dropped(keyword: str) -> None:
    value: Any = {"not": False, "dependentRequired": {}, "dependentSchemas": {}}.get(keyword, True)
    agrees({"type": "boolean", keyword: value}, [True, False, None])


def test_a_part_among_others_is_not_closed() -> None:
    """It forbids what it forbids and nothing else, so it cannot be written as one that names all there is."""
    schema = {"allOf": [closed([]), {"type": "object", "properties": {"note": {"type": "null"}, "n": False}}]}
    with pytest.raises(ConstraintError, match="allows nothing"):
        constraint(schema)


def test_too_many_cases_are_an_error() -> None:
    names = [f"p{index}" for index in range(9)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "null"} for name in names},
        "additionalProperties": False,
        "dependentRequired": {name: ["p8"] for name in names[:8]},
    }
    with pytest.raises(ConstraintError, match="cannot be written out as cases"):
        constraint(schema)


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
    with pytest.raises(ConstraintError, match="nothing can be written"):
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
                "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
                "additionalProperties": False,
                "dependencies": {"a": ["b"]},
            },
            ["{}", '{"b":null}', '{"a":null,"b":null}'],
            ['{"a":null}'],
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
            {"type": "object", "properties": {"a": False, "b": {"anyOf": [False, {"type": "null"}]}}},
            ["{}", '{"b":null}'],
            ['{"a":null}', '{"b":1}'],
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
