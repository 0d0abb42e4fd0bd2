"""The tool calls, tool results and messages of a sample, in their order.

A sample's `messages` hold roles and texts only. If the messages in a file hold more, such as calls, the raw
messages are in `metadata["messages"]`. The available tools are in `metadata["tools"]`, and calls that are
the output itself may be in `metadata["tool_calls"]`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magistrate.datasets.spans.conventions.values import CALLS, RESULTS, ROLES, as_text
from magistrate.errors import InputError
from magistrate.features.splitting import lines
from magistrate.judges.json_valid import no_json, unfenced, unique
from magistrate.types import ASSISTANTS, Sample

ARGUMENTS = ("arguments", "args", "input", "parameters")  # keys of a call's arguments in different formats
PARAMETERS = ("parameters", "input_schema", "inputSchema")  # keys of the arguments' schema
CONTENTS = ("content", "text", "parts")  # keys of what a message says
ANSWERS = ("response", "result", "output", "content")  # keys of what a tool answered
THE_READ = ("messages", "input", "output")


class UnreadableMessages(InputError):
    """Invalid messages, tools or calls in a sample."""


@dataclass(frozen=True, slots=True)
class Said:
    """A text of a participant. `final` marks the output itself."""

    role: str
    text: str
    final: bool = False

    @property
    def by_assistant(self) -> bool:
        """Whether the application wrote it: then it is no source for what it writes next."""
        return self.role in ASSISTANTS


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a tool."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call, numbered from 1. `problem` says why its arguments are invalid, empty if they are valid."""

    number: int
    name: str
    arguments: Mapping[str, Any]
    problem: str = ""


Event = Said | Result | ToolCall


def events_of(sample: Sample) -> list[Event]:
    """Return all events of a sample in order, the output last. Raises `UnreadableMessages`."""
    found: list[Event] = []
    raw = sample.metadata.get("messages")
    if isinstance(raw, list | tuple) and raw:
        for number, message in enumerate(raw, 1):
            if not isinstance(message, Mapping):
                raise UnreadableMessages(f"message {number} in the metadata is not an object")
            found += _of_message(message, number)
    else:
        for turn in sample.messages:
            role = _role(turn.role)
            found.append(Result(turn.text) if role == "tool" else Said(role, turn.text))
    given = sample.metadata.get("tool_calls")
    own = [] if given is None else list(_calls(given, "tool_calls in the metadata"))
    if own and found[-len(own) :] == own:  # the messages end with them
        del found[-len(own) :]
    asked = sample.input
    if asked and not any(isinstance(each, Said) and each.text == asked for each in found):
        found.insert(0, Said("user", asked))
    if sample.output:
        if (
            found
            and isinstance(found[-1], Said)
            and found[-1].by_assistant
            and found[-1].text == sample.output
        ):
            found.pop()
        found.append(Said("assistant", sample.output, final=True))
    found += own
    calls = iter(range(1, len(found) + 1))
    return [
        ToolCall(next(calls), each.name, each.arguments, each.problem) if isinstance(each, ToolCall) else each
        for each in found
    ]


def calls_of(events: Sequence[Event]) -> list[ToolCall]:
    """Return the calls among the events."""
    return [each for each in events if isinstance(each, ToolCall)]


def tools_of(sample: Sample) -> dict[str, Any]:
    """Return the JSON Schema of each declared tool's arguments, by name; empty if no tool is declared.

    Reads declarations of OpenAI, Anthropic and MCP, and a mapping of names to schemas. A tool without a
    schema takes any arguments. Raises `UnreadableMessages` for a declaration without a name.
    """
    given = sample.metadata.get("tools")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return {}
    if isinstance(given, Mapping):
        given = [{"name": name, "parameters": schema} for name, schema in given.items()]
    if not isinstance(given, list | tuple) or all(isinstance(each, str) for each in given):
        return {}  # texts are results, not declarations
    found: dict[str, Any] = {}
    for number, each in enumerate(given, 1):
        inner = each.get("function", each) if isinstance(each, Mapping) else None
        name = inner.get("name") if isinstance(inner, Mapping) else None
        if not isinstance(inner, Mapping) or not isinstance(name, str):
            raise UnreadableMessages(f"tool {number} in the metadata has no name")
        schema = next((inner[key] for key in PARAMETERS if inner.get(key) is not None), True)
        if found.setdefault(name, schema) != schema:
            raise UnreadableMessages(
                f"tool {name[:100]!r} is declared twice in the metadata, and differently"
            )
    return found


def _role(role: Any) -> str:
    said = role.lower() if isinstance(role, str) else "user"
    return ROLES.get(said, said)


def _of_message(message: Mapping[str, Any], number: int) -> Iterator[Event]:
    """Yield the texts, calls and results of a message, in order."""
    role, kind = _role(message.get("role")), _kind(message)
    where = f"message {number}"
    if kind in CALLS:
        yield from _calls([message], where)
        return
    if kind in RESULTS or role == "tool":
        yield Result(_result(message))
        return
    content = next((message[key] for key in CONTENTS if message.get(key) is not None), None)
    parts = content if isinstance(content, list | tuple) else [content]
    for part in parts:
        if isinstance(part, str):
            yield Said(role, part)
        elif isinstance(part, Mapping):
            if _kind(part) in CALLS:
                yield from _calls([part], where)
            elif _kind(part) in RESULTS:
                yield Result(_result(part))
            elif not isinstance(part.get("text"), str | None):
                raise UnreadableMessages(f"{where} in the metadata has a text that is not a string")
            elif isinstance(text := part.get("content") if part.get("text") is None else part["text"], str):
                yield Said(role, text)
        elif part is not None:
            raise UnreadableMessages(f"{where} in the metadata has neither text nor calls")
    if message.get("tool_calls") is not None:
        yield from _calls(message["tool_calls"], where)
    if message.get("function_call") is not None:
        yield from _calls([message["function_call"]], where)


def _kind(part: Mapping[str, Any]) -> str:
    kind = part.get("type")
    return kind.replace("-", "_") if isinstance(kind, str) else ""


def _result(part: Mapping[str, Any]) -> str:
    return next((as_text(part[key]) for key in ANSWERS if part.get(key) is not None), "")


def _calls(given: Any, where: str) -> Iterator[ToolCall]:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            given = None
    if isinstance(given, Mapping):
        given = [given]
    if not isinstance(given, list | tuple):
        raise UnreadableMessages(f"{where}: tool calls must be a list")
    for each in given:
        inner = each.get("function", each) if isinstance(each, Mapping) else None
        if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
            raise UnreadableMessages(f"{where}: a tool call has no name")
        arguments: Any = next((inner[key] for key in ARGUMENTS if inner.get(key) is not None), {})
        read, problem = _arguments(arguments)
        yield ToolCall(0, inner["name"], read, problem)


def _arguments(given: Any) -> tuple[Mapping[str, Any], str]:
    if isinstance(given, str):
        if not given.strip():
            return {}, ""
        try:
            given = json.loads(given, parse_constant=no_json, object_pairs_hook=unique)
        except (ValueError, RecursionError) as error:
            return {}, f"its arguments are not JSON: {error}"
    return (given, "") if isinstance(given, Mapping) else ({}, "its arguments are not a JSON object")


# --- text that judges of prose can read ------------------------------------------------------------


_FENCE = re.compile(r"^\s*(```|~~~)")
_CODE = re.compile(
    r"[;{}]\s*$|^\s*(?:def|class|import|from\s+\S+\s+import|function|const|let|var|return|if\s*\(|for\s*\(|while\s*\(|"
    r"#include|public|private|package|using|SELECT|INSERT|UPDATE|CREATE|@\w+)\b|^\s*[\w.\[\]]+\s*(?:[-+*/]?=)\s*\S|"
    r"^\s*[\w.]+\([^)]*\)\s*$|^\s*(?://|/\*|\*/|#!)|^(?:diff --git|@@ |\+\+\+ |--- )|\):\s*$"
)
_BEGUN = re.compile(r"""\{\s*["}]|\[\s*(?:["{\[]|(?:-?\d[\d.]*|true|false|null)\s*,)""")
LEAST_CODE = 0.5  # share of lines


def is_json(text: str) -> bool:
    """Return whether a text is a JSON object or list, with or without a code block, and nothing else."""
    inner = unfenced(text).strip()
    if inner[:1] + inner[-1:] not in ("{}", "[]"):
        return False
    try:
        json.loads(inner)
    except (ValueError, RecursionError):
        return False
    return True


def is_code(text: str) -> bool:
    """Return whether most lines of a text look like program code."""
    rows = [row for row in text.splitlines() if row.strip()]
    fenced, within, coded = 0, False, 0
    for row in rows:
        if _FENCE.match(row):
            within, fenced = not within, fenced + 1
            continue
        coded += within or bool(_CODE.search(row[:500]))
    told = len(rows) - fenced
    return told > 0 and coded >= LEAST_CODE * told and (coded >= 2 or fenced > 0)


def flattened(text: str) -> str:
    """Return a JSON text as lines of `path: value`, any other text unchanged."""
    if not is_json(text):
        return text
    return "\n".join(line for _, _, line in lines(unfenced(text).strip()))


def unreadable(text: str) -> str:
    """Return why a judge of prose cannot read a text (code, or invalid JSON), or an empty string."""
    stripped = text.strip()
    if is_json(stripped):
        return ""
    if _BEGUN.match(stripped):
        return "starts like JSON but is not valid"
    return "is program code" if is_code(stripped) else ""
