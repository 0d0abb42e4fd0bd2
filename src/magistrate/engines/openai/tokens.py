"""Prompts as tokens for llama.cpp's server: template and data tokenized apart, as the embedded engine does.

The server renders its template over placeholders (`/apply-template`), so that it never sees a text; what it
wrote and the trusted parts are tokenized with special tokens (`/tokenize`, `parse_special`), data without.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from magistrate.engines.openai.client import Requests
from magistrate.engines.openai.findings import Findings
from magistrate.engines.remote.foreign import Foreign, read
from magistrate.errors import EngineError, SpecError
from magistrate.types import Prompt, Trusted

PLACEHOLDER = re.compile("\ue000([0-9]{1,9})\ue001")  # private-use characters around a part's number
OPEN_THOUGHT = re.compile(r"<think(?:ing)?>\s*\Z")
KEPT = 512  # rendered templates and tokenized pieces of them that are remembered

Token = int


class _Rendered(Foreign):
    prompt: str


class _Pieces(Foreign):
    tokens: list[Token]


class _Piece(Foreign):
    id: Token
    piece: str | list[int]


class _Spelled(Foreign):
    tokens: list[_Piece]


@dataclass(frozen=True, slots=True)
class Encoded:
    """Tokens of a text, the bytes that each stands for, and its half-open character offsets."""

    tokens: tuple[Token, ...]
    offsets: tuple[tuple[int, int], ...]


class PromptTokens:
    """Turns prompts and texts into tokens by asking the server."""

    def __init__(self, client: Requests, found: Findings) -> None:
        self._client = client
        self._found = found
        self._templates: OrderedDict[Any, Any] = OrderedDict()
        self._trusted: OrderedDict[Any, Any] = OrderedDict()

    async def of(self, prompt: Prompt) -> tuple[list[Token], bool]:
        """All tokens of the prompt up to where the answer begins, and whether it has begun a thought."""
        rendered = await self._rendered(prompt)
        parts = [part for message in prompt.messages for part in message.parts]
        seen = [int(match[1]) for match in PLACEHOLDER.finditer(rendered)]
        if seen != list(range(len(parts))):
            raise SpecError(
                "the chat template of the server's model drops, repeats or reorders what it is given: of the "
                f"parts 0 to {len(parts) - 1} it wrote {seen[:50]}"
            )
        pieces, trusted = [], ""
        for index, between in enumerate(PLACEHOLDER.split(rendered)):
            part = parts[int(between)] if index % 2 else Trusted(between)
            if isinstance(part, Trusted):
                trusted += part.text
            else:
                pieces += [self._template(trusted), self.data(part.text)]
                trusted = ""
        pieces.append(self._template(trusted))
        tokens = await asyncio.gather(*pieces)
        return [*self._found.bos, *chain.from_iterable(tokens)], OPEN_THOUGHT.search(trusted) is not None

    async def data(self, text: str) -> list[Token]:
        """Tokens of untrusted text: none of them special, whatever the characters are."""
        return await self._tokens(text, special=False)

    async def special(self, text: str) -> list[Token]:
        """Tokens of template text, special ones among them."""
        return await self._tokens(text, special=True)

    async def encoded(self, text: str) -> Encoded:
        """As `data`, with where in the text each token stands."""
        clean = _encodable(text)
        lead = await self._lead()
        body = {"content": "\n" * bool(lead) + clean, "with_pieces": True, "parse_special": False}
        spelled = read(_Spelled, await self._client.post("/tokenize", body), "tokenization").tokens
        spelled = spelled[len(lead) :]
        written = [
            each.piece.encode() if isinstance(each.piece, str) else bytes(each.piece) for each in spelled
        ]
        if b"".join(written) != clean.encode():
            raise EngineError("the server's tokens do not spell the text that they are of")
        place = list(chain.from_iterable([at] * len(char.encode()) for at, char in enumerate(clean)))
        offsets, start = [], 0
        for piece in written:
            end = start + len(piece)
            offsets.append((place[start], place[end - 1] + 1) if piece else (0, 0))
            start = end
        return Encoded(tuple(each.id for each in spelled), tuple(offsets))

    # ------------------------------------------------------------------------------------------------

    async def _template(self, text: str) -> list[Token]:
        if not text:
            return []
        if (known := _recall(self._trusted, text)) is None:
            known = await self.special(text)
            _keep(self._trusted, text, known)
        return list(known)

    async def _tokens(self, text: str, *, special: bool) -> list[Token]:
        if not text:
            return []
        lead = await self._lead()
        body = {"content": "\n" * bool(lead) + _encodable(text), "parse_special": special}
        tokens = read(_Pieces, await self._client.post("/tokenize", body), "tokenization").tokens
        return tokens[len(lead) :]

    async def _lead(self) -> list[Token]:
        """What a line break before a text becomes: it takes the space that some tokenizers put first."""
        if not self._found.spaced:
            return []
        if (known := _recall(self._trusted, None)) is None:
            answer = await self._client.post("/tokenize", {"content": "\n"})
            known = read(_Pieces, answer, "tokenization").tokens
            _keep(self._trusted, None, known)
        return list(known)

    async def _rendered(self, prompt: Prompt) -> str:
        """The model's template over the prompt's messages, every part of them a numbered placeholder."""
        if not prompt.messages:
            raise SpecError("a prompt needs at least one message")
        shape = tuple((message.role, len(message.parts)) for message in prompt.messages)
        if (known := _recall(self._templates, shape)) is None:
            number = count()
            messages = [
                {"role": role, "content": "".join(f"\ue000{next(number)}\ue001" for _ in range(parts))}
                for role, parts in shape
            ]
            begun = messages.pop()["content"] if shape[-1][0] == "assistant" else ""
            known = await render(self._client, messages) + begun
            _keep(self._templates, shape, known)
        return str(known)


async def render(client: Requests, messages: list[dict[str, str]]) -> str:
    """The server's chat template over `messages`, up to where the answer begins."""
    body = {"messages": messages, "chat_template_kwargs": {"enable_thinking": False}}
    return read(_Rendered, await client.post("/apply-template", body), "rendered template").prompt


def _encodable(text: str) -> str:
    """A lone surrogate cannot be encoded as UTF-8, which every byte-level vocabulary is built on."""
    return text.encode("utf-8", "replace").decode()


def _recall(memory: OrderedDict[Any, Any], key: Any) -> Any:
    if key in memory:
        memory.move_to_end(key)
    return memory.get(key)


def _keep(memory: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    memory[key] = value
    if len(memory) > KEPT:
        memory.popitem(last=False)
