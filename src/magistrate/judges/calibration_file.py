"""The file of a calibration: the fitted map, the judge and the data it was fitted to, and how good it is."""

from __future__ import annotations

import json
import os
from functools import cached_property
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from magistrate.errors import InputError, SpecError
from magistrate.judges.folders import EstimatePart, FilePart, ModelPart, TrainedFile, read_trained
from magistrate.metrics.calibration import MOST_KEPT, Calibrator, Method
from magistrate.metrics.thresholds import Aim

FORMAT = 2
READ = (1, 2)
KIND = "magistrate calibration"


class JudgePart(FilePart):
    """Whose verdicts it was fitted to: `words` are its name, options and version, as recipes say them."""

    name: str
    words: str
    prompt: str
    constraint: str


class DataPart(FilePart):
    """Which labels it was fitted to."""

    dataset: str
    digest: str
    n: int = Field(ge=1)
    hallucinated: int = Field(ge=0)
    contexts: int = Field(ge=1)


class CalibrationFile(TrainedFile):
    """A calibration as it is written down. Same fit, same bytes.

    `turned` says that the map takes 1 - score, since a low score of the judge means hallucinated. `scores`
    are calibrated scores of the labelled data, one a context, to compare later runs with; None
    in files of format 1, which do not have them.
    """

    kind: str = KIND
    format: int = FORMAT
    method: Method
    parameters: dict[str, list[float]]
    threshold: float = Field(ge=0, le=1)
    aim: str | None
    base_rate: float | None = Field(gt=0, lt=1)
    judge: JudgePart
    model: ModelPart
    data: DataPart
    seed: int
    folds: int = Field(ge=2)
    before: dict[str, EstimatePart]
    after: dict[str, EstimatePart]
    package: str
    turned: bool = False
    scores: list[Annotated[float, Field(ge=0, le=1)]] | None = Field(None, max_length=MOST_KEPT)

    @model_validator(mode="after")
    def _makes_a_map(self) -> CalibrationFile:
        try:
            _ = self.calibrator
            if self.aim is not None:
                Aim.parse(self.aim)
        except InputError as error:
            raise ValueError(str(error)) from None
        return self

    @cached_property
    def calibrator(self) -> Calibrator:
        """The map itself."""
        return Calibrator(self.method, {name: tuple(values) for name, values in self.parameters.items()})

    def probability(self, score: float) -> float:
        """The calibrated probability of a score as the judge gives it."""
        return self.calibrator(1 - score if self.turned else score)

    def text(self) -> str:
        """What stands in the file."""
        absent = {name for name in ("turned", "scores") if not getattr(self, name)}
        values = self.model_dump(exclude=absent)
        return json.dumps(values, indent=2, allow_nan=False) + "\n"

    def line(self) -> str:
        """What it is, on one line."""
        aim = f", {self.aim}" if self.aim is not None else ""
        rate = f", base rate {self.base_rate:g}" if self.base_rate is not None else ""
        turned = ", of 1 - score" if self.turned else ""
        return f"{self.method} on {self.data.n} samples of {self.data.dataset}{aim}{rate}{turned}"


def write_calibration(made: CalibrationFile, path: Path, *, replace: bool = False) -> None:
    """Write the file at once or not at all. Raises `SpecError` where it cannot be, or is there already."""
    check_free(path, replace=replace)
    half = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        half.write_text(made.text(), encoding="ascii")
        half.replace(path)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise SpecError(f"cannot write {path}: {error.strerror}") from None


def check_free(path: Path, *, replace: bool = False) -> None:
    """Raise `SpecError` where no calibration can be written there, before one is made."""
    check_name(path)
    if path.is_dir() or not path.parent.is_dir():
        raise SpecError(
            f"cannot write {path}: {'it is a folder' if path.is_dir() else 'its folder is not there'}"
        )
    if path.exists() and not replace:
        raise SpecError(f"{path} is there already; to replace it: --force, in Python replace=True")


def read_calibration(path: Path) -> CalibrationFile:
    """The calibration in a file. Raises `SpecError` with the key for anything that cannot be used."""
    check_name(path)
    by = "calibrate RUN --to FILE"
    return read_trained(path, "calibration", READ, by=by, again="calibrate again").read_as(CalibrationFile)


def check_name(path: Path) -> None:
    """Calibrations are known by their ending, also among the options of a judge."""
    if path.suffix != ".json":
        raise SpecError(f"the file of a calibration is named SOMETHING.json, got {path.name!r}")
