"""OTLP: decodes requests into plain values, within limits, and encodes the responses of the protocol.

A request is read in three steps. `Body` decompresses its bytes as they arrive. `read` converts protobuf or
JSON to an OTLP/JSON value. `answer` or `refusal` builds the response in the client's own encoding. Ids are
hex digits in the value, as in OTLP/JSON.
Source: github.com/open-telemetry/opentelemetry-proto, `docs/specification.md`.
"""

from __future__ import annotations

import json
import math
import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from magistrate._text import shorten_inside
from magistrate.datasets.spans.span import CUT
from magistrate.errors import MagistrateError

Signal = Literal["traces", "logs"]
Encoding = Literal["protobuf", "json"]

PATHS: dict[str, Signal] = {"/v1/traces": "traces", "/v1/logs": "logs"}
MEDIA_TYPES: dict[str, Encoding] = {"application/x-protobuf": "protobuf", "application/json": "json"}
PACKED = ("gzip",)
RETRYABLE = (429, 502, 503, 504)
"""Statuses after which a client sends the same data again; after any other, it drops the data."""

SERVICES: dict[str, Signal] = {
    "opentelemetry.proto.collector.trace.v1.TraceService": "traces",
    "opentelemetry.proto.collector.logs.v1.LogsService": "logs",
}
"""The services of gRPC, each with the one method `Export`."""

WAIT = 5  # seconds that a client is asked to wait
LONGEST_MESSAGE = 1_000

_CODES = {400: 3, 401: 16, 403: 7, 404: 5, 405: 12, 408: 4, 413: 8, 415: 3, 421: 5, 429: 8, 503: 14}
_INTERNAL = 13


class OtlpError(MagistrateError):
    """A request that is refused as a whole, with an HTTP `status`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def retryable(self) -> bool:  # type: ignore[override]
        return self.status in RETRYABLE


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one request.

    A request is refused if its body exceeds `packed_bytes`, `plain_bytes` once decompressed, or `values`
    values. Spans or log records beyond `records` are rejected. In a record, `attributes`, `events` and
    `links` beyond their limits are cut, as are texts beyond `characters` and values nested more than
    `depth` objects deep.
    """

    packed_bytes: int = 64 * 2**20
    plain_bytes: int = 64 * 2**20
    values: int = 2_000_000
    records: int = 20_000
    attributes: int = 1_000
    events: int = 1_000
    links: int = 1_000
    characters: int = 1_000_000
    depth: int = 32


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Request:
    """An export request as an OTLP/JSON value, with counts of `rejected` records and of what was `cut`."""

    value: dict[str, Any]
    rejected: int = 0
    cut: Mapping[str, int] = field(default_factory=dict)


# --- the body --------------------------------------------------------------------------------------


def encoding_of(content_type: str) -> Encoding:
    """Return the encoding for a `Content-Type`. Raises `OtlpError` 415 for an unknown one."""
    found = MEDIA_TYPES.get(content_type.partition(";")[0].strip().lower())
    if found is None:
        known = " or ".join(MEDIA_TYPES)
        raise OtlpError(415, f"the Content-Type must be {known}, not {shorten_inside(content_type)!r}")
    return found


class Body:
    """A request body that is decompressed as it arrives, so that memory use stays within the limits.

    Every method raises `OtlpError`: 415 for an unknown `content_encoding`, 413 beyond a limit, 400 for what
    cannot be unpacked.
    """

    def __init__(self, content_encoding: str = "", limits: Limits = LIMITS) -> None:
        name = content_encoding.strip().lower()
        if name not in ("", "identity", *PACKED):
            raise OtlpError(
                415, f"the Content-Encoding must be gzip or identity, not {shorten_inside(name)!r}"
            )
        self._limits = limits
        self._plain = bytearray()
        self._packed = 0
        self._unzip = _gzip() if name in PACKED else None

    def __len__(self) -> int:
        return len(self._plain)

    def add(self, chunk: bytes) -> None:
        """Add the next bytes of the body."""
        self._packed += len(chunk)
        if self._packed > self._limits.packed_bytes:
            raise OtlpError(
                413, f"the body of a request must have at most {self._limits.packed_bytes:,} bytes"
            )
        if self._unzip is None:
            self._extend(chunk)
            return
        while chunk:
            if self._unzip.eof:
                self._unzip = _gzip()  # gzip data may have several members
            try:
                self._extend(self._unzip.decompress(chunk, self._limits.plain_bytes - len(self._plain) + 1))
            except zlib.error as error:
                raise OtlpError(400, f"the body is not gzip: {error}") from None
            chunk = self._unzip.unused_data if self._unzip.eof else self._unzip.unconsumed_tail

    def whole(self) -> bytes:
        """Return the whole body, after the last bytes were added."""
        if self._unzip is not None and self._packed and not self._unzip.eof:
            raise OtlpError(400, "the body is gzip that ends too early")
        return bytes(self._plain)

    def _extend(self, plain: bytes) -> None:
        self._plain += plain
        if len(self._plain) > self._limits.plain_bytes:
            raise OtlpError(
                413, f"a request must have at most {self._limits.plain_bytes:,} bytes uncompressed"
            )


def _gzip() -> Any:
    return zlib.decompressobj(zlib.MAX_WBITS | 16)


# --- decoding --------------------------------------------------------------------------------------


def read(signal: Signal, encoding: Encoding, body: bytes, limits: Limits = LIMITS) -> Request:
    """Decode a whole, decompressed body.

    Raises `OtlpError`: 400 for a body that cannot be decoded, 413 for too many values, 415 for protobuf if
    the package that reads it is not installed.
    """
    value = _from_json(body, limits) if encoding == "json" else _from_protobuf(signal, body, limits)
    return _Bounds(limits).request(signal, value)


def _from_json(body: bytes, limits: Limits) -> dict[str, Any]:
    from pydantic_core import from_json

    from magistrate.datasets.formats import check_unique

    # Each value takes some hundred bytes in memory, however short it is in the body.
    if sum(map(body.count, (b"{", b"[", b","))) > limits.values:
        raise _too_many(limits)
    try:
        value = from_json(body, allow_inf_nan=False) if body else {}
        json.loads(body or b"{}", object_pairs_hook=check_unique, parse_int=str)
    except ValueError as error:
        raise OtlpError(400, f"the body is not JSON: {shorten_inside(str(error))}") from None
    if not isinstance(value, dict):
        raise OtlpError(400, "the body must be a JSON object")
    return value


def _from_protobuf(signal: Signal, body: bytes, limits: Limits) -> dict[str, Any]:
    message, error = _protobuf(signal)
    _check_size(signal, body, limits)
    try:
        return _object(message.FromString(body))
    except (error, RecursionError):
        raise OtlpError(400, f"the body is not a protobuf export of {signal}") from None


@cache
def _protobuf(signal: Signal) -> tuple[Any, type[Exception]]:
    """Return the request class and the error that it raises for invalid bytes."""
    try:
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    except ImportError:
        raise OtlpError(
            415, "this server reads application/json only; for protobuf: pip install 'magistrate[otlp]'"
        ) from None
    return (ExportTraceServiceRequest if signal == "traces" else ExportLogsServiceRequest), DecodeError


def _object(message: Any) -> dict[str, Any]:
    """Convert a protobuf message to OTLP/JSON."""
    found: dict[str, Any] = {}
    for each, value in message.ListFields():
        if each.message_type is None:
            value = value.hex() if isinstance(value, bytes) else value
            found[each.json_name] = value if isinstance(value, str | int | float) else list(value)
        elif each.message_type.name == "AnyValue":
            found[each.json_name] = _any_value(value)
        elif not each.is_repeated:
            found[each.json_name] = _object(value)
        elif each.message_type.name == "KeyValue":
            found[each.json_name] = _pairs(value)
        else:
            found[each.json_name] = list(map(_object, value))
    return found


def _pairs(values: Any) -> list[dict[str, Any]]:
    return [{"key": each.key, "value": _any_value(each.value)} for each in values]


def _any_value(message: Any) -> dict[str, Any]:
    match message.WhichOneof("value"):
        case "string_value":
            return {"stringValue": message.string_value}
        case "bool_value":
            return {"boolValue": message.bool_value}
        case "int_value":
            return {"intValue": message.int_value}
        case "double_value":
            return {"doubleValue": message.double_value}
        case "array_value":
            return {"arrayValue": {"values": list(map(_any_value, message.array_value.values))}}
        case "kvlist_value":
            return {"kvlistValue": {"values": _pairs(message.kvlist_value.values)}}
        case "bytes_value":
            return {"bytesValue": b64encode(message.bytes_value).decode()}
    return {}


# --- the size of a message ---------------------------------------------------------------------------
# The protobuf library decodes any number of spans, and one of two bytes takes 180 in memory (an event 60). So
# fields are counted first. A shape maps the number of each field that contains messages to their shape.

Shape = dict[int, "Shape"]
_VALUE: Shape = {}
_ATTRIBUTE: Shape = {2: _VALUE}
_VALUE |= {5: {1: _VALUE}, 6: {1: _ATTRIBUTE}}
_SHAPES: dict[Signal, Shape] = {
    "traces": {1: {1: {1: _ATTRIBUTE}, 2: {2: {9: _ATTRIBUTE, 11: {3: _ATTRIBUTE}, 13: {4: _ATTRIBUTE}}}}},
    "logs": {1: {1: {1: _ATTRIBUTE}, 2: {2: {5: _VALUE, 6: _ATTRIBUTE}}}},
}
_RECORDS: Shape = {1: {2: {2: {}}}}
"""Spans or log records alone, which are the largest in memory."""


def _check_size(signal: Signal, body: bytes, limits: Limits) -> None:
    """Raise `OtlpError` for a message that would take too much memory or time to decode."""
    is_small = len(body) <= 2 * limits.values  # a field takes at least two bytes
    if _exceeds(body, _RECORDS, limits.values // 8):
        raise _too_many(limits)
    if not is_small and _exceeds(body, _SHAPES[signal], limits.values):
        raise _too_many(limits)


def _exceeds(body: bytes, shape: Shape, most: int) -> bool:
    """Return whether a message of a shape has more than `most` fields, including nested messages."""
    found, waiting = 0, [(0, len(body), shape)]
    while waiting:
        at, end, inner = waiting.pop()
        while at < end:
            tag, at = (body[at], at + 1) if body[at] < 128 else _varint(body, at)
            found += 1
            if found > most:
                return True
            kind = tag & 7
            if kind == 2:
                is_short = at < end and body[at] < 128
                length, at = (body[at], at + 1) if is_short else _varint(body, at)
                if length and (below := inner.get(tag >> 3)):
                    waiting.append((at, min(at + length, end), below))
                at += length
            elif kind == 0:
                _, at = _varint(body, at)
            elif kind in (1, 5):
                at += 8 if kind == 1 else 4
            else:
                break  # groups, which none of these messages have
    return False


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Decode the varint at an offset. Return it and the offset behind it."""
    found = shift = 0
    for byte in body[at : at + 10]:
        at += 1
        found |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    else:
        return 0, len(body)
    return found, at


def _too_many(limits: Limits) -> OtlpError:
    return OtlpError(413, f"a request must have at most {limits.values:,} values; send fewer records at once")


# --- limits ------------------------------------------------------------------------------------------


class _Bounds:
    """Cuts a request to its limits, in place, and counts what it cuts."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lists = {name: getattr(limits, name) for name in ("attributes", "events", "links")}
        self._cut: Counter[str] = Counter()

    def request(self, signal: Signal, value: dict[str, Any]) -> Request:
        rejected, room = 0, self._limits.records
        for group in groups(signal, value):
            self._bound(group.resource, 0)
            self._bound(group.scope, 0)
            rejected += max(len(group.records) - room, 0)
            del group.records[room:]
            room -= len(group.records)
            for record in group.records:
                if isinstance(record, dict):
                    self._record(record)
        return Request(value, rejected, dict(self._cut))

    def _record(self, record: dict[str, Any]) -> None:
        before = self._cut.copy()
        self._bound(record, 0)
        if self._cut != before:
            what = ", ".join(self._cut - before)
            attributes = record.setdefault("attributes", [])
            if isinstance(attributes, list):
                attributes.append({"key": CUT, "value": {"stringValue": what}})

    def _bound(self, node: dict[str, Any], depth: int) -> None:
        for name, value in node.items():
            if isinstance(value, list) and len(value) > self._lists.get(name, len(value)):
                self._cut[name] += len(value) - self._lists[name]
                del value[self._lists[name] :]
            node[name] = self._bounded(value, depth)

    def _bounded(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            if len(value) > self._limits.characters:
                self._cut["text"] += 1
                return value[: self._limits.characters]
        elif isinstance(value, dict | list):
            if depth == self._limits.depth:
                self._cut["depth"] += 1
                return None
            if isinstance(value, dict):
                self._bound(value, depth + 1)
            else:
                value[:] = [self._bounded(each, depth) for each in value]
        elif isinstance(value, float) and not math.isfinite(value):
            return _NOT_FINITE.get(str(value))
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            self._cut["number"] += 1
            return None
        return value


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}  # as protobuf's JSON writes them


@dataclass(frozen=True, slots=True)
class Group:
    """The records of one scope of one resource, unchanged from the request."""

    resource: dict[str, Any]
    scope: dict[str, Any]
    records: list[Any]


_NAMES: dict[Signal, tuple[str, str, str]] = {
    "traces": ("resourceSpans", "scopeSpans", "spans"),
    "logs": ("resourceLogs", "scopeLogs", "logRecords"),
}


def groups(signal: Signal, value: dict[str, Any]) -> Iterator[Group]:
    """Yield the records of a request, grouped by resource and scope."""
    outer, scopes, records = _NAMES[signal]
    for resource in _objects(value, outer):
        for scoped in _objects(resource, scopes):
            for found in _lists(scoped, records):
                yield Group(_map(resource.get("resource")), _map(scoped.get("scope")), found)


def _lists(values: dict[str, Any], name: str) -> Iterator[list[Any]]:
    """Yield the lists of this name, in camelCase or in the snake_case of the `.proto` file."""
    snake = "".join(f"_{each.lower()}" if each.isupper() else each for each in name)
    yield from (found for each in {name, snake} if isinstance(found := values.get(each), list))


def _objects(values: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    yield from (each for found in _lists(values, name) for each in found if isinstance(each, dict))


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# --- responses ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to a request."""

    status: int
    body: bytes
    headers: Mapping[str, str]


def answer(signal: Signal, encoding: Encoding, rejected: int = 0, message: str = "") -> Answer:
    """Build the response to an accepted request, with the number of `rejected` records.

    A `message` without rejected records is a warning.
    """
    message = message[:LONGEST_MESSAGE]
    if not rejected and not message:
        return _answer(200, encoding, {}, b"")
    name = "rejectedSpans" if signal == "traces" else "rejectedLogRecords"
    said = {name: str(rejected)} if rejected else {}
    if message:
        said["errorMessage"] = message
    packed = _number_and_text(rejected, message)
    return _answer(200, encoding, {"partialSuccess": said}, b"\x0a" + _varint_of(len(packed)) + packed)


def refusal(status: int, message: str, content_type: str = "", wait: float | None = None) -> Answer:
    """Build the response to a refused request: a `google.rpc.Status` in the encoding of the request.

    It is JSON if the encoding is unknown. `wait` is the number of seconds after which the client may retry.
    It defaults to `WAIT` and is sent only with a retryable status.
    """
    encoding = MEDIA_TYPES.get(content_type.partition(";")[0].strip().lower(), "json")
    code, message = _CODES.get(status, _INTERNAL), message[:LONGEST_MESSAGE]
    made = _answer(status, encoding, {"code": code, "message": message}, _number_and_text(code, message))
    if status not in RETRYABLE:
        return made
    seconds = max(1, math.ceil(WAIT if wait is None else wait))
    return Answer(made.status, made.body, {**made.headers, "retry-after": str(seconds)})


def _answer(status: int, encoding: Encoding, value: Mapping[str, Any], packed: bytes) -> Answer:
    media = next(name for name, each in MEDIA_TYPES.items() if each == encoding)
    body = json.dumps(value).encode() if encoding == "json" else packed
    return Answer(status, body, {"content-type": media})


def _number_and_text(number: int, text: str) -> bytes:
    """Encode a protobuf message with a number and a text: a `google.rpc.Status` or a partial success."""
    packed = text.encode("utf-8", "replace")
    first = b"\x08" + _varint_of(number) if number else b""
    return first + (b"\x12" + _varint_of(len(packed)) + packed if packed else b"")


def _varint_of(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes((*found, number))
