"""A judge as a scorer of Inspect, in its own evaluation; its logs as data sets, on the command line too."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from given import CONTEXT, FALSE, QUESTION, SECRET, TRUE, run_example
from inspect_ai import Epochs, Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import EvalLog, read_eval_log, write_eval_log
from inspect_ai.model import ChatMessageAssistant, ChatMessageTool, ModelOutput, ModelUsage, get_model
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver
from inspect_ai.tool import ToolCall

import magistrate
from magistrate.datasets import inspect_logs
from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import DatasetError
from magistrate.integrations.inspect import judge_scorer
from magistrate.integrations.samples import from_inspect
from standins import Standin


def samples(**metadata: Any) -> list[Sample]:
    return [
        Sample(input=QUESTION, target="The capital.", id=name, metadata=metadata)
        for name in ("first", "second")
    ]


def evaluated(
    scorer: Any,
    *outputs: str,
    data: list[Sample],
    folder: Path,
    solvers: Solver | None = None,
    log_format: Any = "eval",
    **options: Any,
) -> EvalLog:
    """The log of a task whose model says these things in turn."""
    said = [ModelOutput.from_content("mockllm/model", each) for each in outputs]
    for each in said:
        each.usage = ModelUsage()  # Inspect would fetch a tokenizer to count
    task = Task(dataset=MemoryDataset(data), solver=solvers or generate(), scorer=scorer, **options)
    (log,) = eval(
        task,
        model=get_model("mockllm/model", custom_outputs=said),
        log_dir=str(folder / "logs"),
        log_format=log_format,
        display="none",
        max_samples=1,
    )
    return log


def scores(log: EvalLog) -> list[Any]:
    assert log.samples is not None
    return [next(iter((sample.scores or {}).values())) for sample in log.samples]


# --- a judge as a scorer -------------------------------------------------------------------------


def test_correct_means_faithful(tmp_path: Path) -> None:
    log = evaluated(judge_scorer("novelty"), TRUE, FALSE, data=samples(documents=CONTEXT), folder=tmp_path)
    assert log.status == "success"
    true, false = scores(log)
    assert (true.value, false.value) == ("C", "I")
    assert (true.answer, false.answer) == (TRUE, FALSE)
    assert "47" in false.explanation
    quote = false.metadata["claims"][0]["output_quote"]
    assert FALSE[quote["start"] : quote["end"]] == quote["text"]
    assert (false.metadata["score"] > 0.5, false.metadata["score_direction"]) == (True, "minimize")
    assert false.metadata["recipe"].startswith("judge=novelty@")
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 0.5


def test_a_judge_that_asks_a_model_whose_key_is_in_no_log(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda prompt: {"faithful": 0.8, "hallucinated": 0.2})
    engine.api_key = "sk-not-to-be-seen"  # type: ignore[attr-defined]
    log = evaluated(
        judge_scorer("faithfulness", engine), FALSE, FALSE, data=samples(context=CONTEXT), folder=tmp_path
    )
    assert [each.value for each in scores(log)] == ["C", "C"]
    assert scores(log)[0].metadata["probability"] == pytest.approx(0.8)
    assert "sk-not-to-be-seen" not in log.model_dump_json()


def test_a_judge_asks_a_server_at_its_address(served: Standin, tmp_path: Path) -> None:
    scorer = judge_scorer("hallucination", "openai:model-a", base_url=served.url)
    log = evaluated(scorer, FALSE, FALSE, data=samples(context=CONTEXT), folder=tmp_path)
    assert [(each.value, each.metadata["score"]) for each in scores(log)] == [("I", 0.75)] * 2
    assert SECRET not in log.model_dump_json()


def test_the_context_can_be_named(tmp_path: Path) -> None:
    data = samples(wiki={"pages": CONTEXT})
    log = evaluated(
        judge_scorer("novelty", context="metadata.wiki.pages"), TRUE, FALSE, data=data, folder=tmp_path
    )
    assert [each.value for each in scores(log)] == ["C", "I"]


@solver
def looking() -> Solver:
    """Answers after a tool has, and keeps what it found in the store."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        call = ToolCall(id="1", function="look", arguments={})
        state.messages.append(ChatMessageAssistant(content="Let me look.", tool_calls=[call]))
        state.messages.append(ChatMessageTool(content=CONTEXT[0], tool_call_id="1", function="look"))
        state.store.set("found", CONTEXT)
        return await generate(state)

    return solve


@pytest.mark.parametrize("context", ["tools", "store.found"])
def test_the_context_can_be_what_tools_answered_or_what_is_stored(tmp_path: Path, context: str) -> None:
    scorer = judge_scorer("novelty", context=context)
    log = evaluated(scorer, TRUE, FALSE, data=samples(), folder=tmp_path, solvers=looking())
    assert [each.value for each in scores(log)] == ["C", "I"]


def test_what_breaks_is_unscored_with_its_reason(tmp_path: Path, broken: tuple[ScriptedEngine, str]) -> None:
    engine, reason = broken
    scorer = judge_scorer("faithfulness", engine)
    log = evaluated(scorer, TRUE + " Yes.", FALSE, data=samples(documents=CONTEXT), folder=tmp_path)
    for each in scores(log):
        assert math.isnan(each.value)
        assert each.reason == ("scoring_failed" if reason == "over_length" else "grader_failed")
        assert reason in each.explanation
    assert log.results is not None and log.results.scores[0].unscored_samples == 2


def test_an_abstention_is_unscored_and_out_of_the_mean(tmp_path: Path) -> None:
    data = [Sample(input=QUESTION, id=1), Sample(input=QUESTION, id=2, metadata={"documents": CONTEXT})]
    log = evaluated(judge_scorer("novelty", context=""), TRUE, TRUE, data=data, folder=tmp_path)
    lacking, true = scores(log)
    assert (math.isnan(lacking.value), lacking.reason, true.value) == (True, "scoring_failed", "C")
    assert "no_context" in lacking.explanation
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1.0


def test_an_empty_answer_is_the_models_fault(tmp_path: Path) -> None:
    log = evaluated(judge_scorer("novelty"), "", TRUE, data=samples(documents=CONTEXT), folder=tmp_path)
    assert [each.reason for each in scores(log)] == ["no_response", None]


# --- logs as data sets ---------------------------------------------------------------------------


@pytest.fixture(params=["eval", "json"])
def log_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The log of two samples with documents in their metadata."""
    data = samples(documents=CONTEXT, page=3)
    log = evaluated(
        judge_scorer("novelty"), TRUE, FALSE, data=data, folder=tmp_path, log_format=request.param
    )
    return Path(log.location.removeprefix("file://"))


def test_a_log_is_a_data_set(log_file: Path) -> None:
    for data in (
        magistrate.load(log_file),
        from_inspect(log_file),
        from_inspect(read_eval_log(str(log_file))),
    ):
        first, second = data
        assert (first.id, first.input, first.output, first.expected) == (
            "first",
            QUESTION,
            TRUE,
            "The capital.",
        )
        assert (second.output, second.context, second.messages) == (FALSE, tuple(CONTEXT), ())
        assert first.metadata["page"] == 3
        assert (first.metadata["scores"], second.metadata["scores"]) == (
            {"judge_scorer": "C"},
            {"judge_scorer": "I"},
        )
        assert data.problems == []


def test_a_log_is_read_inside_a_running_loop_too(log_file: Path) -> None:
    async def read() -> list[str | None]:
        return [sample.output for sample in magistrate.load(log_file)]

    assert asyncio.run(read()) == [TRUE, FALSE]


def test_a_log_is_run_on_the_command_line(log_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGISTRATE_HOME", "home")
    command = [sys.executable, "-m", "magistrate", "run", str(log_file), "--judge", "novelty", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["judges"]


def test_a_sample_of_each_epoch_with_what_was_said_before(tmp_path: Path) -> None:
    data = samples()[:1]
    log = evaluated(
        judge_scorer("novelty"), TRUE, FALSE, data=data, folder=tmp_path, solvers=looking(), epochs=Epochs(2)
    )
    first, second = from_inspect(log, mapping={"context": "store.found"})
    assert (first.id, second.id) == ("first", "first~2")
    assert (first.context, second.output) == (tuple(CONTEXT), FALSE)
    assert [turn.role for turn in first.messages] == ["user", "assistant", "tool"]
    (tools, _) = from_inspect(log, mapping={"context": "tools"})
    assert tools.context == (CONTEXT[0],)


@solver
def failing() -> Solver:
    """Breaks on the first sample."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        if state.sample_id == "first":
            raise ValueError("the roof fell in")
        return await generate(state)

    return solve


@pytest.mark.parametrize("log_format", ["eval", "json"])
def test_what_cannot_be_read_is_named_and_nothing_else_is_lost(tmp_path: Path, log_format: str) -> None:
    data = samples(documents=CONTEXT)
    log = evaluated(
        judge_scorer("novelty"),
        TRUE,
        data=data,
        folder=tmp_path,
        solvers=failing(),
        log_format=log_format,
        fail_on_error=False,
    )
    read = magistrate.load(log.location.removeprefix("file://"))
    assert [sample.id for sample in read] == ["second"]
    (problem,) = read.problems
    assert "sample first: no output: the sample ended in an error: ValueError('the roof fell in')" in str(
        problem
    )


# --- packed logs ---------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> EvalLog:
    """Two samples of two epochs, after tools, with documents that are attached apart."""
    data = [each.model_copy(update={"id": name}) for each, name in zip(samples(), (7, "b/../c"), strict=True)]
    long = [text + " It is so." * 200 for text in CONTEXT]
    for each in data:
        each.metadata = {"documents": long, "page": 3}
    options = {"data": data, "folder": tmp_path, "solvers": looking(), "epochs": Epochs(2)}
    made = evaluated(judge_scorer("novelty"), TRUE, FALSE, FALSE, TRUE, **options)
    return read_eval_log(made.location)


def packed(log: EvalLog, folder: Path, **changed: Any) -> Path:
    """The log as Inspect packs it; `changed` of its evaluation."""
    path = folder / "log.eval"
    write_eval_log(log.model_copy(update={"eval": log.eval.model_copy(update=changed)}), path)
    return path


def repacked(path: Path, *, leave: str = "", method: int = zipfile.ZIP_DEFLATED, **members: bytes) -> Path:
    """A zip made by hand of a packed log's members, but for one, and others in the place of theirs."""
    with zipfile.ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist() if name != leave}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in (held | members).items():
            archive.writestr(name, content)
    return path


def read(path: Path) -> tuple[list[magistrate.Sample], list[str]]:
    data = magistrate.load(path)
    return list(data), list(map(str, data.problems))


FIRST = "samples/7_epoch_1.json"
ZSTANDARD = 93  # what Inspect packs by, and teaches zipfile


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, ZSTANDARD])
def test_a_packed_log_has_the_rows_of_the_plain_one(log: EvalLog, tmp_path: Path, method: int) -> None:
    plain = tmp_path / "log.json"
    write_eval_log(log, plain)
    found, problems = read(repacked(packed(log, tmp_path), method=method))
    assert problems == []
    assert [each.id for each in found] == ["7", "7~2", "b/../c", "b/../c~2"]
    assert found[0].context[0].endswith(" It is so.") and found[0].messages
    assert read(plain) == (found, [])


def test_samples_that_the_head_does_not_name_are_read_too(log: EvalLog, tmp_path: Path) -> None:
    bare = log.eval.dataset.model_copy(update={"sample_ids": None})
    found, problems = read(packed(log, tmp_path, dataset=bare))
    assert problems == []
    assert sorted(found, key=lambda each: each.id) == read(packed(log, tmp_path))[0]


def test_a_sample_that_is_not_there_is_a_problem_in_both_forms(log: EvalLog, tmp_path: Path) -> None:
    plain = tmp_path / "log.json"
    write_eval_log(log.model_copy(update={"samples": (log.samples or [])[1:]}), plain)
    for path in (plain, repacked(packed(log, tmp_path), leave=FIRST)):
        found, problems = read(path)
        assert len(found) == 3
        assert problems == [f"{path} sample 7, epoch 1: it is not in the log, whose status is success"]


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, ZSTANDARD])
def test_a_sample_that_unpacks_to_too_much_is_a_problem(
    log: EvalLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: int
) -> None:
    monkeypatch.setattr(inspect_logs, "LARGEST", 2 << 20)
    path = repacked(packed(log, tmp_path), method=method, **{FIRST: b" " * (3 << 20)})
    for _ in range(2):
        found, (problem,) = read(path)
        assert len(found) == 3
        assert problem.endswith(
            f"{FIRST} unpacks to more than 2 MiB; remove what is not needed from the log, such as images"
        )
        lie(path, 100)


def lie(path: Path, size: int) -> None:
    """Let the directory of a zip say that the first sample unpacks to `size` bytes."""
    content = path.read_bytes()
    at = content.index(FIRST.encode(), content.index(b"PK\1\2")) - 46
    assert content[at : at + 4] == b"PK\1\2"
    path.write_bytes(content[: at + 24] + size.to_bytes(4, "little") + content[at + 28 :])


def encrypted(content: bytes, name: bytes = b"") -> bytes:
    """The flag of every member of this name set in a zip's directory."""
    at = -1
    while (at := content.find(b"PK\1\2", at + 1)) >= 0:
        if name in content[at + 46 : at + 46 + int.from_bytes(content[at + 28 : at + 30], "little")]:
            content = content[: at + 8] + bytes([content[at + 8] | 1]) + content[at + 9 :]
    return content


def test_an_encrypted_log_says_so(log: EvalLog, tmp_path: Path) -> None:
    path = repacked(packed(log, tmp_path))
    whole = path.read_bytes()
    path.write_bytes(encrypted(whole, FIRST.encode()))
    found, (problem,) = read(path)
    assert len(found) == 3
    assert problem.endswith(f"{FIRST} is encrypted; pack the log again without a password")
    path.write_bytes(encrypted(whole))
    with pytest.raises(DatasetError, match=r"log.eval is not a log .*json is encrypted"):
        read(path)


def test_a_damaged_sample_is_a_problem_and_the_others_go_on(log: EvalLog, tmp_path: Path) -> None:
    path = repacked(packed(log, tmp_path), method=zipfile.ZIP_STORED)
    path.write_bytes(path.read_bytes().replace(b'{"id":7,"epoch":1', b'{"id":8,"epoch":1', 1))
    found, (problem,) = read(path)
    assert len(found) == 3 and "Bad CRC-32" in problem


def test_a_zip_of_something_else_is_no_log(log: EvalLog, tmp_path: Path) -> None:
    path = tmp_path / "log.eval"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "nothing")
    with pytest.raises(DatasetError, match=r"log.eval is not a log that inspect-ai can read"):
        read(path)
    repacked(packed(log, tmp_path))
    content = path.read_bytes()
    at = content.index(b"PK\1\2")
    path.write_bytes(content[: at + 20] + (1 << 30).to_bytes(4, "little") + content[at + 24 :])
    with pytest.raises(DatasetError, match=r"members overlap"):
        read(path)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("cut.eval", lambda held: held[: len(held) // 2]),
        ("empty.eval", lambda held: b""),
    ],
)
def test_a_damaged_log_is_an_error(
    log_file: Path, name: str, damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(damage(log_file.read_bytes()))
    with pytest.raises(DatasetError, match=f"{name} is not a log that inspect-ai can read"):
        list(magistrate.load(path))


def test_the_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    told = run_example("Inspect")
    assert capsys.readouterr().out.rstrip() == told.rstrip()
