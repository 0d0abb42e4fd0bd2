"""Tokenize a prompt with the model's chat template; data can never become part of the template.

The template is rendered in a sandbox with placeholders, so it never sees the texts. Its output and the
trusted parts are tokenized together, including the model's added tokens (`<|im_start|>` and so on). Each
data part is tokenized separately, by a copy of the tokenizer without added tokens, so judged text cannot
open or close a turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from magistrate.engines.models.folder import ModelCard
from magistrate.errors import EngineError, ModelError, SpecError
from magistrate.types import Prompt, Trusted

PLACEHOLDER = re.compile("\ue000([0-9]{1,9})\ue001")  # private-use characters around a part's number

MOST_SHAPES = 512  # prompt shapes whose template pieces are cached; a judge has a few


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of one origin, possibly empty: the template (`data` is None) or the data part of that name."""

    tokens: tuple[int, ...]
    data: str | None


@dataclass(frozen=True, slots=True)
class EncodedText:
    """Tokens of a text with their half-open character offsets."""

    tokens: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]


class ChatTokenizer:
    """Tokenizer and chat template of the model in `folder`, which `card` describes.

    `ends` are the ids that end a turn, the usual one first. Raises `ModelError` if there is no template.
    """

    def __init__(self, folder: Path, card: ModelCard) -> None:
        from tokenizers import Tokenizer

        if not card.chat_template:
            raise ModelError(f"{folder} has no chat template; only instruction-tuned models can be used")
        try:
            content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
            content["padding"] = content["truncation"] = None
            added = content.setdefault("added_tokens", [])
            self.json = json.dumps(content)
            self._template_tokenizer = Tokenizer.from_str(self.json)
            self._data_tokenizer = Tokenizer.from_str(json.dumps({**content, "added_tokens": []}))
            settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
            self._template = _compile_template(card.chat_template)
        except Exception as error:  # the tokenizers package raises nothing more specific
            raise ModelError(f"the tokenizer or chat template in {folder} cannot be used: {error}") from error
        self._added = frozenset(token["id"] for token in added)
        self.ends = card.eos_ids
        self._specials = _special_texts(settings)
        self._shapes: dict[tuple[object, ...], tuple[Piece, ...]] = {}

    def pieces(self, prompt: Prompt) -> list[Piece]:
        """Return the prompt's tokens in order as pieces: one per data part, and the template between them."""
        data = iter([p for m in prompt.messages for p in m.parts if not isinstance(p, Trusted)])
        found: list[Piece] = []
        for trusted in self._between(prompt):
            found.append(trusted)
            if (part := next(data, None)) is not None:
                found.append(Piece(self.encode(part.text).tokens, part.name))
        return [piece for piece in found if piece.tokens or piece.data is not None]

    def tokens(self, prompt: Prompt) -> list[int]:
        """Return all tokens of the prompt, up to where the model's answer begins."""
        return list(chain.from_iterable(piece.tokens for piece in self.pieces(prompt)))

    def encode(self, text: str) -> EncodedText:
        """Tokenize untrusted text. The result never contains an added token, whatever the characters."""
        # A lone surrogate cannot be encoded as UTF-8, which byte-level vocabularies need.
        encoding = self._data_tokenizer.encode(
            text.encode("utf-8", "replace").decode(), add_special_tokens=False
        )
        if not self._added.isdisjoint(encoding.ids):
            raise EngineError(
                "the tokenizer turned data into a special token, so this model is not safe to use"
            )
        return EncodedText(tuple(encoding.ids), tuple(encoding.offsets))

    def decode(self, tokens: list[int]) -> str:
        """Return the text of tokens without special tokens. An incomplete character becomes U+FFFD."""
        return str(self._template_tokenizer.decode(tokens, skip_special_tokens=True))

    def show(self, token: int) -> str:
        """Return one token as text; special tokens by their names."""
        return str(self._template_tokenizer.decode([token], skip_special_tokens=False))

    def _template_piece(self, text: str) -> Piece:
        return Piece(tuple(self._template_tokenizer.encode(text, add_special_tokens=False).ids), None)

    def _between(self, prompt: Prompt) -> tuple[Piece, ...]:
        """Return the template's pieces before, between and after the data parts.

        They are the same for all prompts of one shape and are cached, because rendering and tokenizing them
        takes longer than all other work on a prompt.
        """
        shape = tuple(
            (message.role, *(part.text if isinstance(part, Trusted) else None for part in message.parts))
            for message in prompt.messages
        )
        found = self._shapes.get(shape)
        if found is None:
            found = tuple(self._rendered(prompt))
            if len(self._shapes) < MOST_SHAPES:
                self._shapes[shape] = found
        return found

    def _rendered(self, prompt: Prompt) -> Iterator[Piece]:
        parts = [part for message in prompt.messages for part in message.parts]
        rendered = self._render(prompt)
        seen = [int(match[1]) for match in PLACEHOLDER.finditer(rendered)]
        if seen != list(range(len(parts))):
            raise ModelError(
                "this model's chat template drops, repeats or reorders its input: of the parts 0 to "
                f"{len(parts) - 1} it wrote {seen[:50]}. If it does not support system messages, put that "
                "text into the first user message"
            )
        trusted = ""
        for index, between in enumerate(PLACEHOLDER.split(rendered)):
            part = parts[int(between)] if index % 2 else Trusted(between)
            if isinstance(part, Trusted):
                trusted += part.text
            else:
                yield self._template_piece(trusted)
                trusted = ""
        yield self._template_piece(trusted)

    def _render(self, prompt: Prompt) -> str:
        """Render the model's template with a numbered placeholder for every part of the messages."""
        if not prompt.messages:
            raise SpecError("a prompt needs at least one message")
        number = count()
        messages = [
            {
                "role": message.role,
                "content": "".join(f"\ue000{next(number)}\ue001" for _ in message.parts),
            }
            for message in prompt.messages
        ]
        begun = messages.pop()["content"] if messages[-1]["role"] == "assistant" else ""
        try:
            rendered = self._template.render(
                messages=messages, add_generation_prompt=True, enable_thinking=False, **self._specials
            )
        except Exception as error:  # the template is untrusted code
            roles = ", ".join(message["role"] for message in messages) or "none before the answer"
            raise ModelError(f"this model's chat template rejects the messages ({roles}): {error}") from error
        return str(rendered) + begun


def _special_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return `bos_token` and similar settings as plain strings, as templates expect them."""
    texts = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = settings.get(name)
        texts[name] = value["content"] if isinstance(value, dict) else value or ""
    return texts


def _compile_template(source: str) -> Any:
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], autoescape=False
    )
    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    return environment.from_string(source)
