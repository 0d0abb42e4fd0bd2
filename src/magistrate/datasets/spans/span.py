"""A span (one timed operation of a trace) and the parsers of exported spans.

`spans_of_request` parses what comes over the network and is strict about ids. `spans_of_row` parses one
object of a file, which may be an export, a row of Phoenix's table, a span of its API, or what an SDK
prints. Source: github.com/open-telemetry/opentelemetry-proto, `docs/specification.md` and
`trace/v1/trace.proto`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any

from magistrate.datasets.fields import plain

KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
STATUSES = ("unset", "ok", "error")
DEEPEST = 32  # levels of nested lists and maps; deeper values are dropped
LATEST = 1 << 63  # nanoseconds; larger values are not times
EXPORTS = ("resourceSpans", "resource_spans")


@dataclass(frozen=True, slots=True)
class Event:
    """An event at one moment of a span."""

    name: str
    time_ns: int
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Link:
    """A reference to another span, possibly of another trace."""

    trace_id: str
    span_id: str
    attributes: Mapping[str, Any] = field(default_factory=dict)


CUT = "magistrate.cut"  # the attribute of a span or log record that exceeded the limits: which parts were cut


@dataclass(frozen=True, slots=True)
class Span:
    """One operation of a trace.

    Ids are 32 and 16 lower-case hex digits if they came over the network; a file may have others. Times are
    nanoseconds since 1970; `end_ns` is None if the span has not ended or its end is unknown. Attributes are
    plain JSON values; texts that contain JSON are not parsed.
    """

    trace_id: str
    span_id: str
    parent_id: str | None = None
    name: str = ""
    kind: str = "unspecified"
    start_ns: int = 0
    end_ns: int | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    links: tuple[Link, ...] = ()
    status: str = "unset"
    resource: Mapping[str, Any] = field(default_factory=dict)
    scope: str = ""

    @property
    def is_cut(self) -> bool:
        """Whether a part of it exceeded the limits and was cut when it was received."""
        return CUT in self.attributes or any(CUT in event.attributes for event in self.events)

    def as_json(self) -> dict[str, Any]:
        """Return the span as plain JSON values. `from_json` reads it back unchanged."""
        return {
            "trace_id": self.trace_id,
            "span_id": self.span_id,
            "parent_id": self.parent_id,
            "name": self.name,
            "kind": self.kind,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "attributes": dict(self.attributes),
            "events": [[each.name, each.time_ns, dict(each.attributes)] for each in self.events],
            "links": [[each.trace_id, each.span_id, dict(each.attributes)] for each in self.links],
            "status": self.status,
            "resource": dict(self.resource),
            "scope": self.scope,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Span:
        """Restore the span that `as_json` wrote."""
        events = tuple(Event(*each) for each in value["events"])
        links = tuple(Link(*each) for each in value["links"])
        return cls(**{**value, "events": events, "links": links})


# --- exports -------------------------------------------------------------------------------------


def spans_of_request(value: Mapping[str, Any]) -> tuple[list[Span], list[str]]:
    """Return the spans of an OTLP/JSON export request, and one sentence for each span that could not be
    read.

    The request is parsed already: ids are hex, enums integers or names, 64-bit integers texts or numbers.
    """
    spans, refused = [], []
    for span in exported(value):
        if isinstance(span, str):
            refused.append(span)
        elif reason := _bad_id(span):
            refused.append(reason)
        else:
            spans.append(span)
    return spans, refused


def exported(value: Mapping[str, Any]) -> Iterator[Span | str]:
    """Yield the spans of an export with their resource and scope, or a sentence for each invalid span."""
    for group in _maps(_get(value, "resourceSpans")):
        resource = _attributes(_get(_map(group.get("resource")), "attributes"))
        for scoped in _maps(_get(group, "scopeSpans")):
            scope = _text(_map(scoped.get("scope")).get("name"))
            listed = _get(scoped, "spans")
            for found in listed if isinstance(listed, list) else []:
                if isinstance(found, Mapping):
                    yield _exported_span(found, resource, scope)
                else:
                    yield "a span must be an object"


def _exported_span(values: Mapping[str, Any], resource: Mapping[str, Any], scope: str) -> Span | str:
    trace_id = id_of(_get(values, "traceId"))
    if not trace_id:
        return "a span without a trace id"
    return Span(
        trace_id,
        id_of(_get(values, "spanId")),
        id_of(_get(values, "parentSpanId")) or None,
        _text(values.get("name")),
        _enum(values.get("kind"), KINDS),
        _nanoseconds(_get(values, "startTimeUnixNano")) or 0,
        _nanoseconds(_get(values, "endTimeUnixNano")),
        _attributes(values.get("attributes")),
        tuple(
            Event(
                _text(each.get("name")),
                _nanoseconds(_get(each, "timeUnixNano")) or 0,
                _attributes(each.get("attributes")),
            )
            for each in _maps(values.get("events"))
        ),
        tuple(
            Link(
                id_of(_get(each, "traceId")), id_of(_get(each, "spanId")), _attributes(each.get("attributes"))
            )
            for each in _maps(values.get("links"))
        ),
        _enum(_map(values.get("status")).get("code"), STATUSES),
        resource,
        scope,
    )


def _bad_id(span: Span) -> str | None:
    """Return why the ids of a span from the network are invalid, or None."""
    for name, id, digits in (("trace", span.trace_id, 32), ("span", span.span_id, 16)):
        if not _is_hex(id, digits):
            shown = plain(repr(id)) if id else "none"
            return f"a {name} id must be {digits} hex digits, not all 0; got {shown}"
    if span.parent_id is not None and not _is_hex(span.parent_id, 16):
        return f"a parent's span id must be 16 hex digits, not all 0; got {plain(repr(span.parent_id))}"
    return None


def _is_hex(id: str, digits: int) -> bool:
    return re.fullmatch(f"[0-9a-f]{{{digits}}}", id) is not None and id.strip("0") != ""


def any_value(value: Any, deepest: int = DEEPEST) -> Any:
    """Convert an OTLP AnyValue to a plain value."""
    if not isinstance(value, Mapping) or not deepest:
        return None
    array, pairs = _get(value, "arrayValue"), _get(value, "kvlistValue")
    if array is not None:
        return [any_value(item, deepest - 1) for item in _maps(_map(array).get("values"))]
    if pairs is not None:
        return _attributes(_map(pairs).get("values"), deepest - 1)
    number = _get(value, "intValue")
    if number is not None:
        return _integer(number)
    held = next(iter(value.values()), None)
    known = held is None or isinstance(held, str | bool | int) or _is_finite(held)
    return held if known else str(held)


def _attributes(given: Any, deepest: int = DEEPEST) -> dict[str, Any]:
    """Convert OTLP's list of key-value pairs to a mapping."""
    return {
        each["key"]: any_value(each.get("value"), deepest)
        for each in _maps(given)
        if isinstance(each.get("key"), str)
    }


# --- one object of a file --------------------------------------------------------------------------

TRACE = (("context", "trace_id"), ("context.trace_id",), ("traceId",), ("trace_id",))
SPAN = (("context", "span_id"), ("context.span_id",), ("spanId",), ("span_id",))
PARENT = (("parent_id",), ("parentSpanId",), ("parent_span_id",))
START = (("start_time",), ("startTimeUnixNano",), ("start_time_unix_nano",), ("start_ns",))
END = (("end_time",), ("endTimeUnixNano",), ("end_time_unix_nano",), ("end_ns",))
STATUS = (("status", "status_code"), ("status", "code"), ("status_code",), ("status",))
KIND = "openinference.span.kind"


def spans_of_row(values: Mapping[str, Any]) -> Iterator[Span | str]:
    """Yield the spans of one object of a file, or a sentence for each that cannot be read."""
    if any(name in values for name in EXPORTS):
        yield from exported(values)
    else:
        yield _plain_span(values)


def _plain_span(values: Mapping[str, Any]) -> Span | str:
    """Parse a span as given by Phoenix's table or API, or as printed by an SDK."""
    trace_id = id_of(first_of(values, TRACE))
    if not trace_id:
        return "a span without a trace id"
    attributes = {
        name.removeprefix("attributes."): value
        for name, value in values.items()
        if name.startswith("attributes.") and value is not None
    }
    given = values.get("attributes")
    attributes |= given if isinstance(given, Mapping) else _attributes(given)
    kind = values.get("span_kind")  # Phoenix's column for OpenInference's span kind
    if isinstance(kind, str):
        attributes.setdefault(KIND, kind)
    events = tuple(
        Event(
            _text(each.get("name")),
            _moment(each.get("timestamp")) or 0,
            {str(key): value for key, value in _map(each.get("attributes")).items()},
        )
        for each in _maps(values.get("events"))
    )
    scope = first_of(values, (("scope", "name"), ("instrumentation_scope", "name"), ("scope",)))
    resource = _map(first_of(values, (("resource", "attributes"), ("resource",))))
    return Span(
        trace_id,
        id_of(first_of(values, SPAN)),
        id_of(first_of(values, PARENT)) or None,
        _text(values.get("name")),
        _enum(values.get("kind"), KINDS),
        _moment(first_of(values, START)) or 0,
        _moment(first_of(values, END)),
        {str(key): value for key, value in attributes.items()},
        events,
        (),
        _enum(first_of(values, STATUS), STATUSES),
        resource,
        _text(scope),
    )


def _moment(value: Any) -> int | None:
    """Parse a time in ISO 8601, as in most files, or in nanoseconds."""
    if isinstance(value, str) and not value.isdecimal():
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            return None
        aware = found if found.tzinfo else found.replace(tzinfo=UTC)
        since = aware - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
    return _nanoseconds(value)


# --- foreign values --------------------------------------------------------------------------------


@cache
def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _get(values: Mapping[str, Any], name: str) -> Any:
    """Return a field of protobuf JSON, in camelCase or as named in the `.proto` file."""
    found = values.get(name)
    return values.get(_snake(name)) if found is None else found


def first_of(values: Mapping[str, Any], paths: tuple[tuple[str, ...], ...]) -> Any:
    for path in paths:
        found: Any = values
        for step in path:
            found = found.get(step) if isinstance(found, Mapping) else None
        if found is not None and found != "":
            return found
    return None


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: Any) -> Iterator[Mapping[str, Any]]:
    yield from (item for item in value if isinstance(item, Mapping)) if isinstance(value, list) else ()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def id_of(value: Any) -> str:
    """Return an id as text: hex digits in lower case, without the `0x` that an SDK prints before them."""
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    digits = text.lower().removeprefix("0x")
    return digits if re.fullmatch(r"[0-9a-f]{16}|[0-9a-f]{32}", digits) else text


def _integer(value: Any) -> Any:
    """Parse a 64-bit integer, which JSON may hold as text. Other values are kept."""
    if isinstance(value, str) and len(value) <= 20 and re.fullmatch(r"-?[0-9]+", value):
        return int(value)
    return value if isinstance(value, str | bool | int) else str(value)


def _is_finite(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _nanoseconds(value: Any) -> int | None:
    number = _integer(value) if isinstance(value, str | int) else value
    if _is_finite(number):
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int):
        return None
    return number if 0 <= number < LATEST else None


def _enum(value: Any, names: tuple[str, ...]) -> str:
    """Return an enum's value as a word, from its number or from a name such as `SPAN_KIND_CLIENT`."""
    if isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    word = re.split(r"[_.]", value)[-1].lower() if isinstance(value, str) else ""
    return word if word in names else names[0]
