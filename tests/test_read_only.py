"""A store in a place that cannot be written, not even by root: it is read, and writing says why not."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from magistrate.store import Store
from magistrate.store.sqlite import reading_only
from privileges import unprivileged
from reported import outcomes_of, samples_of, stored

# A mount of one's own, read-only: it refuses root as well, and nobody else sees it.
MOUNTED = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
CALLS = """
import contextlib, io, json, sys
from magistrate.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["magistrate", *words]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def called(folder: Path, *calls: tuple[object, ...]) -> list[tuple[int, str, str]]:
    """What these commands print while `folder` is mounted read-only."""
    words = json.dumps([[str(word) for word in each] for each in calls])
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", MOUNTED, "sh", folder, sys.executable, "-c", CALLS, words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MAGISTRATE_HOME": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def mounts() -> bool:
    """Whether this process may make mounts of its own."""
    if not sys.platform.startswith("linux") or shutil.which("unshare") is None:
        return False
    tried = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" "$0"', "/tmp"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "kept"
    folder.mkdir()
    samples = samples_of(20)
    stored(folder, samples, outcomes_of(samples), name="first")
    stored(folder, samples, outcomes_of(samples), name="second")
    return folder


@pytest.mark.skipif(not mounts(), reason="no mount of one's own may be made here")
def test_every_command_that_reads_works_on_a_read_only_file_system(folder: Path, tmp_path: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    store, out = folder / "runs.db", tmp_path / "out"
    out.mkdir()
    reading: list[tuple[object, ...]] = [
        ("show", "first", "--store", store),
        ("show", "first", "--sample", "bridge-003", "--store", store),
        ("runs", "--store", store),
        ("export", "first", "--to", out / "o.csv", "--store", store),
        ("export", "first", "--to", out / "o.html", "--store", store),
        ("agree", "first", "--store", store),
        ("compare", "first", "second", "--store", store),
        ("datasets", "list", "--store", store),
        ("judges",),
        ("check", '"x"'),
    ]
    writing: list[tuple[object, ...]] = [
        ("runs", "rename", "first", "other", "--store", store),
        ("runs", "delete", "first", "--yes", "--store", store),
    ]
    done = called(folder, *reading, *writing)
    wrong = [(words, *each) for words, each in zip(reading, done, strict=False) if each[0] != 0]
    assert not wrong
    assert len(list(out.iterdir())) == 2 and "20" in done[0][1]
    for words, (code, _, err) in zip(writing, done[len(reading) :], strict=True):
        assert code == 2 and "read-only" in err and "Traceback" not in err, (words, code, err)
    assert {path.name for path in folder.iterdir()} == names


@pytest.mark.full
@pytest.mark.skipif(not mounts(), reason="no mount of one's own may be made here")
def test_what_is_still_in_the_log_is_read_or_its_loss_is_said(folder: Path) -> None:
    store = folder / "runs.db"
    with closing(sqlite3.connect(store)) as writer:
        writer.execute("UPDATE runs SET name = 'third' WHERE name = 'second'")
        writer.commit()
        assert (folder / "runs.db-wal").stat().st_size
        (done,) = called(folder, ("runs", "--store", store))
        assert done[0] == 0 and "third" in done[1], done
        shutil.copy(folder / "runs.db-wal", folder / "wal")
        early = folder / "early.db"
        shutil.copy(store, early)
    (folder / "wal").rename(folder / "early.db-wal")  # and no early.db-shm
    (done,) = called(folder, ("runs", "--store", early))
    assert done[0] == 2 and "early.db-wal" in done[2], done


@pytest.mark.full
@pytest.mark.skipif(not mounts(), reason="no mount of one's own may be made here")
def test_an_older_store_that_cannot_be_upgraded_says_what_to_do(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "runs.db")) as writer:
        writer.execute("DELETE FROM schema_version WHERE version = (SELECT max(version) FROM schema_version)")
        writer.commit()
    (folder / "empty.db").touch()
    for name in ("runs.db", "empty.db"):
        ((code, _, err),) = called(folder, ("runs", "--store", folder / name))
        assert code == 2 and "read-only; copy it to a writable folder" in err, err


@pytest.mark.skipif(not mounts(), reason="no mount of one's own may be made here")
def test_a_run_that_was_killed_is_told_from_one_at_work(folder: Path) -> None:
    store = folder / "runs.db"
    with Store.open(store) as opened:
        runs = {record.name: record.id for record in opened.runs()}
        with closing(sqlite3.connect(store)) as writer:
            writer.execute("UPDATE runs SET status = 'running'")
            writer.commit()
        (folder / f"runs.db-{runs['first']}.lock").touch()  # what a killed process leaves
        with opened.hold(runs["second"]):
            (done,) = called(folder, ("runs", "--json", "--store", store))
    found = {each["name"]: each["status"] for each in json.loads(done[1])}
    assert found == {"first": "killed", "second": "running"}, done


def test_somebody_without_the_right_to_write_reads(folder: Path) -> None:
    """Where no mount can be made: by the rights of files."""
    (store := folder / "runs.db").chmod(0o444)
    for above in (folder, *folder.parents):
        if above.stat().st_uid == os.geteuid():
            above.chmod(above.stat().st_mode | 0o055)
    folder.chmod(0o555)
    try:
        with unprivileged():
            assert reading_only(store) == "mode=ro&immutable=1"
            with Store.open(store) as opened:
                assert len(opened.runs()) == 2
                assert not opened.held(opened.find_run("first").id)
    finally:
        folder.chmod(0o755)
