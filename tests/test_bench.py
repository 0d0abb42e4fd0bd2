"""The benchmark: processes that are measured, figures made of what they say, and what a person sees of it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import speed
from benchmarks.contenders.base import CONTENDERS, Item, Measured, Weights
from benchmarks.contenders.process import Child
from benchmarks.contenders.workload import OPTIONS, RUBRIC, RUBRIC_ANSWER, SCHEMA, Workload
from benchmarks.machine import Geometry, Limits, LimitsMeter, Machine, geometry
from benchmarks.speed_report import KINDS, Result, Row, Soak, not_measured, render, summed_up
from benchmarks.speed_rounds import Bench, Plan, soak
from magistrate.cli import main
from magistrate.constraints import check, constraint
from magistrate.engines.base import Option
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.errors import EngineError, EngineGone, ModelError
from magistrate.types import Prompt

pytestmark = pytest.mark.full  # it measures, and judges nothing for anybody

# A contender that does what it is told by the environment, notes every call and is as noisy as real ones.
FAKE = """
import os, subprocess, sys, time
from pathlib import Path
from benchmarks.contenders.base import Measured

def note(*words):
    with open(os.environ["FAKE_LOG"], "a") as log:
        print(*words, file=log, flush=True)

class Fake:
    name = "fake"
    works = frozenset({"verdict_only", "prefill", "mask", "soak"})
    masks = [30, 10, 20]
    def version(self):
        return "fake 1"
    def load(self, weights, threads):
        print("noise on standard output")
        os.write(1, b"and from below\\n")
        note("load", self.name, weights.ir, weights.gguf, threads)
    def verdict_only(self, items, in_flight):
        note("verdict_only", self.name, in_flight, len(items))
        if items[0].user == "die":
            print("the reason of its death", file=sys.stderr, flush=True)
            os._exit(3)
        if items[0].user == "wait":
            helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            note("helper", helper.pid)
            time.sleep(60)
        return Measured(len(items), len(items), len(items) / 100, len(items))
    def prefill(self, items):
        raise RuntimeError("cannot read\\nthis")
    def mask(self):
        note("mask", self.name)
        return Measured(2, 2, 2e-6 * self.masks.pop(0), 2)
    def soak(self, items, in_flight):
        self.kept = getattr(self, "kept", []) + [os.urandom(1 << 20)]
        return Measured(len(items), 0, 0.01, len(items))
    def close(self):
        note("close", self.name)

class Other(Fake):
    name = "other"

class Waiting(Fake):
    name = "waiting"
    def load(self, weights, threads):
        super().load(weights, threads)
        note("pid", os.getpid())
    def verdict_only(self, items, in_flight):
        return super().verdict_only([type(items[0])("wait", "", ())], in_flight)
"""
ROOT = Path(__file__).parent.parent
ITEM = Item("user", "prompt", (1, 2, 3))
SMALL = Plan(rounds=3, levels=(1, 4), decode_levels=(1,), seconds=0.1, prompts=2, cold_starts=1)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the fake contenders note; they are at hand as `fakes:Fake` and so on."""
    (tmp_path / "fakes.py").write_text(FAKE, encoding="utf-8")
    there = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT), *there]))
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "log"


@pytest.fixture(scope="module")
def workload(model_folder: Path) -> Workload:
    return Workload(model_folder)


def started(name: str = "fakes:Fake", python: Path | None = None, limit: float = 30) -> Child:
    return Child(name, Weights(Path("ir"), None, Path("tokenizer")), 2, python, limit)


def noted(log: Path, *kinds: str) -> list[str]:
    lines = log.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.split()[0] in kinds]


# --- a process -----------------------------------------------------------------------------------


def test_a_contender_is_measured_in_a_process_of_its_own(log: Path) -> None:
    with started() as child:
        assert child.pid != os.getpid()
        assert child.version == "fake 1"
        assert child.works == {"verdict_only", "prefill", "mask", "soak"}
        measured = child.measure("verdict_only", [ITEM] * 5, 4, warm=[ITEM])
        assert measured == Measured(5, 5, 0.05, 5)
        memory = child.measure("memory").extra
        assert 1 < memory["now"] <= memory["peak"] * 1.01 < 500
    assert noted(log, "load") == ["load fake ir None 2"]
    assert noted(log, "verdict_only") == ["verdict_only fake 4 1", "verdict_only fake 4 5"]
    assert noted(log, "close") == ["close fake"]


def test_another_python_sees_this_package_and_nothing_else_of_ours(log: Path) -> None:
    with started(python=Path(sys.executable)) as child:
        assert child.measure("mask").count == 2


def test_what_goes_wrong_is_an_answer_and_the_next_one_is_right(log: Path) -> None:
    with started() as child:
        with pytest.raises(EngineError, match=r"^RuntimeError: cannot read this$"):
            child.measure("prefill", [ITEM])
        with pytest.raises(EngineError, match="cannot do decode"):
            child.measure("decode", [ITEM])
        assert child.measure("mask").count == 2


def test_a_contender_that_is_not_there_says_why(log: Path) -> None:
    with pytest.raises(EngineError, match=r"^not installed: no_such_engine$"):
        started("no_such_engine:Any")
    with pytest.raises(EngineError, match="no 'Nobody'"):
        started("fakes:Nobody")
    with pytest.raises(EngineGone, match="cannot start"):
        started(python=log.parent / "python")


def test_a_process_that_dies_or_hangs_ends_with_the_reason(log: Path) -> None:
    with started() as child, pytest.raises(EngineGone, match=r"ended \(3\): the reason of its death"):
        child.measure("verdict_only", [replace(ITEM, user="die")])
    with pytest.raises(EngineGone, match="no answer within 1 s"), started(limit=1) as child:
        child.measure("verdict_only", [replace(ITEM, user="wait")])
    [helper] = noted(log, "helper")
    assert gone(int(helper.split()[1]))


def gone(pid: int, within: float = 5) -> bool:
    """Whether a process has ended, also where nobody has asked how."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


# --- rounds --------------------------------------------------------------------------------------


def test_rounds_take_turns_and_only_medians_remain(log: Path, workload: Workload) -> None:
    openers = {"a": started, "b": lambda: started("fakes:Other")}
    rounds: list[int] = []
    with Bench(openers, workload, SMALL, each_round=lambda: rounds.append(1)) as bench:
        rows = bench.run()
        assert bench.versions == {"a": "fake 1", "b": "fake 1"}
    assert len(rounds) == 3
    assert noted(log, "mask") == ["mask fake", "mask other"] * 3

    sizes = [tuple(line.split()[1:]) for line in noted(log, "verdict_only") if int(line.split()[3]) > 1]
    assert sizes == [("fake", "1", "10"), ("other", "1", "10"), ("fake", "4", "8"), ("other", "4", "8")] * 3

    found = {(row.engine, row.work, row.in_flight): row for row in rows}
    mask = found["b", "mask", 1]
    assert (mask.value, mask.low, mask.high, mask.rounds) == pytest.approx((20, 10, 30, 3))
    assert (mask.unit, mask.tokens) == ("µs", None)
    verdicts = found["a", "verdict_only", 4]
    assert (verdicts.value, verdicts.unit, verdicts.tokens, verdicts.valid) == (
        pytest.approx(100),
        "1/s",
        1,
        1,
    )
    assert found["a", "cold_start", 1].rounds == 1
    memory = found["a", "memory", 1].value
    assert memory is not None and memory > 1

    failed = found["a", "prefill", 2]
    assert (failed.value, failed.error) == (None, "RuntimeError: cannot read this")
    assert ("a", "decode", 1) not in found  # it never said that it could


def test_what_cannot_be_started_is_one_row_and_the_others_are_measured(log: Path, workload: Workload) -> None:
    def refuse() -> Child:
        raise ModelError("no weights")

    with Bench({"none": refuse, "a": started}, workload, replace(SMALL, rounds=1)) as bench:
        rows = bench.run()
    assert [row for row in rows if row.engine == "none"] == [
        not_measured("none", workload.model, "cold_start", 1, "no weights")
    ]
    assert any(row.engine == "a" and row.value for row in rows)


def test_a_slow_figure_gets_fewer_rounds(log: Path, workload: Workload) -> None:
    with Bench({"a": started}, workload, replace(SMALL, patience=0)) as bench:
        assert {row.rounds for row in bench.run() if row.value} == {1}


def test_a_long_run_tells_how_memory_grew(log: Path, workload: Workload) -> None:
    done = soak(started, workload, 1000, lambda text: None)
    assert done.requests == 1000
    assert 8 < done.growth_mb < 14  # a MiB a hundred, nine hundred after the first look
    assert done.seconds == pytest.approx(0.1)


# --- what is asked -------------------------------------------------------------------------------


def test_prompts_are_as_long_as_they_should_be_and_never_come_twice(
    workload: Workload, engine: LocalEngine
) -> None:
    items = [*workload.shared(20), *workload.shared(20)]
    assert {len(item.tokens) - item.shared for item in items} == {18}
    assert abs(items[0].shared - 250) <= 2
    assert len({item.tokens[: item.shared] for item in items}) == 1
    assert len({item.prompt[: item.shared_text] for item in items}) == 1
    assert len({item.tokens for item in items}) == 40
    assert all(tuple(engine.tokenizer.tokens(Prompt.of(item.user))) == item.tokens for item in items)

    distinct = workload.distinct(10)
    assert {len(item.tokens) for item in distinct} == {270}
    same = [len(set(column)) == 1 for column in zip(*(item.tokens for item in distinct), strict=True)]
    assert same.index(False) < 32  # what the template begins with
    assert all(item.prompt.startswith("<|im_start|>") and item.user in item.prompt for item in distinct)


def test_the_schema_and_the_rubric_are_what_they_are_meant_to_be() -> None:
    constraint(SCHEMA).require_bounds()
    constraint(RUBRIC).require_bounds()
    assert check(RUBRIC_ANSWER, RUBRIC) == "valid"


def test_options_are_one_token(workload: Workload, engine: LocalEngine) -> None:
    assert [len(engine.tokenizer.encode(option).tokens) for option in OPTIONS] == [1, 1]
    assert Option(OPTIONS[0], (OPTIONS[0],))


# --- limits --------------------------------------------------------------------------------------


def test_a_model_is_counted_in_its_own_graph(model_folder: Path) -> None:
    counted = geometry(model_folder)
    # 30 layers of 576 wide: attention (576 + 2 * 192 + 576) and three matrices of 1536.
    assert counted.int8
    assert counted.gflop == pytest.approx(2 * 30 * 576 * (576 + 192 + 192 + 576 + 3 * 1536) / 1e9)
    file = (model_folder / "openvino_model.bin").stat().st_size
    assert 0.9 * file < counted.step_bytes < 1.05 * file  # what is equal is stored once


@pytest.mark.alone
def test_limits_are_the_best_that_was_seen() -> None:
    measured = LimitsMeter(1).measure(repeats=1)
    assert 0.5 < measured.read_gb_s < 2000
    assert 0.5 < measured.copy_gb_s < 2000
    assert 0.5 < measured.f32_gflop_s < 100_000
    assert measured.int8_gop_s is None or measured.int8_gop_s > measured.f32_gflop_s
    assert Limits(1, 5, 2, None).better(Limits(3, 4, 1, 7)) == Limits(3, 5, 2, 7)


# --- what is seen --------------------------------------------------------------------------------

MACHINE = Machine("A processor", 2, "Linux 6", "3.11.9", "0.1.0", "abcdef+")


def verdicts(engine: str, work: str, rate: float, valid: int = 10, error: str | None = None) -> Row:
    return summed_up(engine, "model", work, 16, [Measured(10, 210, 10 / rate, valid)], error)


def result(**changes: Any) -> Result:
    rows = [
        verdicts("magistrate", "verdict_only", 50),
        verdicts("slow [b]", "verdict_only", 2),
        verdicts("magistrate", "verdict_with_reasons", 10),
        verdicts("slow [b]", "verdict_with_reasons", 0.5, valid=7),
        Row("magistrate", "model", "decode", 16, 320.0, "tokens/s", 3),
        Row("magistrate", "model", "prefill", 8, 900.0, "tokens/s", 3),
        Row("magistrate", "model", "memory", 1, 600.0, "MB", 1),
        Row("slow [b]", "model", "memory", 1, 1800.0, "MB", 1),
        not_measured("slow [b]", "model", "decode", 16, "out of \x1b[2Jmemory"),
        not_measured("absent", "model", "cold_start", 1, "not installed: absent"),
    ]
    whole = Result(
        model="model",
        rows=rows,
        limits=Limits(20, 30, 200, 800),
        geometries={"magistrate": Geometry(0.2, 100_000_000, int8=True)},
        machine=MACHINE,
        versions={"magistrate": "magistrate 0.1.0"},
        command="python -m benchmarks.speed",
        date="2026-11-30T12:00:00+00:00",
        load=0.5,
    )
    return replace(whole, **changes)


def printed(shown: Result, width: int = 110) -> str:
    out = io.StringIO()
    render(shown, Console(file=out, width=width, markup=False, emoji=False, highlight=False))
    return out.getvalue()


def test_contenders_stand_side_by_side_with_ratios_and_limits() -> None:
    text = printed(result())
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "verdict_only, 1/s 16 50.0 2.00 ×25.0" in lines
    assert "verdict_with_reasons, 1/s 16 10.0 0.500 (70% valid) ×20.0" in lines
    assert "memory, MB 1 600 1,800 ×3.00" in lines  # less is better
    assert "verdict_only : their verdict_with_reasons 16 ×100" in lines
    assert "decode, tokens/s 16 320 failed" in lines
    assert "slow [b]: decode at 16: out of ␛[2Jmemory" in lines
    assert "absent: not measured: not installed: absent" in lines
    assert "magistrate decode bandwidth 16 320 3,200 10%" in lines
    assert "magistrate prefill f32 8 900 1,000 90%" in lines
    assert "magistrate prefill int8 8 900 4,000 22%" in lines
    assert "again: python -m benchmarks.speed" in lines
    assert "commit abcdef+" in text and "A processor, 2 cores, load 0.5 before" in text
    assert "\x1b" not in text


def test_a_run_without_int8_or_with_nothing_measured_can_be_shown() -> None:
    assert "no int8 kernel" in printed(result(limits=Limits(20, 30, 200, None)))
    absent = [not_measured("absent", "model", "cold_start", 1, "not installed: absent")]
    text = printed(result(rows=absent, geometries={}))
    assert "absent: not measured: not installed: absent" in text


def test_a_long_run_is_told() -> None:
    text = printed(result(soak=Soak(10_000, 120.0, 600.0, 601.5)))
    assert "10,000 mixed requests in 120 s: 600 MB after a tenth of them, 602 MB at the end" in text
    assert "growth +1.5 MB" in text


def test_rows_are_appended_with_where_they_come_from(tmp_path: Path) -> None:
    journal = tmp_path / "new" / "speed.jsonl"
    result().append(journal)
    result(soak=Soak(100, 1.0, 5.0, 5.0)).append(journal)
    rows = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 10 + 11
    assert {row["machine"]["commit"] for row in rows} == {"abcdef+"}
    assert {row["machine"]["cpu"] for row in rows} == {"A processor"}
    assert all(
        {"engine", "work", "value", "unit", "date", "versions", "command"} <= row.keys() for row in rows
    )
    assert rows[-1]["work"] == "soak" and rows[-1]["value"] == 0


# --- the command ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Done:
    """How the command ended and what it printed."""

    code: int
    out: str
    err: str


Call = Callable[..., Done]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Call]:
    def called(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["speed", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main(speed.command, "speed")
        assert isinstance(ended.value.code, int)
        said = capsys.readouterr()
        return Done(ended.value.code, said.out, said.err)

    yield called


@pytest.mark.full
def test_the_embedded_model_is_measured_for_machines(model_folder: Path, call: Call, tmp_path: Path) -> None:
    journal = tmp_path / "speed.jsonl"
    done = call("--quick", "--json", "--contender", "magistrate", "--soak", 40, "--append", journal)
    assert done.code == 0
    data = json.loads(done.out)
    assert data.keys() == {"rows", "limits"}
    required = {"engine", "model", "work", "in_flight", "value", "unit"}
    assert all(required <= row.keys() and "error" not in row for row in data["rows"])
    assert {row["work"] for row in data["rows"]} == set(KINDS)
    assert all(row["value"] > 0 for row in data["rows"] if row["work"] != "soak")
    assert {row["valid"] for row in data["rows"] if row.get("valid") is not None} == {1.0}
    [overhead] = [row for row in data["rows"] if row["work"] == "overhead"]
    assert overhead["value"] < 100
    limits = data["limits"]
    assert min(limits["read_gb_s"], limits["copy_gb_s"], limits["f32_gflop_s"]) > 0
    assert {share["work"] for share in limits["shares"]} == {"prefill", "decode"}
    assert len(journal.read_text(encoding="utf-8").splitlines()) == len(data["rows"])


@pytest.mark.full
def test_a_missing_peer_is_a_row_with_a_reason(log: Path, model_folder: Path, call: Call) -> None:
    names = [word for name in ("fakes:Fake", "llama.cpp") for word in ("--contender", name)]
    done = call("--quick", "--rounds", 2, "--append", log.parent / "x.jsonl", *names)
    assert done.code == 0
    assert "fakes:Fake" in done.out
    assert "llama.cpp: not measured: needs the peers' Python" in " ".join(done.out.split())
    assert "Medians of up to 2 interleaved rounds." in done.out
    assert len(noted(log, "mask")) == 2


def test_where_nothing_could_be_measured_the_command_says_so(
    log: Path, model_folder: Path, call: Call
) -> None:
    words = ("--quick", "--json", "--append", log.parent / "x.jsonl", "--contender")
    done = call(*words, "no_such_engine:Any")
    assert done.code == 3
    [row] = json.loads(done.out)["rows"]
    assert (row["value"], row["error"]) == (None, "not installed: no_such_engine")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("--contender magistrat", 2, "unknown contender 'magistrat' (did you mean 'magistrate'"),
        ("--rounds 0", 2, "0 is not in the range x>=1"),
        ("--threads 0", 2, "0 is not in the range x>=1"),
        ("--soak -1", 2, "-1 is not in the range x>=0"),
        ("--soak 5 --contender llama.cpp", 2, "--soak is for the contender magistrate"),
        ("--peers /no/python", 2, "there is no Python at /no/python"),
        ("--model smolm2", 2, "unknown model 'smolm2'"),
        ("--append /proc/no/file", 2, "cannot append to /proc/no/file"),
    ],
)
def test_wrong_words_are_explained_before_anything_is_measured(
    words: str, code: int, message: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGISTRATE_HOME", str(tmp_path / "home"))
    done = call(*words.split())
    assert (done.code, done.out) == (code, "")
    assert message in " ".join(done.err.split())


def test_every_contender_is_named_once_and_says_what_it_needs() -> None:
    assert list(CONTENDERS)[:2] == ["magistrate", "magistrate-f16"]
    assert {each.weights for name, each in CONTENDERS.items() if name.endswith("f16")} == {"f16"}
    assert all(each.files == "gguf" for each in CONTENDERS.values() if each.peer)


def test_ctrl_c_ends_the_processes_that_are_measured(log: Path, model_folder: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.speed", "--contender", "fakes:Waiting"]
    words += ["--append", str(log.parent / "x.jsonl")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 60
        while not (log.exists() and noted(log, "helper")) and time.monotonic() < end:
            time.sleep(0.1)
        pids = [int(line.split()[1]) for line in noted(log, "pid", "helper")]
        assert len(pids) == 2
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert (process.returncode, said.splitlines()[-1]) == (130, "interrupted")
    assert all(map(gone, pids))
