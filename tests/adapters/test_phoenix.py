"""A judge as an evaluator of Phoenix, in its own evaluation of data frames; its table of spans as samples."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pandas as pd
import pytest
from given import CONTEXT, FALSE, QUESTION, SECRET, TRUE, answering, run_example
from google.protobuf.json_format import MessageToDict
from openinference.instrumentation import (
    get_input_attributes,
    get_llm_attributes,
    get_output_attributes,
    get_retriever_attributes,
    get_span_kind_attributes,
)
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from phoenix.evals import async_evaluate_dataframe, bind_evaluator, evaluate_dataframe

from magistrate.engines.scripted import ScriptedEngine
from magistrate.integrations.phoenix import JudgeEvaluator
from magistrate.integrations.samples import from_openinference
from magistrate.testing import NoVerdict
from standins import Standin

ROW = {"output": FALSE, "context": CONTEXT, "input": QUESTION}


def test_the_score_says_which_way_it_goes() -> None:
    (score,) = JudgeEvaluator("novelty").evaluate(ROW)
    assert (score.name, score.label, score.direction) == ("novelty_hallucination", "hallucinated", "minimize")
    assert score.score is not None and score.score > 0.5
    assert score.kind == "code"
    (turned,) = JudgeEvaluator("novelty", direction="maximize").evaluate(ROW)
    assert (turned.name, turned.direction) == ("novelty_faithfulness", "maximize")
    assert turned.score == 1 - score.score


def test_the_evidence_goes_along() -> None:
    (score,) = JudgeEvaluator("novelty").evaluate(ROW)
    quote = score.metadata["claims"][0]["output_quote"]
    assert FALSE[quote["start"] : quote["end"]] == quote["text"]
    assert "47" in (score.explanation or "")
    assert score.metadata["recipe"].startswith("judge=novelty@")
    assert json.loads(json.dumps(score.to_dict()))["metadata"] == score.metadata


def test_it_describes_itself() -> None:
    told = JudgeEvaluator("faithfulness", answering()).describe()
    assert (told["name"], told["kind"], told["direction"]) == (
        "faithfulness_hallucination",
        "llm",
        "minimize",
    )
    assert set(told["input_schema"]["required"]) == {"context", "output"}
    assert {"input", "messages"} < set(told["input_schema"]["properties"])


def test_a_judge_that_asks_a_model_awaited_with_columns_of_other_names() -> None:
    evaluator = JudgeEvaluator("faithfulness", answering({"faithful": 0.8, "hallucinated": 0.2}))
    row = {"answer": FALSE, "reference": CONTEXT[0], "question": QUESTION}
    mapping = {"output": "answer", "context": "reference", "input": "question"}
    (score,) = asyncio.run(evaluator.async_evaluate(row, mapping))
    assert (score.label, score.score) == ("faithful", pytest.approx(0.2))
    assert score.metadata["probability"] == pytest.approx(0.8)


def test_a_judge_asks_a_server_at_its_address(served: Standin) -> None:
    evaluator = JudgeEvaluator("hallucination", "openai:model-a", base_url=served.url)
    (score,) = evaluator.evaluate(ROW)
    assert score.score == 0.75
    assert SECRET not in str(score.to_dict()) + str(evaluator.describe())


def test_what_breaks_is_raised_with_its_reason(broken: tuple[ScriptedEngine, str]) -> None:
    engine, reason = broken
    with pytest.raises(NoVerdict, match=reason):
        JudgeEvaluator("faithfulness", engine).evaluate({**ROW, "output": TRUE + " Yes."})


def test_an_abstention_is_raised_with_its_reason() -> None:
    with pytest.raises(NoVerdict, match="no_context"):
        JudgeEvaluator("novelty").evaluate({**ROW, "context": []})
    with pytest.raises(ValueError, match="context"):
        JudgeEvaluator("novelty").evaluate({"output": FALSE})


FRAME = pd.DataFrame(
    {
        "question": [QUESTION] * 3,
        "answer": [TRUE, FALSE, TRUE],
        "context": [CONTEXT, CONTEXT, []],
    }
)


QUIETLY = {"hide_tqdm_bar": True, "exit_on_error": False, "max_retries": 0}


def check(frame: pd.DataFrame) -> None:
    """Two rows have a score; the third has none, and why."""
    scores = list(frame["novelty_hallucination_score"])
    assert [each and each["label"] for each in scores] == ["faithful", "hallucinated", None]
    details = list(frame["novelty_hallucination_execution_details"])
    assert [each["status"] == "COMPLETED" for each in details] == [True, True, False]
    assert "no_context" in str(details[2]["exceptions"])


def bound() -> list[Any]:
    return [bind_evaluator(evaluator=JudgeEvaluator("novelty"), input_mapping={"output": "answer"})]


def test_a_data_frame_keeps_failures_apart() -> None:
    check(evaluate_dataframe(dataframe=FRAME, evaluators=bound(), **QUIETLY))


def test_a_data_frame_in_an_event_loop() -> None:
    check(asyncio.run(async_evaluate_dataframe(dataframe=FRAME, evaluators=bound(), **QUIETLY)))


# --- spans of the real SDK as samples ------------------------------------------------------------


def traced() -> list[ReadableSpan]:
    """The spans of one answer, recorded by OpenTelemetry with OpenInference's own attributes."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("tests")
    with tracer.start_as_current_span("answer") as chain:
        chain.set_attributes(get_span_kind_attributes("chain"))
        chain.set_attributes(get_input_attributes(QUESTION) | get_output_attributes(FALSE))
        with tracer.start_as_current_span("search") as retriever:
            retriever.set_attributes(get_span_kind_attributes("retriever"))
            found = [{"content": text, "id": str(number)} for number, text in enumerate(CONTEXT)]
            retriever.set_attributes(get_retriever_attributes(documents=found))
        with tracer.start_as_current_span("ask") as model:
            model.set_attributes(get_span_kind_attributes("llm"))
            said = [{"role": "user", "content": QUESTION}]
            answered = [{"role": "assistant", "content": FALSE}]
            model.set_attributes(get_llm_attributes(input_messages=said, output_messages=answered))
    return list(kept.get_finished_spans())


def test_recorded_spans_are_samples() -> None:
    spans = traced()
    exported = MessageToDict(encode_spans(spans))
    for given in ([json.loads(span.to_json()) for span in spans], exported):
        (sample,) = from_openinference(given)
        assert (sample.input, sample.output, sample.context) == (QUESTION, FALSE, tuple(CONTEXT))
        assert sample.messages == ()


def test_the_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    told = run_example("Phoenix")
    assert capsys.readouterr().out.rstrip() == told.rstrip()
