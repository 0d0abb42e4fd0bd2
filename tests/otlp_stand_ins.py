"""Stands in for the reader of spans and for the tables of traces where these are not there yet."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from types import ModuleType
from typing import Any

NAME = "magistrate.datasets.spans.span"


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    time_ns: int
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    trace_id: str
    span_id: str
    parent_id: str | None = None
    name: str = ""
    start_ns: int = 0
    end_ns: int | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    resource: Mapping[str, Any] = field(default_factory=dict)


def spans_of_request(value: Mapping[str, Any]) -> tuple[list[Span], list[str]]:
    spans, unread = [], []
    for group in _objects(value.get("resourceSpans")):
        resource = group.get("resource")
        for scoped in _objects(group.get("scopeSpans")):
            for each in _objects(scoped.get("spans")):
                if not re.fullmatch(r"(?!0+$)[0-9a-fA-F]{32}", str(each.get("traceId"))):
                    unread.append(f"a trace id is 32 hex digits, not {each.get('traceId')!r}")
                    continue
                spans.append(
                    Span(
                        each["traceId"].lower(),
                        str(each.get("spanId")).lower(),
                        each.get("parentSpanId") or None,
                        str(each.get("name", "")),
                        _number(each.get("startTimeUnixNano")),
                        _number(each.get("endTimeUnixNano")) or None,
                        _attributes(each.get("attributes")),
                        (),
                        _attributes(resource.get("attributes") if isinstance(resource, dict) else None),
                    )
                )
    return spans, unread


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _attributes(value: Any) -> dict[str, Any]:
    return {
        each["key"]: _any(each.get("value")) for each in _objects(value) if isinstance(each.get("key"), str)
    }


def _any(value: Any) -> Any:
    held = next(iter(value.values()), None) if isinstance(value, dict) else None
    if not isinstance(held, dict):
        return held
    items = _objects(held.get("values"))
    return _attributes(items) if "kvlistValue" in value else [_any(each) for each in items]


def _number(value: Any) -> int:
    return int(value) if isinstance(value, int) or re.fullmatch("[0-9]{1,20}", str(value)) else 0


KEPT: defaultdict[str, dict[tuple[str, str], Span]] = defaultdict(dict)


class Traces:
    def __init__(self, place: str) -> None:
        self._kept = KEPT[place]

    def put(self, arrived: Sequence[Span], now: datetime) -> int:
        before = dict(self._kept)
        self._kept.update({(each.trace_id, each.span_id): each for each in arrived})
        return sum(before.get(key) != each for key, each in self._kept.items())

    def trace(self, trace_id: str) -> list[Span]:
        return sorted(
            (each for each in self._kept.values() if each.trace_id == trace_id),
            key=lambda each: each.start_ns,
        )


def stand_in() -> None:
    """Put both where the real ones will be."""
    try:
        import_module(NAME)
    except ModuleNotFoundError:
        module = ModuleType(NAME)
        vars(module).update(Event=Event, Span=Span, spans_of_request=spans_of_request)
        sys.modules[NAME] = module
    from magistrate.store import Store

    if not hasattr(Store, "traces"):
        Store.traces = property(lambda self: Traces(self.shown))  # type: ignore[attr-defined]


stand_in()
