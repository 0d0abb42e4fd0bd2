"""A judge as a scorer of MLflow, in `mlflow.genai.evaluate` and on traces."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import mlflow
import pytest
from given import CONTEXT, FALSE, QUESTION, SECRET, TRUE, answering, run_example
from mlflow.entities import Document, SpanType

from magistrate.engines.scripted import ScriptedEngine
from magistrate.integrations.mlflow import JudgeScorer
from standins import Standin

INPUTS = {"question": QUESTION, "context": CONTEXT}


@pytest.fixture(scope="module", autouse=True)
def tracked(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A store in a file; to make one takes MLflow ten seconds."""
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}")


def test_yes_means_that_the_judge_is_content() -> None:
    scorer = JudgeScorer("novelty")
    assert scorer.name == "novelty_faithfulness"
    true, false = scorer(inputs=INPUTS, outputs=TRUE), scorer(inputs=INPUTS, outputs=FALSE)
    assert (true.name, true.value, false.value) == (scorer.name, "yes", "no")
    assert (true.error, false.error) == (None, None)
    assert "47" in (false.rationale or "")
    assert false.source.source_type == "CODE"


def test_the_evidence_goes_along() -> None:
    metadata = JudgeScorer("novelty")(inputs=INPUTS, outputs=FALSE).metadata or {}
    assert all(isinstance(value, str) for value in metadata.values())
    quote = json.loads(metadata["claims"])[0]["output_quote"]
    assert FALSE[quote["start"] : quote["end"]] == quote["text"]
    assert (float(metadata["score"]) > 0.5, metadata["score_direction"]) == (True, "minimize")
    assert metadata["recipe"].startswith("judge=novelty@")


def test_a_judge_that_asks_a_model_inside_a_running_loop() -> None:
    scorer = JudgeScorer("faithfulness:threshold=.3", answering({"faithful": 0.8, "hallucinated": 0.2}))
    assert scorer.name == "faithfulness_threshold_.3"

    async def called() -> Any:
        return scorer(inputs=INPUTS, outputs=FALSE)

    found = asyncio.run(called())
    assert (found.value, found.source.source_type) == ("yes", "LLM_JUDGE")
    assert float(found.metadata["probability"]) == pytest.approx(0.8)


def test_a_judge_asks_a_server_at_its_address(served: Standin) -> None:
    scorer = JudgeScorer("hallucination", "openai:model-a", base_url=served.url)
    found = scorer(inputs=INPUTS, outputs=FALSE)
    assert (found.value, (found.metadata or {})["score"]) == ("no", "0.75"), found.error
    assert SECRET not in str(found.to_dictionary()) + repr(scorer)


def test_what_breaks_is_an_error_and_no_value(broken: tuple[ScriptedEngine, str]) -> None:
    engine, reason = broken
    found = JudgeScorer("faithfulness", engine)(inputs=INPUTS, outputs=TRUE + " Yes.")
    assert found.value is None
    assert reason in found.error.error_message
    assert found.error.error_code in ("ENGINE_ERROR", "INVALID_OUTPUT", "OVER_LENGTH")


def test_an_abstention_is_an_error_and_no_value() -> None:
    for given, code in (
        ({"inputs": {"question": QUESTION}, "outputs": TRUE}, "NO_CONTEXT"),
        ({"inputs": INPUTS}, "NO_OUTPUT"),
    ):
        found = JudgeScorer("novelty")(**given)
        assert (found.value, found.error.error_code) == (None, code)


def test_a_reference_is_taken_from_the_expectations() -> None:
    scorer = JudgeScorer("exact")
    assert scorer.name == "exact"
    given = {"inputs": {"question": QUESTION}, "expectations": {"expected_response": TRUE}}
    assert scorer(outputs=TRUE, **given).value == "yes"
    assert scorer(outputs=FALSE, **given).value == "no"


def test_mlflows_own_evaluation_counts_errors_as_failed_and_not_in_means() -> None:
    data = [
        {"inputs": INPUTS, "outputs": TRUE},
        {"inputs": INPUTS, "outputs": FALSE},
        {"inputs": {"question": QUESTION}, "outputs": TRUE},
    ]
    done = mlflow.genai.evaluate(data=data, scorers=[JudgeScorer("novelty")])
    assert done.metrics["novelty_faithfulness/mean"] == 0.5
    assert not done.passed
    assert "no_context" in done.reason and "47" in done.reason
    assert done.result_df is not None
    (error,) = done.result_df["novelty_faithfulness/error_message"].dropna()
    assert "abstained (no_context)" in error
    assert mlflow.genai.evaluate(data=data[:1], scorers=[JudgeScorer("novelty")]).passed


def test_the_documents_of_a_trace_are_the_context() -> None:
    @mlflow.trace(span_type=SpanType.RETRIEVER)
    def search(question: str) -> list[Document]:
        return [Document(page_content=text) for text in CONTEXT]

    @mlflow.trace
    def answer(question: str) -> str:
        search(question)
        return FALSE if "museum" in question else TRUE

    mlflow.set_experiment("traces")
    answer(QUESTION)
    answer("When does the museum open?")
    traces = mlflow.search_traces(return_type="list")
    done = mlflow.genai.evaluate(data=traces, scorers=[JudgeScorer("novelty")])
    assert done.result_df is not None
    assert sorted(done.result_df["novelty_faithfulness/value"]) == ["no", "yes"]


def test_the_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    told = run_example("MLflow")
    assert capsys.readouterr().out.rstrip() == told.rstrip()
