"""Spans as values: read from an export of OTLP/JSON, from rows of files, and from what was stored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from magistrate.datasets.spans.samples import is_span
from magistrate.datasets.spans.span import Event, Link, Span, spans_of_request, spans_of_row
from traced import CONVENTIONS

TRACE, SPAN = "5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174"


def exported(**changed: Any) -> dict[str, Any]:
    """A span as the specification of OTLP/JSON shows it."""
    return {
        "traceId": TRACE.upper(),
        "spanId": SPAN.upper(),
        "parentSpanId": "EEE19B7EC3C1B173",
        "name": "I'm a server span",
        "startTimeUnixNano": "1544712660000000000",
        "endTimeUnixNano": 1544712661000000000,
        "kind": 2,
        "attributes": [
            {"key": "text", "value": {"stringValue": "some value"}},
            {"key": "json", "value": {"stringValue": '{"a": 1}'}},
            {"key": "whole", "value": {"intValue": "9007199254740993"}},
            {"key": "number", "value": {"intValue": 7}},
            {"key": "double", "value": {"doubleValue": 0.5}},
            {"key": "nan", "value": {"doubleValue": "NaN"}},
            {"key": "yes", "value": {"boolValue": True}},
            {"key": "list", "value": {"arrayValue": {"values": [{"stringValue": "a"}, {"intValue": "2"}]}}},
            {"key": "map", "value": {"kvlistValue": {"values": [{"key": "k", "value": {"intValue": "3"}}]}}},
            {"key": "bytes", "value": {"bytesValue": "AQI="}},
            {"key": "none", "value": {}},
            {"key": "unheard", "value": {"newValue": 1}},
        ],
        "events": [
            {"timeUnixNano": "5", "name": "e", "attributes": [{"key": "a", "value": {"intValue": "1"}}]}
        ],
        "links": [{"traceId": TRACE, "spanId": SPAN, "attributes": []}],
        "status": {"code": 1},
        "aFieldOfTomorrow": {"x": 1},
        **changed,
    }


def request(*spans: Any) -> dict[str, Any]:
    attributes = [{"key": "service.name", "value": {"stringValue": "my.service"}}]
    scoped = {"scope": {"name": "my.library", "version": "1.0.0"}, "spans": list(spans)}
    return {"resourceSpans": [{"resource": {"attributes": attributes}, "scopeSpans": [scoped]}]}


READ = Span(
    TRACE,
    SPAN,
    "eee19b7ec3c1b173",
    "I'm a server span",
    "server",
    1544712660000000000,
    1544712661000000000,
    {
        "text": "some value",
        "json": '{"a": 1}',
        "whole": 9007199254740993,
        "number": 7,
        "double": 0.5,
        "nan": "NaN",
        "yes": True,
        "list": ["a", 2],
        "map": {"k": 3},
        "bytes": "AQI=",
        "none": None,
        "unheard": 1,
    },
    (Event("e", 5, {"a": 1}),),
    (Link(TRACE, SPAN, {}),),
    "ok",
    {"service.name": "my.service"},
    "my.library",
)


def test_an_export_is_read() -> None:
    assert spans_of_request(request(exported())) == ([READ], [])


def test_names_of_enums_and_of_the_proto_file_are_read_too() -> None:
    named = exported(kind="SPAN_KIND_SERVER", status={"code": "STATUS_CODE_OK"})
    snake = {
        "resource_spans": [
            {
                "resource": request()["resourceSpans"][0]["resource"],
                "scope_spans": [{"scope": {"name": "my.library"}, "spans": [_snake(named)]}],
            }
        ]
    }
    assert spans_of_request(request(named))[0] == [READ]
    assert spans_of_request(snake)[0] == [READ]


def _snake(value: Any) -> Any:
    """A request with the field names of the `.proto` files."""
    if isinstance(value, list):
        return [_snake(item) for item in value]
    if not isinstance(value, dict):
        return value
    names = {name: "".join(f"_{c.lower()}" if c.isupper() else c for c in name) for name in value}
    return {names[name]: _snake(item) for name, item in value.items()}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"traceId": ""}, "a span without a trace id"),
        ({"traceId": "0" * 32}, "a trace id must be 32 hex digits, not all 0; got '000"),
        ({"traceId": "W47/95gDgQPSabYzgT/GDA=="}, "a trace id must be 32 hex digits"),
        ({"spanId": None}, "a span id must be 16 hex digits, not all 0; got none"),
        ({"spanId": "xyz\x1b[2J"}, "a span id must be 16 hex digits"),
        ({"parentSpanId": "12"}, "a parent's span id must be 16 hex digits"),
    ],
)
def test_a_span_without_proper_ids_is_refused_alone(changed: dict[str, Any], told: str) -> None:
    spans, (refused,) = spans_of_request(request(exported(**changed), exported()))
    assert spans == [READ]
    assert refused.startswith(told)
    assert refused.isprintable()


def test_what_is_no_span_is_named_and_what_is_no_request_is_empty() -> None:
    assert spans_of_request(request("x", exported())) == ([READ], ["a span must be an object"])
    for empty in ({}, {"resourceSpans": None}, {"resourceSpans": {}}, {"resourceSpans": [{"scopeSpans": 1}]}):
        assert spans_of_request(empty) == ([], [])


def test_values_inside_each_other_end_somewhere() -> None:
    value: Any = {"stringValue": "deep"}
    for _ in range(5000):
        value = {"arrayValue": {"values": [value]}}
    (span,), _ = spans_of_request(request(exported(attributes=[{"key": "a", "value": value}])))
    json.dumps(span.as_json())


@pytest.mark.parametrize("time", ["", "soon", -1, "1" * 30, 1 << 63, True, {}, [1]])
def test_a_time_that_is_none_is_left_out(time: Any) -> None:
    (span,), _ = spans_of_request(request(exported(endTimeUnixNano=time)))
    assert span.end_ns is None


@pytest.mark.parametrize("name", CONVENTIONS)
def test_what_is_stored_comes_back_as_it_was(name: str) -> None:
    for span in [READ, *CONVENTIONS[name]()]:
        assert Span.from_json(json.loads(json.dumps(span.as_json()))) == span


def test_a_span_as_an_sdk_prints_it() -> None:
    printed = {
        "name": "chat",
        "context": {"trace_id": f"0x{TRACE}", "span_id": f"0x{SPAN}", "trace_state": "[]"},
        "kind": "SpanKind.CLIENT",
        "parent_id": "0xeee19b7ec3c1b173",
        "start_time": "2026-11-22T10:00:00.000001Z",
        "end_time": "2026-11-22T10:00:01Z",
        "status": {"status_code": "ERROR"},
        "attributes": {"a": 1},
        "events": [{"name": "e", "timestamp": "2026-11-22T10:00:00Z", "attributes": {"b": "2"}}],
        "links": [],
        "resource": {"attributes": {"service.name": "shop"}, "schema_url": ""},
    }
    assert is_span(printed)
    (span,) = spans_of_row(printed)
    assert isinstance(span, Span)
    assert (span.trace_id, span.span_id, span.parent_id) == (TRACE, SPAN, "eee19b7ec3c1b173")
    assert (span.kind, span.status, span.resource) == ("client", "error", {"service.name": "shop"})
    assert (span.end_ns or 0) - span.start_ns == 999_999_000
    assert span.events[0].attributes == {"b": "2"}
