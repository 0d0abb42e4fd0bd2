"""`magistrate label` and `magistrate labels` on the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from magistrate.store import Store
from magistrate.store.labels import Answer
from terminal import Call

NOW = datetime(2026, 1, 2, tzinfo=UTC)
ROWS = [
    {"id": f"r{at}", "output": f"It closes at {at}.", "context": f"Open until {at % 3}."} for at in range(8)
]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in ROWS))
    return path


@pytest.fixture
def labelled(home: Path, rows: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The usual store with a queue `rows`, of which `ana` has labelled four items; no page is served."""
    monkeypatch.setattr("magistrate.cli.serve.serve_pages", lambda settings, path: served.append(path))
    served: list[str | None] = []
    done = call("label", rows, "--name", "rows", "--double", 1)
    assert (done.code, done.out, served) == (0, "", ["label/rows/next"])
    assert "made queue rows: 8 of 8 samples of rows" in done.err
    place = home / "magistrate.db"
    with Store.open(place) as store:
        for at, label in enumerate(("faithful", "hallucinated", "unsure", "skip")):
            store.labels.add("rows", at, "ana", Answer(label=label), revision=0, now=NOW)
    return place


def test_a_queue_is_made_once_and_opened_again_as_it_is(
    labelled: Path, rows: Path, call: Call, tmp_path: Path
) -> None:
    for words in (("rows",), (rows, "--name", "rows"), ("rows", "--no-open")):
        again = call("label", *words)
        assert again.code == 0 and "opened queue rows: 8 of 8" in again.err
    other = call("label", "rows", "--size", 3)
    assert "cannot be changed; ignored: --size" in other.err
    more = tmp_path / "more.jsonl"
    more.write_text(rows.read_text() + '{"id": "z", "output": "more"}\n')
    for words, message in (
        ((more, "--name", "rows"), "already exists with other samples"),
        ((rows, "--name", "a/b"), "cannot be named"),
        (("nothing-of-this-name",), "nothing-of-this-name"),
        ((rows, "--name", "x", "--policy", "threshold"), "needs verdicts"),
        ((rows, "--name", "x", "--by", "metadata.a"), "--by needs --policy stratified"),
        ((rows, "--name", "x", "--kinds", "a,a"), "different kinds"),
    ):
        wrong = call("label", *words)
        assert wrong.code == 2 and message in wrong.err, words
    assert [each["queue"] for each in json.loads(call("labels", "--json").out)] == ["rows"]


def test_figures_go_out_and_labels_in(labelled: Path, call: Call, tmp_path: Path) -> None:
    assert "rows" in call("labels").out
    shown = call("labels", "show", "rows").out
    assert "hallucinated .50" in shown and "more labels for ±.05" in shown
    assert "2 decided, 0 in conflict, 1 unsure, 5 open" in shown
    assert "no item has the labels of two people yet" in shown
    data = json.loads(call("labels", "show", "rows", "--json").out)
    assert (data["n_decided"], data["n_items"], data["share"]["value"]) == (2, 8, 0.5)
    target = tmp_path / "out.csv"
    assert call("labels", "export", "rows", "--to", target).out == f"4 rows in {target}\n"
    assert call("labels", "export", "rows", "--to", target).code == 2
    again = call("labels", "import", "rows", target)
    assert again.out == "0 labels are new, 4 were already stored\n"
    target.write_text("id,label\nr0,PASS\nwho,PASS\n")
    added = call("labels", "import", "rows", target, "--annotator", "ben")
    assert added.out.startswith("1 labels are new") and "1 that match no item" in added.err
    for words, message in (
        (("show", "rosw"), "near: 'rows'"),
        (("import", "rows", tmp_path / "none.csv"), "none.csv"),
        (("delete", "rows"), "add --yes"),
    ):
        wrong = call("labels", *words)
        assert wrong.code == 2 and message in wrong.err, words
    assert call("labels", "delete", "rows", "--yes").out == "deleted rows\n"
    assert "no queues yet" in call("labels").out


def test_the_bare_share_of_an_active_queue_is_refused_with_the_reason(
    labelled: Path, call: Call, rows: Path
) -> None:
    from furnished import run_of
    from magistrate.types import Sample, Verdict

    samples = [Sample(f"s{at}", f"o{at}", (f"c{at}",)) for at in range(20)]
    said = [Verdict(each.id, "j", "faithful", at / 20) for at, each in enumerate(samples)]
    with Store.open(labelled) as store:
        run_of(store, samples, said, name="judged")
    made = call("label", "judged", "--size", 6)
    assert "made queue judged: 6 of 20 samples of run judged, mixed" in made.err
    refused = call("labels", "show", "judged", "--unweighted")
    assert refused.code == 2 and "more often than others" in refused.err.replace("\n", " ")
    assert call("labels", "show", "judged").code == 0
    assert call("labels", "show", "rows", "--unweighted").code == 0


@pytest.mark.full
def test_the_page_is_served_until_ctrl_c(home: Path, rows: Path) -> None:
    words = [sys.executable, "-m", "magistrate", "label", str(rows), "--no-open"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        page = httpx.get(f"{address}label/rows/next", follow_redirects=True, timeout=60)
        assert page.status_code == 200 and "Item 1" in page.text
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0
