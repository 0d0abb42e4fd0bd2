"""Tracing conventions, one per file. Each reads a span into a step, or returns None if it does not apply.

`read` combines their results. The most detailed conventions take precedence.
"""

from __future__ import annotations

from magistrate.datasets.spans.conventions import genai, openinference, others, traceloop
from magistrate.datasets.spans.conventions.values import Attributes
from magistrate.datasets.spans.span import Span
from magistrate.datasets.spans.steps import Kind, Step

READERS = (openinference.read, others.read, traceloop.read, genai.read)
ORDER = (openinference.NAME, *others.NAMES, genai.NAME, traceloop.NAME)
"""The convention whose documents are used if spans of several conventions have some."""


def read(span: Span) -> Step | None:
    """Return the step of a span, or None if the span follows no known convention."""
    attributes = Attributes(span.attributes)
    found = None
    for reader in READERS:
        step = reader(span, attributes)
        if step is not None:
            found = step if found is None else found.or_else(step)
    if found is None or found.kind:
        return found
    return found.or_else(Step(_likely(found)))


def _likely(step: Step) -> Kind:
    """Return the kind of a step that does not state it, inferred from its content."""
    if step.choices is not None or step.prompt is not None:
        return "call"
    if step.documents is not None or step.query is not None:
        return "retriever"
    if step.result is not None:
        return "tool"
    return "call" if step.model else "other"
