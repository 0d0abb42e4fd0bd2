"""The judge `probe`: a linear probe on a model's hidden states, trained by `magistrate train probe`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, model_validator

from magistrate._version import __version__
from magistrate.engines.base import Capture, Engine
from magistrate.errors import SpecError
from magistrate.features.hidden_states import Pooling, pooled
from magistrate.judges.base import (
    LABELS,
    READS,
    Call,
    FolderJudge,
    JudgeInfo,
    absolute,
    check_threshold,
    label_of,
)
from magistrate.judges.folders import (
    EstimatePart,
    FilePart,
    ModelPart,
    TrainedFile,
    check_free,
    read_trained,
    whole,
)
from magistrate.judges.likelihood import prompts
from magistrate.judges.template import builtin_prompt
from magistrate.metrics.distributions import expit
from magistrate.types import Data, Outcome, Sample, Verdict

if TYPE_CHECKING:
    import numpy as np

FORMAT = 1
KIND = "magistrate probe"
FILE, CARD = "probe.json", "README.md"


class ProbeData(FilePart):
    """A labelled data set that the probe was fitted to."""

    dataset: str
    digest: str
    n: int = Field(ge=0)
    hallucinated: int = Field(ge=0)


class ProbeFile(TrainedFile):
    """A probe as stored in a file. The same fit gives the same bytes.

    The log odds that an output is hallucinated, at even odds, are `intercept` plus the sum of weight times
    (state - mean) / spread. The sum runs over the `width` numbers of `layer` (0 is the embedding), pooled
    over tokens by `pooling`. `prompt` is the digest of the prompt that the output answers. Figures are out
    of fold, over `contexts` contexts.
    """

    kind: str = KIND
    format: int = FORMAT
    model: ModelPart
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
    figures: dict[str, EstimatePart]
    package: str = __version__

    @model_validator(mode="after")
    def _is_whole(self) -> ProbeFile:
        if not len(self.means) == len(self.spreads) == len(self.weights):
            raise ValueError("means, spreads and weights must have the same length")
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
        """Return the log odds for a state `[width]` of its layer. Raises `SpecError` for another width."""
        means, spreads, weights = self.arrays
        if state.shape != means.shape:
            raise SpecError(f"the probe needs states of {means.size} numbers, but the model has {state.size}")
        return float(((state - means) / spreads) @ weights) + self.intercept

    def text(self) -> str:
        """Return the content of the file."""
        return json.dumps(self.model_dump(), allow_nan=False) + "\n"

    def line(self) -> str:
        """Return a one-line summary."""
        n = sum(each.n for each in self.data)
        return (
            f"layer {self.layer} of {self.layers} of {self.model.name}, {self.pooling}, fitted to {n} "
            f"samples of {', '.join(each.dataset for each in self.data)}"
        )


def write_probe(made: ProbeFile, card: str, folder: Path, *, replace: bool = False) -> None:
    """Write the folder atomically. Raises `SpecError` if it cannot be written, or already exists."""
    check_free(folder, FILE, "probe", replace=replace)
    with whole(folder) as half:
        (half / FILE).write_text(made.text(), encoding="utf-8")
        (half / CARD).write_text(card, encoding="utf-8")


def read_probe(folder: Path) -> ProbeFile:
    """Read the probe in a folder. Raises `SpecError`, with the key, for anything invalid."""
    return read_trained(folder / FILE, "probe", (FORMAT,), by="train probe --to FOLDER").read_as(ProbeFile)


NO_FOLDER = (
    "needs a trained probe: probe:FOLDER, where FOLDER was written by 'magistrate train probe --to FOLDER' "
    "for the same model"
)


@dataclass(frozen=True)
class Probe(FolderJudge):
    """Reads the output once and decides by the model's hidden states, with the weights in `folder`.

    The score is the probability that the output is hallucinated if both labels are equally likely. At
    `threshold`, in (0, 1), and above the label is `hallucinated`. It works only with the model that it was
    fitted to, on an engine that exposes hidden states. Raises `SpecError` for a folder that cannot be read
    and for another model.
    """

    FOLDER_FILE: ClassVar[str | None] = FILE

    folder: Path | None = None
    name: str = "probe"
    threshold: float = 0.5

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        if self.folder is not None:
            object.__setattr__(self, "folder", absolute(self.folder))
            asked = builtin_prompt("answer").digest
            if self.probe.prompt != asked:
                raise SpecError(
                    f"{self.folder} was trained with another prompt ({self.probe.prompt}, here {asked}); "
                    "train it again"
                )

    @cached_property
    def probe(self) -> ProbeFile:
        """The probe in the folder, read when this judge was made."""

        if self.folder is None:
            raise SpecError(f"judge {self.name!r} {NO_FOLDER}")
        return read_probe(self.folder)

    @property
    def info(self) -> JudgeInfo:
        prompt = builtin_prompt("answer")
        known = None if self.folder is None else self.probe
        return JudgeInfo(
            name=self.name,
            version=prompt.version,
            summary="a trained probe on the model's hidden states" + (f": {known.line()}" if known else ""),
            labels=LABELS,
            threshold=self.threshold,
            reads=READS,
            requires=("output",),
            needs=frozenset({"likelihood", "capture", "hidden_states"}),
            prompt=prompt.digest + (f"+{known.digest}" if known else ""),
            constraint="likelihood",
            fitted_to=(known.model.name, known.model.fingerprint) if known else None,
            lacks="" if known else NO_FOLDER,
            trained_on=frozenset(each.dataset for each in known.data) if known else frozenset(),
        )

    def plan(self, sample: Sample) -> list[Call]:
        """Return one call, which reads the output."""
        return [Call(prompts(sample)[0].continued(Data(sample.output or "", "output")))]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:

        known = self.probe
        if engine.info.fingerprint != known.model.fingerprint:
            raise SpecError(
                f"the probe was trained for {known.model.name} ({known.model.fingerprint[:12]}), but the "
                f"model is {engine.info.model} ({engine.info.fingerprint[:12]}); train a probe for this model"
            )
        answer = await engine.likelihood(
            prompts(sample)[0], sample.output or "", capture=Capture(hidden=True)
        )
        if answer.captured is None:
            raise SpecError(
                f"engine {engine.info.name!r} returned no hidden states, although it declares that it can"
            )
        states = pooled(answer.captured, known.pooling)
        if len(states) != known.layers + 1:
            raise SpecError(
                f"the probe needs a model with {known.layers} layers, but this one has {len(states) - 1}"
            )
        odds = known.log_odds(states[known.layer])
        score = float(expit(odds))
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=label_of(score, self.threshold),
            score=score,
            explanation=f"From the states of layer {known.layer}, the log odds are {odds:+.2f}.",
            details={"signals": {"probe_log_odds": odds}, "layer": known.layer, "pooling": known.pooling},
        )
