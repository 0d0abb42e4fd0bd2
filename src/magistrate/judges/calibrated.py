"""The judge `calibrated`: another judge, with its scores calibrated by a file from `magistrate calibrate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.judges.base import (
    Call,
    Judge,
    JudgeInfo,
    absolute,
    check_binary,
    label_of,
    planned_calls,
    probability_of,
    run_judge,
)
from magistrate.judges.builtin import instance
from magistrate.judges.registry import spelled
from magistrate.types import CalibratedOn, Outcome, Sample, Verdict

if TYPE_CHECKING:
    from magistrate.judges.calibration_file import CalibrationFile

NO_FILE = (
    "needs a judge and its calibration: calibrated:of=JUDGE,file=FILE.json, where FILE.json was written by "
    "'magistrate calibrate RUN --to FILE.json' from a run of that judge"
)


@dataclass(frozen=True)
class Calibrated:
    """Runs `of`, turns its score into a probability and chooses the label by the threshold in `file`.

    The score is the calibrated probability that the output is hallucinated; the probability is that of the
    label. The details keep `raw_score`, `raw_label`, `threshold` and the calibration's digest. Claims,
    steps, failures and abstentions are those of `of`. Raises `SpecError` if the file cannot be read, or was
    made for another judge, other options or another prompt.
    """

    of: Judge = field(default_factory=lambda: instance("faithfulness"))
    file: Path | None = None
    name: str = "calibrated"

    def __post_init__(self) -> None:
        check_binary(self.of.info, "a calibration")
        if self.file is not None:
            object.__setattr__(self, "file", absolute(self.file))
            check_judge(self.of, self.calibration, str(self.file))

    @cached_property
    def calibration(self) -> CalibrationFile:
        """The calibration file's content, read when this judge was made."""
        from magistrate.judges.calibration_file import read_calibration

        if self.file is None:
            raise SpecError(f"judge {self.name!r} {NO_FILE}")
        return read_calibration(self.file)

    @property
    def info(self) -> JudgeInfo:
        of = self.of.info
        if self.file is None:
            summary = f"{of.summary}; score calibrated by a file"
            return replace(
                of, name=self.name, summary=summary, direction="minimize", threshold=None, lacks=NO_FILE
            )
        told = self.calibration
        return replace(
            of,
            name=self.name,
            summary=f"{of.summary}; calibrated: {told.line()}",
            direction="minimize",
            threshold=told.threshold,
            prompt=f"{of.prompt}+{told.digest}",
            fitted_to=(told.model.name, told.model.fingerprint) if of.asks else None,
            trained_on=of.trained_on | {told.data.dataset},
            calibrated_on=CalibratedOn(
                told.data.dataset, None if told.scores is None else tuple(told.scores), told.aim
            ),
        )

    def plan(self, sample: Sample) -> Sequence[Call]:
        """Return the calls of `of`."""
        return planned_calls(self.of, sample)

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        told = self.calibration
        if self.of.info.asks and engine.info.fingerprint != told.model.fingerprint:
            raise SpecError(
                f"calibrated for {told.model.name} ({told.model.fingerprint[:12]}), asked on "
                f"{engine.info.model} ({engine.info.fingerprint[:12]})"
            )
        outcome = await run_judge(self.of, sample, engine)
        return calibrated(outcome, told) if isinstance(outcome, Verdict) else outcome


def calibrated(verdict: Verdict, by: CalibrationFile) -> Verdict:
    """Return the verdict with score, label and probability replaced by the calibrated ones."""
    score = by.probability(verdict.score)
    label = label_of(score, by.threshold)
    agrees = verdict.explanation_agrees
    note = {
        "raw_score": verdict.score,
        "raw_label": verdict.label,
        "threshold": by.threshold,
        "calibration": by.digest,
    }
    # Drop the flags of claims: they no longer decide, and rereading them would bypass the calibration.
    kept = {name: value for name, value in verdict.details.items() if name != "flag"}
    return replace(
        verdict,
        label=label,
        score=score,
        probability=probability_of(label, score),
        # If the label changed, an explanation that argued for the other label now agrees, and vice versa.
        explanation_agrees=agrees if agrees is None or label == verdict.label else not agrees,
        details={**kept, **note},
    )


def check_judge(judge: Judge, told: CalibrationFile, where: str) -> None:
    """Raise `SpecError` if a calibration was made for another judge, prompt or constraint."""
    info = judge.info
    pairs = (
        ("judge", told.judge.words, words_of(judge)),
        ("prompt", told.judge.prompt, info.prompt),
        ("constraint", told.judge.constraint, info.constraint),
    )
    if differing := [f"{what} {then!r} there, {now!r} here" for what, then, now in pairs if then != now]:
        raise SpecError(
            f"{where} was made for a different judge than {info.name!r}: {'; '.join(differing)}. Calibrate "
            "this judge"
        )


def words_of(judge: Judge) -> str:
    """Return a judge's name, options and version, as in recipes."""
    return f"{spelled(judge)}@{judge.info.version}"
