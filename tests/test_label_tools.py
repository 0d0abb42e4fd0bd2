"""Labels go to Label Studio and Argilla and come back as they were, whatever the text is made of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelled import KIND, NOW, OUTPUTS, label, queue_of, said
from magistrate.errors import InputError, SpecError
from magistrate.labels.decisions import findings
from magistrate.labels.files import export, import_labels
from magistrate.labels.tools import FORMS, place
from magistrate.store import Store
from terminal import Call


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "runs.db") as opened:
        yield opened


@pytest.mark.parametrize("form", FORMS)
def test_what_goes_out_comes_back_as_it_was(store: Store, form: Any, tmp_path: Path) -> None:
    queue = queue_of(store, "one")
    label(store, queue)
    target = tmp_path / "labels.json"
    assert export(store, queue, target, form=form) == len(OUTPUTS)
    other = queue_of(store, "other")
    done = import_labels(store, other, target, NOW)
    assert (done.n_new, done.n_known, done.unknown) == (2 * len(OUTPUTS), 0, ())
    assert said(store, other) == said(store, queue)
    assert import_labels(store, other, target, NOW).n_known == 2 * len(OUTPUTS)
    with pytest.raises(SpecError, match="--for label-studio or argilla"):
        export(store, queue, tmp_path / "x.json")
    with pytest.raises(SpecError, match="--for"):
        export(store, queue, tmp_path / "x.csv", form=form)


def test_the_files_have_the_shapes_of_the_tools(store: Store, tmp_path: Path) -> None:
    queue = queue_of(store, "one")
    label(store, queue)
    export(store, queue, tmp_path / "ls.json", form="label-studio")
    for task in json.loads((tmp_path / "ls.json").read_text()):
        text = task["data"]["output"]
        assert type(task["id"]) is int and all(isinstance(each, str) for each in task["data"].values())
        for annotation in task["annotations"]:
            assert set(annotation["completed_by"]) == {"email"}
            for each in annotation["result"]:
                assert {"id", "from_name", "to_name", "type", "value"} == set(each)
                if each["type"] == "labels":
                    value = each["value"]
                    assert text[value["start"] : value["end"]] == value["text"] and value["labels"] == [KIND]
    export(store, queue, tmp_path / "ar.json", form="argilla", gold=True)
    records = json.loads((tmp_path / "ar.json").read_text())
    agreed = [each for each in findings(store, queue) if each.label is not None]
    assert [each["id"] for each in records] == [each.item.sample_id for each in agreed]
    for record in records:
        assert set(record["responses"]) == {"label", "spans"} and record["suggestions"] == {}
        ((one,),) = [record["responses"]["label"]]
        assert one["value"] == "hallucinated" and len(one["user_id"]) == 36


@given(st.text(min_size=1), st.data())
def test_places_are_the_same_in_whatever_they_are_counted(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    units = [sum(1 + (ord(sign) > 0xFFFF) for sign in text[:at]) for at in (start, end)]
    words = text[start:end]
    assert place(text, *units, None, "utf-16") == (start, end)
    assert place(text, start, end, None, "code-points") == (start, end)
    found = place(text, start, end, words)
    assert text[slice(*found)] == words and found == (start, end)
    assert text[slice(*place(text, *units, words))] == words


def test_what_cannot_be_told_or_is_not_there_is_refused(store: Store, tmp_path: Path, call: Call) -> None:
    for arguments, message in (
        (("😀 bc", 2, 4, None), "give the unit with --counting code-points or utf-16"),
        (("abc", 0, 9, None), "outside the output's 3 characters"),
        (("abc", 2, 1, None), r"a span is \[2, 1\)"),
        (("abc", 0, 2, "bc"), "it may belong to another text"),
        (("😀 bc", 1, 3, None, "utf-16"), "outside"),
    ):
        with pytest.raises(InputError, match=message):
            place(*arguments)  # type: ignore[arg-type]
    queue = queue_of(store, "one")
    for row, message in (
        ({"data": {"id": "käse/4"}, "annotations": [{"result": [{"type": "labels"}]}]}, "has no value"),
        ({"data": {"id": "käse/4"}, "annotations": [{"result": [], "completed_by": 3}]}, "has no label"),
        ({"id": "käse/4", "fields": {}, "responses": {"label": [{"value": "hallucinated"}]}}, "annotator's"),
        ({"id": "käse/4", "fields": {}, "responses": {"label": 3}}, "is not a list"),
        ({"id": "käse/4", "fields": {}, "responses": {"spans": [{"value": [3]}]}}, "not a list of objects"),
        ({"data": {"id": "käse/4"}, "annotations": [3]}, "not a list of objects"),
    ):
        path = tmp_path / "wrong.json"
        path.write_text(json.dumps([row]))
        with pytest.raises(InputError, match=message):
            import_labels(store, queue, path, NOW)
    assert store.labels.labels("one") == []
    # A number is who it was; a task that nobody has done says nothing.
    row = {"type": "choices", "from_name": "label", "value": {"choices": ["faithful"]}}
    tasks = [
        {"data": {"id": "käse/4"}, "annotations": [{"completed_by": 3, "result": [row]}]},
        {"data": {"id": "käse/3"}, "annotations": []},
    ]
    path.write_text(json.dumps(tasks))
    assert import_labels(store, queue, path, NOW).n_new == 1
    assert [(each.annotator, each.label) for each in store.labels.labels("one")] == [("user 3", "faithful")]
