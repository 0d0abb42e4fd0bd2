"""Constraints as OpenAI-compatible servers take them: strict schemas, wrapped choices, what loses least."""

from __future__ import annotations

import json

from magistrate.constraints import constraint
from magistrate.constraints.quote import quote_schema
from magistrate.engines.openai.constraints import strict_schema, ways_to_send, without_nulls

LABEL = constraint(
    {
        "type": "object",
        "properties": {"label": {"enum": ["yes", "no"]}},
        "required": ["label"],
        "additionalProperties": False,
    }
)

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
    made, lost = strict_schema(OPTIONAL)
    assert made["additionalProperties"] is False
    assert made["required"] == ["label", "note", "kind", "deep"]
    assert made["properties"]["note"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert lost == ("/properties/note: maxLength",)


def test_a_null_that_stands_for_nothing_is_left_out_again() -> None:
    text = '{"label": "yes", "note": null, "kind": null, "deep": {"x": null}, "other": null}'
    assert json.loads(without_nulls(text, OPTIONAL)) == {
        "label": "yes",
        "kind": None,
        "deep": {},
        "other": None,
    }
    assert without_nulls("no json", OPTIONAL) == "no json"


def test_a_null_is_left_out_again_in_the_branch_that_was_written() -> None:
    note = {"type": "string"}
    span = {"type": "object", "properties": {"kind": {"const": "span"}, "note": note}, "required": ["kind"]}
    none = {
        "type": "object",
        "properties": {"kind": {"const": "none"}, "note": {"type": ["string", "null"]}},
        "required": ["kind", "note"],
    }
    inner = {"type": "object", "properties": {"of": {"$ref": "#/$defs/any"}}, "required": []}
    any_of = {"anyOf": [span, none, inner, {"type": "null"}]}
    for key in ("anyOf", "oneOf"):
        schema = {
            "type": "object",
            "properties": {
                "one": {key: [{"$ref": "#/$defs/span"}, none]},
                "all": {"type": "array", "items": {"$ref": "#/$defs/any"}},
            },
            "required": ["one", "all"],
            "$defs": {"span": span, "any": any_of},
        }
        written = {
            "one": {"kind": "span", "note": None},
            "all": [
                {"kind": "none", "note": None},
                {"kind": "span", "note": None},
                None,
                {"of": {"of": {"kind": "span", "note": None}}},
                {"of": None},
            ],
        }
        read = json.loads(without_nulls(json.dumps(written), schema))
        assert read["one"] == {"kind": "span"}
        assert read["all"] == [
            {"kind": "none", "note": None},
            {"kind": "span"},
            None,
            {"of": {"of": {"kind": "span"}}},
            {"of": None},  # which may be null itself
        ]


def test_choices_are_sent_inside_an_object_where_only_schemas_are_taken() -> None:
    sent = ways_to_send(constraint(["yes", "no"]), ("response_format json_schema",))[0]
    assert sent.undo('{"answer": "no"}') == "no"
    schema = sent.body["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["answer"]["enum"] == ["yes", "no"]


def test_the_way_that_loses_least_comes_first() -> None:
    ways = ("response_format json_schema", "llguidance grammar")
    plain = [sent.name for sent in ways_to_send(LABEL, ways)]
    assert plain == list(ways)
    quoting = constraint(
        {
            "type": "object",
            "properties": {"quote": quote_schema("output", "words", ("It rains.",))},
            "required": ["quote"],
            "additionalProperties": False,
        }
    ).over(output="It rains.")
    first, second = ways_to_send(quoting, ways)
    assert first.name == "llguidance grammar"
    assert second.lost  # a schema cannot say that a text is quoted
    assert ways_to_send(constraint(["a"]), ()) == []
