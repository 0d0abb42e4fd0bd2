"""A judge that reads a model's hidden states, by the folder that `magistrate train probe` wrote."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from magistrate.engines.base import Capture, Engine
from magistrate.errors import SpecError
from magistrate.features.states import pooled
from magistrate.judges.base import Call, JudgeInfo
from magistrate.judges.likelihood import READS, prompts
from magistrate.judges.template import builtin
from magistrate.metrics.distributions import expit
from magistrate.types import FAITHFUL, HALLUCINATED, Data, Outcome, Sample, Verdict

if TYPE_CHECKING:
    from magistrate.judges.probe_folder import ProbeFile

NO_FOLDER = (
    "has no probe to go by: probe:FOLDER, where FOLDER is what 'magistrate train probe --to FOLDER' wrote "
    "for the model that is asked"
)


@dataclass(frozen=True)
class Probe:
    """Reads the output once and decides by the model's hidden states, with the weights in `folder`.

    The score is the probability that the output is hallucinated where either label is as likely; from
    `threshold` in (0, 1) on the label is `hallucinated`. It asks only the model that it was fitted to, on an
    engine that shows hidden states. Raises `SpecError` for a folder that cannot be read and for another
    model.
    """

    FOLDER_OPTION: ClassVar[str] = "folder"
    FOLDER_FILE: ClassVar[str] = "probe.json"

    folder: Path | None = None
    name: str = "probe"
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise SpecError(f"threshold must be in (0, 1), got {self.threshold}")
        if self.folder is not None:
            object.__setattr__(self, "folder", Path(self.folder).expanduser().absolute())
            asked = builtin("answer").digest
            if self.probe.prompt != asked:
                raise SpecError(
                    f"{self.folder} was fitted to states after another prompt ({self.probe.prompt} there, "
                    f"{asked} here); train it again"
                )

    @cached_property
    def probe(self) -> ProbeFile:
        """What the folder said when this judge was made."""
        from magistrate.judges.probe_folder import read_probe

        if self.folder is None:
            raise SpecError(f"judge {self.name!r} {NO_FOLDER}")
        return read_probe(self.folder)

    @property
    def info(self) -> JudgeInfo:
        prompt = builtin("answer")
        known = None if self.folder is None else self.probe
        return JudgeInfo(
            name=self.name,
            version=prompt.version,
            summary="the model's own hidden states, weighed by a trained probe"
            + (f": {known.line()}" if known else ""),
            labels=(FAITHFUL, HALLUCINATED),
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
        """One reading."""
        return [Call(prompts(sample)[0].continued(Data(sample.output or "", "output")))]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:

        known = self.probe
        if engine.info.fingerprint != known.model.fingerprint:
            raise SpecError(
                f"fitted to the states of {known.model.name} ({known.model.fingerprint[:12]}), asked on "
                f"{engine.info.model} ({engine.info.fingerprint[:12]}); train a probe for this model"
            )
        answer = await engine.likelihood(
            prompts(sample)[0], sample.output or "", capture=Capture(hidden=True)
        )
        if answer.captured is None:
            raise SpecError(f"engine {engine.info.name!r} captured nothing, though it says that it can")
        states = pooled(answer.captured, known.pooling)
        if len(states) != known.layers + 1:
            raise SpecError(f"the probe reads a model of {known.layers} layers, this has {len(states) - 1}")
        odds = known.log_odds(states[known.layer])
        score = float(expit(odds))
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=HALLUCINATED if score >= self.threshold else FAITHFUL,
            score=score,
            explanation=f"The states of layer {known.layer} put its log odds at {odds:+.2f}.",
            details={"signals": {"probe_log_odds": odds}, "layer": known.layer, "pooling": known.pooling},
        )
