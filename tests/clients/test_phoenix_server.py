"""A real Phoenix: its spans are pulled and judged, and it gets one annotation, however often that is sent.

`make test-clients` makes the environment that it runs in.
"""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request

import pytest
from conversation import ANSWER, DOCUMENTS, QUESTION
from test_clients import LONGEST

from magistrate import _async
from magistrate.store import Store
from magistrate.types import Verdict
from magistrate.watch.delivery import LEASE, ResultSender
from magistrate.watch.results import encoded
from magistrate.watch.rules import read_rule_file
from magistrate.watch.worker import Watcher
from servers import called, direct, free_port, serving

RULES = """\
rules:
  - {{name: answers, judges: [novelty], quiet: 0s}}
send:
  - endpoint: {address}
    as: [annotations]
"""
TRACE, CHAIN, SEARCH = "5f" * 16, "a1" * 8, "b2" * 8


def asked(request: Request | str) -> Any:
    """The JSON that a server answers with."""
    with direct.open(request, timeout=LONGEST) as said:
        return json.load(said)


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Phoenix server that has one trace."""
    folder, port = tmp_path_factory.mktemp("phoenix"), free_port()
    address = f"http://127.0.0.1:{port}"
    settings = {
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    words = ["-m", "phoenix.server.main", "serve"]
    with serving("phoenix_server", words, settings, folder, f"{address}/healthz"):
        body = encoded("traces", exported(), "protobuf")
        headers = {"Content-Type": "application/x-protobuf"}
        with direct.open(Request(f"{address}/v1/traces", body, headers), timeout=LONGEST):
            pass
        until = time.monotonic() + LONGEST
        while len(asked(f"{address}/v1/projects/default/spans")["data"]) < 2:
            assert time.monotonic() < until, "the spans are not there"
            time.sleep(0.1)
        yield address


def exported() -> dict[str, Any]:
    """The conversation as OpenInference has it: a chain with a search."""
    began = time.time_ns() - 10_000_000_000
    found = {f"retrieval.documents.{n}.document.content": each for n, each in enumerate(DOCUMENTS)}
    steps = [
        (CHAIN, "CHAIN", {"input.value": QUESTION, "output.value": ANSWER}, 0, 3),
        (SEARCH, "RETRIEVER", {"input.value": QUESTION, **found}, 1, 2),
    ]
    spans = [
        {
            "traceId": TRACE,
            "spanId": span,
            "name": kind.lower(),
            "startTimeUnixNano": str(began + first * 1_000_000),
            "endTimeUnixNano": str(began + last * 1_000_000),
            "attributes": [
                {"key": key, "value": {"stringValue": value}}
                for key, value in {"openinference.span.kind": kind, **attributes}.items()
            ],
        }
        for span, kind, attributes, first, last in steps
    ]
    spans[1]["parentSpanId"] = b64encode(bytes.fromhex(CHAIN)).decode()
    return {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}


def pulled(phoenix: str, store: Path) -> Any:
    return json.loads(called("watch", "pull", "phoenix", phoenix, "--store", str(store), "--json"))


def annotations(phoenix: str) -> list[Any]:
    """The annotations of the judged span and of the other one, once nothing more comes for a while."""
    address = f"{phoenix}/v1/projects/default/span_annotations?span_ids={CHAIN}&span_ids={SEARCH}"
    until, quiet = time.monotonic() + LONGEST, 0
    last: list[Any] = []
    while quiet < 15 or not last:
        found: list[Any] = asked(address)["data"]
        quiet, last = (quiet + 1 if found == last else 0), found
        assert time.monotonic() < until, "there is no annotation"
        time.sleep(0.1)
    return last


def check_annotation(found: list[Any], verdict: Verdict) -> None:
    """Check that there is one annotation, which says what a verdict says."""
    (one,) = found
    assert (one["span_id"], one["name"], one["annotator_kind"]) == (CHAIN, "novelty", "CODE")
    said = one["result"]
    assert (said["score"], said["label"]) == (pytest.approx(verdict.score), verdict.label)
    assert (said["explanation"] or "") == (verdict.explanation or "")
    assert one["identifier"].startswith("novelty") and one["metadata"]["trace_id"] == TRACE


def verdict_of(store: Store) -> Verdict:
    """The verdict on the one sample of the rule, which is the expected one."""
    record = store.traces.rule("answers")
    assert record is not None and record.run_id is not None
    (sample,) = store.samples(record.run_id)
    assert (sample.input, sample.output, sample.context) == (QUESTION, ANSWER, DOCUMENTS)
    (outcome,) = store.outcomes(record.run_id)
    assert isinstance(outcome, Verdict)
    return outcome


def test_its_spans_are_judged_and_annotated_once(
    phoenix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES.format(address=phoenix), encoding="utf-8")

    place = tmp_path / "one.db"
    first, second = pulled(phoenix, place), pulled(phoenix, place)
    assert (first["changed"], first["unread"]) == (2, [])
    assert (second["changed"], second["unread"]) == (0, [])
    called("watch", "run", "--rules", str(rules), "--store", str(place), "--once")
    with Store.open(place) as store:
        verdict = verdict_of(store)
        assert [dict(each.states) for each in store.outbox.queues()] == [{"sent": 1}]
    before = annotations(phoenix)
    check_annotation(before, verdict)

    # Another store knows of no verdict. What it sends is sent twice, because the first time is not noted.
    place, file = tmp_path / "other.db", read_rule_file(rules)
    assert pulled(phoenix, place)["changed"] == 2
    with Store.open(place) as store:
        clock = [datetime.now(UTC)]
        to = [each for part in file.send for each in part.destinations]
        worker = Watcher(store, file.rules, clock=lambda: clock[0], send_to=to)
        _async.run(worker.prepare())
        worker.register()
        _async.run(worker.drain())
        with monkeypatch.context() as forgetting:
            forgetting.setattr(type(store.outbox), "end", lambda *words, **more: 0)
            assert ResultSender(store, file.send, clock=lambda: clock[0]).step() == 1
        clock[0] += timedelta(seconds=LEASE + 1)
        assert ResultSender(store, file.send, clock=lambda: clock[0]).step() == 1
        verdict = verdict_of(store)
        assert [dict(each.states) for each in store.outbox.queues()] == [{"sent": 1}]
    after = annotations(phoenix)
    check_annotation(after, verdict)
    assert after[0]["id"] == before[0]["id"]
