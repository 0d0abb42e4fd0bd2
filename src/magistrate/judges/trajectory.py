"""The judge `trajectory`: finds the first step of an agent that the earlier tool results do not support."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from magistrate.engines.base import Engine
from magistrate.judges.auto import Auto
from magistrate.judges.base import Call, Judge, JudgeInfo, check_binary, planned_calls, run_judge
from magistrate.judges.composite import suspicion
from magistrate.judges.tool_answer import NO_RESULTS, info_by, observed
from magistrate.judges.tool_calls import (
    Event,
    Result,
    Said,
    UnreadableMessages,
    events_of,
    is_json,
    unreadable,
)
from magistrate.types import FAITHFUL, HALLUCINATED, Abstention, Claim, Outcome, Sample, Span, Verdict

SHOWN = 2000  # characters of a step shown in a claim, at most


@dataclass(frozen=True, slots=True)
class Step:
    """A message of the application after a tool result; `number` counts the application's messages."""

    number: int
    said: Said
    sample: Sample | Abstention


@dataclass(frozen=True)
class Trajectory:
    """Judges each message of an agent after a tool result by `of`, in order, the output last.

    The context of each message is the tool results before it, prepared as in `tool_answer`. The first
    hallucinated message decides and is the claim; later ones are not judged. If there is none, the score is
    the worst. Messages that are code or bare JSON are skipped and counted (`passed_over`); if the output is
    one of them and no step before it is at fault, there is no verdict. If a step has no verdict, the whole
    has none, since the first fault is then unknown.
    """

    of: Judge = field(default_factory=Auto)
    name: str = "trajectory"

    def __post_init__(self) -> None:
        check_binary(self.of.info, "trajectory")

    @property
    def info(self) -> JudgeInfo:
        return info_by(
            self.of.info, self.name, "the first step that the tools' earlier answers do not support"
        )

    def plan(self, sample: Sample) -> list[Call]:
        """Return the calls of `of` for every step."""
        try:
            steps = list(self._steps(sample))
        except UnreadableMessages:
            return []  # `judge` reports it
        readable = [step.sample for step in steps if isinstance(step.sample, Sample)]
        return [call for each in readable for call in planned_calls(self.of, each)]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        try:
            steps = list(self._steps(sample))
        except UnreadableMessages as error:
            return Abstention(sample.id, self.name, "missing_input", str(error))
        if not steps:
            return Abstention(sample.id, self.name, "no_context", NO_RESULTS)
        told: list[dict[str, Any]] = []
        passed, last = 0, None
        for step in steps:
            if isinstance(step.sample, Abstention):
                if step.sample.reason != "uncertain":
                    return step.sample
                passed, last = passed + 1, step.sample
                continue
            found = await run_judge(self.of, step.sample, engine)
            if not isinstance(found, Verdict):
                message = f"step {step.number}, {self.of.info.name}: {found.message}"
                return replace(found, judge=self.name, message=message)
            score = suspicion(found, self.of.info)
            told.append({"step": step.number, "label": found.label, "score": score})
            if found.label == HALLUCINATED:
                return self._fault(sample, step, found, told, passed)
        if last is not None and (not told or (steps[-1].said.final and last is steps[-1].sample)):
            return last  # the output itself was not read
        worst = max(each["score"] for each in told)
        return Verdict(
            sample.id,
            self.name,
            FAITHFUL,
            worst,
            explanation=f"all {len(told)} steps that could be judged are supported",
            details={"steps": told, "passed_over": passed, "judged_by": self.of.info.name},
        )

    def _fault(
        self, sample: Sample, step: Step, found: Verdict, told: list[dict[str, Any]], passed: int
    ) -> Verdict:
        """Return the verdict for the first unsupported step."""
        text, why = step.said.text, found.explanation or "not supported by the tools' earlier answers"
        place = Span(0, len(text)) if step.said.final else Span(0, 0)
        claim = Claim(
            "unsupported",
            place,
            reasoning=f"step {step.number}: {why}",
            probability=found.probability,
            output_text=text if step.said.final else text[:SHOWN],
        )
        return Verdict(
            sample.id,
            self.name,
            HALLUCINATED,
            told[-1]["score"],
            found.probability,
            f"step {step.number} is the first that is not supported: {why}",
            claims=(claim,),
            details={
                "steps": told,
                "first": step.number,
                "passed_over": passed,
                "judged_by": self.of.info.name,
            },
        )

    def _steps(self, sample: Sample) -> Iterator[Step]:
        """Yield the application's messages after a tool result, each with the sample to judge."""
        before: list[Event] = []
        number = 0
        for event in events_of(sample):
            if isinstance(event, Said) and event.by_assistant and event.text.strip():
                number += 1
                if any(isinstance(each, Result) for each in before) or (event.final and sample.context):
                    yield Step(number, event, self._seen(sample, before, event.text))
            before.append(event)

    def _seen(self, sample: Sample, before: list[Event], text: str) -> Sample | Abstention:
        problem = "is only JSON" if is_json(text) else unreadable(text)
        if problem:
            told = f"a step {problem}, which a judge of prose cannot read"
            return Abstention(sample.id, self.name, "uncertain", told)
        return observed(sample, before, text, self.name)
