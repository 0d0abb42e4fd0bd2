"""A run that several processes judge: the same outcomes, nothing twice, whoever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import magistrate
from farmed import Farm, bare, farm
from magistrate import Limits, Run
from magistrate.errors import EngineGone, SpecError
from magistrate.runs import prepare, workers
from magistrate.runs.prepare import MANY
from magistrate.runs.spec import spec_from
from magistrate.types import Failure
from test_resuming import Stop

__all__ = ["farm"]

N = 240


def running(pid: int) -> bool:
    """Whether the process is there, and not only as an entry that nobody has read."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def judged(farm: Farm, place: Any, **options: Any) -> Run:
    usual = {"judges": "farmed", "store": place, "progress": False}
    return magistrate.evaluate(farm.data(N), **usual | options)


def test_two_workers_give_the_outcomes_of_one_process_also_if_one_is_killed(
    farm: Farm, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACE", "0.02")  # else one worker may be done before the other one has begun
    alone = judged(farm, place)
    assert {process for process, _ in farm.judged()} == {os.getpid()}
    farm.ledger.write_text("")
    killed: list[int] = []

    def kill() -> None:
        killed.append(farm.judged()[-1][0])
        os.kill(killed[0], signal.SIGKILL)

    watcher = Stop(N // 2, kill)
    run = judged(farm, place, workers=2, watcher=watcher)
    processes = Counter(process for process, _ in farm.judged())
    assert os.getpid() not in processes
    assert len(processes) in (2, 3), "two, and one for the one that was killed, if there was something left"
    assert (run.record.status, run.record.n_outcomes, watcher.seen) == ("done", N, N)
    assert bare(run) == bare(alone)
    assert [each.id for each in run.samples()] == [f"s{k}" for k in range(N)]
    assert len(farm.judged()) <= N + 16, "only what was under way was judged again"
    assert not any(map(running, processes)), "none is left behind"


@pytest.mark.full
def test_a_sample_that_ends_its_process_fails_and_takes_no_other_with_it(farm: Farm) -> None:
    run = magistrate.evaluate(
        farm.data(40, poison=7), "farmed", workers=2, store=farm.folder / "a.db", progress=False
    )
    failed = [each for each in run.outcomes() if isinstance(each, Failure)]
    assert [(each.sample_id, each.code) for each in failed] == [("s7", "engine_error")]
    assert failed[0].message == (
        "3 worker processes ended while this sample was judged; the last was ended by SIGKILL"
    )
    assert (run.record.status, run.record.n_verdicts) == ("done", 39)
    farm.data(40)


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="only there a status can be seen without taking it")
def test_the_status_of_a_worker_that_has_ended_is_left_to_the_event_loop() -> None:
    process: Any = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    workers._kill(process)
    assert process.returncode is None and process.wait() == 0


@pytest.mark.full
def test_a_worker_that_hangs_is_replaced(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SILENCE", 20.0)
    monkeypatch.setenv("PACE", "0.02")  # so that it has samples under way
    watcher = Stop(N // 2, lambda: os.kill(farm.judged()[-1][0], signal.SIGSTOP))
    place = farm.folder / "runs.db"
    run = judged(farm, place, workers=2, watcher=watcher, limits=Limits(deadline=1))
    assert (run.record.status, run.record.n_verdicts) == ("done", N)
    assert len({process for process, _ in farm.judged()}) >= 3


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_whose_parent_was_ended_is_resumed(farm: Farm, number: int) -> None:
    """The workers end with their parent, whatever ended it."""
    store, data = farm.folder / "runs.db", farm.data(N)
    words = ["run", data, "--judge", "farmed", "--workers", 2, "--store", store]
    parent = subprocess.Popen(
        [sys.executable, "-m", "magistrate", *map(str, words)],
        env={**farm.environment, "PACE": "0.02", "PRINTED": "a judge may print"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(farm.judged()) < N // 3:
        assert parent.poll() is None
        time.sleep(0.01)
    parent.send_signal(number)
    out, err = parent.communicate()
    workers = {process for process, _ in farm.judged()}
    while any(map(running, workers)):
        time.sleep(0.01)
    before = len(farm.judged())
    assert before < N and "a judge may print" not in out
    if number == signal.SIGINT:
        assert parent.returncode == 130 and "continue with: magistrate resume" in err
    kept = bare(Run(Run("last", store).record.id, store))
    run = magistrate.resume("last", workers=2, store=store, progress=False)
    assert (run.record.status, run.record.n_outcomes) == ("done", N)
    assert bare(run).items() >= kept.items()
    assert len(farm.judged()) <= before + N - len(kept)
    assert bare(run) == bare(judged(farm, farm.folder / "alone.db"))


@pytest.mark.full
def test_limits_count_all_workers(farm: Farm) -> None:
    options = {"judges": "faithfulness", "model": "pretend:x", "workers": 2, "store": farm.folder / "runs.db"}
    run = judged(farm, **{"place": options["store"], **options, "limits": Limits(max_calls=50)})
    assert (run.record.status, len(farm.judged())) == ("interrupted", 50)
    assert run.record.reason == "50 of at most 50 calls have been made (max_calls)"
    magistrate.resume(run, limits=Limits(), progress=False)
    assert run.record.status == "done" and Counter(each for _, each in farm.judged()) == {"asked": N}
    assert len({process for process, _ in farm.judged()}) >= 2  # a quick one may take all that is left


def test_workers_are_refused_where_they_cannot_be(farm: Farm, model_folder: Path) -> None:
    engine = magistrate.ScriptedEngine([])
    for options, told in (
        ({"judges": "faithfulness", "model": model_folder}, "the embedded model already uses all cores"),
        (
            {"judges": f"rubric:extractor={model_folder}", "model": "pretend:x"},
            "the embedded model already uses",
        ),
        ({"judges": "faithfulness", "model": engine}, "the model given as a Python object cannot be sent"),
        ({"task": lambda sample: "x"}, "the task given as a Python object cannot be sent"),
    ):
        with pytest.raises(SpecError, match=told):
            judged(farm, farm.folder / "runs.db", workers=2, **options)


@pytest.mark.full
def test_workers_that_cannot_start_end_the_run(farm: Farm) -> None:
    (farm.site / "farmed_parts.py").write_text("import os; os._exit(3)")
    with pytest.raises(EngineGone, match="a worker process exited with 3 before it was ready"):
        judged(farm, farm.folder / "runs.db", workers=2)


def test_by_default_only_judges_without_a_model_use_every_core(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "available_cores", lambda: 8)
    path = farm.data(3)

    def number(left: int | None, judge: str = "farmed", **more: Any) -> int:
        engines: dict[str, Any] = {} if judge == "farmed" else {"default": "pretend:x"}
        spec = spec_from({"dataset": str(path), "judges": [judge], "engines": engines, **more})
        return prepare.prepare(spec).n_workers(left)

    found = [number(MANY), number(MANY + 1), number(None), number(MANY + 1, "faithfulness")]
    assert found == [1, 8, 1, 1]
    few = {"workers": 6, "limits": {"concurrency": 4}}
    assert [number(left, "faithfulness", **few) for left in (100, 3)] == [4, 3]
    assert number(100, workers=6) == 6
