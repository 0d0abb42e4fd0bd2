"""A judge as a metric of Opik, in its own evaluation."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import opik
import pytest
from given import CONTEXT, FALSE, QUESTION, SECRET, TRUE, answering, run_example

from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import SpecError
from magistrate.integrations.opik import JudgeMetric
from magistrate.judges import Hallucination
from standins import Standin


class Sink(BaseHTTPRequestHandler):
    """A server of Opik that takes whatever it is sent."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(204)
        self.end_headers()

    do_GET = do_PUT = do_PATCH = do_POST

    def log_message(self, *_: Any) -> None:
        """Nothing: requests are nobody's business here."""


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    """Where Opik sends its traces, on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Sink) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        os.environ["OPIK_URL_OVERRIDE"] = f"http://127.0.0.1:{listening.server_port}/api"
        os.environ["OPIK_PROJECT_NAME"] = "tests"
        yield
        opik.flush_tracker()
        listening.shutdown()


def test_one_means_hallucinated_as_in_opiks_own_metric() -> None:
    metric = JudgeMetric("novelty", track=False)
    assert metric.name == "novelty_hallucination"
    false = metric.score(output=FALSE, context=CONTEXT, input=QUESTION)
    true = metric.score(output=TRUE, context=CONTEXT, input=QUESTION)
    assert (false.name, false.category_name, false.scoring_failed) == (metric.name, "hallucinated", False)
    assert true.value < 0.5 < false.value
    assert true.category_name == "faithful"
    assert "47" in false.reason


def test_the_value_can_be_turned_and_is_named_for_it() -> None:
    as_is, turned = JudgeMetric("novelty", track=False), JudgeMetric("novelty", direction="maximize")
    assert turned.name == "novelty_faithfulness"
    found = turned.score(output=FALSE, context=CONTEXT)
    assert found.value == 1 - as_is.score(output=FALSE, context=CONTEXT).value
    assert (found.metadata["direction"], found.metadata["score_direction"]) == ("maximize", "minimize")
    with pytest.raises(SpecError, match="'minimize' or 'maximize', got 'up'"):
        JudgeMetric("novelty", direction="up")  # type: ignore[arg-type]


def test_the_evidence_goes_along() -> None:
    metadata = JudgeMetric("novelty", track=False).score(output=FALSE, context=CONTEXT).metadata
    quote = metadata["claims"][0]["output_quote"]
    assert FALSE[quote["start"] : quote["end"]] == quote["text"]
    assert metadata["probability"] > 0.5
    assert metadata["recipe"].startswith("judge=novelty@")
    assert json.loads(json.dumps(metadata)) == metadata


def test_a_judge_that_asks_a_model_also_awaited() -> None:
    metric = JudgeMetric("faithfulness", answering({"faithful": 0.1, "hallucinated": 0.9}), track=False)
    assert metric.name == "faithfulness_hallucination"
    found = asyncio.run(metric.ascore(output=FALSE, context=CONTEXT))
    assert (found.value, found.metadata["probability"]) == (pytest.approx(0.9), pytest.approx(0.9))
    assert "model=script" in found.metadata["recipe"]


def test_inside_a_running_loop_the_plain_call_works_too() -> None:
    async def called() -> Any:
        return JudgeMetric("novelty", track=False).score(output=FALSE, context=CONTEXT)

    assert asyncio.run(called()).value > 0.5


def test_a_judge_asks_a_server_at_its_address(served: Standin) -> None:
    metric = JudgeMetric("hallucination", "openai:model-a", base_url=served.url, track=False)
    found = metric.score(output=FALSE, context=CONTEXT)
    assert (found.value, found.scoring_failed) == (0.75, False), found.reason
    assert SECRET not in str(vars(found)) + str(vars(metric))


def test_what_breaks_is_a_failed_score_with_its_reason(broken: tuple[ScriptedEngine, str]) -> None:
    engine, reason = broken
    found = JudgeMetric("faithfulness", engine, track=False).score(output=TRUE + " Yes.", context=CONTEXT)
    assert found.scoring_failed
    assert reason in found.reason


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"output": TRUE}, "no_context"),
        ({"context": CONTEXT}, "no_output"),
    ],
)
def test_an_abstention_is_a_failed_score_with_its_reason(given: dict[str, Any], reason: str) -> None:
    found = JudgeMetric("novelty", track=False).score(**given)
    assert found.scoring_failed
    assert reason in found.reason


def test_opiks_evaluation_leaves_failures_out_of_its_means() -> None:
    items = [
        {"input": QUESTION, "context": CONTEXT, "answer": TRUE},
        {"input": QUESTION, "context": CONTEXT, "answer": FALSE},
        {"input": QUESTION, "context": [], "answer": TRUE},
    ]
    engine = ScriptedEngine(lambda prompt: '{"reasons": ["few"], "score": 0.25}')
    done = opik.evaluation.evaluate_on_dict_items(
        items=items,
        task=lambda item: {"output": item["answer"]},
        scoring_metrics=[JudgeMetric("novelty"), JudgeMetric(Hallucination(), engine, name="asked")],
    )
    scored = [result.score_results[0] for result in done.test_results]
    assert sorted(each.scoring_failed for each in scored) == [False, False, True]
    means = done.aggregate_evaluation_scores()
    fine = [each.value for each in scored if not each.scoring_failed]
    assert means["novelty_hallucination"].mean == pytest.approx(sum(fine) / 2)


def test_the_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    told = run_example("Opik")
    assert capsys.readouterr().out.rstrip() == told.rstrip()
