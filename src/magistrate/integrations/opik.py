"""A judge as a metric of Opik (`pip install opik`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magistrate.integrations.judged import Adapted, Model, check_direction, missing, told
from magistrate.judges.base import Judge
from magistrate.types import Direction, Outcome, Sample, Verdict

try:
    from opik.evaluation.metrics import BaseMetric
    from opik.evaluation.metrics.score_result import ScoreResult
except ModuleNotFoundError as error:
    raise missing(error, "opik", "opik") from None


class JudgeMetric(BaseMetric):
    """Runs a judge in `opik.evaluate(scoring_metrics=[…])`: `score(output=…, context=[…], input=…)`.

    The value is the judge's own score, which for judges of faithfulness is 1 for hallucinated, as in Opik's
    own hallucination metric. `direction="maximize"` inverts it. The name ends in `hallucination` or
    `faithfulness` accordingly. A sample without a verdict has `scoring_failed` and the reason, and no mean
    includes it. `metadata` is the evidence: claims with quotes and offsets, probability, recipe.
    """

    def __init__(
        self,
        judge: str | Judge = "auto",
        model: Model = None,
        *,
        base_url: str | None = None,
        name: str | None = None,
        direction: Direction | None = None,
        track: bool = True,
        project_name: str | None = None,
    ) -> None:
        self._adapted = Adapted(judge, model, base_url)
        self.direction = check_direction(direction, self._adapted.info.direction)
        super().__init__(name or self._adapted.name(self.direction), track, project_name)

    def score(
        self,
        output: str | None = None,
        context: str | Sequence[str] | None = None,
        input: str | None = None,
        expected_output: str | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        **others: Any,
    ) -> ScoreResult:
        """Return the judge's score of one output. Of `others`, only the inputs of the judge are used."""
        sample = self._sample(output, context, input, expected_output, messages, others)
        return self._result(self._adapted.outcome(sample))

    async def ascore(
        self,
        output: str | None = None,
        context: str | Sequence[str] | None = None,
        input: str | None = None,
        expected_output: str | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        **others: Any,
    ) -> ScoreResult:
        """Return the judge's score of one output, like `score`."""
        sample = self._sample(output, context, input, expected_output, messages, others)
        return self._result(await self._adapted.aoutcome(sample))

    def _sample(
        self,
        output: str | None,
        context: str | Sequence[str] | None,
        input: str | None,
        expected: str | None,
        messages: Sequence[Mapping[str, Any]] | None,
        others: Mapping[str, Any],
    ) -> Sample:
        row = {name: others[name] for name in self._adapted.extra if name in others}
        row |= {"output": output, "context": context, "input": input, "expected": expected}
        return self._adapted.sample({**row, "messages": messages})

    def _result(self, outcome: Outcome) -> ScoreResult:
        if not isinstance(outcome, Verdict):
            return ScoreResult(name=self.name, value=0.0, reason=told(outcome), scoring_failed=True)
        return ScoreResult(
            name=self.name,
            value=self._adapted.value(outcome, self.direction),
            reason=told(outcome),
            category_name=outcome.label,
            metadata={**self._adapted.evidence(outcome), "direction": self.direction},
        )
