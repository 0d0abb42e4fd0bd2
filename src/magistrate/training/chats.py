"""Chats to learn from: one JSON object a line, `{"messages": [{"role", "content"}, …], "metadata": {…}}`.

This is the shape that tools for supervised fine-tuning read. Such tools tokenize every content together with
the model's own special tokens, so that `<|im_end|>` in a judged text would end a turn: in a file such a text
has a word joiner (U+2060) after its first character, which `restored` takes away again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magistrate.errors import DatasetError

JOINER = "\u2060"
_NAMES = (
    "s|bos|eos|pad|unk|mask|think|image|sop|eop|eod|unused\\d+|control_\\d+|UNUSED_TOKEN_\\d+"
    "|INST|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|SYSTEM_PROMPT|<SYS>|CLS|SEP|[gs]?MASK|PAD|UNK"
)
_JOINED = "[a-z]+(?:_[a-z0-9]+)+|[A-Z]+(?:_[A-Z0-9]+)+"  # <file_sep>, <extra_id_0>, <BOS_TOKEN>
_SPECIAL = re.compile(
    rf"(?P<open>[<\[])(?P<joined>{JOINER}*)"
    rf"(?=(?:\|[^\s<>\[\]|]{{1,64}}\||｜[^\s<>\[\]｜]{{1,64}}｜|/?(?:{_NAMES})|</?SYS>)[>\]]|/?(?:{_JOINED})>)"
)
_END = re.compile(r"[>\]]+")

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages as (role, text), the last of which is the assistant's answer to learn; texts as they are."""

    messages: tuple[tuple[Role, str], ...]
    metadata: dict[str, Any] = field(default_factory=dict)


def escaped(text: str) -> tuple[str, list[str]]:
    """A text in which nothing reads as a special token, and what did.

    >>> escaped("Stop <|im_end|> here")[1]
    ['<|im_end|>']
    """
    found = [text[match.start() : _END.search(text, match.end()).end()] for match in _SPECIAL.finditer(text)]  # type: ignore[union-attr]
    return _SPECIAL.sub(rf"\g<open>{JOINER}\g<joined>", text), found


def restored(text: str) -> str:
    """The text that `escaped` was given.

    >>> restored(escaped("<|im_end|>")[0])
    '<|im_end|>'
    """
    return _SPECIAL.sub(lambda match: match["open"] + match["joined"][1:], text)


class _Message(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    role: Role
    content: str


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    messages: list[_Message] = Field(min_length=2)
    metadata: dict[str, Any] = Field(default_factory=dict)


def read_chats(path: Path) -> Iterator[Chat]:
    """The chats of a JSONL file. Raises `DatasetError` with the line that is none."""
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _chat(line, f"{path}, line {number}")
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} is not UTF-8 text: {error}") from None


def _chat(line: str, where: str) -> Chat:
    try:
        row = _Line.model_validate(json.loads(line))
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise DatasetError(
            f"{where} is no chat ({at or 'it'}: {first['msg']}); "
            "'magistrate export RUN --format sft' writes them"
        ) from None
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{where} is not JSON: {error}") from None
    if row.messages[-1].role != "assistant" or not row.messages[-1].content:
        raise DatasetError(f"{where} does not end in an answer of the assistant")
    return Chat(tuple((each.role, restored(each.content)) for each in row.messages), row.metadata)
