"""Log records that belong to spans: logged prompts and answers become part of the trace.

OpenTelemetry's conventions for generative AI allow contents in events of the log signal. Such a record is
stored as a child span of the span that it was logged in. Its id is a hash of its content, so a record that
arrives twice is stored once. `with_events` turns these spans back into events when the trace is read.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256
from typing import Any

from magistrate.datasets.spans.span import Event, Span
from magistrate.watch.otlp import groups

CONTENT = "gen_ai."
RESULTS = "gen_ai.evaluation."  # results of judges, which are not judged themselves
LOGGED = "magistrate.logged"
"""The span attribute that marks such a record."""

_MARK = {"key": LOGGED, "value": {"boolValue": True}}


def as_spans(value: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Convert an export request of logs to one of spans, and count the records that are left out.

    Records that belong to no span and records that are not generative AI events are left out.
    """
    made, ignored = [], 0
    for group in groups("logs", value):
        found = [_as_span(each) for each in group.records if isinstance(each, dict)]
        spans = [each for each in found if each is not None]
        ignored += len(group.records) - len(spans)
        if spans:
            made.append({"resource": group.resource, "scopeSpans": [{"scope": group.scope, "spans": spans}]})
    return {"resourceSpans": made}, ignored


def with_events(spans: Iterable[Span]) -> list[Span]:
    """Return the spans of a trace with their logged events. Events of a missing span are left out."""
    events: defaultdict[str | None, list[Event]] = defaultdict(list)
    others = []
    for span in spans:
        if span.attributes.get(LOGGED) is True:
            attributes = {name: each for name, each in span.attributes.items() if name != LOGGED}
            events[span.parent_id].append(Event(span.name, span.start_ns, attributes))
        else:
            others.append(span)
    return [
        replace(
            span, events=tuple(sorted((*span.events, *events[span.span_id]), key=lambda each: each.time_ns))
        )
        if span.span_id in events
        else span
        for span in others
    ]


def _as_span(record: dict[str, Any]) -> dict[str, Any] | None:
    attributes = [each for each in _list(_get(record, "attributes")) if isinstance(each, dict)]
    name = _get(record, "eventName", "event_name") or _named(attributes, "event.name")
    above = _get(record, "spanId", "span_id")
    if not isinstance(name, str) or not name.startswith(CONTENT) or name.startswith(RESULTS) or not above:
        return None
    said = json.dumps(record, sort_keys=True).encode()
    # Some SDKs leave the time to the collector that first observes the record.
    times = (_get(record, *names) for names in _TIMES)
    time = next((each for each in times if each not in (None, 0, "", "0")), None)
    return {
        "traceId": _get(record, "traceId", "trace_id"),
        "spanId": sha256(said).hexdigest()[:16],
        "parentSpanId": above,
        "name": name,
        "startTimeUnixNano": time,
        "endTimeUnixNano": time,
        "attributes": [
            *([{"key": "body", "value": body}] if (body := record.get("body")) else []),
            *attributes,
            _MARK,
        ],
    }


_TIMES = (("timeUnixNano", "time_unix_nano"), ("observedTimeUnixNano", "observed_time_unix_nano"))


def _named(attributes: Iterable[dict[str, Any]], name: str) -> Any:
    values = (each.get("value") for each in attributes if each.get("key") == name)
    return next(
        (_get(each, "stringValue", "string_value") for each in values if isinstance(each, dict)), None
    )


def _get(values: dict[str, Any], *names: str) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
