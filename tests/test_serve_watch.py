"""`magistrate serve --watch`: spans that come over OTLP are judged by rules while the server runs."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from magistrate.errors import StoreError
from magistrate.server.app import create_app
from magistrate.server.settings import Settings
from magistrate.server.watcher import _WorkerThread
from magistrate.store import Store
from magistrate.types import HALLUCINATED, Verdict
from magistrate.watch.outputs import SendPart
from magistrate.watch.rules import RuleFile
from receivers import Collector, listening
from terminal import Call
from test_otlp import JSON, a_span, as_json, attribute, exported
from watched import rules

CHAIN = {"openinference.span.kind": "CHAIN", "input.value": "How many people?"}
FOUND = {
    "openinference.span.kind": "RETRIEVER",
    "retrieval.documents.0.document.content": "Bern has 134,000 people.",
}


def settings(store: str | Path, *texts: str) -> Settings:
    return Settings(store=str(store), watch=True, rules=tuple(rules(*texts)))


def counts(place: Settings, rule: str) -> dict[str, int]:
    with Store.open(place.store) as store:
        return store.traces.counts(rule)


def export(output: str) -> bytes:
    """A chain that answered `output`, and what was retrieved in it."""
    chain, search = CHAIN | {"output.value": output}, FOUND
    spans = [
        a_span(1, startTimeUnixNano=10, endTimeUnixNano=90, attributes=listed(chain)),
        a_span(
            2, parentSpanId=f"{1:016x}", startTimeUnixNano=20, endTimeUnixNano=30, attributes=listed(search)
        ),
    ]
    return as_json(exported(*spans))


def listed(attributes: dict[str, str]) -> list[dict[str, Any]]:
    return [attribute(name, value) for name, value in attributes.items()]


def test_what_is_sent_is_judged_while_the_server_runs(tmp_path: Path) -> None:
    place = settings(tmp_path / "runs.db", "name: people\njudges: [novelty]\nquiet: 0")
    with TestClient(create_app(place)) as client:
        sent = client.post(
            "/v1/traces", content=export("Bern has 999,999 people."), headers={"content-type": JSON}
        )
        assert sent.status_code == 200, sent.text
        until = time.monotonic() + 30
        while (found := counts(place, "people")).get("judged") != 1 and time.monotonic() < until:
            time.sleep(0.05)
    assert found == {"judged": 1}
    with Store.open(place.store) as store:
        (run,) = store.runs()
        assert [each.label for each in store.outcomes(run.id) if isinstance(each, Verdict)] == [HALLUCINATED]


@pytest.mark.full
def test_verdicts_go_out_and_figures_are_among_the_metrics(place: str) -> None:
    collector = Collector((503, {"retry-after": "1"}, b""), (200, {}, b"{}"))
    with listening(collector) as address:
        given = settings(place, "name: people\njudges: [novelty]\nquiet: 0")
        send = SendPart.model_validate({"endpoint": address, "as": ["spans"]})
        file = RuleFile(rules=list(given.rules), send=[send])
        with TestClient(create_app(replace(given, rule_file=file))) as client:
            client.post("/v1/traces", content=export("Bern has 9 people."), headers={"content-type": JSON})
            until = time.monotonic() + 60
            while len(collector.asked) < 2 and time.monotonic() < until:
                time.sleep(0.05)
            lines = client.get("/metrics").text.splitlines()
    assert [path for path, _, _ in collector.asked] == ["/v1/traces"] * 2
    assert collector.asked[0][2] == collector.asked[1][2]
    found = dict(line.rsplit(" ", 1) for line in lines if line.startswith("magistrate_watch_"))
    assert found['magistrate_watch_decisions{rule="people",state="judged"}'] == "1.0"
    assert found['magistrate_watch_flag_rate{bound="value",judge="novelty",rule="people"}'] == "1.0"
    assert 'magistrate_watch_flag_rate{bound="low",judge="novelty",rule="people"}' not in found, "no data"
    assert 'magistrate_watch_queue_age_seconds{rule="people"}' not in found


def test_a_rule_whose_judge_cannot_be_made_keeps_the_server_from_starting(tmp_path: Path) -> None:
    place = settings(
        tmp_path / "runs.db", "name: people\njudges: [{judge: faithfulness, model: 'no/such/model.gguf'}]"
    )
    with pytest.raises(Exception, match=r"no/such/model"), TestClient(create_app(place)):
        pass


def test_a_server_that_cannot_start_leaves_nothing_open(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.write_bytes(b"this is no database, and never was one")
    found = settings(path, "name: people\njudges: [novelty]")
    app, worker = create_app(found), _WorkerThread(found.store, found.rules, ())
    with pytest.raises(StoreError), TestClient(app):
        pass
    assert not app.state.counter._thread.is_alive()
    with pytest.raises(StoreError):
        worker.start()
    worker._thread.join(10)
    assert worker._loop.is_closed()


def test_grpc_without_rules_is_refused(call: Call) -> None:
    done = call("serve", "--grpc-port", "0")
    assert done.code == 2
    assert "--watch" in done.err


def test_rules_that_are_wrong_are_told_with_their_line(call: Call, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("rules:\n  - name: people\n    judge: novelty\n", encoding="utf-8")
    done = call("serve", "--watch", str(tmp_path / "rules.yaml"), "--store", str(tmp_path / "runs.db"))
    assert done.code == 2
    assert "rules.yaml, line 3" in done.err
