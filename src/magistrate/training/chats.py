"""Training chats: a judge's question with the answer that a label calls for, and files of chats.

A file has one JSON object per line, `{"messages": [{"role", "content"}, …], "metadata": {…}}`, the format
that tools for supervised fine-tuning read. Such tools tokenize every content together with the model's
special tokens, so that `<|im_end|>` in a judged text would end a turn. In a file such a text therefore has a
word joiner (U+2060) after its first character, which `restored` removes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magistrate.errors import DatasetError, SpecError
from magistrate.judges.base import Judge, planned_calls
from magistrate.judges.calibrated import Calibrated
from magistrate.judges.classify import Classify
from magistrate.judges.hallucination import Hallucination
from magistrate.judges.registry import spelled
from magistrate.types import FAITHFUL, HALLUCINATED, Prompt, Sample

LABELS = (FAITHFUL, HALLUCINATED)
SUPPORTED = "Nothing in it goes beyond the context."
UNSUPPORTED = "Not all of it is supported by the context."
TEACHABLE = "faithfulness, hallucination, or your own judge with the labels faithful and hallucinated"

Answer = Callable[[Sample, str], str]


def asked_of(judge: Judge) -> Judge:
    """Return the judge that calls the model: the inner judge of a calibrated one, else the judge itself."""
    return asked_of(judge.of) if isinstance(judge, Calibrated) else judge


def answer_of(judge: Judge) -> Answer:
    """Return a function from a sample and the right label to the answer that this judge's model should give.

    Raises `SpecError` for a judge whose answer does not follow from a label alone.
    """
    asked = asked_of(judge)
    if isinstance(asked, Hallucination):
        return _scored(asked)
    if isinstance(asked, Classify) and not _why_not(asked):
        return _chosen(asked)
    why = f": {_why_not(asked)}" if isinstance(asked, Classify) else ""
    raise SpecError(
        f"a label alone does not determine the answer of {spelled(judge)!r}{why}; use {TEACHABLE}"
    )


def question_of(judge: Judge, sample: Sample) -> Prompt:
    """Return the judge's first prompt about a sample, which its verdict answers."""
    return planned_calls(asked_of(judge), sample)[0].prompt


def _why_not(judge: Classify) -> str:
    """Return why the answer does not follow from a label; empty if it does."""
    if missing := [label for label in LABELS if label not in {each.name for each in judge.criterion.labels}]:
        return f"it has no label {missing[0]!r}"
    if judge.criterion.categories:
        return "it asks once for each category"
    return "it gives its reason first" if judge.explain == "before" else ""


def _chosen(judge: Classify) -> Answer:
    """Answer with the word for each label, or with the letter before it in the first order shown."""
    labels = judge.criterion.labels
    words = {
        label.name: label.answers[0] if label.answers else letter
        for letter, label in zip(ascii_uppercase, labels, strict=False)
    }
    return lambda sample, label: words[label]


def _scored(judge: Hallucination) -> Answer:
    """Answer with the JSON of a verdict: a score of 0 or 1, with marked spans or a stock reason."""

    def written(sample: Sample, label: str) -> str:
        reasons = _reasons(sample, judge) if label == HALLUCINATED else [SUPPORTED]
        fields = {
            "reasons": [each[: judge.most_characters] for each in reasons],
            "score": int(label != FAITHFUL),
        }
        names = ("reasons", "score") if judge.order == "reasons_first" else ("score", "reasons")
        return json.dumps({name: fields[name] for name in names}, ensure_ascii=False, separators=(",", ":"))

    return written


def _reasons(sample: Sample, judge: Hallucination) -> list[str]:
    output, found = sample.output or "", list[str]()
    room = judge.most_characters - 24
    for span in sample.spans[: judge.most_reasons]:
        quote = " ".join(output[span.start : span.end].split())
        if quote and room > 8:
            found.append(f"not supported: {quote if len(quote) <= room else quote[: room - 1] + '…'}")
    return found or [UNSUPPORTED]


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
    """Messages as (role, text), the last of which is the assistant's answer to learn; texts are unescaped."""

    messages: tuple[tuple[Role, str], ...]
    metadata: dict[str, Any] = field(default_factory=dict)


def escaped(text: str) -> tuple[str, list[str]]:
    """Return a text in which nothing reads as a special token, and the special tokens that were found.

    >>> escaped("Stop <|im_end|> here")[1]
    ['<|im_end|>']
    """
    found = [text[match.start() : _END.search(text, match.end()).end()] for match in _SPECIAL.finditer(text)]  # type: ignore[union-attr]
    return _SPECIAL.sub(rf"\g<open>{JOINER}\g<joined>", text), found


def restored(text: str) -> str:
    """Undo `escaped`.

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
    """Yield the chats of a JSONL file. Raises `DatasetError` with the number of an invalid line."""
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
            f"{where} is not a chat ({at or 'it'}: {first['msg']}); 'magistrate export RUN --format sft' "
            "writes chats"
        ) from None
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{where} is not JSON: {error}") from None
    if row.messages[-1].role != "assistant" or not row.messages[-1].content:
        raise DatasetError(f"{where} does not end with an answer of the assistant")
    return Chat(tuple((each.role, restored(each.content)) for each in row.messages), row.metadata)
