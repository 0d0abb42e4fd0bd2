"""OTLP requests: read alike as protobuf and as JSON, within limits, and answered as the protocol asks."""

from __future__ import annotations

import copy
import gzip
import json
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from magistrate.datasets.spans.span import spans_of_request
from magistrate.watch import events, otlp
from magistrate.watch.otlp import CUT, LIMITS, Body, Encoding, Limits, OtlpError, Signal

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "00f067aa0ba902b7"
JSON = "application/json"
PROTOBUF = "application/x-protobuf"


def attribute(key: str, value: Any = "x") -> dict[str, Any]:
    return {"key": key, "value": any_value(value)}


def any_value(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [attribute(name, each) for name, each in value.items()]}}
    if isinstance(value, list):
        return {"arrayValue": {"values": [any_value(each) for each in value]}}
    kinds: dict[type, str] = {str: "stringValue", bool: "boolValue", int: "intValue", float: "doubleValue"}
    return {kinds[type(value)]: value}


def a_span(n: int = 1, **more: Any) -> dict[str, Any]:
    return {"traceId": TRACE, "spanId": f"{n:016x}", "name": f"span {n}", **more}


def exported(*spans: dict[str, Any]) -> dict[str, Any]:
    resource = {"attributes": [attribute("service.name", "shop")]}
    return {
        "resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "s"}, "spans": [*spans]}]}]
    }


def logged(*records: dict[str, Any]) -> dict[str, Any]:
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": [*records]}]}]}


def as_json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


def read(value: dict[str, Any], limits: Limits = LIMITS, signal: Signal = "traces") -> otlp.Request:
    return otlp.read(signal, "json", as_json(value), limits)


def first(value: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = value["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    return found


def refused(call: Callable[[], Any]) -> OtlpError:
    with pytest.raises(OtlpError) as raised:
        call()
    return raised.value


def packed(*, attributes: int = 0, value: AnyValue | None = None, spans: int = 1, **more: int) -> bytes:
    span = Span(trace_id=bytes.fromhex(TRACE), span_id=bytes.fromhex(SPAN), name="s")
    for n in range(attributes):
        span.attributes.add(key=f"k{n}", value=AnyValue(string_value="x"))
    if value is not None:
        span.attributes.add(key="v", value=value)
    for _ in range(more.get("events", 0)):
        span.events.add()
    for _ in range(more.get("links", 0)):
        span.links.add()
    scope = ScopeSpans(spans=[span] * spans)
    return ExportTraceServiceRequest(resource_spans=[ResourceSpans(scope_spans=[scope])]).SerializeToString()


# --- both encodings ------------------------------------------------------------------------------


def test_protobuf_and_json_give_the_same_value() -> None:
    value = {
        "text": AnyValue(string_value="Zürich \U0001f600"),
        "empty": AnyValue(string_value=""),
        "no": AnyValue(bool_value=False),
        "zero": AnyValue(int_value=0),
        "least": AnyValue(int_value=-(1 << 63)),
        "half": AnyValue(double_value=0.5),
        "nan": AnyValue(double_value=float("nan")),
        "endless": AnyValue(double_value=float("-inf")),
        "bytes": AnyValue(bytes_value=b"\x00\xff"),
        "null": AnyValue(),
        "list": AnyValue(array_value=ArrayValue(values=[AnyValue(int_value=1), AnyValue(string_value="b")])),
        "map": AnyValue(
            kvlist_value=KeyValueList(values=[KeyValue(key="a", value=AnyValue(string_value="b"))])
        ),
    }
    span = Span(
        trace_id=bytes.fromhex(TRACE),
        span_id=bytes.fromhex(SPAN),
        parent_span_id=bytes(8),
        name="s",
        kind=Span.SPAN_KIND_CLIENT,
        start_time_unix_nano=(1 << 64) - 1,
        attributes=[KeyValue(key=name, value=each) for name, each in value.items()],
        events=[Span.Event(name="e", time_unix_nano=7)],
        links=[Span.Link(trace_id=bytes.fromhex(TRACE), span_id=bytes.fromhex(SPAN))],
    )
    span.status.code = 2
    message = ExportTraceServiceRequest(
        resource_spans=[ResourceSpans(scope_spans=[ScopeSpans(spans=[span])])]
    )
    theirs = MessageToDict(message, use_integers_for_enums=True)
    for each in (first(theirs), *first(theirs)["links"]):  # protobuf's own JSON, with ids as OTLP has them
        each |= {"traceId": TRACE, "spanId": SPAN} | ({"parentSpanId": "0" * 16} if "events" in each else {})
    by_json = otlp.read("traces", "json", as_json(theirs))
    by_protobuf = otlp.read("traces", "protobuf", message.SerializeToString())
    assert as_numbers(by_protobuf.value) == as_numbers(by_json.value)
    assert (by_protobuf.rejected, by_protobuf.cut) == (by_json.rejected, by_json.cut) == (0, {})
    assert first(by_protobuf.value)["traceId"] == TRACE


def as_numbers(value: Any) -> Any:
    """A value with the numbers that JSON may write as texts."""
    if isinstance(value, dict):
        return {name: as_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [as_numbers(each) for each in value]
    is_number = (
        isinstance(value, str) and value.lstrip("-").isdecimal() and value.strip("0") and len(value) > 18
    )
    return int(value) if is_number or value in ("0", "1", "7") else value


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
@pytest.mark.parametrize("signal", ["traces", "logs"])
def test_an_empty_request_is_one(signal: Signal, encoding: Encoding) -> None:
    assert otlp.read(signal, encoding, b"").value == {}
    assert otlp.read(signal, "json", b"{}").value == {}


def test_unknown_fields_are_passed_over_and_names_of_the_proto_file_are_read() -> None:
    value = read({"new": [1], **exported(a_span(extra={"a": None}))}).value
    assert len(spans_of_request(value)[0]) == 1
    snake = {
        "resource_spans": [{"scope_spans": [{"spans": [a_span(attributes=[attribute("k", "x" * 99)])]}]}]
    }
    assert read(snake, replace(LIMITS, characters=40)).cut == {"text": 1}, "limits hold for these, too"


def test_ids_of_json_are_hex_and_not_base64() -> None:
    upper = read(exported(a_span(traceId=TRACE.upper()))).value
    assert [span.trace_id for span in spans_of_request(upper)[0]] == [TRACE]
    base64 = read(exported(a_span(traceId="CvdlGRbNQ92ESOshHIAxnA=="), a_span(2))).value
    spans, unread = spans_of_request(base64)
    assert [span.span_id for span in spans] == [f"{2:016x}"]
    assert len(unread) == 1 and "hex" in unread[0]


BAD_JSON = {
    "no JSON": b"<html>",
    "cut": b'{"resourceSpans": [',
    "a list": b"[]",
    "a number": b"1",
    "NaN": b'{"resourceSpans": NaN}',
    "a name twice": b'{"resourceSpans": [], "resourceSpans": []}',
    "no UTF-8": b'{"a": "\xff"}',
    "half a surrogate": b'{"a": "\\ud800"}',
    "a mark before it": b"\xef\xbb\xbf{}",
    "more behind it": b"{} {}",
    "a number of 5,000 digits": b'{"a": ' + b"9" * 5000 + b"}",
    "100,000 lists in each other": b"[" * 100_000,
    "100,000 objects in each other": b'{"a":' * 100_000,
}


@pytest.mark.parametrize("body", BAD_JSON.values(), ids=BAD_JSON)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    error = refused(lambda: otlp.read("traces", "json", body))
    assert error.status == 400 and not error.retryable
    assert "JSON" in str(error)


def test_what_is_no_protobuf_is_refused() -> None:
    whole = packed(attributes=3)
    deep = AnyValue(string_value="x").SerializeToString()
    for _ in range(60):
        deep = field(5, field(1, deep))  # a list in a list
    deep = field(1, field(2, field(2, field(9, field(2, deep)))))
    for body in (
        whole[:-1],
        b"\xff" * 40,
        b"{}",
        as_json(exported(a_span())),
        b"\x0a\x05ab",
        b"\x0b" * 9,
        deep,
    ):
        error = refused(lambda body=body: otlp.read("traces", "protobuf", body))
        assert error.status == 400, body[:20]
    bad_text = whole.replace(b"k0", b"\xff\xfe")
    assert refused(lambda: otlp.read("traces", "protobuf", bad_text)).status == 400


def field(number: int, body: bytes) -> bytes:
    """A field that holds a message."""
    length, rest = len(body), bytearray()
    while length > 127:
        rest.append(length & 127 | 128)
        length >>= 7
    return bytes((number << 3 | 2, *rest, length)) + body


def test_without_the_package_protobuf_is_refused_and_json_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    otlp._protobuf.cache_clear()
    for name in [name for name in sys.modules if name.startswith("opentelemetry.proto")]:
        monkeypatch.setitem(sys.modules, name, None)
    error = refused(lambda: otlp.read("traces", "protobuf", packed()))
    assert error.status == 415 and "pip install 'magistrate[otlp]'" in str(error)
    assert otlp.read("traces", "json", as_json(exported(a_span()))).rejected == 0
    assert otlp.refusal(415, "m", PROTOBUF).body == Status(code=3, message="m").SerializeToString()


# --- limits --------------------------------------------------------------------------------------


def test_records_beyond_the_limit_are_rejected_and_counted() -> None:
    value = exported(*map(a_span, range(1, 8)))
    value["resourceSpans"] *= 2  # a second group, which shares the room
    found = read(copy.deepcopy(value), replace(LIMITS, records=10))
    assert found.rejected == 4
    assert len(spans_of_request(found.value)[0]) == 10


@pytest.mark.parametrize("name", ["attributes", "events", "links"])
def test_lists_of_a_record_are_cut_and_the_record_says_so(name: str) -> None:
    items = {
        "attributes": attribute("k"),
        "events": {"name": "e"},
        "links": {"traceId": TRACE, "spanId": SPAN},
    }
    found = read(exported(a_span(**{name: [items[name]] * 9}), a_span(2)), Limits(**{name: 4}))
    cut, whole = (each.attributes for each in spans_of_request(found.value)[0])
    assert found.cut == {name: 5}
    assert cut[CUT] == name and CUT not in whole


def test_texts_and_depths_are_cut_wherever_they_are() -> None:
    deep: Any = "end"
    for _ in range(12):
        deep = {"a": [deep]}
    found = read(
        exported(a_span(name="n" * 50, attributes=[attribute("long", ["y" * 99, {"z": "z" * 99}])])),
        replace(LIMITS, characters=40),
    )
    span = spans_of_request(found.value)[0][0]
    assert found.cut == {"text": 3} and span.name == "n" * 40
    assert span.attributes["long"] == ["y" * 40, {"z": "z" * 40}]
    by_json = read(exported(a_span(attributes=[attribute("deep", deep), attribute("flat", 1)])))
    assert by_json.cut == {"depth": 1}
    assert spans_of_request(by_json.value)[0][0].attributes["flat"] == 1
    assert CUT in spans_of_request(by_json.value)[0][0].attributes


def test_numbers_without_bounds_stay_what_json_can_hold() -> None:
    found = read(exported(a_span(attributes=[attribute("n", 10**30), attribute("m", (1 << 63) - 1)])))
    assert found.cut == {"number": 1}
    endless = as_json(exported(a_span(attributes=[attribute("e", 1.5)]))).replace(b"1.5", b"1e999")
    request = otlp.read("traces", "json", endless)
    json.dumps(request.value, allow_nan=False)


@pytest.mark.parametrize(
    "body",
    [b'{"a": [' + b"{}," * 300 + b"{}]}", b"[" + b"1," * 300 + b"1]", b"[" * 301],
    ids=["objects", "numbers", "lists"],
)
def test_json_of_too_many_values_is_refused_before_it_is_parsed(body: bytes) -> None:
    error = refused(lambda: otlp.read("traces", "json", body, replace(LIMITS, values=300)))
    assert error.status == 413


def test_protobuf_of_too_many_values_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    few = replace(LIMITS, values=2_000)
    assert otlp.read("traces", "protobuf", packed(attributes=400), few).rejected == 0
    monkeypatch.setattr(otlp, "_object", None)  # nothing is parsed from here on
    nested = AnyValue(array_value=ArrayValue(values=[AnyValue()] * 3000))
    of_pairs = AnyValue(kvlist_value=KeyValueList(values=[KeyValue()] * 3000))
    for body in (
        packed(spans=300),
        packed(attributes=1000),
        packed(events=3000),
        packed(links=3000),
        packed(value=nested),
        packed(value=of_pairs),
        b"\x08\x00" * 3000,
    ):
        assert refused(lambda body=body: otlp.read("traces", "protobuf", body, few)).status == 413


# --- packed bodies -------------------------------------------------------------------------------


def unpacked(body: bytes, encoding: str = "gzip", limits: Limits = LIMITS, size: int = 1000) -> bytes:
    found = Body(encoding, limits)
    for start in range(0, len(body), size):
        found.add(body[start : start + size])
    return found.whole()


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_bodies_are_unpacked_however_they_are_cut_up(size: int) -> None:
    plain = as_json(exported(a_span())) * 20
    assert unpacked(gzip.compress(plain, mtime=0), size=size) == plain
    assert (
        unpacked(gzip.compress(plain, mtime=0) + gzip.compress(b"more", mtime=0), size=size)
        == plain + b"more"
    )
    assert unpacked(plain, "identity", size=size) == unpacked(plain, "", size=size) == plain
    assert unpacked(b"") == b""


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (gzip.compress(b"x" * 1000, mtime=0)[:-4], "gzip", 400),
        (gzip.compress(b"x" * 1000, mtime=0)[:12], "gzip", 400),
        (gzip.compress(b"x" * 1000, mtime=0)[:-8] + bytes(8), "gzip", 400),
        (b"{}", "gzip", 400),
        (zlib.compress(b"{}"), "gzip", 400),
        (gzip.compress(b"{}", mtime=0) + b"rest", "gzip", 400),
        (b"{}", "deflate", 415),
        (b"{}", "br", 415),
        (b"{}", "gzip, gzip", 415),
    ],
)
def test_what_cannot_be_unpacked_is_refused(body: bytes, encoding: str, status: int) -> None:
    assert refused(lambda: unpacked(body, encoding)).status == status


def test_a_bomb_takes_no_memory() -> None:
    bomb = gzip.compress(bytes(200 * 2**20))
    limits = replace(LIMITS, plain_bytes=2**20)
    body = Body("gzip", limits)
    tracemalloc.start()
    error = refused(lambda: body.add(bomb))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error.status == 413 and "uncompressed" in str(error)
    assert most < 4 * 2**20
    assert refused(lambda: unpacked(b"x" * 101, "", replace(LIMITS, packed_bytes=100))).status == 413


# --- answers -------------------------------------------------------------------------------------

RESPONSES: dict[Signal, Any] = {"traces": ExportTraceServiceResponse, "logs": ExportLogsServiceResponse}


@pytest.mark.parametrize("signal", ["traces", "logs"])
def test_answers_are_those_of_the_protocol(signal: Signal) -> None:
    whole = otlp.answer(signal, "protobuf")
    assert (whole.status, whole.body, whole.headers["content-type"]) == (200, b"", PROTOBUF)
    assert otlp.answer(signal, "json").body == b"{}"
    for rejected, message in ((2, "ids"), (70_000, "é" * 9999), (0, "a warning"), (3, "")):
        said = RESPONSES[signal].FromString(otlp.answer(signal, "protobuf", rejected, message).body)
        by_json = json.loads(otlp.answer(signal, "json", rejected, message).body)
        assert MessageToDict(said) == by_json
        counted = said.partial_success.ListFields()
        assert (rejected, message[:1000]) == (
            next((value for each, value in counted if each.name.startswith("rejected_")), 0),
            said.partial_success.error_message,
        )


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 415, 429, 500, 502, 503, 504])
def test_refusals_are_a_status_in_the_encoding_of_the_request(status: int) -> None:
    for content_type in (PROTOBUF, f"{PROTOBUF}; x=y"):
        by_protobuf = otlp.refusal(status, "why ü", content_type, 1.2)
        said = Status.FromString(by_protobuf.body)
        assert by_protobuf.headers["content-type"] == PROTOBUF
    by_json = otlp.refusal(status, "why ü", JSON)
    assert MessageToDict(said) == json.loads(by_json.body) == {"code": said.code, "message": "why ü"}
    assert otlp.refusal(status, "why ü", "text/plain").headers["content-type"] == JSON
    is_retried = status in (429, 502, 503, 504)
    assert by_protobuf.headers.get("retry-after") == ("2" if is_retried else None)
    assert ("retry-after" in by_json.headers) == is_retried


def test_content_types_are_two() -> None:
    assert otlp.encoding_of("Application/JSON; charset=utf-8") == "json"
    assert otlp.encoding_of(PROTOBUF) == "protobuf"
    for other in ("", "text/plain", "application/grpc", "application/jsonx", "a" * 9999):
        error = refused(lambda other=other: otlp.encoding_of(other))
        assert error.status == 415 and len(str(error)) < 999


# --- logs ----------------------------------------------------------------------------------------


def a_record(name: str = "gen_ai.choice", **more: Any) -> dict[str, Any]:
    return {"traceId": TRACE, "spanId": SPAN, "timeUnixNano": "5", "eventName": name, **more}


def test_logged_contents_become_events_of_their_spans() -> None:
    records = [
        a_record(body=any_value({"message": {"content": "Bern."}}), attributes=[attribute("a", 1)]),
        {**a_record(), "eventName": "", "attributes": [attribute("event.name", "gen_ai.user.message")]},
        a_record("gen_ai.evaluation.result"),
        a_record("http.request"),
        {"body": any_value("a line")},
        {**a_record(), "spanId": ""},
    ]
    request = read(logged(*records), signal="logs").value
    value, ignored = events.as_spans(request)
    assert ignored == 4
    again, _ = events.as_spans(read(logged(*records), signal="logs").value)
    assert value == again, "the same record is the same span"
    stored, unread = spans_of_request(value)
    assert unread == [] and {span.trace_id for span in stored} == {TRACE}
    above = spans_of_request(exported(a_span(spanId=SPAN)))[0]
    (span,) = events.with_events([*stored, *above])
    assert [each.name for each in span.events] == ["gen_ai.choice", "gen_ai.user.message"]
    assert span.events[0].attributes == {"body": {"message": {"content": "Bern."}}, "a": 1}
    assert span.events[0].time_ns == 5
    assert events.with_events(stored) == [], "of a span that is not there nothing is made"


# --- whatever comes ------------------------------------------------------------------------------


def everything(signal: Signal, encoding: Encoding, body: bytes, packing: str = "") -> None:
    """All that is done with a request; only `OtlpError` may be raised."""
    try:
        value = otlp.read(
            signal, encoding, unpacked(body, packing), replace(LIMITS, depth=12, characters=40)
        ).value
    except OtlpError as error:
        assert error.status in (400, 413)
        return
    if signal == "logs":
        value, _ = events.as_spans(value)
    spans, _ = spans_of_request(value)
    events.with_events(spans)
    json.dumps(value, allow_nan=False)


signals = st.sampled_from(("traces", "logs"))
encodings = st.sampled_from(("protobuf", "json"))


@given(signals, encodings, st.binary(max_size=300), st.sampled_from(("", "gzip")))
def test_no_bytes_raise_anything_else(signal: Signal, encoding: Encoding, body: bytes, packing: str) -> None:
    everything(signal, encoding, body, packing)


NAMES = (
    *("resourceSpans", "resource", "attributes", "key", "value", "scopeSpans", "scope", "spans", "events"),
    *("resourceLogs", "scopeLogs", "logRecords", "body", "eventName", "resource_spans", "links", "status"),
    *("traceId", "spanId", "parentSpanId", "name", "kind", "startTimeUnixNano", "endTimeUnixNano", "code"),
    *("stringValue", "intValue", "doubleValue", "arrayValue", "kvlistValue", "values", "bytesValue"),
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from((TRACE, SPAN, "gen_ai.x"))
)
trees = st.recursive(
    leaves, lambda below: st.lists(below) | st.dictionaries(st.sampled_from(NAMES), below), max_leaves=30
)


@given(signals, trees, trees)
def test_no_json_raises_anything_else(signal: Signal, tree: Any, other: Any) -> None:
    everything(signal, "json", json.dumps(tree).encode())
    inside = exported(tree, {"traceId": TRACE, "spanId": SPAN, "attributes": other})
    inside |= logged(tree, {**a_record(), "attributes": other, "body": tree})
    everything(signal, "json", json.dumps(inside).encode())


@given(signals, st.data())
def test_no_change_to_a_protobuf_raises_anything_else(signal: Signal, data: st.DataObject) -> None:
    body = bytearray(
        packed(attributes=3, value=AnyValue(array_value=ArrayValue(values=[AnyValue(int_value=3)])))
    )
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    everything(signal, "protobuf", bytes(body[: data.draw(st.integers(0, len(body)))]))
