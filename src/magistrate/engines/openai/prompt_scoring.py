"""Servers that turn chats into tokens and score prompts, as vLLM does: exact choices and likelihoods."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from magistrate.engines.base import Choice, Likelihood, Option
from magistrate.engines.openai.chat_completions import ChatServer, Logprob, UsageBody, usage_of
from magistrate.engines.remote.label_choice import exact_choice
from magistrate.engines.remote.messages import Chat
from magistrate.engines.remote.replies import Body, read
from magistrate.errors import InvalidOutput, SpecError
from magistrate.types import Data, Message, Prompt, Usage

PART = "�"  # the text of a token that is part of a character


class _Tokens(Body):
    tokens: list[int]


class _Scored(Body):
    logprob: Logprob
    decoded_token: str | None = None


class _Echoed(Body):
    tokens: list[str] | None = None
    token_logprobs: list[Logprob | None] | None = None


class _Choice(Body):
    prompt_logprobs: list[dict[str, _Scored] | None] | None = None
    logprobs: _Echoed | None = None


class _Completion(Body):
    choices: tuple[_Choice, ...] = ()
    prompt_logprobs: list[dict[str, _Scored] | None] | None = None
    usage: UsageBody | None = None


class ScoringServer(ChatServer):
    """A chat server that also tokenizes chats, and, if `found.scores`, scores prompts of tokens."""

    async def count(self, prompt: Prompt) -> int:
        """Exactly, chat template included."""
        return len(await self._chat_tokens(self._chat(prompt)))

    async def choose(self, prompt: Prompt, options: Sequence[Option]) -> Choice:
        """The exact choice if the server scores prompts; otherwise as every chat server."""
        if self._method == "exact":
            return await self.choose_exactly(self._chat(prompt), options)
        return await super().choose(prompt, options)

    async def choose_exactly(self, made: Chat, options: Sequence[Option]) -> Choice:
        """How probable each option is, as the sum over its surfaces' tokens."""
        surfaces = [surface for option in options for surface in option.surfaces]
        prompt, *paths = await asyncio.gather(self._chat_tokens(made), *map(self._text_tokens, surfaces))
        spelled = dict(zip(surfaces, map(tuple, paths), strict=True))
        _check_apart(options, spelled)
        totals, usage = {}, Usage()
        for path in sorted(set(spelled.values()), key=lambda path: (len(path), path)):
            scored, spent = await self._score(prompt, list(path))
            totals[path] = sum(each.logprob for each in scored)
            usage += spent
        own = [{spelled[surface] for surface in option.surfaces} for option in options]
        return exact_choice(
            options, [[totals[path] for path in each] for each in own], usage, made.escaping.notes
        )

    async def likelihood(self, prompt: Prompt, text: str) -> Likelihood:
        """How probable each token of `text` is, if the server scores prompts; offsets are into raw text."""
        import numpy as np

        if not self._found.scores:
            return await super().likelihood(prompt, text)
        # The text is escaped together with the prompt, by one mark, though it is tokenized apart.
        last = Message("user", (Data(text, "text"),))
        together = self._chat(Prompt((*prompt.messages, last)))
        escaping = together.escaping
        made = Chat(together.turns[: len(prompt.messages)], escaping, prompt.messages[-1].role == "assistant")
        escaped = escaping.escape(text)
        tokens, answer = await asyncio.gather(self._chat_tokens(made), self._text_tokens(escaped))
        if not answer:
            raise SpecError(f"the server's tokenizer reads {text[:100]!r} as nothing at all")
        scored, usage = await self._score(tokens, answer)
        offsets = tuple(
            (escaping.raw_offset(text, start), escaping.raw_offset(text, end))
            for start, end in offsets_of([each.decoded_token or "" for each in scored], escaped)
        )
        logprobs = np.array([min(each.logprob, 0.0) for each in scored], np.float64)
        return Likelihood(text, tuple(answer), logprobs, offsets, usage, notes=escaping.notes)

    # ------------------------------------------------------------------------------------------------

    async def _chat_tokens(self, made: Chat) -> list[int]:
        """Tokens of a chat, template included, up to where the answer begins."""
        body = {
            "model": self._model,
            "messages": made.as_dicts(),
            "add_generation_prompt": not made.begun,
            "continue_final_message": made.begun,
        }
        return read(_Tokens, await self._client.post("/tokenize", body), "tokenization").tokens

    async def _text_tokens(self, text: str) -> list[int]:
        """Tokens of a text by itself."""
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        return read(_Tokens, await self._client.post("/tokenize", body), "tokenization").tokens

    async def _score(self, prompt: list[int], answer: list[int]) -> tuple[list[_Scored], Usage]:
        """Log-probabilities of the tokens of `answer` after `prompt`, as the server read them."""
        asked: dict[str, Any] = (
            {"prompt_logprobs": 0}
            if self._found.scores == "prompt_logprobs"
            else {"echo": True, "logprobs": 1}
        )
        body = {
            "model": self._model,
            "prompt": [*prompt, *answer],
            "max_tokens": 1,
            "temperature": 0.0,
            **asked,
        }
        found = read(_Completion, await self._client.post("completions", body), "completion")
        if not found.choices:
            raise InvalidOutput("the server's answer has no choices")
        usage = usage_of(found.usage)
        first = found.choices[0]
        listed = first.prompt_logprobs or found.prompt_logprobs
        if listed is not None:
            return _by_token(listed, len(prompt), answer), usage
        return _by_echo(first.logprobs, len(prompt), len(answer)), usage


def offsets_of(pieces: Sequence[str], text: str) -> list[tuple[int, int]]:
    """Half-open offsets of tokens into the text that they spell.

    Tokens that are parts of one character appear as U+FFFD; all of them get that character's offsets.
    """
    offsets: list[tuple[int, int]] = []
    place, at = 0, 0
    while at < len(pieces):
        piece = pieces[at]
        if piece and PART not in piece and text.startswith(piece, place):
            offsets.append((place, place + len(piece)))
            place += len(piece)
            at += 1
            continue
        if piece and PART not in piece:
            raise InvalidOutput("the server's tokens do not spell the text that they are of", text)
        end = next(
            (later for later in range(at + 1, len(pieces)) if pieces[later] and PART not in pieces[later]),
            len(pieces),
        )
        found = text.find(pieces[end], place) if end < len(pieces) else len(text)
        if found < 0:
            raise InvalidOutput("the server's tokens do not spell the text that they are of", text)
        offsets += [(place, max(found, place))] * (end - at)
        place, at = max(found, place), end
    return offsets


def _by_token(
    listed: Sequence[dict[str, _Scored] | None], start: int, answer: Sequence[int]
) -> list[_Scored]:
    scored = []
    for at, token in enumerate(answer, start):
        found = listed[at] if at < len(listed) else None
        if found is None or str(token) not in found:
            raise InvalidOutput("the server did not score every token that it was asked about")
        scored.append(found[str(token)])
    return scored


def _by_echo(echoed: _Echoed | None, start: int, length: int) -> list[_Scored]:
    logprobs = (echoed.token_logprobs if echoed is not None else None) or []
    texts = (echoed.tokens if echoed is not None else None) or [""] * len(logprobs)
    part = logprobs[start : start + length]
    if len(part) < length or len(texts) != len(logprobs) or any(each is None for each in part):
        raise InvalidOutput("the server did not score every token that it was asked about")
    return [
        _Scored(logprob=logprob, decoded_token=token)
        for logprob, token in zip(part, texts[start : start + length], strict=True)
        if logprob is not None
    ]


def _check_apart(options: Sequence[Option], spelled: dict[str, tuple[int, ...]]) -> None:
    """Refuse options that are the same tokens, or of which one begins another: no end is known here."""
    for option in options:
        for surface in option.surfaces:
            path = spelled[surface]
            for other in options:
                paths = [spelled[each] for each in other.surfaces]
                begun = other is not option and any(each[: len(path)] == path for each in paths)
                if not path or begun:
                    raise SpecError(
                        f"the surface {surface!r} of option {option.label!r} is nothing to this model's "
                        "tokenizer, or begins another option's; spell one differently"
                    )
