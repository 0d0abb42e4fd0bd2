"""Servers that answer chat completions, and servers that also score prompts (as vLLM does).

Requests for texts and labels, and parsing of their answers. A server that tokenizes chats and returns the
log-probabilities of a prompt gives exact choices and likelihoods.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from pydantic import model_validator

from magistrate.constraints import Constraint
from magistrate.engines.base import Attempt, Choice, Likelihood, Option, Sampling, exact_choice
from magistrate.engines.openai.constraints import SentConstraint
from magistrate.engines.openai.server_capabilities import Options, ServerCapabilities, choose_method
from magistrate.engines.remote.client import Requests
from magistrate.engines.remote.errors import shown
from magistrate.engines.remote.messages import Chat, chat, in_words, with_instruction
from magistrate.engines.remote.replies import (
    Body,
    Count,
    Logprob,
    Reply,
    TopToken,
    TopTokenBody,
    label_asker,
    label_only_choice,
    read,
    sampled_choice,
    split_thinking,
    token_paths,
    top_k_choice,
)
from magistrate.errors import (
    CapabilityError,
    EngineError,
    EngineRefused,
    InvalidOutput,
    OverLength,
    SpecError,
)
from magistrate.types import ASSISTANTS, Data, Message, Prompt, Usage

PATH = "chat/completions"
LEAST_MASS = 0.01  # below this total for all answers, the model wants to say something else
UNLISTED = "almost no answer was among the likeliest tokens, so the label was requested as text"
# Estimate: four ASCII letters are a token, white space is one, any other character one (two if not ASCII).
RUNS = re.compile(r"[A-Za-z]+|\s+|[\x21-\x7e]|.", re.DOTALL)


class ChatServer:
    """Implements the verbs with `/chat/completions`; `window` is the context window (0: unknown)."""

    def __init__(
        self, client: Requests, model: str, capabilities: ServerCapabilities, options: Options, window: int
    ) -> None:
        self._client, self._model = client, model
        self._capabilities, self._options = capabilities, options
        self._window = window if capabilities.cuts else 0  # others reject what does not fit, by exact count
        self._method = choose_method(capabilities, options)

    async def count(self, prompt: Prompt) -> int:
        """Estimate the number of tokens, rather too high."""
        return _estimate_chat(self._chat(prompt))

    async def ask(
        self,
        prompt: Prompt,
        attempts: tuple[Attempt, ...],
        constraint: Constraint | None,
        sent: SentConstraint | None,
        sampling: Sampling,
    ) -> Reply:
        """Request a text, with the constraint as `sent`, or as an instruction in words if `sent` is None."""
        if constraint is not None and sent is None:
            prompt = with_instruction(prompt, in_words(constraint))
        conversation = self._chat(prompt, attempts)
        body = {**self._body(conversation, sampling), **({} if sent is None else sent.body)}
        opened = self._capabilities.thinks == "closed"
        if self._options.stream:
            body["stream_options"] = {"include_usage": True}
            reply = read_events(await self._client.stream(PATH, body), opened=opened)
        else:
            reply = read_chat(await self._client.post(PATH, body), opened=opened)
        text, thinking = (
            self._client.without_keys(conversation.escaping.undo(each))
            for each in (reply.text, reply.thinking)
        )
        text = text if sent is None else sent.undo(text)
        notes = (*conversation.escaping.notes, *self._unsent(sampling))
        return Reply(text, reply.finish, reply.usage, thinking, notes)

    async def choose(self, prompt: Prompt, options: Sequence[Option]) -> Choice:
        """Choose by the probabilities of first tokens, by draws, or by the label that the model names."""
        ask = label_asker(self._reply, prompt, options)
        if self._method == "sampled":
            return await sampled_choice(ask, options, draws=self._options.draws)
        if self._method != "top_k":
            return await label_only_choice(ask, options, retries=self._options.anew)
        by_probability, usage = await self._by_first_token(prompt, options)
        if by_probability is not None:
            return by_probability
        named = await label_only_choice(ask, options, retries=self._options.anew)
        return replace(named, usage=usage + named.usage, notes=(*named.notes, UNLISTED))

    async def likelihood(self, prompt: Prompt, text: str) -> Likelihood:
        """Not supported. Raises `CapabilityError`."""
        raise CapabilityError(
            f"{self._client.who} returns no log-probabilities of prompts, so it cannot score a given text; "
            "use vLLM or the embedded engine"
        )

    # ------------------------------------------------------------------------------------------------

    def _chat(self, prompt: Prompt, attempts: tuple[Attempt, ...] = ()) -> Chat:
        return chat(prompt, attempts, continues=bool(self._capabilities.continues))

    def _body(self, conversation: Chat, sampling: Sampling) -> dict[str, Any]:
        """Build the request for a text; a model that thinks gets extra tokens for its thoughts."""
        can, most = self._capabilities, sampling.max_tokens
        if self._window and (needed := _estimate_chat(conversation) + most) > self._window:
            raise OverLength(
                f"this needs about {needed} tokens, including the space for the answer, and {can.server} "
                f"silently cuts what does not fit its window of {self._window}"
            )
        body: dict[str, Any] = {"model": self._model, "messages": conversation.as_dicts()}
        body[can.budget] = most + (self._options.thoughts if can.thinks else 0)
        if can.samples:
            body |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
            if sampling.temperature > 0:
                body["seed"] = sampling.seed
        if conversation.begun and can.continues == "continue_final_message":
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        return body

    def _unsent(self, sampling: Sampling) -> tuple[str, ...]:
        notes = []
        if sampling.min_p:
            notes.append("min_p was not sent: chat completions do not have this parameter")
        if not self._capabilities.samples and sampling.temperature != 1:
            notes.append("the server does not accept a temperature; its own sampling was used")
        return tuple(notes)

    async def _by_first_token(self, prompt: Prompt, options: Sequence[Option]) -> tuple[Choice | None, Usage]:
        """Choose by the first token (None if the labels are hardly listed); returns the usage too."""
        # At temperature 1, because some servers return probabilities after applying the temperature.
        conversation = self._chat(prompt)
        body = {**self._body(conversation, Sampling(temperature=1.0, max_tokens=1)), "logprobs": True}
        body["top_logprobs"] = self._capabilities.top
        body.pop("seed", None)
        answer = await self._client.post(PATH, body)
        usage = read_chat(answer).usage  # raises if a filter held the answer back or there are no choices
        tokens, notes = read_top_tokens(answer), conversation.escaping.notes
        return top_k_choice(options, tokens, usage, notes, least_mass=LEAST_MASS), usage

    async def _reply(self, prompt: Prompt, sampling: Sampling) -> Reply:
        return await self.ask(prompt, (), None, None, sampling)


class ScoringServer(ChatServer):
    """A chat server that also tokenizes chats and, if `capabilities.scores`, scores prompts of tokens."""

    async def count(self, prompt: Prompt) -> int:
        """Return the exact number of tokens, chat template included."""
        return len(await self._chat_tokens(self._chat(prompt)))

    async def choose(self, prompt: Prompt, options: Sequence[Option]) -> Choice:
        """Choose exactly if the server scores prompts; otherwise as every chat server does."""
        if self._method == "exact":
            return await self.choose_exactly(self._chat(prompt), options)
        return await super().choose(prompt, options)

    async def choose_exactly(self, conversation: Chat, options: Sequence[Option]) -> Choice:
        """Compute the probability of each option as the sum over its surfaces."""
        surfaces = [surface for option in options for surface in option.surfaces]
        prompt, *paths = await asyncio.gather(
            self._chat_tokens(conversation), *map(self._text_tokens, surfaces)
        )
        of_options = token_paths(options, dict(zip(surfaces, map(tuple, paths), strict=True)))
        logprobs, usage = {}, Usage()
        for path in sorted({*chain(*of_options)}, key=lambda path: (len(path), path)):
            scored, spent = await self._score(prompt, list(path))
            logprobs[path] = sum(each.logprob for each in scored)
            usage += spent
        notes = conversation.escaping.notes
        return exact_choice(
            options, [[logprobs[path] for path in of] for of in of_options], usage, notes=notes
        )

    async def likelihood(self, prompt: Prompt, text: str) -> Likelihood:
        """Compute each token's probability if the server scores prompts; offsets are into raw text."""
        import numpy as np

        if not self._capabilities.scores:
            return await super().likelihood(prompt, text)
        # The text is escaped together with the prompt, with the same mark, though it is tokenized separately.
        last = Message("user", (Data(text, "text"),))
        together = self._chat(Prompt((*prompt.messages, last)))
        escaping = together.escaping
        conversation = Chat(
            together.turns[: len(prompt.messages)], escaping, prompt.messages[-1].role == "assistant"
        )
        escaped = escaping.escape(text)
        tokens, answer = await asyncio.gather(self._chat_tokens(conversation), self._text_tokens(escaped))
        if not answer:
            raise SpecError(f"the server's tokenizer returns no tokens for {text[:100]!r}")
        scored, usage = await self._score(tokens, answer)
        offsets = tuple(
            (escaping.raw_offset(text, start), escaping.raw_offset(text, end))
            for start, end in offsets_of([each.decoded_token or "" for each in scored], escaped)
        )
        logprobs = np.array([min(each.logprob, 0.0) for each in scored], np.float64)
        return Likelihood(text, tuple(answer), logprobs, offsets, usage, notes=escaping.notes)

    # ------------------------------------------------------------------------------------------------

    async def _chat_tokens(self, conversation: Chat) -> list[int]:
        """Return the tokens of a chat, template included, up to where the answer begins."""
        body = {
            "model": self._model,
            "messages": conversation.as_dicts(),
            "add_generation_prompt": not conversation.begun,
            "continue_final_message": conversation.begun,
        }
        return read(_Tokens, await self._client.post("/tokenize", body), "tokenization").tokens

    async def _text_tokens(self, text: str) -> list[int]:
        """Return the tokens of a text alone."""
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        return read(_Tokens, await self._client.post("/tokenize", body), "tokenization").tokens

    async def _score(self, prompt: list[int], answer: list[int]) -> tuple[list[_Scored], Usage]:
        """Return the server's log-probabilities of the tokens of `answer` after `prompt`."""
        by_number = self._capabilities.scores == "prompt_logprobs"
        body = {
            "model": self._model,
            "prompt": [*prompt, *answer],
            "max_tokens": 1,
            "temperature": 0.0,
            **({"prompt_logprobs": 0} if by_number else {"echo": True, "logprobs": 1}),
        }
        completion = read(_Completion, await self._client.post("completions", body), "completion")
        if not completion.choices:
            raise InvalidOutput("the server's answer has no choices")
        choice = completion.choices[0]
        listed = choice.prompt_logprobs or completion.prompt_logprobs
        if listed is not None:
            scored = _by_token(listed, len(prompt), answer)
        else:
            scored = _by_echo(choice.logprobs or _Echoed(), len(prompt), len(answer))
        if len(scored) < len(answer):
            raise InvalidOutput("the server did not score every requested token")
        return scored, usage_of(completion.usage)


def _estimate_chat(conversation: Chat) -> int:
    return sum(4 + estimate_tokens(turn.text) for turn in conversation.turns)


def estimate_tokens(text: str) -> int:
    """Estimate the number of tokens of a text, rather too high: no known tokenizer needs more for prose."""
    count = 0
    for match in RUNS.finditer(text):
        run = match[0]
        count += -(-len(run) // 4) if run[0].isalpha() and run.isascii() else 1 + (not run.isascii())
    return count


# --- parsing answers -----------------------------------------------------------------------------

# Finish reasons of a complete text, and of one that ran out of tokens. Any other reason is a failure.
ENDED = ("stop", "eos", "eos_token", "end_turn", "stop_sequence", "complete")
CUT = ("length", "max_tokens", "model_length", "max_output_tokens")
FILTERED = ("content_filter", "safety", "recitation", "blocklist", "prohibited_content")
CALLS = ("tool_calls", "function_call", "tool_use")


TEXTS, THOUGHTS = ("", "text", "output_text"), ("thinking", "reasoning")  # types of message parts


class _Cached(Body):
    cached_tokens: Count | None = None


class _Reasoned(Body):
    reasoning_tokens: Any = None


class UsageBody(Body):
    """The usage that a server reports for a call."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _Cached | None = None
    completion_tokens_details: _Reasoned | None = None


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


class _Position(Body):
    top_logprobs: list[TopTokenBody] | None = None


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
    """One event of a stream: a part of a choice, or the usage. Anything else is rejected."""

    @model_validator(mode="after")
    def _is_known(self) -> _Event:
        if not self.model_fields_set & {"choices", "usage"}:
            raise ValueError("it has neither choices nor usage")
        return self


def read_chat(body: Any, *, opened: bool = False) -> Reply:
    """Return a chat completion's text, with thoughts split off. `opened` is as in `split_thinking`.

    Raises `EngineRefused` if a filter or the model refused, `InvalidOutput` if there is no text or
    something besides text, and `EngineError` if the answer broke off.
    """
    answer = read(_Chat, body, "chat completion")
    choice = _only_choice(answer)
    if choice is None:
        raise InvalidOutput("the server's answer has no choices")
    if choice.message is None:
        raise InvalidOutput("the server's answer has no message")
    return _reply([choice.message], choice.finish_reason, usage_of(answer.usage), opened)


def read_events(events: Sequence[Any], *, opened: bool = False) -> Reply:
    """Return the same as `read_chat`, from the events of a stream."""
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
        raise EngineRefused("the server's filter blocked the answer (content_filter)")
    if refusal:
        raise EngineRefused(f"the model refuses to answer: {shown(refusal)}")
    if ending in CALLS or any(each.tool_calls or each.function_call for each in messages):
        raise InvalidOutput("the model called a tool instead of answering", text)
    if others := [each.role for each in messages if each.role and each.role.lower() not in ASSISTANTS]:
        raise InvalidOutput(
            f"the answer is a message from {shown(others[0])!r}, not from the assistant", text
        )
    if not ending:
        raise EngineError("the answer is incomplete: the server did not say why it ended (finish_reason)")
    if ending not in (*ENDED, *CUT):
        raise EngineError(f"the answer is incomplete: it ended with {shown(finish)!r} (finish_reason)")
    if all(each.content is None for each in messages) and not apart:
        raise InvalidOutput("the server's answer has no text")
    thinking, text = (apart, text) if apart else split_thinking(text, opened=opened)
    return Reply(text, "length" if ending in CUT else "stop", usage, thinking)


def _only_choice(answer: _Chat) -> _Choice | None:
    """Return the one choice that was requested, or None if there is none."""
    if len(answer.choices) > 1 or any(each.index for each in answer.choices):
        raise InvalidOutput("the server returned several answers instead of one (choices)")
    return answer.choices[0] if answer.choices else None


def _text(message: _Message) -> str:
    if not isinstance(message.content, list):
        return message.content or ""
    if unread := [part.type for part in message.content if part.type not in (*TEXTS, *THOUGHTS)]:
        raise InvalidOutput(f"the answer has a part that is not text: {shown(unread[0])!r}")
    return "".join(part.text or "" for part in message.content if part.type in TEXTS)


def _thoughts(message: _Message) -> str:
    if message.reasoning_content:
        return message.reasoning_content
    return message.reasoning if isinstance(message.reasoning, str) else ""


def usage_of(usage: UsageBody | None) -> Usage:
    """Return the usage of a call, as far as the server reports it."""
    if usage is None:
        return Usage(calls=1)
    details = usage.prompt_tokens_details
    cached = (details.cached_tokens if details is not None else None) or 0
    prompt = usage.prompt_tokens or 0
    return Usage(1, prompt, min(cached, prompt), usage.completion_tokens or 0)


def read_top_tokens(body: Any) -> tuple[TopToken, ...]:
    """Return the most likely tokens at the first position of a chat completion; may be empty."""
    answer = read(_Chat, body, "chat completion")
    logprobs = answer.choices[0].logprobs if answer.choices else None
    if logprobs is None or not logprobs.content:
        return ()
    return tuple(each.value for each in logprobs.content[0].top_logprobs or ())


# --- parsing scored prompts ----------------------------------------------------------------------

PART = "�"  # the text of a token that is part of a character


class _Tokens(Body):
    tokens: list[int]


class _Scored(Body):
    logprob: Logprob
    decoded_token: str | None = None


class _Echoed(Body):
    tokens: list[str] | None = None
    token_logprobs: list[Logprob | None] | None = None


class _PromptScores(Body):
    prompt_logprobs: list[dict[str, _Scored] | None] | None = None
    logprobs: _Echoed | None = None


class _Completion(Body):
    choices: tuple[_PromptScores, ...] = ()
    prompt_logprobs: list[dict[str, _Scored] | None] | None = None
    usage: UsageBody | None = None


def offsets_of(pieces: Sequence[str], text: str) -> list[tuple[int, int]]:
    """Return half-open offsets of tokens in the text that they spell.

    Tokens that are parts of one character appear as U+FFFD. All of them get that character's offsets.
    """
    offsets: list[tuple[int, int]] = []
    start, at = 0, 0
    while at < len(pieces):
        later = at + 1
        if _is_whole(pieces[at]):
            end = start + len(pieces[at]) if text.startswith(pieces[at], start) else -1
        else:
            while later < len(pieces) and not _is_whole(pieces[later]):
                later += 1
            end = text.find(pieces[later], start) if later < len(pieces) else max(len(text), start)
        if end < 0:
            raise InvalidOutput("the server's tokens do not add up to the text", text)
        offsets += [(start, end)] * (later - at)
        start, at = end, later
    return offsets


def _is_whole(piece: str) -> bool:
    """Return whether a token's text consists of whole characters."""
    return piece != "" and PART not in piece


def _by_token(
    listed: Sequence[dict[str, _Scored] | None], start: int, answer: Sequence[int]
) -> list[_Scored]:
    """Return the scores of the tokens of `answer`, which begins at `start`; unlisted tokens are skipped."""
    places = zip(listed[start:], map(str, answer), strict=False)
    return [scores[token] for scores, token in places if scores is not None and token in scores]


def _by_echo(echoed: _Echoed, start: int, length: int) -> list[_Scored]:
    """Return the scores of the `length` tokens from `start`; tokens without a score are skipped."""
    logprobs = echoed.token_logprobs or []
    texts = echoed.tokens or [""] * len(logprobs)
    if len(texts) != len(logprobs):
        return []
    places = list(zip(logprobs, texts, strict=True))[start : start + length]
    return [_Scored(logprob=logprob, decoded_token=text) for logprob, text in places if logprob is not None]
