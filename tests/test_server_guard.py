"""`POST /api/guard`: a decision for every answer, and who decided where there was no verdict."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from asked import CONTEXT, OUTPUT, YES, Door, an_app
from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import CapabilityError, EngineBusy, EngineGone, SpecError
from magistrate.server.guard import HEADER, Doorkeeper
from magistrate.server.settings import Settings

NO = {"faithful": 0.1, "hallucinated": 0.9}
ASKED = {"output": OUTPUT, "context": [CONTEXT], "input": "When does it close?"}


def guarding(folder: Path, script: Any, judge: str = "faithfulness", **options: Any) -> TestClient:
    app = an_app(folder, ScriptedEngine(script), **options)
    app.state.guard = Doorkeeper(judge)
    return TestClient(app)


def asked(client: TestClient, **more: Any) -> tuple[str, str, str | None]:
    answer = client.post("/api/guard", json=ASKED | more)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    fail = "" if told["fail"] is None else f"; fail={told['fail']}"
    assert answer.headers[HEADER] == f"{told['decision']}; because={told['because']}{fail}"
    return told["decision"], told["because"], told["fail"]


def test_a_verdict_decides_and_is_told_with_its_reason(tmp_path: Path) -> None:
    with guarding(tmp_path, [YES, NO, NO]) as client:
        assert asked(client) == ("allow", "verdict", None)
        assert asked(client, on_timeout="open", on_failure="open") == ("deny", "verdict", None)
        told = client.post("/api/guard", json=ASKED).json()
    assert told["outcome"]["label"] == "hallucinated" and told["outcome"]["score"] == pytest.approx(0.9)
    assert told["reason"] == "faithfulness says hallucinated (0.900)"


@pytest.mark.parametrize(("way", "decision"), [("open", "allow"), ("closed", "deny")])
def test_what_gets_no_verdict_gets_out_only_where_that_was_asked_for(
    tmp_path: Path, way: str, decision: str
) -> None:
    other = "closed" if way == "open" else "open"
    failing = [EngineBusy("full"), EngineGone("gone"), ValueError("bug"), "no probabilities"]
    with guarding(tmp_path, failing) as client:
        for _ in failing:
            found = asked(client, on_failure=way, on_timeout=other)
            assert found == (decision, "failure", way)
        empty = asked(client, context=[], on_failure=way, on_timeout=other)
        assert empty == (decision, "abstention", way)
    door = Door()
    with guarding(tmp_path, door) as client:
        late = client.post(
            "/api/guard", json=ASKED | {"budget_ms": 100, "on_timeout": way, "on_failure": other}
        ).json()
        door.open.set()
    assert (late["decision"], late["because"], late["fail"]) == (decision, "timeout", way)
    assert late["outcome"]["kind"] == "failure" and late["outcome"]["code"] == "timeout"
    assert late["reason"] == f"faithfulness gave no verdict: timeout; on_timeout is {way}"


def test_unless_told_otherwise_nothing_gets_out_unjudged(tmp_path: Path) -> None:
    with guarding(tmp_path, [EngineGone("gone")]) as client:
        assert asked(client) == ("deny", "failure", "closed")


def test_where_too_many_are_judged_there_is_a_decision_too(tmp_path: Path) -> None:
    door = Door()
    with guarding(tmp_path, door, at_once=1, waiting=0) as client:
        first = threading.Thread(target=client.post, args=("/api/guard",), kwargs={"json": ASKED})
        first.start()
        door.wait()
        assert asked(client, on_failure="open") == ("allow", "failure", "open")
        door.open.set()
        first.join()


def test_who_asks_cannot_choose_the_judge_and_an_error_is_no_decision(tmp_path: Path) -> None:
    with guarding(tmp_path, lambda prompt: YES) as client:
        for wrong in (
            {"judge": "novelty"},
            {"model": "openai:gpt"},
            {"budget_ms": 0},
            {"budget_ms": 1e9},
            {"on_timeout": "ajar"},
            {"output": "\ud800"},
            {"output": None},
        ):
            answer = client.post("/api/guard", content=json.dumps(ASKED | wrong))
            assert answer.status_code == 422 and "decision" not in answer.json(), wrong
    for judge in ("faithfulness", "nobody"):
        app = an_app(tmp_path, ScriptedEngine([], can=frozenset({"generate"})))
        app.state.guard = Doorkeeper(judge)
        with TestClient(app) as client:
            answer = client.post("/api/guard", json=ASKED | {"on_failure": "open", "on_timeout": "open"})
            assert answer.status_code == 503 and "decision" not in answer.json(), judge


def test_a_judge_that_never_holds_anything_back_cannot_guard() -> None:
    assert Settings(store="runs.db").guard == "auto"
    for judge in ("moderation", "nobody"):
        with pytest.raises((SpecError, CapabilityError)):
            Doorkeeper(judge).check()
    Doorkeeper("auto").check()
