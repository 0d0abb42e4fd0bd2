"""Log-probabilities of given texts, on servers that make tokens of chats and score prompts, as vLLM does."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

from magistrate.engines.base import Choice, Likelihood, Option
from magistrate.engines.openai.client import Requests
from magistrate.engines.openai.findings import Findings
from magistrate.engines.openai.reading import Logprob, UsageBody, usage_of
from magistrate.engines.remote.foreign import Foreign, read
from magistrate.engines.remote.messages import Chat
from magistrate.errors import InvalidOutput, SpecError
from magistrate.types import Data, Message, Prompt, Usage

PART = "�"  # how a token reads that is part of a character


class _Tokens(Foreign):
    tokens: list[int]


class _Scored(Foreign):
    logprob: Logprob
    decoded_token: str | None = None


class _Echoed(Foreign):
    tokens: list[str] | None = None
    token_logprobs: list[Logprob | None] | None = None


class _Choice(Foreign):
    prompt_logprobs: list[dict[str, _Scored] | None] | None = None
    logprobs: _Echoed | None = None


class _Completion(Foreign):
    choices: tuple[_Choice, ...] = ()
    prompt_logprobs: list[dict[str, _Scored] | None] | None = None
    usage: UsageBody | None = None


class Scorer:
    """Scores texts after a chat by prompts of tokens."""

    def __init__(self, client: Requests, model: str, found: Findings) -> None:
        self._client, self._model, self._found = client, model, found

    async def tokens(self, made: Chat) -> list[int]:
        """Tokens of a chat, template included, up to where the answer begins."""
        body = {
            "model": self._model,
            "messages": made.as_dicts(),
            "add_generation_prompt": not made.begun,
            "continue_final_message": made.begun,
        }
        return read(_Tokens, await self._client.post("/tokenize", body), "tokenization").tokens

    async def of_text(self, text: str) -> list[int]:
        """Tokens of a text by itself."""
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        return read(_Tokens, await self._client.post("/tokenize", body), "tokenization").tokens

    async def choose(self, made: Chat, options: Sequence[Option]) -> Choice:
        """How probable each option is, as the sum over its surfaces' tokens."""
        surfaces = [surface for option in options for surface in option.surfaces]
        prompt, *paths = await asyncio.gather(self.tokens(made), *map(self.of_text, surfaces))
        spelled = dict(zip(surfaces, map(tuple, paths), strict=True))
        _check_apart(options, spelled)
        different = sorted(set(spelled.values()), key=lambda path: (len(path), path))
        totals, usage = {}, Usage()
        for path in different:
            scored, spent = await self._scored(prompt, list(path))
            totals[path] = sum(each.logprob for each in scored)
            usage += spent
        likeliest = max(totals.values())
        weights = [
            sum(math.exp(totals[path] - likeliest) for path in {spelled[each] for each in option.surfaces})
            for option in options
        ]
        shares = {
            option.label: weight / sum(weights) for option, weight in zip(options, weights, strict=True)
        }
        mass = min(sum(weights) * math.exp(likeliest), 1.0)
        best = max(shares, key=shares.__getitem__)
        return Choice(best, shares, mass, "exact", usage, bound=0.0, notes=made.escaping.notes)

    async def likelihood(self, prompt: Prompt, text: str, chat: Callable[[Prompt], Chat]) -> Likelihood:
        """How probable each token of `text` is; offsets are into the raw text, whatever was broken up."""
        import numpy as np

        # The text is escaped together with the prompt, by one mark, though it is tokenized apart.
        together = chat(Prompt((*prompt.messages, *chat_text(text).messages)))
        escaping = together.escaping
        made = Chat(together.turns[: len(prompt.messages)], escaping, prompt.messages[-1].role == "assistant")
        escaped = escaping.escaped(text)
        tokens, answer = await asyncio.gather(self.tokens(made), self.of_text(escaped))
        if not answer:
            raise SpecError(f"the server's tokenizer reads {text[:100]!r} as nothing at all")
        scored, usage = await self._scored(tokens, answer)
        offsets = tuple(
            (escaping.place(text, start), escaping.place(text, end))
            for start, end in offsets_of([each.decoded_token or "" for each in scored], escaped)
        )
        logprobs = np.array([min(each.logprob, 0.0) for each in scored], np.float64)
        return Likelihood(text, tuple(answer), logprobs, offsets, usage, notes=escaping.notes)

    async def _scored(self, prompt: list[int], answer: list[int]) -> tuple[list[_Scored], Usage]:
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


def chat_text(text: str) -> Prompt:
    """A text as one message of data."""
    return Prompt((Message("user", (Data(text, "text"),)),))


def offsets_of(pieces: Sequence[str], text: str) -> list[tuple[int, int]]:
    """Half-open offsets of tokens into the text that they spell.

    Tokens that are parts of one character read as U+FFFD; all of them get that character's place.
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
