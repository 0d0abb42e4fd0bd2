"""Runs that are cut short, at the command line: what is said, what is kept, and that it can go on."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import magistrate
from magistrate import ScriptedEngine
from magistrate.errors import EngineError, StoreError
from magistrate.store import Store
from magistrate.types import Prompt
from terminal import Call, Done


def by_word(prompt: Prompt) -> Any:
    (output,) = (part.text for part in prompt.data() if part.name == "output")
    if "break" in output:
        return EngineError("connection refused")
    return {"faithful": 0.9, "hallucinated": 0.1} if "true" in output else {"hallucinated": 1.0}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    """The model of every command."""
    scripted = ScriptedEngine(by_word)
    monkeypatch.setattr("magistrate.engines.registry._opened", lambda *_: scripted)
    return scripted


def written(n: int = 30, word: Callable[[int], str] = lambda n: ("true", "false")[n % 2]) -> Path:
    path = Path("answers.jsonl")
    rows = [{"id": f"s{k}", "output": f"{word(k)} {k}", "context": "c"} for k in range(n)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def newest(store: Path) -> Any:
    with Store.open(store) as opened:
        return opened.find_run("last")


# --- a run with a budget ----------------------------------------------------------------------------


def test_a_budget_ends_a_run_cleanly_and_resume_goes_on(
    call: Call, engine: ScriptedEngine, home: Path
) -> None:
    each = len(engine_prompt(engine).split())
    done = call("run", written(), "--max-tokens", 10 * each, "--judge", "faithfulness")
    assert done.code == 3
    run_id = newest(home / "magistrate.db").id
    assert "(max_tokens); verdicts so far are stored" in done.err
    assert f"continue with: magistrate resume {run_id}" in done.err
    assert "10/30" in done.out and "have been used (max_tokens)" in " ".join(done.out.split())
    again = call("resume", "last")
    assert again.code == 3 and "10/30" in again.out
    more = call("resume", "last", "--max-tokens", 100 * each)
    assert (more.code, more.err) == (0, "")
    assert "30/30" in more.out
    assert len(engine.prompts) == 30 + 1
    over = call("resume", "last")
    assert over.code == 0
    assert over.err == f"run {run_id} is done; nothing was judged\n"


def engine_prompt(engine: ScriptedEngine) -> str:
    """A prompt of which all have the same number of words."""
    magistrate.judge(output="true 0", context="c", model=engine, judge="faithfulness")
    return " ".join(message.text for message in engine.prompts[-1].messages)


# --- an unfinished twin -----------------------------------------------------------------------------


def cut_short(call: Call) -> str:
    done = call(
        "run", written(), "--max-seconds", 0.4, "--concurrency", 1, "--json", "--judge", "faithfulness"
    )
    assert done.code == 3
    return str(done.data["run"]["id"])


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    scripted = ScriptedEngine(by_word, delay=0.05)
    monkeypatch.setattr("magistrate.engines.registry._opened", lambda *_: scripted)
    return scripted


def test_an_unfinished_twin_is_told_of_where_nobody_can_be_asked(call: Call, slow: ScriptedEngine) -> None:
    first = cut_short(call)
    done = call("run", "answers.jsonl", "--judge", "faithfulness")
    assert f"run {first} has the same data and options and is not finished" in done.err
    assert "starting a new one. To continue it instead: --resume" in done.err
    assert f"run {first}:" not in done.out
    assert "30/30" in done.out


def test_an_unfinished_twin_is_resumed_if_asked_for(call: Call, slow: ScriptedEngine) -> None:
    first = cut_short(call)
    done = call("run", "answers.jsonl", "--resume", "--judge", "faithfulness")
    assert "continuing it" in done.err
    assert f"run {first}:" in done.out and "30/30" in done.out
    assert len(slow.prompts) <= 31, "what was under way is asked again, nothing else"


SAME = ["--judge", "faithfulness"]


@pytest.mark.full
@pytest.mark.parametrize(
    "words", [[*SAME, "--new"], [*SAME, "--limit", "3"], ["--judge", "hallucination"], []]
)
def test_what_is_no_twin_is_not_offered(call: Call, slow: ScriptedEngine, words: list[str]) -> None:
    cut_short(call)
    assert "has the same data and options" not in call("run", "answers.jsonl", *words).err


def test_a_person_at_a_terminal_is_asked(
    call: Call, slow: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cut_short(call)
    asked = []

    def confirm(text: str, **_: Any) -> bool:
        asked.append(text)
        return True

    monkeypatch.setattr("click.confirm", confirm)
    monkeypatch.setattr("magistrate.cli.run.somebody_is_there", lambda: True)
    done = call("run", "answers.jsonl", "--judge", "faithfulness")
    assert [first in text for text in asked] == [True]
    assert f"run {first}:" in done.out


# --- failures ---------------------------------------------------------------------------------------


def test_failures_are_counted_kept_and_retried(call: Call, engine: ScriptedEngine, home: Path) -> None:
    path = written(30, lambda n: "break" if n % 3 == 0 else "true")
    done = call("run", path, "--judge", "faithfulness")
    assert done.code == 3
    assert "10 of 30 judgements failed" in done.err
    assert f"retry them with: magistrate retry {newest(home / 'magistrate.db').id}" in done.err
    still = call("retry", "last")
    assert still.code == 3 and "20/30" in still.out
    engine._ask = lambda prompt: {"faithful": 1.0}
    asked = len(engine.prompts)
    mended = call("retry", "last")
    assert (mended.code, mended.err) == (0, "")
    assert "30/30" in mended.out
    assert len(engine.prompts) == asked + 10
    nothing = call("retry", "last")
    assert nothing.err.startswith("nothing failed in run")


def test_an_open_circuit_exits_with_3_and_keeps_everything(
    call: Call, engine: ScriptedEngine, home: Path
) -> None:
    done = call(
        "run",
        written(200, lambda n: "true" if n < 40 else "break"),
        "--give-up-after",
        7,
        "--judge",
        "faithfulness",
    )
    assert (done.code, done.out) == (3, "")
    record = newest(home / "magistrate.db")
    assert done.err.splitlines() == [
        f"verdicts so far are stored in run {record.id}; continue with: magistrate resume {record.id}",
        "error: the engine failed 7 times in a row; "
        "last: failed (engine_error): EngineError: connection refused",
    ]
    assert (record.status, record.n_verdicts) == ("failed", 40)
    shown = call("show", "last")
    assert "the engine failed 7 times in a row" in " ".join(shown.out.split())


def test_a_retry_that_a_limit_ends_says_so(call: Call, engine: ScriptedEngine) -> None:
    call("run", written(30, lambda n: "break" if n % 3 == 0 else "true"), "--judge", "faithfulness")
    done = call("retry", "last", "--max-seconds", 0.0001)
    assert (
        "stopped: the time limit of 0.0001 seconds is over (max_seconds); verdicts so far are stored"
        in done.err
    )
    assert "continue with: magistrate retry" in done.err and done.code == 3


def test_what_is_not_whole_does_not_exit_as_success(call: Call, engine: ScriptedEngine, home: Path) -> None:
    """Whatever cuts a run off and is done with it after that, with a gate that would pass or without."""
    gates: tuple[tuple[str, ...], ...] = ((), ("--gate", "failures<=1"))
    limits = (("--max-seconds", 0.0001), ("--max-tokens", 1), ("--max-cost", 1e-9, "--price", "1/2"))
    found = {}
    for limit, gate in itertools.product(limits, gates):
        done = call("run", written(), *limit, *gate, "--new", "--judge", "faithfulness")
        found[limit[0], gate] = (done.code, call("resume", "last", *limit).code, call("retry", "last").code)
    assert found == dict.fromkeys(found, (3, 3, 3))
    assert call("show", "last", "--gate", "failures<=1").code == 1
    assert call("resume", "last", "--max-cost", 1000).code == 0


def test_a_judge_that_broke_is_not_made_up_for_by_others(call: Call, engine: ScriptedEngine) -> None:
    rows = [{"id": f"s{k}", "output": f"break {k}", "context": "c", "expected": "break"} for k in range(4)]
    Path("answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    others = ("contains", "exact", "chrf", "bleu", "rouge", "levenshtein", "chrf:beta=1", "chrf:beta=3")
    others += ("contains:ignore_case=true", "exact:ignore_case=true", "chrf:threshold=.4")
    whole = [word for each in others for word in ("--judge", each)]
    done = call("run", "answers.jsonl", "--judge", "faithfulness", *whole)
    assert done.code == 3
    assert "4 of 4 judgements of faithfulness failed, more than --max-failures 0.1" in done.err
    allowed = call("run", "answers.jsonl", "--judge", "faithfulness", *whole, "--max-failures", 1)
    assert allowed.code == 3 and "no verdict on any of 4 samples" in allowed.err


def test_gates_are_not_passed_by_a_run_that_is_not_finished(call: Call, slow: ScriptedEngine) -> None:
    written()
    rows = [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]
    Path("answers.json").write_text(json.dumps(rows))
    done = call(
        "run",
        "answers.json",
        "--max-seconds",
        0.4,
        "--concurrency",
        1,
        "--gate",
        "f1>=0",
        "--judge",
        "faithfulness",
    )
    assert done.code == 3
    assert "gate failed: faithfulness: the run is interrupted, so its figures are incomplete" in done.err


# --- what is refused --------------------------------------------------------------------------------


def test_changed_data_is_refused_in_words(call: Call, slow: ScriptedEngine) -> None:
    run_id = cut_short(call)
    Path("answers.jsonl").write_text(json.dumps({"id": "s0", "output": "other", "context": "c"}) + "\n")
    done = call("resume", "last")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: run {run_id} cannot be resumed, because its parts have changed:")
    assert "'s0' in output" in done.err and "samples are gone" in done.err


def test_what_another_process_judges_cannot_be_resumed_or_deleted(
    call: Call, slow: ScriptedEngine, home: Path
) -> None:
    run_id = cut_short(call)
    with Store.open(home / "magistrate.db") as store, store.hold(run_id):
        done = call("resume", run_id)
        assert done.code == 2 and "is being judged by another process" in done.err
        assert "is being judged" in call("runs", "delete", run_id, "--yes").err
    assert call("runs", "delete", run_id, "--yes").code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["answers.jsonl", "--deadline", "inf"], "limits.deadline: must be a finite number"),
        (["answers.jsonl", "--max-seconds", "nan"], "limits.max_seconds"),
        ([""], "dataset.source: must be a non-empty text"),
    ],
)
def test_odd_words_are_refused_in_words(
    call: Call, engine: ScriptedEngine, words: list[str], message: str
) -> None:
    written()
    done = call("run", *words)
    assert done.code == 2
    assert message in done.err and "pydantic" not in done.err


def test_a_store_that_is_gone_is_not_made_again(call: Call, slow: ScriptedEngine, home: Path) -> None:
    place = home / "magistrate.db"
    run = magistrate.evaluate([{"output": "true", "context": "c"}], "faithfulness", model=slow, store=place)
    place.unlink()
    with pytest.raises(StoreError, match=r"with run .* no longer exists"):
        run.summary()
    assert not place.exists()


def test_unknown_runs_are_explained(call: Call, slow: ScriptedEngine) -> None:
    run_id = cut_short(call)
    for words in (("resume",), ("retry",), ("runs", "spec")):
        done = call(*words, run_id[:-1] + "?")
        assert done.code == 2
        assert f"near: '{run_id}'" in done.err


# --- described, and done again ----------------------------------------------------------------------


def test_what_runs_spec_prints_makes_the_same_run(
    call: Call, engine: ScriptedEngine, home: Path, tmp_path: Path
) -> None:
    call("run", written(), "--judge", "faithfulness", "--limit", 7, "--tag", "a", "--gate", "coverage>=0.9")
    first = newest(home / "magistrate.db")
    done = call("runs", "spec", "last")
    assert (done.code, done.err) == (0, "")
    values = YAML(typ="safe", pure=True).load(done.out)
    assert values["dataset"]["source"] == str(tmp_path / "answers.jsonl")
    assert call("runs", "spec", "last", "--json").data == values
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "again.yaml").write_text(done.out)
    again = call("run", "--spec", "elsewhere/again.yaml")
    assert again.code == 0
    second = newest(home / "magistrate.db")
    assert second.id != first.id
    assert (second.recipes, second.dataset_digest, second.tags) == (
        first.recipes,
        first.dataset_digest,
        first.tags,
    )


def test_a_twin_takes_the_words_of_the_command(call: Call, slow: ScriptedEngine, home: Path) -> None:
    first = cut_short(call)
    done = call(
        "run",
        "answers.jsonl",
        "--resume",
        "--name",
        "again",
        "--tag",
        "t",
        "--max-cost",
        9,
        "--price",
        "1/1",
        "--judge",
        "faithfulness",
    )
    assert done.code == 0
    record = newest(home / "magistrate.db")
    assert (record.id, record.name, record.tags, record.status) == (first, "again", ("t",), "done")
    done = call("run", "answers.jsonl", "--resume", "--limit", 2, "--judge", "faithfulness")
    assert "there is no unfinished run with the same data and options; starting a new one" in done.err


def test_words_may_choose_otherwise_than_a_file_that_pins_its_data(
    call: Call, engine: ScriptedEngine
) -> None:
    call("run", written(), "--judge", "faithfulness")
    Path("again.yaml").write_text(call("runs", "spec", "last").out)
    done = call("run", "--spec", "again.yaml", "--limit", 3, "--new")
    assert (done.code, "3/3" in done.out) == (0, True)


def test_words_win_over_the_run_file(call: Call, engine: ScriptedEngine, home: Path) -> None:
    written()
    Path("run.yaml").write_text(
        "dataset: {source: answers.jsonl, limit: 5}\njudges: faithfulness\nname: filed\n"
        "gates: ['coverage>=0.5']\n"
        "limits: {concurrency: 2}\n"
    )
    assert call("run", "--spec", "run.yaml").code == 0
    assert newest(home / "magistrate.db").n_samples == 5
    assert call("run", "--spec", "run.yaml", "--limit", 3, "--name", "said").code == 0
    record = newest(home / "magistrate.db")
    assert (record.n_samples, record.name) == (3, "said")
    assert record.settings["spec"]["limits"] == {"concurrency": 2}
    rows = ['{"output": "break", "context": "c"}'] * 2 + ['{"output": "It rains.", "context": "c"}']
    Path("other.jsonl").write_text("\n".join(rows))
    done = call("run", "other.jsonl", "--spec", "run.yaml", "--max-failures", 1)
    assert (done.code, newest(home / "magistrate.db").dataset) == (1, "other")
    assert "gate failed" in done.err


def test_a_mistake_in_a_run_file_is_said_with_its_line(call: Call, home: Path) -> None:
    Path("run.yaml").write_text("dataset: quickstart\njudges:\n  - faithfullness\n")
    done = call("run", "--spec", "run.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(
        "error: run.yaml, line 3, judges.0: unknown judge 'faithfullness' (did you mean"
    )
    assert not home.exists()
    for name, message in [("nothere.yaml", "No such file"), (".", "it is a folder")]:
        assert message in call("run", "--spec", name).err


def test_the_schema_of_run_files_is_printed(call: Call) -> None:
    assert call("schemas", "run").data["title"] == "A Magistrate run"


def test_a_dry_run_asks_nothing_and_stores_nothing(call: Call, engine: ScriptedEngine, home: Path) -> None:
    done = call("run", written(), "--dry-run", "--price", "1/2", "--json", "--judge", "faithfulness")
    assert done.code == 0
    assert (done.data["samples"], engine.prompts) == (30, [])
    assert not (home / "magistrate.db").exists()
    call("run", "answers.jsonl", "--no-cache", "--judge", "faithfulness")
    done = call("run", "answers.jsonl", "--dry-run", "--price", "1/2", "--judge", "faithfulness")
    assert "faithfulness" in done.out and "$" in done.out and "unknown" not in done.out


@pytest.mark.full
def test_standard_input_need_not_be_sent_again(call: Call, slow: ScriptedEngine) -> None:
    text = written().read_text()
    done = call("run", "-", "--max-seconds", 0.4, "--concurrency", 1, "--judge", "faithfulness", stdin=text)
    assert "stopped: the time limit of 0.4 seconds" in done.err
    assert "30/30" in call("resume", "last", "--max-seconds", 60).out


def test_the_log_says_what_a_run_does_and_quotes_nothing(call: Call, engine: ScriptedEngine) -> None:
    quiet = call("run", written(3), "--judge", "faithfulness")
    loud = call("run", "answers.jsonl", "--verbose", "--judge", "faithfulness")
    assert quiet.err == ""
    events = [json.loads(line) for line in loud.err.splitlines()]
    assert [each["event"] for each in events if each["event"].startswith("run.")] == [
        "run.started",
        "run.ended",
    ]
    assert "true 0" not in loud.err


# --- ended from outside, on the real model ------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_a_run_that_can_go_on(
    number: signal.Signals, model_folder: Path, home: Path, tmp_path: Path
) -> None:
    place = tmp_path / "runs.db"
    words = ["--judge", "faithfulness", "--model", str(model_folder)]
    words += ["--concurrency", "2", "--limit", "16", "--no-cache"]
    command = [sys.executable, "-m", "magistrate", "run", "quickstart", *words, "--store", str(place)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        until = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
            if place.exists() and _judged(place) >= 2:
                break
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=60)
    ended = Done(process.returncode, out, err)
    record = newest(place)
    assert 2 <= record.n_outcomes < 16
    if number == signal.SIGKILL:
        assert (ended.code, record.status) == (-9, "running")
        with Store.open(place) as store:
            assert store.seen(record).status == "killed"
    else:
        assert (ended.code, record.status) == (128 + number, "interrupted")
        assert f"continue with: magistrate resume {record.id}" in ended.err
        assert "Traceback" not in ended.err
    command = [sys.executable, "-m", "magistrate", "resume", record.id, "--store", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, "16/16" in done.stdout) == (0, True), done.stderr
    assert newest(place).n_outcomes == 16


def _judged(place: Path) -> int:
    with Store.open(place) as store:
        return sum(each.n_outcomes for each in store.runs())
