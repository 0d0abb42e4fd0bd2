"""Servers asked by chat completions: requests for texts and labels, and how their answers are read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from magistrate.constraints import Constraint
from magistrate.engines.base import Attempt, Choice, Likelihood, Option, Sampling
from magistrate.engines.openai.constraints import SentConstraint
from magistrate.engines.openai.options import Options
from magistrate.engines.openai.server_capabilities import ServerCapabilities, choose_method
from magistrate.engines.remote.client import Requests
from magistrate.engines.remote.label_choice import (
    TopToken,
    label_asker,
    label_only_choice,
    sampled_choice,
    top_k_choice,
)
from magistrate.engines.remote.messages import Chat, chat, in_words, with_instruction
from magistrate.engines.remote.redaction import shown
from magistrate.engines.remote.replies import Body, Count, Reply, is_number, read, split_thinking
from magistrate.errors import CapabilityError, EngineError, EngineRefused, InvalidOutput, OverLength
from magistrate.types import ASSISTANTS, Prompt, Usage

PATH = "chat/completions"
LEAST_MASS = 0.01  # a model that gives all answers together less than this wants to say something else
UNLISTED = "hardly any answer was among the likeliest tokens, so it was asked for in words"
# Four ASCII letters are a token, white space is one, any other character is one, or two if not ASCII.
RUNS = re.compile(r"[A-Za-z]+|\s+|[\x21-\x7e]|.", re.DOTALL)


class ChatServer:
    """Answers the verbs by `/chat/completions`; `window` is the context window in tokens, 0 if not told."""

    def __init__(
        self, client: Requests, model: str, found: ServerCapabilities, options: Options, window: int
    ) -> None:
        self._client, self._model, self._found, self._options = client, model, found, options
        self._window = window if found.cuts else 0  # others refuse what does not fit, by an exact count
        self._method = choose_method(found, options)

    async def count(self, prompt: Prompt) -> int:
        """An estimate that is rather too high."""
        return _estimate_chat(self._chat(prompt))

    async def ask(
        self,
        prompt: Prompt,
        attempts: tuple[Attempt, ...],
        constraint: Constraint | None,
        sent: SentConstraint | None,
        sampling: Sampling,
    ) -> Reply:
        """A text, with the constraint as `sent`; if that is None, as an instruction in words."""
        if constraint is not None and sent is None:
            prompt = with_instruction(prompt, in_words(constraint))
        made = self._chat(prompt, attempts)
        body = {**self._body(made, sampling), **({} if sent is None else sent.body)}
        opened = self._found.thinks == "closed"
        if self._options.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            reply = read_events(await self._client.stream(PATH, body), opened=opened)
        else:
            reply = read_chat(await self._client.post(PATH, body), opened=opened)
        text = self._client.without_keys(made.escaping.undo(reply.text))
        notes = (*made.escaping.notes, *self._unsent(sampling))
        return Reply(
            text if sent is None else sent.undo(text),
            reply.finish,
            reply.usage,
            self._client.without_keys(made.escaping.undo(reply.thinking)),
            notes,
        )

    async def choose(self, prompt: Prompt, options: Sequence[Option]) -> Choice:
        """The choice by the likeliest first tokens, by draws, or by the label that the model names."""
        ask = label_asker(self._reply, prompt, options)
        if self._method == "sampled":
            return await sampled_choice(ask, options, draws=self._options.draws)
        if self._method != "top_k":
            return await label_only_choice(ask, options, retries=self._options.anew)
        found, usage = await self._by_first_token(prompt, options)
        if found is not None:
            return found
        named = await label_only_choice(ask, options, retries=self._options.anew)
        return replace(named, usage=usage + named.usage, notes=(*named.notes, UNLISTED))

    async def likelihood(self, prompt: Prompt, text: str) -> Likelihood:
        """Not offered. Raises `CapabilityError`."""
        raise CapabilityError(
            f"{self._client.who} tells no log-probabilities of prompts, so it cannot say how probable a "
            "given text is; vLLM does, and the embedded engine"
        )

    # ------------------------------------------------------------------------------------------------

    def _chat(self, prompt: Prompt, attempts: tuple[Attempt, ...] = ()) -> Chat:
        return chat(prompt, attempts, continues=bool(self._found.continues))

    def _body(self, made: Chat, sampling: Sampling) -> dict[str, Any]:
        """The request for a text; a model that thinks gets extra tokens for its thoughts."""
        found, most = self._found, sampling.max_tokens
        if self._window and (needed := _estimate_chat(made) + most) > self._window:
            raise OverLength(
                f"this takes about {needed} tokens with the room kept for the answer, and {found.server} "
                f"cuts what does not fit its window of {self._window} without a word"
            )
        body: dict[str, Any] = {"model": self._model, "messages": made.as_dicts()}
        body[found.budget] = most + (self._options.thoughts if found.thinks else 0)
        if found.samples:
            body |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
            if sampling.temperature > 0:
                body["seed"] = sampling.seed
        if made.begun and found.continues == "continue_final_message":
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        return body

    def _unsent(self, sampling: Sampling) -> tuple[str, ...]:
        notes = []
        if sampling.min_p:
            notes.append("min_p was not sent: it is no parameter of chat completions")
        if not self._found.samples and sampling.temperature != 1:
            notes.append("the server takes no temperature; it sampled in its own way")
        return tuple(notes)

    async def _by_first_token(self, prompt: Prompt, options: Sequence[Option]) -> tuple[Choice | None, Usage]:
        """The choice by the first token, None if the options are hardly among the likeliest; and the cost."""
        # At temperature 1: some servers tell the probabilities after the temperature was applied.
        made = self._chat(prompt)
        body = {**self._body(made, Sampling(temperature=1.0, max_tokens=1)), "logprobs": True}
        body["top_logprobs"] = self._found.top
        body.pop("seed", None)
        answer = await self._client.post(PATH, body)
        usage = read_chat(answer).usage  # refuses what a filter held back and what has no choices
        tokens, notes = read_top_tokens(answer), made.escaping.notes
        return top_k_choice(options, tokens, usage, notes, least_mass=LEAST_MASS), usage

    async def _reply(self, prompt: Prompt, sampling: Sampling) -> Reply:
        return await self.ask(prompt, (), None, None, sampling)


def _estimate_chat(made: Chat) -> int:
    return sum(4 + estimate_tokens(turn.text) for turn in made.turns)


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has, rather too many: no tokenizer is known to need more for prose."""
    count = 0
    for match in RUNS.finditer(text):
        run = match[0]
        count += -(-len(run) // 4) if run[0].isalpha() and run.isascii() else 1 + (not run.isascii())
    return count


# --- reading answers -----------------------------------------------------------------------------

Logprob = Annotated[float, Field(le=1e-3), AfterValidator(is_number)]

# Reasons for the end of a complete text, and of one whose tokens ran out. Any other reason is a failure.
ENDED = ("stop", "eos", "eos_token", "end_turn", "stop_sequence", "complete")
CUT = ("length", "max_tokens", "model_length", "max_output_tokens")
FILTERED = ("content_filter", "safety", "recitation", "blocklist", "prohibited_content")
CALLS = ("tool_calls", "function_call", "tool_use")


TEXTS, THOUGHTS = ("", "text", "output_text"), ("thinking", "reasoning")  # parts of a message


class _Details(Body):
    cached_tokens: Count | None = None


class UsageBody(Body):
    """A server's account of what a call spent."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _Details | None = None


class _Part(Body):
    type: str = ""
    text: str | None = None


class _Message(Body):
    role: str | None = None
    content: str | list[_Part] | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    refusal: str | None = None
    tool_calls: Any = None
    function_call: Any = None


class _Top(Body):
    token: str
    logprob: Logprob
    bytes: list[Annotated[int, Field(ge=0, le=255)]] | None = None


class _Position(Body):
    top_logprobs: list[_Top] | None = None


class _Logprobs(Body):
    content: list[_Position] | None = None


class _Choice(Body):
    index: int | None = None
    finish_reason: str | None = None
    message: _Message | None = None
    delta: _Message | None = None
    logprobs: _Logprobs | None = None


class _Chat(Body):
    choices: tuple[_Choice, ...] = ()
    usage: UsageBody | None = None


class _Event(_Chat):
    """One event of a stream: a part of a choice, or what was spent. Anything else is refused."""

    @model_validator(mode="after")
    def _is_known(self) -> _Event:
        if not self.model_fields_set & {"choices", "usage"}:
            raise ValueError("it has neither choices nor usage")
        return self


def read_chat(body: Any, *, opened: bool = False) -> Reply:
    """A chat completion's text, with thoughts split off. `opened` is that of `split_thinking`.

    Raises `EngineRefused` if a filter or the model refused, `InvalidOutput` if there is no text or something
    beside it, and `EngineError` if the answer broke off.
    """
    answer = read(_Chat, body, "chat completion")
    choice = _only_choice(answer)
    if choice is None:
        raise InvalidOutput("the server's answer has no choices")
    if choice.message is None:
        raise InvalidOutput("the server's answer has no message")
    return _reply([choice.message], choice.finish_reason, usage_of(answer.usage), opened)


def read_events(events: Sequence[Any], *, opened: bool = False) -> Reply:
    """As `read_chat`, from the events of a stream."""
    parts = [read(_Event, event, "event of a chat completion") for event in events]
    choices = [choice for each in parts if (choice := _only_choice(each)) is not None]
    reasons = dict.fromkeys(each.finish_reason for each in choices if each.finish_reason)
    if len(reasons) > 1:
        raise EngineError(
            f"the answer ended more than once: {', '.join(map(shown, reasons))} (finish_reason)"
        )
    finish = next(iter(reasons), None)
    usage = next((each.usage for each in reversed(parts) if each.usage is not None), None)
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
    """The one choice that was asked for, None if there is none."""
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


def usage_of(usage: UsageBody | None) -> Usage:
    """What a call spent, as far as the server tells."""
    if usage is None:
        return Usage(calls=1)
    details = usage.prompt_tokens_details
    cached = (details.cached_tokens if details is not None else None) or 0
    prompt = usage.prompt_tokens or 0
    return Usage(1, prompt, min(cached, prompt), usage.completion_tokens or 0)


def read_top_tokens(body: Any) -> tuple[TopToken, ...]:
    """The likeliest tokens at the first place of a chat completion; none if the server lists none."""
    answer = read(_Chat, body, "chat completion")
    logprobs = answer.choices[0].logprobs if answer.choices else None
    if logprobs is None or not logprobs.content:
        return ()
    return tuple(
        TopToken(bytes(each.bytes) if each.bytes is not None else each.token.encode(), each.logprob)
        for each in logprobs.content[0].top_logprobs or ()
    )
