"""`magistrate datasets` as a person and a script meet it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from magistrate.datasets import load
from magistrate.datasets.dataset import FieldFacts, overview
from magistrate.store import Store
from magistrate.types import Recipe, Sample, Turn
from terminal import Call

ROWS = [
    {
        "id": "a",
        "question": "Where?",
        "answer": "In Bern.",
        "context": "Bern is old.",
        "label": "PASS",
        "n": 1,
    },
    {"id": "b", "question": "Who?", "answer": "Ada", "context": ["Ada was", "there."], "label": "FAIL"},
    {"id": "c", "answer": "nobody knows", "label": "PASS"},
]


@pytest.fixture
def call(call: Call) -> Call:
    """`magistrate datasets`, where a file of samples lies."""
    write("answers.jsonl", ROWS)
    return lambda *words, **given: call("datasets", *words, **given)


def write(name: str, rows: list[dict[str, Any]]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_data_is_added_once_and_changes_make_versions(call: Call) -> None:
    assert call("add", "answers.jsonl", "--name", "refunds").out == "stored 3 samples as refunds@1\n"
    assert (
        call("add", "answers.jsonl", "--name", "refunds").out
        == "refunds@1 already holds the same 3 samples\n"
    )
    done = call("add", "answers.jsonl", "--name", "refunds", "--limit", 1, "--json")
    assert done.code == 0 and done.data["new"] is True and done.data["ref"] == "refunds@2"
    assert done.data["source"] == "answers.jsonl limit=1" and done.data["problems"] == []
    again = call("add", "answers.jsonl", "--name", "refunds")
    assert again.out == "refunds@1 already holds the same 3 samples; the newest version is refunds@2\n"
    assert call("add", "refunds@1", "--name", "copy", "--limit", 2).out == "stored 2 samples as copy@1\n"
    copied = call("show", "copy", "--json").data
    assert copied["source"] == "refunds@1 limit=2" and [s["id"] for s in copied["first"]] == ["a", "b"]


def test_standard_input_columns_and_views_are_taken_as_run_does(call: Call) -> None:
    line = json.dumps({"said": "x", "docs": "y"})
    done = call("add", "-", "--name", "piped", "--map", "output=said", "--map", "context=docs", stdin=line)
    assert (done.code, done.out) == (0, "stored 1 sample as piped@1\n")
    data = call("show", "piped", "--json").data
    assert data["source"] == "stdin output=said context=docs" and data["first"][0]["context"] == ["y"]
    done = call("add", "quickstart", "--name", "mine", "--sample", 4, "--balance", "label", "--seed", 2)
    assert done.out == "stored 4 samples as mine@1\n"
    assert call("show", "mine", "--json").data["labels"] == {"hallucinated": 2, "faithful": 2}
    refused = call("add", "mine", "--name", "other", "--view", "dev")
    assert refused.code == 2 and "'mine' is a stored set, which has no views" in refused.err


def test_bad_rows_are_told_and_nothing_is_never_added(call: Call, home: Path) -> None:
    write("mixed.jsonl", [*ROWS, *[{"question": f"\x1b[2J {n}"} for n in range(12)]])
    refused = call("add", "mixed.jsonl", "--name", "mixed")
    assert refused.code == 2 and "12 of 15 rows of mixed could not be read" in refused.err
    write("one.jsonl", [*(ROWS * 10), {"question": "no output"}])
    one = call("add", "one.jsonl", "--name", "one")  # a share that a run takes, and counts
    assert one.code == 2 and "1 of 31 rows of one could not be read" in one.err
    assert call("add", "one.jsonl", "--name", "one", "--max-unread", 0.1).code == 0
    done = call("add", "mixed.jsonl", "--name", "mixed", "--max-unread", 1)
    assert done.out == "stored 3 samples as mixed@1\n"
    assert done.err.count("left out mixed.jsonl:") == 10 and "… and 2 more rows" in done.err
    assert "\x1b" not in done.err
    for word, message in [
        ("none.jsonl", "no file 'none.jsonl'"),
        ("bad.jsonl", "the only row of bad cannot be read"),
        ("empty.jsonl", "has no samples"),
        ("nothing", "unknown dataset 'nothing'.*; stored: mixed"),
    ]:
        write("bad.jsonl", [{"question": "?"}])
        write("empty.jsonl", [])
        refused = call("add", word, "--name", "x")
        assert refused.code == 2 and re.search(message, refused.err), refused.err
    assert [each["name"] for each in call("--json").data if each["where"] == "in the store"] == [
        "mixed@1",
        "one@1",
    ]
    for name in ("quickstart", "a/b", "x.jsonl", "", "a@1"):
        refused = call("add", "answers.jsonl", "--name", name)
        assert refused.code == 2 and "a data set cannot be named" in refused.err


def test_a_wrong_name_makes_no_store(call: Call, home: Path) -> None:
    assert call("add", "answers.jsonl", "--name", "a/b").code == 2
    assert call("add", "none.jsonl", "--name", "a").code == 2
    assert call().code == call("list", "--json").code == 0
    assert call("show", "nothing").code == 2
    assert not home.exists()


def test_public_and_stored_sets_are_listed_together(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    call("add", "answers.jsonl", "--name", "refunds")
    call("add", "answers.jsonl", "--name", "refunds", "--limit", 2)
    listed = {each["name"]: each for each in call("list", "--json").data}
    assert {"quickstart", "ragtruth", "halubench", "halueval-dialogue", "refunds@1", "refunds@2"} <= set(
        listed
    )
    assert listed["refunds@2"]["rows"] == 2 and len(listed["refunds@2"]["digest"]) == 64
    assert call("--json").data == call("list", "--json").data
    out = call().out
    assert max(map(len, out.splitlines())) <= 80
    for name in listed:
        assert any(line.startswith(name) for line in out.splitlines())
    elsewhere = call("--store", "no.db")
    assert elsewhere.code == 2 and "no.db" in elsewhere.err and not Path("no.db").exists()


def test_a_set_is_shown_with_its_figures_and_its_runs(call: Call, home: Path) -> None:
    call("add", "answers.jsonl", "--name", "refunds")
    with Store.open(home / "magistrate.db") as store:
        run = store.create_run(
            dataset="refunds@1",
            dataset_digest="d",
            dataset_version="refunds@1",
            model="tiny",
            engine_fingerprint="f",
            recipes={"j": Recipe("j", "tiny", "f", "j@1", "choice", 0, 1, "0.1.0")},
            name="nightly",
        )
    out = call("show", "refunds").out
    assert out.startswith("refunds@1: 3 samples\nadded 20") and "from answers.jsonl; sha256 " in out
    assert "labels: faithful 2, hallucinated 1\nmetadata: n\n" in out
    assert [line.split() for line in out.splitlines() if line.startswith(("input", "context", "spans"))] == [
        ["input", "2", "5"],
        ["context", "2", "12.5"],
    ]
    assert f"judged by: {run} (nightly) running" in out
    data = call("show", "refunds@1", "--json").data
    assert (
        data["runs"] == [run]
        and data["n_samples"] == 3
        and data["labels"] == {"faithful": 2, "hallucinated": 1}
    )
    assert data["fields"]["output"] == {"present": 3, "median_characters": 8}
    refused = call("delete", "refunds", "--yes")
    assert (
        refused.code == 2
        and f"was judged by run {run}; delete these runs first, or use --force" in refused.err
    )
    assert call("delete", "refunds", "--yes", "--force").out == "deleted refunds@1\n"


def test_any_other_data_can_be_shown(call: Call, home: Path) -> None:
    assert call("show", "answers.jsonl").out.startswith("answers.jsonl: 3 samples\nlabels: faithful 2")
    assert call("show", "quickstart", "--json").data["n_samples"] == 72
    write("hostile.jsonl", [{"id": "\x1b[2J", "answer": "\x1b]0;x\x07 [bold]", "label": "FAIL"}])
    out = call("show", "hostile.jsonl").out
    assert "\x1b" not in out and "[bold]" in out
    assert not home.exists()


def test_differences_are_counted_and_the_first_are_listed(call: Call) -> None:
    call("add", "answers.jsonl", "--name", "refunds")
    write("new.jsonl", [{**ROWS[0], "label": "FAIL", "n": 2}, ROWS[1], {"id": "d", "answer": "new"}])
    done = call("diff", "refunds", "new.jsonl")
    assert (done.code, done.out) == (
        0,
        "1 added, 1 removed, 1 changed, 1 the same\n+ d\n- c\n~ a: label, metadata\n",
    )
    data = call("diff", "refunds@1", "new.jsonl", "--json").data
    assert data == {"added": ["d"], "removed": ["c"], "changed": {"a": ["label", "metadata"]}, "n_same": 1}
    many = call("diff", "refunds", "quickstart").out.splitlines()
    assert many[0] == "72 added, 3 removed, 0 changed, 0 the same" and len(many) == 22
    assert many[-1] == "… and 55 more; --json has all"
    assert call("diff", "refunds", "refunds@1").out == "0 added, 0 removed, 0 changed, 3 the same\n"
    for words, message in [
        (("refunds@7", "refunds"), "data set 'refunds' has no version 7; it has 1"),
        (("refunds", "refnds"), "unknown dataset 'refnds'"),
    ]:
        refused = call("diff", *words)
        assert refused.code == 2 and message in refused.err and "Traceback" not in refused.err


def test_rows_without_ids_are_compared_by_what_they_hold_and_not_by_their_lines(call: Call) -> None:
    rows: list[dict[str, Any]] = [
        {"question": f"q{n}", "context": f"c{n % 2}", "answer": f"a{n}", "label": "PASS"} for n in range(6)
    ]
    write("before.jsonl", rows)
    write("moved.jsonl", [{"answer": "new", "context": "other"}, *rows[::-1]])
    done = call("diff", "before.jsonl", "moved.jsonl")
    assert (done.code, done.out) == (0, "1 added, 0 removed, 0 changed, 6 the same\n+ moved-1\n")
    changed = [rows[5], {**rows[0], "answer": "b0"}, {**rows[1], "label": "FAIL"}, rows[2], rows[2]]
    changed.append({**rows[3], "question": "other", "context": "other"})
    write("changed.jsonl", changed)
    data = call("diff", "before.jsonl", "changed.jsonl", "--json").data
    assert data == {
        "added": ["changed-5"],
        "removed": ["before-5"],
        "changed": {"before-1": ["output"], "before-2": ["label"], "before-4": ["context", "input"]},
        "n_same": 2,
    }
    call("add", "before.jsonl", "--name", "kept")
    write("before.jsonl", rows[1:])
    done = call("diff", "kept", "before.jsonl")
    assert done.out == "0 added, 1 removed, 0 changed, 5 the same\n- before-1\n"


def test_deleting_asks_first_and_needs_a_person_or_yes(call: Call) -> None:
    call("add", "answers.jsonl", "--name", "refunds")
    call("add", "answers.jsonl", "--name", "refunds", "--limit", 1)
    refused = call("delete", "refunds")
    assert refused.code == 2 and "to delete refunds@1, refunds@2, add --yes" in refused.err
    assert call("delete", "refunds@1", "--yes").out == "deleted refunds@1\n"
    assert [each["ref"] for each in call("delete", "refunds", "--yes", "--json").data] == ["refunds@2"]
    gone = call("delete", "refunds", "--yes")
    assert gone.code == 2 and "unknown data set 'refunds'; there are none yet" in gone.err


def test_an_overview_counts_what_is_there() -> None:
    found = overview(
        [
            Sample("a", "1234", ("12", "3"), messages=(Turn("user", "12345"),), metadata={"x": 1}),
            Sample("b", "", label="faithful", alternatives=("1", "22")),
            Sample("c", None, input="?"),
        ],
        first=1,
    )
    assert found.n_samples == 3 and [sample.id for sample in found.first] == ["a"]
    assert found.labels == {"faithful": 1} and found.metadata == {"x": 1}
    assert found.fields == {
        "input": FieldFacts(1, 1.0),
        "context": FieldFacts(1, 3.0),
        "messages": FieldFacts(1, 5.0),
        "output": FieldFacts(2, 2.0),
        "alternatives": FieldFacts(1, 3.0),
        "label": FieldFacts(1, None),
        "metadata": FieldFacts(1, None),
    }
    assert overview(iter(load("quickstart"))).n_samples == 72
