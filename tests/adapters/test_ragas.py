"""A judge as a metric of Ragas, in its `evaluate`; its samples as ours."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from given import CONTEXT, FALSE, QUESTION, TRUE, answering, run_example
from ragas import EvaluationDataset, MultiTurnSample, SingleTurnSample, evaluate
from ragas.messages import AIMessage, HumanMessage, ToolCall, ToolMessage

from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import SpecError
from magistrate.integrations.ragas import JudgeMetric
from magistrate.integrations.samples import from_ragas
from magistrate.testing import NoVerdict
from standins import Standin


def sample(response: str | None, contexts: list[str] | None = CONTEXT, **fields: Any) -> SingleTurnSample:
    return SingleTurnSample(user_input=QUESTION, response=response, retrieved_contexts=contexts, **fields)


TALK = MultiTurnSample(
    user_input=[
        HumanMessage(content=QUESTION),
        AIMessage(content="Let me look.", tool_calls=[ToolCall(name="look", args={"what": "Bern"})]),
        ToolMessage(content=CONTEXT[0]),
        AIMessage(content=FALSE),
    ],
    reference="The capital.",
)


# --- a judge as a metric -------------------------------------------------------------------------


def test_one_means_faithful() -> None:
    metric = JudgeMetric("novelty")
    assert metric.name == "novelty_faithfulness"
    assert asyncio.run(metric.single_turn_ascore(sample(FALSE))) < 0.5
    assert asyncio.run(metric.single_turn_ascore(sample(TRUE))) > 0.5
    assert metric.single_turn_score(sample(TRUE)) > 0.5


def test_a_judge_that_asks_a_model() -> None:
    metric = JudgeMetric("faithfulness", answering({"faithful": 0.8, "hallucinated": 0.2}))
    assert asyncio.run(metric.single_turn_ascore(sample(FALSE))) == pytest.approx(0.8)


def test_a_judge_asks_a_server_at_its_address(served: Standin) -> None:
    metric = JudgeMetric("hallucination", "openai:model-a", base_url=served.url)
    assert asyncio.run(metric.single_turn_ascore(sample(FALSE))) == 0.25


def test_a_conversation_is_judged_by_what_tools_answered() -> None:
    metric = JudgeMetric("faithfulness", engine := answering({"faithful": 0.8, "hallucinated": 0.2}))
    with pytest.raises(NoVerdict, match="no_context"):
        asyncio.run(JudgeMetric("faithfulness", answering()).multi_turn_ascore(silent()))
    assert asyncio.run(metric.multi_turn_ascore(TALK)) == pytest.approx(0.8)
    assert CONTEXT[0] in str(engine.prompts)


def silent() -> MultiTurnSample:
    return MultiTurnSample(user_input=[AIMessage(content=TRUE)])


def test_what_breaks_is_raised_with_its_reason(broken: tuple[ScriptedEngine, str]) -> None:
    engine, reason = broken
    with pytest.raises(NoVerdict, match=reason):
        asyncio.run(JudgeMetric("faithfulness", engine).single_turn_ascore(sample(TRUE + " Yes.")))


def test_an_abstention_is_raised_with_its_reason() -> None:
    with pytest.raises(NoVerdict, match="no_context"):
        asyncio.run(JudgeMetric("novelty").single_turn_ascore(sample(TRUE, [])))


def test_a_judge_of_what_ragas_does_not_have_is_refused_at_once() -> None:
    with pytest.raises(SpecError, match="needs 'logprobs', which a sample of Ragas does not have"):
        JudgeMetric("recorded_logprob")


def test_ragas_own_evaluation_makes_nan_of_failures_and_keeps_the_evidence() -> None:
    data = EvaluationDataset(samples=[sample(TRUE), sample(FALSE), sample(TRUE, [])])
    done = evaluate(data, metrics=[JudgeMetric("novelty")], show_progress=False)
    true, false, lacking = (row["novelty_faithfulness"] for row in done.scores)
    assert true > 0.5 > false
    assert math.isnan(lacking)
    assert done._repr_dict["novelty_faithfulness"] == pytest.approx((true + false) / 2)
    evidence = done.traces[1]["novelty_faithfulness"]["evidence"]["output"]
    quote = evidence["claims"][0]["output_quote"]
    assert FALSE[quote["start"] : quote["end"]] == quote["text"]
    assert (evidence["direction"], evidence["score_direction"]) == ("maximize", "minimize")
    assert evidence["recipe"].startswith("judge=novelty@")


def test_ragas_own_evaluation_raises_where_it_is_told_to() -> None:
    data = EvaluationDataset(samples=[sample(TRUE), sample(TRUE, [])])
    with pytest.raises(NoVerdict, match="no_context"):
        evaluate(data, metrics=[JudgeMetric("novelty")], show_progress=False, raise_exceptions=True)


def test_ragas_own_evaluation_of_conversations() -> None:
    metric = JudgeMetric("faithfulness", answering({"faithful": 0.8, "hallucinated": 0.2}))
    done = evaluate(EvaluationDataset(samples=[TALK]), metrics=[metric], show_progress=False)
    assert done.scores[0]["faithfulness"] == pytest.approx(0.8)


# --- samples as ours -----------------------------------------------------------------------------


def test_samples_of_ragas_are_ours() -> None:
    given = sample(TRUE, reference="The capital.", reference_contexts=["Elsewhere."], rubrics={"1": "bad"})
    (found,) = from_ragas(EvaluationDataset(samples=[given]))
    assert (found.id, found.input, found.output, found.expected) == (
        "ragas-1",
        QUESTION,
        TRUE,
        "The capital.",
    )
    assert found.context == tuple(CONTEXT)
    assert found.metadata == {"reference_contexts": ["Elsewhere."], "rubrics": {"1": "bad"}}


def test_a_conversation_is_a_sample_of_its_last_answer() -> None:
    (found,) = from_ragas([TALK])
    assert (found.output, found.expected) == (FALSE, "The capital.")
    assert [turn.role for turn in found.messages] == ["user", "assistant", "tool"]


def test_what_cannot_be_read_is_named_and_nothing_else_is_lost() -> None:
    asked = MultiTurnSample(user_input=[HumanMessage(content="Hello?")])
    data = from_ragas([sample(TRUE), sample(None), {"response": TRUE}, asked, sample(FALSE)])
    assert [each.output for each in data] == [TRUE, FALSE]
    assert [str(problem) for problem in data.problems] == [
        "ragas sample 2: response is missing",
        "ragas sample 3: must be a SingleTurnSample or a MultiTurnSample, got dict",
        "ragas sample 4: user_input: the assistant says nothing",
    ]


def test_the_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    told = run_example("Ragas")
    assert capsys.readouterr().out.rstrip() == told.rstrip()
