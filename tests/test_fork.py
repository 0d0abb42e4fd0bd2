"""A forked process judges as its parent did: nothing waits for threads that a fork leaves behind.

Every child has a time of its own, after which it is killed: a hang is a failure and not a wait.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import magistrate
from asked import CONTEXT, OUTPUT
from magistrate import _async, _fork, _work
from magistrate.engines.base import Engine, EngineSettings
from magistrate.engines.cache import call_cache
from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import EngineGone
from magistrate.judges import registry
from magistrate.judges.base import JudgeInfo
from magistrate.judges.detector import Detector
from magistrate.types import Failure, Outcome, Sample, Verdict
from standins import running, vllm_like
from tiny_detector import write_detector

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

SECONDS = 60  # that a child may take


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` answers, or the error that it raises, in a forked process."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 on: there are threads
        child = os.fork()
    if child == 0:
        try:
            os.close(read)
            try:
                found = work()
            except BaseException as error:
                found = error
            with os.fdopen(write, "wb") as pipe:
                pipe.write(pickle.dumps(found))
        finally:
            os._exit(0)
    os.close(write)
    alarm = threading.Timer(SECONDS, os.kill, (child, signal.SIGKILL))
    alarm.start()
    try:
        with os.fdopen(read, "rb") as pipe:
            told = pipe.read()
        os.waitpid(child, 0)
    finally:
        alarm.cancel()
    assert told, f"the child said nothing within {SECONDS} seconds"
    return pickle.loads(told)


def judged(model: Any = None, judge: Any = "novelty", **more: Any) -> tuple[str, float]:
    found = magistrate.judge(output=OUTPUT, context=[CONTEXT], judge=judge, model=model, deadline=30, **more)
    assert isinstance(found, Verdict), found
    return found.label, found.score


@pytest.mark.parametrize("judge", ["novelty", "detector"])
def test_a_child_judges_as_its_parent_did_and_so_does_a_grandchild(judge: str) -> None:
    known = judged(judge=judge)
    assert [in_child(lambda: judged(judge=judge)) for _ in range(3)] == [known] * 3
    assert in_child(lambda: in_child(lambda: judged(judge=judge))) == known
    assert judged(judge=judge) == known, "the parent goes on"


def test_a_child_judges_in_a_loop_of_its_own() -> None:
    known = judged()
    assert in_child(lambda: asyncio.run(_in_a_loop())) == known
    assert judged() == known, "the parent goes on"


async def _in_a_loop() -> tuple[str, float]:
    return judged()


def test_a_scripted_engine_goes_on_in_a_child() -> None:
    engine = ScriptedEngine(lambda prompt: {"faithful": 0.9, "hallucinated": 0.1})
    known = judged(engine, "faithfulness")
    assert in_child(lambda: judged(engine, "faithfulness")) == known


@dataclass(frozen=True)
class Endless:
    """Computes until it is stopped."""

    info = JudgeInfo("endless", kind="code", requires=())

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        for _ in _work.checked(iter(int, 1)):
            pass
        raise AssertionError


@dataclass(frozen=True)
class Waiting:
    """Waits until it is stopped."""

    info = JudgeInfo("waiting", kind="code", requires=())

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        await asyncio.sleep(3600)
        raise AssertionError


def test_deadlines_hold_in_a_child() -> None:
    judged()
    for judge in (Endless(), Waiting()):
        found = in_child(lambda judge=judge: magistrate.judge(output=OUTPUT, judge=judge, deadline=0.3))
        assert isinstance(found, Failure) and found.code == "timeout"


def test_a_child_that_is_forked_while_its_parent_judges_judges() -> None:
    known = judged()
    busy = threading.Thread(
        target=magistrate.judge, kwargs={"output": OUTPUT, "judge": Endless(), "deadline": 3}, daemon=True
    )
    busy.start()
    time.sleep(0.3)
    with _work.alone():
        assert in_child(judged) == known
    busy.join(SECONDS)


def _judged(number: int) -> tuple[str, float]:
    return judged()


def test_a_pool_of_forked_processes_judges() -> None:
    known = judged()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map_async(_judged, range(6)).get(SECONDS) == [known] * 6


PREFORK = """
import os, signal, sys
import magistrate

def judged():
    found = magistrate.judge(output="It closes at six.", context="It closes at five.", judge="novelty")
    return found.label, found.score

known = judged()  # the application is loaded and has judged: workers are forked, and leave with sys.exit
workers = []
for _ in range(3):
    worker = os.fork()
    if not worker:
        signal.alarm(60)
        sys.exit(0 if [judged() for _ in range(3)] == [known] * 3 else 3)
    workers.append(worker)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in workers))
"""


def test_workers_of_a_server_that_forks_them_judge_and_end() -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PREFORK],
        capture_output=True,
        text=True,
        timeout=3 * SECONDS,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_detector_reads_in_a_child(tmp_path: Path) -> None:
    judge = Detector(write_detector(tmp_path / "detector", [OUTPUT, CONTEXT]))
    known = judged(judge=judge)
    with judge.model._turn.get():  # as if another thread of the parent were reading
        assert in_child(lambda: judged(judge=judge)) == known


def test_a_cache_of_calls_is_opened_anew(tmp_path: Path) -> None:
    mine = call_cache(tmp_path / "cache.db")

    def in_the_child() -> tuple[bool, bool]:
        own = call_cache(tmp_path / "cache.db")
        return own is not mine and own.usable, mine.usable

    assert mine.usable and in_child(in_the_child) == (True, False)
    assert mine.usable and call_cache(tmp_path / "cache.db") is mine


@pytest.mark.full
def test_a_server_is_asked_over_connections_of_the_childs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGISTRATE_HOME", str(tmp_path))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with running(vllm_like()) as standin:
        known = judged("openai:model-a", "faithfulness", base_url=standin.url)
        assert in_child(lambda: judged("openai:model-a", "faithfulness", base_url=standin.url)) == known
        mine = registry.engine("openai:model-a", EngineSettings(base_url=standin.url))
        assert judged(mine, "faithfulness") == known
        error = in_child(lambda: judged(mine, "faithfulness"))
        assert isinstance(error, EngineGone) and "'spawn'" in str(error)
        assert judged(mine, "faithfulness") == known, "the parent's connections are left alone"


def test_what_cannot_be_made_anew_says_what_to_do() -> None:
    _fork.only_one("a library")
    _fork.only_one("a library")
    error = in_child(lambda: _fork.only_one("a library"))
    assert isinstance(error, EngineGone) and "'spawn'" in str(error) and "a library" in str(error)
    assert in_child(lambda: _fork.only_one("another library")) is None


def test_a_loop_of_a_parent_is_left_alone() -> None:
    judged()
    mine = _async._loop
    assert in_child(lambda: (judged(), _async._loop is not mine)[1])
    assert _async._loop is mine
