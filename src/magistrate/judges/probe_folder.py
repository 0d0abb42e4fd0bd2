"""The folder of a probe: `probe.json` with its weights and how they came about, and a card for people."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, model_validator

from magistrate._version import __version__
from magistrate.errors import SpecError
from magistrate.features.hidden_states import Pooling
from magistrate.judges.folders import check_free, read_values, whole

if TYPE_CHECKING:
    import numpy as np

FORMAT = 1
KIND = "magistrate probe"
FILE, CARD = "probe.json", "README.md"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class ProbedModel(_Part):
    """Whose hidden states it reads; no other model's mean the same."""

    name: str
    fingerprint: str


class ProbeData(_Part):
    """Labels that it was fitted to."""

    dataset: str
    digest: str
    n: int = Field(ge=0)
    hallucinated: int = Field(ge=0)


class ProbeFigure(_Part):
    """A figure on folds that the fit had not seen, with its 95 % interval."""

    value: float | None
    low: float | None
    high: float | None
    undefined: str | None = None


class ProbeFile(_Part):
    """A probe as it is written down. Same fit, same bytes.

    The log odds that an output is hallucinated, at even chances, are `intercept` plus the sum of weight times
    (state - mean) / spread, over the `width` numbers of `layer` (0 the embedding) pooled by `pooling`.
    `prompt` is the digest of what the output answers. Figures are out of fold, of `contexts` contexts.
    """

    kind: str = KIND
    format: int = FORMAT
    model: ProbedModel
    layer: int = Field(ge=0)
    layers: int = Field(ge=1)
    pooling: Pooling
    prompt: str
    means: list[float] = Field(min_length=1)
    spreads: list[float]
    weights: list[float]
    intercept: float
    strength: float = Field(gt=0)
    data: list[ProbeData]
    contexts: int = Field(ge=2)
    folds: int = Field(ge=2)
    seed: int
    figures: dict[str, ProbeFigure]
    package: str = __version__

    @model_validator(mode="after")
    def _is_whole(self) -> ProbeFile:
        if not len(self.means) == len(self.spreads) == len(self.weights):
            raise ValueError("means, spreads and weights must be as many")
        if self.layer > self.layers:
            raise ValueError(f"layer {self.layer} of {self.layers}")
        if min(self.spreads) <= 0:
            raise ValueError("spreads must be above 0")
        return self

    @cached_property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Means, spreads and weights: float64 `[width]` each."""
        import numpy as np

        means, spreads, weights = (np.array(each) for each in (self.means, self.spreads, self.weights))
        return means, spreads, weights

    def log_odds(self, state: np.ndarray) -> float:
        """Of a state `[width]` of its layer. Raises `SpecError` for another width."""
        means, spreads, weights = self.arrays
        if state.shape != means.shape:
            raise SpecError(f"the probe reads states of {means.size} numbers, the model has {state.size}")
        return float(((state - means) / spreads) @ weights) + self.intercept

    @cached_property
    def digest(self) -> str:
        """Of all that the file says; another one is another probe."""
        return hashlib.sha256(self.text().encode()).hexdigest()[:12]

    def text(self) -> str:
        """What stands in the file."""
        return json.dumps(self.model_dump(), allow_nan=False) + "\n"

    def line(self) -> str:
        """What it is, on one line."""
        n = sum(each.n for each in self.data)
        return (
            f"layer {self.layer} of {self.layers} of {self.model.name}, {self.pooling}, fitted to {n} "
            f"samples of {', '.join(each.dataset for each in self.data)}"
        )


def write_probe(made: ProbeFile, card: str, folder: Path, *, replace: bool = False) -> None:
    """Write the folder, as a whole or not at all. Raises `SpecError` where it cannot be, or is there."""
    check_free(folder, FILE, "probe", replace=replace)
    with whole(folder) as half:
        (half / FILE).write_text(made.text(), encoding="utf-8")
        (half / CARD).write_text(card, encoding="utf-8")


def read_probe(folder: Path) -> ProbeFile:
    """The probe in a folder. Raises `SpecError` with the key for anything that cannot be used."""
    return read_values(folder, FILE, "probe", FORMAT).read_as(ProbeFile)
