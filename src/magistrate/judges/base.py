"""The `Judge` protocol: a frozen dataclass with one async method, and what a judge may offer beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from magistrate.engines.base import Capability, Engine
from magistrate.types import CalibratedOn, Direction, Outcome, Prompt, Sample, Scoring

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

    `info` and `judge` are all that a judge needs. It may offer more: see `PlansCalls`, `MadeOfJudges` and
    `FolderJudge`.
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
