"""A judge as an evaluator of Phoenix (`pip install arize-phoenix-evals`)."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, create_model

from magistrate.integrations.judged import Adapted, Model, check_direction, missing, told, verdict_of
from magistrate.judges.base import FIELDS, Judge, JudgeInfo
from magistrate.types import Direction, Outcome

try:
    from phoenix.evals.evaluators import Evaluator, Score
except ModuleNotFoundError as error:
    raise missing(error, "phoenix", "arize-phoenix-evals") from None

TYPES: dict[str, Any] = {
    "context": str | list[str],
    "messages": list[dict[str, Any]],
    "alternatives": list[str],
}


class JudgeEvaluator(Evaluator):
    """Runs a judge in `evaluate_dataframe` and `evaluate({"output": …, "context": …}, input_mapping)`.

    The score is the judge's own, and `direction` states which way it goes: `minimize` for judges of
    faithfulness, where 1 means hallucinated. `direction="maximize"` inverts the score. The name ends in
    `hallucination` or `faithfulness` accordingly. A sample without a verdict raises `NoVerdict`, which a
    data frame keeps as an error without a score. `metadata` is the evidence: claims with quotes and
    offsets, probability, recipe.
    """

    def __init__(
        self,
        judge: str | Judge = "auto",
        model: Model = None,
        *,
        base_url: str | None = None,
        name: str | None = None,
        direction: Direction | None = None,
    ) -> None:
        self._adapted = Adapted(judge, model, base_url)
        info = self._adapted.info
        run = check_direction(direction, info.direction)
        super().__init__(
            name=name or self._adapted.name(run), kind=info.kind, direction=run, input_schema=_schema(info)
        )

    def _evaluate(self, eval_input: dict[str, Any]) -> list[Score]:
        return [self._score(self._adapted.outcome(self._adapted.sample(eval_input)))]

    async def _async_evaluate(self, eval_input: dict[str, Any]) -> list[Score]:
        return [self._score(await self._adapted.aoutcome(self._adapted.sample(eval_input)))]

    def _score(self, outcome: Outcome) -> Score:
        verdict = verdict_of(outcome)
        return Score(
            name=self.name,
            score=self._adapted.value(verdict, self.direction),
            label=verdict.label,
            explanation=told(verdict),
            metadata=self._adapted.evidence(verdict),
            kind=self.kind,
            direction=self.direction,
        )


def _schema(info: JudgeInfo) -> type[BaseModel]:
    """Return the input schema: the columns that the judge requires, and those that it reads if they exist."""
    names = list(dict.fromkeys((*info.requires, *info.reads, "output")))
    fields: dict[str, Any] = {}
    for name in names:
        kind = TYPES.get(name, str if name in FIELDS else Any)
        fields[name] = (kind, ...) if name in info.requires else (kind | None, None)
    return create_model("JudgeInput", **fields)
