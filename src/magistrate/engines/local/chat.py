"""From a prompt to tokens: the model's own chat template, with data that can never become template.

The template is rendered over placeholders in a sandbox. What it wrote around them is tokenized with
the model's added tokens (`<|im_start|>` and so on); what stands in their places is tokenized by a
twin that has no added tokens, so text on trial cannot open or close a turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from magistrate.engines.catalog import ModelCard
from magistrate.errors import EngineError, MissingExtra, ModelError, SpecError
from magistrate.types import Data, Message, Part, Prompt, Trusted

OPEN, CLOSE = "\ue000", "\ue001"  # private-use characters; refused in trusted text
PLACEHOLDER = re.compile(f"{OPEN}([0-9]+){CLOSE}")


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of tokens of one origin: the template (`data` is None) or the data part so named."""

    tokens: tuple[int, ...]
    data: str | None


@dataclass(frozen=True, slots=True)
class EncodedText:
    """Tokens of a text with the half-open character offsets of each."""

    tokens: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]


class ChatTokenizer:
    """Tokenizer and chat template of a model folder; `card` is what the folder says of itself.

    `ends` are the ids that end a turn, the usual one first. Raises `ModelError` where there is no
    template.
    """

    def __init__(self, folder: Path, card: ModelCard) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtra("tokenizers", "local") from None
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        content = json.loads(text)
        content["padding"] = content["truncation"] = None
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        self._added = frozenset(token["id"] for token in content["added_tokens"])
        self._template_tokenizer = Tokenizer.from_str(json.dumps(content))
        self._data_tokenizer = Tokenizer.from_str(json.dumps({**content, "added_tokens": []}))
        self.json = json.dumps(content)
        self.ends = card.eos_ids
        self._specials = _special_texts(settings)
        if not card.chat_template:
            raise ModelError(f"{folder} has no chat template; only instruction-tuned models can judge")
        self._template = _compile_template(card.chat_template)

    def pieces(self, prompt: Prompt) -> list[Piece]:
        """The prompt's tokens by origin, in order; template pieces and data pieces alternate freely."""
        parts: list[Part] = []
        rendered = self._render(prompt, parts)
        found: list[Piece] = []
        end = 0
        seen = []
        for match in PLACEHOLDER.finditer(rendered):
            found.append(self._template_piece(rendered[end : match.start()]))
            part = parts[int(match[1])]
            found.append(Piece(self.encode(part.text).tokens, part.name if isinstance(part, Data) else None))
            seen.append(int(match[1]))
            end = match.end()
        found.append(self._template_piece(rendered[end:]))
        if seen != list(range(len(parts))):
            raise ModelError(
                "the model's chat template drops, repeats or reorders messages, so data cannot be kept apart "
                f"from it: of {len(parts)} parts it wrote {seen}"
            )
        return [piece for piece in found if piece.tokens]

    def tokens(self, prompt: Prompt) -> list[int]:
        """All tokens of the prompt, up to where the model's answer begins."""
        return list(chain.from_iterable(piece.tokens for piece in self.pieces(prompt)))

    def encode(self, text: str) -> EncodedText:
        """Tokens of untrusted text: no added token can appear, whatever the characters are."""
        # A lone surrogate cannot be encoded as UTF-8, which every byte-level vocabulary is built on.
        encoding = self._data_tokenizer.encode(
            text.encode("utf-8", "replace").decode(), add_special_tokens=False
        )
        if not self._added.isdisjoint(encoding.ids):
            raise EngineError(
                "the tokenizer turned data into a special token; this model cannot judge safely"
            )
        return EncodedText(tuple(encoding.ids), tuple(encoding.offsets))

    def decode(self, tokens: list[int]) -> str:
        """Text of tokens, special tokens left out; an unfinished character reads as U+FFFD."""
        return str(self._template_tokenizer.decode(tokens, skip_special_tokens=True))

    def show(self, token: int) -> str:
        """One token as text, special tokens by their names."""
        return str(self._template_tokenizer.decode([token], skip_special_tokens=False))

    def _template_piece(self, text: str) -> Piece:
        return Piece(tuple(self._template_tokenizer.encode(text, add_special_tokens=False).ids), None)

    def _render(self, prompt: Prompt, parts: list[Part]) -> str:
        if not prompt.messages:
            raise SpecError("a prompt needs at least one message")
        *turns, last = prompt.messages
        if last.role != "assistant":
            turns, last = [*turns, last], Message("assistant", ())
        messages = [{"role": turn.role, "content": _placeholders(turn, parts)} for turn in turns]
        rendered = self._template.render(
            messages=messages, add_generation_prompt=True, enable_thinking=False, **self._specials
        )
        return str(rendered) + _placeholders(last, parts)


def _placeholders(message: Message, parts: list[Part]) -> str:
    """The message's trusted text with a numbered placeholder for every data part."""
    text = []
    for part in message.parts:
        if isinstance(part, Trusted):
            if OPEN in part.text:
                raise SpecError("template text must not contain the private-use character U+E000")
            text.append(part.text)
        else:
            text.append(f"{OPEN}{len(parts)}{CLOSE}")
            parts.append(part)
    return "".join(text)


def _special_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and its like as templates expect them, plain strings."""
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
