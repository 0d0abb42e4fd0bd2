"""The command line as a demanding user meets it: every command, wrong words, pipes, odd terminals."""

from __future__ import annotations

import csv
import gzip
import json
import os
import pty
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import magistrate
from magistrate.cli import COMMANDS, command
from magistrate.errors import EngineError
from magistrate.store import Store
from magistrate.types import Prompt
from terminal import Call, Done

HOSTILE = "../../etc/passwd \x1b[2J[bold]"


def shell(*words: object, stdin: str = "", **environment: str) -> Done:
    """The command line in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "magistrate", *map(str, words)],
        capture_output=True,
        env={**os.environ, **environment},
        input=stdin.encode(),
        timeout=120,
    )
    return Done(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def by_word(prompt: Prompt) -> Any:
    (output,) = (part.text for part in prompt.data() if part.name == "output")
    if "break" in output:
        return EngineError("it broke")
    return {"faithful": 0.9, "hallucinated": 0.1} if "true" in output else {"hallucinated": 1.0}


ROWS: list[dict[str, Any]] = [
    {"id": "a", "output": "true", "context": "it is true", "label": "faithful"},
    {"id": "b", "output": "=false()", "context": "it is true", "label": "hallucinated"},
    {"id": HOSTILE, "output": "false " + HOSTILE, "context": ["one", "two"], "label": "hallucinated"},
    {"id": "broken", "output": "break", "context": "c"},
]


@pytest.fixture
def run(home: Path) -> magistrate.Run:
    """A run in the usual store, as `magistrate run` would have left it."""
    engine = magistrate.ScriptedEngine(by_word)
    return magistrate.evaluate(ROWS, "faithfulness", model=engine, name="first", tags=["x"], progress=False)


# --- help ---------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in COMMANDS:
        found = command.get_command(click.Context(command), name)
        assert found is not None
        yield (name,), found
        if isinstance(found, click.Group):
            context = click.Context(found)
            for below in found.list_commands(context):
                each = found.get_command(context, below)
                assert each is not None
                yield (name, below), each


EVERY = dict(commands())


def test_every_command_has_help_with_an_example_and_data_for_machines(call: Call) -> None:
    without = {("bench",), ("models",), ("cache",), ("train",), ("runs", "schema"), ("serve",), ("label",)}
    without |= {("watch",), ("watch", "schema"), ("import",), ("docs",)}
    for words, each in EVERY.items():
        name = " ".join(words)
        done = call(*words, "--help")
        assert (done.code, done.err) == (0, ""), name
        assert f"Usage: magistrate {name}" in done.out
        assert f"magistrate {name}" in done.out.partition("Example")[2].replace("\n  ", " ")
        assert "--json" in done.out or words in without, name
        options = [option for option in each.params if isinstance(option, click.Option)]
        assert [option.name for option in options if not option.help] == [], name


def test_help_of_the_whole_names_every_command(call: Call) -> None:
    done = call("--help")
    assert done.code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in done.out


def test_lists_of_commands_have_a_whole_sentence_a_line_at_80_columns(call: Call) -> None:
    groups = [(), *(words for words, each in EVERY.items() if isinstance(each, click.Group))]
    for words in groups:
        listed = call(*words, "--help").out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
        assert listed, words
        for line in listed:
            assert line.endswith(".") and not line.endswith("..."), line
            assert line[2] != " " and len(line) <= 80, line  # the sentence of the line above went on


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["judgee"], "unknown command 'judgee' (did you mean 'judge'"),
        (["runs", "renam"], "No such command 'renam'"),
        (["run"], "nothing to judge: give DATA, or --spec FILE"),
        (["run", "quickstart", "--limti", "3"], "No such option '--limti'"),
        (["judge"], "nothing to judge: give --output TEXT"),
        (["judge", "--messages", "{"], "is not JSON"),
        (["judge", "--messages", "{}"], "must be a JSON list"),
        (["judge", "--output", "@nothere"], "cannot read nothere"),
        (["run", "quickstart", "--limit", "0"], "0 is not in the range"),
        (["run", "quickstart", "--map", "context"], "expected name=field"),
        (["show", "last", "--steps"], "--steps needs --sample"),
        (["generate", "--choice", "a", "--regex", "a", "x"], "give exactly one of"),
        (["train", "detector", "--data", "x", "--to", "y", "--tokens", "5e6"], "counts millions of tokens"),
    ],
)
def test_wrong_words_are_explained(words: list[str], message: str, call: Call) -> None:
    done = call(*words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err.replace("No such option: ", "No such option ").replace(
        "--limti.", "'--limti'."
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "quickstart", "--judge", "faithfullness"], "did you mean 'faithfulness'"),
        (["run", "quickstart", "--judge", "faithfulness:priors=1"], "did you mean 'prior'"),
        (["run", "quickstrt"], "did you mean 'quickstart'"),
        (["run", "quickstart", "--view", "nope"], "'nope'"),
        (["run", "nothere.jsonl"], "nothere.jsonl"),
        (["run", "."], "folder"),
        (["run", "quickstart", "--gate", "f2>=0.5"], "known: accuracy"),
        (["run", "quickstart", "--gate", "f1>=50"], "never be passed"),
        (
            ["run", "quickstart", "--gate", "hallucination.f1>=.5"],
            "matches no judge of this run; it has: auto",
        ),
        (["run", "quickstart", "--model", "smollm"], "unknown model 'smollm'"),
        (["judge", "--output", "x", "--judge", "faith"], "unknown judge 'faith'"),
        (["judge", "--output", "x", "--model", "./nothere.gguf"], "nothere.gguf"),
        (["models", "path", "smollm"], "unknown model 'smollm'"),
        (["models", "pull", "smollm"], "unknown model 'smollm'"),
        (["generate", "x", "--regex", "("], "not a regular expression"),
        (["generate", "x", "--regex", "a+"], "no maximum length"),
    ],
)
def test_unknown_names_are_explained_and_leave_no_trace(
    words: list[str], message: str, call: Call, home: Path
) -> None:
    done = call(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert message in done.err
    assert not home.exists()


def test_a_model_that_is_not_here_exits_with_3_and_says_what_to_do(call: Call) -> None:
    asking = ["--judge", "faithfulness"]
    judge = ["judge", "--output", "x", "--context", "c", *asking]
    for words, model in (
        (judge, "smollm2-135m-judge"),
        (["run", "quickstart", *asking], "smollm2-135m-judge"),
        (["generate", "x"], "smollm2-135m-instruct"),
    ):
        done = call(*words)
        assert (done.code, done.out) == (3, "")
        assert f"magistrate models pull {model}" in done.err


# --- reading what was run -----------------------------------------------------------------------


def test_runs_are_listed(call: Call, run: magistrate.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    done = call("runs")
    assert done.code == 0
    head, _, row = done.out.splitlines()
    assert head.split() == ["run", "name", "dataset", "judges", "outcomes", "status", "tags"]
    assert row.split() == [run.id, "first", "rows", "faithfulness", "4", "done,", "1", "failed", "x"]
    (record,) = call("runs", "--json").data
    assert (record["id"], record["name"], record["tags"], record["n_failures"]) == (run.id, "first", ["x"], 1)
    assert " n=4 " in record["recipes"]["faithfulness"]
    assert call("runs", "--tag", "y").out == "no matching runs\n"
    assert call("runs", "--tag", "y", "--json").data == []


def test_no_runs_yet_makes_no_store(call: Call, home: Path) -> None:
    done = call("runs")
    assert (done.code, done.out) == (0, "no runs yet; start with: magistrate run quickstart\n")
    assert call("show", "last").code == 2
    assert not home.exists()


READERS = ("runs", "runs rename last x", "runs tag last x", "runs delete last --yes", "show last")


@pytest.mark.parametrize("words", [*READERS, "export last --to o.csv"])
def test_a_mistyped_store_is_said_and_not_made(words: str, call: Call, tmp_path: Path) -> None:
    done = call(*words.split(), "--store", "mistyped.db")
    assert done.code == 2
    assert "no store of runs at" in done.err
    assert "mistyped.db" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", ["a folder", "not a database"])
def test_a_store_that_cannot_be_used_is_explained(bad: str, call: Call, tmp_path: Path) -> None:
    place = tmp_path / "store"
    if bad == "a folder":
        place.mkdir()
    else:
        place.write_text("this is text, and long enough to be looked at as a database " * 20)
    for words in (["runs"], ["show", "last"]):
        done = call(*words, "--store", place)
        assert (done.code, done.out) == (2, "")
        assert str(place) in done.err


def test_a_report_is_shown(call: Call, run: magistrate.Run) -> None:
    for name in ("last", "first", run.id, run.id[:-1]):
        done = call("show", name)
        assert done.code == 0
        assert done.out.startswith(f"first  {run.id}\n")
        assert "1 engine_error" in done.out
        assert max(map(len, done.out.splitlines())) <= 80
    data = call("show", "last", "--json").data
    assert set(data) == {"run", "dataset", "judges"}
    judge = data["judges"]["faithfulness"]
    assert (judge["n_ok"], judge["n_total"], judge["failures"]) == (3, 4, {"engine_error": 1})
    assert judge["metrics"]["accuracy"]["value"] == 1


def test_a_sample_is_shown_with_its_evidence(call: Call, run: magistrate.Run) -> None:
    done = call("show", "last", "--sample", "a")
    assert "── faithfulness  faithful  score .10  probability .90  mass 1.00" in done.out
    assert "step 1" not in done.out
    assert "step 1: choose" in call("show", "last", "--sample", "a", "--steps").out
    data = call("show", "last", "--sample", "a", "--json", "--steps").data
    assert (data["run"], data["sample"]["id"]) == (run.id, "a")
    assert [each["kind"] for each in data["outcomes"]] == ["verdict"]
    assert data["outcomes"][0]["steps"][0]["verb"] == "choose"
    assert "steps" not in call("show", "last", "--sample", "a", "--json").data["outcomes"][0]
    failed = call("show", "last", "--sample", "broken", "--json").data["outcomes"][0]
    assert (failed["kind"], failed["code"]) == ("failure", "engine_error")


def test_hostile_text_does_nothing_to_the_terminal(call: Call, run: magistrate.Run) -> None:
    for done in (
        call("show", "last", "--sample", HOSTILE, "--steps"),
        call("show", "last", "--sample", HOSTILE + "?"),
        call("runs", "rename", "last", HOSTILE),
        call("runs"),
        call("show", "last"),
    ):
        assert "\x1b" not in done.out + done.err
        assert "[bold]" in done.out + done.err


def test_unknown_runs_and_samples_are_explained(call: Call, run: magistrate.Run) -> None:
    for words, message in (
        (["show", "frist"], "near: 'first'"),
        (["show", "last", "--sample", "aa"], "near: 'a'"),
        (["export", "frist", "--to", "o.csv"], "near: 'first'"),
        (["runs", "tag", "frist", "x"], "near: 'first'"),
        (["show", b"\xff".decode(errors="surrogateescape")], "unknown run"),
    ):
        done = call(*words)
        assert (done.code, done.out) == (2, "")
        assert message in done.err


def test_runs_are_renamed_tagged_and_deleted(call: Call, run: magistrate.Run) -> None:
    assert call("runs", "rename", "last", "nightly").out == f"{run.id} is now nightly\n"
    assert call("runs", "tag", "nightly", "p", "q", "--remove", "x").out == f"{run.id}: p, q\n"
    assert call("runs", "tag", "nightly", "--remove", "p", "--json").data["tags"] == ["q"]
    assert call("runs", "rename", "nightly", "last").code == 2
    refused = shell("runs", "delete", "nightly")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert call("runs", "delete", "nightly", "--yes", "--json").data["id"] == run.id
    assert call("runs", "--json").data == []


def test_a_run_is_exported(call: Call, run: magistrate.Run, tmp_path: Path) -> None:
    done = call("export", "last", "--to", "o.jsonl")
    assert (done.code, done.out) == (0, "4 rows in o.jsonl\n")
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert [row["sample_id"] for row in rows] == ["a", "b", HOSTILE, "broken"]
    assert [row["kind"] for row in rows] == ["verdict"] * 3 + ["failure"]
    assert (rows[2]["context"], rows[2]["gold_label"]) == (["one", "two"], "hallucinated")
    assert call("export", "last", "--to", "o.jsonl.gz", "--json").data["rows"] == 4
    with gzip.open("o.jsonl.gz", "rt") as file:
        assert [json.loads(line) for line in file] == rows
    assert call("export", "last", "--to", "o.csv").code == 0
    with Path("o.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert [cell["sample_id"] for cell in cells] == ["a", "b", HOSTILE, "broken"]
    assert cells[1]["output"] == "'=false()", "no spreadsheet takes it for a formula"


def test_claims_are_exported_with_their_words(call: Call) -> None:
    engine = magistrate.ScriptedEngine(
        ['{"candidates":[{"reason":"six, not five","quote":"It closes at six"}]}', {"hallucinated": 1}]
    )
    rows = [{"answer": "It closes at six.", "context": "It closes at five."}]
    magistrate.evaluate(rows, "candidates", model=engine, progress=False)
    for target in ("c.jsonl", "c.csv"):
        assert call("export", "last", "--to", target).code == 0
    (row,) = [json.loads(line) for line in Path("c.jsonl").read_text().splitlines()]
    with Path("c.csv").open(newline="") as file:
        (cells,) = csv.DictReader(file)
    for claims in (row["claims"], json.loads(cells["claims"])):
        (claim,) = claims
        assert (claim["kind"], claim["output_text"]) == ("unsupported", "It closes at six")
        assert claim["output_quote"] == {"start": 0, "end": 16, "kind": "doubtful"}


def test_an_export_replaces_nothing_unasked_and_leaves_nothing_half_written(
    call: Call, run: magistrate.Run, tmp_path: Path
) -> None:
    Path("o.csv").write_text("mine")
    Path("full").mkdir()
    for target, message in (
        ("o.csv", "--force"),
        ("o.xlsx", ".jsonl"),
        ("nothere/o.csv", "error: cannot write nothere/o.csv: No such file"),
    ):
        done = call("export", "last", "--to", target)
        assert (done.code, done.out) == (2, "")
        assert message in done.err
    assert Path("o.csv").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"home", "o.csv", "full"}
    assert call("export", "last", "--to", "o.csv", "--force").code == 0
    assert Path("o.csv").read_text() != "mine"


# --- what needs no run --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("[1, 2, 3", "incomplete"),
        ('{"key": true, "nested": {', "incomplete"),
        ("true", "valid"),
        ("invalid syntax", "invalid"),
    ],
)
def test_check_says_how_far_a_text_is(text: str, state: str, call: Call, tmp_path: Path) -> None:
    assert call("check", text) == Done(0, f"{state}\n", "")
    assert call("check", text, "--json").data == {"check": state}
    assert call("check", text, "--exit-code").code == (0 if state == "valid" else 1)
    (tmp_path / "text").write_text(text)
    assert call("check", "@text").out == f"{state}\n"


def test_check_goes_by_a_schema_and_says_what_is_wrong_with_it(call: Call) -> None:
    Path("s.json").write_text('{"type": "array", "items": {"type": "integer"}, "maxItems": 3}')
    assert call("check", "--schema", "s.json", "[1, 2").out == "incomplete\n"
    assert call("check", "--schema", "s.json", '["x"').out == "invalid\n"
    for content, message in (("{", "s.json:1: not JSON"), ('{"type": "strng"}', "strng"), ("\xff", "UTF-8")):
        Path("s.json").write_bytes(content.encode("latin-1"))
        done = call("check", "--schema", "s.json", "1")
        assert (done.code, done.out) == (2, "")
        assert message in done.err


def test_texts_come_from_standard_input_too(home: Path) -> None:
    assert shell("check", "@-", stdin="[1").out == "incomplete\n"


def test_what_is_there_is_listed_for_people_and_machines(call: Call) -> None:
    assert {each["name"] for each in call("judges", "--json").data} >= {"faithfulness", "hallucination"}
    assert {each["name"] for each in call("datasets", "--json").data} >= {"quickstart", "halueval-qa"}
    assert "magistrate models pull detector-large" in call("models", "path", "detector-large").err
    assert call("datasets", "quickstart").out == call("datasets", "show", "quickstart").out
    models = call("models", "list", "--json").data
    assert [each["name"] for each in models if each["default"]] == ["smollm2-135m-instruct"]
    assert all(len(each["sha256"]) == 64 for each in models)
    findings = {each["what"]: each["state"] for each in call("doctor", "--quick", "--json").data}
    assert (findings["engine embedded"], findings["model"]) == ("ok", "missing")
    assert findings["default judge"] == "ok"
    assert call("doctor", "--quick").code == 1


LISTS = [["judges"], ["datasets"], ["models", "list"], ["doctor", "--quick"], ["runs"]]


@pytest.mark.parametrize("words", LISTS, ids=" ".join)
def test_a_list_fits_80_columns_with_names_whole(
    words: list[str], call: Call, run: magistrate.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = call(*words)
    assert max(map(len, done.out.splitlines())) <= 80
    names = [each.get("name", each.get("what")) for each in call(*words, "--json").data]
    for name in [run.id] if words == ["runs"] else names:
        assert any(line.startswith(name) for line in done.out.splitlines())
    assert words != ["judges"] or "AUROC: mean over labelled sets" in done.out
    monkeypatch.delenv("COLUMNS")
    lines = call(*words).out.splitlines()
    if words[0] in ("judges", "doctor"):
        assert max(map(len, lines)) <= 100, "long texts wrap in a pipe too"
    else:
        assert len(lines) == len(names) + 2, "in a pipe every row is one line"


def test_what_has_no_room_is_left_out_and_said(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = call("models", "list").out
    assert "Columns hidden because the terminal is too narrow: licence." in narrow
    assert "for `combined:size=large` (438 MB): magistrate models pull detector-large" in " ".join(
        narrow.split()
    )
    monkeypatch.setenv("COLUMNS", "200")
    wide = call("models", "list").out
    assert "Columns hidden" not in wide
    assert "Llama 3.2 Community License" in wide


# --- pipes, locales, terminals ------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "show last",
        "models list --json",
        *(pytest.param(each, marks=pytest.mark.full) for each in ("models list", "show last --json", "runs")),
    ],
)
def test_a_reader_that_has_seen_enough_ends_it_quietly_as_other_programs(
    words: str, run: magistrate.Run
) -> None:
    """The pipe is closed before anything is written, so that it surely breaks."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "magistrate", *words.split()],
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_run_that_nobody_reads_to_the_end_is_no_success(home: Path, tmp_path: Path) -> None:
    """Neither its report nor what it says on standard error can be written."""
    data = tmp_path / "rows.jsonl"
    data.write_text('{"output": "It rains."}\n' * 3, encoding="utf-8")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "magistrate", "run", str(data)], stdout=writing, stderr=writing, timeout=60
    )
    os.close(writing)
    assert done.returncode in (3, 141), "no sample has a context"


def test_a_locale_of_few_characters_is_enough(run: magistrate.Run) -> None:
    few = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    for words in (["show", "last", "--sample", "a"], ["models", "list"]):
        done = shell(*words, **few)
        assert (done.code, done.err) == (0, "")
        assert done.out.isascii()


def in_a_terminal(*words: str, **environment: str) -> str:
    """What a command prints into a terminal of 80 columns."""
    leader, follower = pty.openpty()
    variables = {**os.environ, "TERM": "xterm-256color", **environment}
    process = subprocess.Popen(
        [sys.executable, "-m", "magistrate", *words], stdout=follower, stderr=follower, env=variables
    )
    os.close(follower)
    printed = b""
    while True:
        try:
            printed += os.read(leader, 65536)
        except OSError:  # how a terminal says that nobody writes any more
            break
    os.close(leader)
    assert process.wait(timeout=60) == 0
    return printed.decode()


@pytest.mark.full
def test_colour_is_for_terminals_and_can_be_refused(call: Call, run: magistrate.Run) -> None:
    assert "\x1b[1m" in in_a_terminal("show", "last")
    plain = in_a_terminal("show", "last", NO_COLOR="1")
    assert "\x1b[3" not in plain
    assert "\x1b" not in call("show", "last").out


# --- with the real model ------------------------------------------------------------------------


def test_one_output_is_judged(model_folder: Path, call: Call) -> None:
    texts = ["--context", "Bern has 134,000 people.", "--output", "Bern is big."]
    given = ["judge", "--model", model_folder, *texts]
    done = call(*given, "--judge", "faithfulness")
    assert done.code == 0
    assert "── faithfulness  " in done.out
    several = call(*given, "--judge", "faithfulness", "--judge", "hallucination:most_characters=20", "--json")
    first, second = several.data
    assert (first["kind"], first["judge"]) == ("verdict", "faithfulness")
    assert second["details"]["reasons"]
    abstained = call(
        "judge", "--model", model_folder, "--output", "x", "--json", "--steps", "--judge", "faithfulness"
    )
    assert abstained.code == 3
    assert (abstained.data["reason"], abstained.data["steps"]) == ("no_context", [])
    written = call(
        "generate", "--model", model_folder, "--choice", "red", "--choice", "blue", "A colour?", "--json"
    )
    assert written.data["text"] in ("red", "blue")
    assert written.data["check"] == "valid"


BAD = ["not json", '{"id": "x", "context": "c"}', '["a"]']


@pytest.mark.full
def test_a_file_with_bad_rows_is_judged_and_the_bad_ones_are_told(model_folder: Path, call: Call) -> None:
    good = [json.dumps({"answer": f"It is {i}.", "docs": "It is 1.", "label": "PASS"}) for i in range(4)]
    Path("mine.jsonl").write_text("\n".join([good[0], *BAD, *good[1:]]))
    run = ["run", "mine.jsonl", "--judge", "faithfulness", "--model", model_folder, "--map", "context=docs"]
    run += ["--name", "n", "--tag", "t"]
    refused = call(*run, "--json", "--gate", "coverage>=1")
    assert refused.code == 2 and "3 of 7 rows of mine could not be read" in refused.err
    run += ["--max-unread", 1]
    done = call(*run, "--json", "--gate", "coverage>=1", "--gate", "accuracy>=0")
    assert done.code == 1 and done.data["judges"]["faithfulness"]["n_unread"] == 3
    assert done.data["judges"]["faithfulness"]["n_ok"] == 4
    assert [problem.partition(": ")[0] for problem in done.data["problems"]] == [
        f"mine.jsonl:{line}" for line in (2, 3, 4)
    ]
    assert done.err.count("left out mine.jsonl:") == 3
    (record,) = call("runs", "--json").data
    assert (record["name"], record["tags"], record["dataset"]) == ("n", ["t"], "mine")
    limited = call(*run, "--limit", "2", "--gate", "auroc>=0.5", "--gate", "faithfulness.recall>=0")
    assert limited.code == 1
    assert "gate failed: faithfulness: auroc is based on 40.0% of the samples" in limited.err
    chosen = ["run", "quickstart", "--judge", "faithfulness", "--model", model_folder]
    chosen += ["--sample", "4", "--balance", "label", "--json"]
    one, two = (call(*chosen, "--seed", seed).data for seed in ("3", "3"))
    judges = [each["judges"]["faithfulness"] for each in (one, two)]
    assert judges[0]["gold"] == {"faithful": 2, "hallucinated": 2}
    assert judges[0]["metrics"] == judges[1]["metrics"]


@pytest.mark.parametrize("bad", ["empty", "unwritable"])
def test_a_run_that_cannot_be_is_refused(bad: str, call: Call, tmp_path: Path) -> None:
    Path("empty.jsonl").touch()
    Path("a file").touch()
    words = ["empty.jsonl"] if bad == "empty" else ["quickstart", "--store", tmp_path / "a file" / "runs.db"]
    done = call("run", *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")


def interrupted(words: list[str], wait: Callable[[], bool], signals: int) -> Done:
    """A run in a process group of its own, like at a terminal, with Ctrl-C once `wait` says so."""
    command = [sys.executable, "-m", "magistrate", *words]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        deadline = time.monotonic() + 60
        while not wait() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        for _ in range(signals):
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.05)
        out, err = process.communicate(timeout=60)
    return Done(process.returncode, out, err)


@pytest.mark.full
@pytest.mark.parametrize(
    ("outcomes", "signals"),
    [
        pytest.param(0, 1, id="loading"),
        pytest.param(2, 1, id="judging"),
        pytest.param(2, 2, id="twice"),
    ],
)
def test_ctrl_c_keeps_what_is_done(
    outcomes: int, signals: int, model_folder: Path, home: Path, tmp_path: Path
) -> None:
    place = tmp_path / "runs.db"

    def begun() -> bool:
        if not place.exists():
            return False
        with Store.open(place) as store:
            return any(each.n_outcomes >= outcomes for each in store.runs())

    words = ["run", "quickstart", "--judge", "faithfulness", "--model", str(model_folder)]
    words += ["--store", str(place), "--concurrency", "2"]
    done = interrupted(words, begun, signals)
    assert done.code == 130
    assert "Traceback" not in done.err
    record = magistrate.Run("last", place).record
    if signals == 1:
        assert record.status == "interrupted", (record, done)
        assert f"stored in run {record.id}" in done.err
        assert f"{record.n_verdicts}/72" in done.out
    assert outcomes <= record.n_outcomes < 72


def test_a_program_that_calls_it_keeps_its_own_ways(call: Call) -> None:
    def ways() -> tuple[object, ...]:
        return warnings.showwarning, signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)

    before = ways()
    assert call("runs").code == 0
    assert call("runs", "--nonsense").code == 2
    assert ways() == before
