"""Servers of one's own: how many requests they get at once, and which model they are asked for."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import magistrate
from magistrate import Failure, Limits, Verdict
from magistrate.engines.base import EngineSettings
from magistrate.judges import registry
from standins import Standin, running

LLAMA = {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 2}
CONTEXT = ["The museum opens at nine."]


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGISTRATE_HOME", str(tmp_path))
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


class Slow:
    """Answers `slots` requests at once, each in `seconds`, and makes all others wait; it notes, for each
    name that a request bears, how many were sent together at most."""

    def __init__(self, slots: int, seconds: float) -> None:
        self._slots, self._seconds = threading.Semaphore(slots), seconds
        self._lock = threading.Lock()
        self.now: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.at_first: int | None = None  # how many had been sent when the first was answered
        self._sent = 0

    def __call__(self, body: Mapping[str, Any]) -> str:
        words = json.dumps(body["messages"])
        names = [name for name in ("alpha", "beta") if f"{name} says" in words]
        if not names:
            return "It rains."  # a request that only looks what the server can do
        with self._lock:
            self._sent += 1
            self.now[names[0]] = self.now.get(names[0], 0) + 1
            self.most[names[0]] = max(self.most.get(names[0], 0), self.now[names[0]])
        with self._slots:
            time.sleep(self._seconds)
        with self._lock:
            if self.at_first is None:
                self.at_first = self._sent
            self.now[names[0]] -= 1
        return "Yes"


def rows(name: str, n: int) -> list[dict[str, Any]]:
    return [{"id": f"{name}{i}", "output": f"{name} says {i}.", "context": CONTEXT} for i in range(n)]


def judged(standin: Standin, data: list[dict[str, Any]], **options: Any) -> list[Any]:
    options = {"model": "openai:model-a", "base_url": standin.url, "cache": False, **options}
    run = magistrate.evaluate(data, "faithfulness", progress=False, **options)
    return list(run.outcomes())


# --- how many at once -----------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["alpha", "beta"])
def test_the_concurrency_of_one_call_does_not_change_anothers(tmp_path: Path, first: str) -> None:
    slow = Slow(slots=100, seconds=0.05)
    asked = {"alpha": (1, 12), "beta": (6, 60)}
    with running(Standin(says=slow, models=("model-a",))) as standin, ThreadPoolExecutor() as pool:
        registry.engine("openai:model-a", EngineSettings(base_url=standin.url))  # it is looked at once
        under_way = []
        for name in sorted(asked, key=lambda name: name != first):
            most, n = asked[name]
            limits, store = Limits(concurrency=most), tmp_path / f"{name}.db"
            under_way.append(pool.submit(judged, standin, rows(name, n), limits=limits, store=store))
            time.sleep(0.15)  # the other comes later, and asks for something else
            slow.most.clear()
        found = [outcome for each in under_way for outcome in each.result(60)]
    assert all(isinstance(each, Verdict) for each in found) and len(found) == 72
    assert slow.most["alpha"] == 1
    assert 3 < slow.most["beta"] <= 6


@pytest.mark.full
@pytest.mark.parametrize("pages", [{"/props": LLAMA}, {}], ids=["two slots told", "nothing told"])
def test_a_slow_server_gets_as_many_requests_as_it_has_slots_and_none_is_lost(
    pages: Mapping[str, Any], tmp_path: Path
) -> None:
    # Fourteen requests at once would take seven times the time of one, which is more than a request has.
    slow = Slow(slots=2, seconds=0.4)
    with running(Standin(says=slow, models=("model-a",), pages=pages)) as standin:
        found = judged(standin, rows("alpha", 14), timeout=2.5, store=tmp_path / "a.db")
    failed = [str(each) for each in found if isinstance(each, Failure)]
    assert not failed and len(found) == 14
    assert slow.at_first is not None and slow.at_first <= 2
    assert 2 < slow.most["alpha"] <= 8


# --- which model ----------------------------------------------------------------------------------------


def test_a_name_that_the_server_does_not_list_is_told_with_those_that_it_lists() -> None:
    judged_by: dict[str, Any] = {"output": "It opens at nine.", "context": CONTEXT, "judge": "faithfulness"}
    said = {"says": lambda body: "Yes", "any_name": True, "pages": {"/props": LLAMA}}
    with running(Standin(models=("/models/smollm2-135m.Q4.gguf",), **said)) as standin:
        with pytest.warns(
            UserWarning, match=r"does not list the model 'qwen3'.* lists: /models/smollm2-135m"
        ):
            verdict = magistrate.judge(model="openai:qwen3", base_url=standin.url, **judged_by)
        assert isinstance(verdict, Verdict)
        told = registry.engine("openai:qwen3", EngineSettings(base_url=standin.url)).info.ways["weights"]
        assert "does not list" in told and "smollm2-135m" in told
        for name in ("/models/smollm2-135m.Q4.gguf", "smollm2-135m.Q4.gguf", "smollm2-135m.Q4"):
            # Warnings are errors here: the file's name is the model's.
            verdict = magistrate.judge(model=f"openai:{name}", base_url=standin.url, **judged_by)
            assert isinstance(verdict, Verdict)


def test_a_server_of_anthropics_protocol_that_ignores_names_is_told_of_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    with running(Standin(models=("kept",))) as standin:
        settings = EngineSettings(base_url=standin.url)
        with pytest.warns(UserWarning, match="does not list the model 'other'.* lists: kept"):
            registry.engine("anthropic:other", settings)
        registry.engine("anthropic:kept", settings)


@pytest.mark.filterwarnings("always")
def test_the_command_line_warns_in_one_line(home: Path, call: Any) -> None:
    with running(
        Standin(says=lambda body: "Yes", models=("kept",), any_name=True, pages={"/props": LLAMA})
    ) as it:
        words = ["--context", "It rains.", "--output", "It rains.", "--judge", "faithfulness"]
        done = call("judge", *words, "--model", "openai:other", "--base-url", it.url)
    assert done.code == 0
    (line,) = [each for each in done.err.splitlines() if "other" in each]
    assert line.startswith("warning: ") and "it lists: kept" in line


def test_ollama_and_vllm_are_words_for_the_usual_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def opened(model: str, settings: EngineSettings) -> Any:
        asked.append((model, settings.base_url))
        return magistrate.ScriptedEngine([])

    monkeypatch.setattr("magistrate.engines.openai.open_engine", opened)
    monkeypatch.setenv("OPENAI_BASE_URL", "https://gateway.example/v1")
    for model, base_url in (
        ("ollama:llama3.2:1b", None),
        ("vllm:Qwen/Qwen3-4B,choose=top_k", None),
        ("ollama:llama3.2:1b", "http://gpu.lan:11434/v1"),
    ):
        registry.engine(model, EngineSettings(base_url=base_url, timeout=77))
    assert asked == [
        ("llama3.2:1b", "http://localhost:11434/v1"),
        ("Qwen/Qwen3-4B,choose=top_k", "http://localhost:8000/v1"),
        ("llama3.2:1b", "http://gpu.lan:11434/v1"),
    ]
    long = EngineSettings(base_url="http://localhost:11434/v1", timeout=77)
    short = registry.engine("ollama:llama3.2:1b", EngineSettings(timeout=77))
    assert registry.engine("openai:llama3.2:1b", long) is short, "both ways to write it are one engine"
    for words, told in (("ollama", "ollama:MODEL"), ("vllm:", "vllm:MODEL"), ("olama:x", "mean 'ollama'")):
        with pytest.raises(magistrate.MagistrateError, match=told):
            registry.engine(words)


def test_doctor_and_a_run_file_know_the_words(home: Path, call: Any) -> None:
    done = call("doctor", "--quick", "--json")
    told = {each["what"]: each["detail"] for each in json.loads(done.out)}
    assert "http://localhost:11434/v1" in told["engine ollama"]
    assert "http://localhost:8000/v1" in told["engine vllm"]
    with running(Standin(says=lambda body: "Yes", models=("kept",))) as standin:
        done = call("doctor", "--json", "--model", "ollama:kept", "--base-url", standin.url)
    assert next(each for each in json.loads(done.out) if each["what"] == "model")["state"] == "ok"
