"""Turns spans of traces into samples: an application's tracing by OpenInference's conventions.

A span is an object of an OTLP/JSON export (`resourceSpans`), a row of Phoenix's table of spans, or a span as
its API gives it. One trace makes one sample: what its outermost chain or agent answered, else what its last
model call did, with the documents that were retrieved on the way as the context.
Source: github.com/Arize-ai/openinference, `spec/semantic_conventions.md`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from magistrate.datasets.fields import field_of, plain
from magistrate.datasets.rows import Problem, Row

OUTER = ("CHAIN", "AGENT")
DEEPEST = 16  # names between the dots of an attribute; what lies deeper stays one name
TRACE = (("context", "trace_id"), ("context.trace_id",), ("traceId",), ("trace_id",))
SPAN = (("context", "span_id"), ("context.span_id",), ("spanId",), ("span_id",))
PARENT = (("parent_id",), ("parentSpanId",), ("parent_span_id",))
START = (("start_time",), ("startTimeUnixNano",), ("start_time_unix_nano",))
EXPORTED = (("resourceSpans", "scopeSpans"), ("resource_spans", "scope_spans"))


@dataclass(frozen=True, slots=True)
class Span:
    """One step of a trace; `attributes` are nested by the names between the dots."""

    row: Row
    trace: str
    id: str
    parent: str
    name: str
    start: str
    attributes: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The kind of the step, such as LLM or RETRIEVER; empty if unknown."""
        said = at(self.attributes, "openinference", "span", "kind") or self.row.values.get("span_kind")
        return said.upper() if isinstance(said, str) else ""


def is_span(values: Mapping[str, Any]) -> bool:
    """Whether a row is a span or an export of spans, rather than a sample that has a trace's id."""
    if any(outer in values for outer, _ in EXPORTED):
        return True
    attributes = any(name == "attributes" or name.startswith("attributes.") for name in values)
    return attributes and bool(_first(values, TRACE)) and bool(_first(values, SPAN))


def gathered(rows: Iterable[Row | Problem]) -> Iterator[Row | Problem]:
    """The samples of a file of spans, one a trace; the rows of any other file as they are."""
    coming = iter(rows)
    for row in coming:
        if isinstance(row, Row) and is_span(row.values):
            yield from _traces(chain([row], coming))
            return
        yield row
        if isinstance(row, Row):
            break
    yield from coming


def _traces(rows: Iterable[Row | Problem]) -> Iterator[Row | Problem]:
    """One sample a trace, in the order in which traces begin; all spans are in memory until then."""
    traces: dict[str, list[Span]] = {}
    for row in rows:
        for span in [row] if isinstance(row, Problem) else _spans(row):
            if isinstance(span, Problem):
                yield span
            else:
                traces.setdefault(span.trace, []).append(span)
    for spans in traces.values():
        yield _sample(sorted(spans, key=lambda span: span.start))


def _spans(row: Row) -> Iterator[Span | Problem]:
    for outer, scopes in EXPORTED:
        if outer in row.values:
            for resource in _mappings(row.values[outer]):
                for scope in _mappings(resource.get(scopes)):
                    yield from (_span(row, found) for found in _mappings(scope.get("spans")))
            return
    yield _span(row, row.values)


def _span(row: Row, values: Mapping[str, Any]) -> Span | Problem:
    trace = _first(values, TRACE)
    if not trace:
        return row.problem("a span without a trace id")
    flat: dict[str, Any] = {
        name.removeprefix("attributes."): value
        for name, value in values.items()
        if name.startswith("attributes.")
    }
    given = values.get("attributes")
    if isinstance(given, Mapping):
        flat |= given
    elif isinstance(given, list):  # OTLP: [{"key": …, "value": {"stringValue": …}}]
        flat |= {each["key"]: _any_value(each.get("value")) for each in _mappings(given) if "key" in each}
    own = Row(row.file, row.line, trace, values)
    name = values.get("name")
    return Span(
        own,
        trace,
        _first(values, SPAN),
        _first(values, PARENT),
        name if isinstance(name, str) else "",
        _first(values, START).rjust(20, "0"),
        nested(flat),
    )


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes by the names between their dots; of a list the items' too.

    >>> nested({"input.value": "Who?", "retrieval.documents": [{"document.content": "Bern."}]})
    {'input': {'value': 'Who?'}, 'retrieval': {'documents': [{'document': {'content': 'Bern.'}}]}}
    """
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = str(name).split(".", DEEPEST)
        branch = tree
        for step in path:
            below = branch.get(step)
            if not isinstance(below, dict):
                below = branch[step] = {}
            branch = below
        if isinstance(value, Mapping):
            value = nested(value)
        elif isinstance(value, list | tuple):
            value = [nested(item) if isinstance(item, Mapping) else item for item in value]
        known = branch.get(last)
        branch[last] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
    return tree


# --- from a trace to a sample ----------------------------------------------------------------------


def _sample(spans: list[Span]) -> Row | Problem:
    first = spans[0].row
    parents = {span.id: span for span in spans}
    roots = [span for span in spans if span.parent not in parents]
    if roots and all(root.kind == "EVALUATOR" for root in roots):
        return first.problem(f"trace {plain(first.id)} is that of an evaluator, not of an application")
    outer = [span for span in spans if span.kind in OUTER and not _within(span, parents)]
    models = [span for span in reversed(spans) if span.kind == "LLM"]
    answer = next((span for span in [*outer, *models] if _output(span) is not None), None)
    if answer is None:
        kinds = ", ".join(dict.fromkeys(span.kind or "no kind" for span in spans))
        return first.problem(
            f"no output.value that is text in a chain, agent or model call of trace {plain(first.id)}; "
            f"its spans are: {plain(kinds, 200)}"
        )
    documents = _documents(spans)
    model = answer if answer.kind == "LLM" else next(iter(models), None)
    messages = [] if model is None else _messages(model, "input_messages")
    values: dict[str, Any] = {
        "id": answer.trace,
        "input": _input([*outer, answer], messages),
        "output": _output(answer),
        "context": documents,
        # The prompt repeats what was retrieved; it is a source only where there is no other.
        "messages": [] if documents else messages,
        "metadata": _metadata(answer, model),
    }
    kept = {name: value for name, value in values.items() if value}
    return Row(answer.row.file, answer.row.line, answer.trace, kept)


def _within(span: Span, parents: Mapping[str, Span]) -> bool:
    """Whether a span stands inside a chain or an agent."""
    seen = {span.id}
    above = parents.get(span.parent)
    while above is not None and above.id not in seen:
        if above.kind in OUTER:
            return True
        seen.add(above.id)
        above = parents.get(above.parent)
    return False


def _documents(spans: Iterable[Span]) -> list[str]:
    """The retrieved documents, each text once; if they were reranked, those that the rerankers kept."""
    paths = {"RERANKER": ("reranker", "output_documents"), "RETRIEVER": ("retrieval", "documents")}
    for kind, path in paths.items():
        found = [
            text
            for span in spans
            if span.kind == kind
            for document in _items(at(span.attributes, *path))
            if isinstance(text := at(document, "document", "content"), str) and text
        ]
        if found:
            return list(dict.fromkeys(found))
    return []


def _messages(span: Span, which: str) -> list[dict[str, str]]:
    found = []
    for each in _items(at(span.attributes, "llm", which)):
        message = at(each, "message")
        role = at(message, "role")
        if text := _content(message):
            found.append({"role": role if isinstance(role, str) and role else "user", "content": text})
    return found


def _content(message: Any) -> str:
    whole = at(message, "content")
    if isinstance(whole, str):
        return whole
    parts = (at(part, "message_content", "text") for part in _items(at(message, "contents")))
    return "".join(part for part in parts if isinstance(part, str))


def _output(span: Span) -> str | None:
    said = _messages(span, "output_messages")
    return said[-1]["content"] if said else _value(span, "output")


def _input(spans: Iterable[Span], messages: list[dict[str, str]]) -> str | None:
    asked = next((text for span in spans if span.kind in OUTER and (text := _value(span, "input"))), None)
    told = (message["content"] for message in reversed(messages) if message["role"] == "user")
    return asked or next(told, None)


def _value(span: Span, which: str) -> str | None:
    """`input.value` or `output.value` as text; of a JSON object what it holds under a known name."""
    text = at(span.attributes, which, "value")
    if isinstance(text, str) and text.lstrip()[:1] in ("{", "[", '"'):
        try:
            text = json.loads(text)
        except (ValueError, RecursionError):
            if at(span.attributes, which, "mime_type") == "application/json":
                return None
    if isinstance(text, Mapping):
        text = next((value for name, value in text.items() if field_of(str(name)) == which), None)
    return text if isinstance(text, str) and text else None


def _metadata(answer: Span, model: Span | None) -> dict[str, Any]:
    told = {
        "trace_id": answer.trace,
        "span_id": answer.id,
        "span_name": answer.name,
        "session_id": at(answer.attributes, "session", "id"),
        "model": None if model is None else at(model.attributes, "llm", "model_name"),
    }
    return {name: value for name, value in told.items() if isinstance(value, str) and value}


# --- foreign shapes --------------------------------------------------------------------------------


def at(tree: Any, *path: str) -> Any:
    """The value at a path of nested attributes, or None."""
    for step in path:
        tree = tree.get(step) if isinstance(tree, Mapping) else None
    return tree


def _items(value: Any) -> list[Any]:
    """A list, also where its items came as attributes of their own: `documents.0`, `documents.1`."""
    if isinstance(value, Mapping):
        numbered = [(int(key), item) for key, item in value.items() if key.isascii() and key.isdigit()]
        return [item for _, item in sorted(numbered, key=lambda each: each[0])]
    return value if isinstance(value, list) else []


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    yield from (item for item in value if isinstance(item, Mapping)) if isinstance(value, list) else ()


def _first(values: Mapping[str, Any], paths: Iterable[tuple[str, ...]]) -> str:
    found = (at(values, *path) for path in paths)
    return next((str(each) for each in found if isinstance(each, str | int) and each != ""), "")


def _any_value(value: Any) -> Any:
    """OTLP's AnyValue as a plain value."""
    if not isinstance(value, Mapping):
        return None
    if "arrayValue" in value:
        return [_any_value(item) for item in _mappings(at(value, "arrayValue", "values"))]
    if "kvlistValue" in value:
        pairs = _mappings(at(value, "kvlistValue", "values"))
        return {each["key"]: _any_value(each.get("value")) for each in pairs if "key" in each}
    return next(iter(value.values()), None)
