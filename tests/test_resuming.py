"""A run that was cut short goes on where it was: nothing is lost, nothing judged twice, nothing mixed."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

import magistrate
from magistrate import JudgeInfo, Limits, Run, ScriptedEngine
from magistrate.engines.scripted import EVERYTHING
from magistrate.errors import DatasetError, EngineError, EngineGone, InvalidOutput, SpecError, StoreError
from magistrate.judges import instance
from magistrate.runs import writer
from magistrate.store import Store
from magistrate.types import Failure, Outcome, Prompt, Sample, Verdict
from tiers import tries

FAITHFULNESS: Any = instance("faithfulness")
SAMPLES = 40


def rows(n: int) -> list[dict[str, Any]]:
    return [
        {
            "id": f"s{number}",
            "output": f"{('true', 'false')[number % 2]} {number}",
            "context": ["what is true"],
            "label": ("faithful", "hallucinated")[number % 2],
        }
        for number in range(n)
    ]


def said(prompt: Prompt) -> str:
    (output,) = (part.text for part in prompt.data() if part.name == "output")
    return output


def answer(prompt: Prompt) -> Any:
    """A script that is always right, with a probability of its own for every sample."""
    word, _, number = said(prompt).partition(" ")
    sure = 0.6 + int(number) % 300 / 1000
    return {"faithful": sure, "hallucinated": 1 - sure} if word == "true" else {"hallucinated": sure}


def written(folder: Path, n: int = SAMPLES) -> Path:
    path = folder / "answers.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(n)))
    return path


def bare(outcome: Outcome) -> Outcome:
    """An outcome without the time that it took."""
    return replace(outcome, seconds=0.0, steps=tuple(replace(step, seconds=0.0) for step in outcome.steps))


def outcomes(store: Path, run: str = "last") -> list[Outcome]:
    found = Run(Run(run, store).record.id, store)
    return [bare(each) for each in found.outcomes(with_steps=True)]


class Stop:
    """A watcher that does something after so many outcomes."""

    def __init__(self, after: int, act: Callable[[], Any]) -> None:
        self.after, self.act, self.seen, self.run_id = after, act, 0, ""

    def started(self, run_id: str, total: int | None, engine: Any, done: int) -> None:
        self.run_id = run_id

    def judged(self, judged: Any) -> None:
        self.seen += 1
        if self.seen == self.after:
            self.act()

    def finished(self, problems: Any, stopped: Any) -> None: ...


def cut_short(source: Any, store: Path, after: int = 10, **options: Any) -> str:
    """A run that an error of its watcher ends after so many outcomes; its id."""

    def trip() -> None:
        raise RuntimeError("the power went")

    watcher = Stop(after, trip)
    usual = {"judges": "faithfulness", "model": ScriptedEngine(answer), "limits": Limits(concurrency=2)}
    with pytest.raises(RuntimeError, match="the power went"):
        magistrate.evaluate(source, store=store, watcher=watcher, **usual | options)
    return watcher.run_id


# --- killed ---------------------------------------------------------------------------------------

JUDGING = """
import asyncio, sys
import magistrate
from magistrate import Limits, ScriptedEngine
sys.path.insert(0, {tests!r})
from test_resuming import answer

def script(prompt):
    with open({asked!r}, "a") as stream:
        stream.write(".")
    return answer(prompt)

engine = ScriptedEngine(script, delay=0.004)
options = dict(model=engine, store={store!r}, progress=False, limits=Limits(concurrency=3))
resumed = sys.argv[1:]
if resumed:
    magistrate.resume(resumed[0], **options)
else:
    magistrate.evaluate({data!r}, ["faithfulness", "relevance"], **options)
"""


@contextmanager
def forks(folder: Path, data: Path) -> Iterator[Callable[..., int]]:
    """Starts processes that judge, forked from one that has imported everything: they begin at once.

    They are killed after so many calls of their own, wherever they are by then.
    """
    asked = folder / "asked"
    asked.touch()
    code = JUDGING.format(
        tests=str(Path(__file__).parent),
        asked=str(asked),
        store=str(folder / "runs.db"),
        data=str(data),
    )
    nursery = f"""
import os, sys
import magistrate, magistrate.api.evaluate, magistrate.report, magistrate.store, magistrate.judges.definitions
import magistrate.engines.scripted, magistrate.runs.resume
code = {code!r}
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        sys.argv = ["judging", *line.split()]
        status = 1
        try:
            exec(compile(code, "judging", "exec"), {{}})
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", nursery], **pipes) as process:

        def judge(run_id: str = "", kill_after: int | None = None) -> int:
            begun = asked.stat().st_size
            process.stdin.write(f"{run_id}\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            child = int(process.stdout.readline())  # type: ignore[union-attr]
            if kill_after is not None:
                with suppress(ProcessLookupError):
                    while asked.stat().st_size < begun + kill_after:
                        os.kill(child, 0)
                        time.sleep(0.001)
                    os.kill(child, signal.SIGKILL)
            return int(process.stdout.readline())  # type: ignore[union-attr]

        yield judge
        process.stdin.close()  # type: ignore[union-attr]


@pytest.mark.full
def test_a_run_that_is_killed_at_random_moments_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    data, store = written(tmp_path), tmp_path / "runs.db"
    whole = tmp_path / "whole.db"
    engine = ScriptedEngine(answer)
    magistrate.evaluate(data, ["faithfulness", "relevance"], model=engine, store=whole)
    expected = outcomes(whole)
    draw = random.Random(20261122)
    most = tries(50)
    asked, kills, midway = tmp_path / "asked", 0, 0
    with forks(tmp_path, data) as judge:
        assert judge() == 0
        runs, calls = 1, asked.stat().st_size
        while kills < most:
            runs += 1
            killed = judge(kill_after=draw.randrange(calls)) != 0
            run_id = _newest(store)
            while killed and run_id:
                kills += 1
                before = _rows(store, run_id)
                midway += 0 < len(before) < len(expected)
                again = draw.randrange(calls) if kills < most and draw.random() < 0.7 else None
                killed = judge(run_id, again) != 0
                assert _rows(store, run_id)[: len(before)] == before, "what was committed stays as it was"
            if not killed:
                assert outcomes(store, run_id) == expected
                assert Run(run_id, store).record.status == "done"
    assert midway >= most // 4
    # What was under way at a kill is asked again; no more than that.
    assert asked.stat().st_size <= runs * SAMPLES + kills * 3


def _rows(store: Path, run_id: str) -> list[Any]:
    """A run's outcomes as they were committed."""
    with closing(sqlite3.connect(store)) as peek:
        return peek.execute("SELECT * FROM outcomes WHERE run_id = ? ORDER BY id", [run_id]).fetchall()


def _newest(store: Path) -> str:
    with Store.open(store) as opened:
        return opened.runs(limit=1)[0].id


# --- resumed --------------------------------------------------------------------------------------


def test_what_was_judged_is_not_judged_again(tmp_path: Path) -> None:
    store, engine = tmp_path / "runs.db", ScriptedEngine(answer)
    run_id = cut_short(written(tmp_path), store, after=15)
    before = outcomes(store)
    assert Run(run_id, store).record.status == "failed"
    run = magistrate.resume(run_id, model=engine, store=store)
    assert run.id == run_id
    assert run.record.status == "done"
    assert len(engine.prompts) == SAMPLES - len(before)
    after = {each.sample_id: each for each in outcomes(store)}
    assert len(after) == SAMPLES
    assert all(after[each.sample_id] == each for each in before)


def test_a_run_that_is_done_stays_as_it_is(tmp_path: Path) -> None:
    store, engine = tmp_path / "runs.db", ScriptedEngine(answer)
    run = magistrate.evaluate(rows(5), "faithfulness", model=engine, store=store)
    record = run.record
    magistrate.resume(run, model=engine)
    assert (len(engine.prompts), run.record) == (5, record)


def test_rows_from_memory_need_not_be_given_again(tmp_path: Path) -> None:
    """They are stored before the first is judged, for nobody can read them a second time."""
    store = tmp_path / "runs.db"
    run_id = cut_short(rows(30), store)
    run = magistrate.resume(run_id, model=ScriptedEngine(answer), store=store)
    assert [each.sample_id for each in run.outcomes()] == [f"s{number}" for number in range(30)]


def test_samples_stay_in_the_order_of_their_source(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    run_id = cut_short(written(tmp_path), store)
    run = magistrate.resume(run_id, model=ScriptedEngine(answer), store=store)
    assert [each.id for each in run.samples()] == [f"s{number}" for number in range(SAMPLES)]


def test_a_task_is_not_asked_again_for_what_it_answered(tmp_path: Path) -> None:
    store, made = tmp_path / "runs.db", Counter[str]()
    questions = [
        {"id": f"s{number}", "input": str(number), "context": "what is true"} for number in range(30)
    ]

    def task(sample: Sample) -> str:
        made[sample.id] += 1
        return f"true {sample.input}"

    run_id = cut_short(questions, store, task=task)
    there = Run(run_id, store).samples()
    magistrate.resume(run_id, dataset=questions, task=task, model=ScriptedEngine(answer), store=store)
    assert len(made) == 30
    assert all(made[sample.id] == 1 for sample in there)


class Changing:
    """A task that never says the same twice."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, sample: Sample) -> str:
        self.calls += 1
        return f"{('true', 'false')[self.calls % 2]} {self.calls}"


QUESTIONS = [{"id": f"s{number}", "input": str(number), "context": "c"} for number in range(8)]


def seen(outcome: Outcome) -> str:
    """The output that a judge was shown."""
    text = outcome.steps[-1].prompt[-1][1]
    return next(word for word in ("true", "false") if f"{word} " in text)


def agree(run: Run) -> bool:
    """Whether every verdict is about the output that is stored."""
    stored = {sample.id: sample.output or "" for sample in run.samples()}
    judged = [each for each in run.outcomes(with_steps=True) if isinstance(each, Verdict)]
    return all(stored[each.sample_id].startswith(seen(each)) for each in judged)


@pytest.mark.parametrize("retried", [False, True])
def test_every_verdict_is_about_the_output_that_is_stored(tmp_path: Path, retried: bool) -> None:
    """Also where a task gives another answer each time, and judges have come differently far."""
    store, task = tmp_path / "runs.db", Changing()
    judges = [FAITHFULNESS, replace(FAITHFULNESS, name="second")]
    asked: Counter[str] = Counter()

    def script(prompt: Prompt) -> Any:
        asked[said(prompt)] += 1
        broken = retried and asked[said(prompt)] == 2
        return EngineError("broken") if broken else answer(prompt)

    engine = ScriptedEngine(script, delay=0.001)
    if retried:
        run = magistrate.evaluate(QUESTIONS, judges, task=task, model=engine, store=store)
        assert run.record.n_failures == 8
        magistrate.retry(run, judges=judges, task=task, model=ScriptedEngine(answer))
    else:
        run_id = cut_short(QUESTIONS, store, after=5, judges=judges, task=task, model=engine)
        run = magistrate.resume(
            run_id, dataset=QUESTIONS, judges=judges, task=task, model=engine, store=store
        )
    assert run.record.n_verdicts == 16
    assert agree(run)
    assert task.calls <= 8 + 2, "only what was under way is made again"


def test_a_task_is_refused_where_there_was_none(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    run_id = cut_short(written(tmp_path), store)
    with pytest.raises(SpecError, match="now a task would produce them"):
        magistrate.resume(run_id, task=Changing(), model=ScriptedEngine(answer), store=store)


def test_rows_given_again_are_read_as_they_were(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    columns = [{"nr": each["id"], "q": each["input"], "context": "c"} for each in QUESTIONS]
    options: dict[str, Any] = {"mapping": {"id": "nr", "input": "q"}, "limit": 6}
    run_id = cut_short(columns, store, after=2, task=Changing(), **options)
    run = magistrate.resume(
        run_id, dataset=columns, task=Changing(), model=ScriptedEngine(answer), store=store
    )
    assert sorted(sample.id for sample in run.samples()) == [f"s{number}" for number in range(6)]


def test_other_rows_are_not_taken_for_those_of_the_run(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    run_id = cut_short(rows(30), store)
    with pytest.raises(SpecError, match="of its 30 samples are gone"):
        magistrate.resume(run_id, dataset=rows(1), model=ScriptedEngine(answer), store=store)


@pytest.mark.full
def test_a_run_that_was_killed_while_its_samples_were_stored_is_not_taken_for_whole(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"

    def failing(n: int) -> Iterator[dict[str, Any]]:
        yield from rows(n)

    run = magistrate.evaluate(failing(1200), "faithfulness", model=ScriptedEngine(answer), store=store)
    with closing(sqlite3.connect(store)) as peek, peek:  # as `kill -9` leaves it after the second chunk
        peek.execute("PRAGMA foreign_keys = ON")
        peek.execute("DELETE FROM steps")
        peek.execute("DELETE FROM outcomes")
        peek.execute("DELETE FROM run_samples WHERE position >= 1000")
        peek.execute("UPDATE runs SET n_total = NULL, status = 'running', finished_at = NULL")
    with pytest.raises(SpecError, match="ended while its samples were being stored"):
        magistrate.resume(run, model=ScriptedEngine(answer))


def test_a_renamed_file_gives_no_other_ids_to_the_samples_of_a_run(tmp_path: Path) -> None:
    store, path = tmp_path / "runs.db", tmp_path / "x1.jsonl"
    path.write_text("".join(json.dumps({"output": f"true {n}", "context": "c"}) + "\n" for n in range(40)))
    run_id = cut_short(path, store)
    path.rename(tmp_path / "y1.jsonl")
    with pytest.raises(SpecError, match="'y1-1' is not among its samples"):
        magistrate.resume(
            run_id,
            dataset=magistrate.load(tmp_path / "y1.jsonl"),
            model=ScriptedEngine(answer),
            store=store,
        )


def test_objects_must_be_given_again(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    judge = replace(FAITHFULNESS, name="mine", threshold=0.9)
    run_id = cut_short(rows(30), store, judges=judge)
    with pytest.raises(SpecError, match=r"the judges of run .* pass it again: .*judges=…"):
        magistrate.resume(run_id, model=ScriptedEngine(answer), store=store)
    with pytest.raises(SpecError, match="the model of run"):
        magistrate.resume(run_id, judges=judge, store=store)
    run = magistrate.resume(run_id, judges=judge, model=ScriptedEngine(answer), store=store)
    assert run.record.n_verdicts == 30


def test_judges_that_are_written_like_their_object_need_not_be_given_again(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    run_id = cut_short(rows(30), store, judges=[FAITHFULNESS])
    run = magistrate.resume(run_id, model=ScriptedEngine(answer), store=store)
    assert run.record.n_verdicts == 30


# --- what has changed -----------------------------------------------------------------------------


def test_changed_data_is_refused_with_the_difference(tmp_path: Path) -> None:
    data, store = written(tmp_path), tmp_path / "runs.db"
    run_id = cut_short(data, store)
    changed = rows(SAMPLES)
    changed[3] |= {"output": "true 99"}
    del changed[1]
    data.write_text("".join(json.dumps(row) + "\n" for row in changed))
    with pytest.raises(SpecError) as refused:
        magistrate.resume(run_id, model=ScriptedEngine(answer), store=store)
    message = str(refused.value)
    assert "the data set answers was" in message
    assert "1 of its" in message and "'s1'" in message
    assert "'s3' in output" in message
    assert Run(run_id, store).record.status == "failed", "a refusal changes nothing"


def test_more_rows_are_refused_too(tmp_path: Path) -> None:
    data, store = written(tmp_path), tmp_path / "runs.db"
    run_id = cut_short(data, store)
    with data.open("a") as stream:
        stream.write(json.dumps(rows(SAMPLES + 1)[-1]) + "\n")
    with pytest.raises(SpecError, match="samples are the same, but later samples"):
        magistrate.resume(run_id, model=ScriptedEngine(answer), store=store)


def test_data_that_changes_under_a_run_ends_it(tmp_path: Path) -> None:
    data, store = written(tmp_path, 300), tmp_path / "runs.db"

    def add() -> None:
        with data.open("a") as stream:
            stream.write(json.dumps(rows(301)[-1]) + "\n")

    with pytest.raises(DatasetError, match="has changed while it was read"):
        magistrate.evaluate(
            data, "faithfulness", model=ScriptedEngine(answer), store=store, watcher=Stop(3, add)
        )
    record = Run("last", store).record
    assert record.status == "failed" and record.n_verdicts >= 3


def test_a_changed_judge_is_refused_with_the_difference(tmp_path: Path) -> None:
    data, store, judge = written(tmp_path), tmp_path / "runs.db", tmp_path / "tone.yaml"
    text = (
        "name: tone\nversion: 1\ninputs: [output]\nprompt: |\n  Is this polite?\n"
        "  {{ output }}\n  {{ reply }}\n"
        "labels:\n  faithful: 0\n  hallucinated: 1\n"
    )
    judge.write_text(text)
    run_id = cut_short(data, store, judges=str(judge))
    judge.write_text(text.replace("polite", "kind").replace("version: 1", "version: 2"))
    with pytest.raises(SpecError) as refused:
        magistrate.resume(run_id, model=ScriptedEngine(answer), store=store)
    assert "tone's judge was 'tone@1', is 'tone@2'" in str(refused.value)
    assert "tone's prompt was" in str(refused.value)
    judge.write_text(text)
    assert magistrate.resume(run_id, model=ScriptedEngine(answer), store=store).record.status == "done"


def test_another_model_is_refused_with_the_difference(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    run_id = cut_short(written(tmp_path), store)
    other = ScriptedEngine(answer)
    other.info = replace(other.info, model="another", fingerprint="0" * 64)
    with pytest.raises(SpecError) as refused:
        magistrate.resume(run_id, model=other, store=store)
    assert "model was 'script', is 'another'" in str(refused.value)
    assert str(refused.value).count("fingerprint was") == 1


# --- one at a time --------------------------------------------------------------------------------


def test_two_cannot_judge_one_run(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    run_id = cut_short(written(tmp_path), store)
    with Store.open(store) as opened, opened.hold(run_id):
        with pytest.raises(StoreError, match=r"is being judged by another process \(pid \d+"):
            magistrate.resume(run_id, model=ScriptedEngine(answer), store=store)
        with pytest.raises(StoreError, match="is being judged"):
            magistrate.retry(run_id, model=ScriptedEngine(answer), store=store)
    assert magistrate.resume(run_id, model=ScriptedEngine(answer), store=store).record.status == "done"


# --- failures -------------------------------------------------------------------------------------

KINDS: list[Any] = [
    EngineError("the server hung up"),
    EngineGone("gone"),
    InvalidOutput("not JSON", "{"),
    MemoryError(),
    ValueError("a bug"),
    asyncio.CancelledError(),
    None,  # it hangs
]


def flaky(share: float, kinds: list[Any], seed: int = 1) -> Callable[[Prompt], Any]:
    """A script of which a share of the calls goes wrong, in every way in turn."""
    draw = random.Random(seed)

    async def script(prompt: Prompt) -> Any:
        if draw.random() >= share:
            return answer(prompt)
        kind = draw.choice(kinds)
        if kind is None:
            await asyncio.sleep(3600)
        raise kind

    return script


def test_failures_of_every_kind_are_kept_and_only_they_are_judged_again(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    kinds = [kind for kind in KINDS if not isinstance(kind, EngineGone)]
    limits = Limits(deadline=1.0, concurrency=16)
    engine = ScriptedEngine(flaky(0.3, kinds))
    run = magistrate.evaluate(rows(200), "faithfulness", model=engine, store=store, limits=limits)
    first = {each.sample_id: each for each in run.outcomes(with_steps=True)}
    failures = {key: each for key, each in first.items() if isinstance(each, Failure)}
    asked = [each for each in failures.values() if each.steps]
    assert 40 <= len(asked) <= 80
    assert {each.code for each in asked} == {"engine_error", "invalid_output", "cancelled", "timeout"}
    assert all("error" in each.steps[-1].result for each in asked)
    late = {each.code for each in failures.values() if not each.steps}
    assert late <= {"timeout"}, "a busy machine may end a sample before the engine is asked"
    assert run.record.status == "done"

    calm = ScriptedEngine(answer)
    magistrate.retry(run, model=calm)
    assert len(calm.prompts) == len(failures)
    assert run.record.n_failures == 0
    assert run.record.status == "done"
    second = {each.sample_id: each for each in run.outcomes(with_steps=True)}
    assert all(second[key] == each for key, each in first.items() if key not in failures)
    with Store.open(store) as opened:
        assert {sample for sample, _ in opened.attempts(run.id)} == set(failures)
    magistrate.retry(run, model=calm)
    assert len(calm.prompts) == len(failures), "nothing failed any more"


def test_nothing_broken_reads_as_faithful(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    kinds = [kind for kind in KINDS if not isinstance(kind, EngineGone)]
    run = magistrate.evaluate(
        [{"output": f"false {n}", "context": "c"} for n in range(100)],
        "faithfulness",
        model=ScriptedEngine(flaky(0.5, kinds)),
        store=store,
        limits=Limits(deadline=0.2, give_up_after=100),
    )
    assert {each.label for each in run.outcomes() if isinstance(each, Verdict)} == {"hallucinated"}


def test_what_a_task_failed_at_is_tried_again(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    broken = True

    def task(sample: Sample) -> str:
        if broken and sample.input in ("3", "7"):
            raise OSError("no route")
        return f"true {sample.input}"

    questions = [{"id": f"s{number}", "input": str(number), "context": "c"} for number in range(10)]
    engine = ScriptedEngine(answer)
    run = magistrate.evaluate(questions, "faithfulness", task=task, model=engine, store=store)
    assert run.record.n_failures == 2
    broken = False
    magistrate.retry(run, task=task, model=engine)
    assert (run.record.n_failures, len(engine.prompts)) == (0, 10)
    assert {sample.id: sample.output for sample in run.samples()} == {
        f"s{number}": f"true {number}" for number in range(10)
    }


def test_an_open_circuit_ends_the_run_and_keeps_everything(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"

    def script(prompt: Prompt) -> Any:
        return answer(prompt) if int(said(prompt).split()[1]) < 20 else EngineError("connection refused")

    with pytest.raises(EngineGone, match=r"failed 20 times in a row; last: .*connection refused"):
        magistrate.evaluate(written(tmp_path, 500), "faithfulness", model=ScriptedEngine(script), store=store)
    record = Run("last", store).record
    assert record.status == "failed" and "20 times in a row" in (record.reason or "")
    assert record.n_verdicts == 20
    assert 20 <= record.n_failures <= 20 + 16
    run = magistrate.resume(record.id, model=ScriptedEngine(answer), store=store)
    assert run.record.n_outcomes == 500
    assert run.record.n_failures == record.n_failures
    magistrate.retry(run, model=ScriptedEngine(answer))
    assert (run.record.n_verdicts, run.record.status) == (500, "done")


# --- budgets --------------------------------------------------------------------------------------


def test_calls_are_a_budget(tmp_path: Path) -> None:
    store, engine = tmp_path / "runs.db", ScriptedEngine(answer)
    limits = Limits(max_calls=3)
    run = magistrate.evaluate(rows(10), "faithfulness", model=engine, store=store, limits=limits)
    assert (run.record.status, run.record.n_verdicts) == ("interrupted", 3)
    assert run.record.reason == "3 of at most 3 calls have been made (max_calls)"
    magistrate.resume(run, model=engine, limits=Limits(max_calls=5))
    assert run.record.n_verdicts == 5, "it counts what was spent before"


def test_tokens_are_a_budget_that_a_resumed_run_does_not_get_anew(tmp_path: Path) -> None:
    store, engine = tmp_path / "runs.db", ScriptedEngine(answer)
    one = magistrate.evaluate(rows(1), "faithfulness", model=engine, store=store)
    with Store.open(store) as opened:
        each = opened.spent(one.id).prompt
    most = 10 * each + each // 2
    run = magistrate.evaluate(
        written(tmp_path, 100), "faithfulness", model=engine, store=store, limits=Limits(max_tokens=most)
    )
    record = run.record
    assert (record.status, record.n_verdicts) == ("interrupted", 10)
    assert record.reason == f"{10 * each:,} of at most {most:,} tokens have been used (max_tokens)"
    magistrate.resume(run, model=engine)
    assert run.record.n_verdicts == 10, "the budget that it has is spent"
    magistrate.resume(run, model=engine, limits=Limits(max_tokens=20 * each))
    assert run.record.n_verdicts == 20
    magistrate.resume(run, model=engine, limits=Limits())
    assert (run.record.n_verdicts, run.record.status, run.record.reason) == (100, "done", None)


def test_a_budget_that_is_just_enough_leaves_nothing_out(tmp_path: Path) -> None:
    store, engine = tmp_path / "runs.db", ScriptedEngine(answer)
    one = magistrate.evaluate(rows(1), "faithfulness", model=engine, store=store)
    with Store.open(store) as opened:
        each = opened.spent(one.id).prompt
    run = magistrate.evaluate(
        rows(10), "faithfulness", model=engine, store=store, limits=Limits(max_tokens=10 * each)
    )
    assert (run.record.status, run.record.n_verdicts) == ("done", 10)


def test_what_spends_nothing_says_nothing_of_what_the_others_will_spend(tmp_path: Path) -> None:
    store, engine = tmp_path / "runs.db", ScriptedEngine(answer)
    one = magistrate.evaluate(rows(1), "faithfulness", model=engine, store=store)
    with Store.open(store) as opened:
        each = opened.spent(one.id).prompt
    abstaining = [{"id": f"a{number}", "output": "true 1"} for number in range(5)]
    limits = Limits(max_tokens=3 * each)
    run = magistrate.evaluate(
        [*abstaining, *rows(40)], "faithfulness", model=engine, store=store, limits=limits
    )
    assert (run.record.n_verdicts, run.record.n_abstentions) == (3, 5)


def test_what_failures_have_spent_is_not_forgotten(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"

    engine, judge = ScriptedEngine(answer), Unusable()
    run = magistrate.evaluate(rows(4), judge, model=engine, store=store)
    assert run.record.n_failures == 4
    with Store.open(store) as opened:
        first = opened.spent(run.id)
    assert first.prompt > 0
    magistrate.retry(run, judges=judge, model=engine)
    with Store.open(store) as opened:
        assert opened.spent(run.id) == first + first


@dataclass(frozen=True)
class Unusable:
    """Asks, and then cannot make anything of the answer."""

    info: ClassVar[JudgeInfo] = JudgeInfo("unusable")

    async def judge(self, sample: Sample, engine: Any) -> Outcome:
        await FAITHFULNESS.judge(sample, engine)
        raise ValueError("no use")


def test_what_was_ready_at_the_end_is_stored(tmp_path: Path) -> None:
    """A limit of seconds gives up what is under way, not what is paid for."""
    store, answered = tmp_path / "runs.db", 0

    def script(prompt: Prompt) -> Any:
        nonlocal answered
        answered += 1
        return answer(prompt)

    run = magistrate.evaluate(
        written(tmp_path, 4000),
        "faithfulness",
        model=ScriptedEngine(script),
        store=store,
        limits=Limits(max_seconds=0.3),
    )
    assert run.record.status == "interrupted"
    assert answered - 16 <= run.record.n_verdicts <= answered


def test_cost_is_a_budget(tmp_path: Path) -> None:
    store, engine = tmp_path / "runs.db", ScriptedEngine(answer)
    limits = Limits(max_cost=0.01)
    with pytest.raises(SpecError, match=r"max_cost needs a price, but none is known for 'script'.*--price"):
        magistrate.evaluate(rows(3), "faithfulness", model=engine, store=store, limits=limits)
    run = magistrate.evaluate(
        rows(100), "faithfulness", model=engine, store=store, limits=limits, price="5/10"
    )
    record = run.record
    with Store.open(store) as opened:
        spent = opened.spent(run.id)
    assert record.status == "interrupted" and "max_cost" in (record.reason or "")
    assert 0.008 < spent.prompt * 5e-6 <= 0.01


def test_seconds_are_a_budget(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    slow = ScriptedEngine(answer, delay=0.05)
    start = time.monotonic()
    run = magistrate.evaluate(
        written(tmp_path, 200),
        "faithfulness",
        model=slow,
        store=store,
        limits=Limits(max_seconds=0.5, concurrency=2),
    )
    assert time.monotonic() - start < 5
    record = run.record
    assert (
        record.status == "interrupted"
        and record.reason == "the time limit of 0.5 seconds is over (max_seconds)"
    )
    assert 2 <= record.n_verdicts < 100
    assert record.n_failures == 0
    magistrate.resume(run, model=ScriptedEngine(answer), limits=Limits())
    assert (run.record.n_verdicts, run.record.status) == (200, "done")


def test_time_is_allowed_anew_each_time_a_run_goes_on(tmp_path: Path) -> None:
    slow = ScriptedEngine(answer, delay=0.05)
    limits = Limits(max_seconds=0.4, concurrency=1)
    run = magistrate.evaluate(
        rows(12), "faithfulness", model=slow, store=tmp_path / "runs.db", limits=limits, cache=False
    )
    judged = [run.record.n_verdicts]
    while run.record.status == "interrupted":
        assert run.record.reason == "the time limit of 0.4 seconds is over (max_seconds)"
        assert len(judged) < 20
        magistrate.resume(run, model=slow)  # within the limits that it had
        judged.append(run.record.n_verdicts)
    assert run.record.status == "done" and judged[-1] == 12
    assert len(judged) > 1 and all(later > sooner for sooner, later in itertools.pairwise(judged))


def test_time_at_work_is_added_up_without_the_pauses(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    slow = ScriptedEngine(answer, delay=0.05)
    run = magistrate.evaluate(
        rows(20), "faithfulness", model=slow, store=store, limits=Limits(max_seconds=0.3, concurrency=1)
    )
    first = run.record.seconds
    time.sleep(1)
    resumed = time.perf_counter()
    magistrate.resume(run, model=slow, limits=Limits(concurrency=10))
    at_most = time.perf_counter() - resumed
    assert first is not None and run.record.seconds is not None
    assert 0.3 <= first < run.record.seconds <= first + at_most


def test_time_at_work_is_stored_with_the_outcomes_so_that_a_crash_loses_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SECONDS_BETWEEN_NOTES", 0.05)
    noted: list[float] = []
    real = Store.add_outcomes

    def add(self: Store, *given: Any, seconds: float = 0.0, **options: Any) -> int:
        noted.append(seconds)
        return real(self, *given, seconds=seconds, **options)

    monkeypatch.setattr(Store, "add_outcomes", add)
    slow = ScriptedEngine(answer, delay=0.02)
    run = magistrate.evaluate(
        rows(20), "faithfulness", model=slow, store=tmp_path / "runs.db", limits=Limits(concurrency=1)
    )
    assert run.record.seconds is not None and 0.05 * 3 < sum(noted) <= run.record.seconds < sum(noted) + 0.2


# --- the cache ------------------------------------------------------------------------------------


def test_a_new_run_pays_for_nothing_that_an_earlier_one_has_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGISTRATE_HOME", str(tmp_path / "home"))
    store = tmp_path / "runs.db"
    engine = ScriptedEngine(answer, can=EVERYTHING | {"repeatable"}, name="known")
    first = magistrate.evaluate(rows(10), "faithfulness", model=engine, store=store)
    second = magistrate.evaluate(rows(20), "faithfulness", model=engine, store=store)
    assert len(engine.prompts) == 20
    with Store.open(store) as opened:
        assert (opened.spent(first.id).calls, opened.spent(first.id).reused) == (10, 0)
        assert (opened.spent(second.id).calls, opened.spent(second.id).reused) == (10, 10)
    known = [
        (each.label, each.score, each.probability) for each in first.outcomes() if isinstance(each, Verdict)
    ]
    again = [
        (each.label, each.score, each.probability) for each in second.outcomes() if isinstance(each, Verdict)
    ]
    assert again[:10] == known
    magistrate.evaluate(rows(20), "faithfulness", model=engine, store=store, cache=False)
    assert len(engine.prompts) == 40
