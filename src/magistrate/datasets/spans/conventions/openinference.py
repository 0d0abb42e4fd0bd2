"""OpenInference: the attributes written by Phoenix's instrumentations.

Source: github.com/Arize-ai/openinference, `spec/semantic_conventions.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magistrate.datasets.spans.conventions.values import (
    Attributes,
    as_text,
    at,
    documents_in,
    listed,
    messages_in,
    opened,
    text_in,
)
from magistrate.datasets.spans.span import Span
from magistrate.datasets.spans.steps import Found, Kind, Message, Step

NAME = "openinference"
KINDS: Mapping[str, Kind] = {
    "LLM": "call",
    "CHAIN": "chain",
    "AGENT": "agent",
    "RETRIEVER": "retriever",
    "RERANKER": "reranker",
    "TOOL": "tool",
    "EMBEDDING": "embedding",
    "EVALUATOR": "evaluator",
    "GUARDRAIL": "guardrail",
}
PLAIN = "text/plain"
JSON = "application/json"


def read(span: Span, attributes: Attributes) -> Step | None:
    """Return the step of a span with `openinference.span.kind` or with OpenInference messages."""
    said = attributes.text("openinference.span.kind").upper()
    if not said and not attributes.get("llm.input_messages") and not attributes.get("llm.output_messages"):
        return None
    kind: Kind = KINDS.get(said, "other" if said else "call")
    output, unread = _value(attributes, "output", kind)
    given, _ = _value(attributes, "input", kind)
    prompt = _messages(attributes, "llm.input_messages", "user") or _completion(
        attributes, "llm.prompts", "prompt", "user"
    )
    documents = _documents(attributes, kind)
    queries = (_found(attributes.text(name), name) for name in ("reranker.query", "retrieval.query"))
    return Step(
        kind,
        (NAME,),
        input=given if kind not in ("retriever", "reranker") and not (kind == "call" and prompt) else None,
        output=output if kind not in ("retriever", "reranker", "tool") else None,
        prompt=prompt,
        choices=_messages(attributes, "llm.output_messages", "assistant")
        or _completion(attributes, "llm.choices", "completion", "assistant"),
        documents=documents,
        query=next((each for each in queries if each), given) if kind in ("retriever", "reranker") else None,
        result=_found(as_text(opened(attributes.get("output.value"))), "output.value")
        if kind == "tool"
        else None,
        model=attributes.text("llm.model_name"),
        session=attributes.text("session.id"),
        remarks=() if unread is None else (unread,),
    )


def _found(text: str | None, key: str) -> Found[str] | None:
    return Found(text, NAME, key) if text else None


def _messages(attributes: Attributes, key: str, role: str) -> Found[tuple[Message, ...]] | None:
    items = listed(attributes.get(key))
    found = tuple(message for item in items for message in messages_in(at(item, "message") or item, role))
    return Found(found, NAME, key) if found else None


def _completion(attributes: Attributes, key: str, inner: str, role: str) -> Found[tuple[Message, ...]] | None:
    """Return the texts of a call that is not a conversation: `llm.prompts.0.prompt.text`."""
    texts = (at(item, inner, "text") for item in listed(attributes.get(key)))
    found = tuple(Message(role, text) for text in texts if isinstance(text, str) and text)
    return Found(found, NAME, key) if found else None


def _documents(attributes: Attributes, kind: Kind) -> Any:
    key = "reranker.output_documents" if kind == "reranker" else "retrieval.documents"
    found = documents_in(attributes.get(key))
    return Found(found, NAME, key) if found else None


def _value(attributes: Attributes, which: str, kind: Kind) -> tuple[Found[str] | None, str | None]:
    """Return `input.value` or `output.value` as text, or the reason why it cannot be read."""
    key = f"{which}.value"
    value = attributes.get(key)
    mime = attributes.text(f"{which}.mime_type")
    if isinstance(value, str) and mime != PLAIN:
        value, whole = opened(value), value
        if value is whole and mime == JSON:
            return None, f"{key} is declared as JSON but is not valid; it may have been cut off"
    return _found(text_in(value, which), key), None
