"""Label files for Argilla, held against its own package: it reads them, and writes what is read again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import argilla
import pytest

from labelled import NOW, OUTPUTS, label, queue_of, said
from magistrate.labels.files import export, import_labels
from magistrate.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "runs.db") as opened:
        yield opened


def test_records_go_through_the_package_unchanged_and_count_as_submitted(
    store: Store, tmp_path: Path
) -> None:
    queue = queue_of(store, "one")
    label(store, queue)
    export(store, queue, tmp_path / "records.json", form="argilla")
    rows = json.loads((tmp_path / "records.json").read_text(encoding="utf-8"))
    records = [argilla.Record.from_dict(row) for row in rows]  # what `dataset.records.from_json` does
    assert len(records) == len(OUTPUTS)
    for record in records:
        states = {each.user_id: set[str]() for each in record.responses}
        for each in record.responses:
            states[each.user_id].add(each.status.value)
            if each.question_name == "label":
                assert each.status.value == ("discarded" if each.value == "skip" else "submitted")
            if each.question_name == "spans":
                text = record.fields["output"]
                assert all(text[span["start"] : span["end"]] == span["text"] for span in each.value)
        assert all(len(found) == 1 for found in states.values()), "a user's responses have one state"
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps([record.to_dict() for record in records]), encoding="utf-8")
    other = queue_of(store, "other")
    assert import_labels(store, other, path, NOW).n_new == 2 * len(OUTPUTS)
    assert said(store, other) == said(store, queue)
