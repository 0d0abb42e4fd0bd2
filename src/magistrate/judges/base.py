"""The `Judge` protocol, the checks before a judge runs, and what judges share: labels, claims, heat maps."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

from magistrate._work import check, checked, scratch
from magistrate.engines.base import Capability, Engine
from magistrate.errors import InvalidOutput, SpecError
from magistrate.types import (
    FAITHFUL,
    HALLUCINATED,
    Abstention,
    AbstentionReason,
    CalibratedOn,
    Claim,
    Direction,
    Failure,
    Outcome,
    Prompt,
    Sample,
    Scoring,
    Span,
    Verdict,
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
    """Description of a judge, for people and for recipes.

    - `direction`: whether a low score is good (`minimize`) or a high one. At `threshold` and above, the
      verdict is the label of high scores. The threshold is None if the label is decided in another way.
    - `reads`: the fields of a sample that the judge uses; `requires`: the fields without which it abstains.
    - `needs`: the capabilities that its engine must have; `kind`: whether a model decides or only code.
    - `long`: what the judge does with a sample that does not fit the model.
    - `prompt`, `constraint`: digests of the prompt and of the output constraint.
    - `fitted_to`: name and fingerprint of the only model it may use, if it was fitted to one model's
      answers.
    - `lacks`: why the judge cannot be used as configured; empty if it can.
    - `trained_on`: the data sets it was trained on. Its results on them do not carry over to other data.
    - `calibrated_on`: the data that a calibration file was fitted to.
    - `models`: the models to use if the caller names none; the empty name is the default model.
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
        """Whether the judge calls an engine. A judge of code that needs no capabilities does not."""
        return self.kind == "llm" or bool(self.needs)

    @property
    def scoring(self) -> Scoring:
        """How to read its scores, in the form that runs store."""
        return Scoring(self.direction, self.labels, self.threshold, self.calibrated_on)

    def describe(self) -> dict[str, Any]:
        """Return name, kind, direction, labels and the JSON Schema of the fields read, as plain values."""
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
    """Decides on one sample with one engine. Its exceptions become a `Failure`, never a label.

    A judge needs only `info` and `judge`. Optional protocols: `PlansCalls`, `MadeOfJudges`, `AsksJudge`,
    `WritesUnderConstraint`, `DescribesItself` and `FolderJudge`.
    """

    @property
    def info(self) -> JudgeInfo: ...

    async def judge(self, sample: Sample, engine: Engine) -> Outcome: ...


@runtime_checkable
class PlansCalls(Protocol):
    """A judge that lists its engine calls in advance, so that a sample that does not fit costs nothing."""

    def plan(self, sample: Sample) -> Sequence[Call]:
        """Return the engine calls that judging the sample may make."""


@runtime_checkable
class MadeOfJudges(Protocol):
    """A judge whose file or folder names other judges, which are built from their specifications."""

    def with_parts(self, make: Callable[[str], Judge]) -> Judge:
        """Return a copy of this judge whose parts are built by calling `make` with their specifications."""


@runtime_checkable
class AsksJudge(Protocol):
    """A judge that wraps another judge."""

    @property
    def of(self) -> Judge:
        """The wrapped judge."""


@runtime_checkable
class WritesUnderConstraint(Protocol):
    """A judge whose model writes under one constraint, the same for all samples."""

    @property
    def constraint(self) -> Constraint:
        """The constraint on the model's text."""


@runtime_checkable
class DescribesItself(Protocol):
    """A judge whose description has more than its `info`."""

    def describe(self) -> dict[str, Any]:
        """Return `info.describe()` with further keys."""


class FolderJudge:
    """Base class of judges that are loaded from a folder, as in `detector:some/folder`.

    `FOLDER_OPTION` is the option that holds the folder; its value may be given without a key. `FOLDER_FILE`
    is the file that identifies a folder of this judge, None if any folder may be one.
    """

    FOLDER_OPTION: ClassVar[str] = "folder"
    FOLDER_FILE: ClassVar[str | None] = None

    @property
    def card(self) -> str | None:
        """The folder's description of how it was made, for people; None if it has none."""
        return None


@dataclass(frozen=True, slots=True)
class Call:
    """One engine call that a judge may make: the prompt, and at most `answer` tokens written.

    `extra` is the most tokens by which the real prompt can be longer than this one, if parts of it are not
    written yet. `engine` is None for the run's engine. `times` is how often at most a call of this length
    is made, 0 if it replaces another call. An `optional` call is skipped if it does not fit, and the
    verdict stands without it.
    """

    prompt: Prompt
    answer: int = 1
    extra: int = 0
    engine: Engine | None = None
    times: int = 1
    optional: bool = False


def value_of(sample: Sample, name: str) -> str | tuple[str, ...]:
    """Return a field as prompts show it: a text or several. Other names are looked up in metadata."""
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


# --- checks before a judge runs -------------------------------------------------------------------

ADVICE = "To judge it in parts, use windows:of=NAME or passages:of=NAME"
SPECIALS = 64  # tokens that a chat template may put around a message, at most


async def run_judge(judge: Judge, sample: Sample, engine: Engine) -> Outcome:
    """Check the sample, judge it, and check what comes back.

    Returns an `Abstention` for a missing field or a call too long. Raises `InvalidOutput` for anything that
    is no outcome, a score that is not in [0, 1], and a label that the judge does not declare.
    """
    check()
    info = judge.info
    for name in info.requires:
        if not present(sample, name, info.reads):
            reason, message = _missing(name, info)
            return Abstention(sample.id, info.name, reason, message)
    if short := await shortage(judge, sample, engine):
        return Abstention(sample.id, info.name, "over_length", f"{short}. {ADVICE}")
    with scratch():
        return _checked(await judge.judge(sample, engine), info)


def _checked(outcome: Outcome, info: JudgeInfo) -> Outcome:
    if not isinstance(outcome, Verdict | Failure | Abstention):
        told = f"the judge returned {type(outcome).__name__}, not a Verdict, Failure or Abstention"
    elif not isinstance(outcome, Verdict):
        return outcome
    elif not 0 <= outcome.score <= 1:
        told = f"the judge's score is {outcome.score}; it must be in [0, 1]"
    elif info.labels and outcome.label not in info.labels:
        told = f"the judge's label is {outcome.label!r}; its labels are {', '.join(info.labels)}"
    else:
        return outcome
    raise InvalidOutput(told, str(outcome))


def planned_calls(judge: Judge, sample: Sample) -> Sequence[Call]:
    """Return the calls that judging `sample` may make; empty for a judge that does not plan them."""
    return tuple(judge.plan(sample)) if _plans(type(judge)) else ()  # type: ignore[attr-defined]


@cache
def _plans(kind: type) -> bool:
    """Return whether judges of this class are `PlansCalls`; looking it up costs more than a quick judge."""
    return issubclass(kind, PlansCalls)


async def shortage(judge: Judge, sample: Sample, engine: Engine, most: int = 0) -> str | None:
    """Return why a call for `sample` does not fit its engine, as a message; None if all calls fit.

    `most` limits the tokens of a call, 0 for the engine's context window. Only counts tokens: no model is
    run.
    """
    for call in checked(planned_calls(judge, sample), 1):
        if not call.optional and (short := await unfit(call, engine, most)):
            return short
    return None


async def unfit(call: Call, engine: Engine, most: int = 0) -> str | None:
    """Return why one call does not fit its engine, as a message; None if it fits."""
    asked = call.engine or engine
    window = min(asked.info.context_window, most or asked.info.context_window)
    room = window - call.answer - call.extra
    # A token covers at least one byte, so most prompts fit by their byte count and need no tokenizing.
    length = sum(len(part.text.encode("utf-8", "replace")) for m in call.prompt.messages for part in m.parts)
    if length + SPECIALS * (len(call.prompt.messages) + 1) <= room:
        return None
    tokens = await asked.count(call.prompt)
    if tokens <= room:
        return None
    what = "the limit" if window < asked.info.context_window else f"the context window of {asked.info.model}"
    return (
        f"a call needs {tokens + call.extra:,} tokens and {call.answer:,} for its answer, but {what} is "
        f"{window:,}. The model was not asked"
    )


def present(sample: Sample, name: str, reads: Sequence[str]) -> bool:
    """Return whether a field of a sample has anything but white space.

    For a judge that `reads` messages, earlier messages count as context.
    """
    said = name == "context" and "messages" in reads
    value = sample.sources if said else value_of(sample, name)
    if isinstance(value, str):
        return bool(value.strip())
    return any(text.strip() for text in value)


def _missing(name: str, info: JudgeInfo) -> tuple[AbstentionReason, str]:
    if name == "context":
        told = f"judge {info.name!r} needs a context, but the sample has none"
        if set(info.labels) == {FAITHFUL, HALLUCINATED}:
            told += "; the judge 'hallucination' needs none"
        return "no_context", told
    if name == "output":
        return "no_output", "the output is empty, so there is nothing to judge"
    return "missing_input", f"judge {info.name!r} needs {name!r}, but the sample has none"


# --- what judges of faithfulness share -------------------------------------------------------------

LABELS = (FAITHFUL, HALLUCINATED)
READS = ("context", "messages", "input", "output")
"""The fields of a sample that a judge of faithfulness looks at."""


def check_threshold(threshold: float, *, one: bool = False) -> None:
    """Raise `SpecError` for a threshold outside (0, 1), or outside (0, 1] if `one` is allowed."""
    if not (0 < threshold < 1 or (one and threshold == 1)):
        raise SpecError(f"threshold must be in (0, 1{']' if one else ')'}, got {threshold}")


def label_of(score: float, threshold: float) -> str:
    """Return the label of a score; 1 is the worst score."""
    return HALLUCINATED if score >= threshold else FAITHFUL


def probability_of(label: str, score: float) -> float:
    """Return the probability of a label, given the probability of `hallucinated`."""
    return score if label == HALLUCINATED else 1 - score


def unsupported(text: str, start: int, end: int, reasoning: str, probability: float | None = None) -> Claim:
    """Return the claim that the context does not support characters `[start, end)` of an output."""
    return Claim(
        "unsupported",
        Span(start, end),
        reasoning=reasoning,
        probability=probability,
        output_text=text[start:end],
    )


def heat_map(
    name: str, unit: str, text: str, pieces: Sequence[Sequence[Any]], *, low: float = 0.0, high: float = 1.0
) -> dict[str, object]:
    """Return a heat map of a text, for `details["heat"]`; a piece is `[start, end, value]`.

    `low` and `high` are the ends of the colour scale.
    """
    return {"name": name, "unit": unit, "low": low, "high": high, "text": text, "pieces": list(pieces)}


def absolute(path: str | Path) -> Path:
    """Return an option's path as an absolute one, so that a change of the working directory has no effect."""
    return Path(path).expanduser().absolute()


def check_binary(info: JudgeInfo, who: str) -> None:
    """Raise `SpecError` for a judge whose labels are not faithful and hallucinated."""
    if set(info.labels) != {FAITHFUL, HALLUCINATED}:
        raise SpecError(
            f"{who} needs a judge with the labels {FAITHFUL!r} and {HALLUCINATED!r}; {info.name!r} has "
            f"{', '.join(info.labels) or 'none'}"
        )
