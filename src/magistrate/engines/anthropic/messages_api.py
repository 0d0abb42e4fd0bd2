"""The Messages API's own forms: how constraints are sent, and how messages and models are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from magistrate.constraints import Constraint, express
from magistrate.constraints.partial_json import read as read_json
from magistrate.engines.remote.messages import in_words
from magistrate.engines.remote.redaction import shown
from magistrate.engines.remote.replies import Body, Count, Reply, read
from magistrate.errors import ConstraintError, EngineError, EngineRefused, InvalidOutput
from magistrate.types import Usage

TOOL = "answer"
WRAPPED = "answer"  # schema and tool take objects only, so anything else is this property of one
Way = Literal["schema", "tool", "words"]


@dataclass(frozen=True, slots=True)
class Form:
    """How a request states a constraint: `body` goes into it, or `words` behind the question.

    `undo` turns the answer into a text that the constraint can read.
    """

    body: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""
    undo: Callable[[str], str] = str

    @property
    def tool(self) -> bool:
        """Whether the answer is the input of a tool."""
        return "tools" in self.body


PLAIN = Form()


def form_of(constraint: Constraint | None, way: Way) -> Form:
    """How `constraint` is sent: by `way`, or in words if no schema expresses it, such as a grammar.

    What the server does not enforce is found when the answer is validated. Raises `ConstraintError` if the
    constraint has no bound or lacks its texts.
    """
    if constraint is None:
        return PLAIN
    constraint.require_bounds()
    if way == "words" or constraint.kind == "lark":
        return Form(words=in_words(constraint))
    schema, undo = _object_of(constraint)
    try:
        return _sent(schema, way, undo)
    except ValueError:  # the package's error for a schema that it cannot express
        return Form(words=in_words(constraint))


def form_of_labels(labels: list[str], way: Way) -> Form:
    """How one of these labels is asked for."""
    if way == "words":
        return Form(words="Reply with nothing but one of these: " + ", ".join(labels))
    return _sent(_wrapping({"type": "string", "enum": labels}), way, _unwrapped)


def _sent(schema: Mapping[str, Any], way: Way, undo: Callable[[str], str]) -> Form:
    from anthropic import transform_schema

    sent = transform_schema(dict(schema))
    if way == "schema":
        return Form({"output_config": {"format": {"type": "json_schema", "schema": sent}}}, undo=undo)
    tool = {"name": TOOL, "description": "Gives the answer.", "input_schema": sent}
    choice = {"type": "tool", "name": TOOL, "disable_parallel_tool_use": True}
    return Form({"tools": [tool], "tool_choice": choice}, undo=undo)


def _object_of(constraint: Constraint) -> tuple[Mapping[str, Any], Callable[[str], str]]:
    """The schema of an object that holds what the constraint allows, and the function that takes it out."""
    if constraint.kind == "json":
        schema: Mapping[str, Any] = express(constraint, "json_schema").payload
        if schema.get("type") == "object":
            return schema, str
        if "$defs" in schema or "$ref" in schema or "definitions" in schema:
            raise ConstraintError(
                f"{constraint.name!r} has definitions and is no object at its root, as Anthropic's schemas "
                "must be; put it into an object"
            )
        return _wrapping(schema), _unwrapped_json
    given = constraint.schema or {}
    inner = {"type": "string", **{key: given[key] for key in ("enum", "pattern") if key in given}}
    return _wrapping(inner), _unwrapped


def _wrapping(inner: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {WRAPPED: dict(inner)},
        "required": [WRAPPED],
        "additionalProperties": False,
    }


def _inner(text: str) -> Any:
    """The value in the object around an answer, None if there is no such object."""
    value = read_json(text).value  # of whole JSON that says nothing twice; else of no such type
    return value.get(WRAPPED) if isinstance(value, dict) and value.keys() == {WRAPPED} else None


def _unwrapped(text: str) -> str:
    inner = _inner(text)
    return inner if isinstance(inner, str) else text


def _unwrapped_json(text: str) -> str:
    inner = _inner(text)
    return text if inner is None else json.dumps(inner, ensure_ascii=False)


# --- reading answers -----------------------------------------------------------------------------

CUT = ("max_tokens", "model_context_window_exceeded")
ENDED = ("end_turn", "stop_sequence")
BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use")
NO_ORDER = "the answer broke off: the events of its stream are not in order"
HIDDEN_THOUGHTS = "the server keeps a part of the model's thoughts to itself"


class _Usage(Body):
    input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    output_tokens: Count | None = None

    def updated(self, later: _Usage | None) -> _Usage:
        """These counts, replaced by those of `later`: counts of a stream are cumulative."""
        return self if later is None else self.model_copy(update=later.model_dump(exclude_none=True))

    @property
    def spent(self) -> Usage:
        cached = self.cache_read_input_tokens or 0
        read = (self.input_tokens or 0) + (self.cache_creation_input_tokens or 0) + cached
        return Usage(1, read, cached, self.output_tokens or 0)


class _Block(Body):
    type: str
    name: str = ""
    text: str = ""
    thinking: str = ""
    input: Any = None


class _Details(Body):
    category: str | None = None
    explanation: str | None = None


class _Message(Body):
    role: Literal["assistant"] = "assistant"
    content: list[_Block]
    stop_reason: str | None = None
    stop_details: _Details | None = None
    usage: _Usage


class _Delta(Body):
    type: str = ""
    text: str = ""
    thinking: str = ""
    partial_json: str = ""
    stop_reason: str | None = None
    stop_details: _Details | None = None


class _Event(Body):
    type: str
    message: _Message | None = None
    index: Count = 0
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None


class _Supported(Body):
    supported: bool = False


class _Thoughts(Body):
    disabled: _Supported = _Supported()
    adaptive: _Supported = _Supported()


class _ThinkingCapability(Body):
    supported: bool = False
    types: _Thoughts = _Thoughts()


class _Capabilities(Body):
    structured_outputs: _Supported = _Supported()
    thinking: _ThinkingCapability = _ThinkingCapability()


class Model(Body):
    """A server's description of a model: its windows in tokens and what it can do; None if not told."""

    id: str
    max_input_tokens: Count | None = None
    max_tokens: Count | None = None
    capabilities: _Capabilities | None = None


class _Listed(Body):
    id: str


class Models(Body):
    """The models that a server lists."""

    data: tuple[_Listed, ...] = ()


class Counted(Body):
    """How many tokens a prompt has."""

    input_tokens: Count


def read_message(body: Any, *, tool: bool) -> Reply:
    """A message's text, or the input of its tool as JSON, with thoughts split off.

    Raises `EngineRefused` if the model or a filter refused, `InvalidOutput` if there is no text, and
    `EngineError` if the answer broke off.
    """
    return _reply(read(_Message, body, "message"), tool)


def read_events(events: Sequence[Any], *, tool: bool) -> Reply:
    """As `read_message`, from the events of a stream."""
    blocks: dict[int, _Block] = {}
    inputs: dict[int, str] = {}
    message: _Message | None = None
    ended = False
    for each in (read(_Event, event, "event of a message") for event in events):
        if each.type == "message_start":
            if message is not None or each.message is None or each.message.content:
                raise EngineError(NO_ORDER)
            message = each.message
        elif each.type == "content_block_start" and each.content_block is not None:
            if each.index in blocks:
                raise EngineError(NO_ORDER)
            blocks[each.index] = each.content_block
        elif each.type == "content_block_delta" and each.delta is not None:
            if each.index not in blocks:
                raise EngineError(NO_ORDER)
            block, delta = blocks[each.index], each.delta
            more = {"text": block.text + delta.text, "thinking": block.thinking + delta.thinking}
            blocks[each.index] = block.model_copy(update=more)
            inputs[each.index] = inputs.get(each.index, "") + delta.partial_json
        elif each.type == "message_delta" and each.delta is not None and message is not None:
            if message.stop_reason not in (None, each.delta.stop_reason):
                raise EngineError(NO_ORDER)
            change = {"stop_reason": each.delta.stop_reason, "stop_details": each.delta.stop_details}
            message = message.model_copy(update={**change, "usage": message.usage.updated(each.usage)})
        ended = ended or each.type == "message_stop"
    if message is None or not ended:
        raise EngineError("the answer broke off: its stream has no beginning or no end")
    whole = [_with_input(blocks[index], inputs.get(index, "")) for index in sorted(blocks)]
    return _reply(message.model_copy(update={"content": whole}), tool)


def _with_input(block: _Block, pieces: str) -> _Block:
    """A tool's call with its input, which a stream gives as pieces of JSON; the text if it is no JSON."""
    if block.type != "tool_use" or not pieces:
        return block
    reading = read_json(pieces)
    given = reading.value if reading.state == "complete" else pieces
    return block.model_copy(update={"input": given})


def _reply(message: _Message, tool: bool) -> Reply:
    usage, reason = message.usage.spent, message.stop_reason
    if reason == "refusal":
        details = message.stop_details or _Details()
        reason_given = shown(" ".join(each for each in (details.category, details.explanation) if each))
        raise EngineRefused(f"the model refuses to answer{reason_given and ': '}{reason_given}")
    if unread := [each.type for each in message.content if each.type not in BLOCKS]:
        raise InvalidOutput(f"the answer has a part that is no text: {shown(unread[0])!r}")
    texts = [each.text for each in message.content if each.type == "text"]
    calls = [each for each in message.content if each.type == "tool_use"]
    thinking = "\n\n".join(each.thinking for each in message.content if each.thinking).strip()
    notes = (HIDDEN_THOUGHTS,) if any(e.type == "redacted_thinking" for e in message.content) else ()
    answered = tool and [each.name for each in calls] == [TOOL] and not "".join(texts).strip()
    if answered and reason in ("tool_use", *ENDED, *CUT):
        given = calls[0].input
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    elif calls or reason == "tool_use":
        problem = "the model called another tool than it was to, or said something beside its call"
        raise InvalidOutput(problem, "".join(texts))
    elif reason not in (*ENDED, *CUT):
        raise EngineError(f"the answer broke off: it ended with {shown(reason) or 'no reason'} (stop_reason)")
    else:
        text = "".join(texts)
        if not texts and not thinking and reason not in CUT:
            raise InvalidOutput("the server's answer has no text")
    return Reply(text, "length" if reason in CUT else "stop", usage, thinking, notes)
