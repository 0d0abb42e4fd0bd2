"""The default judge `auto`: the best judge that needs no language model and no download."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Literal

from magistrate.engines.base import Capability, Engine
from magistrate.judges.base import Call, Judge, JudgeInfo, check_binary, planned_calls, run_judge, unfit
from magistrate.types import HALLUCINATED, Outcome, Sample, Verdict

if TYPE_CHECKING:
    from magistrate.judges.classify import Classify

EXPLAINING: frozenset[Capability] = frozenset({"generate", "constraints", "choose"})


def best() -> Judge:
    """Return the judge that `auto` stands for, the same one on every machine."""
    from magistrate.judges.combined import Combined

    return Combined()


@cache
def _explainer() -> Classify:
    """Return the judge whose prompt the explanation continues."""
    from magistrate.judges.builtin import instance
    from magistrate.judges.classify import Classify

    found = instance("faithfulness")
    assert isinstance(found, Classify)
    return found


@dataclass(frozen=True)
class Auto:
    """Decides with the judge `of`, which runs on code alone: no language model is loaded or called.

    By default `of` is `combined`, with the small detector of the package.

    With `explain` the run's engine adds a one-sentence reason: `flagged` for hallucinated outputs only,
    `always` for every verdict. The explanation starts with the label that `of` decided and cannot change
    it. The label is then chosen again from the explanation alone, and a disagreement is recorded. If the
    sample does not fit the engine, the verdict has no explanation and `details["unexplained"]` holds the
    reason.
    """

    of: Judge = field(default_factory=best)
    name: str = "auto"
    explain: Literal["never", "flagged", "always"] = "never"

    def __post_init__(self) -> None:
        check_binary(self.of.info, "auto")

    @property
    def info(self) -> JudgeInfo:
        of = self.of.info
        pinned = f"{of.name}@{of.version}+{of.prompt}" if of.prompt else f"{of.name}@{of.version}"
        info = replace(of, name=self.name, version=1, prompt=pinned)
        if self.explain == "never":
            return info
        by = _explainer()
        return replace(
            info,
            kind="llm",
            summary=f"{of.summary}; a model explains",
            needs=of.needs | EXPLAINING,
            prompt=f"{pinned}+{by.criterion.digest}",
            constraint="+".join(filter(None, (of.constraint, by.constraint.digest))),
        )

    def plan(self, sample: Sample) -> Sequence[Call]:
        """Return the calls of `of`, and optional ones for the explanation, which is skipped if too long."""
        calls = planned_calls(self.of, sample)
        if self.explain == "never":
            return calls
        return [*calls, *(replace(each, optional=True) for each in _explainer().explaining(sample))]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        outcome = await run_judge(self.of, sample, engine)
        if not isinstance(outcome, Verdict) or self.explain == "never":
            return outcome
        if self.explain == "flagged" and outcome.label != HALLUCINATED:
            return outcome
        for call in _explainer().explaining(sample):
            if short := await unfit(call, engine):
                return replace(outcome, details={**outcome.details, "unexplained": short})
        told = await _explainer().explained(replace(outcome, explanation=None), sample, engine)
        if told.explanation is None:
            return replace(outcome, details={**outcome.details, "unexplained": "the model wrote nothing"})
        said = {"reason": outcome.explanation} if outcome.explanation else {}
        return replace(told, details={**told.details, **said, "explained_by": engine.info.model})
