"""A judge as a scorer of MLflow (`pip install mlflow`, 3 or newer)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import PrivateAttr

from magistrate.integrations.judged import Adapted, Model, missing, told
from magistrate.judges.base import Judge
from magistrate.types import Abstention, Outcome, Verdict

try:
    from mlflow.entities import AssessmentError, AssessmentSource, AssessmentSourceType, Feedback, SpanType
    from mlflow.genai.judges import CategoricalRating
    from mlflow.genai.scorers import Scorer
except ModuleNotFoundError as error:
    raise missing(error, "mlflow", "mlflow") from None

EXPECTED = ("expected_response", "expected_output", "expected")
TEXTS = ("page_content", "content", "text")  # keys of a document's text in retriever spans


class JudgeScorer(Scorer):
    """Runs a judge in `mlflow.genai.evaluate(data, scorers=[JudgeScorer("faithfulness")])`.

    The value is `yes` if the judge accepts the output and `no` otherwise, as in MLflow's own judges, so the
    mean is the share of faithful outputs, higher is better, and `result.passed` works as expected. The
    metadata has the judge's own score and its direction. A sample without a verdict has an `error` with
    code and message but no value; no mean includes it. `rationale` is the judge's explanation. The metadata
    (texts, as MLflow requires) is the evidence: claims with quotes and offsets, probability, recipe.

    `inputs` and `expectations` are read by the column names that data sets use (`question`, `context`,
    `messages`, `expected_response`, …). If they have no context, that of the trace's retrievers is used.
    """

    _adapted: Adapted = PrivateAttr()

    def __init__(
        self,
        judge: str | Judge = "auto",
        model: Model = None,
        *,
        base_url: str | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        adapted = Adapted(judge, model, base_url)
        # The name becomes part of a metric's name, where MLflow allows few characters.
        super().__init__(name=name or re.sub(r"[^\w.-]+", "_", adapted.name("maximize")), **options)
        self._adapted = adapted

    def __call__(
        self,
        *,
        inputs: Any = None,
        outputs: Any = None,
        expectations: dict[str, Any] | None = None,
        trace: Any = None,
    ) -> Feedback:
        """Return the feedback on one row."""
        row = _row(inputs, outputs, expectations or {}, trace)
        return self._feedback(self._adapted.outcome(self._adapted.sample(row)))

    def _feedback(self, outcome: Outcome) -> Feedback:
        info = self._adapted.info
        kind = AssessmentSourceType.LLM_JUDGE if info.kind == "llm" else AssessmentSourceType.CODE
        source = AssessmentSource(source_type=kind, source_id=info.name)
        if not isinstance(outcome, Verdict):
            code = outcome.reason if isinstance(outcome, Abstention) else outcome.code
            failed = AssessmentError(error_code=code.upper(), error_message=told(outcome))
            return Feedback(
                name=self.name, error=failed, source=source, metadata={"recipe": self._adapted.recipe}
            )
        evidence = self._adapted.evidence(outcome)
        return Feedback(
            name=self.name,
            value=CategoricalRating.YES if self._adapted.passes(outcome) else CategoricalRating.NO,
            rationale=told(outcome),
            source=source,
            metadata={
                name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                for name, value in evidence.items()
                if value is not None
            },
        )


def _row(inputs: Any, outputs: Any, expectations: Mapping[str, Any], trace: Any) -> dict[str, Any]:
    row = dict(inputs) if isinstance(inputs, Mapping) else {"input": inputs}
    if isinstance(outputs, Mapping):
        row |= outputs
    elif outputs is not None:
        row["output"] = outputs if isinstance(outputs, str) else json.dumps(outputs, ensure_ascii=False)
    expected = next((expectations[name] for name in EXPECTED if name in expectations), None)
    if isinstance(expected, str):
        row["expected"] = expected
    if "context" in expectations:
        row["context"] = expectations["context"]
    if trace is not None and not row.get("context"):
        row["context"] = _retrieved(trace) or None
    return row


def _retrieved(trace: Any) -> list[str]:
    """Return the texts of the documents returned by the trace's retrievers."""
    spans = trace.search_spans(span_type=SpanType.RETRIEVER)
    return [text for span in spans for document in span.outputs or () if (text := _text(document))]


def _text(document: Any) -> str | None:
    if isinstance(document, Mapping):
        document = next((document[name] for name in TEXTS if isinstance(document.get(name), str)), None)
    return document if isinstance(document, str) else None
