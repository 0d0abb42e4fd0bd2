"""Foreign bytes as values: what a server of OpenAI's kind answers, read as what it may be at most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from magistrate.engines.remote.choosing import Listed, Token
from magistrate.engines.remote.foreign import Count, Foreign, is_number, read
from magistrate.engines.remote.redaction import shown
from magistrate.engines.remote.reply import Reply
from magistrate.engines.remote.thinking import split_thinking
from magistrate.errors import EngineError, EngineRefused, InvalidOutput
from magistrate.types import ASSISTANTS, Usage

Logprob = Annotated[float, Field(le=1e-3), AfterValidator(is_number)]

# How a text ends that is whole, and one whose tokens ran out, as servers of this kind say it. Any other
# reason is a failure.
ENDED = ("stop", "eos", "eos_token", "end_turn", "stop_sequence", "complete")
CUT = ("length", "max_tokens", "model_length", "max_output_tokens")
FILTERED = ("content_filter", "safety", "recitation", "blocklist", "prohibited_content")
CALLS = ("tool_calls", "function_call", "tool_use")


TEXTS, THOUGHTS = ("", "text", "output_text"), ("thinking", "reasoning")  # parts of a message


class _Details(Foreign):
    cached_tokens: Count | None = None


class UsageBody(Foreign):
    """What a server says that a call spent."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _Details | None = None


class _Part(Foreign):
    type: str = ""
    text: str | None = None


class _Message(Foreign):
    role: str | None = None
    content: str | list[_Part] | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    refusal: str | None = None
    tool_calls: Any = None
    function_call: Any = None


class _Top(Foreign):
    token: str
    logprob: Logprob
    bytes: list[Annotated[int, Field(ge=0, le=255)]] | None = None


class _Position(Foreign):
    top_logprobs: list[_Top] | None = None


class _Logprobs(Foreign):
    content: list[_Position] | None = None


class _Choice(Foreign):
    index: int | None = None
    finish_reason: str | None = None
    message: _Message | None = None
    delta: _Message | None = None
    logprobs: _Logprobs | None = None


class _Chat(Foreign):
    choices: tuple[_Choice, ...] = ()
    usage: UsageBody | None = None


class _Event(_Chat):
    """What comes in a stream: something of a choice, or what was spent. Anything else is no part of it."""

    @model_validator(mode="after")
    def _is_known(self) -> _Event:
        if not self.model_fields_set & {"choices", "usage"}:
            raise ValueError("it has neither choices nor usage")
        return self


def read_chat(body: Any, *, opened: bool = False) -> Reply:
    """A chat completion's text, thoughts apart from it. `opened` as for `split_thinking`.

    Raises `EngineRefused` where a filter or the model refused, `InvalidOutput` where there is no text or
    something beside it, and `EngineError` where the answer broke off.
    """
    answer = read(_Chat, body, "chat completion")
    choice = _only_choice(answer)
    if choice is None:
        raise InvalidOutput("the server's answer has no choices")
    if choice.message is None:
        raise InvalidOutput("the server's answer has no message")
    return _reply([choice.message], choice.finish_reason, usage_of(answer.usage), opened)


def read_events(events: Sequence[Any], *, opened: bool = False) -> Reply:
    """As `read_chat`, of the events of a stream."""
    read_ones = [read(_Event, event, "event of a chat completion") for event in events]
    choices = [choice for each in read_ones if (choice := _only_choice(each)) is not None]
    reasons = dict.fromkeys(each.finish_reason for each in choices if each.finish_reason)
    if len(reasons) > 1:
        raise EngineError(
            f"the answer ended more than once: {', '.join(map(shown, reasons))} (finish_reason)"
        )
    finish = next(iter(reasons), None)
    usage = next((each.usage for each in reversed(read_ones) if each.usage is not None), None)
    deltas = [each.delta for each in choices if each.delta is not None]
    if any(each.message is not None for each in choices):
        raise InvalidOutput("the server's stream has a whole message among its parts (message)")
    if not deltas:
        raise InvalidOutput("the server's stream has no choices")
    return _reply(deltas, finish, usage_of(usage), opened)


def _reply(messages: Sequence[_Message], finish: str | None, usage: Usage, opened: bool) -> Reply:
    text = "".join(map(_text, messages))
    apart = "".join(map(_thoughts, messages)).strip()
    refusal = "".join(each.refusal or "" for each in messages)
    ending = (finish or "").lower()
    if ending in FILTERED:
        raise EngineRefused("the server's filter held the answer back (content_filter)")
    if refusal:
        raise EngineRefused(f"the model refuses to answer: {shown(refusal)}")
    if ending in CALLS or any(each.tool_calls or each.function_call for each in messages):
        raise InvalidOutput("the model called a tool instead of answering", text)
    if others := [each.role for each in messages if each.role and each.role.lower() not in ASSISTANTS]:
        raise InvalidOutput(f"the answer is a message of {shown(others[0])!r}, not of the assistant", text)
    if not ending:
        raise EngineError("the answer broke off: the server did not say why it ended (finish_reason)")
    if ending not in (*ENDED, *CUT):
        raise EngineError(f"the answer broke off: it ended with {shown(finish)!r} (finish_reason)")
    if all(each.content is None for each in messages) and not apart:
        raise InvalidOutput("the server's answer has no text")
    thinking, text = (apart, text) if apart else split_thinking(text, opened=opened)
    return Reply(text, "length" if ending in CUT else "stop", usage, thinking)


def _only_choice(answer: _Chat) -> _Choice | None:
    """The one choice that was asked for, None where there is none."""
    if len(answer.choices) > 1 or any(each.index for each in answer.choices):
        raise InvalidOutput("the server answered several times where one answer was asked for (choices)")
    return answer.choices[0] if answer.choices else None


def _text(message: _Message) -> str:
    if not isinstance(message.content, list):
        return message.content or ""
    if unread := [part.type for part in message.content if part.type not in (*TEXTS, *THOUGHTS)]:
        raise InvalidOutput(f"the answer has a part that is no text: {shown(unread[0])!r}")
    return "".join(part.text or "" for part in message.content if part.type in TEXTS)


def _thoughts(message: _Message) -> str:
    if message.reasoning_content:
        return message.reasoning_content
    return message.reasoning if isinstance(message.reasoning, str) else ""


def usage_of(usage: Any) -> Usage:
    """What a call spent, as far as the server tells."""
    if not isinstance(usage, UsageBody):
        return Usage(calls=1)
    details = usage.prompt_tokens_details
    cached = (details.cached_tokens if details is not None else None) or 0
    prompt = usage.prompt_tokens or 0
    return Usage(1, prompt, min(cached, prompt), usage.completion_tokens or 0)


def read_first_token(body: Any) -> Listed:
    """The likeliest tokens at the first place of a chat completion, none where the server lists none."""
    answer = read(_Chat, body, "chat completion")
    logprobs = answer.choices[0].logprobs if answer.choices else None
    if logprobs is None or not logprobs.content or not logprobs.content[0].top_logprobs:
        return Listed(())
    return Listed(
        tuple(
            Token(bytes(each.bytes) if each.bytes is not None else each.token.encode(), each.logprob)
            for each in logprobs.content[0].top_logprobs
        )
    )


def usage_of_chat(body: Any) -> Usage:
    """What a chat completion spent."""
    return usage_of(read(_Chat, body, "chat completion").usage)
