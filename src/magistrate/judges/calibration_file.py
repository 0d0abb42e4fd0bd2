"""The calibration file: the fitted map, the judge and data it was fitted to, and its quality."""

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
    """The judge whose verdicts were calibrated. `words` are its name, options and version, as in recipes."""

    name: str
    words: str
    prompt: str
    constraint: str


class DataPart(FilePart):
    """The labelled data that the calibration was fitted to."""

    dataset: str
    digest: str
    n: int = Field(ge=1)
    hallucinated: int = Field(ge=0)
    contexts: int = Field(ge=1)


class CalibrationFile(TrainedFile):
    """A calibration as stored in a file. The same fit gives the same bytes.

    `turned` means that the map takes 1 - score, because a low score of the judge means hallucinated.
    `scores` are calibrated scores of the labelled data, one per context, to compare later runs with. Files
    of format 1 have none (None).
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
        """The fitted map."""
        return Calibrator(self.method, {name: tuple(values) for name, values in self.parameters.items()})

    def probability(self, score: float) -> float:
        """Return the calibrated probability for a raw score of the judge."""
        return self.calibrator(1 - score if self.turned else score)

    def text(self) -> str:
        """Return the content of the file."""
        absent = {name for name in ("turned", "scores") if not getattr(self, name)}
        values = self.model_dump(exclude=absent)
        return json.dumps(values, indent=2, allow_nan=False) + "\n"

    def line(self) -> str:
        """Return a one-line summary."""
        aim = f", {self.aim}" if self.aim is not None else ""
        rate = f", base rate {self.base_rate:g}" if self.base_rate is not None else ""
        turned = ", of 1 - score" if self.turned else ""
        return f"{self.method} on {self.data.n} samples of {self.data.dataset}{aim}{rate}{turned}"


def write_calibration(made: CalibrationFile, path: Path, *, replace: bool = False) -> None:
    """Write the file atomically. Raises `SpecError` if it cannot be written, or already exists."""
    check_free(path, replace=replace)
    half = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        half.write_text(made.text(), encoding="ascii")
        half.replace(path)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise SpecError(f"cannot write {path}: {error.strerror}") from None


def check_free(path: Path, *, replace: bool = False) -> None:
    """Raise `SpecError` if no calibration can be written to `path`; call it before computing one."""
    check_name(path)
    if path.is_dir() or not path.parent.is_dir():
        raise SpecError(
            f"cannot write {path}: {'it is a folder' if path.is_dir() else 'its folder does not exist'}"
        )
    if path.exists() and not replace:
        raise SpecError(f"{path} already exists; to replace it: --force, or replace=True in Python")


def read_calibration(path: Path) -> CalibrationFile:
    """Read a calibration from a file. Raises `SpecError`, with the key, for anything invalid."""
    check_name(path)
    by = "calibrate RUN --to FILE"
    return read_trained(path, "calibration", READ, by=by, again="calibrate again").read_as(CalibrationFile)


def check_name(path: Path) -> None:
    """Raise `SpecError` if the name does not end in `.json`: judge options recognise calibrations by it."""
    if path.suffix != ".json":
        raise SpecError(f"the file of a calibration must end in .json, got {path.name!r}")
