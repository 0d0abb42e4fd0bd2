"""A judge as a metric of Ragas (`pip install ragas`)."""

from __future__ import annotations

from typing import Any

from magistrate.datasets.samples import to_row
from magistrate.errors import SpecError
from magistrate.integrations.judged import Adapted, Model, missing, verdict_of
from magistrate.integrations.samples import ragas_row
from magistrate.judges.base import Judge

try:
    from ragas.callbacks import ChainType, new_group
    from ragas.metrics.base import MetricType, MultiTurnMetric, SingleTurnMetric
except ModuleNotFoundError as error:
    raise missing(error, "ragas", "ragas") from None

COLUMNS = {
    "input": "user_input",
    "output": "response",
    "context": "retrieved_contexts",
    "expected": "reference",
}


class JudgeMetric(SingleTurnMetric, MultiTurnMetric):
    """Runs a judge in `ragas.evaluate(dataset, metrics=[JudgeMetric("faithfulness")])`, on both kinds of
    samples.

    The score is inverted if needed so that higher is better, as in Ragas: for judges of faithfulness 1
    means faithful. A sample without a verdict raises `NoVerdict`. `evaluate` turns it into NaN, which its
    means leave out, or raises it with `raise_exceptions=True`. Ragas stores only numbers as scores, so the
    evidence (claims with quotes and offsets, probability, recipe) is in the traces of the result, under the
    metric's name and `evidence`.
    """

    def __init__(
        self,
        judge: str | Judge = "auto",
        model: Model = None,
        *,
        base_url: str | None = None,
        name: str | None = None,
    ) -> None:
        self._adapted = Adapted(judge, model, base_url)
        info = self._adapted.info
        if lacking := [field for field in info.requires if field not in COLUMNS]:
            raise SpecError(
                f"judge {info.name!r} needs {lacking[0]!r}, which a sample of Ragas does not have; "
                f"it has: {', '.join(COLUMNS)}"
            )
        super().__init__(name=name or self._adapted.name("maximize"))
        optional = {f"{COLUMNS[field]}:optional" for field in COLUMNS if field not in info.requires}
        self._required_columns = {
            MetricType.SINGLE_TURN: {COLUMNS[field] for field in info.requires} | optional,
            MetricType.MULTI_TURN: {"user_input", "reference:optional"},
        }

    def init(self, run_config: Any) -> None:
        """Do nothing: the judge's engine is created at the first sample."""

    async def _single_turn_ascore(self, sample: Any, callbacks: Any) -> float:
        return await self._scored(sample, callbacks)

    async def _multi_turn_ascore(self, sample: Any, callbacks: Any) -> float:
        return await self._scored(sample, callbacks)

    async def _scored(self, sample: Any, callbacks: Any) -> float:
        read = self._adapted.read(sample, ragas_row)
        verdict = verdict_of(await self._adapted.aoutcome(read))
        evidence = {**self._adapted.evidence(verdict), "direction": "maximize"}
        # Ragas shows the steps below a metric as its prompts, each with its output.
        below, _ = new_group(
            "evidence",
            inputs={"data": to_row(read)},
            callbacks=callbacks,
            metadata={"type": ChainType.RAGAS_PROMPT},
        )
        below.on_chain_end({"output": evidence})
        return self._adapted.value(verdict, "maximize")
