"""`POST /api/judge`: what comes out, what may be asked, and what many visitors at once get."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import httpx
import pytest
from fastapi.testclient import TestClient

import magistrate
from asked import ASKED, CONTEXT, OUTPUT, YES, Door, an_app, until
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.engines.none import NONE
from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import EngineBusy, EngineGone, ModelError
from magistrate.judges import registry
from magistrate.judges.base import Judge, JudgeInfo
from magistrate.judges.registry import LARGEST, TEXTS
from magistrate.runs.execute import GRACE
from magistrate.server.judging import LONGEST_EXPECTED, LONGEST_OUTPUT, BusyError, JudgingService, Question
from magistrate.types import Failure, Sample, Verdict
from served import Clock, served

CODE = {"output": OUTPUT, "context": [CONTEXT], "judge": "novelty"}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    """The application as it is."""
    with TestClient(an_app(tmp_path)) as opened:
        yield opened


def scripted(folder: Path, script: Any, **options: Any) -> TestClient:
    return TestClient(an_app(folder, ScriptedEngine(script), **options))


# --- what comes out -----------------------------------------------------------------------------


def test_a_verdict_comes_with_its_evidence_and_the_offsets_are_those_of_its_quotes(
    client: TestClient,
) -> None:
    found = client.post("/api/judge", json=CODE).raise_for_status().json()
    assert (found["kind"], found["judge"], found["label"]) == ("verdict", "novelty", "hallucinated")
    assert found["score"] == found["probability"] > 0.5
    assert "six" in found["explanation"] and found["details"]["signals"]
    for claim in found["claims"]:
        quote = claim["output_quote"]
        assert claim["output_text"] == OUTPUT[quote["start"] : quote["end"]] != ""
    assert found["usage"]["calls"] == 0 and found["seconds"] > 0
    assert found == {**found, **client.post("/api/judge", json=CODE).json(), "seconds": found["seconds"]}


def test_it_says_what_the_same_call_says_in_a_program(tmp_path: Path) -> None:
    with scripted(tmp_path, lambda prompt: YES) as client:
        found = client.post("/api/judge", json={**ASKED, "input": "When does it close?"}).json()
    expected = magistrate.judge(
        output=OUTPUT,
        context=[CONTEXT],
        input="When does it close?",
        judge="faithfulness",
        model=ScriptedEngine([YES]),
    )
    assert isinstance(expected, Verdict)
    assert (found["label"], found["score"]) == (expected.label, expected.score)


def test_steps_come_only_where_they_are_asked_for(tmp_path: Path) -> None:
    with scripted(tmp_path, lambda prompt: YES) as client:
        assert "steps" not in client.post("/api/judge", json=ASKED).json()
        (step,) = client.post("/api/judge?steps=true", json=ASKED).json()["steps"]
    assert step["verb"] == "choose" and step["result"]["best"] == "faithful"
    assert any(OUTPUT in text for _, text in step["prompt"])


def test_a_context_is_a_text_or_several_and_a_conversation_counts(client: TestClient) -> None:
    one = client.post("/api/judge", json={**CODE, "context": CONTEXT}).json()
    assert one["score"] == client.post("/api/judge", json=CODE).json()["score"]
    turns = [{"role": "user", "content": CONTEXT}, {"role": "assistant", "content": OUTPUT}]
    said = client.post("/api/judge", json={"messages": turns, "judge": "novelty"}).json()
    assert said["kind"] == "verdict" and said["label"] == "hallucinated"


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (lambda prompt: EngineBusy("later"), "rate_limited"),
        (lambda prompt: ValueError("\ud800 and \x00"), "engine_error"),
        (lambda prompt: "no probabilities", "invalid_output"),
    ],
)
def test_a_judgement_that_fails_is_an_answer(tmp_path: Path, script: Any, code: str) -> None:
    with scripted(tmp_path, script) as client:
        found = client.post("/api/judge", json=ASKED)
        assert (found.status_code, found.json()["kind"], found.json()["code"]) == (200, "failure", code)
        assert found.json()["message"] and found.json()["usage"]["calls"] == 1


def test_a_judge_that_declines_says_why(client: TestClient) -> None:
    found = client.post("/api/judge", json={"output": OUTPUT, "judge": "novelty"}).json()
    assert (found["kind"], found["reason"]) == ("abstention", "no_context")


@pytest.mark.parametrize("error", [ModelError("it is not here yet"), EngineGone("it fell over")])
def test_what_would_fail_for_everybody_is_no_answer(tmp_path: Path, error: Exception) -> None:
    with scripted(tmp_path, lambda prompt: error) as client:
        found = client.post("/api/judge", json=ASKED)
    assert (found.status_code, found.json()) == (503, {"detail": str(error)})


def test_every_answer_is_as_the_api_describes_it(client: TestClient) -> None:
    described = client.get("/api/openapi.json").json()
    shape = described["paths"]["/api/judge"]["post"]["responses"]
    assert {"200", "404", "422", "429", "503"} <= set(shape)
    kinds = [
        each["$ref"].rpartition("/")[2]
        for each in shape["200"]["content"]["application/json"]["schema"]["anyOf"]
    ]
    assert kinds == ["JudgedVerdict", "JudgedFailure", "JudgedAbstention"]
    found = client.post("/api/judge", json=CODE).json()
    assert set(found) | {"steps"} == set(described["components"]["schemas"]["JudgedVerdict"]["properties"])


def test_judgements_are_counted_by_judge_and_kind(client: TestClient) -> None:
    for sample in (CODE, CODE, {**CODE, "context": []}, {**CODE, "judge": "novelty:base_rate=.3"}):
        client.post("/api/judge", json=sample).raise_for_status()
    for line in (
        'magistrate_judgements_total{judge="novelty",outcome="verdict"} 3.0',
        'magistrate_judgements_total{judge="novelty",outcome="abstention"} 1.0',
        "magistrate_judgements_in_flight 0.0",
    ):
        until(lambda line=line: line in client.get("/metrics").text)  # counted just after the answer


# --- what may be asked --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ({"judge": "novelti"}, "novelty"),
        ({"judge": "faithfullness:explain=after"}, "faithfulness"),
        ({"model": "smollm2-135m"}, "smollm2-135m-instruct"),
    ],
)
def test_a_name_that_nobody_knows_is_answered_with_the_nearest(
    client: TestClient, words: dict[str, str], near: str
) -> None:
    found = client.post("/api/judge", json={**ASKED, **words})
    assert found.status_code == 404
    assert f"did you mean {near}" in found.json()["detail"].replace("'", "")


def test_a_model_that_was_not_pulled_is_not_fetched(client: TestClient, home: Path) -> None:
    found = client.post("/api/judge", json={**ASKED, "model": "qwen3-0.6b"})
    assert found.status_code == 422
    assert "magistrate models pull qwen3-0.6b" in found.json()["detail"]
    assert not home.exists()
    usual = client.post("/api/judge", json=ASKED)  # it may be asked, and is not here either
    assert usual.status_code == 503 and "magistrate models pull smollm2" in usual.json()["detail"]


def test_what_cannot_be_judged_is_refused_with_a_reason(client: TestClient) -> None:
    for body in [
        {},
        {"context": CONTEXT},
        {"messages": [{"role": "user", "content": "Who?"}]},
        {**CODE, "extra": 1},
        {**CODE, "output": 5},
        {**CODE, "output": "\ud800"},
        {**CODE, "context": ["fine", "\udfff"]},
        {**CODE, "context": {"text": "x"}},
        {**CODE, "messages": [{"role": "user", "content": "x", "name": "y"}]},
        {**CODE, "messages": [{"role": "\ud800", "content": "x"}]},
        {**CODE, "output": "x" * (LONGEST_OUTPUT + 1)},
        {**CODE, "expected": "x" * (LONGEST_EXPECTED + 1)},
        {**CODE, "deadline": 0},
        {**CODE, "deadline": 1e9},
        {**CODE, "deadline": float("nan")},
        {**CODE, "judge": "novelty:" + "x" * 300},
        {**CODE, "judge": "novelty:base_rate=2"},
        {**CODE, "judge": "novelty:colour=red"},
        {**CODE, "judge": "novelty:base_rate"},
        {**CODE, "judge": "novelty:(("},
        {**CODE, "judge": "novelty@7"},
        {**CODE, "judge": "novelty:name=auto"},
        {**CODE, "judge": f"selfcheck:n={LARGEST + 1}"},
        {**CODE, "judge": "cascade"},
        {**CODE, "judge": "chrf:word_order=100"},
        {**CODE, "\ud800": 1},
    ]:
        found = client.post(
            "/api/judge", content=json.dumps(body), headers={"content-type": "application/json"}
        )
        assert found.status_code == 422, body
        assert found.json()["detail"], body


def hints_of(name: str) -> dict[str, Any]:
    """The options of an installed judge with their types."""
    found = registry.judge_entries()[name].load()
    hints = get_type_hints(found if isinstance(found, type) else type(found))
    return {field.name: hints[field.name] for field in registry.settable(found)}


OPTIONS = [
    (name, option, hint) for name in registry.judge_entries() for option, hint in hints_of(name).items()
]


def is_open(option: str, hint: Any) -> bool:
    """Whether words for it can name nothing but words, numbers and judges."""
    if get_origin(hint) is Literal or hint in (bool, int, float, type(None), Judge):
        return True
    parts = [each for each in get_args(hint) if each is not ...]
    return all(is_open(option, each) for each in parts) if parts else hint is str and option in TEXTS


def test_no_option_of_any_judge_leads_to_a_file_from_outside(tmp_path: Path) -> None:
    there, absent = tmp_path / "there.json", tmp_path / "absent.json"
    there.write_text('{"type": "object"}', encoding="utf-8")
    with scripted(tmp_path, lambda prompt: ValueError("asked")) as client:
        for name, option, hint in OPTIONS:
            for form in ("{}", "({})", f"({name}:{option}={{}})"):
                told = []
                for path in (there, absent):
                    words = f"{name}:{option}={form.format(path)}"
                    answer = client.post("/api/judge", json={**ASKED, "judge": words})
                    said = {**answer.json(), "seconds": 0}
                    told.append((answer.status_code, json.dumps(said).replace(str(path), "PATH")))
                assert told[0] == told[1], f"the answer to {name}:{option}={form} says whether it is there"
                if not is_open(option, hint):
                    assert told[0][0] == 422 and "cannot be set remotely" in told[0][1], (name, option, form)


@pytest.mark.parametrize("kind", ["detector", "stack", "probe", "hf_classifier", "calibrated", "json_valid"])
@pytest.mark.parametrize(
    "form", ["{kind}:{path}", "windows:of=({kind}:{path})", "auto:of=({kind}:folder={path})"]
)
def test_no_folder_is_looked_into_whatever_the_words(
    client: TestClient, tmp_path: Path, kind: str, form: str
) -> None:
    for name in ("detector.json", "stack.json", "config.json"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    answers = []
    for path in (tmp_path, tmp_path / "nowhere", Path("~nobody/x"), Path("/dev/zero")):
        found = client.post("/api/judge", json={**ASKED, "judge": form.format(kind=kind, path=path)})
        answers.append((found.status_code, found.text.replace(str(path), "PATH")))
    assert {status for status, _ in answers} == {422}
    assert len(set(answers)) == 1


def test_a_file_that_is_there_is_no_judge_and_no_model(client: TestClient, home: Path) -> None:
    here = Path.cwd()
    (here / "mine.yaml").write_text("kind: classify\nname: mine\n", encoding="utf-8")
    (here / "mine.gguf").write_bytes(b"GGUF")
    (here / "folder").mkdir()
    (here / "folder" / "detector.json").write_text("{}", encoding="utf-8")
    for words in (
        "mine.yaml",
        "mine",
        "mine.yaml:x=1",
        str(here / "mine.yaml"),
        "folder",
        "./folder",
        "windows:of=mine.yaml",
    ):
        found = client.post("/api/judge", json={**CODE, "judge": words})
        assert found.status_code in (404, 422)
        for said in ("there is a f", "write", "yaml, line"):
            assert said not in found.json()["detail"]
    for words in (
        "mine.gguf",
        str(here / "mine.gguf"),
        "mine.gguf:f16",
        "folder",
        "../x",
        "file:///etc/passwd",
    ):
        found = client.post("/api/judge", json={**CODE, "model": words})
        assert (found.status_code, found.json()["detail"].partition(repr(words))[0]) == (
            404,
            "unknown model ",
        )


@pytest.mark.parametrize(
    "words",
    [
        "novelty:base_rate=.2",
        "auto:of=(novelty:base_rate=.2)",
        "regex:pattern=a+",
        "cascade:first=novelty,then=(novelty:base_rate=.3),low=.1",
        "novelty@3",
    ],
)
def test_options_that_name_nothing_of_this_machine_are_set(client: TestClient, words: str) -> None:
    found = client.post("/api/judge", json={**CODE, "judge": words})
    assert found.status_code == 200
    assert (found.json()["kind"], found.json()["judge"]) == ("verdict", words.replace("novelty@3", "novelty"))


# --- many at once -------------------------------------------------------------------------------


def test_eight_at_once_share_one_engine_and_all_are_answered(tmp_path: Path) -> None:
    door = Door()
    with served(an_app(tmp_path, ScriptedEngine(door))) as site, ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(httpx.post, f"{site}/api/judge", json=ASKED, timeout=60) for _ in range(8)]
        door.wait(8)  # all of them are at the engine before any is answered
        told = httpx.get(f"{site}/metrics").text
        door.open.set()
        found = [each.result() for each in asked]
    assert "magistrate_judgements_in_flight 8.0" in told
    assert [each.status_code for each in found] == [200] * 8
    assert {each.json()["label"] for each in found} == {"faithful"}


def test_beyond_a_bound_visitors_are_told_when_to_come_again(tmp_path: Path) -> None:
    door = Door()
    with (
        served(an_app(tmp_path, ScriptedEngine(door), at_once=2, waiting=1)) as site,
        ThreadPoolExecutor(8) as pool,
    ):
        asked = [pool.submit(httpx.post, f"{site}/api/judge", json=ASKED, timeout=60) for _ in range(8)]
        door.wait(2)
        until(lambda: sum(each.done() for each in asked) == 5)
        refused = [each.result() for each in asked if each.done()]
        assert not door.came.acquire(timeout=0.1)  # the third one waits for its turn
        door.open.set()
        found = [each.result() for each in asked]
    assert [each.status_code for each in refused] == [429] * 5
    assert all(1 <= int(each.headers["retry-after"]) <= 60 for each in refused)
    assert sum(each.status_code == 200 for each in found) == 3


def test_whoever_goes_away_stops_the_judgement(tmp_path: Path) -> None:
    door = Door()
    body = json.dumps(ASKED).encode()
    kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}"
    head = f"POST /api/judge HTTP/1.1\r\nHost: x\r\n{kind}\r\n\r\n"
    with served(an_app(tmp_path, ScriptedEngine(door), at_once=1)) as site:
        host, _, port = site.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as first:
            first.sendall(head.encode() + body)
            door.wait()
            with socket.create_connection((host, int(port)), timeout=10) as second:  # does not get its turn
                second.sendall(head.encode() + body)
                time.sleep(0.1)
        until(lambda: door.left == ["cancelled"])
        until(lambda: "in_flight 0.0" in httpx.get(f"{site}/metrics").text)
        door.open.set()
        assert httpx.post(f"{site}/api/judge", json=ASKED, timeout=60).json()["label"] == "faithful"
        door.wait()
        assert not door.came.acquire(timeout=0)  # for the second, the engine was never asked


def test_a_deadline_holds_wherever_the_time_goes(tmp_path: Path) -> None:
    door = Door()
    with served(an_app(tmp_path, ScriptedEngine(door), at_once=1)) as site, ThreadPoolExecutor(2) as pool:
        first = pool.submit(httpx.post, f"{site}/api/judge", json=ASKED, timeout=60)
        door.wait()
        start = time.monotonic()
        waiting = httpx.post(f"{site}/api/judge", json={**ASKED, "deadline": 0.3}, timeout=60).json()
        assert (waiting["kind"], waiting["code"]) == ("failure", "timeout")
        assert "waiting in the queue" in waiting["message"]
        door.open.set()
        assert first.result().json()["kind"] == "verdict"
        door.open.clear()
        judged = httpx.post(f"{site}/api/judge", json={**ASKED, "deadline": 0.3}, timeout=60).json()
        assert (judged["code"], judged["message"]) == ("timeout", "no verdict within 0.3 seconds")
        assert 0.6 <= time.monotonic() - start < 20
    assert door.left == ["cancelled"]


def test_pages_are_answered_while_a_judge_computes_without_a_pause(tmp_path: Path) -> None:
    begun, end = threading.Event(), threading.Event()

    def computing(prompt: object) -> dict[str, float]:
        begun.set()
        assert end.wait(60)
        return YES

    with served(an_app(tmp_path, ScriptedEngine(computing))) as site, ThreadPoolExecutor(2) as pool:
        asked = pool.submit(httpx.post, f"{site}/api/judge", json=ASKED, timeout=60)
        assert begun.wait(30)
        assert httpx.get(f"{site}/judges", timeout=20).status_code == 200
        assert httpx.post(f"{site}/api/judge", json=CODE, timeout=20).json()["kind"] == "verdict"
        assert not asked.done()
        end.set()
        assert asked.result().json()["label"] == "faithful"


# --- by itself ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stuck:
    """Holds its thread until the test lets it go."""

    gate: threading.Event
    info = JudgeInfo("stuck", kind="code")

    async def judge(self, sample: Sample, engine: object) -> Verdict:
        assert self.gate.wait(60)
        return Verdict(sample.id, "stuck", "faithful", 0.0)


def stuck(gate: threading.Event, deadline: float = 10.0) -> Question:
    return Question(sample=Sample("s", "o"), judge=Stuck(gate), name="stuck", model=None, deadline=deadline)


def test_a_judge_that_does_not_stop_keeps_its_place_and_nobody_waits_for_it() -> None:
    clock, gate = Clock(), threading.Event()
    judging = JudgingService(engine_of=lambda judges, model: NONE, at_once=1, waiting=0, clock=clock)
    found = judging.begin(stuck(gate))
    until(lambda: found.phase == "judging")
    assert found.outcome() is None
    clock.now += 10 + GRACE + 1
    outcome = found.outcome()
    assert isinstance(outcome, Failure) and outcome.code == "timeout"
    assert "did not stop" in outcome.message
    assert (found.phase, found.seconds) == ("done", 10 + GRACE + 1)
    with pytest.raises(BusyError):
        judging.begin(stuck(gate))
    gate.set()
    until(lambda: begins(judging, gate))
    assert found.outcome() == outcome  # what came too late is not heard


def begins(judging: JudgingService, gate: threading.Event) -> bool:
    try:
        asyncio.run(judging.begin(stuck(gate)).finished())
    except BusyError:
        return False
    return True


def test_closing_stops_all_and_begins_nothing_more() -> None:
    door = Door()
    judging = JudgingService(engine_of=lambda judges, model: ScriptedEngine(door), at_once=1)
    asked = Question(
        sample=Sample("s", OUTPUT, (CONTEXT,)),
        judge=registry.judge("faithfulness"),
        name="faithfulness",
        model=None,
        deadline=60,
    )
    found = [judging.begin(asked) for _ in range(3)]
    door.wait()
    judging.close()
    outcomes = [asyncio.run(each.finished()) for each in found]
    assert [each.code for each in outcomes if isinstance(each, Failure)] == ["cancelled"] * 3
    with pytest.raises(BusyError):
        judging.begin(asked)


# --- with the embedded model --------------------------------------------------------------------


@pytest.mark.full
def test_the_embedded_model_judges_eight_at_once_as_it_judges_one(
    tmp_path: Path, engine: LocalEngine
) -> None:
    ends = ["at five", "at six", "on Fridays", "never", "at nine", "at noon", "late", "at 5 pm"]
    bodies = [{**ASKED, "output": f"It closes {end}.", "model": "smollm2-135m-instruct"} for end in ends]
    with served(an_app(tmp_path, engine)) as site, ThreadPoolExecutor(8) as pool:
        alone = [httpx.post(f"{site}/api/judge?steps=true", json=each, timeout=300) for each in bodies[:2]]
        before = engine.counters().steps
        found = list(pool.map(lambda body: httpx.post(f"{site}/api/judge", json=body, timeout=300), bodies))
        together = engine.counters().steps - before
    assert [each.json()["kind"] for each in found] == ["verdict"] * 8
    for one, other in zip(alone, found, strict=False):
        assert one.json()["score"] == pytest.approx(other.json()["score"], abs=0.02)
        assert one.json()["steps"][0]["result"]["method"] == "exact"
    assert together < 8  # requests of several visitors were computed at once
    same = magistrate.judge(
        output="It closes at five.", context=[CONTEXT], judge="faithfulness", model=engine
    )
    assert isinstance(same, Verdict)
    assert same.score == pytest.approx(alone[0].json()["score"], abs=0.02)
