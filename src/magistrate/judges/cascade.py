"""The judge `cascade`: call the expensive judge only when the cheap one is unsure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.judges.base import LABELS, Call, Judge, JudgeInfo, check_binary, planned_calls, run_judge
from magistrate.judges.composite import composite_info, suspicion
from magistrate.types import FAITHFUL, HALLUCINATED, Abstention, Outcome, Sample, Verdict

NO_JUDGES = (
    "needs two judges, the cheap one first: cascade:first=JUDGE,then=JUDGE,low=.2,high=.8; put a judge with "
    "options in parentheses"
)
PASSED_ON = ("uncertain", "over_length")
"""Abstentions of the first judge that another may do better with; what a sample lacks, it lacks for both."""


@dataclass(frozen=True)
class Cascade:
    """Decides by `first` if its score is at most `low` or at least `high`, and calls `then` in between.

    Scores are scores of hallucination: 1 is the worst. `first` decides below the band only with the label
    faithful, and above it only with the label hallucinated. `then` is also called if `first` abstains
    because it is unsure or the sample is too long. A failure of `first` is a failure; `then` is not called.
    The verdict is that of the deciding judge. Its details hold that judge's name (`decided_by`), the result
    of `first` (`first_score`, `first_label`) and the `band`. A sample that is too long for `then` is not
    started. Raises `SpecError` for judges of anything but faithfulness, and for a band outside [0, 1].
    """

    first: Judge | None = None
    then: Judge | None = None
    low: float = 0.2
    high: float = 0.8
    name: str = "cascade"

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1:
            raise SpecError(
                f"a cascade needs low and high in [0, 1], with low not above high; got {self.low} to "
                f"{self.high}"
            )
        for judge in (self.first, self.then):
            if judge is not None:
                check_binary(judge.info, "a cascade")

    @property
    def info(self) -> JudgeInfo:
        if self.first is None or self.then is None:
            summary = "a cheap judge first, the next one only where it is unsure"
            return JudgeInfo(self.name, summary=summary, labels=LABELS, lacks=NO_JUDGES)
        first, then = self.first.info, self.then.info
        return composite_info(
            (first, then),
            name=self.name,
            summary=f"{first.name}; {then.name} where its score is {self.low:g} to {self.high:g}",
            long=then.long,
        )

    def plan(self, sample: Sample) -> Sequence[Call]:
        """Return the calls of both judges: whether `then` is called is not known in advance."""
        return [call for judge in self._judges for call in planned_calls(judge, sample)]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        first, then = self._judges
        found = await run_judge(first, sample, engine)
        if isinstance(found, Verdict):
            score = suspicion(found, first.info)
            note = {"first_score": score, "first_label": found.label, "band": [self.low, self.high]}
            if self._sure(score, found.label):
                note["decided_by"] = first.info.name
                return replace(found, judge=self.name, score=score, details={**found.details, **note})
        elif isinstance(found, Abstention) and found.reason in PASSED_ON:
            note = {"first_abstained": found.message, "band": [self.low, self.high]}
        else:
            return replace(found, judge=self.name, message=f"{first.info.name}: {found.message}")
        last = await run_judge(then, sample, engine)
        if not isinstance(last, Verdict):
            return replace(last, judge=self.name, message=f"{then.info.name}: {last.message}")
        score = suspicion(last, then.info)
        note["decided_by"] = then.info.name
        return replace(last, judge=self.name, score=score, details={**last.details, **note})

    @property
    def _judges(self) -> tuple[Judge, Judge]:
        if self.first is None or self.then is None:
            raise SpecError(f"judge {self.name!r} {NO_JUDGES}")
        return self.first, self.then

    def _sure(self, score: float, label: str) -> bool:
        return (score <= self.low and label == FAITHFUL) or (score >= self.high and label == HALLUCINATED)
