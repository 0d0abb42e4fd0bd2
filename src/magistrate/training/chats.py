"""Chats to learn from: a judge's question with the answer that a label calls for, and files of chats.

A file has one JSON object a line, `{"messages": [{"role", "content"}, …], "metadata": {…}}`, the shape that
tools for supervised fine-tuning read. Such tools tokenize every content together with the model's own special
tokens, so that `<|im_end|>` in a judged text would end a turn: in a file such a text has a word joiner
(U+2060) after its first character, which `restored` takes away again.
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
TEACHABLE = "faithfulness, hallucination, or a judge of your own with the labels faithful and hallucinated"

Answer = Callable[[Sample, str], str]


def asked_of(judge: Judge) -> Judge:
    """The judge that puts the question: behind a calibration, the one that was calibrated."""
    return asked_of(judge.of) if isinstance(judge, Calibrated) else judge


def answer_of(judge: Judge) -> Answer:
    """How this judge's model answers, as a function of the sample and the right label.

    Raises `SpecError` for a judge whose answer a label alone cannot write.
    """
    asked = asked_of(judge)
    if isinstance(asked, Hallucination):
        return _scored(asked)
    if isinstance(asked, Classify) and not _why_not(asked):
        return _chosen(asked)
    why = f": {_why_not(asked)}" if isinstance(asked, Classify) else ""
    raise SpecError(
        f"a label alone does not say what {spelled(judge)!r} should have answered{why}; take {TEACHABLE}"
    )


def question_of(judge: Judge, sample: Sample) -> Prompt:
    """The judge's first question about a sample, which its verdict answers."""
    return planned_calls(asked_of(judge), sample)[0].prompt


def _why_not(judge: Classify) -> str:
    """Why its answer cannot be written, empty where it can."""
    if missing := [label for label in LABELS if label not in {each.name for each in judge.criterion.labels}]:
        return f"it has no label {missing[0]!r}"
    if judge.criterion.categories:
        return "it asks once for each category"
    return "it gives its reason first" if judge.explain == "before" else ""


def _chosen(judge: Classify) -> Answer:
    """The word for each label, or the letter that stands before it in the first order that is shown."""
    labels = judge.criterion.labels
    words = {
        label.name: label.answers[0] if label.answers else letter
        for letter, label in zip(ascii_uppercase, labels, strict=False)
    }
    return lambda sample, label: words[label]


def _scored(judge: Hallucination) -> Answer:
    """The JSON of a verdict: 0 or 1, and as reasons what people marked, else no more than the label says."""

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
