"""Foreign bytes as values: what the Messages API answers, whole or as a stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from magistrate.constraints.partial_json import read as from_text
from magistrate.engines.anthropic.forms import TOOL
from magistrate.engines.remote.foreign import Count, Foreign, read
from magistrate.engines.remote.redaction import shown
from magistrate.engines.remote.reply import Reply
from magistrate.errors import EngineError, EngineRefused, InvalidOutput
from magistrate.types import Usage

CUT = ("max_tokens", "model_context_window_exceeded")
ENDED = ("end_turn", "stop_sequence")
BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use")
NO_ORDER = "the answer broke off: the events of its stream are not in order"
HIDDEN_THOUGHTS = "the server keeps a part of the model's thoughts to itself"


class _Usage(Foreign):
    input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    output_tokens: Count | None = None

    def updated(self, later: _Usage | None) -> _Usage:
        """These counts, where `later` does not say otherwise: those of a stream are cumulative."""
        return self if later is None else self.model_copy(update=later.model_dump(exclude_none=True))

    @property
    def spent(self) -> Usage:
        cached = self.cache_read_input_tokens or 0
        read = (self.input_tokens or 0) + (self.cache_creation_input_tokens or 0) + cached
        return Usage(1, read, cached, self.output_tokens or 0)


class _Block(Foreign):
    type: str
    name: str = ""
    text: str = ""
    thinking: str = ""
    input: Any = None


class _Details(Foreign):
    category: str | None = None
    explanation: str | None = None


class _Message(Foreign):
    role: Literal["assistant"] = "assistant"
    content: list[_Block]
    stop_reason: str | None = None
    stop_details: _Details | None = None
    usage: _Usage


class _Delta(Foreign):
    type: str = ""
    text: str = ""
    thinking: str = ""
    partial_json: str = ""
    stop_reason: str | None = None
    stop_details: _Details | None = None


class _Event(Foreign):
    type: str
    message: _Message | None = None
    index: Count = 0
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None


class _Supported(Foreign):
    supported: bool = False


class _Thoughts(Foreign):
    disabled: _Supported = _Supported()
    adaptive: _Supported = _Supported()


class _ThinkingCapability(Foreign):
    supported: bool = False
    types: _Thoughts = _Thoughts()


class _Capabilities(Foreign):
    structured_outputs: _Supported = _Supported()
    thinking: _ThinkingCapability = _ThinkingCapability()


class Model(Foreign):
    """What a server says of a model: its windows in tokens, and what it can do; None where it does not."""

    id: str
    max_input_tokens: Count | None = None
    max_tokens: Count | None = None
    capabilities: _Capabilities | None = None


class _Listed(Foreign):
    id: str


class Models(Foreign):
    """The models that a server lists."""

    data: tuple[_Listed, ...] = ()


class Counted(Foreign):
    """How many tokens a prompt has."""

    input_tokens: Count


def read_message(body: Any, *, tool: bool) -> Reply:
    """A message's text, or the input of its tool as JSON; thoughts apart from it.

    Raises `EngineRefused` where the model or a filter refused, `InvalidOutput` where there is no text, and
    `EngineError` where the answer broke off.
    """
    return _reply(read(_Message, body, "message"), tool)


def read_events(events: Sequence[Any], *, tool: bool) -> Reply:
    """As `read_message`, of the events of a stream."""
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


def _with_input(block: _Block, said: str) -> _Block:
    """A tool's call with its input, which a stream gives as pieces of JSON; a text where it is none."""
    if block.type != "tool_use" or not said:
        return block
    reading = from_text(said)
    given = reading.value if reading.state == "complete" else said
    return block.model_copy(update={"input": given})


def _reply(message: _Message, tool: bool) -> Reply:
    usage, reason = message.usage.spent, message.stop_reason
    if reason == "refusal":
        details = message.stop_details or _Details()
        told = shown(" ".join(each for each in (details.category, details.explanation) if each))
        raise EngineRefused(f"the model refuses to answer{told and ': '}{told}")
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
        told = "the model called another tool than it was to, or said something beside its call"
        raise InvalidOutput(told, "".join(texts))
    elif reason not in (*ENDED, *CUT):
        raise EngineError(f"the answer broke off: it ended with {shown(reason) or 'no reason'} (stop_reason)")
    else:
        text = "".join(texts)
        if not texts and not thinking and reason not in CUT:
            raise InvalidOutput("the server's answer has no text")
    return Reply(text, "length" if reason in CUT else "stop", usage, thinking, notes)
