"""`magistrate watch explain`: what was taken from where, on a terminal and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import magistrate
from magistrate._text import plain
from magistrate.cli import command
from magistrate.datasets.spans.span import Span
from magistrate.errors import DatasetError, SpecError
from test_span_targets import HOSTILE
from traced import ANSWER, CONVENTIONS, DOCUMENTS, GENAI_CALL, QUESTION, TRACE, genai, span

OTHER = "f" * 32


def value(held: Any) -> dict[str, Any]:
    """A value as OTLP/JSON writes it."""
    if isinstance(held, bool):
        return {"boolValue": held}
    if isinstance(held, int):
        return {"intValue": str(held)}
    if isinstance(held, float):
        return {"doubleValue": held}
    if isinstance(held, list):
        return {"arrayValue": {"values": [value(item) for item in held]}}
    return {"kvlistValue": {"values": pairs(held)}} if isinstance(held, dict) else {"stringValue": held}


def pairs(attributes: Any) -> list[dict[str, Any]]:
    return [{"key": name, "value": value(held)} for name, held in attributes.items()]


def otlp(spans: list[Span]) -> dict[str, Any]:
    """Spans as an export of OTLP/JSON."""
    exported = [
        {
            "traceId": each.trace_id,
            "spanId": each.span_id,
            **({"parentSpanId": each.parent_id} if each.parent_id else {}),
            "name": each.name,
            "startTimeUnixNano": str(each.start_ns),
            "endTimeUnixNano": str(each.end_ns),
            "attributes": pairs(each.attributes),
            "events": [
                {
                    "name": event.name,
                    "timeUnixNano": str(event.time_ns),
                    "attributes": pairs(event.attributes),
                }
                for event in each.events
            ],
        }
        for each in spans
    ]
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": exported}]}]}


def written(path: Path, spans: list[Span]) -> str:
    path.write_text(json.dumps(otlp(spans)), encoding="utf-8")
    return str(path)


def explain(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(
        command, ["watch", "explain", *words], catch_exceptions=False
    )


@pytest.mark.parametrize("name", CONVENTIONS)
def test_a_file_is_explained_and_judged_the_same_way(name: str, tmp_path: Path) -> None:
    file = written(tmp_path / "spans.jsonl", CONVENTIONS[name]())
    (trace,) = json.loads(explain(file, "--json").output)["traces"]
    (target,) = trace["targets"]
    texts = {part: tuple(taken["texts"]) for part, taken in target["taken"].items()}
    (sample,) = magistrate.load(file)
    assert texts == {"input": (QUESTION,), "context": DOCUMENTS, "output": (ANSWER,)}
    assert (sample.id, sample.input, sample.context, sample.output) == (TRACE, QUESTION, DOCUMENTS, ANSWER)
    assert sample.metadata == target["metadata"]


def test_what_was_taken_from_where_is_seen(tmp_path: Path) -> None:
    shown = explain(written(tmp_path / "spans.json", genai())).output
    for line in (
        f"trace {TRACE}  3 spans",
        "answer agent",
        "input   gen_ai.input.messages of agent (genai)",
        "context gen_ai.retrieval.documents of search (genai)",
        f"1. id d0, score 1.0: {DOCUMENTS[0]}",
        "output  gen_ai.output.messages of agent (genai)",
        "search  retriever by genai  used for context",
        "chat  call by genai  not used; keys: gen_ai.operation.name",
    ):
        assert line in shown, line


def test_what_is_missing_is_said_with_the_keys_that_were_seen(tmp_path: Path) -> None:
    spans = [span(1, None, "chat", 0, 1, attributes=GENAI_CALL)]
    shown = explain(written(tmp_path / "spans.json", spans)).output
    assert "answer chat  no_output" in shown
    told = " ".join(shown.replace("│", "").split())  # however it was wrapped
    assert "keys seen: gen_ai.operation.name, gen_ai.provider.name, gen_ai.request.model" in told
    nothing = [span(1, None, "GET /", 0, 1, attributes={"http.request.method": "GET"})]
    shown = explain(written(tmp_path / "other.json", nothing)).output
    assert "nothing to judge: no agent, chain or model call" in shown
    assert "GET /  no known convention  not used; keys: http.request.method" in shown


def test_one_trace_can_be_chosen(tmp_path: Path) -> None:
    file = written(tmp_path / "spans.json", [*genai(), *(replace(each, trace_id=OTHER) for each in genai())])
    assert [each["trace_id"] for each in json.loads(explain(file, "--json").output)["traces"]] == [
        TRACE,
        OTHER,
    ]
    (trace,) = json.loads(explain(file, "--trace", OTHER[:4].upper(), "--kind", "call", "--json").output)[
        "traces"
    ]
    assert (trace["trace_id"], [each["kind"] for each in trace["targets"]]) == (OTHER, ["call"])
    with pytest.raises(
        SpecError, match=f"no trace in .* begins with '12'; it contains 2, the first is {TRACE}"
    ):
        explain(file, "--trace", "12")


def test_a_file_without_spans_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"output": "x", "context": "y"}\n', encoding="utf-8")
    with pytest.raises(DatasetError, match=r"contains no spans: .*rows.jsonl:1: a span without a trace id"):
        explain(str(path))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_and_not_obeyed(text: str, tmp_path: Path) -> None:
    spans = [replace(each, name=text) for each in genai()]
    attributes = GENAI_CALL | {text: text, "gen_ai.output.messages": [{"role": "assistant", "content": text}]}
    shown = explain(
        written(tmp_path / "spans.json", [*spans, span(4, 1, text, 8, 9, attributes=attributes)])
    ).output
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    assert plain(text)[:4] in shown


def test_a_large_trace_is_cut_on_the_terminal_and_whole_as_json(tmp_path: Path) -> None:
    spans = [*genai(), *(span(n, n - 1, "deep", 4, 5) for n in range(4, 400))]
    file = written(tmp_path / "spans.json", spans)
    assert "… and 339 more; --json shows all" in explain(file).output
    assert len(json.loads(explain(file, "--json").output)["traces"][0]["spans"]) == 399
