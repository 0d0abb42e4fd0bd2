"""Runs of many samples: outcomes are written in groups, and a report that reads columns says the same."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import magistrate.report.counts as counting
from magistrate.engines.base import Engine
from magistrate.engines.none import NONE
from magistrate.judges.base import JudgeInfo
from magistrate.report.counts import count, count_columns, count_outcomes, counted
from magistrate.runs.execute import GROUP, Judged, stream_groups
from magistrate.runs.limits import Limits
from magistrate.runs.prepare import RunPlan
from magistrate.runs.spec import RunSpec
from magistrate.runs.writer import WorkList, execute_run
from magistrate.store import Store
from magistrate.types import (
    FAITHFUL,
    HALLUCINATED,
    Abstention,
    Claim,
    Failure,
    Outcome,
    Recipe,
    Sample,
    Scoring,
    Span,
    Usage,
    Verdict,
)

INFO = JudgeInfo(name="quick", kind="code", requires=("output",))


def some(n: int) -> list[Sample]:
    return [Sample(f"s{i:05}", f"output {i}", ("a context",), label=FAITHFUL) for i in range(n)]


@dataclass(frozen=True)
class Quick:
    info: ClassVar[JudgeInfo] = INFO

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        details: dict[str, Any] = {"set": {1}} if sample.id == "s00007" else {}
        return Verdict(sample.id, "quick", FAITHFUL, 0.25, details=details)


@dataclass
class Listener:
    """Looks with another connection whether what it is told is in the store."""

    place: str
    run_id: str = ""
    told: list[Judged] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)

    def started(self, run_id: str, *_: object) -> None:
        self.run_id = run_id

    def judged(self, judged: Judged) -> None:
        if judged.outcome.sample_id not in self.stored:
            with Store.open(self.place) as other:
                self.stored = {sample_id for sample_id, _ in other.judged(self.run_id)}
        assert judged.outcome.sample_id in self.stored, "it was told before it was committed"
        self.told.append(judged)

    def finished(self, *_: object) -> None:
        pass


def started(store: Store, n_total: int, **more: Any) -> str:
    names = dict.fromkeys(("a", "b", "never"), Recipe("a@1", "none", "f" * 64, "", "", 0, 0, "1"))
    return store.create_run(
        dataset="many",
        dataset_digest="0" * 64,
        model="none",
        engine_fingerprint="f" * 64,
        recipes=more.pop("recipes", names),
        n_total=n_total,
        **more,
    )


def test_outcomes_are_committed_in_groups_and_told_after(place: str) -> None:
    n, listener = 600, Listener(place)
    plan = RunPlan(spec=RunSpec(dataset="many"), judges=[Quick()], engine=NONE, objects=("judges",))
    with Store.open(place) as store:
        run = started(store, n, recipes={})
        asyncio.run(execute_run(store, run, plan, WorkList(samples=some(n), total=n), listener))
        record = store.find_run(run)
        found = list(store.outcomes(run))
    assert (record.status, record.n_verdicts, record.n_failures) == ("done", n - 1, 1)
    assert sorted(each.outcome.sample_id for each in listener.told) == [each.sample_id for each in found]
    assert record.revision < n / 4, "each commit of a group is one revision"
    [lost] = [each for each in found if isinstance(each, Failure)]
    assert (lost.sample_id, lost.code) == ("s00007", "invalid_output"), "it costs none of its group"


def test_an_outcome_that_comes_alone_waits_for_no_other() -> None:
    turns = asyncio.Semaphore(0)

    @dataclass(frozen=True)
    class InTurn(Quick):
        async def judge(self, sample: Sample, engine: Engine) -> Outcome:
            await turns.acquire()
            return await super().judge(sample, engine)

    async def sizes(at_once: int) -> list[int]:
        found = []
        async for group in stream_groups(some(20), [InTurn()], NONE, limits=Limits(concurrency=20)):
            found.append(len(group))
            for _ in range(at_once):
                turns.release()
        return found

    async def with_first(at_once: int) -> list[int]:
        for _ in range(at_once):
            turns.release()
        return await sizes(at_once)

    assert asyncio.run(with_first(1)) == [1] * 20
    turns = asyncio.Semaphore(0)
    assert asyncio.run(with_first(5)) == [5] * 4
    assert GROUP >= 20


KILLED = """
import os, signal, sys
from test_million import *
class Fatal(Listener):
    def judged(self, judged):
        self.told.append(judged)
        print(judged.outcome.sample_id, flush=True)
        if len(self.told) == 300:
            os.kill(os.getpid(), signal.SIGKILL)
plan = RunPlan(spec=RunSpec(dataset="many"), judges=[Quick()], engine=NONE, objects=("judges",))
with Store.open(sys.argv[1]) as store:
    run = started(store, 900, recipes={})
    asyncio.run(execute_run(store, run, plan, WorkList(samples=some(900), total=900), Fatal(sys.argv[1])))
"""


def test_nothing_that_was_told_is_lost_by_a_kill(place: str) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, place],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    told = done.stdout.split()
    assert (done.returncode, len(told)) == (-signal.SIGKILL, 300), done.stderr
    with Store.open(place) as store:
        stored = {sample_id for sample_id, _ in store.judged(store.find_run("last").id)}
    assert set(told) <= stored


# --- the report -----------------------------------------------------------------------------------


def varied(i: int) -> Sample:
    label = (FAITHFUL, HALLUCINATED, HALLUCINATED, None, "unsure")[i % 5]
    context = (f"context {i % 60} of some samples",) if i % 11 else ()
    spans = (Span(0, 3),) if label == HALLUCINATED and i % 2 else ()
    return Sample(f"s{i:04}", f"output {i} " * (1 + i % 4), context, f"q{i}", label=label, spans=spans)


def said(i: int, judge: str) -> Outcome:
    about = {"usage": Usage(1, i, 2, 3, 1, i % 2), "seconds": (i % 13) / 8}
    name = f"s{i:04}"
    if i % 17 == 3:
        return Failure(name, judge, ("timeout", "engine_error")[i % 2], "no", **about)
    if i % 19 == 4:
        return Abstention(name, judge, "no_context", "none", **about)
    if i % 23 == 5:
        return Verdict(name, judge, "good", 0.5, **about)
    score = (i * 37 % 101) / 100
    wrong = Claim("unsupported", Span(1, 4), None, None, "why")
    return Verdict(
        name,
        judge,
        HALLUCINATED if score >= 0.5 else FAITHFUL,
        score,
        explanation_agrees=(None, True, False)[i % 3],
        claims=(wrong,) if judge == "a" and score >= 0.5 else (),
        **about,
    )


def filled(store: Store, n: int) -> str:
    scoring = {
        "a": Scoring("minimize", (FAITHFUL, HALLUCINATED), 0.5),
        "b": Scoring("maximize", ("x",), None),
    }
    run = started(store, n, scoring=scoring)
    store.add_samples(run, map(varied, range(n)))
    store.add_outcomes(run, (said(i, "a") for i in range(n)))
    store.add_outcomes(run, (said(i * 7 % n, "b") for i in range(n - 20)))
    store.add_outcomes(run, (said(i, "late") for i in range(0, n, 3)))
    store.add_seconds(run, 12.5)
    store.finish_run(run, "done")
    return run


def test_columns_give_every_figure_of_the_outcomes(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(place) as store:
        run = filled(store, 500)
        with store.snapshot() as moment:
            record = moment.record(run)
            exact = count_outcomes(record, *moment.readable(run, []))
            damaged: list[str] = []
            found = count_columns(moment, record, damaged)
            monkeypatch.setattr(counting, "MOST_READ", 100)
            monkeypatch.setattr(counting, "SAMPLED", 60)
            sampled = count(moment, record)
    assert damaged == []
    for own, other in zip(found.report.judges, exact.report.judges, strict=True):
        assert own == other
        scores, others = found.scores[own.judge], exact.scores[own.judge]
        for name in ("hallucinated", "faithful", "unlabelled"):
            assert np.array_equal(getattr(scores, name), getattr(others, name)), name
    drawn, whole = sampled.report.judges[0], exact.report.judges[0]
    assert (drawn.n_sampled, whole.n_sampled) == (60, None)
    assert f"rest on 60 of {whole.n_labelled} labelled samples" in " ".join(drawn.remarks)
    assert drawn.baselines[:2] == whole.baselines[:2]
    assert drawn.spans is not None and whole.spans is not None and drawn.spans.n < whole.spans.n
    same = replace(drawn, n_sampled=None, baselines=whole.baselines, spans=whole.spans, remarks=whole.remarks)
    assert same.to_dict() == whole.to_dict()


def test_columns_leave_out_and_name_what_is_damaged(place: str, tmp_path: Any) -> None:
    if "://" in place:
        return
    import sqlite3

    with Store.open(place) as store:
        run = filled(store, 200)
    with sqlite3.connect(place) as writer:
        where = "judge = 'a' AND position = (SELECT min(position) FROM outcomes WHERE body LIKE '%agrees%')"
        writer.execute(f"UPDATE outcomes SET body = body || '}}' WHERE {where}")
    writer.close()
    with Store.open(place) as store, store.snapshot() as moment:
        record = moment.record(run)
        lost: list[str] = []
        told: list[str] = []
        exact = count_outcomes(record, *moment.readable(run, lost))
        found = count_columns(moment, record, told)
    assert told == lost and len(told) == 1
    assert found.report.judges[0].to_dict() == exact.report.judges[0].to_dict()


def test_charts_of_many_scores_are_drawn_behind_and_are_never_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastapi.testclient import TestClient

    from magistrate.server.app import create_app
    from magistrate.server.settings import Settings

    place = str(tmp_path / "runs.db")
    with Store.open(place) as store:
        run = filled(store, 200)
        expected = counted(store, run).report.judges[0]
        with TestClient(create_app(Settings(store=place)), base_url="http://127.0.0.1") as client:
            address = f"/api/runs/{run}/judges/a/figures"
            plain = client.get(address).json()
            monkeypatch.setattr("magistrate.server.figures.MOST_DRAWN", 10)
            store.add_outcome(run, said(199, "new"))
            first = client.get(address).json()
            assert first["pending"], "the run has changed: what was drawn before is not shown as current"

            def drawn() -> dict[str, Any]:
                found: dict[str, Any] = client.get(address).json()
                return found

            again = next(each for each in iter(drawn, None) if not each["pending"])
            assert client.get(f"/runs/{run}").status_code == 200
    assert not plain["pending"] and again["refused"] is None
    assert again["report"]["n_ok"] == expected.n_ok and again["threshold"] == plain["threshold"]


def test_the_numbers_of_a_run_are_those_of_its_metrics_only_while_it_does_not_change(place: str) -> None:
    with Store.open(place) as store:
        run = filled(store, 60)
        before = store.find_run(run)
        counted(store, run)
        assert store.find_run(run) == before
        lean = counted(store, run, scores=False)
        assert (lean.report, lean.scores) == (counted(store, run).report, {})
        store.add_outcome(run, said(1, "new"))
        assert store.find_run(run).n_verdicts == before.n_verdicts + 1
