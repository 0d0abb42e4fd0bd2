"""The folder of a stack: `stack.json` with its weights, a card for people, and the folders of its parts."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from magistrate._version import __version__
from magistrate.judges.folders import CARD, FilePart, ModelPart, TrainedFile, check_free, read_trained, whole

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


FORMAT = 1
KIND = "magistrate stack"
FILE, PARTS = "stack.json", "parts"
HERE = "{here}"  # placeholder of the stack's folder in the specification of a part
Scale = Literal["log_odds", "share"]
CLIP = 0.005
"""Scores nearer to 0 or 1 count as this near: how sure a judge says it is tells little beyond."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Fitted weights: a sample's log odds are `intercept` + the sum of `weights` times its z values.

    z is (scaled value - `means`) / `spreads`, all `[k]`. The log odds assume that both labels are equally
    likely. `metric` `[k, k]` and `limit` define how far from the training samples is too far. `strength` is
    the chosen inverse penalty.
    """

    scales: tuple[Scale, ...]
    means: Floats
    spreads: Floats
    weights: Floats
    intercept: float
    metric: Floats
    limit: float
    strength: float

    def z(self, values: Floats) -> Floats:
        """Standardize values `[n, k]` in [0, 1]; returns `[n, k]`, 0 for a NaN."""
        return standardized(scaled(values, self.scales), self.means, self.spreads)

    def contributions(self, values: Floats) -> Floats:
        """Return the contribution of each part to the log odds `[n, k]`."""
        return self.z(values) * self.weights

    def log_odds(self, values: Floats) -> Floats:
        """Return log odds `[n]`, assuming that both labels are equally likely."""
        found: Floats = self.contributions(values).sum(axis=1) + self.intercept
        return found

    def distances(self, values: Floats) -> Floats:
        """Return Mahalanobis distances `[n]` from the centre of the training samples."""
        import numpy as np

        z = self.z(values)
        found: Floats = np.sqrt(np.einsum("nk,kl,nl->n", z, self.metric, z))
        return found


def scaled(values: Floats, scales: Sequence[Scale]) -> Floats:
    """Map values `[n, k]` in [0, 1] to the scale of their column."""
    import numpy as np

    held = np.clip(values, CLIP, 1 - CLIP)
    odds = np.array([scale == "log_odds" for scale in scales])
    return np.where(odds, np.log(held / (1 - held)), values)


def standardized(moved: Floats, means: Floats, spreads: Floats) -> Floats:
    """Return values `[n, k]` minus the mean in units of the spread, 0 for a NaN."""
    import numpy as np

    return np.where(np.isnan(moved), 0.0, (moved - means) / spreads)


def shift(base_rate: float) -> float:
    """Return what a base rate of hallucinated outputs adds to log odds that assume even odds."""
    return log(base_rate / (1 - base_rate))


class PartFile(FilePart):
    """One part: a judge by its specification, with the digests of prompt and constraint, or a text signal."""

    name: str
    kind: Literal["judge", "signal"]
    words: str
    version: int = 1
    prompt: str = ""
    constraint: str = ""
    scale: Scale
    mean: float
    spread: float = Field(gt=0)
    weight: float
    low: float
    high: float


class DataFile(FilePart):
    """A labelled data set that the stack was fitted to."""

    dataset: str
    family: str
    digest: str
    n: int = Field(ge=0)
    hallucinated: int = Field(ge=0)


class StackFile(TrainedFile):
    """A stack as stored in a file. The same fit gives the same bytes.

    A sample's log odds at even odds are `intercept` plus, for each part, weight times (scaled value - mean)
    / spread. `base_rate` is the default base rate. `metric` `[k, k]` and `limit` define which samples are
    too far from the training samples. `low` and `high` of a part are the range of its values on these.
    """

    kind: str = KIND
    format: int = FORMAT
    parts: list[PartFile] = Field(min_length=1)
    intercept: float
    base_rate: float = Field(gt=0, lt=1)
    metric: list[list[float]]
    limit: float = Field(ge=0)
    strength: float
    positive: bool
    model: ModelPart | None
    data: list[DataFile]
    trained_on: list[str]
    seed: int
    folds: int
    figures: dict[str, Any]
    package: str = __version__

    @model_validator(mode="after")
    def _is_whole(self) -> StackFile:
        k = len(self.parts)
        if len(self.metric) != k or any(len(row) != k for row in self.metric):
            raise ValueError(f"metric must have {k} rows of {k} numbers, one for each part")
        if len({part.name for part in self.parts}) < k:
            raise ValueError("two parts have the same name")
        return self

    @cached_property
    def weights(self) -> Weights:
        """The weights as arrays."""
        import numpy as np

        def column(name: str) -> NDArray[np.float64]:
            return np.array([getattr(part, name) for part in self.parts], dtype=np.float64)

        return Weights(
            scales=tuple(part.scale for part in self.parts),
            means=column("mean"),
            spreads=column("spread"),
            weights=column("weight"),
            intercept=self.intercept,
            metric=np.array(self.metric, dtype=np.float64),
            limit=self.limit,
            strength=self.strength,
        )


def write_stack(
    made: StackFile, card: str, folder: Path, parts: Mapping[str, Path], *, replace: bool = False
) -> None:
    """Write the folder atomically. `parts` are folders that are copied under these names.

    Raises `SpecError` if it cannot be written, or already exists.
    """
    check_free(folder, FILE, "stack", replace=replace)
    with whole(folder) as half:
        (half / FILE).write_text(made.text(), encoding="utf-8")
        (half / CARD).write_text(card, encoding="utf-8")
        for name, source in parts.items():
            shutil.copytree(source, half / PARTS / name)


def read_stack(folder: Path) -> StackFile:
    """Read the stack in a folder. Raises `SpecError`, with the key, for anything invalid."""
    return read_trained(folder / FILE, "stack", (FORMAT,), by="train stack --to FOLDER").read_as(StackFile)
