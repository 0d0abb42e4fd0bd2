"""Sets of the hub, read from a stand-in that answers as the hub does, and pinned by what they were."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow
import pyarrow.parquet
import pytest

from magistrate.datasets import load
from magistrate.errors import DatasetError, SpecError

COMMIT, CONVERTED = "c" * 40, "d" * 40
CONVERTED_REF = "refs/convert/parquet"


def parquet(*answers: str) -> bytes:
    out = io.BytesIO()
    pyarrow.parquet.write_table(
        pyarrow.table({"answer": list(answers), "context": ["c"] * len(answers)}), out
    )
    return out.getvalue()


class Hub(ThreadingHTTPServer):
    """Repositories by name: for each revision its commit, and the files of each commit."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.revisions: dict[str, dict[str, str]] = {}
        self.files: dict[tuple[str, str], dict[str, bytes]] = {}
        self.asked: list[str] = []
        self.gated: set[str] = set()
        self.changed = False

    def put(self, repo: str, revision: str, commit: str, files: dict[str, bytes]) -> None:
        self.revisions.setdefault(repo, {})[revision] = commit
        self.files[repo, commit] = files


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        hub, path = self.server, unquote(self.path.partition("?")[0])
        hub.asked.append(f"{self.command} {path}")
        if path.startswith("/api/datasets/"):
            return self.info(path.removeprefix("/api/datasets/"))
        repo, _, rest = path.removeprefix("/datasets/").partition("/resolve/")
        commit, _, file = rest.partition("/")
        body = hub.files.get((repo, commit), {}).get(file)
        if body is None:
            return self.say(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        etag = hashlib.sha256(body).hexdigest()
        body = body[::-1] if hub.changed else body
        return self.say(200, body, {"ETag": f'"{etag}"', "X-Repo-Commit": commit})

    def info(self, asked: str) -> None:
        repo, _, revision = asked.partition("/revision/")
        if repo in self.server.gated:
            return self.say(403, b"", {"X-Error-Code": "GatedRepo"})
        if repo not in self.server.revisions:
            return self.say(404, b"", {"X-Error-Code": "RepoNotFound"})
        known = self.server.revisions[repo]
        commit = revision if revision in known.values() else known.get(revision or "main")
        if commit is None:
            return self.say(404, b"", {"X-Error-Code": "RevisionNotFound"})
        files = [{"rfilename": name} for name in self.server.files[repo, commit]]
        data = {"id": repo, "sha": commit, "siblings": files, "private": False, "tags": []}
        return self.say(200, json.dumps(data).encode(), {"Content-Type": "application/json"})

    def say(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("MAGISTRATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_one_file_of_a_set_is_downloaded_once_and_named_by_its_commit(hub: Hub, tmp_path: Path) -> None:
    body = parquet("one", "two")
    hub.put("acme/qa", "main", COMMIT, {"data/test.parquet": body, "README.md": b"#"})
    dataset = load("hf://datasets/acme/qa/data/test.parquet")
    assert [(s.id, s.output, s.context) for s in dataset] == [
        ("test-1", "one", ("c",)),
        ("test-2", "two", ("c",)),
    ]
    assert dataset.name == f"hf://datasets/acme/qa@{COMMIT}/data/test.parquet"
    (kept,) = (path for path in (tmp_path / "home").rglob("test.parquet") if path.is_file())
    assert load(kept).digest == dataset.digest, "the digest is that of the bytes"
    before = list(hub.asked)
    assert all(asked.startswith(("GET", "HEAD")) for asked in before)
    again = load(dataset.name)
    assert list(again) == list(dataset) and (again.name, again.digest) == (dataset.name, dataset.digest)
    assert hub.asked == before, "what is pinned and kept needs no network"


def test_what_a_branch_says_later_is_another_set(hub: Hub) -> None:
    hub.put("acme/qa", "main", COMMIT, {"a.jsonl": b'{"answer": "old"}\n'})
    old = load("hf://datasets/acme/qa@main/a.jsonl")
    hub.put("acme/qa", "main", CONVERTED, {"a.jsonl": b'{"answer": "new"}\n'})
    new = load("hf://datasets/acme/qa/a.jsonl")
    assert [s.output for s in new] == ["new"] and [s.output for s in load(old.name)] == ["old"]
    assert new.name != old.name and new.digest != old.digest


def test_a_whole_split_is_read_from_the_files_that_the_hub_converts(hub: Hub) -> None:
    files = {
        "default/test/0000.parquet": parquet("one"),
        "default/test/0001.parquet": parquet("two", "three"),
    }
    hub.put("acme/qa", CONVERTED_REF, CONVERTED, files)
    dataset = load("hf://acme/qa")
    assert [(s.id, s.output) for s in dataset] == [("qa-1-1", "one"), ("qa-2-1", "two"), ("qa-2-2", "three")]
    assert dataset.name == f"hf://acme/qa@{CONVERTED}:default/test" and dataset.size == 3
    again = load(dataset.name)
    assert (list(again), again.name, again.digest) == (list(dataset), dataset.name, dataset.digest)
    assert [s.output for s in load("hf://datasets/acme/qa", limit=2)] == ["one", "two"]


def test_configurations_and_splits_are_chosen_by_name(hub: Hub) -> None:
    names = ["default/test", "default/train", "extra/test"]
    hub.put("acme/qa", CONVERTED_REF, CONVERTED, {f"{name}/0000.parquet": parquet(name) for name in names})
    for address, wanted in [
        ("hf://acme/qa/test", "default/test"),
        ("hf://acme/qa:default/train", "default/train"),
        ("hf://acme/qa:extra", "extra/test"),
    ]:
        assert [s.output for s in load(address)] == [wanted]
    for address, message in [
        ("hf://acme/qa", r"choose one of test, train: hf://acme/qa:default/SPLIT"),
        (
            "hf://acme/qa/tset",
            r"acme/qa:default has no split 'tset' \(did you mean 'test'\?\); known: test, train",
        ),
        ("hf://acme/qa:other/test", r"acme/qa has no configuration 'other'; known: default, extra"),
    ]:
        with pytest.raises(SpecError, match=message):
            load(address)
    hub.put("acme/two", CONVERTED_REF, CONVERTED, {f"{c}/test/0.parquet": parquet("x") for c in "ab"})
    with pytest.raises(SpecError, match=r"choose one of a, b: hf://acme/two:CONFIG"):
        load("hf://acme/two")


def test_what_the_hub_does_not_give_is_said(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.put("acme/qa", "main", COMMIT, {"data/test.parquet": parquet("one")})
    hub.gated.add("acme/closed")
    for address, error, message in [
        (
            "hf://acme/none",
            DatasetError,
            "has no public data set 'acme/none'; check the name, or set HF_TOKEN",
        ),
        (
            "hf://acme/closed",
            DatasetError,
            "acme/closed is gated: accept its terms on the hub and set HF_TOKEN",
        ),
        (
            "hf://acme/qa",
            DatasetError,
            "has no revision 'refs/convert/parquet' .*give a file: hf://datasets/",
        ),
        (
            "hf://datasets/acme/qa/data/tets.parquet",
            SpecError,
            r"no file 'data/tets\.parquet' \(did you mean",
        ),
        (f"hf://datasets/acme/qa@{COMMIT}/no.parquet", DatasetError, "does not provide the file"),
        ("hf://datasets/acme/qa/notes.docx", SpecError, "unknown file type of 'notes.docx' in acme/qa"),
        (
            "hf://acme",
            SpecError,
            r"cannot read the address 'hf://acme'; known: hf://datasets/OWNER/NAME/path",
        ),
        ("hf://", SpecError, "cannot read the address"),
        ("hf://a b/c\n", SpecError, "cannot"),
    ]:
        with pytest.raises(error, match=message) as caught:
            load(address)
        assert str(caught.value).isprintable()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the hub's client waits between its attempts
    with pytest.raises(
        DatasetError, match=r"cannot download acme/qa from http://127\.0\.0\.1:9: .*check the network"
    ):
        load("hf://acme/qa")
    with pytest.raises(DatasetError):
        load(f"hf://datasets/acme/qa@{COMMIT}/data/test.parquet")


def test_bytes_that_are_not_those_the_hub_announced_are_not_kept(hub: Hub) -> None:
    hub.put("acme/qa", "main", COMMIT, {"a.jsonl": b'{"answer": "one"}\n'})
    hub.changed = True
    with pytest.raises(
        DatasetError, match=r"a\.jsonl of acme/qa differs from what the hub announced; it was deleted"
    ):
        load("hf://datasets/acme/qa/a.jsonl")
    hub.changed = False
    assert [s.output for s in load("hf://datasets/acme/qa/a.jsonl")] == ["one"]


def test_the_client_neither_reports_nor_draws(hub: Hub) -> None:
    hub.put("acme/qa", "main", COMMIT, {"a.jsonl": b'{"answer": "one"}\n'})
    code = """
import os
from magistrate.datasets import load
before = dict(os.environ)
print([s.output for s in load("hf://datasets/acme/qa/a.jsonl")], dict(os.environ) == before)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("['one'] True\n", "")
    assert {asked.split(" ")[1].split("/")[1] for asked in hub.asked} <= {"api", "datasets"}
    assert [asked for asked in hub.asked if "/api/" in asked] == ["GET /api/datasets/acme/qa/revision/main"]
