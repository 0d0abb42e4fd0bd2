"""What the conventions share: attributes by name, JSON in texts, messages and documents of many forms."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from magistrate.datasets.fields import field_of
from magistrate.datasets.spans.steps import Document, Message

DEEPEST = 16  # names between the dots of an attribute, and values inside each other; the rest is not read
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
    """Attributes by their dotted names, whether they came flat or inside each other."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given

    @cached_property
    def tree(self) -> dict[str, Any]:
        """The attributes nested by the names between their dots."""
        return nested(self._given)

    def get(self, name: str) -> Any:
        """The value of a name; a mapping where it is the beginning of other names."""
        found = self._given.get(name)
        if found is not None and not isinstance(found, dict | list | tuple):
            return found
        return at(self.tree, *_path(name))

    def text(self, *names: str) -> str:
        """The first of some names that has a text; empty without any."""
        found = (self.get(name) for name in names)
        return next((each for each in found if isinstance(each, str) and each), "")

    def opened(self, name: str) -> tuple[Any, str | None]:
        """The value of a name, read where it is JSON; with why not where it is a text that should be JSON."""
        value = self.get(name)
        found = opened(value)
        if isinstance(found, str) and found.lstrip()[:1] in ("{", "["):
            return None, f"{name} begins like JSON and is none; it may have been cut off"
        return found, None


@lru_cache(maxsize=256)
def _path(name: str) -> tuple[str, ...]:
    return tuple(name.split("."))


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes by the names between their dots; of a list the items' too.

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
        elif not isinstance(known, dict):  # a text does not replace the names that begin like it
            branch[last] = value
    return tree


def at(tree: Any, *path: str) -> Any:
    """The value at a path of nested attributes, or None."""
    for step in path:
        if not isinstance(tree, dict):
            return None
        tree = tree.get(step)
    return tree


def listed(value: Any) -> list[Any]:
    """A list, also where its items came as attributes of their own: `documents.0`, `documents.1`."""
    if isinstance(value, Mapping):
        numbered = [
            (int(key), item)
            for key, item in value.items()
            if isinstance(key, str) and len(key) < 10 and key.isascii() and key.isdigit()
        ]
        return [item for _, item in sorted(numbered, key=lambda each: each[0])]
    return list(value) if isinstance(value, list | tuple) else []


def opened(value: Any) -> Any:
    """A text that holds JSON as what it holds; anything else as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "[", '"'):
        return value
    from pydantic_core import from_json

    try:
        return from_json(value.encode(), allow_inf_nan=False)
    except ValueError:
        return value


# --- messages --------------------------------------------------------------------------------------


def messages_in(value: Any, role: str, deepest: int = DEEPEST) -> tuple[Message, ...]:
    """The messages of a value in any form that providers and frameworks have; `role` where none is said.

    It may be a text, a message, a list of them, or what holds one under a usual name, such as a request or a
    completion of OpenAI, Anthropic, Google or LangChain.
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
    for name in ("kwargs", *CONVERSATIONS):  # LangChain's own JSON has a message's fields in `kwargs`
        inner = value.get(name)
        if isinstance(inner, Mapping | list | tuple) and (found := messages_in(inner, role, deepest - 1)):
            return found
    if isinstance(prompt := value.get("prompt"), str | list):
        return messages_in(prompt, role, deepest - 1)
    text = value.get("text")
    return (Message(role, text),) if isinstance(text, str) and text else ()


def is_message(value: Mapping[str, Any]) -> bool:
    """Whether a mapping is a message, or one part of an answer that stands where messages do."""
    said = isinstance(value.get("role"), str) and value.get("type") not in ("function",)
    kind = _kind(value)
    # LangChain names the role `type`; Responses of OpenAI list calls and results among the messages.
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
    """The parts of a message's content, whatever holds them."""
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
    """What a tool answered as one text: of parts their texts, of other values their JSON."""
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
    """The text of a result that says nothing else, such as `{"value": …}` and MCP's `{"content": [...]}`."""
    held = [item for name, item in value.items() if name not in ("type", "isError", "role")]
    if len(held) != 1:
        return ""
    return held[0] if isinstance(held[0], str) else _joined(_parts(held[0]))


WRAPPERS = {
    "input": ("inputs", "args", "kwargs", "input_value", "request"),
    "output": ("outputs", "result", "results", "return_value", "text", "final_result", "value"),
}


def text_in(value: Any, which: str, deepest: int = DEEPEST) -> str | None:
    """The `input` or `output` that a chain's value holds: as a text, under a known name, or in messages."""
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
    """The retrieved documents of a list in any of the usual forms; what has no text is left out."""
    return tuple(found for item in listed(value) if (found := document_in(item)) is not None)


def document_in(item: Any) -> Document | None:
    """One retrieved document, or None where it has no text."""
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
    """The first value under one of some names, in one of some places, that is no mapping."""
    found = (place.get(name) for name in names for place in places)
    return next((each for each in found if each is not None and not isinstance(each, Mapping)), None)


def number(value: Any) -> float | None:
    """A finite number, also where it is a text."""
    try:
        found = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None
