"""The whole path on a scripted engine: judged, stored as it comes, and read again."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import magistrate
from magistrate import Engine, Hallucination, JudgeInfo, Run, ScriptedEngine
from magistrate.errors import CapabilityError, DatasetError, EngineError, EngineGone, SpecError
from magistrate.judges import instance
from magistrate.runs.execute import Judged
from magistrate.runs.limits import Limits
from magistrate.runs.progress import Pace, ProgressBar
from magistrate.store import Store
from magistrate.types import Abstention, Failure, Outcome, Prompt, Sample, Verdict

HOSTILE = "<script>alert('x')</script>"
FAITHFULNESS: Any = instance("faithfulness")


def rows(n: int) -> list[dict[str, Any]]:
    """Half of them faithful, and the output says so."""
    return [
        {
            "id": f"s{number}",
            "output": f"{('true', 'false')[number % 2]} {number}",
            "context": ["what is true"],
            "label": ("faithful", "hallucinated")[number % 2],
        }
        for number in range(n)
    ]


def by_word(prompt: Prompt) -> Any:
    """An engine's script that is always right, and breaks at an output that says so."""
    (output,) = (part.text for part in prompt.data() if part.name == "output")
    if "break" in output:
        return EngineError(output)
    return {"faithful": 0.9, "hallucinated": 0.1} if "true" in output else {"hallucinated": 1.0}


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(by_word)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def only_run(store: Path) -> Any:
    with Store.open(store) as opened:
        (record,) = opened.runs()
    return record


class Watching:
    """Keeps what a watcher is told, and does something at each outcome."""

    def __init__(self, at_outcome: Callable[[int], None] = lambda n: None) -> None:
        self.told: list[Any] = []
        self.outcomes: list[Outcome] = []
        self._at_outcome = at_outcome

    def started(self, run_id: str, total: int | None, engine: Any, done: int) -> None:
        self.told.append(("started", run_id, total))

    def judged(self, judged: Judged) -> None:
        self.outcomes.append(judged.outcome)
        self._at_outcome(len(self.outcomes))

    def finished(self, problems: Any, stopped: Any) -> None:
        self.told.append("finished")


# --- a run --------------------------------------------------------------------------------------


def test_a_run_says_what_came_out(engine: ScriptedEngine, store: Path) -> None:
    judges = [FAITHFULNESS, replace(FAITHFULNESS, name="strict", threshold=0.05)]
    run = magistrate.evaluate(rows(10), judges, model=engine, store=store, name="first", tags=["a", "b"])
    assert isinstance(run, Run)
    assert (run.store, run.record.status, run.record.name) == (str(store), "done", "first")
    assert (run.record.tags, run.record.judges) == (("a", "b"), ("faithfulness", "strict"))
    assert run.record.finished_at is not None
    assert [sample.id for sample in run.samples()] == [f"s{i}" for i in range(10)]
    outcomes = run.outcomes(with_steps=True)
    assert len(outcomes) == 20
    assert all(isinstance(each, Verdict) and len(each.steps) == 1 for each in outcomes)
    assert not any(each.steps for each in run.outcomes())
    good, strict = run.summary().judges
    assert (good.n_ok, good.n_total) == (10, 10)
    assert good.result is not None
    assert strict.result is not None
    assert good.result.metrics["accuracy"].value == 1
    assert strict.result.metrics["accuracy"].value == 0.5


def test_a_run_is_a_table_a_frame_and_a_text(engine: ScriptedEngine, store: Path) -> None:
    data = [*rows(4), {"id": HOSTILE, "output": "break " + HOSTILE, "context": "c"}]
    run = magistrate.evaluate(data, "faithfulness", model=engine, store=store, name=HOSTILE)
    table = run.table()
    assert [row["sample_id"] for row in table] == ["s0", "s1", "s2", "s3", HOSTILE]
    assert [row["kind"] for row in table] == ["verdict"] * 4 + ["failure"]
    assert [row["label"] for row in table] == ["faithful", "hallucinated"] * 2 + [None]
    frame = run.to_pandas()
    assert list(frame["score"][:4]) == pytest.approx([0.1, 1, 0.1, 1])
    assert frame["label"].isna().tolist() == [False] * 4 + [True]
    assert "1 engine_error" in str(run)
    assert "balanced accuracy" in str(run)
    html = run._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_the_report_as_data_has_the_promised_shape(engine: ScriptedEngine, store: Path) -> None:
    run = magistrate.evaluate(rows(6), "faithfulness", model=engine, store=store)
    data = json.loads(json.dumps(run.summary().to_dict(), allow_nan=False))
    assert set(data) == {"run", "dataset", "judges"}
    judge = data["judges"]["faithfulness"]
    promised = {"n_ok", "n_total", "metrics", "confusion", "baselines", "seconds_per_sample", "recipe"}
    assert promised <= set(judge)
    assert set(judge["metrics"]["accuracy"]) == {"value", "low", "high", "undefined"}
    assert "no interval from" in judge["metrics"]["accuracy"]["undefined"]  # six rows of few contexts
    assert set(judge["baselines"]) == {"majority", "always_hallucinated", "length", "ngram_overlap"}
    assert 6 * judge["seconds_per_sample"] == pytest.approx(data["run"]["seconds"])


@pytest.mark.parametrize(
    ("judge", "named"),
    [
        (FAITHFULNESS, "faithfulness@2"),
        ("faithfulness", "faithfulness@2"),
        (replace(FAITHFULNESS, threshold=0.3), "faithfulness:threshold=0.3@2"),
        ("faithfulness:threshold=0.3", "faithfulness:threshold=0.3@2"),
        (replace(FAITHFULNESS, name="mine", prior="empty_context"), "mine:prior=empty_context@2"),
    ],
)
def test_the_recipe_pins_every_option_however_it_was_given(
    judge: Any, named: str, engine: ScriptedEngine, store: Path
) -> None:
    run = magistrate.evaluate(rows(2), judge, model=engine, store=store, seed=7)
    (report,) = run.summary().judges
    line = report.recipe or ""
    assert line.startswith(f"judge={named} model=script#")
    assert " seed=7 n=2 " in line


def test_what_cannot_be_judged_is_counted_and_never_a_label(engine: ScriptedEngine, store: Path) -> None:
    data = rows(8)
    data[2]["output"] = "break true"
    data[5]["context"] = []
    run = magistrate.evaluate(data, "faithfulness", model=engine, store=store)
    kinds = {each.sample_id: type(each) for each in run.outcomes()}
    assert (kinds["s2"], kinds["s5"]) == (Failure, Abstention)
    (report,) = run.summary().judges
    assert (report.n_ok, report.n_total) == (6, 8)
    assert (dict(report.failures), dict(report.abstentions)) == ({"engine_error": 1}, {"no_context": 1})
    assert sum(report.verdicts.values()) == 6


@dataclass(frozen=True)
class Odd:
    """A judge that notes for one sample what no store can keep."""

    @property
    def info(self) -> JudgeInfo:
        return JudgeInfo("odd", reads=("output",), requires=())

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        noted = float if sample.id == "s3" else 1.0
        return Verdict(sample.id, "odd", "faithful", 0.1, details={"noted": noted})


def test_an_outcome_that_cannot_be_stored_is_a_failure_and_the_others_go_on(
    engine: ScriptedEngine, store: Path
) -> None:
    run = magistrate.evaluate(rows(5), Odd(), model=engine, store=store)
    assert run.record.status == "done"
    kinds = {each.sample_id: type(each) for each in run.outcomes()}
    assert kinds.pop("s3") is Failure
    assert set(kinds.values()) == {Verdict}


def test_a_task_makes_the_outputs_that_are_judged_and_stored(engine: ScriptedEngine, store: Path) -> None:
    async def application(sample: Sample) -> dict[str, Any]:
        if sample.id == "q1":
            raise ValueError("no answer")
        return {"output": f"true: {sample.input}", "context": ["found"]}

    questions = [{"id": f"q{i}", "input": f"what is {i}?"} for i in range(4)]
    run = magistrate.evaluate(questions, "faithfulness", task=application, model=engine, store=store)
    assert {sample.id: sample.output for sample in run.samples()} == {
        "q0": "true: what is 0?",
        "q1": None,
        "q2": "true: what is 2?",
        "q3": "true: what is 3?",
    }
    assert {each.sample_id: type(each) for each in run.outcomes()}["q1"] is Failure
    assert run.summary().judges[0].n_ok == 3


def test_a_watcher_is_told_everything(engine: ScriptedEngine, store: Path) -> None:
    watcher = Watching()
    judges = ["faithfulness", "faithfulness:threshold=0.1"]
    run = magistrate.evaluate(rows(5), judges, model=engine, store=store, watcher=watcher)
    assert watcher.told == [("started", run.id, 10), "finished"]
    assert len(watcher.outcomes) == 10


def shown_progress(*, terminal: bool, lines: bool = False) -> str:
    """What a bar writes of five outcomes, of which one is wrong and one a failure."""
    page, now = StringIO(), itertools.count(step=2.0)
    console = Console(file=page, force_terminal=terminal, width=80)
    bar = ProgressBar(console, lines=lines, clock=lambda: float(next(now)))
    bar.started("r1", 5, ScriptedEngine([]), 0)
    for number, label in enumerate(["faithful", "faithful", "hallucinated", None, "faithful"]):
        outcome: Outcome = Verdict(f"s{number}", "j", "faithful", 0.1)
        if label is None:
            outcome = Failure("s3", "j", "timeout", "late")
        bar.judged(Judged(Sample(f"s{number}", "o", label=label), outcome))
    bar.finished([], None)
    assert bar.run_id == "r1"
    return page.getvalue()


def test_progress_shows_rate_time_left_accuracy_and_failures() -> None:
    bar = shown_progress(terminal=True)
    assert "5/5" in bar
    assert "75% right, 1 failed" in bar
    assert "/s" in bar
    log = shown_progress(terminal=False, lines=True)
    assert re.search(r"judged \d of 5, \d\.\d/s, .* left, \d+% right", log)
    assert shown_progress(terminal=False) == ""


def test_the_rate_of_progress_falls_while_nothing_comes() -> None:
    now = 0.0
    pace = Pace(lambda: now)
    for _ in range(16):
        pace.count()
    assert pace.rate() is None  # else 16 quick verdicts would promise an end within a second
    now = 8.0
    assert pace.rate() == 2.0
    pace.count()
    now = 40.0
    assert pace.rate() is None
    for _ in range(60):
        pace.count()
    assert pace.rate() == 2.0


def test_progress_takes_one_line_also_where_a_model_is_loaded() -> None:
    page = StringIO()
    engine = ScriptedEngine([])
    engine.loading = True  # type: ignore[attr-defined]
    bar = ProgressBar(Console(file=page, force_terminal=True, width=60), clock=itertools.count().__next__)
    bar.started("r1", 5, engine, 0)
    bar.finished([], None)
    assert "loading" in page.getvalue()
    assert page.getvalue().count("\n") <= 1


# --- what breaks --------------------------------------------------------------------------------


def test_a_source_that_breaks_in_the_middle_keeps_what_was_judged(
    engine: ScriptedEngine, store: Path
) -> None:
    passes = 0  # the first one looks for rows that cannot be read

    def application(sample: Sample) -> str:
        return "true"

    class Breaking(magistrate.Dataset):
        def __iter__(self) -> Iterator[Sample]:
            nonlocal passes
            passes += 1
            for seen, sample in enumerate(super().__iter__(), 1):
                if seen == 40 and passes > 1:
                    raise DatasetError("the disk is gone")
                yield sample

    whole = magistrate.load(rows(50))
    dataset = Breaking(whole.name, whole.source)
    with pytest.raises(DatasetError, match="the disk is gone"):
        magistrate.evaluate(dataset, "faithfulness", task=application, model=engine, store=store)
    record = only_run(store)
    assert (record.status, record.n_verdicts) == ("failed", 39)
    assert record.finished_at is not None


def test_an_engine_that_goes_keeps_what_was_judged(store: Path) -> None:
    engine = ScriptedEngine([{"faithful": 1.0}] * 20)
    with pytest.raises(EngineGone):
        magistrate.evaluate(rows(50), "faithfulness", model=engine, store=store)
    record = only_run(store)
    assert (record.status, record.n_verdicts, record.n_failures) == ("failed", 20, 0)
    (report,) = Run(record.id, store).summary().judges
    assert (report.n_ok, report.n_total) == (20, 50)
    assert any("30 not judged" in remark for remark in report.remarks)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"judges": "faithfullness"}, SpecError),
        ({"judges": ["faithfulness", "faithfulness"]}, SpecError),
        ({"judges": []}, SpecError),
        ({"judges": Hallucination}, SpecError),
        (
            {"judges": "hallucination", "model": ScriptedEngine([], can=frozenset({"choose"}))},
            CapabilityError,
        ),
        ({"dataset": "nothere.jsonl"}, SpecError),
        ({"dataset": []}, DatasetError),
        ({"dataset": [{"outptu": "x"}]}, DatasetError),
    ],
)
def test_what_cannot_work_is_refused_and_leaves_no_run(
    arguments: dict[str, Any], error: type[Exception], engine: ScriptedEngine, store: Path
) -> None:
    usual = {"dataset": rows(3), "judges": "faithfulness", "model": engine, "store": store}
    given: dict[str, Any] = usual | arguments
    with pytest.raises(error):
        magistrate.evaluate(given.pop("dataset"), **given)
    with Store.open(store) as opened:
        assert opened.runs() == []
    assert engine.prompts == []


def test_a_cancelled_run_is_interrupted_and_keeps_what_is_done(store: Path) -> None:
    async def main() -> Watching:
        enough = asyncio.Event()
        watcher = Watching(lambda n: enough.set() if n == 10 else None)
        engine = ScriptedEngine(by_word, delay=0.005)
        running = asyncio.create_task(
            magistrate.aevaluate(
                rows(500),
                "faithfulness",
                model=engine,
                store=store,
                watcher=watcher,
                limits=Limits(concurrency=2),
            )
        )
        await enough.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return watcher

    watcher = asyncio.run(main())
    record = only_run(store)
    assert (record.status, record.n_verdicts) == ("interrupted", len(watcher.outcomes))
    assert record.finished_at is not None
    assert watcher.told[-1] == "finished"
    (report,) = Run(record.id, store).summary().judges
    assert (report.n_ok, report.n_total) == (record.n_verdicts, 500)


PROGRAM = """
import sys
import magistrate

class Telling:
    def started(self, run_id, total, engine, done): pass
    def judged(self, judged): print(judged.outcome.sample_id, flush=True)
    def finished(self, problems, stopped): pass

rows = [{"id": f"s{i}", "output": "o", "context": "c"} for i in range(5000)]
engine = magistrate.ScriptedEngine(lambda prompt: {"faithful": 1.0}, delay=0.001)
try:
    magistrate.evaluate(rows, "faithfulness", model=engine, store=sys.argv[1], watcher=Telling())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def stopped_by(sign: signal.Signals, store: Path) -> tuple[list[str], subprocess.Popen[str]]:
    """What a running evaluation printed as done before the signal came, and its process."""
    command = [sys.executable, "-c", PROGRAM, str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        done = [process.stdout.readline().strip() for _ in range(40)]
        process.send_signal(sign)
        done += process.stdout.read().split()
        process.wait(timeout=30)
    return done, process


def test_what_is_told_as_done_survives_a_kill(store: Path) -> None:
    done, _ = stopped_by(signal.SIGKILL, store)
    record = only_run(store)
    assert record.status == "running"
    assert set(done) <= {each.sample_id for each in Run(record.id, store).outcomes()}
    (report,) = Run(record.id, store).summary().judges
    assert report.seconds_per_sample is None
    assert report.latency_median is not None


@pytest.mark.full
def test_ctrl_c_stops_a_run_and_keeps_what_is_done(store: Path) -> None:
    done, process = stopped_by(signal.SIGINT, store)
    assert process.returncode == 0
    assert done.pop() == "interrupted"
    record = only_run(store)
    assert record.status == "interrupted"
    assert set(done) == {each.sample_id for each in Run(record.id, store).outcomes()}


# --- from anywhere ------------------------------------------------------------------------------


def test_it_works_inside_a_running_loop_as_in_a_notebook(engine: ScriptedEngine, store: Path) -> None:
    async def cell() -> tuple[Outcome, Run]:
        one = magistrate.judge(output="true", context="c", model=engine, judge="faithfulness")
        return one, magistrate.evaluate(rows(3), "faithfulness", model=engine, store=store)

    one, run = asyncio.run(cell())
    assert isinstance(one, Verdict)
    assert len(run.outcomes()) == 3


def test_several_threads_evaluate_at_once_into_one_store(engine: ScriptedEngine, store: Path) -> None:
    def one(number: int) -> Run:
        return magistrate.evaluate(rows(20), "faithfulness", model=engine, store=store, name=f"run {number}")

    with ThreadPoolExecutor(6) as pool:
        runs = list(pool.map(one, range(6)))
    assert len({run.id for run in runs}) == 6
    assert all(len(run.outcomes()) == 20 and run.record.status == "done" for run in runs)


# --- one judgement ------------------------------------------------------------------------------


def test_one_judgement_has_what_a_reader_wants(engine: ScriptedEngine) -> None:
    verdict = magistrate.judge(
        output="true", context=["c", "d"], input="what?", model=engine, id="mine", judge="faithfulness"
    )
    assert isinstance(verdict, Verdict)
    assert (verdict.sample_id, verdict.label, verdict.explanation) == ("mine", "faithful", None)
    assert (verdict.score, verdict.probability) == (pytest.approx(0.1), pytest.approx(0.9))
    assert [part.text for part in engine.prompts[0].data()] == ["c", "d", "what?", "true"]
    assert len(repr(verdict)) < 300
    assert "faithful" in repr(verdict)


def test_one_text_is_one_context(engine: ScriptedEngine) -> None:
    magistrate.judge(output="true", context="one text", model=engine, judge="faithfulness")
    assert [part.text for part in engine.prompts[0].data() if part.name == "context"] == ["one text"]


def test_hostile_texts_are_escaped_in_a_notebook() -> None:
    engine = ScriptedEngine(lambda prompt: json.dumps({"reasons": [HOSTILE], "score": 1}))
    verdict = magistrate.judge(output=HOSTILE, judge=Hallucination(name=HOSTILE), model=engine, id=HOSTILE)
    failed = magistrate.judge(
        output="break" + HOSTILE, context="c", model=ScriptedEngine(by_word), judge="faithfulness"
    )
    for outcome in (verdict, failed):
        assert isinstance(outcome, Verdict | Failure)
        html = outcome._repr_html_()
        assert "<script>" not in html
        assert "&lt;script&gt;" in html


def test_a_failure_and_an_abstention_are_answers_too(engine: ScriptedEngine) -> None:
    assert isinstance(
        magistrate.judge(output="break", context="c", model=engine, judge="faithfulness"), Failure
    )
    assert isinstance(magistrate.judge(output="true", model=engine, judge="faithfulness"), Abstention)


def test_an_engine_that_is_gone_raises() -> None:
    with pytest.raises(EngineGone):
        magistrate.judge(output="o", context="c", model=ScriptedEngine([]), judge="faithfulness")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("faithfullness", r"unknown judge 'faithfullness' \(did you mean 'faithfulness'\?\)"),
        ("faithfulness:priors=1", r"unknown option 'priors' of judge 'faithfulness' \(did you mean 'prior'"),
        ("faithfulness:prior", "NAME:key=value"),
        ("faithfulness:prior=some", "'none' or 'empty_context'"),
        ("faithfulness:threshold=high", "option 'threshold'"),
        ("faithfulness:threshold=7", "threshold must be in"),
        ("faithfulness:explain=after,explain=none", "set twice"),
        (Hallucination, "an object such as Hallucination"),
        (3, "got 3"),
    ],
)
def test_a_judge_that_is_not_there_is_explained(spec: Any, message: str, engine: ScriptedEngine) -> None:
    with pytest.raises(SpecError, match=message):
        magistrate.judge(output="o", judge=spec, model=engine)
