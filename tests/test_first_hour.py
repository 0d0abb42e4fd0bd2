"""What a new user meets in the first hour: mistakes that explain themselves, `init`, `demo`, one screen."""

from __future__ import annotations

import csv
import http.server
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from magistrate._paths import default_store
from magistrate.cli import demo
from magistrate.cli import run as run_command
from magistrate.cli.output import console
from magistrate.errors import EngineError
from magistrate.runs.spec import read_spec
from magistrate.store import Store
from magistrate.types import HALLUCINATED, Claim, Sample, Span, Verdict
from terminal import Call
from tiny_detector import write_detector

HEAD = ["id", "question", "context", "answer", "label"]
ROWS = [
    ["1", "When does it open?", "The museum opens at nine.", "It opens at nine.", "faithful"],
    ["2", "When does it close?", "The museum closes at five.", "It closes at six.", "hallucinated"],
]


def table(
    name: str, head: list[str] = HEAD, rows: list[list[str]] = ROWS, *, by: str = ",", code: str = "utf-8"
) -> None:
    Path(name).parent.mkdir(exist_ok=True)
    with Path(name).open("w", newline="", encoding=code) as file:
        writer = csv.writer(file, delimiter=by)
        writer.writerow(head)
        writer.writerows(rows)


@pytest.fixture
def desk(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of somebody who begins, none of them quite right but good.csv."""
    for name in ("OPENAI_API_KEY", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    table("good.csv")
    table("a folder/my file.csv")
    table("german.csv", ["id", "frage", "quelle", "antwort", "urteil"])
    table("utf16.csv", code="utf-16")
    table("latin.csv", rows=[["1", "q", "Das Café öffnet.", "Es öffnet.", "faithful"]], code="latin-1")
    table("words.csv", rows=[[*row[:4], word] for row, word in zip(ROWS, ("gut", "schlecht"), strict=True)])
    table("bare.csv", ["id", "answer"], [[row[0], row[3]] for row in ROWS])
    Path("empty.csv").touch()
    Path("notes.txt").write_text("hello")
    Path("sheet.xlsx").write_bytes(b"PK\x03\x04" + bytes(100))
    Path("sheet.csv").write_bytes(b"PK\x03\x04" + bytes(100))
    rows = [dict(zip(HEAD, row, strict=True)) for row in ROWS]
    Path("list.jsonl").write_text(json.dumps(rows))
    Path("wrapped.json").write_text(json.dumps({"data": rows}))
    Path("long-wrapped.json").write_text(json.dumps({"data": rows}, indent=1))
    Path("long-list.jsonl").write_text(json.dumps(rows, indent=1))
    Path("broken.jsonl").write_text(f'{json.dumps(rows[0])}\n{{"answer": "x\n{json.dumps(rows[1])}\n')
    Path("open.yaml").write_text("name: tone\nlabels: [a, b\nprompt: x\n")
    Path("tab.yaml").write_text("name: tone\n\tprompt: x\n")
    Path("run.yaml").write_text("dataset:\n\tsource: good.csv\n")
    return home


class Answering(http.server.BaseHTTPRequestHandler):
    """A server that refuses every request with the status that the path begins with."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        body = b'{"error": {"message": "Incorrect API key provided: sk-secret", "code": "invalid_api_key"}}'
        self.send_response(int(self.path.split("/")[1]))
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def refusing() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


ASK = "run good.csv --judge faithfulness --model"

# What is typed, the exit code, and what the message says to do. `{refusing}` is a port of a server that
# refuses every request. A port that is taken is in test_serve.py, a server that is not there in
# test_faults.py, a home that is read-only in test_read_only.py, Ctrl-C, pipes and colours in test_cli.py, a
# pull without network in test_catalog.py, packages that are missing in test_extras.py.
MISTAKES = [
    ("run goood.csv", 2, "did you mean 'good.csv'"),
    ("run 'a folder'", 2, "it holds my file.csv"),
    (r"run 'a folder\my file.csv'", 2, "did you mean 'a folder/my file.csv'"),
    ("run empty.csv", 2, "has no samples"),
    ("run german.csv", 2, "give its column with --map output=COLUMN"),
    ("run utf16.csv", 2, "save it as UTF-8"),
    ("run latin.csv", 2, "the only row of latin cannot be read; .*save the file as UTF-8"),
    ("run sheet.xlsx", 2, "save the sheet as CSV"),
    ("run sheet.csv", 2, "save the sheet as CSV"),
    ("run notes.txt", 2, "supported are .jsonl"),
    ("run words.csv", 2, "--labels gut=MEANING,schlecht=MEANING"),
    ("run bare.csv", 3, "give one with --map context=COLUMN"),
    ("run list.jsonl", 2, "rename it to end in .json"),
    ("run long-list.jsonl", 2, "rename it to end in .json"),
    ("run wrapped.json", 2, "with a list under 'data'; save that list alone"),
    ("run long-wrapped.json", 2, "with a list under 'data'; save that list alone"),
    ("run broken.jsonl", 2, "the first is broken.jsonl:2"),
    (
        "run good.csv --map context=quelle",
        2,
        "no column 'quelle', given by --map; columns: id, question",
    ),
    ("run good.csv --map contxt=context", 2, "did you mean 'context'"),
    ("run good.csv --judge novlty", 2, "did you mean 'novelty'\\?\\); see 'magistrate judges'"),
    ("run good.csv --jugde novelty", 2, "--judge"),
    ("run good.csv --judge novelty --judge novelty", 2, "rename one: --judge novelty:name=OTHER"),
    ("run good.csv --judge novelty:without=spelling", 2, "without summedits, begin, halueval, but not"),
    ("run good.csv --judge novelty:base_rate=2", 2, "a share of hallucinated outputs in \\(0, 1\\)"),
    ("run good.csv --judge novelty:threshold=2", 2, "unknown option 'threshold'.*; known: base_rate"),
    ("run good.csv --judge cascade:first=novelty,low=2", 2, "low and high in \\[0, 1\\]"),
    ("run good.csv --max-unread 2", 2, "0.?<=x<=1"),
    ("run good.csv --judge open.yaml", 2, "open.yaml, line 3"),
    ("run good.csv --judge tab.yaml", 2, "spaces, not with tabs"),
    ("run good.csv --judge nothere.yaml", 2, "cannot read nothere.yaml"),
    ("run --spec run.yaml", 2, "spaces, not with tabs"),
    ("run good.csv --judge faithfulness", 3, "run: magistrate models pull"),
    (f"{ASK} gpt-4o", 2, "see 'magistrate models list'"),
    (f"{ASK} olama:llama3", 2, "did you mean 'ollama'"),
    (f"{ASK} openai:gpt-4o", 2, "set OPENAI_API_KEY"),
    (f"{ASK} openai:gpt-4o --base-url 127.0.0.1:9", 2, "use a form like --base-url http"),
    (
        f"{ASK} openai:gpt-4o --base-url http://127.0.0.1:{{refusing}}/404/v1",
        3,
        "check --model and --base-url",
    ),
    ("run good.csv --gate 'flaged<=0.5'", 2, "did you mean 'flagged'"),
    ("judge --output x", 3, "give the context with --context TEXT"),
    ("show nothere", 2, "see 'magistrate runs'"),
    ("resume nothere", 2, "see 'magistrate runs'"),
    ("export last --to report.doc", 2, "must end in .jsonl"),
    ("init", 2, "magistrate init FILE; here are"),
    ("init german.csv", 2, "say which with --map output=COLUMN"),
    ("init german.csv --map output=antwort", 2, "say which with --map context=COLUMN"),
    ("rnu good.csv", 2, "did you mean 'run'"),
]


def test_a_mistake_ends_in_a_sentence_that_says_what_to_do(call: Call, desk: Path) -> None:
    assert call("run", "a folder/my file.csv", "--name", "first").code == 0, (
        "a name with spaces is no mistake"
    )
    wrong = []
    with refusing() as port:
        for typed, code, says in MISTAKES:
            done = call(*shlex.split(typed.format(refusing=port)))
            told = done.err if code == 2 else done.out + done.err
            short = len(done.err) <= 600 and len(done.err.strip().splitlines()) <= 5
            if done.code != code or not re.search(says, told) or "Traceback" in told or not short:
                wrong.append((typed, done.code, done.err))
    assert wrong == []
    assert call("run", "good.csv", "--name", "first").err.startswith("note: another run is named 'first' too")
    assert "is done; nothing was judged" in call("resume", "last").err
    assert "give an id" in call("show", "first").err


def test_a_wrong_key_is_named_and_not_shown(call: Call, desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with refusing() as port:
        done = call(*f"{ASK} openai:gpt-4o --base-url http://127.0.0.1:{port}/401/v1".split())
    assert done.code == 3 and "set OPENAI_API_KEY to a key" in done.err and "sk-secret" not in done.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no file that is always full")
def test_a_full_disk_is_said(desk: Path) -> None:
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "magistrate", "judges", "novelty"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "No space left on device" in done.stderr


def test_the_report_is_one_screen_at_any_width(
    call: Call, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--judge", "novelty", "--judge", "novelty:name=other", "--judge", "contains:name=third")
    call("run", "good.csv", *words)
    for width in (80, 40):
        monkeypatch.setenv("COLUMNS", str(width))
        done = call("show", "last")
        lines = [line for line in done.out.splitlines() if "magistrate" not in line]  # commands stay whole
        assert max(map(len, lines)) <= width and len(lines) <= 20
        rows = {line.split()[0] for line in lines if "/2" in line}
        assert rows == {"novelty", "other", "third"}, "the judges stand below each other in one table"
        assert done.out.count("remark ") == 1 and "--full" in done.out
    full = call("show", "last", "--full").out
    assert full.count("recipe ") == 3 and "n-gram overlap" in full
    table("bare.csv", ["id", "answer", "context"], [["1", "It opens.", "It opens."]])
    assert "1 sample " in call("run", "bare.csv").out
    assert f"magistrate label {call('runs', '--json').data[0]['id']}" in call("show", "last").out


# --- init and demo --------------------------------------------------------------------------------


def test_init_writes_a_run_file_that_runs_and_replaces_nothing_unasked(call: Call, desk: Path) -> None:
    mapped = ("--map", "output=antwort", "--map", "context=quelle")
    done = call("init", "german.csv", *mapped)
    assert done.code == 0 and "column 'urteil' looks like labels" in done.out
    assert "magistrate label german.csv --map output=antwort" in Path("magistrate.yaml").read_text()
    assert "1 flagged" not in call("run", "--spec", "magistrate.yaml").err
    before = Path("magistrate.yaml").read_bytes()
    again = call("init", "good.csv")
    assert again.code == 2 and "use --force" in again.err and Path("magistrate.yaml").read_bytes() == before
    data = call("init", "german.csv", *mapped, "--map", "label=urteil", "--force", "--json").data
    assert data["gold"] == {"faithful": 1, "hallucinated": 1} and data["columns"]["context"] == "quelle"
    spec, _ = read_spec(Path("magistrate.yaml"))
    assert spec.dataset.map == {"output": "antwort", "context": "quelle", "label": "urteil"}
    ran = call("run", "--spec", "magistrate.yaml", "--json")
    assert ran.code == 0 and ran.data["judges"]["auto"]["n_ok"] == 2 and "gate passed" in ran.err
    workflow = Path(".github/workflows/magistrate.yml").read_text()
    assert "magistrate run --spec magistrate.yaml" in workflow


def test_init_asks_a_person_what_it_cannot_know(
    call: Call, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_command, "somebody_is_there", lambda: True)
    done = call("init", "german.csv", "--no-ci", stdin="antwort\nquelle\ny\n")
    assert done.code == 0 and "1 faithful, 1 hallucinated" in done.out, done
    assert "Which column is the output" in done.err and "column 'urteil'" in done.err
    lines = [json.dumps({"output": "a", "context": "b", "label": label}) for label in (1, 0, False, None)]
    Path("numbers.jsonl").write_text("\n".join(lines))
    done = call("init", "numbers.jsonl", "--no-ci", "--force", stdin="faithful\nhallucinated\nhallucinated\n")
    assert done.code == 0 and "1 faithful" in done.out, done.err
    done = call("init", "words.csv", "--no-ci", "--force", stdin="faithful\nhallucinated\n")
    spec, _ = read_spec(Path("magistrate.yaml"))
    assert spec.dataset.labels == {"gut": "faithful", "schlecht": "hallucinated"}, done
    assert not Path(".github").exists()


def test_the_demonstration_needs_no_model_and_fits_a_screen(call: Call, desk: Path) -> None:
    done = call("demo")
    assert done.code == 0
    assert done.width <= 80 and len(done.out.splitlines()) <= 30
    for what in ("caught", "missed", "false alarm"):
        assert re.search(rf"^{what}  qs-\d+", done.out, re.MULTILINE), done.out
    assert "⟦" in done.out and done.out.count("\nnext  magistrate ") == 3
    sample = re.search(r"show last --sample (\S+)", done.out)
    assert sample is not None and call("show", "last", "--sample", sample[1]).code == 0


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny detector in place of the small one, which takes a while for all samples."""
    made = write_detector(tmp_path / "tiny", (ROWS[0][2],))
    monkeypatch.setattr("magistrate.detectors.folder.SHIPPED", made)
    return made


def test_the_demonstration_pulls_the_embedded_model_if_it_may(
    call: Call, desk: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled = []
    monkeypatch.setattr("magistrate.engines.models.pull", lambda model, _report: pulled.append(model))
    assert call("demo", "--json").code == 0 and not pulled
    assert call("demo", "--pull", "--json").code == 0
    assert pulled == ["smollm2-135m-judge"]


def test_the_demonstration_is_shown_again_while_nothing_changes_and_goes_on_if_it_was_cut_off(
    call: Call, desk: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = call("demo", "--json").data
    assert list(first["judges"]) == ["auto", "novelty"]
    again = call("demo", "--json")
    assert again.data["run"] == first["run"] and first["run"]["id"] in again.err
    with Store.open(default_store()) as store:
        store.reopen_run(first["run"]["id"])
    unfinished = call("demo", "--json")
    assert unfinished.data["run"]["id"] == first["run"]["id"] and "shown again" not in unfinished.err
    another = write_detector(tiny.parent / "another", (ROWS[1][2],))
    monkeypatch.setattr("magistrate.detectors.folder.SHIPPED", another)
    other = call("demo", "--json")
    assert other.data["run"]["id"] != first["run"]["id"], "auto stands for another judge now"
    monkeypatch.setattr("magistrate.detectors.folder.SHIPPED", tiny)
    assert call("demo", "--json").data["run"]["id"] == first["run"]["id"]


def test_the_demonstration_is_judged_anew_if_something_failed(
    call: Call, desk: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise EngineError("gone for now")

    with monkeypatch.context() as patched:
        patched.setattr("magistrate.judges.novelty.Novelty.judge", broken)
        failed = call("demo", "--json").data
    assert failed["judges"]["auto"]["n_ok"] == 0
    again = call("demo", "--json")
    assert "shown again" not in again.err and again.data["judges"]["auto"]["n_ok"] == 72
    assert again.data["run"]["id"] != failed["run"]["id"]


def test_the_demonstration_shows_the_passage_that_contradicts(capsys: pytest.CaptureFixture[str]) -> None:
    context = ("Here.", "The shop is on the east side. It is red.")
    sample = Sample("s", "It is on the west side.", context)
    claim = Claim("contradiction", Span(13, 17), Span(0, 29), context_index=1)
    verdict = Verdict("s", "auto", HALLUCINATED, 0.9, claims=(claim,))
    demo._print_sample("caught", sample, verdict, console())
    shown = capsys.readouterr().out.splitlines()
    assert shown[-2:] == [
        "  It is on the ⟦west⟧ side.",
        "  context: ⟦The shop is on the east side.⟧",
    ]


@pytest.mark.skipif(os.name == "nt", reason="the shells of the completion are those of Unix")
def test_a_shell_completes_commands(home: Path) -> None:
    words = {"COMP_WORDS": "magistrate re", "COMP_CWORD": "1", "_MAGISTRATE_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [sys.executable, "-c", "from magistrate.cli import main; main()"],
        capture_output=True,
        env={**os.environ, **words},
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["plain,resume", "plain,retry"]
