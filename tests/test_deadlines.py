"""A deadline ends the work and not only the waiting: real long texts, through HTTP and in a program."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

import magistrate
from asked import CONTEXT, OUTPUT, an_app, until
from magistrate import _work
from magistrate.engines.base import Engine
from magistrate.engines.embedded.cores import available_cores
from magistrate.engines.scripted import ScriptedEngine
from magistrate.judges.base import JudgeInfo
from magistrate.server.app import warm_up
from magistrate.store import Store
from magistrate.types import Failure, Outcome, Sample, Verdict
from served import served
from tiny_detector import write_detector

DOCS = "\n".join(
    path.read_text("utf-8") for path in sorted((Path(__file__).parent.parent / "docs").rglob("*.md"))
)
LONG = {"output": DOCS[:190_000], "context": [(DOCS * 9)[5_000:1_600_000]], "expected": DOCS[100:19_900]}
SHORT = {"output": OUTPUT, "context": [CONTEXT], "judge": "novelty", "deadline": 20}
CODE = (
    "novelty",
    "sentences:of=novelty",
    "sentences:of=novelty,passages=3",
    "sentences:of=(sentences:of=novelty)",
    "cascade:first=novelty,then=(sentences:of=novelty)",
    "chrf:word_order=10",
    "windows:of=faithfulness",
    "passages:of=likelihood",
)


@pytest.fixture(scope="module", autouse=True)
def _warm_up() -> None:
    """What a server imports when it starts, so that the time that it has to start in is enough."""
    warm_up()


def asked(address: str, body: dict[str, Any], seconds: float = 60) -> dict[str, Any]:
    found: dict[str, Any] = httpx.post(f"{address}/api/judge", json=body, timeout=seconds).json()
    return found


@pytest.mark.full
def test_sixteen_long_requests_hold_every_slot_no_longer_than_their_deadline(tmp_path: Path) -> None:
    body = {**LONG, "judge": "sentences:of=novelty", "deadline": 1}
    with served(an_app(tmp_path)) as address, ThreadPoolExecutor(16) as pool:
        began = time.monotonic()
        found = list(pool.map(lambda _: asked(address, body), range(16)))
        after = asked(address, SHORT)
        took = time.monotonic() - began
    assert [(each["kind"], each["code"]) for each in found] == [("failure", "timeout")] * 16
    assert after["kind"] == "verdict"
    assert took < 40, "it took minutes before; seconds on a machine with nothing else to do"


def test_every_judge_that_computes_stops_at_its_deadline(tmp_path: Path) -> None:
    wrong = []
    engine = ScriptedEngine(lambda prompt: {"faithful": 0.9, "hallucinated": 0.1}, context_window=4096)
    app = an_app(tmp_path, engine)
    with served(app) as address:
        for judge in CODE:
            began = time.monotonic()
            found = asked(address, {**LONG, "judge": judge, "deadline": 0.05})
            at_work = [each.name for each in threading.enumerate() if each.name == "magistrate-judging"]
            until(lambda: not app.state.judging.n_running)
            took = time.monotonic() - began
            # A quick machine may have counted by then that the texts do not fit.
            ended = found["kind"] == "abstention" or (found["kind"], found["code"]) == ("failure", "timeout")
            if not ended or took > 10:
                wrong.append(f"{judge}: {found['kind']} {found.get('code')} after {took:.1f} s, {at_work}")
    assert not wrong


def test_who_goes_away_frees_the_slot(tmp_path: Path) -> None:
    body = {**LONG, "judge": "sentences:of=novelty", "deadline": 600}
    with served(an_app(tmp_path, at_once=1)) as address:
        with pytest.raises(httpx.ReadTimeout):
            asked(address, body, seconds=2)
        assert asked(address, SHORT)["kind"] == "verdict"


def test_in_a_program_too_a_deadline_ends_the_work() -> None:
    began = time.monotonic()
    found = magistrate.judge(
        output=LONG["output"], context=LONG["context"], judge="sentences:of=novelty", deadline=0.5
    )
    assert isinstance(found, Failure) and (found.code, found.message) == (
        "timeout",
        "no verdict within 0.5 seconds",
    )
    assert time.monotonic() - began < 15


@dataclass(frozen=True)
class Computing:
    """Calls `compute`, and is sure."""

    compute: Callable[[], None]

    @property
    def info(self) -> JudgeInfo:
        return JudgeInfo("computing", kind="code", requires=())

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        self.compute()
        return Verdict(sample.id, "computing", "faithful", 0.0)


def test_a_verdict_after_the_deadline_is_none() -> None:
    found = magistrate.judge(output=OUTPUT, judge=Computing(lambda: time.sleep(0.3)), deadline=0.1)
    assert isinstance(found, Failure) and found.code == "timeout"
    assert isinstance(magistrate.judge(output=OUTPUT, judge=Computing(lambda: None), deadline=10), Verdict)


def test_time_that_a_run_waits_for_its_store_ends_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Store.add_outcomes

    def locked(*given: Any, **options: Any) -> Any:
        time.sleep(0.4)  # another program holds the lock
        return stored(*given, **options)

    monkeypatch.setattr(Store, "add_outcomes", locked)
    rows = [{"output": f"It is {n}.", "context": ["It is 1."]} for n in range(12)]
    engine = ScriptedEngine([{"faithful": 0.9, "hallucinated": 0.1}] * 12, delay=0.1)
    limits = magistrate.Limits(deadline=0.3, concurrency=4)
    run = magistrate.evaluate(rows, "faithfulness", model=engine, store=tmp_path / "runs.db", limits=limits)
    assert [type(each) for each in run.outcomes()] == [Verdict] * 12


def test_a_judge_of_ones_own_can_ask_whether_its_work_is_over() -> None:
    def compute() -> None:
        for _ in _work.checked(range(10**9)):
            pass

    began = time.monotonic()
    found = magistrate.judge(output=OUTPUT, judge=Computing(compute), deadline=0.2)
    assert isinstance(found, Failure) and found.code == "timeout" and time.monotonic() - began < 10


def test_what_waits_for_another_that_computes_leaves_at_its_deadline() -> None:
    with (
        _work.alone(),
        pytest.raises(_work.DeadlineExceeded),
        _work.Deadline(0.1),
        _work.alone(),
    ):
        pass


def test_a_context_is_cut_up_once_and_not_for_every_sentence() -> None:
    sentences = [each for each in DOCS.split("\n") if each.endswith(".") and len(each) > 80][:100]

    def seconds(n: int) -> float:
        began = time.process_time()
        found = magistrate.judge(
            output=" ".join(sentences[:n]), context=DOCS[:100_000], judge="sentences:of=novelty", deadline=300
        )
        assert isinstance(found, Verdict), found
        return time.process_time() - began

    seconds(1)
    assert seconds(100) < 20 * max(seconds(1), 0.05)


def test_a_detector_stops_between_its_windows(tmp_path: Path) -> None:
    from magistrate.judges.detector import Detector

    judge = Detector(write_detector(tmp_path / "detector", [DOCS]))
    threads = threading.active_count()
    found = magistrate.judge(output=LONG["output"], context=LONG["context"], judge=judge, deadline=0.5)
    assert isinstance(found, Failure) and found.code == "timeout"
    turns = judge.model._turn.get()
    until(lambda: turns._value == available_cores() and threading.active_count() <= threads + 3)
