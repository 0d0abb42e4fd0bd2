"""OpenLLMetry by Traceloop: entities as JSON, messages as numbered attributes, documents as events.

Source: github.com/traceloop/openllmetry, `packages/opentelemetry-semantic-conventions-ai` and its wrappers
of vector stores.
"""

from __future__ import annotations

from collections.abc import Mapping

from magistrate.datasets.spans.conventions.values import (
    Attributes,
    as_text,
    document_in,
    listed,
    messages_in,
    opened,
    text_in,
)
from magistrate.datasets.spans.span import Span
from magistrate.datasets.spans.steps import Document, Found, Kind, Message, Step

NAME = "traceloop"
KINDS: Mapping[str, Kind] = {"workflow": "chain", "task": "chain", "agent": "agent", "tool": "tool"}
REQUESTS: Mapping[str, Kind] = {
    "chat": "call",
    "completion": "call",
    "embedding": "embedding",
    "rerank": "other",
}
RESULTS = ("db.query.result", "db.search.result")
PROMPTS = ("gen_ai.prompt", "llm.prompts")
COMPLETIONS = ("gen_ai.completion", "llm.completions")


def read(span: Span, attributes: Attributes) -> Step | None:
    """Return the step of a span with an entity, numbered messages or vector store results."""
    kind: Kind = KINDS.get(attributes.text("traceloop.span.kind").lower(), "")
    kind = kind or REQUESTS.get(attributes.text("llm.request.type").lower(), "")
    prompt = _messages(attributes, PROMPTS, "user")
    choices = _messages(attributes, COMPLETIONS, "assistant")
    documents = _documents(span)
    if documents and kind in ("", "chain"):  # a search that is also a task
        kind = "retriever"
    if not kind and not prompt and not choices and not documents:
        return None
    given, taken = "traceloop.entity.input", "traceloop.entity.output"
    session = "traceloop.association.properties.session_id"
    result = as_text(_unwrapped(attributes.get(taken))) if kind == "tool" else None
    return Step(
        kind,
        (NAME,),
        input=_found(text_in(opened(attributes.get(given)), "input"), given),
        output=_found(text_in(opened(attributes.get(taken)), "output"), taken) if kind != "tool" else None,
        prompt=prompt,
        choices=choices,
        documents=documents,
        result=_found(result, taken),
        session=attributes.text(session),
    )


def _found(text: str | None, key: str) -> Found[str] | None:
    return Found(text, NAME, key) if text else None


def _unwrapped(value: object) -> object:
    """Return the result of a tool without the `{"output": …}` around it."""
    held = opened(value)
    if isinstance(held, Mapping):
        return next((held[name] for name in ("output", "outputs") if held.get(name)), held)
    return held


def _messages(attributes: Attributes, keys: tuple[str, ...], role: str) -> Found[tuple[Message, ...]] | None:
    for key in keys:
        items = listed(attributes.get(key))
        read = (
            {**item, "content": _content(item.get("content"))} for item in items if isinstance(item, Mapping)
        )
        found = tuple(message for item in read for message in messages_in({"role": role, **item}, role))
        if found:
            return Found(found, NAME, key)
    return None


def _content(value: object) -> object:
    """Return the parts of a message if its text is a JSON list of parts; other JSON is plain text."""
    held = opened(value)
    are_parts = isinstance(held, list) and all(
        isinstance(each, Mapping) and (isinstance(each.get("type"), str) or list(each) == ["text"])
        for each in held
    )
    return held if are_parts and held else value


def _documents(span: Span) -> Found[tuple[Document, ...]] | None:
    """Return the documents of events, one each: `db.query.result`, or the entity of a search result."""
    found: list[Document] = []
    key = ""
    for event in span.events:
        if event.name in RESULTS:
            start = f"{event.name}."
            item = {
                name.removeprefix(start): value
                for name, value in event.attributes.items()
                if name.startswith(start)
            }
            if (document := document_in(item | {"entity": opened(item.get("entity"))})) is not None:
                key = key or event.name
                found.append(document)
    return Found(tuple(found), NAME, key) if found else None
