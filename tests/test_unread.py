"""Rows that cannot be read, labels that say nothing, contexts that are missing: none of it passes unseen."""

from __future__ import annotations

import copy
import csv
import dataclasses
import inspect
import io
import json
import pickle
import pprint
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import magistrate
from magistrate.api.agree import agree
from magistrate.datasets import load
from magistrate.datasets.fields import label_word, parse_labels
from magistrate.errors import DatasetError, MagistrateError, NoVerdict, SpecError
from magistrate.types import Abstention, Failure
from terminal import Call

PLACES = ("Bern", "Rome", "Paris")
SHUT = ("--judge", "novelty", "--new")  # a judge by code: no model is needed


def rows(labels: Sequence[Any], **more: Any) -> list[dict[str, Any]]:
    """Thirty rows whose labels go round."""
    return [
        {
            "answer": f"{PLACES[at % 3]} has {at} bridges.",
            "docs": f"The city of {PLACES[at % 3]} lies at a river and has {at} old bridges and a tower.",
            "label": labels[at % len(labels)],
            **more,
        }
        for at in range(30)
    ]


def written(path: str, lines: Sequence[dict[str, Any]], *, bom: bool = False, crlf: bool = False) -> str:
    """The rows in a file of the kind that its name says."""
    if path.endswith(".parquet"):
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(lines)), path)
        return path
    text = io.StringIO()
    if path.endswith(".csv"):
        table = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(lines)
    else:
        text.write("".join(json.dumps(each) + "\n" for each in lines))
    data = text.getvalue().replace("\n", "\r\n" if crlf else "\n").encode()
    Path(path).write_bytes((b"\xef\xbb\xbf" if bom else b"") + data)
    return path


YES_AND_NO = (("ok", "bad"), ("OK ", "Bad"), ("1", "0"), ("yes", "No"), ("True", "False"), ("a,b", "c=d"))
TYPED = ((1, 0), (True, False), (1.0, 0.0))


def test_labels_that_say_nothing_stop_a_run_and_are_asked_for_in_every_kind_of_file(
    home: Path, call: Call
) -> None:
    """Never guessed: the values that were seen are in the question, and its answer reads every row."""
    wrong = []
    for kind in ("csv", "jsonl", "parquet"):
        for pair in YES_AND_NO + (() if kind == "csv" else TYPED):
            for bom, crlf in ((False, False), (True, True)) if kind != "parquet" else ((False, False),):
                file = written(f"rows.{kind}", rows(pair), bom=bom, crlf=crlf)
                seen = [str(each).strip() for each in pair]
                asked = f"{seen[0]}=MEANING,{seen[1]}=MEANING"
                with pytest.raises(DatasetError) as refused:
                    load(file).check()
                answer = f"{seen[0].upper()}=faithful,{label_word(seen[1])}=hallucinated"
                labels = [each.label for each in load(file, labels=parse_labels(answer))]
                if "none of the 30 rows" not in str(refused.value) or asked not in str(refused.value):
                    wrong.append((kind, pair, str(refused.value)))
                if labels != ["faithful", "hallucinated"] * 15:
                    wrong.append((kind, pair, labels))
    assert not wrong


def test_a_run_and_its_dry_run_are_refused_alike_and_leave_no_run(home: Path, call: Call) -> None:
    file = written("rows.csv", rows(["ok", "bad", *["faithful"] * 8]))  # 6 of 30
    for also in ((), ("--dry-run",)):
        done = call("run", file, *SHUT, "--map", "context=docs", *also)
        assert (done.code, done.out) == (2, "")
        assert "6 of 30 rows of rows could not be read, more than --max-unread 0.1 allows" in done.err
        assert "--labels ok=MEANING,bad=MEANING" in done.err
    assert call("runs").out.startswith("no runs yet")
    meant = ("--labels", "ok=faithful", "--labels", "BAD=unlabelled")
    done = call("run", file, *SHUT, "--map", "context=docs", *meant, "--json")
    (judge,) = done.data["judges"].values()
    assert done.code == 0 and (judge["n_ok"], judge["n_unread"], judge["n_labelled"]) == (30, 0, 27)
    for words, told in (
        ("ok=good", "it must be faithful, hallucinated or unlabelled"),
        ("ok", "write labels as VALUE=MEANING"),
        ("=faithful", "write labels as VALUE=MEANING"),
        ("ok=faithful,OK=hallucinated", "gives two meanings for 'OK'"),
    ):
        done = call("run", file, *SHUT, "--labels", words)
        assert done.code == 2 and told in done.err, done.err


def test_unread_rows_stand_beside_every_figure_and_count_against_coverage(home: Path, call: Call) -> None:
    file = written("rows.csv", rows(["faithful"] * 14 + ["ok"]))  # 2 of 30
    told = "2 of 30 rows could not be read"
    gates = ("--gate", "novelty.coverage>=.98", "--junit", "junit.xml")
    shared = (*SHUT, "--judge", "novelty:name=strict", "--map", "context=docs", *gates)
    done = call("run", file, *shared)
    assert done.code == 1 and "gate failed: novelty: coverage is 0.933" in done.err and told in done.err
    assert done.out.count(told) >= 3, "the head, the counts and the remarks"
    judge = (data := call("show", "last", "--json").data)["judges"]["novelty"]
    assert (judge["n_ok"], judge["n_unread"], data["run"]["unread"]["rows"]) == (28, 2, 30)
    assert judge["coverage"] == pytest.approx(28 / 30)
    facts = {
        each.attrib["name"]: each.attrib["value"] for each in ElementTree.parse("junit.xml").iter("property")
    }
    assert facts["unread rows"].startswith(told)
    call("export", "last", "--to", "report.html")
    assert Path("report.html").read_text().count(told) >= 2
    assert told in call("compare", "last").out
    run = magistrate.evaluate(file, "novelty", mapping={"context": "docs"})
    assert told in run._repr_html_()
    assert told in call("run", file, *SHUT, "--map", "context=docs", "--dry-run").out
    few = call("run", file, *SHUT, "--map", "context=docs", "--max-unread", 0.05)
    assert few.code == 2 and told.replace("rows", "rows of rows") in few.err
    gate = ("--max-unread", 1, "--gate", "accuracy>=0", "--map", "context=docs")
    done = call("run", written("bad.csv", rows(["faithful", "ok", "ok"])), *SHUT, *gate)
    assert done.code == 1 and "accuracy is based on 33.3% of the samples" in done.err, done.err


def test_a_choice_of_rows_counts_what_was_read_to_choose(home: Path) -> None:
    file = written("rows.jsonl", rows(["faithful", "faithful", "faithful", "ok"]))
    with pytest.raises(DatasetError, match=r"7 of 30 rows of rows could not be read.*--labels ok=MEANING"):
        load(file, sample=25, max_unread=0.1).check()
    assert load(file, limit=3).check().n == 0, "the fourth row is not looked at"
    assert load(load(file), limit=20).unread.rows == 0
    again = load(load(file), mapping={"context": "metadata.docs"})
    assert len(list(again)) == 23 and again.unread.n == 7, "what another set could not read is not lost"


def test_a_run_file_python_and_a_stored_set_read_labels_alike(home: Path, call: Call) -> None:
    file = written("rows.csv", rows(["1", "0"]))
    dataset = f"dataset:\n  source: {file}\n  map: {{context: docs}}\n"
    Path("run.yaml").write_text(f"{dataset}  labels: {{1: faithful, 0: hallucinated}}\njudges: novelty\n")
    done = call("run", "--spec", "run.yaml", "--json")
    assert done.code == 0 and next(iter(done.data["judges"].values()))["gold"] == {
        "faithful": 15,
        "hallucinated": 15,
    }
    Path("run.yaml").write_text(f"{dataset}  labels: {{1: good}}\njudges: novelty\n")
    done = call("run", "--spec", "run.yaml")
    assert done.code == 2 and "line 4, dataset.labels" in done.err
    how: Any = {"mapping": {"context": "docs"}, "store": "own.db", "progress": False}
    with pytest.raises(DatasetError, match=r"--labels 1=MEANING,0=MEANING"):
        magistrate.evaluate(file, "novelty", **how)
    labels, half = {True: "faithful", False: "hallucinated"}, {"faithful": 15, "hallucinated": 15}
    known = load(rows([True, False]), labels=labels)
    assert magistrate.evaluate(known, "novelty", **how).summary().judges[0].gold == half
    with pytest.raises(SpecError, match="where rows are read"):
        magistrate.evaluate(known, "novelty", labels=labels, **how)
    for there in (file, load(file), rows([1, 0])):
        run = magistrate.evaluate(there, "novelty", labels={1: "faithful", 0: "hallucinated"}, **how)
        assert run.summary().judges[0].gold == half
    assert call("datasets", "add", file, "--name", "mine").code == 2
    done = call("datasets", "add", file, "--name", "mine", "--labels", "1=faithful,0=hallucinated")
    assert done.code == 0 and call("datasets", "show", "mine", "--json").data["labels"]["faithful"] == 15


def test_people_s_labels_and_training_data_are_refused_alike(home: Path, call: Call) -> None:
    file = written("rows.csv", [{"id": f"s{at}", **each} for at, each in enumerate(rows(["faithful"]))])
    run = call("run", file, *SHUT, "--map", "context=docs", "--json").data["run"]["id"]
    people = written("people.csv", [{"id": f"s{at}", "label": "ok" if at % 2 else "bad"} for at in range(30)])
    for words in (("agree", run, "--with", people), ("train", "stack", "--of", "novelty", "--data", people)):
        done = call(*words)
        assert done.code == 2, done.out
    done = call("agree", run, "--with", people)
    assert "--labels bad=MEANING,ok=MEANING" in done.err
    done = call("agree", run, "--with", people, "--labels", "ok=faithful,bad=hallucinated", "--json")
    assert done.code == 0 and done.data["overall"]["n"] == 30
    with pytest.raises(SpecError, match="--labels needs a file of labels"):
        agree(run, labels={"ok": "faithful"})
    done = call("train", "stack", "--data", written("bad.csv", rows(["ok", "bad"])), "--of", "novelty")
    assert done.code == 2 and "--labels ok=MEANING,bad=MEANING" in done.err
    done = call("audit", "novelty", "--data", "bad.csv", "--map", "context=docs")
    assert done.code == 2 and "--labels ok=MEANING,bad=MEANING" in done.err


def test_no_context_ends_with_3_and_names_the_columns_that_look_like_one(home: Path, call: Call) -> None:
    lines = rows(["faithful"], note="short", team="A")
    for column in ("docs", "page"):
        file = written(
            "rows.csv",
            [{column if name == "docs" else name: v for name, v in each.items()} for each in lines],
        )
        for also in ((), ("--dry-run",)):
            done = call("run", file, *SHUT, *also)
            assert done.code == 3, (column, also, done.out)
            hint = "columns that look like a context: docs; map one: --map context=docs"
            assert (hint if column == "docs" else "no column looks like a context") in done.err
    assert "No verdict on any of 30 samples: 30 abstained" in call("show", "last").out
    long = written("long.csv", [{**each, "docs": None, "page": each["docs"] * 3} for each in lines])
    assert "--map context=page" in call("run", long, *SHUT).err
    done = call("run", "rows.csv", *SHUT, "--judge", "json_valid", "--junit", "junit.xml")
    assert done.code == 3, "one judge of two without a verdict is no success"
    (case,) = [
        each for each in ElementTree.parse("junit.xml").iter("testcase") if "verdict" in each.attrib["name"]
    ]
    assert case.find("error") is not None


def test_one_output_without_a_verdict_ends_with_3(call: Call) -> None:
    assert call("judge", "--output", "Bern has 3 bridges.", "--judge", "novelty").code == 3
    told = ("--context", "Bern has 3 old bridges.", "--judge", "novelty")
    assert call("judge", "--output", "Bern has 3 bridges.", *told).code == 0


def test_blank_cells_are_named_by_row_and_column(home: Path, call: Call) -> None:
    lines = rows(["faithful"])
    lines[4]["docs"], lines[9]["docs"], lines[11]["answer"] = "", "  ", ""
    for kind in ("csv", "jsonl"):
        file = written(f"rows.{kind}", lines)
        done = call("run", file, *SHUT, "--map", "context=docs", "--map", "output=answer")
        first, second, third = (n + 2 if kind == "csv" else n + 1 for n in (4, 9, 11))
        words = " ".join(done.out.split())
        assert f"Column 'docs' (context) is blank in {file}:{first}, {file}:{second}." in words
        if kind == "csv":
            assert f"{file}:{third}: column 'answer' with the output is blank" in done.err


def outcomes() -> list[Any]:
    return [
        Abstention("s1", "j", "no_context", "there is no context"),
        Failure("s1", "j", "engine_error", "the server said no"),
    ]


def test_an_outcome_says_to_its_end_what_to_do() -> None:
    hint = "map one: --map context=docs"
    for length in (10, 90, 300, 5000):
        told = f"there is no context {'x' * length}; {hint}"
        for outcome in (Abstention("s", "j", "no_context", told), Failure("s", "j", "engine_error", told)):
            assert str(outcome).endswith(hint) and "there is no context" in str(outcome)
            assert len(str(outcome)) < 450
            with pytest.raises(NoVerdict, match=hint):
                _ = outcome.label


def test_a_label_is_never_had_of_an_outcome_without_one() -> None:
    for outcome in outcomes():
        for name in ("label", "score", "probability", "claims", "explanation"):
            with pytest.raises(NoVerdict, match=f"there is no {name}: .*{outcome.message}") as caught:
                getattr(outcome, name)
            assert isinstance(caught.value, MagistrateError) and isinstance(caught.value, AttributeError)
            assert not hasattr(outcome, name)
        with pytest.raises(AttributeError, match="has no attribute 'labels'") as other:
            _ = outcome.labels
        assert not isinstance(other.value, NoVerdict)
        # What looks at objects goes on as before.
        assert pickle.loads(pickle.dumps(outcome)) == copy.deepcopy(outcome) == dataclasses.replace(outcome)
        assert "label" not in dataclasses.asdict(outcome) and "label" not in dict(inspect.getmembers(outcome))
        assert outcome.message in pprint.pformat(outcome)
