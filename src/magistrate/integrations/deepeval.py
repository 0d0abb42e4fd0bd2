"""A judge as a metric of DeepEval (`pip install deepeval`)."""

from __future__ import annotations

import json
from typing import Any

from magistrate.errors import DatasetError, NoVerdict
from magistrate.integrations.judged import Adapted, Model, missing, told, verdict_of
from magistrate.integrations.samples import deepeval_row
from magistrate.judges.base import Judge
from magistrate.types import Abstention, Outcome, Sample

try:
    from deepeval.errors import MissingTestCaseParamsError
    from deepeval.metrics import BaseMetric
    from deepeval.test_case import LLMTestCase
except ModuleNotFoundError as error:
    raise missing(error, "deepeval", "deepeval") from None

ABSENT = ("no_context", "no_output", "missing_input")


class JudgeMetric(BaseMetric):
    """Runs a judge in `assert_test(test_case, [JudgeMetric("faithfulness")])` and `evaluate`.

    The score is inverted if needed so that higher is better, as DeepEval expects: for judges of
    faithfulness 1 means faithful, and a test case passes at `threshold` or more. Without a threshold, the
    judge's own decides, and a test case passes if the judge accepts it. A test case without a verdict has
    an `error` and no score, is not successful, and raises: `MissingTestCaseParamsError` if it lacks an
    input of the judge, else `NoVerdict`. The context is `retrieval_context`, or else `context`. `evidence`
    (and `verbose_logs`, as JSON) has claims with quotes and offsets, probability and recipe.
    """

    def __init__(
        self,
        judge: str | Judge = "auto",
        model: Model = None,
        threshold: float | None = None,
        *,
        base_url: str | None = None,
        name: str | None = None,
        async_mode: bool = True,
        flaky: bool = False,
    ) -> None:
        # DeepEval copies a metric through attributes with the names of these arguments.
        self.judge, self.model, self.base_url = judge, model, base_url
        self.async_mode, self.flaky = async_mode, flaky
        self._adapted = Adapted(judge, model, base_url)
        info = self._adapted.info
        own = self._adapted.threshold
        self._own_threshold = own if info.direction == "maximize" else 1 - own
        self.threshold = self._own_threshold if threshold is None else threshold
        self.name = name or self._adapted.name("maximize")
        self.evaluation_model = info.name
        self.outcome: Outcome | None = None
        self.evidence: dict[str, Any] | None = None
        self._decided: tuple[float, bool] | None = None  # a score, and whether the judge accepts it

    @property
    def __name__(self) -> str:
        return self.name

    def measure(self, test_case: LLMTestCase, *_: Any, **__: Any) -> float:
        """Return the score of one test case. Works inside a running event loop too."""
        return _settled(self, self._adapted.outcome(_begun(self, test_case)))

    async def a_measure(self, test_case: LLMTestCase, *_: Any, **__: Any) -> float:
        """Return the score of one test case, like `measure`."""
        return _settled(self, await self._adapted.aoutcome(_begun(self, test_case)))

    def is_successful(self) -> bool:
        """Return whether the last test case passes. It never does without a verdict."""
        if self.error is not None or self.score is None:
            self.success = False
        elif self.threshold != self._own_threshold:
            self.success = self.score >= self.threshold
        elif self._decided is not None and self._decided[0] == self.score:
            self.success = self._decided[1]
        # Otherwise DeepEval took score and success from its cache.
        return bool(self.success)


# Functions, not methods: DeepEval makes a span of every method of a metric.


def _begun(metric: JudgeMetric, test_case: LLMTestCase) -> Sample:
    metric.score = metric.reason = metric.error = metric.outcome = metric.evidence = None
    metric.success, metric.verbose_logs, metric._decided = False, None, None
    try:
        return metric._adapted.read(test_case, deepeval_row)
    except DatasetError as error:
        metric.error = str(error)
        raise


def _settled(metric: JudgeMetric, outcome: Outcome) -> float:
    metric.outcome = outcome
    try:
        verdict = verdict_of(outcome)
    except NoVerdict as error:
        metric.error = str(error)
        if isinstance(outcome, Abstention) and outcome.reason in ABSENT:
            raise MissingTestCaseParamsError(str(error)) from None
        raise
    adapted = metric._adapted
    score = adapted.value(verdict, "maximize")
    metric.score, metric.reason = score, told(verdict)
    metric._decided = score, adapted.passes(verdict)
    metric.evidence = {**adapted.evidence(verdict), "direction": "maximize"}
    metric.verbose_logs = json.dumps(metric.evidence, ensure_ascii=False, indent=1)
    metric.is_successful()
    return score
