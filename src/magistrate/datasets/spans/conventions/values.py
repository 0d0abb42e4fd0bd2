"""Helpers for all conventions: attributes by name, JSON in texts, messages and documents in many forms."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from magistrate.datasets.fields import field_of
from magistrate.datasets.spans.steps import Document, Message

DEEPEST = 16  # levels of dotted names and of nested values; deeper ones are not read
ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "bot": "assistant"} | {
    "developer": "system",
    "function": "tool",
}
CALLS = frozenset(("tool_call", "tool_use", "function_call", "server_tool_call", "custom_tool_call"))
RESULTS = frozenset(
    (
        *("tool_call_response", "server_tool_call_response", "tool_result", "tool_return"),
        *("function_call_output", "custom_tool_call_output", "function_response"),
    )
)
TEXTS = frozenset(("", "text", "input_text", "output_text", "refusal"))
THOUGHTS = frozenset(("reasoning", "reasoning_text", "thinking", "redacted_thinking"))
CONVERSATIONS = ("messages", "contents", "choices", "generations", "response", "output", "message", "content")


class Attributes:
    """Attributes by dotted name, whether they were recorded flat or nested."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given

    @cached_property
    def tree(self) -> dict[str, Any]:
        """The attributes, nested by the dots in their names."""
        return nested(self._given)

    def get(self, name: str) -> Any:
        """Return the value of a name, or a mapping if it is the prefix of other names."""
        found = self._given.get(name)
        if found is not None and not isinstance(found, dict | list | tuple):
            return found
        return at(self.tree, *_path(name))

    def text(self, *names: str) -> str:
        """Return the first non-empty text among these names, or an empty text."""
        found = (self.get(name) for name in names)
        return next((each for each in found if isinstance(each, str) and each), "")

    def opened(self, name: str) -> tuple[Any, str | None]:
        """Return the value of a name, parsed if it is JSON, or the reason if what looks like JSON is
        invalid.
        """
        value = self.get(name)
        found = opened(value)
        if isinstance(found, str) and found.lstrip()[:1] in ("{", "["):
            return None, f"{name} starts like JSON but is not valid; it may have been cut off"
        return found, None


@lru_cache(maxsize=256)
def _path(name: str) -> tuple[str, ...]:
    return tuple(name.split("."))


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Nest attributes by the dots in their names, also inside lists.

    >>> nested({"input.value": "Who?", "retrieval.documents": [{"document.content": "Bern."}]})
    {'input': {'value': 'Who?'}, 'retrieval': {'documents': [{'document': {'content': 'Bern.'}}]}}
    """
    return _nested(flat, DEEPEST)


def _nested(flat: Mapping[str, Any], deepest: int) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = str(name).split(".", DEEPEST)
        branch = tree
        for step in path:
            below = branch.get(step)
            if not isinstance(below, dict):
                below = branch[step] = {}
            branch = below
        if isinstance(value, Mapping):
            value = _nested(value, deepest - 1) if deepest else {}
        elif isinstance(value, list | tuple):
            value = [
                (_nested(item, deepest - 1) if deepest else {}) if isinstance(item, Mapping) else item
                for item in value
            ]
        known = branch.get(last)
        if isinstance(known, dict) and isinstance(value, dict):
            branch[last] = {**known, **value}
        elif not isinstance(known, dict):  # a text does not replace longer names with the same prefix
            branch[last] = value
    return tree


def at(tree: Any, *path: str) -> Any:
    """Return the value at a path of nested attributes, or None."""
    for step in path:
        if not isinstance(tree, dict):
            return None
        tree = tree.get(step)
    return tree


def listed(value: Any) -> list[Any]:
    """Return a list, also if its items are numbered attributes: `documents.0`, `documents.1`."""
    if isinstance(value, Mapping):
        numbered = [
            (int(key), item)
            for key, item in value.items()
            if isinstance(key, str) and len(key) < 10 and key.isascii() and key.isdigit()
        ]
        return [item for _, item in sorted(numbered, key=lambda each: each[0])]
    return list(value) if isinstance(value, list | tuple) else []


def opened(value: Any) -> Any:
    """Parse a text that contains JSON; return anything else unchanged."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "[", '"'):
        return value
    from pydantic_core import from_json

    try:
        return from_json(value.encode(), allow_inf_nan=False)
    except ValueError:
        return value


# --- messages --------------------------------------------------------------------------------------


def messages_in(value: Any, role: str, deepest: int = DEEPEST) -> tuple[Message, ...]:
    """Return the messages in a value of any form that providers and frameworks use; the default role is
    `role`.

    The value may be a text, a message, a list of messages, or an object with messages under a usual name,
    such as a request or completion of OpenAI, Anthropic, Google or LangChain.
    """
    if isinstance(value, str):
        return (Message(role, value),) if value else ()
    if not deepest:
        return ()
    if isinstance(value, list | tuple):
        return tuple(found for item in value for found in messages_in(item, role, deepest - 1))
    if not isinstance(value, Mapping) or _kind(value) in THOUGHTS:
        return ()
    if is_message(value):
        return (_message(value, role),)
    for name in ("system", "system_instruction", "instructions"):
        if before := _joined(_parts(value.get(name))):
            return (Message("system", before), *messages_in(_without(value, name), role, deepest - 1))
    for name in ("kwargs", *CONVERSATIONS):  # LangChain's JSON has a message's fields in `kwargs`
        inner = value.get(name)
        if isinstance(inner, Mapping | list | tuple) and (found := messages_in(inner, role, deepest - 1)):
            return found
    if isinstance(prompt := value.get("prompt"), str | list):
        return messages_in(prompt, role, deepest - 1)
    text = value.get("text")
    return (Message(role, text),) if isinstance(text, str) and text else ()


def is_message(value: Mapping[str, Any]) -> bool:
    """Return whether a mapping is a message, or a part of an answer in the place of one."""
    said = isinstance(value.get("role"), str) and value.get("type") not in ("function",)
    kind = _kind(value)
    # LangChain calls the role `type`; OpenAI's Responses list calls and results among the messages.
    typed = (kind in ("human", "ai", "system", "tool") and "content" in value) or kind in CALLS | RESULTS
    bare = isinstance(value.get("content"), str) and "choices" not in value
    return said or typed or bare or "parts" in value


def _message(value: Mapping[str, Any], role: str) -> Message:
    kind = _kind(value)
    said = value.get("role") or (kind if kind in ("human", "ai", "system", "tool") else role)
    said = said.lower() if isinstance(said, str) else role
    said = ROLES.get(said, said)
    if kind in RESULTS:
        said = "tool"
    pieces = [value] if kind in CALLS | RESULTS else []
    for name in ("parts", "content", "contents", "text"):
        if value.get(name) is not None and not pieces:
            pieces = _parts(value[name])
    results = [text for part in pieces if _kind(part) in RESULTS and (text := _result(part))]
    text = _joined(pieces)
    if said == "tool" and text:
        results.append(text)
    calls = sum(_kind(part) in CALLS or "function_call" in part for part in pieces)
    calls += len(listed(value.get("tool_calls"))) + isinstance(value.get("function_call"), Mapping)
    return Message(said, text, tuple(results), calls)


def _parts(content: Any) -> list[Mapping[str, Any]]:
    """Return the parts of a message's content, in whatever form they are given."""
    if isinstance(content, str):
        return [{"text": content}]
    items = listed(content) or ([content] if isinstance(content, Mapping) else [])
    found: list[Mapping[str, Any]] = []
    for item in items:
        if isinstance(item, str):
            found.append({"text": item})
        elif isinstance(item, Mapping):
            inner = item.get("message_content")  # OpenInference's
            found.append(inner if isinstance(inner, Mapping) else item)
            if isinstance(item.get("parts"), list) and len(item) <= 2:  # Google's instruction
                found[-1:] = [part for part in item["parts"] if isinstance(part, Mapping)]
    return found


def _kind(part: Mapping[str, Any]) -> str:
    kind = part.get("type")
    if isinstance(kind, str):
        return kind.replace("-", "_")
    return "function_response" if "function_response" in part else ""


def _joined(parts: Iterable[Mapping[str, Any]]) -> str:
    texts = []
    for part in parts:
        if _kind(part) in TEXTS and not part.get("thought"):
            told = (part.get(name) for name in ("content", "text", "refusal"))
            texts.append(next((each for each in told if isinstance(each, str)), ""))
    return "".join(texts)


def _result(part: Mapping[str, Any]) -> str:
    inner = part.get("function_response")  # Google's
    held = inner if isinstance(inner, Mapping) else part
    for name in ("response", "result", "output", "content"):
        if held.get(name) is not None:
            return as_text(held[name])
    return ""


def _without(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key != name}


# --- texts and documents ---------------------------------------------------------------------------


def as_text(value: Any) -> str:
    """Return a tool's result as one text: the texts of its parts, or JSON for other values."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and (text := _joined(_parts(value))):
        return text
    if isinstance(value, Mapping) and (text := _only_text(value)):
        return text
    try:
        return json.dumps(value, ensure_ascii=False) if value or isinstance(value, int | float) else ""
    except (TypeError, ValueError, RecursionError):
        return ""


def _only_text(value: Mapping[str, Any]) -> str:
    """Return the text of a result with one field only, such as `{"value": …}` or MCP's
    `{"content": [...]}`.
    """
    held = [item for name, item in value.items() if name not in ("type", "isError", "role")]
    if len(held) != 1:
        return ""
    return held[0] if isinstance(held[0], str) else _joined(_parts(held[0]))


WRAPPERS = {
    "input": ("inputs", "args", "kwargs", "input_value", "request"),
    "output": ("outputs", "result", "results", "return_value", "text", "final_result", "value"),
}


def text_in(value: Any, which: str, deepest: int = DEEPEST) -> str | None:
    """Return the `input` or `output` text of a chain's value: itself, under a known name, or in messages."""
    if isinstance(value, str):
        return value if value.strip() else None
    if not deepest:
        return None
    if isinstance(value, list | tuple):
        if any(isinstance(item, Mapping) and is_message(item) for item in value):
            return _said(value, which)
        return text_in(value[0], which, deepest - 1) if len(value) == 1 else None
    if not isinstance(value, Mapping):
        return None
    if isinstance(value.get("role"), str):
        return _said([value], which)
    known = [name for name in value if field_of(str(name)) == which]
    for name in (*known, *(name for name in WRAPPERS[which] if name in value)):
        if found := text_in(value[name], which, deepest - 1):
            return found
    return _said(value, which) if any(name in value for name in ("kwargs", *CONVERSATIONS)) else None


def _said(value: Any, which: str) -> str | None:
    role = "user" if which == "input" else "assistant"
    said = [message.text for message in messages_in(value, role) if message.role == role]
    return next((text for text in reversed(said) if text.strip()), None)


ID_KEYS = ("id", "document_id", "doc_id", "doc_uri", "source", "chunk_id")


def documents_in(value: Any) -> tuple[Document, ...]:
    """Return the retrieved documents in a list of any usual form. Items without text are skipped."""
    return tuple(found for item in listed(value) if (found := document_in(item)) is not None)


def document_in(item: Any) -> Document | None:
    """Return one retrieved document, or None if it has no text."""
    if isinstance(item, str):
        return Document(item) if item.strip() else None
    if not isinstance(item, Mapping):
        return None
    inner: Mapping[str, Any] = next(
        (item[name] for name in ("document", "node", "kwargs") if isinstance(item.get(name), Mapping)), {}
    )
    held = (place.get(name) for name in ("metadata", "entity", "payload") for place in (item, inner))
    metadata = next((opened(each) for each in held if each), None)
    places = [place for place in (item, inner, metadata) if isinstance(place, Mapping)]
    text = _first(places, ("content", "text", "page_content", "document.content", "document", "chunk"))
    if isinstance(text, list):
        text = _joined(_parts(text))
    if not isinstance(text, str) or not text.strip():
        return None
    id = _first(places, ("id", "document.id", *ID_KEYS))
    return Document(
        text,
        str(id) if isinstance(id, str | int) else None,
        number(_first(places, ("score", "document.score", "similarity", "relevance_score"))),
        number(_first(places, ("distance",))),
    )


def _first(places: Sequence[Mapping[str, Any]], names: Iterable[str]) -> Any:
    """Return the first value under one of these names, in any of the places, that is not a mapping."""
    found = (place.get(name) for name in names for place in places)
    return next((each for each in found if each is not None and not isinstance(each, Mapping)), None)


def number(value: Any) -> float | None:
    """Return a finite number, also if it is given as text, else None."""
    try:
        found = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None
