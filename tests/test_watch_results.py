"""Results of judges over OTLP: what they say, that they can be sent again, and when they are."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from magistrate.errors import SpecError
from magistrate.server.app import create_app
from magistrate.server.settings import Settings
from magistrate.types import Abstention, Failure, Outcome, Recipe, Scoring, Verdict
from magistrate.watch import otlp
from magistrate.watch.otlp import Encoding, Signal
from magistrate.watch.results import Result, Sender, SendError, Sent, as_logs, as_spans, encoded
from receivers import Collector, listening
from served import served
from test_otlp import SPAN, TRACE

NOW = 1_795_000_000.0
VERDICT = Verdict(
    "s", "faithfulness", "hallucinated", 0.9, explanation="It closes at five, not at six.", seconds=2.0
)
FAILURE = Failure("s", "faithfulness", "timeout", "no answer within 10 seconds")
ABSTENTION = Abstention("s", "faithfulness", "uncertain", "the scores are too close")


def a_result(outcome: Outcome = VERDICT, **more: Any) -> Result:
    recipe = Recipe("faithfulness@1", "tiny", "f" * 40, "p", "c", 0, 1, "1")
    scoring = Scoring("minimize", ("faithful", "hallucinated"), 0.5)
    known: dict[str, Any] = {"trace_id": TRACE, "span_id": SPAN, "recipe": recipe, "scoring": scoring}
    return Result(**{**known, "outcome": outcome, "time_ns": int(NOW * 1e9), **more})


def plain(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in attributes}


def the_event(result: Result) -> dict[str, Any]:
    (record,) = as_logs([result])["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    return {**record, "attributes": plain(record["attributes"])}


def the_span(result: Result) -> dict[str, Any]:
    (span,) = as_spans([result])["resourceSpans"][0]["scopeSpans"][0]["spans"]
    return {**span, "attributes": plain(span["attributes"])}


# --- what they say -------------------------------------------------------------------------------


def test_a_verdict_is_an_event_on_the_judged_span() -> None:
    event = the_event(a_result(response_id="r-1"))
    assert (event["traceId"], event["spanId"], event["eventName"]) == (
        TRACE,
        SPAN,
        "gen_ai.evaluation.result",
    )
    assert event["attributes"] == {
        "gen_ai.evaluation.name": "faithfulness",
        "gen_ai.evaluation.score.value": 0.9,
        "gen_ai.evaluation.score.label": "hallucinated",
        "gen_ai.evaluation.explanation": VERDICT.explanation,
        "gen_ai.response.id": "r-1",
        "gen_ai.evaluation.evaluator.version": a_result().identifier,
        "log.record.uid": event["attributes"]["log.record.uid"],
        "magistrate.score.direction": "minimize",
    }


def test_a_verdict_is_an_evaluator_span_with_one_link_and_no_parent() -> None:
    span = the_span(a_result(kind="code"))
    assert span["links"] == [{"traceId": TRACE, "spanId": SPAN}]
    assert span["traceId"] != TRACE and "parentSpanId" not in span
    assert int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"]) == 2_000_000_000
    attributes = span["attributes"]
    assert attributes["openinference.span.kind"] == "EVALUATOR"
    said = {
        name.rpartition(".")[2]: value
        for name, value in attributes.items()
        if name.startswith("annotations.0.")
    }
    assert isinstance(json.loads(said.pop("metadata")), dict)
    assert said == {
        "name": "faithfulness",
        "score": 0.9,
        "label": "hallucinated",
        "explanation": VERDICT.explanation,
        "annotator_kind": "CODE",
        "identifier": a_result().identifier,
    }


def test_a_failure_has_an_error_and_no_score_and_an_abstention_is_no_error() -> None:
    for read in (the_event, the_span):
        failed = read(a_result(FAILURE))["attributes"]
        assert failed["error.type"] == "timeout"
        assert not [name for name in failed if name.endswith((".score", ".label", "score.value"))]
        abstained = read(a_result(ABSTENTION))["attributes"]
        assert "error.type" not in abstained and "abstained" in abstained.values()
        assert not [name for name in abstained if name.endswith((".score", "score.value"))]
        assert "faithful" not in {*failed.values(), *abstained.values()}
    assert the_span(a_result(FAILURE))["status"]["code"] == 2


def test_ids_are_of_what_was_judged_by_whom() -> None:
    def ids(result: Result) -> tuple[str, str]:
        span = the_span(result)
        return span["traceId"], span["spanId"]

    one = a_result()
    again = a_result(FAILURE, time_ns=5, recipe=replace(one.recipe, n=99))
    assert ids(one) == ids(again), "a later outcome takes the place of an earlier one"
    others = [
        a_result(span_id="b" * 16),
        a_result(trace_id="b" * 32),
        a_result(recipe=replace(one.recipe, model="large")),
        a_result(replace(VERDICT, judge="rubric")),
    ]
    assert len({ids(each) for each in (one, *others)}) == 5


def test_a_record_of_a_log_is_told_from_a_later_one_and_not_from_itself() -> None:
    def uid(result: Result) -> str:
        return str(the_event(result)["attributes"]["log.record.uid"])

    assert uid(a_result()) == uid(a_result()) != uid(a_result(time_ns=5))


def test_keys_and_length_of_an_explanation_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "very-private-0123")
    said = the_event(a_result(replace(VERDICT, explanation="very-private-0123 " + "x" * 99_999)))[
        "attributes"
    ]
    text = said["gen_ai.evaluation.explanation"]
    assert "very-private" not in text and len(text) == 4_000


@pytest.mark.parametrize("encoding", ["json", "protobuf"])
def test_half_a_character_of_a_text_keeps_no_result_back(encoding: Encoding) -> None:
    halved = a_result(replace(VERDICT, explanation="cut \ud83d"), response_id="\udc00")
    for signal, value in (("traces", as_spans([halved])), ("logs", as_logs([halved]))):
        assert b"cut ?" in encoded(signal, value, encoding)  # type: ignore[arg-type]


@pytest.mark.parametrize("signal", ["traces", "logs"])
def test_both_encodings_say_the_same(signal: Signal) -> None:
    value = (as_spans if signal == "traces" else as_logs)([a_result(), a_result(FAILURE)])
    by_json, by_protobuf = (
        otlp.read(signal, encoding, encoded(signal, value, encoding)).value
        for encoding in ("json", "protobuf")
    )
    text = json.dumps(by_protobuf, sort_keys=True)
    (group,) = otlp.groups(signal, by_json)
    (other,) = otlp.groups(signal, by_protobuf)
    assert TRACE in text and SPAN in text
    for mine, theirs in zip(group.records, other.records, strict=True):
        assert (mine["traceId"], mine["spanId"], mine["attributes"]) == (
            theirs["traceId"],
            theirs["spanId"],
            theirs["attributes"],
        )


# --- sending -------------------------------------------------------------------------------------


def a_sender(address: str, waits: list[float], **more: Any) -> Sender:
    return Sender(address, sleep=waits.append, clock=lambda: NOW, randomness=random.Random(1), **more)


@pytest.mark.parametrize("encoding", ["json", "protobuf"])
def test_results_are_sent_packed_with_headers_and_what_was_rejected_is_told(encoding: Encoding) -> None:
    collector = Collector(
        (200, {}, b""), (200, {}, otlp.answer("logs", encoding, 2, "no").body), (200, {}, b"<html>")
    )
    waits: list[float] = []
    with listening(collector) as address:
        sender = a_sender(f"{address}/", waits, encoding=encoding, headers={"x-key": "k"})
        said = [sender.send("logs", as_logs([a_result()])) for _ in range(3)]
        sender.send("traces", as_spans([a_result()]))
    assert said == [Sent(), Sent(2, "no"), Sent()] and waits == [], "what was rejected is not sent again"
    path, headers, body = collector.asked[0]
    assert (path, headers["x-key"]) == ("/v1/logs", "k")
    assert otlp.read("logs", otlp.encoding_of(headers["content-type"]), gzip.decompress(body)).rejected == 0
    assert collector.asked[-1][0] == "/v1/traces"


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_what_a_server_is_too_busy_for_is_sent_again(status: int) -> None:
    date = formatdate(NOW + 7, usegmt=True)
    collector = Collector(
        (status, {}, b""),
        (status, {"retry-after": "3"}, b""),
        (status, {"retry-after": date}, b""),
        (status, {"retry-after": "9999"}, b""),
        (200, {}, b"{}"),
    )
    waits: list[float] = []
    with listening(collector) as address:
        assert a_sender(address, waits).send("logs", as_logs([a_result()])) == Sent()
    assert 0.5 <= waits[0] <= 1 and waits[1:] == [3, 7, 30]
    assert len({body for _, _, body in collector.asked}) == 1


@pytest.mark.parametrize("status", [301, 307, 400, 401, 404, 413, 415, 500, 501])
def test_what_a_server_refuses_is_not(status: int) -> None:
    collector, waits = (
        Collector((status, {"location": "http://127.0.0.1:9/"}, b"secret words")),
        list[float](),
    )
    with listening(collector) as address, pytest.raises(SendError, match=f"answered {status}") as raised:
        a_sender(address, waits).send("logs", as_logs([a_result()]))
    assert not raised.value.retryable and waits == [] and len(collector.asked) == 1


def test_who_does_not_answer_is_asked_again_and_then_given_up() -> None:
    waits: list[float] = []
    with pytest.raises(SendError, match=r"127.0.0.1:9 does not answer") as raised:
        a_sender("http://user:password-1@127.0.0.1:9", waits, attempts=3).send("logs", as_logs([a_result()]))
    assert raised.value.retryable and len(waits) == 2 and waits[1] > waits[0]
    assert "password" not in str(raised.value)


@pytest.mark.parametrize(
    ("address", "key"), [("http://otel..example:4318", "k"), ("http://127.0.0.1:9", "one\nprivate-0123")]
)
def test_what_cannot_be_put_in_a_request_is_an_error_that_shows_no_key(address: str, key: str) -> None:
    with pytest.raises(SendError, match="cannot be reached") as raised:
        a_sender(address, [], headers={"Authorization": key}).send("logs", as_logs([a_result()]))
    assert not raised.value.retryable and "private" not in str(raised.value)


@pytest.mark.parametrize("address", ["", "localhost:4318", "file:///etc/passwd", "ftp://a", "http://"])
def test_an_endpoint_is_an_address(address: str) -> None:
    with pytest.raises(SpecError):
        Sender(address)


def test_what_we_send_is_refused_when_it_comes_back(tmp_path: Path) -> None:
    app = create_app(Settings(store=str(tmp_path / "runs.db"), watch=True))
    with served(app) as address:
        said = Sender(address, encoding="protobuf").send("traces", as_spans([a_result()]))
        assert said.rejected == 1 and "own" in said.message
        assert Sender(address).send("logs", as_logs([a_result()])) == Sent(), "results are not contents"
