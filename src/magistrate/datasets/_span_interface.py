"""Stand-in for `magistrate.datasets.spans`: the values of its interface, with a reader for one convention."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from magistrate.types import Sample


@dataclass(frozen=True, slots=True)
class Span:
    """One span of a trace, as it was received; `end_ns` is None while it has not ended."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    kind: str
    start_ns: int
    end_ns: int | None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[Any, ...] = ()
    links: tuple[Any, ...] = ()
    status: str = "unset"
    resource: Mapping[str, Any] = field(default_factory=dict)
    scope: str = ""

    def as_json(self) -> dict[str, Any]:
        """The span as JSON values, which `from_json` reads back."""
        return {**asdict(self), "events": list(self.events), "links": list(self.links)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Span:
        """The span of what `as_json` answered."""
        return cls(**{**value, "events": tuple(value["events"]), "links": tuple(value["links"])})


@dataclass(frozen=True, slots=True)
class Taken:
    """Where a part of a target was taken from."""

    span_id: str
    name: str
    convention: str
    key: str


@dataclass(frozen=True, slots=True)
class Target:
    """What a trace offers to be judged: a sample, or what is missing for one."""

    trace_id: str
    span_id: str
    kind: str
    name: str
    sample: Sample | None
    missing: str | None
    why: str
    taken: Mapping[str, Taken]
    attributes: Mapping[str, Any]


def targets(spans: Sequence[Span], kinds: Collection[str] = ("answer",)) -> list[Target]:
    """The outermost answer of a trace in the keys of OpenInference, with the documents of its retrievers."""
    roots = [span for span in spans if span.parent_id is None] or list(spans[:1])
    documents = [text for span in spans for text in _documents(span.attributes)]
    return [_target(root, kind, documents) for root in roots for kind in kinds]


def _target(root: Span, kind: str, documents: list[str]) -> Target:
    output, asked = root.attributes.get("output.value"), root.attributes.get("input.value")
    sample = None
    if isinstance(output, str) and documents:
        sample = Sample(
            root.trace_id, output, tuple(documents), input=asked if isinstance(asked, str) else None
        )
    missing = "no_context" if isinstance(output, str) else "no_output"
    attributes = dict(root.attributes)
    attributes |= {f"root.{name}": value for name, value in root.attributes.items()}
    attributes |= {f"resource.{name}": value for name, value in root.resource.items()}
    why = "read by the keys of OpenInference"
    found = None if sample is not None else missing
    return Target(root.trace_id, root.span_id, kind, root.name, sample, found, why, {}, attributes)


def _documents(attributes: Mapping[str, Any]) -> Iterator[str]:
    for name, value in attributes.items():
        if name.startswith("retrieval.documents.") and name.endswith(".document.content"):
            yield str(value)


def spans_of_request(value: Mapping[str, Any]) -> tuple[list[Span], list[str]]:
    """The spans of an OTLP/JSON export request, and one sentence for each that could not be read."""
    found, problems = [], []
    for outer in value.get("resourceSpans", ()):
        resource = _attributes(outer.get("resource", {}))
        for scope in outer.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                try:
                    found.append(_span(span, resource))
                except (KeyError, ValueError) as error:
                    problems.append(f"a span cannot be read: {error}")
    return found, problems


def _span(value: Mapping[str, Any], resource: Mapping[str, Any]) -> Span:
    end = int(value.get("endTimeUnixNano") or 0)
    return Span(
        value["traceId"].lower(),
        value["spanId"].lower(),
        value.get("parentSpanId") or None,
        value.get("name", ""),
        "unspecified",
        int(value["startTimeUnixNano"]),
        end or None,
        _attributes(value),
        resource=resource,
    )


def _attributes(value: Mapping[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in value.get("attributes", ())}
