"""The `Judge` protocol, what a judge may offer beside it, and the checks before a judge is asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from magistrate._deadline import check, checked
from magistrate._scratch import scratch
from magistrate.engines.base import Capability, Engine
from magistrate.types import (
    FAITHFUL,
    HALLUCINATED,
    Abstention,
    AbstentionReason,
    CalibratedOn,
    Direction,
    Outcome,
    Prompt,
    Sample,
    Scoring,
)

if TYPE_CHECKING:
    from magistrate.constraints import Constraint

FIELDS = ("input", "context", "output", "expected", "messages", "alternatives")
"""The fields of a sample that a judge can read; any other name is a key of its metadata."""

LISTS = ("context", "messages", "alternatives")

NO_LIMIT = "read as a whole, however long"
"""`JudgeInfo.long` of judges that ask no model and read any sample whole."""


@dataclass(frozen=True, slots=True)
class JudgeInfo:
    """What a judge is, for people and for recipes.

    - `direction`: whether a low score is good (`minimize`) or a high one; from `threshold` on, the verdict is
      the label of high scores. The threshold is None if something else decides.
    - `reads`: the fields of a sample that it looks at; `requires`: those without which it abstains.
    - `needs`: the capabilities that its engine must have; `kind`: whether a model decides or only code.
    - `long`: what it does with a sample that does not fit the model.
    - `prompt`, `constraint`: digests of what it asks with.
    - `fitted_to`: name and fingerprint of the only model that it may ask, if it was fitted to one's answers.
    - `lacks`: why it cannot judge as it is, empty if it can.
    - `trained_on`: the data sets whose labels it has learnt from: figures on them say little of others.
    - `calibrated_on`: what a calibration file has calibrated its scores on.
    - `models`: the models that are asked if the caller names none; the empty name is the default model.
    """

    name: str
    version: int = 1
    summary: str = ""
    labels: tuple[str, ...] = ()
    direction: Direction = "minimize"
    threshold: float | None = None
    reads: tuple[str, ...] = ("input", "context", "output")
    requires: tuple[str, ...] = ("output",)
    needs: frozenset[Capability] = frozenset()
    kind: Literal["llm", "code"] = "llm"
    long: str = "refuse"
    prompt: str = ""
    constraint: str = ""
    fitted_to: tuple[str, str] | None = None
    lacks: str = ""
    trained_on: frozenset[str] = frozenset()
    calibrated_on: CalibratedOn | None = None
    models: frozenset[str] = frozenset({""})

    @property
    def asks(self) -> bool:
        """Whether it asks an engine: a judge of code that needs nothing of one does not."""
        return self.kind == "llm" or bool(self.needs)

    @property
    def scoring(self) -> Scoring:
        """How its scores are read, as runs store it."""
        return Scoring(self.direction, self.labels, self.threshold, self.calibrated_on)

    def describe(self) -> dict[str, Any]:
        """Name, kind, direction, labels and the JSON Schema of what is read, as plain values."""
        return {
            "name": self.name,
            "version": self.version,
            "kind": self.kind,
            "direction": self.direction,
            "labels": list(self.labels),
            "input_schema": {
                "type": "object",
                "properties": {name: dict(_schema(name)) for name in self.reads},
                "required": list(self.requires),
            },
        }


def _schema(name: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string"}} if name in LISTS else {"type": "string"}


class Judge(Protocol):
    """Decides on one sample with one engine. What it raises becomes a `Failure`, never a label.

    `info` and `judge` are all that a judge needs. It may offer more: see `PlansCalls`, `MadeOfJudges`,
    `AsksJudge`, `WritesUnderConstraint`, `DescribesItself` and `FolderJudge`.
    """

    @property
    def info(self) -> JudgeInfo: ...

    async def judge(self, sample: Sample, engine: Engine) -> Outcome: ...


@runtime_checkable
class PlansCalls(Protocol):
    """A judge that says beforehand what it may ask, so that a sample that does not fit costs nothing."""

    def plan(self, sample: Sample) -> Sequence[Call]:
        """The engine calls that judging the sample may take."""


@runtime_checkable
class MadeOfJudges(Protocol):
    """A judge whose file or folder names other judges, which are made from their words."""

    def with_parts(self, make: Callable[[str], Judge]) -> Judge:
        """The same judge, with the judges that `make` makes of their words."""


@runtime_checkable
class AsksJudge(Protocol):
    """A judge that asks another one."""

    @property
    def of(self) -> Judge:
        """The judge that is asked."""


@runtime_checkable
class WritesUnderConstraint(Protocol):
    """A judge whose model writes under one constraint, whatever the sample is."""

    @property
    def constraint(self) -> Constraint:
        """What the model may write."""


@runtime_checkable
class DescribesItself(Protocol):
    """A judge that has more to say of itself than its `info` does."""

    def describe(self) -> dict[str, Any]:
        """What `info.describe()` says, and more."""


class FolderJudge:
    """Base class of judges that are loaded from a folder, as in `detector:some/folder`.

    `FOLDER_OPTION` is the option that holds the folder: its value may stand without a key. `FOLDER_FILE` is
    the file by which a folder is recognised as one of this judge, None if any folder may be one.
    """

    FOLDER_OPTION: ClassVar[str] = "folder"
    FOLDER_FILE: ClassVar[str | None] = None

    @property
    def card(self) -> str | None:
        """What the folder says for people of how it was made, None where it says nothing."""
        return None


@dataclass(frozen=True, slots=True)
class Call:
    """One engine call that a judge may make: the prompt, and at most `answer` tokens written.

    `extra` is how many tokens at most the prompt will be longer than shown, if it will hold what is not
    written yet. `engine` is None for the run's engine. `times` is how often at most something of this length
    is asked, 0 if it is asked in place of another call. An `optional` call is left out if it does not fit,
    and the verdict stands without it.
    """

    prompt: Prompt
    answer: int = 1
    extra: int = 0
    engine: Engine | None = None
    times: int = 1
    optional: bool = False


def value_of(sample: Sample, name: str) -> str | tuple[str, ...]:
    """A field as a prompt shows it: text, or several; a name that is no field is looked up in metadata."""
    if name == "messages":
        return tuple(f"{turn.role}: {turn.text}" for turn in sample.messages)
    if name == "context":
        return sample.context if any(text.strip() for text in sample.context) else ()
    if name in LISTS:
        return tuple(getattr(sample, name))
    if name in ("input", "output", "expected"):
        return getattr(sample, name) or ""
    return _text(sample.metadata.get(name))


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


# --- the checks before a judge is asked -----------------------------------------------------------

ADVICE = "To judge it in parts: windows:of=NAME or passages:of=NAME"
SPECIALS = 64  # tokens that a chat template may put around a message, at most


async def run_judge(judge: Judge, sample: Sample, engine: Engine) -> Outcome:
    """Check the sample, then judge it; an `Abstention` where a field is missing or a call does not fit."""
    check()
    info = judge.info
    for name in info.requires:
        if not present(sample, name, info.reads):
            reason, message = _missing(name, info)
            return Abstention(sample.id, info.name, reason, message)
    if short := await shortage(judge, sample, engine):
        return Abstention(sample.id, info.name, "over_length", f"{short}. {ADVICE}")
    with scratch():
        return await judge.judge(sample, engine)


def planned_calls(judge: Judge, sample: Sample) -> Sequence[Call]:
    """The calls that judging `sample` may take; none for a judge that does not plan them."""
    return tuple(judge.plan(sample)) if isinstance(judge, PlansCalls) else ()


async def shortage(judge: Judge, sample: Sample, engine: Engine, most: int = 0) -> str | None:
    """Why a call that judging `sample` may take does not fit its engine, in words; None where all do.

    `most` is how many tokens a call may take in all, 0 for as many as the engine's window has. Computes
    nothing but tokens.
    """
    for call in checked(planned_calls(judge, sample), 1):
        if not call.optional and (short := await unfit(call, engine, most)):
            return short
    return None


async def unfit(call: Call, engine: Engine, most: int = 0) -> str | None:
    """Why one call does not fit its engine, in words; None where it does."""
    asked = call.engine or engine
    window = min(asked.info.context_window, most or asked.info.context_window)
    room = window - call.answer - call.extra
    # A token stands for one byte at least, so that most prompts need not be counted to be known to fit.
    length = sum(len(part.text.encode("utf-8", "replace")) for m in call.prompt.messages for part in m.parts)
    if length + SPECIALS * (len(call.prompt.messages) + 1) <= room:
        return None
    tokens = await asked.count(call.prompt)
    if tokens <= room:
        return None
    what = "the limit" if window < asked.info.context_window else f"the context window of {asked.info.model}"
    return (
        f"a step takes {tokens + call.extra:,} tokens and {call.answer:,} for its answer; {what} is "
        f"{window:,}. Nothing was asked"
    )


def present(sample: Sample, name: str, reads: Sequence[str]) -> bool:
    """Whether a sample has anything but white space in a field.

    What was said before counts as context for a judge that `reads` it.
    """
    said = name == "context" and "messages" in reads
    value = sample.sources if said else value_of(sample, name)
    if isinstance(value, str):
        return bool(value.strip())
    return any(text.strip() for text in value)


def _missing(name: str, info: JudgeInfo) -> tuple[AbstentionReason, str]:
    if name == "context":
        told = f"judge {info.name!r} reads a context, and the sample has none"
        if set(info.labels) == {FAITHFUL, HALLUCINATED}:
            told += "; 'hallucination' does without"
        return "no_context", told
    if name == "output":
        return "no_output", "the output is empty: nothing was said that could be judged"
    return "missing_input", f"judge {info.name!r} reads {name!r}, and the sample has none"
