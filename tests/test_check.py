"""Laws of `check`: what is valid, what can still become so, what is lost."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from jsonschema_specifications import REGISTRY
from referencing.exceptions import Unresolvable

from magistrate._work import Deadline, DeadlineExceeded
from magistrate.constraints import Lark, check, constraint
from magistrate.errors import ConstraintError
from tiers import tries

SURROGATE = json.dumps("\ud83d")

EXAMPLES = {
    "valid": [
        *("true", "12", "-0", "0.5e-7", "1E+2", '""', " [ ] ", "{}", '{"a" : [1 , null]}\n', '"\\/\\u00e9"'),
        *(SURROGATE, '"\x7f\u2028"', '{"a":1,"a":2}', "1e400", "9" * 5000),
    ],
    "incomplete": [
        *("", " \n", "[1, 2, 3", '{"key": true, "nested": {', "tru", "-", "1.", "1e", "1e-", '"abc', '"a\\'),
        *(
            '"\\u12',
            "[",
            "[1",
            "[1,",
            "[ ",
            "{",
            '{"',
            '{"a',
            '{"a"',
            '{"a":',
            '{"a":1',
            '{"a":1,',
            '[{"a":[n',
        ),
    ],
    "invalid": [
        *("invalid syntax", "1 2", "01", "-01", "+1", ".5", "1.e3", "0x1", "NaN", "Infinity", "-Infinity"),
        *(
            "[1,]",
            '{"a":1,}',
            "[,",
            "{,",
            "]",
            "}",
            "[}",
            '{"a":1]',
            "{1:2}",
            "{'a'",
            '"a\nb"',
            '"\t',
            '"\\x',
        ),
        *(
            '"\\u12g',
            "tree",
            "nul1",
            "[1 2",
            "[1:",
            '{"a",',
            '{"a" 1',
            "\ufeff1",
            "\u00a01",
            "[1]]",
            "{}{}",
            "// x",
        ),
        *("\u0661", "truefalse", '"a"b', "\x0c1", "[\x0b"),
    ],
}


def data(name: str) -> list[dict[str, Any]]:
    """Rows of a public suite where MAGISTRATE_DATA_DIR holds it; without it only the laws below are tried."""
    folder = os.environ.get("MAGISTRATE_DATA_DIR")
    if not folder:
        print(f"MAGISTRATE_DATA_DIR is not set: {name} is not read")
        return []
    with gzip.open(Path(folder) / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


# --- the grammar of JSON ------------------------------------------------------------------------


def test_text_is_read_by_the_letter_of_rfc_8259() -> None:
    for answer, texts in EXAMPLES.items():
        assert {text: check(text) for text in texts} == dict.fromkeys(texts, answer)


def test_an_incomplete_text_can_really_be_continued() -> None:
    ends = ["", "e", "ue", "0", '"', 'a"', '\\"', '34"', "1", "ull", '"a', "a", "ull]"]
    closers = ["", "]", "}", ":1}", '":1}', "1]", "1}", '"a":1}', "ull]}]", "]}]", "}}", '"a":1}}', "0]"]
    for text in EXAMPLES["incomplete"]:
        assert any(check(text + end + closer) == "valid" for end in ends for closer in closers), text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=12,
)
STYLES = st.sampled_from(
    [{"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}, {"indent": "\t"}]
)


@given(JSON, STYLES)
def test_every_document_is_valid_and_no_prefix_of_it_is_lost(value: Any, style: dict[str, Any]) -> None:
    text = json.dumps(value, **style)
    assert check(text) == "valid"
    assert "invalid" not in {check(text[:end]) for end in range(len(text))}


def strictly(text: str) -> bool:
    """Another reader's opinion, in which NaN is none."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@settings(max_examples=tries(300))
@given(JSON, st.data())
def test_a_damaged_document_is_judged_as_another_strict_reader_does(value: Any, draw: st.DataObject) -> None:
    text = json.dumps(value)
    place = draw.draw(st.integers(0, len(text)))
    sign = draw.draw(st.sampled_from(list('{}[]:,"\\ 019.eE-+tnu\n\x00')))
    damaged = text[:place] + sign + text[place + draw.draw(st.integers(0, 1)) :]
    assert (check(damaged) == "valid") == strictly(damaged)
    if check(damaged) == "invalid":
        assert check(damaged + sign) == "invalid"


@pytest.mark.full
def test_the_parsing_suite_agrees() -> None:
    for row in data("jsontestsuite_parsing"):
        try:
            text = base64.b64decode(row["bytes_b64"]).decode()
        except UnicodeDecodeError:
            assert row["label"] != "accept"
            continue
        if row["label"] != "either":
            assert (check(text) == "valid") == (row["label"] == "accept"), row["id"]


@pytest.mark.full
@pytest.mark.parametrize("opening", ["[", '{"a":', "[[],["])
def test_deep_nesting_is_answered(opening: str) -> None:
    text = opening * 10_000
    assert check(text) == "incomplete"
    assert check(text + "x") == "invalid"
    assert check(text, {"type": "string"}) == "invalid"
    assert check(text, {"type": ["array", "object"]}) == "incomplete"


@pytest.mark.full
def test_a_deep_document_is_valid_and_under_a_deep_schema_too_deep() -> None:
    text = "[" * 50_000 + "]" * 50_000
    assert check(text) == "valid"
    assert check(text, {"items": {"$ref": "#"}}) == "invalid"


@pytest.mark.parametrize(
    "text", ["[" + "1," * 500_000, "[" + '{"name": "x", "ok": true}, ' * 38_000, '"' + "\\n" * 500_000]
)
def test_a_megabyte_takes_about_a_second(text: str) -> None:
    begun = time.perf_counter()
    assert check(text) == "incomplete"
    assert time.perf_counter() - begun < 5  # a shared machine; alone it is well under one


# --- under a schema -----------------------------------------------------------------------------

OBJECT = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 3}, "tags": {"items": {"enum": ["red", "blue"]}}},
    "additionalProperties": False,
    "required": ["name"],
}


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("valid", '{"tags": ["r\\u0065d"], "name": "a"}'),
        ("invalid", '{"tags": ["red"]}'),
        ("incomplete", '{"tags": ["red"]'),
        ("incomplete", '{"na'),
        ("invalid", '{"no'),
        ("invalid", '{"other"'),
        ("invalid", '{"name": 1'),
        ("invalid", '{"name": t'),
        ("invalid", '{"name": "abcd'),
        ("incomplete", '{"name": "abc'),
        ("incomplete", '{"name": "\\u00e9\\n\\'),
        ("invalid", '{"tags": ["red", "g'),
        ("invalid", '{"tags": ["re"'),
        ("invalid", '{"name": "a", "na'),
        ("invalid", '{"name": "a", "name": "b"}'),
        ("invalid", "["),
        ("incomplete", " "),
    ],
)
def test_a_finished_part_that_breaks_the_schema_is_lost_at_once(answer: str, text: str) -> None:
    assert check(text, OBJECT) == answer


@pytest.mark.parametrize(
    ("schema", "text", "answer"),
    [
        ({"minimum": 10}, "1", "incomplete"),
        ({"minimum": 10}, "1 ", "invalid"),
        ({"minimum": 10}, "12", "valid"),
        ({"type": "string"}, "1", "invalid"),
        ({"type": "integer"}, "[-", "invalid"),
        ({"maxItems": 1}, "[1,2", "invalid"),
        ({"maxItems": 1}, "[1,", "incomplete"),
        ({"maxProperties": 1}, '{"a":1,"b', "invalid"),
        ({"uniqueItems": True}, "[1, 1,", "invalid"),
        ({"uniqueItems": True}, "[1, 1", "incomplete"),
        ({"prefixItems": [{"type": "null"}], "items": False}, "[null, t", "invalid"),
        ({"prefixItems": [{"type": "null"}], "items": False}, "[true", "invalid"),
        ({"propertyNames": {"maxLength": 2}}, '{"abc', "invalid"),
        ({"patternProperties": {"^n": {"type": "number"}}}, '{"n": "', "invalid"),
        ({"const": {"a": [1, 2]}}, '{"a": [1.0, 2', "incomplete"),
        ({"const": {"a": [1, 2]}}, '{"a": [2', "incomplete"),
        ({"const": {"a": [1, 2]}}, '{"a": [2,', "invalid"),
        ({"anyOf": [{"items": {"type": "null"}}, {"maxItems": 0}]}, "[1", "invalid"),
        ({"oneOf": [{"items": {"type": "null"}}, {"items": {"type": "number"}}]}, "[1", "incomplete"),
        ({"not": {"type": "array"}}, "[", "incomplete"),
        ({"not": {"type": "array"}}, "[]", "invalid"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#"}, "type": "array"}}}, "[[[1", "invalid"),
        ({"enum": ["\U0001f600"]}, '"\\ud83d', "incomplete"),
        ({"enum": ["\U0001f600"]}, '"\\ud83d\\ude01', "invalid"),
        ({"format": "date"}, '"no date"', "valid"),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "null"}]},
            "[t",
            "invalid",
        ),
        (True, "[1", "incomplete"),
        (False, "[1]", "invalid"),
        ({"type": "integer"}, "[" + "9" * 5000 + "]", "invalid"),
    ],
)
def test_each_keyword_decides_as_early_as_it_can(schema: Any, text: str, answer: str) -> None:
    assert check(text, schema) == answer


LEAVES = st.sampled_from(
    [
        {"type": "null"},
        {"type": "boolean"},
        {"type": "integer", "minimum": 10},
        {"type": "number"},
        {"type": "string", "maxLength": 2},
        {"enum": ["ab", "ac", 1, None, [1, "a"], {"a": 1}]},
        {"const": {"a": "b"}},
        {"type": "string", "pattern": "^a"},
        {"multipleOf": 0.5},
        {"minLength": 2},
        True,
        {"not": {"type": "string"}},
    ]
)


def combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    fixed: dict[str, st.SearchStrategy[Any]] = {
        "properties": named,
        "required": st.just(["a"]),
        "additionalProperties": inner | st.just(False),
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b"]), inner, max_size=2),
        "propertyNames": inner,
        "items": inner,
        "prefixItems": several,
        "maxItems": st.integers(0, 2),
        "uniqueItems": st.booleans(),
        "contains": inner,
        "maxProperties": st.integers(0, 2),
        "anyOf": several,
        "oneOf": several,
        "allOf": several,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "dependentRequired": st.just({"a": ["b"]}),
        "unevaluatedProperties": st.just(False),
    }
    return st.fixed_dictionaries({}, optional=fixed)


SCHEMAS = st.recursive(LEAVES, combined, max_leaves=6)
SMALL = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 12, -3.5, 0.25, 1e-9, "", "a", "ab", "ac", "\U0001f600"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "c", "ab"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=tries(400), deadline=None)
@given(SCHEMAS, SMALL, STYLES)
def test_finished_texts_agree_with_jsonschema_and_their_prefixes_are_kept(
    schema: Any, value: Any, style: dict[str, Any]
) -> None:
    text = json.dumps(value, **style)
    if Draft202012Validator(schema).is_valid(value):
        assert check(text, schema) == "valid"
        assert "invalid" not in {check(text[:end], schema) for end in range(len(text))}
    else:
        assert check(text + " ", schema) == "invalid"
        assert check(text, schema) != "valid"


DIALECTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}


@pytest.mark.full
@pytest.mark.parametrize("split", DIALECTS)
def test_the_schema_suite_agrees(split: str) -> None:
    """Every text of every draft, optional ones too; of valid ones all prefixes."""
    for row in data("json_schema_test_suite"):
        if row["split"] != split:
            continue
        schema, text = row["schema"], json.dumps(row["data"])
        if isinstance(schema, dict):
            schema = {"$schema": DIALECTS[split], **schema}
        try:
            expected = validator_for(schema, default=Draft202012Validator)(
                schema, registry=REGISTRY
            ).is_valid(row["data"])
        except (Unresolvable, re.error):
            with pytest.raises(ConstraintError):
                check(text, schema)
            continue
        assert check(text + " ", schema) == ("valid" if expected else "invalid"), row["id"]
        if expected:
            ends = range(len(text))
            assert "invalid" not in {check(text[:end], schema) for end in ends}, row["id"]


@pytest.mark.parametrize(
    "schema",
    [{"$ref": "https://example.com/x"}, {"maxLength": "3"}, {"$ref": "#"}, {"pattern": "("}, {"x": {1}}],
)
def test_a_schema_that_cannot_be_followed_is_an_error(schema: Any) -> None:
    with pytest.raises(ConstraintError):
        check('"a"', schema)


def test_a_long_schema_is_checked_within_the_deadline() -> None:
    properties = {f"p{at}": {"type": "string", "maxLength": at} for at in range(20_000)}
    with Deadline(0.2) as deadline, pytest.raises(DeadlineExceeded):
        check('{"p1": "a"}', {"properties": properties})
    assert deadline.left > -20, "without one it takes minutes"


# --- under the other kinds ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "answers"),
    [
        (
            ["yes", "yes please"],
            {"": "incomplete", "ye": "incomplete", "yes": "valid", "yes p": "incomplete", "yep": "invalid"},
        ),
        (Literal["a b"], {"a": "incomplete", "a b": "valid", '"a b"': "invalid", "a b ": "invalid"}),
        (
            re.compile("[0-9]{2}(?:é|-)"),
            {"1": "incomplete", "12é": "valid", "12": "incomplete", "x": "invalid"},
        ),
        (
            Lark('start: "(" start? ")"'),
            {"((": "incomplete", "(())": "valid", "())": "invalid", "\udc00": "invalid"},
        ),
    ],
)
def test_other_kinds_are_followed_letter_by_letter(spec: Any, answers: dict[str, str]) -> None:
    for text, answer in answers.items():
        assert check(text, spec) == answer
        assert check(text, constraint(spec)) == answer


def test_under_a_constraint_any_layout_of_json_is_right() -> None:
    rule = constraint({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}}})
    assert check('{\n "b": null,\t"\\u0061" :true }', rule) == "valid"
    assert check('{"a": nu', rule) == "invalid"
