"""A judge as a metric of DeepEval, in `assert_test` and `evaluate`; its test cases as samples."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from deepeval import assert_test, evaluate
from deepeval.dataset import EvaluationDataset
from deepeval.errors import MissingTestCaseParamsError
from deepeval.evaluate import AsyncConfig, CacheConfig, DisplayConfig, ErrorConfig
from deepeval.test_case import ConversationalTestCase, LLMTestCase, RetrievedContextData, Turn
from given import CONTEXT, FALSE, QUESTION, SECRET, TRUE, answering, run_example

import magistrate
from magistrate.engines.scripted import ScriptedEngine
from magistrate.integrations.deepeval import JudgeMetric
from magistrate.integrations.samples import from_deepeval
from magistrate.judges import Hallucination
from magistrate.testing import NoVerdict
from standins import Standin


def case(output: str | None, context: list[Any] | None = CONTEXT, **fields: Any) -> LLMTestCase:
    return LLMTestCase(input=QUESTION, actual_output=output, retrieval_context=context, **fields)


# --- a judge as a metric -------------------------------------------------------------------------


def test_one_means_faithful_and_the_judges_own_threshold_decides() -> None:
    metric = JudgeMetric("novelty")
    assert metric.__name__ == "novelty_faithfulness"
    assert metric.measure(case(FALSE)) == metric.score
    assert metric.score is not None and metric.score < 0.5
    assert not metric.is_successful() and metric.error is None
    assert "47" in (metric.reason or "")
    assert asyncio.run(metric.a_measure(case(TRUE))) > 0.5
    assert metric.is_successful()


def test_a_threshold_of_ones_own_is_held_against_the_turned_score() -> None:
    engine = ScriptedEngine(lambda prompt: {"faithful": 0.7, "hallucinated": 0.3})
    for threshold, passes in ((0.6, True), (0.8, False)):
        metric = JudgeMetric("faithfulness", engine, threshold)
        assert metric.measure(case(FALSE)) == pytest.approx(0.7)
        assert metric.is_successful() is passes


def test_what_the_judge_calls_hallucinated_does_not_pass_by_a_tie() -> None:
    engine = ScriptedEngine(lambda prompt: '{"reasons": ["half"], "score": 0.5}')
    metric = JudgeMetric(Hallucination(), engine)
    assert (metric.measure(case(FALSE)), metric.threshold) == (0.5, 0.5)
    assert metric.evidence is not None and metric.evidence["label"] == "hallucinated"
    assert not metric.is_successful()


def test_what_deepeval_takes_from_its_cache_is_not_decided_by_an_earlier_case() -> None:
    metric = JudgeMetric("novelty")
    metric.measure(case(FALSE))
    metric.score, metric.success = 0.9, True
    assert metric.is_successful()


def test_the_evidence_goes_along() -> None:
    metric = JudgeMetric("novelty")
    metric.measure(case(FALSE))
    assert metric.evidence is not None
    quote = metric.evidence["claims"][0]["output_quote"]
    assert FALSE[quote["start"] : quote["end"]] == quote["text"]
    assert metric.evidence["recipe"].startswith("judge=novelty@")
    assert json.loads(metric.verbose_logs or "") == metric.evidence


def test_a_judge_asks_a_server_at_its_address(served: Standin) -> None:
    metric = JudgeMetric("hallucination", "openai:model-a", base_url=served.url)
    assert metric.measure(case(FALSE)) == 0.25, metric.error
    assert SECRET not in f"{metric.reason} {metric.verbose_logs}"


def test_the_copies_that_deepeval_makes_ask_there_too(served: Standin) -> None:
    metric = JudgeMetric("hallucination", "openai:model-a", base_url=served.url)
    result = evaluate(
        [case(FALSE)],
        [metric],
        async_config=AsyncConfig(run_async=True),
        display_config=DisplayConfig(show_indicator=False, print_results=False),
        cache_config=CacheConfig(write_cache=False),
    )
    (judged,) = result.test_results[0].metrics_data or ()
    assert (judged.score, judged.error) == (0.25, None)


def test_what_breaks_is_an_error_and_no_score(broken: tuple[ScriptedEngine, str]) -> None:
    engine, reason = broken
    metric = JudgeMetric("faithfulness", engine)
    with pytest.raises(NoVerdict, match=reason):
        metric.measure(case(TRUE + " Yes."))
    assert (metric.score, metric.is_successful()) == (None, False)
    assert reason in (metric.error or "")


def test_nothing_of_an_earlier_test_case_stays() -> None:
    metric = JudgeMetric("faithfulness", answering({"faithful": 0.9, "hallucinated": 0.1}))
    metric.measure(case(FALSE))
    assert metric.is_successful()
    with pytest.raises(NoVerdict):
        metric.measure(case(FALSE))
    assert (metric.score, metric.reason, metric.evidence) == (None, None, None)
    assert not metric.is_successful()


@pytest.mark.parametrize("lacking", [case(TRUE, None), case(None)])
def test_a_test_case_that_lacks_something_is_one_of_missing_parameters(lacking: LLMTestCase) -> None:
    metric = JudgeMetric("novelty")
    with pytest.raises(MissingTestCaseParamsError, match=r"no_context|no_output"):
        metric.measure(lacking)
    assert not metric.is_successful()


def test_assert_test_passes_and_fails_as_the_judge_does() -> None:
    for run_async in (True, False):
        assert_test(case(TRUE), [JudgeMetric("novelty")], run_async=run_async)
        with pytest.raises(AssertionError, match="novelty_faithfulness"):
            assert_test(case(FALSE), [JudgeMetric("novelty")], run_async=run_async)
        with pytest.raises(NoVerdict, match="no answers left"):
            assert_test(case(FALSE), [JudgeMetric("faithfulness", answering())], run_async=run_async)


def test_deepevals_evaluation_shows_what_failed_as_failed() -> None:
    engine = ScriptedEngine(lambda prompt: {"faithful": 0.7, "hallucinated": 0.3})
    done = evaluate(
        [case(TRUE, name="true"), case(FALSE, name="false"), case(TRUE, [], name="lacking")],
        [JudgeMetric("novelty"), JudgeMetric("faithfulness", engine, 0.9, name="strict")],
        async_config=AsyncConfig(run_async=True),
        display_config=DisplayConfig(show_indicator=False, print_results=False),
        cache_config=CacheConfig(write_cache=False),
        error_config=ErrorConfig(ignore_errors=True),
    )
    found = {
        (result.name, metric.name): metric
        for result in done.test_results
        for metric in result.metrics_data or ()
    }
    own = {name: found[name, "novelty_faithfulness"] for name in ("true", "false", "lacking")}
    assert [each.success for each in own.values()] == [True, False, False]
    assert own["lacking"].score is None
    assert "no_context" in (own["lacking"].error or "")
    assert found["false", "strict"].success is False
    assert found["false", "strict"].score == pytest.approx(0.7)


# --- test cases as samples -----------------------------------------------------------------------


def test_test_cases_are_samples() -> None:
    cases = [
        case(TRUE, expected_output="The capital.", name="first", metadata={"page": 3}, tags=["a"]),
        case(FALSE, [RetrievedContextData(context=CONTEXT[0], source="wiki"), CONTEXT[1]]),
        LLMTestCase(input=QUESTION, actual_output=TRUE, context=CONTEXT),
    ]
    first, second, third = from_deepeval(cases)
    assert (first.id, first.input, first.output, first.expected) == ("first", QUESTION, TRUE, "The capital.")
    assert first.metadata == {"page": 3, "tags": ["a"]}
    assert [each.context for each in (first, second, third)] == [tuple(CONTEXT)] * 3
    assert second.id == "deepeval-2"


def test_a_conversation_is_a_sample_of_its_last_answer() -> None:
    talk = ConversationalTestCase(
        turns=[
            Turn(role="user", content="What is Bern?"),
            Turn(role="assistant", content="A city.", retrieval_context=[CONTEXT[0]]),
            Turn(role="user", content="And the museum?"),
            Turn(role="assistant", content="Opens at nine.", retrieval_context=[CONTEXT[1], CONTEXT[0]]),
        ],
        expected_outcome="It knows.",
    )
    (sample,) = from_deepeval([talk])
    assert (sample.output, sample.context) == ("Opens at nine.", tuple(CONTEXT))
    assert [turn.role for turn in sample.messages] == ["user", "assistant", "user"]
    assert sample.expected == "It knows."


def test_a_data_set_of_deepeval_is_one() -> None:
    data = EvaluationDataset()
    data.add_test_case(case(TRUE))
    run = magistrate.judge(judge="novelty", output=next(iter(from_deepeval(data))).output, context=CONTEXT)
    assert isinstance(run, magistrate.Verdict)


def test_what_cannot_be_read_is_named_and_nothing_else_is_lost() -> None:
    asked = ConversationalTestCase(turns=[Turn(role="user", content="Hello?")])
    data = from_deepeval([case(TRUE), case(None), "no case", asked, case(FALSE)])
    assert [sample.output for sample in data] == [TRUE, FALSE]
    assert [str(problem) for problem in data.problems] == [
        "deepeval test case 2: actual_output is missing",
        "deepeval test case 3: must be an LLMTestCase or a ConversationalTestCase, got str",
        "deepeval test case 4: turns: the assistant says nothing",
    ]


def test_the_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    told = run_example("DeepEval")
    assert capsys.readouterr().out.rstrip() == told.rstrip()
