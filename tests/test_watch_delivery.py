"""Verdicts go out over OTLP: each once, whatever fails, and no receiver keeps a judge waiting."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from magistrate import _async
from magistrate.errors import SpecError
from magistrate.store import Store
from magistrate.types import Failure, Sample
from magistrate.watch.delivery import BATCH, ResultSender
from magistrate.watch.outputs import SendPart
from magistrate.watch.rules import read_rule_file
from receivers import Collector, listening
from terminal import Call
from test_watch_cli import exported
from watched import Clock, Obedient, answer, rules, watcher

RULE = "name: all\njudges: [novelty]"
OK = (200, {}, b"{}")
BUSY = (503, {"retry-after": "30"}, b"")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(place: str, clock: Clock) -> Iterator[Store]:
    with Store.open(place, clock=clock, randomness=random.Random(1)) as opened:
        yield opened


def a_part(address: str, *forms: str) -> SendPart:
    return SendPart.model_validate({"endpoint": address, "as": list(forms) or ["events", "spans"]})


def a_sender(store: Store, part: SendPart, clock: Clock, seed: int = 1) -> ResultSender:
    return ResultSender(store, [part], clock=clock, randomness=random.Random(seed))


def judged(
    store: Store, clock: Clock, part: SendPart, n: int = 1, answer_of: Any = lambda sample: 0.9
) -> None:
    """The answers of n new traces are judged, for the receivers of `part`."""
    worker = watcher(store, rules(RULE), clock, Obedient(answer_of), send_to=list(part.destinations))
    for number in range(n):
        store.traces.put(answer(number, f"answer {number}"), clock())
    clock.pass_(seconds=10)
    _async.run(worker.drain())


def records(asked: tuple[str, dict[str, str], bytes]) -> list[dict[str, Any]]:
    """The log records or spans of a request that a receiver got."""
    path, _, body = asked
    value = json.loads(gzip.decompress(body))
    if path == "/v1/logs":
        return list(value["resourceLogs"][0]["scopeLogs"][0]["logRecords"])
    return list(value["resourceSpans"][0]["scopeSpans"][0]["spans"])


def said(record: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in record["attributes"]}


def states(store: Store) -> dict[str, dict[str, int]]:
    return {each.destination.split()[0]: dict(each.states) for each in store.outbox.queues()}


def test_a_verdict_goes_out_as_an_event_and_as_a_span_once(store: Store, clock: Clock) -> None:
    collector = Collector(OK)
    with listening(collector) as address:
        part = a_part(address)
        judged(store, clock, part, 2)
        assert states(store) == {"events": {"waiting": 2}, "spans": {"waiting": 2}}
        for sender in (a_sender(store, part, clock), a_sender(store, part, clock, seed=2)):
            sender.step()
    assert sorted(path for path, _, _ in collector.asked) == ["/v1/logs", "/v1/traces"]
    assert states(store) == {"events": {"sent": 2}, "spans": {"sent": 2}}
    events, spans = map(records, sorted(collector.asked, key=lambda each: each[0]))
    assert {(each["traceId"], each["spanId"]) for each in events} == {
        (f"{number:032x}", "a" * 16) for number in (0, 1)
    }
    assert {each["links"][0]["traceId"] for each in spans} == {f"{number:032x}" for number in (0, 1)}
    assert said(events[0])["gen_ai.evaluation.score.label"] == "hallucinated"
    assert said(spans[0])["annotations.0.annotation.score"] == 0.9


def test_phoenix_gets_an_annotation_that_replaces_the_one_before(store: Store, clock: Clock) -> None:
    collector = Collector(BUSY, (200, {}, b'{"data": []}'))
    with listening(collector) as address:
        part = a_part(address, "annotations")
        judged(store, clock, part, answer_of=lambda sample: 0.9)
        sender = a_sender(store, part, clock)
        assert sender.step() == 0
        clock.pass_(seconds=30)
        assert sender.step() == 1
    assert states(store) == {"annotations": {"sent": 1}}
    (path, headers, body), again = collector.asked
    assert (path, body) == (again[0], again[2]) and path == "/v1/span_annotations"
    assert headers["content-type"] == "application/json" and "content-encoding" not in headers
    (one,) = json.loads(body)["data"]
    assert (one["span_id"], one["name"], one["result"]["score"]) == ("a" * 16, "obedient", 0.9)
    assert one["result"]["label"] == "hallucinated" and one["identifier"].startswith("obedient")
    assert one["metadata"]["trace_id"] == f"{0:032x}"


def test_what_was_not_acknowledged_is_sent_again_and_is_the_same(store: Store, clock: Clock) -> None:
    collector = Collector(BUSY, OK)
    with listening(collector) as address:
        part = a_part(address, "spans")
        judged(store, clock, part, 3)
        sender = a_sender(store, part, clock)
        assert sender.step() == 0
        (queue,) = store.outbox.queues()
        assert queue.waiting == 3 and "503" in queue.remark and queue.oldest is not None
        clock.pass_(seconds=29)
        assert sender.step() == 0 and len(collector.asked) == 1, "it asked to be left alone for 30 seconds"
        clock.pass_(seconds=1)
        assert sender.step() == 3
    assert len({body for _, _, body in collector.asked}) == 1
    assert states(store) == {"spans": {"sent": 3}}


def test_who_dies_between_sending_and_noting_sends_the_same_again(store: Store, clock: Clock) -> None:
    collector = Collector(OK)
    with listening(collector) as address:
        part = a_part(address, "events")
        judged(store, clock, part)
        (name,) = part.destinations
        (lost,) = store.outbox.take(name, "gone", clock() + timedelta(seconds=60), clock(), BATCH)
        other = a_sender(store, part, clock)
        assert other.step() == 0, "somebody has it in work"
        clock.pass_(seconds=61)
        assert other.step() == 1
        assert store.outbox.end([lost], "refused") == 0, "it is not theirs any more"
    (event,) = records(collector.asked[0])
    assert len(collector.asked) == 1 and event["spanId"] == "a" * 16
    assert states(store) == {"events": {"sent": 1}}


def test_one_result_that_is_refused_does_not_keep_back_the_others(store: Store, clock: Clock) -> None:
    class Picky(Collector):
        def take(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
            super().take(path, headers, body)
            found = [each["traceId"] for each in records((path, headers, body))]
            return (400, {}, b"") if f"{2:032x}" in found else OK

    with listening(Picky(OK)) as address:
        part = a_part(address, "events")
        judged(store, clock, part, 5)
        assert a_sender(store, part, clock).step() == 4
    assert states(store) == {"events": {"sent": 4, "refused": 1}}


def test_what_a_receiver_rejects_in_part_is_said_and_not_sent_again(store: Store, clock: Clock) -> None:
    partial = json.dumps({"partialSuccess": {"rejectedLogRecords": "1", "errorMessage": "too old"}}).encode()
    collector = Collector((200, {}, partial))
    with listening(collector) as address:
        part = a_part(address, "events")
        judged(store, clock, part, 2)
        sender = a_sender(store, part, clock)
        assert (sender.step(), sender.step()) == (1, 0)
    assert states(store) == {"events": {"partly": 2}} and len(collector.asked) == 1


def test_a_wrong_key_loses_nothing(store: Store, clock: Clock) -> None:
    collector = Collector((401, {}, b""), (401, {}, b""), OK)
    with listening(collector) as address:
        part = a_part(address, "events")
        judged(store, clock, part)
        sender = a_sender(store, part, clock)
        for _ in range(3):
            assert sender.step() in (0, 1)
            clock.pass_(hours=1)
    assert states(store) == {"events": {"sent": 1}} and len(collector.asked) == 3


def test_a_later_outcome_takes_the_place_of_one_that_is_under_way(store: Store, clock: Clock) -> None:
    collector = Collector(OK)
    with listening(collector) as address:
        part = a_part(address, "spans")
        judged(store, clock, part)
        (name,) = part.destinations
        taken = store.outbox.take(name, "slow", clock() + timedelta(seconds=60), clock(), BATCH)
        store.traces.put(answer(0, "another answer"), clock())
        clock.pass_(seconds=10)
        _async.run(watcher(store, rules(RULE), clock, Obedient(lambda _: 0.2), send_to=[name]).drain())
        assert store.outbox.end(taken, "sent") == 0
        assert a_sender(store, part, clock).step() == 1
    (span,) = records(collector.asked[0])
    assert said(span)["annotations.0.annotation.label"] == "faithful"


@pytest.mark.full
def test_a_failure_goes_out_when_it_is_final_and_has_no_label(store: Store, clock: Clock) -> None:
    def fails(sample: Sample) -> Failure:
        return Failure(sample.id, "obedient", "invalid_output", "no JSON")

    collector = Collector(OK)
    with listening(collector) as address:
        part = a_part(address, "events")
        judged(store, clock, part, 1, fails)
        assert states(store) == {}, "it is tried again"
        for _ in range(3):
            clock.pass_(hours=1)
            _async.run(
                watcher(store, rules(RULE), clock, Obedient(fails), send_to=list(part.destinations)).drain()
            )
        assert store.traces.counts("all") == {"failed": 1}
        assert a_sender(store, part, clock).step() == 1
    (event,) = records(collector.asked[0])
    assert said(event)["error.type"] == "invalid_output"
    assert "gen_ai.evaluation.score.label" not in said(event)


# --- the rules file and the command ---------------------------------------------------------------

FILE = """
rules:
  - name: all
    judges: [novelty]
send:
  - endpoint: {address}
    headers_env: {{Authorization: TEST_OTLP_AUTH}}
"""


def test_a_rules_file_says_where_verdicts_go(call: Call, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = home.parent / "spans.jsonl"
    spans.write_text("".join(json.dumps(exported(answer(n))) + "\n" for n in range(3)))
    file, collector = home.parent / "rules.yaml", Collector((503, {}, b""), OK)
    run = ("watch", "run", "--rules", file, "--from", spans, "--once")
    with listening(collector) as address:
        file.write_text(FILE.format(address=address))
        done = call(*run)
        assert done.code == 2 and "TEST_OTLP_AUTH, which is not set" in done.err
        monkeypatch.setenv("TEST_OTLP_AUTH", "Bearer secret-0123456789")
        done = call(*run)
        assert done.code == 3 and f"events to {address}: 3 unsent: " in done.err and "503" in done.err
        assert "secret" not in done.err
        for destination in ("events", "spans"):  # as if the pause were over
            with Store.open(home / "magistrate.db") as store:
                queues = {each.destination.split()[0]: each for each in store.outbox.queues()}
                assert set(queues) == {"events", "spans"} and destination in queues
    assert collector.asked[0][1]["authorization"] == "Bearer secret-0123456789"
    assert b"secret-0123456789" not in (home / "magistrate.db").read_bytes()


@pytest.mark.parametrize(
    "wrong, told",
    [
        ("endpoint: localhost:4318", "rules.yaml, line 5, send.0.endpoint: "),
        ("endpoint: 'http://u:p@host'", "must not contain a password"),
        ("endpoint: http://host\n    headers_env: {Authorization: 'Bearer abc'}", "line 6"),
        ("endpoint: http://host\n    as: [spans, letters]", "line 6"),
        ("endpoint: http://host\n  - endpoint: http://host/", "already sent to this endpoint"),
    ],
)
def test_where_verdicts_cannot_go_is_told_with_its_line(tmp_path: Path, wrong: str, told: str) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(f"rules:\n  - name: all\n    judges: [novelty]\nsend:\n  - {wrong}\n")
    with pytest.raises(SpecError) as raised:
        read_rule_file(path)
    assert told in str(raised.value) and "Bearer abc" not in str(raised.value)
