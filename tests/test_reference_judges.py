"""Judges of code that hold the output against an expected text, a pattern or a format."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu import sentence_bleu, sentence_chrf

from magistrate.engines.none import NONE
from magistrate.errors import SpecError
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.judges.json_valid import JsonValid
from magistrate.judges.references import Bleu, Chrf, Contains, Exact, Levenshtein, Regex, Rouge
from magistrate.runs.execute import judge_one
from magistrate.types import Abstention, Failure, Outcome, Sample, Verdict
from terminal import Call

NAMES = ("bleu", "chrf", "contains", "exact", "json_valid", "levenshtein", "regex", "rouge")
WORDS = "the cat sat on a mat . Dog, ran far Away été 東京"
SENTENCES = st.lists(st.sampled_from(WORDS.split()), min_size=1).map(" ".join)


def outcome(judge: Judge, output: str, expected: str | None = None) -> Outcome:
    return asyncio.run(judge_one(Sample("s", output, expected=expected), judge, NONE))


def verdict(judge: Judge, output: str, expected: str | None = None) -> Verdict:
    found = outcome(judge, output, expected)
    assert isinstance(found, Verdict), found
    return found


def score(judge: Judge, output: str, expected: str | None = None) -> float:
    return verdict(judge, output, expected).score


# --- what holds for all --------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_they_are_code_and_more_is_better(name: str) -> None:
    info = registry.judge(name).info
    assert (info.kind, info.direction, info.asks) == ("code", "maximize", False)
    assert info.labels in (("match", "mismatch"), ("valid", "invalid"))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "json_valid"])
def test_without_an_expected_text_they_abstain_and_an_empty_output_does_not_match(name: str) -> None:
    found = outcome(registry.judge(name), "Bern")
    assert isinstance(found, Abstention) and found.reason == "missing_input"
    empty = verdict(registry.judge(name), "", "Bern")
    assert (empty.label, empty.score) == ("mismatch", 0.0)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("json_valid", "regex")])
@given(text=SENTENCES)
@settings(deadline=None)
def test_a_text_matches_itself(name: str, text: str) -> None:
    found = verdict(registry.judge(name), text, text)
    if not (name == "rouge" and text.strip(" .") == ""):
        assert found.label == "match"
        assert found.score == pytest.approx(1)
    assert found.probability is None


@pytest.mark.parametrize("name", ["levenshtein", "bleu", "rouge", "chrf"])
@pytest.mark.parametrize("threshold", ["0", "1.1", "nan"])
def test_thresholds_are_checked(name: str, threshold: str) -> None:
    with pytest.raises(SpecError, match=r"threshold must be in \(0, 1\]"):
        registry.judge(f"{name}:threshold={threshold}")


def test_the_threshold_decides() -> None:
    assert verdict(Levenshtein(threshold=0.5), "kitten", "sitting").label == "match"
    assert verdict(Levenshtein(threshold=0.6), "kitten", "sitting").label == "mismatch"


# --- texts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "options", "label"),
    [
        ("Bern", {}, "match"),
        ("bern", {}, "mismatch"),
        ("BERN", {"ignore_case": True}, "match"),
        ("Bern.", {}, "mismatch"),
        ("„Bern“.", {"ignore_punctuation": True}, "match"),
        (" Bern\n", {}, "mismatch"),
        (" Bern\n", {"ignore_whitespace": True}, "match"),
        (" 'bern'!\n", {"ignore_case": True, "ignore_punctuation": True, "ignore_whitespace": True}, "match"),
        ("Basel", {"ignore_case": True, "ignore_punctuation": True, "ignore_whitespace": True}, "mismatch"),
    ],
)
def test_exact_ignores_what_it_is_told_to(output: str, options: dict[str, bool], label: str) -> None:
    assert verdict(Exact(**options), output, "Bern").label == label


def test_exact_says_where_only_what_could_be_ignored_differs() -> None:
    assert "see ignore_case and similar options" in str(verdict(Exact(), "bern.", "Bern"))
    assert "ignore_case" not in str(verdict(Exact(), "Basel", "Bern"))
    assert verdict(Exact(), "e\u0301te\u0301", "été").label == "match"


@pytest.mark.parametrize("name", ["exact", "contains", "levenshtein"])
def test_nothing_is_left_to_match_where_all_of_the_expected_text_is_ignored(name: str) -> None:
    for output in ("", "!", "Bern"):
        found = outcome(registry.judge(f"{name}:ignore_punctuation=true"), output, "???")
        assert isinstance(found, Failure) and "the expected text is empty" in found.message


def test_contains() -> None:
    assert verdict(Contains(), "It is Bern.", "Bern").label == "match"
    assert verdict(Contains(), "It is bern.", "Bern").label == "mismatch"
    assert (
        verdict(Contains(ignore_case=True, ignore_whitespace=True), "in NEW\n YORK!", "new york").label
        == "match"
    )
    nothing = outcome(Contains(ignore_punctuation=True), "It is.", "?!")
    assert isinstance(nothing, Failure) and "the expected text is empty" in nothing.message


def test_regex_takes_a_pattern_for_all_or_of_each_sample() -> None:
    found = verdict(registry.judge(r"regex:pattern=\d{2} days"), "Notice is 14 days.")
    assert (found.label, found.details["found"]) == ("match", [10, 17])
    assert verdict(Regex(), "Notice is 14 days.", r"\d+ weeks").label == "mismatch"
    assert verdict(Regex(whole=True), "14 days", r"\d+").label == "mismatch"
    assert verdict(Regex(ignore_case=True), "BERN", "bern").label == "match"
    with pytest.raises(SpecError, match="is not a regular expression"):
        Regex(pattern="(")
    broken = outcome(Regex(), "x", "(")
    assert isinstance(broken, Failure) and "is not a regular expression" in broken.message


def test_a_pattern_that_takes_for_ever_fails_that_sample() -> None:
    slow = outcome(Regex(pattern="^(a|aa)+$"), "a" * 60 + "!")
    assert isinstance(slow, Failure) and "took longer than 0.5 s" in slow.message


@pytest.mark.parametrize(
    ("one", "other", "edits"),
    [("kitten", "sitting", 3), ("flaw", "lawn", 2), ("", "abc", 3), ("gumbo", "gambol", 2)],
)
def test_levenshtein_counts_edits(one: str, other: str, edits: int) -> None:
    found = verdict(Levenshtein(), one, other)
    assert found.details["edits"] == edits
    assert found.score == pytest.approx(1 - edits / max(len(one), len(other)))


# --- overlaps ------------------------------------------------------------------------------------


@given(SENTENCES, SENTENCES)
@settings(deadline=None)
def test_bleu_and_chrf_are_the_librarys(output: str, expected: str) -> None:
    assert score(Bleu(), output, expected) == pytest.approx(sentence_bleu(output, [expected]).score / 100)
    assert score(Chrf(), output, expected) == pytest.approx(sentence_chrf(output, [expected]).score / 100)
    plus = sentence_chrf(output, [expected], word_order=2).score / 100
    assert score(Chrf(word_order=2), output, expected) == pytest.approx(plus)


def test_rouge_l_of_the_example_in_its_paper() -> None:
    """Lin 2004, section 3.1: the first is nearer to the reference, though both share as many pairs."""
    assert score(Rouge(), "police kill the gunman", "police killed the gunman") == pytest.approx(3 / 4)
    assert score(Rouge(), "the gunman kill police", "police killed the gunman") == pytest.approx(2 / 4)
    assert score(Rouge(of="rouge2"), "police kill the gunman", "police killed the gunman") == pytest.approx(
        1 / 3
    )
    assert score(Rouge(of="rouge2"), "the gunman kill police", "police killed the gunman") == pytest.approx(
        1 / 3
    )


def test_rouge_counts_words_as_often_as_both_have_them() -> None:
    found = verdict(Rouge(of="rouge1"), "the the the cat", "The cat sat.")
    assert (found.details["precision"], found.details["recall"]) == (
        pytest.approx(2 / 4),
        pytest.approx(2 / 3),
    )
    assert found.score == pytest.approx(4 / 7)


# --- JSON ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ['{"a": [1, null]}', "3", ' "x"\n'])
def test_json_is_valid(text: str) -> None:
    assert verdict(JsonValid(), text).label == "valid"


@pytest.mark.parametrize("text", ["", "{a: 1}", '{"a": NaN}', "[1,]", "Here: {}", "```json\n{}\n```"])
def test_other_texts_are_not(text: str) -> None:
    found = verdict(JsonValid(), text)
    assert (found.label, found.score) == ("invalid", 0.0)
    assert found.explanation


def test_json_may_stand_in_a_code_block_where_that_is_allowed() -> None:
    assert verdict(JsonValid(fenced=True), "```json\n{}\n```").label == "valid"
    assert verdict(JsonValid(fenced=True), "```json\n{\n```").label == "invalid"
    assert verdict(JsonValid(fenced=True), "```json\r\n{}\r\n```").label == "valid"
    assert verdict(JsonValid(fenced=True), '```\n"a\u2028b\x85c"\n```').label == "valid"


def with_schema(folder: Path, schema: object) -> JsonValid:
    file = folder / "schema.json"
    file.write_text(json.dumps(schema))
    return JsonValid(schema=file)


def test_a_long_integer_is_json(tmp_path: Path) -> None:
    assert verdict(JsonValid(), "9" * 5_000).label == "valid"
    found = outcome(with_schema(tmp_path, {"type": "integer"}), "9" * 5_000)
    assert isinstance(found, Failure) and "5,000 characters is too long" in found.message
    assert verdict(with_schema(tmp_path, {"type": "integer"}), "9" * 4_000).label == "valid"


def test_what_is_no_schema_at_all_is_said_in_a_sentence(tmp_path: Path) -> None:
    for schema in (5, None, "x", [], {"$schema": 5}, {"$schema": []}):
        with pytest.raises(SpecError, match="is no JSON Schema: "):
            with_schema(tmp_path, schema)


def test_a_value_that_a_second_one_hides_does_not_fit_a_schema(tmp_path: Path) -> None:
    judge = with_schema(tmp_path, {"properties": {"n": {"type": "integer"}}})
    for text in ('{"n": "x", "n": 5}', '[{"n": 5, "n": 5}]'):
        found = verdict(judge, text)
        assert (found.label, found.score) == ("invalid", 0.0)
        assert found.explanation == "not JSON: the name 'n' stands twice in one object"
        assert verdict(JsonValid(), text).label == "valid"


def test_what_is_nested_too_deeply_is_said(tmp_path: Path) -> None:
    found = verdict(JsonValid(), "[" * 100_000)
    assert (found.label, found.explanation) == ("invalid", "not JSON: it is nested too deeply")
    endless = with_schema(tmp_path, {"$ref": "#"})
    unread = outcome(endless, "3")
    assert isinstance(unread, Failure) and "cannot be checked against the schema" in unread.message


def test_json_fits_a_schema_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "answer.json"
    file.write_text(
        json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    )
    judge = registry.judge(f"json_valid:schema={file}")
    assert verdict(judge, '{"n": 3}').label == "valid"
    wrong = verdict(judge, '{"n": "three"}')
    assert wrong.label == "invalid" and "at $.n: 'three' is not of type 'integer'" in str(wrong)
    before = judge.info.constraint
    file.write_text('{"type": "array"}')
    assert registry.judge(f"json_valid:schema={file}").info.constraint != before


@pytest.mark.parametrize(
    ("text", "says"),
    [(None, "cannot read the schema"), ("{", "is not JSON"), ('{"type": "nothing"}', "is not a JSON Schema")],
)
def test_schemas_that_are_none_are_told(tmp_path: Path, text: str | None, says: str) -> None:
    file = tmp_path / "schema.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SpecError, match=says):
        JsonValid(schema=file)


@pytest.mark.parametrize("draft", ["draft-07/schema#", "draft/2020-12/schema"])
def test_a_schema_is_never_fetched(tmp_path: Path, draft: str) -> None:
    names = {"$schema": f"http{'s' if '2020' in draft else ''}://json-schema.org/{draft}"}
    inner = {**names, "definitions": {"n": {"type": "integer"}}, "items": {"$ref": "#/definitions/n"}}
    assert verdict(with_schema(tmp_path, inner), "[1]").label == "valid"
    assert verdict(with_schema(tmp_path, inner), '["1"]').label == "invalid"
    for where in ("http://127.0.0.1:9/schema.json", "other.json", "#/definitions/none"):
        with pytest.raises(SpecError, match="which it does not contain; references are not downloaded"):
            with_schema(tmp_path, {**names, "properties": {"a": {"items": {"$ref": where}}}})


@pytest.mark.parametrize("names", [{}, {"$schema": "http://json-schema.org/draft-07/schema#"}])
def test_a_pattern_of_a_schema_that_takes_for_ever_fails_that_sample(
    tmp_path: Path, names: dict[str, str]
) -> None:
    judge = with_schema(tmp_path, {**names, "pattern": "^(a|aa)+$", "items": {"$ref": "#"}})
    assert verdict(judge, '["a", "aaa"]').label == "valid"
    assert verdict(judge, '["c"]').label == "invalid"
    found = outcome(judge, json.dumps(["a" * 60 + "c"]))
    assert isinstance(found, Failure) and "the pattern took longer than" in found.message


# --- runs ----------------------------------------------------------------------------------------


def test_a_run_of_them_loads_no_model(call: Call, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(
        '{"output": "Bern", "expected": "Bern"}\n{"output": "Basel", "expected": "Bern"}\n'
        '{"output": "Basel"}\n'
    )
    judges = [word for name in NAMES for word in ("--judge", name)]
    done = call("run", "rows.jsonl", *judges, "--json")
    assert done.code == 0, done.err
    assert "model=none" in done.out
