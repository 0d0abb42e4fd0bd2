"""Spans by OpenInference's conventions as samples; needs no package of theirs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from given import CONTEXT, FALSE, QUESTION, TRUE

import magistrate
from magistrate.errors import DatasetError
from magistrate.integrations.samples import from_openinference


def span(
    kind: str, id: str, parent: str | None = None, *, trace: str = "t1", start: int = 0, **attributes: Any
) -> dict[str, Any]:
    """A span as Phoenix's API gives it; dots of attributes are written as `__`."""
    named = {name.replace("__", "."): value for name, value in attributes.items()}
    return {
        "name": kind.lower(),
        "context": {"trace_id": trace, "span_id": id},
        "parent_id": parent,
        "start_time": f"2026-11-22T10:00:{start:02}+00:00",
        "attributes": {"openinference.span.kind": kind, **named},
    }


def documents(texts: list[str], under: str = "retrieval.documents") -> dict[str, str]:
    return {f"{under}.{number}.document.content": text for number, text in enumerate(texts)}


def asked(text: str, said: str = "llm.input_messages") -> dict[str, str]:
    return {f"{said}.0.message.role": "user", f"{said}.0.message.content": text}


def rag(trace: str = "t1", output: str = FALSE) -> list[dict[str, Any]]:
    """A chain that retrieves, then asks a model with what was found in the prompt."""
    answered = {
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": output,
    }
    prompt = asked(f"{' '.join(CONTEXT)}\n{QUESTION}")
    return [
        span("CHAIN", "a", trace=trace, input__value=QUESTION, output__value=output),
        span("RETRIEVER", "b", "a", trace=trace, start=1, **documents(CONTEXT)),
        span("LLM", "c", "a", trace=trace, start=2, llm__model_name="gpt", **prompt, **answered),
    ]


def otlp(spans: list[dict[str, Any]]) -> dict[str, Any]:
    """The same spans as an export of OTLP/JSON."""
    exported = [
        {
            "traceId": each["context"]["trace_id"],
            "spanId": each["context"]["span_id"],
            **({"parentSpanId": each["parent_id"]} if each["parent_id"] else {}),
            "name": each["name"],
            "startTimeUnixNano": str(number),
            "attributes": [
                {"key": key, "value": {"stringValue": value}} for key, value in each["attributes"].items()
            ],
        }
        for number, each in enumerate(spans)
    ]
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": exported}]}]}


def table(spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same spans as rows of Phoenix's table of spans."""
    rows = []
    for each in spans:
        row = {f"context.{name}": value for name, value in each["context"].items()}
        row |= {"name": each["name"], "parent_id": each["parent_id"], "start_time": each["start_time"]}
        row["span_kind"] = each["attributes"]["openinference.span.kind"]
        found = [value for key, value in each["attributes"].items() if key.startswith("retrieval.")]
        row["attributes.retrieval.documents"] = [{"document.content": text} for text in found] or None
        row |= {
            f"attributes.{key}": value
            for key, value in each["attributes"].items()
            if not key.startswith(("retrieval.", "openinference."))
        }
        rows.append(row)
    return rows


SHAPES: Mapping[str, Any] = {
    "spans of the API": list,
    "rows of the table": table,
    "an export": otlp,
    "exports in a list": lambda spans: [otlp(spans[:1]), otlp(spans[1:])],
}


# --- one trace, one sample -----------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_the_documents_of_a_trace_are_the_context_of_its_answer(shape: str) -> None:
    first, second = from_openinference(SHAPES[shape]([*rag("t1"), *rag("t2", TRUE)]))
    assert (first.id, first.input, first.output, first.context) == ("t1", QUESTION, FALSE, tuple(CONTEXT))
    assert (second.id, second.output) == ("t2", TRUE)
    assert first.messages == ()  # the prompt repeats what was retrieved
    assert (first.metadata["trace_id"], first.metadata["model"]) == ("t1", "gpt")


def test_a_data_frame_of_spans() -> None:
    import pandas

    frame = pandas.DataFrame(table(rag())).set_index("context.span_id", drop=False)
    frame["start_time"] = pandas.to_datetime(frame["start_time"])
    (sample,) = from_openinference(frame)
    assert (sample.input, sample.output, sample.context) == (QUESTION, FALSE, tuple(CONTEXT))


def test_a_model_call_alone_has_its_prompt_as_what_was_said() -> None:
    system = {
        "llm.input_messages.1.message.role": "system",
        "llm.input_messages.1.message.contents.0.message_content.text": "Be ",
        "llm.input_messages.1.message.contents.1.message_content.text": "kind.",
    }
    alone = span("LLM", "a", output__value=TRUE, **asked(QUESTION), **system)
    (sample,) = from_openinference([alone])
    assert (sample.input, sample.output, sample.context) == (QUESTION, TRUE, ())
    assert [(turn.role, turn.text) for turn in sample.messages] == [
        ("user", QUESTION),
        ("system", "Be kind."),
    ]


def test_only_what_a_reranker_let_through_is_the_context() -> None:
    reranked = span("RERANKER", "d", "a", start=1, **documents(CONTEXT[1:], "reranker.output_documents"))
    (sample,) = from_openinference([*rag(), reranked])
    assert sample.context == (CONTEXT[1],)


def test_spans_may_come_in_any_order_and_below_spans_of_other_kinds() -> None:
    server = {
        "name": "GET /ask",
        "context": {"trace_id": "t1", "span_id": "s"},
        "attributes": {"http.method": "GET"},
    }
    spans = rag()
    spans[0]["parent_id"] = "s"
    (sample,) = from_openinference([*reversed(spans), server])
    assert (sample.output, sample.context) == (FALSE, tuple(CONTEXT))


@pytest.mark.parametrize(
    ("output", "read"),
    [
        ({"output__value": json.dumps({"answer": TRUE, "took": 3})}, TRUE),
        ({"output__value": json.dumps(TRUE)}, TRUE),
        ({"output__value": json.dumps([1, 2]), "output__mime_type": "application/json"}, FALSE),
        ({"output__value": "{Bern} is a city.", "output__mime_type": "text/plain"}, "{Bern} is a city."),
        ({}, FALSE),
    ],
)
def test_an_answer_in_json_is_found_by_a_known_name_else_the_models_own_is_taken(
    output: dict[str, str], read: str
) -> None:
    chain = span("CHAIN", "a", input__value=json.dumps({"question": QUESTION}), **output)
    (sample,) = from_openinference([chain, *rag()[1:]])
    assert (sample.input, sample.output) == (QUESTION, read)


def test_an_inner_chain_does_not_answer_for_the_outer_one() -> None:
    outer = span("CHAIN", "a", input__value=QUESTION)
    inner = span("CHAIN", "i", "a", start=1, output__value="\n".join(CONTEXT))
    (sample,) = from_openinference([outer, inner, *rag()[1:]])
    assert sample.output == FALSE


def test_spans_in_a_circle_end() -> None:
    one, two = span("CHAIN", "a", "b"), span("LLM", "b", "a", output__value=TRUE)
    first, second = from_openinference([one, two, *rag("t2")])
    assert (first.id, first.output, second.id) == ("t1", TRUE, "t2")


# --- what cannot be read -------------------------------------------------------------------------


def test_what_cannot_be_read_is_named_and_nothing_else_is_lost() -> None:
    evaluator = span("EVALUATOR", "e", trace="t2", output__value="faithful")
    silent = span("RETRIEVER", "r", trace="t3", **documents(CONTEXT))
    stray = {"name": "x", "context": {}, "attributes": {}}
    data = from_openinference([*rag(), stray, evaluator, "no span", silent, *rag("t4")])
    assert [sample.id for sample in data] == ["t1", "t4"]
    assert [str(problem) for problem in data.problems] == [
        "span 4: a span without a trace id",
        "span 6: must be an object, got str",
        "span 5: trace t2 is from an evaluator, not from an application",
        "span 7: no agent, chain or model call in trace t3; its spans are: retriever",
    ]


def test_hostile_attributes_are_read_or_refused_and_nothing_more() -> None:
    odd: dict[str, Any] = {
        "." * 50: "dots",
        "retrieval.documents.99999999999999999999.document.content": "far",
        "retrieval.documents.²": {"document.content": "squared"},
        "retrieval": "a text where others have a branch",
        "llm.input_messages": "no list",
        "input.value": '{"question": ' + "[" * 5000,
    }
    hostile = span("LLM", "a", output__value=TRUE)
    hostile["attributes"] = {**odd, **hostile["attributes"]}
    (sample,) = from_openinference([hostile])
    assert sample.output == TRUE


# --- files ---------------------------------------------------------------------------------------


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


FILES = {
    "spans.jsonl": lines(rag()),
    "table.jsonl": lines(table(rag())),
    "export.jsonl": lines([otlp(rag()[:1]), otlp(rag()[1:])]),
    "export.json": json.dumps(otlp(rag())),
    "pretty.json": json.dumps(otlp(rag()), indent=2),
    "list.json": json.dumps(rag()),
    "spans.jsonl.gz": lines(rag()),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_spans_is_known_by_what_it_holds(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    held = FILES[name].encode()
    path.write_bytes(gzip.compress(held) if path.suffix == ".gz" else held)
    data = magistrate.load(path)
    (sample,) = data
    assert (sample.id, sample.output, sample.context) == ("t1", FALSE, tuple(CONTEXT))
    assert (data.problems, len(data)) == ([], 1)
    assert magistrate.load(path).size in (None, 1)
    assert [each.output for each in from_openinference(path)] == [FALSE]


def test_a_bad_line_is_named_and_nothing_else_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_text(f"{{oops\n{lines(rag())}[]\n{lines(rag('t2'))}", encoding="utf-8")
    data = magistrate.load(path)
    assert [sample.id for sample in data] == ["t1", "t2"]
    assert [problem.line for problem in data.problems] == [1, 5]


def test_rows_that_only_mention_a_trace_stay_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(lines([{"output": TRUE, "context": CONTEXT, "trace_id": "t", "span_id": "s"}] * 2))
    assert len(list(magistrate.load(path))) == 2


def test_another_json_object_is_no_data_set(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"version": 2, "rows": []}, indent=1))
    with pytest.raises(DatasetError, match="contains one JSON object"):
        list(magistrate.load(path))
