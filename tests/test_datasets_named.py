"""The public sets: files in the layout that upstream publishes become samples, bad rows become problems."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from magistrate.datasets import Dataset, describe, load
from magistrate.datasets.named import UpstreamSource, catalogue
from magistrate.errors import DatasetError
from magistrate.types import Span, Turn

DATA_FOLDER = os.environ.get("MAGISTRATE_DATA_DIR")
SAID = "[Human]: Do you like Bern? [Assistant]: I do.\n It is old. [Human]: How old is it? "
TURNS = (
    Turn("user", "Do you like Bern?"),
    Turn("assistant", "I do.\n It is old."),
    Turn("user", "How old is it?"),
)


class Hosts(ThreadingHTTPServer):
    """A stand-in for the git hosting and the hub: the body at each address."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.bodies: dict[str, bytes] = {}


class Answer(BaseHTTPRequestHandler):
    server: Hosts

    def do_GET(self) -> None:
        body = self.server.bodies.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    server = Hosts()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    monkeypatch.setenv("MAGISTRATE_GIT_RAW", f"http://127.0.0.1:{server.server_port}/git")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/hub")
    monkeypatch.setenv("MAGISTRATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("MAGISTRATE_DATA_DIR", raising=False)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def address(name: str, at: int = 0) -> str:
    """Where the stand-in is asked for a file of a named set."""
    known = catalogue()[name]
    if known.host == "hub":
        return f"/hub/datasets/{known.repository}/resolve/{known.revision}/{known.files[at]}"
    return f"/git/{known.repository}/{known.revision}/{known.files[at]}"


def lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def converted(converter: str, *files: bytes, tmp_path: Path, suffix: str = ".jsonl") -> Dataset:
    """What a converter makes of files that upstream publishes."""
    paths = []
    for number, body in enumerate(files):
        path = tmp_path / f"{converter}-{number}{suffix}"
        path.write_bytes(body)
        paths.append(path)
    return Dataset(converter, UpstreamSource(converter, tuple(paths), None))


# --- HaluEval --------------------------------------------------------------------------------------


def dialogue(number: int, **changes: Any) -> dict[str, Any]:
    row = {
        "knowledge": f"knowledge {number}",
        "dialogue_history": SAID,
        "right_response": f"right {number}",
        "hallucinated_response": f"wrong {number}",
    }
    return {**row, **changes}


def test_halueval_dialogues_have_what_was_said_before_as_messages(hosts: Hosts) -> None:
    hosts.bodies[address("halueval-dialogue")] = lines(*(dialogue(n) for n in range(10)))
    dataset = load("halueval-dialogue")
    first, second, *_ = samples = list(dataset)
    # The draws are those of the questions: .639, .025, .275 and above .5 is the hallucinated one.
    assert [s.id for s in samples[:3]] == [
        f"halueval_dialogue-{n}-{x}" for n, x in enumerate(("hall", "right", "right"))
    ]
    assert (first.output, first.context, first.label) == ("wrong 0", ("knowledge 0",), "hallucinated")
    assert (second.output, second.label, second.input) == ("right 1", "faithful", None)
    assert first.messages == TURNS
    assert first.metadata == {"pair": 0, "sampled": True, "dataset": "halueval_dialogue", "task": "dialogue"}
    assert dataset.name == "halueval-dialogue:full"


def test_the_local_file_of_dialogues_reads_as_the_download_does(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gzip

    hosts.bodies[address("halueval-dialogue")] = lines(dialogue(0))
    (fetched,) = load("halueval-dialogue:full")
    row = {"id": fetched.id, "dataset": "halueval_dialogue", "task": "dialogue", "question": SAID}
    row |= {"context": "knowledge 0", "answer": "wrong 0", "label": "hallucinated", "spans": []}
    row |= {"meta": {"pair": 0, "sampled": True}}
    (tmp_path / "halueval_dialogue_dev.jsonl.gz").write_bytes(
        gzip.compress(lines(row, {**row, "question": "no speaker"}))
    )
    monkeypatch.setenv("MAGISTRATE_DATA_DIR", str(tmp_path))
    dataset = load("halueval-dialogue")
    assert list(dataset) == [fetched] and dataset.name == "halueval-dialogue:dev"
    (problem,) = dataset.problems
    assert str(problem).endswith("dev.jsonl.gz:2: question does not start with [Human]: or [Assistant]:")


def test_halueval_summaries(hosts: Hosts) -> None:
    row = {"document": "A long article.", "right_summary": "right", "hallucinated_summary": "wrong"}
    hosts.bodies[address("halueval-summarization")] = lines(row, row, {**row, "document": None})
    dataset = load("halueval-summarization")
    assert [(s.id, s.output, s.label) for s in dataset] == [
        ("halueval_summarization-0-hall", "wrong", "hallucinated"),
        ("halueval_summarization-1-right", "right", "faithful"),
    ]
    assert [s.context for s in dataset] == [("A long article.",)] * 2
    assert [str(p).rpartition("summarization_data.json:")[2] for p in dataset.problems] == [
        "3: document is not a text"
    ]


def test_bad_dialogues_are_problems(tmp_path: Path) -> None:
    rows = [
        dialogue(0),
        dialogue(1, right_response=None),
        dialogue(2, dialogue_history="Hello?"),
        dialogue(3, dialogue_history=None),
    ]
    dataset = converted("halueval_dialogue", lines(*rows), b"", tmp_path=tmp_path)
    assert len(list(dataset)) == 1
    assert [problem.reason for problem in dataset.problems] == [
        "right_response is not a text",
        "question does not start with [Human]: or [Assistant]:",
        "dialogue_history is not a text",
    ]


# --- RAGTruth --------------------------------------------------------------------------------------

SOURCES = [
    {
        "source_id": "1",
        "task_type": "QA",
        "source": "MARCO",
        "source_info": {"question": "how to prepare beets", "passages": "passage 1:Wash.\n\npassage 2:Boil."},
        "prompt": "Briefly answer …",
    },
    {
        "source_id": "2",
        "task_type": "Summary",
        "source": "CNN/DM",
        "source_info": "An article.",
        "prompt": "…",
    },
    {
        "source_id": "3",
        "task_type": "Data2txt",
        "source": "Yelp",
        "source_info": {"name": "Café", "hours": {"Monday": "9-22"}, "attributes": {"WiFi": None}},
        "prompt": "…",
    },
    {"source_id": "4", "task_type": "QA", "source": "MARCO", "source_info": "not an object", "prompt": "…"},
    {"source_id": "5", "task_type": "Poem", "source": "?", "source_info": "x", "prompt": "…"},
]


def mark(start: int, end: int, text: str, **more: Any) -> dict[str, Any]:
    label = {"start": start, "end": end, "text": text, "meta": "LOW INTRO", "label_type": "Evident Conflict"}
    return {**label, "implicit_true": False, "due_to_null": False, **more}


def response(number: int, source: str, **changes: Any) -> dict[str, Any]:
    row = {"id": str(number), "source_id": source, "model": "gpt-4-0613", "temperature": 0.7, "labels": []}
    return {**row, "split": "test", "quality": "good", "response": "Boil the beets.", **changes}


def test_ragtruth_spans_kinds_and_sources(tmp_path: Path) -> None:
    marks = [mark(0, 4, "Boil"), mark(9, 14, "beets", label_type="Subtle Baseless Info", implicit_true=True)]
    answers = [
        response(10, "1", labels=marks),
        response(11, "2", quality="truncated"),
        response(12, "3"),
        response(13, "1", split="train"),
    ]
    dataset = converted("ragtruth_test", lines(*answers), lines(*SOURCES), tmp_path=tmp_path)
    asked, summary, record = dataset
    assert dataset.problems == []
    assert (asked.id, asked.label, asked.input) == ("ragtruth-10", "hallucinated", "how to prepare beets")
    assert asked.spans == (Span(0, 4, "Evident Conflict"), Span(9, 14, "Subtle Baseless Info"))
    assert asked.context == ("passage 1:Wash.\n\npassage 2:Boil.",) and asked.output == "Boil the beets."
    assert asked.metadata["spans"] == marks, "what the annotators said is not lost"
    assert asked.metadata["model"] == "gpt-4-0613" and asked.metadata["task"] == "qa"
    assert (summary.label, summary.spans, summary.context) == ("faithful", (), ("An article.",))
    assert summary.metadata["quality"] == "truncated" and summary.metadata["source"] == "CNN/DM"
    assert record.context == ('{"name": "Café", "hours": {"Monday": "9-22"}, "attributes": {"WiFi": null}}',)
    train = converted("ragtruth_train", lines(*answers), lines(*SOURCES), tmp_path=tmp_path)
    assert [s.id for s in train] == ["ragtruth-13"] and train.digest != dataset.digest


def test_bad_rows_of_ragtruth_are_problems(tmp_path: Path) -> None:
    answers = [
        response(1, "1"),
        response(2, "99"),
        response(3, "1", split="dev"),
        response(4, "1", labels=None),
        response(5, "1", response=None),
        response(6, "4"),
        response(7, "5"),
        response(8, "1", labels=[mark(0, 99, "?")]),
    ]
    dataset = converted(
        "ragtruth_test", lines(*answers) + b"nonsense\n", lines(*SOURCES) + b"{\n", tmp_path=tmp_path
    )
    assert [s.id for s in dataset] == ["ragtruth-1"]
    found = [str(problem).rpartition("/")[2] for problem in dataset.problems]
    assert found[0].startswith("ragtruth_test-1.jsonl:6: not JSON")
    assert found[1:] == [
        "ragtruth_test-0.jsonl:2: no row of the sources has its source_id",
        "ragtruth_test-0.jsonl:3: split is not train or test",
        "ragtruth_test-0.jsonl:4: labels is not a list",
        "ragtruth_test-0.jsonl:5: response is not a text",
        "ragtruth_test-0.jsonl:6: the source_info of its source is not valid for QA",
        "ragtruth_test-0.jsonl:7: the task_type of its source is not one of QA, Summary, Data2txt",
        "ragtruth_test-0.jsonl:8: spans[0] is [0, 99), outside the output's 15 characters",
        found[-1],
    ]
    assert ":9: not JSON" in found[-1]


# --- HaluBench -------------------------------------------------------------------------------------


def test_halubench_from_its_parquet_file(tmp_path: Path) -> None:
    row = {
        "id": "d3fb",
        "passage": "Bern is old.",
        "question": "Is it?",
        "answer": "Yes.",
        "label": "PASS",
        "source_ds": "DROP",
    }
    rows = [row, {**row, "id": "e", "label": "FAIL"}, {**row, "label": "MAYBE"}, {**row, "passage": None}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "made.parquet")
    dataset = converted(
        "halubench", (tmp_path / "made.parquet").read_bytes(), tmp_path=tmp_path, suffix=".parquet"
    )
    first, second = dataset
    assert (first.id, first.input, first.context, first.output) == (
        "halubench-d3fb",
        "Is it?",
        ("Bern is old.",),
        "Yes.",
    )
    assert (first.label, second.label, first.metadata["domain"]) == ("faithful", "hallucinated", "DROP")
    assert [problem.reason for problem in dataset.problems] == [
        "label is not PASS or FAIL",
        "passage is not a text",
    ]


# --- pins ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ragtruth", "halubench"])
def test_what_is_pinned_by_hash_is_refused_when_it_is_something_else(
    hosts: Hosts, tmp_path: Path, name: str
) -> None:
    body = lines(response(1, "1"))
    hosts.bodies[address(name)] = body
    pinned = next(iter(catalogue()[name].sha256.values()))[:12]
    found = hashlib.sha256(body).hexdigest()[:12]
    with pytest.raises(
        DatasetError, match=rf"{name}:test is not installed: .*has sha256 {found}…, but {pinned}… is pinned"
    ):
        load(name)
    assert [path for path in (tmp_path / "home").rglob("*") if path.is_file()] == []


def test_every_entry_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from magistrate.datasets.converters import CONVERTERS

    monkeypatch.delenv("MAGISTRATE_DATA_DIR", raising=False)
    used = {view.upstream for known in catalogue().values() for view in known.views} - {None}
    assert used == set(CONVERTERS)
    for known in catalogue().values():
        assert known.licence and known.description and known.upstream
        assert known.packaged or (len(known.revision) == 40 and known.files and known.views)
        assert set(known.sha256) <= set(known.files)
        assert all(len(each) == 64 for each in known.sha256.values())
    assert {"ragtruth", "halubench", "halueval-dialogue", "halueval-summarization"} <= {
        x.name for x in describe()
    }


@pytest.mark.full
def test_the_real_dialogues_and_summaries_are_drawn_as_the_converters_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids of the local files name the pair and the answer that was taken; so do the converters' ids."""
    row = {"right_summary": "r", "hallucinated_summary": "h", "document": "d"}
    made = {
        "halueval-dialogue": converted(
            "halueval_dialogue", lines(*map(dialogue, range(10_000))), tmp_path=tmp_path
        ),
        "halueval-summarization": converted(
            "halueval_summarization", lines(*[row] * 10_000), tmp_path=tmp_path
        ),
    }
    for name, dataset in made.items():
        ids = {sample.id for sample in dataset}
        assert len(ids) == 10_000 and 4_900 < Counter(id.rpartition("-")[2] for id in ids)["hall"] < 5_100
        if DATA_FOLDER:
            monkeypatch.setenv("MAGISTRATE_DATA_DIR", DATA_FOLDER)
            real = load(name)
            assert {sample.id for sample in real} <= ids and real.problems == []
