"""`magistrate watch`: rules that cannot be used are told at their line, spans of a file are judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from magistrate._yaml import read_document
from magistrate.datasets.spans.span import Span
from magistrate.errors import SpecError
from magistrate.store import Store
from magistrate.watch.parts import duration
from magistrate.watch.rules import read_rule_file, schema
from terminal import Call
from watched import answer

RULES = """
rules:
  - name: refunds
    environment: production
    where:
      team: refunds
      tokens: {at_least: 20, below: 1000}
      root.session.id: {exists: true}
      model: {in: [small, large]}
    judges:
      - novelty
      - judge: hallucination
        model: openai:gpt-4o-mini
        uncertain: [0.3, 0.7]
        floor: 0.05
    sample: {rate: 0.5, cohort: shop}
    budget: {hour: {calls: 100}, day: {dollars: 2.5, tokens: 100000}}
    quiet: 30s
    keep: 7d
  - name: all
    judges: [novelty]
"""


def exported(spans: list[Span]) -> dict[str, Any]:
    """Spans as an export request of OTLP in JSON."""

    def pairs(attributes: Any) -> list[dict[str, Any]]:
        return [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()]

    found = [
        {
            "traceId": span.trace_id,
            "spanId": span.span_id,
            "parentSpanId": span.parent_id or "",
            "name": span.name,
            "startTimeUnixNano": str(span.start_ns),
            "endTimeUnixNano": str(span.end_ns or 0),
            "attributes": pairs(span.attributes),
        }
        for span in spans
    ]
    resource = {"attributes": pairs(spans[0].resource)}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": found}]}]}


@pytest.fixture
def spans(tmp_path: Path) -> Path:
    path = tmp_path / "spans.jsonl"
    traces = [answer(1), answer(2, "Bern has two million people."), answer(3, documents=())]
    path.write_text("".join(json.dumps(exported(each)) + "\n" for each in traces))
    return path


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text("rules:\n  - name: all\n    judges: [novelty]\n")
    return path


def test_rules_are_read_and_their_schema_agrees(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    first, second = read_rule_file(path).rules
    assert (first.quiet, first.keep, first.sample.rate, first.judges[1].band) == (
        30,
        604_800,
        0.5,
        (0.3, 0.7),
    )
    assert first.digest != second.digest
    Draft202012Validator.check_schema(schema())
    Draft202012Validator(schema()).validate(read_document(path).values)
    assert first == type(first).model_validate_json(json.dumps(first.plain()), strict=False)


@pytest.mark.parametrize(
    "wrong, told",
    [
        (
            "name: a\njudges: [novelty]\nsampel: 1",
            "line 3, rules.0.sampel: unknown key; did you mean 'sample'?",
        ),
        ("name: a\njudges: [noveltee]", "line 2, rules.0.judges.0.judge: unknown judge 'noveltee'"),
        ("name: a\njudges: []", "line 2, rules.0.judges: must be a list of at least 1"),
        ("name: a\njudges: [novelty, novelty]", "line 2, rules.0.judges.1.judge: 'novelty' is given twice"),
        ("name: a\njudges: [{judge: novelty, floor: .1}]", "the first judge judges everything"),
        ("name: a\njudges: [novelty]\nsample: 0", "line 3, rules.0.sample.rate: must be more than 0"),
        (
            "name: a\njudges: [novelty]\nquiet: soon",
            "line 3, rules.0.quiet: a time must be a number and one of",
        ),
        ("name: a\njudges: [novelty]\nwhere: {team: {}}", "line 3, rules.0.where.team: has no condition"),
        (
            "name: a\njudges: [novelty]\nwhere: {n: {above: x}}",
            "line 3, rules.0.where.n.above: must be a number",
        ),
        ("name: a\njudges: [novelty]\ntarget: trace", "line 3, rules.0.target: must be 'answer' or 'call'"),
        ("name: a\njudges: [novelty]\nbudget: {week: {}}", "line 3, rules.0.budget.week: unknown key"),
        ("judges: [novelty]", "line 1, rules.0.name: is missing"),
        ("name: a\njudges: [novelty]\nkeep: 999999w", "line 3, rules.0.keep: a time must be at most 36500d"),
        ("name: a\njudges: [novelty]\nquiet: 1e12", "line 3, rules.0.quiet: must be at most 3.1536e+09"),
    ],
)
def test_what_cannot_be_used_is_told_with_its_line(tmp_path: Path, wrong: str, told: str) -> None:
    path = tmp_path / "rules.yaml"
    lines = [("- " if number == 0 else "  ") + line for number, line in enumerate(wrong.splitlines())]
    path.write_text("rules:\n" + "\n".join(lines))
    with pytest.raises(SpecError) as raised:
        read_rule_file(path)
    number = told.partition("line ")[2].partition(",")[0]
    if number:
        told = told.replace(f"line {number}", f"line {int(number) + 1}", 1)
    assert told in str(raised.value)


def test_a_time_is_a_number_and_a_unit() -> None:
    assert duration("90s").total_seconds() == 90
    assert duration("5000w").days == 35_000
    for wrong in ("", "7", "d", "-1d", "1.5h", "9999999d", "7 d", "36501d", "999999w"):
        with pytest.raises(SpecError):
            duration(wrong)


def test_a_time_before_all_dates_is_refused_in_a_sentence(call: Call, rules: Path) -> None:
    for words in (
        ("run", "--rules", rules, "--once", "--since", "999999w"),
        ("pull", "phoenix", "http://127.0.0.1:9", "--since", "999999w"),
    ):
        done = call("watch", *words)
        assert done.code == 2 and "a time must be at most 36500d, got 999999w" in done.err, words


def test_a_file_is_judged_and_again_changes_nothing(call: Call, rules: Path, spans: Path, home: Path) -> None:
    for _ in range(2):
        done = call("watch", "run", "--rules", rules, "--from", spans, "--once", "--json")
        assert done.code == 0, done.err
        (told,) = json.loads(done.out)["rules"]
        assert told == {"rule": "all", "decisions": {"judged": 2, "no_context": 1}}
    with Store.open(home / "magistrate.db") as store:
        (run,) = store.runs()
        assert (run.n_samples, run.n_verdicts) == (2, 2)
        labels = {outcome.sample_id[31]: outcome.label for outcome in store.outcomes(run.id)}  # type: ignore[union-attr]
    assert labels == {"1": "faithful", "2": "hallucinated"}
    assert call("show", "watch all v1").code == 0


def test_a_dry_run_counts_and_writes_nothing(call: Call, rules: Path, spans: Path, home: Path) -> None:
    done = call("watch", "run", "--rules", rules, "--from", spans, "--dry-run", "--json")
    assert done.code == 0, done.err
    (told,) = json.loads(done.out)["rules"]
    assert told["decisions"] == {"queued": 2, "no_context": 1}
    assert told["judges"][0]["judges"]["novelty"]["asked"] == 2
    assert told["judges"][0]["calls"] == 0
    assert not (home / "magistrate.db").exists()
    shown = call("watch", "run", "--rules", rules, "--from", spans, "--dry-run").out
    assert "all: 3 targets: 2 queued, 1 no_context" in shown


def test_the_past_is_judged_where_it_is_asked_for(
    call: Call, rules: Path, spans: Path, tmp_path: Path
) -> None:
    assert call("watch", "run", "--rules", rules, "--from", spans, "--once").code == 0
    other = tmp_path / "other.yaml"
    other.write_text("rules:\n  - name: late\n    judges: [novelty]\n")
    assert "late: 0 targets" in call("watch", "run", "--rules", other, "--once").out
    told = call("watch", "run", "--rules", other, "--since", "1d", "--dry-run").out
    assert "late: 3 targets: 2 queued, 1 no_context" in told
    done = call("watch", "run", "--rules", other, "--since", "1d", "--once")
    assert "late: 3 targets: 2 judged, 1 no_context" in done.out
    told = call("watch", "run", "--rules", other, "--since", "1d", "--dry-run").out
    assert "late: 0 targets" in told


def test_what_is_no_file_of_spans_is_told(call: Call, rules: Path, tmp_path: Path) -> None:
    empty = tmp_path / "rows.jsonl"
    empty.write_text('{"output": "x"}\n')
    done = call("watch", "run", "--rules", rules, "--from", empty, "--once")
    assert done.code == 2 and "contains no spans" in done.err
    done = call("watch", "run", "--rules", rules, "--since", "yesterday")
    assert done.code == 2 and "a time must be a number" in done.err
