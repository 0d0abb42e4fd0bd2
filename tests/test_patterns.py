# ruff: noqa: E501 (programs that are run as they are)
"""Patterns, schemas and grammars from outside: what compiling and searching them may take."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from asked import an_app
from magistrate.constraints import check, constraint
from magistrate.constraints.regex import python_match
from magistrate.errors import InputError, InvalidOutput, SpecError
from magistrate.judges.references import Regex
from terminal import Call

HUGE = (
    "((a{1000}){1000}){1000}",
    "a{4294967294}",
    "(?:ab" * 24 + ")+" * 24,  # no count at all: each + writes what is inside twice
    "(?<!a{10000}){1000}",
    r"\X{1000000}",
    "[a-z]{500000}",
    "(?:" * 5000 + "a" + ")" * 5000,
    "x" * 1_000_000,
    "a|" * 200_000,
)
MEMORY = 160 << 20  # bytes beyond those of a fresh program
SECONDS = 20


def limited(code: str, *given: str) -> subprocess.CompletedProcess[str]:
    """What a program prints that may take `MEMORY` and `SECONDS` more than its imports did."""
    head = (
        "import json, re, resource, sys\n"
        "from magistrate.constraints import Lark, check, compile_check, constraint, express\n"
        "from magistrate.errors import InputError\n"
        "from magistrate.judges.json_valid import JsonValid\n"
        "from magistrate.judges.references import Regex\n"
        "compile_check(constraint(['a'])); check('1', {'pattern': 'a'}); Regex(pattern='a')\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        f"resource.setrlimit(resource.RLIMIT_AS, (used + {MEMORY},) * 2)\n"
        f"resource.setrlimit(resource.RLIMIT_CPU, ({SECONDS + 5},) * 2)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", head + code, *given],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_no_pattern_takes_all_memory(tmp_path: Path) -> None:
    """In the judge, in schemas under every keyword, in a constraint and in a draft that is named inside."""
    file = tmp_path / "patterns.json"
    file.write_text(json.dumps(HUGE))
    code = """
from pathlib import Path
folder = Path(sys.argv[1])
draft = "http://json-schema.org/draft-07/schema#"
def valid(schema):
    (folder / "schema.json").write_text(json.dumps(schema))
    JsonValid(schema=folder / "schema.json")
ways = {
    "regex": lambda p: Regex(pattern=p),
    "json_valid": lambda p: valid({"items": {"pattern": p}}),
    "json_valid names": lambda p: valid({"patternProperties": {p: True}}),
    "check": lambda p: check('"aaa"', {"pattern": p}),
    "check names": lambda p: check('{"a": 1}', {"patternProperties": {p: True}, "additionalProperties": False}),
    "check drafts": lambda p: check('"aaa"', {"anyOf": [{"$schema": draft, "pattern": p}]}),
    "check rest": lambda p: check('{"a": 1}', {"patternProperties": {p: True}, "unevaluatedProperties": False}),
    "constraint": lambda p: constraint({"type": "string", "pattern": p, "maxLength": 9}),
    "compiled": lambda p: constraint(re.compile(p)),
}
for pattern in json.loads((folder / "patterns.json").read_text()):
    for name, way in ways.items():
        try:
            way(pattern)
            print("TAKEN", name, pattern[:40])
        except (InputError, re.error, RecursionError, OverflowError) as error:
            words = ("pattern", "regular expression", "at most", "bad escape", "recursion")  # the last two: re's
            if not any(word in str(error) for word in words):
                print("UNSAID", name, pattern[:40], error)
print("done")
"""
    done = limited(code, str(tmp_path))
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stdout + done.stderr[-2000:]


def test_patterns_of_everyday_are_taken() -> None:
    everyday = [
        r"^.{1,4000}$", r"(?:\d{1,3}\.){3}\d{1,3}", r"[^\n]{0,100000}", r"^[\s\S]{2000,}$", r"((a+)+b)+",
        r"(?i)(yes|no)", r"\p{Lu}\w+", "|".join(f"word{n}" for n in range(5000)), r"(?:[0-9a-f]{4}-){7}",
    ]  # fmt: skip
    for pattern in everyday:
        assert Regex(pattern=pattern)


def test_no_text_makes_a_pattern_search_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own search of these takes longer than anybody lives."""
    seconds = 0.5
    text, slow = "a" * 5000 + "!", "^(a|aa)+$"
    ways = [
        (json.dumps(text), {"pattern": slow}),
        (json.dumps({text: 1}), {"patternProperties": {slow: False}}),
        (json.dumps({text: 1}), {"patternProperties": {slow: True}, "additionalProperties": False}),
        (json.dumps({text: 1}), {"patternProperties": {slow: True}, "unevaluatedProperties": False}),
        (json.dumps({text: 1})[:-1], {"patternProperties": {slow: True}, "additionalProperties": False}),
        (
            json.dumps(text),
            {"anyOf": [{"$schema": "http://json-schema.org/draft-07/schema#", "pattern": slow}]},
        ),
    ]
    for written, schema in ways:
        with pytest.raises(InputError, match=rf"the pattern took longer than {seconds} s"):
            check(written, schema)
        seconds = 0.05  # the first one took what users wait for
        monkeypatch.setattr("magistrate.constraints.regex.PATTERN_SECONDS", seconds)
    for asked in (re.compile("(a|aa){1,9000}b"), {"type": "string", "pattern": "^(a|aa){1,9000}b$"}):
        made = constraint(asked)
        with pytest.raises(InvalidOutput, match=rf"took longer than {seconds} s"):
            made.parse(text if made.kind == "regex" else json.dumps(text))


@pytest.mark.full
def test_references_that_fan_out_come_to_an_end(tmp_path: Path) -> None:
    """Of 25 definitions, each naming the next one twice, somebody would check 33 million."""
    for keyword, last, text in (("allOf", "boolean", "true"), ("anyOf", "boolean", "3")):
        schema = {
            "$ref": "#/$defs/d0",
            "$defs": {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(25)}
            | {"d25": {"type": last}},
        }
        with pytest.raises(InputError, match="checking this value against the schema takes more than"):
            check(text, schema)
    many = json.dumps(["1"] * 50_000)
    with pytest.raises(InputError, match="steps"):
        check(many, {"items": {"enum": [str(n) for n in range(1000)]}})
    unlike = json.dumps([{"a": n} for n in range(20_000)])  # jsonschema compares every two of them
    assert check(unlike, {"uniqueItems": True}) == "valid"
    assert check("[1, 1.0]", {"uniqueItems": True}) == "invalid"
    assert check('[1, true, "1", [1], {"a": [1]}]', {"uniqueItems": True}) == "valid"


@pytest.mark.full
def test_huge_numbers_lists_and_depths_in_schemas_are_bounded() -> None:
    code = """
closed = {"type": "object", "additionalProperties": False}
twice = {"$ref": "#/$defs/d0", "$defs": {
    f"d{n}": {**closed, "required": ["a", "b"], "properties": {k: {"$ref": f"#/$defs/d{n + 1}"} for k in "ab"}}
    for n in range(25)} | {"d25": {"type": "boolean"}}}
text = {"type": "string", "maxLength": 10}
schemas = {
    "long": {"type": "string", "minLength": 10**6, "maxLength": 10**6},
    "many": {"type": "array", "items": text, "minItems": 10**6, "maxItems": 10**6},
    "enum": {"enum": [f"{n:06}" for n in range(5_000)]},
    "names": {**closed, "properties": {f"p{n}": {"type": "boolean"} for n in range(150)}},
    "twice": twice,
    "deep": {"$ref": "#/$defs/d0", "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(3000)}
        | {"d3000": {"type": "boolean"}}},
    "branches": {"oneOf": [{"const": n} for n in range(500)]},
    "apart": {"oneOf": [
        {**closed, "required": ["t"], "properties": {"t": {"const": n}}} for n in range(2000)]},
    "step": {"type": "integer", "minimum": 1, "maximum": 999_999_999_999_999, "multipleOf": 999_999},
}
grammars = ["start: /((a{1000}){1000}){1000}/", "start: x{1000}\\nx: y{1000}\\ny: /a/{1000}",
    "start: " + "(" * 5000 + '"a"' + ")" * 5000]
for name, spec in [*schemas.items(), *((each[:20], Lark(each)) for each in grammars)]:
    try:
        made = constraint(spec)
        compile_check(made)
        for dialect in ("regex", "gbnf", "json_schema"):
            express(made, dialect)
    except InputError as error:
        assert len(str(error)) < 2000 and name != "apart", (name, error)
print("done")
"""
    done = limited(code)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stdout + done.stderr[-2000:]


def test_the_way_to_search_that_can_be_stopped_reads_patterns_as_python_does() -> None:
    texts = ["", "a", "²", "Ⓐ", "\x85", "\u200d", "é", "_", "[", "{e<=1}", "]a", "-", "a b", "ſ", "\n", "٣"]
    patterns = [
        r"\w", r"\W", r"[\W]", r"[^\W]", r"[^\W\d]", r"[\s]", r"[\D_]", "a{e<=1}", r"\{e<=1}",
        "[a[:]", "[]a]+", "[^]a]+",
        r"(?i)s", r"(?i)[a-z]", r"(?x) a # [ \w", "(?x)\x85", "(?s).", ".", r"(?a)\w", "a$",
        r"[\]\[]", "[a-]", "{",
        r"(?m)^$", r"a\sb",
    ]  # fmt: skip
    wrong = [
        (pattern, text)
        for pattern in patterns
        for text in texts
        if (re.fullmatch(pattern, text) is None) != (python_match(pattern, text) is None)
    ]
    assert not wrong


def test_a_pattern_that_is_too_large_is_told_on_the_command_line(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"type": "string", "pattern": HUGE[0]}))
    for words in (
        ("judge", "--judge", f"regex:pattern={HUGE[0]}", "--output", "x"),
        ("judge", "--judge", f"json_valid:schema={file}", "--output", '"x"'),
        ("check", "--schema", str(file), '"x"'),
        ("generate", "--regex", HUGE[0], "Write.", "--model", "script"),
        ("generate", "--schema", str(file), "Write.", "--model", "script"),
    ):
        done = call(*words)
        assert done.code == 2 and "parts after its repetitions are expanded" in done.err, (words, done)


def test_patterns_that_call_themselves_are_refused() -> None:
    for pattern in ("(?R)?a", "(a(?1)?b)", "(?P<x>a(?&x)?)"):
        with pytest.raises(SpecError, match="recursive patterns"):
            Regex(pattern=pattern)


def test_a_pattern_that_is_too_large_is_refused_over_http(tmp_path: Path) -> None:
    with TestClient(an_app(tmp_path)) as client:
        for pattern in HUGE:
            set_by = client.post("/api/judge", json={"judge": f"regex:pattern={pattern}", "output": "a"})
            assert set_by.status_code == 422 and "Traceback" not in set_by.text, (pattern[:40], set_by.text)
            expected = client.post("/api/judge", json={"judge": "regex", "output": "a", "expected": pattern})
            told = expected.json()
            assert told.get("kind") == "failure" or expected.status_code == 422, (pattern[:40], told)
            words = json.dumps([set_by.json(), told])
            assert len(words) < 3000, (pattern[:40], words[:500])
        said = client.post("/api/judge", json={"judge": f"regex:pattern={HUGE[0]}", "output": "a"}).json()
        assert "parts after its repetitions are expanded" in json.dumps(said)
        assert (
            client.post("/api/judge", json={"judge": "regex:pattern=a", "output": "a"}).json()["score"] == 1
        )


def test_a_pattern_that_is_too_large_is_refused_in_a_judge_that_is_a_file(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "rating.yaml"
    for pattern in HUGE:
        schema = {
            "type": "object",
            "properties": {
                "reason": {"type": "string", "pattern": pattern},
                "rating": {"type": "integer", "minimum": 1, "maximum": 5},
            },
            "required": ["reason", "rating"],
        }
        document = {
            "inputs": ["output"], "prompt": "Rate it.\n{{ output }}\n{{ reply }}\n", "schema": schema, "scale": [1, 5],
            "direction": "maximize",
            "decision": {"score": "rating", "at_least": 4, "label": "good", "otherwise": "bad"},
        }  # fmt: skip
        file.write_text(json.dumps(document))  # which is YAML as well
        done = call("judge", "--judge", file, "--model", "script", "--output", "x")
        assert done.code == 2 and "Traceback" not in done.err and len(done.err) < 3000, (pattern[:40], done)
        words = ("pattern", "regular expression", "larger than", "characters")
        assert any(word in done.err for word in words), (pattern[:40], done.err)
