"""Label files for Label Studio, held against its own package: what it takes, and what it makes itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from label_studio_sdk.converter import Converter
from label_studio_sdk.label_interface import LabelInterface
from label_studio_sdk.label_interface.objects import AnnotationValue

from labelled import KIND, NOW, OUTPUTS, label, queue_of, said
from magistrate.labels.files import export, import_labels
from magistrate.store import Store
from magistrate.types import Span

DOCS = Path(__file__).parents[2] / "docs" / "labels.md"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "runs.db") as opened:
        yield opened


@pytest.fixture
def interface() -> LabelInterface:
    """The labelling configuration that the docs give."""
    found = re.search(r"<View>.*?</View>", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    made = LabelInterface(found.group())
    made.validate()
    return made


def exported(store: Store, path: Path) -> list[dict[str, Any]]:
    queue = queue_of(store, "one")
    label(store, queue)
    export(store, queue, path, form="label-studio")
    read: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return read


def test_every_annotation_fits_the_configuration_of_the_docs(
    store: Store, interface: LabelInterface, tmp_path: Path
) -> None:
    found = []
    for task in exported(store, tmp_path / "tasks.json"):
        assert interface.validate_task({"data": task["data"]})
        for annotation in task["annotations"]:
            # A prediction has the same regions, and for it the package says what is wrong.
            found += interface.validate_prediction({"result": annotation["result"]}, return_errors=True)
            AnnotationValue.model_validate({**annotation, "completed_by": 1})  # as the server numbers people
    assert found == []


def test_its_own_converter_reads_the_file(store: Store, interface: LabelInterface, tmp_path: Path) -> None:
    tasks = exported(store, tmp_path / "tasks.json")
    Converter(interface.config, None).convert_to_json_min(str(tmp_path), str(tmp_path / "out"), is_dir=True)
    read = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))
    kept = [each for task in tasks for each in task["annotations"] if not each["was_cancelled"]]
    assert len(read) == len(kept) > len(OUTPUTS)
    for row in read:
        assert row["label"] in ("faithful", "hallucinated", "unsure")
        for span in row.get("spans", ()):
            assert row["output"][span["start"] : span["end"]] == span["text"] and span["labels"] == [KIND]


def test_annotations_that_the_package_makes_are_imported(
    store: Store, interface: LabelInterface, tmp_path: Path
) -> None:
    queue = queue_of(store, "one")
    regions = interface.create_regions({"label": "hallucinated", "note": ["why"]})
    made = [json.loads(region.model_dump_json()) for region in regions]
    results = [
        {"id": each["id"], "from_name": each["from_tag"]["name"], "to_name": each["to_tag"]["name"]}
        | {"type": each["from_tag"]["tag"].lower(), "value": each["value"]}
        for each in made
    ]
    value = {"start": 0, "end": 5.0, "text": "plain", "labels": [KIND]}  # the package has `end: float`
    results.append({"from_name": "spans", "to_name": "output", "type": "labels", "value": value})
    annotation = AnnotationValue(completed_by=7, result=results).model_dump(mode="json")
    task = {"id": 4, "data": {"id": "käse/4", "output": "plain"}, "annotations": [annotation]}
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps([task]), encoding="utf-8")
    assert import_labels(store, queue, path, NOW).n_new == 1
    assert said(store, queue) == [("käse/4", "user 7", "hallucinated", (Span(0, 5, KIND),), "why")]
