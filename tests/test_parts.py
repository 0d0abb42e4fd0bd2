"""Folders of Parquet, patterns and URLs are one data set each, in the order of their names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pytest
from pyarrow import parquet

from magistrate.datasets import load
from magistrate.errors import DatasetError, MissingExtra, SpecError


def write(path: Path, *outputs: str | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = pyarrow.schema([("output", pyarrow.string()), ("context", pyarrow.string())])
    rows = [{"output": each, "context": "It is so."} for each in outputs]
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema), path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "answers"
    write(made / "part-1.parquet", "c", None)
    write(made / "part-0.parquet", "a", "b")
    write(made / "team=red%20one" / "part-0.parquet", "d")
    write(made / "_temporary" / "part-9.parquet", "left over")
    (made / "_SUCCESS").write_text("")
    (made / "manifest.json").write_text("{}")
    return made


def outputs(source: Any) -> list[str | None]:
    return [each.output for each in load(source)]


def test_a_folder_of_parquet_and_a_pattern_are_data_sets(folder: Path) -> None:
    found = load(folder)
    samples = list(found)
    assert (found.name, found.size) == ("answers", 4) and load(folder).size == 5
    assert [each.output for each in samples] == ["a", "b", "c", "d"]
    assert [each.id for each in samples] == ["part-0-1", "part-0-2", "part-1-1", "part-0-1~2"]
    assert samples[3].metadata == {"team": "red one"} and not samples[0].metadata
    (problem,) = found.problems
    assert Path(problem.file).name == "part-1.parquet row 2" and "output" in problem.reason
    assert outputs(str(folder / "part-*.parquet")) == ["a", "b", "c"]
    assert outputs(str(folder / "*" / "*.parquet")) == ["d"]
    before = found.digest
    assert load(folder).digest == before == load(folder.rename(folder.parent / "moved")).digest
    write(folder.parent / "moved" / "part-2.parquet", "e")
    assert load(folder.parent / "moved").digest != before
    (folder.parent / "rows-1.jsonl").write_text('{"output": "x"}\n')
    (folder.parent / "rows-2.csv").write_text("output\ny\n")
    assert outputs(str(folder.parent / "rows-[12].*")) == ["x", "y"]
    with pytest.raises(SpecError, match="no file matches"):
        load(str(folder.parent / "none-*.jsonl"))


def test_a_url_is_read_by_fsspec_and_a_change_is_noticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(folder), "/bucket/answers", recursive=True)
    try:
        for url in ("memory://bucket/answers", "memory://bucket/answers/"):
            assert outputs(url) == ["a", "b", "c", "d"]
        assert [each.metadata for each in load("memory://bucket/answers")][3] == {"team": "red one"}
        assert outputs("memory://bucket/answers/part-*.parquet") == ["a", "b", "c"]
        assert outputs("memory://bucket/answers/part-1.parquet") == ["c"]
        assert outputs(f"file://{folder}") == ["a", "b", "c", "d"]
        found = load("memory://bucket/answers")
        assert load("memory://bucket/answers").digest == found.digest
        memory.pipe("/bucket/answers/part-0.parquet", b"something else")
        assert load("memory://bucket/answers").digest != found.digest
        with pytest.raises(DatasetError, match=r"memory:///bucket/answers/part-0.parquet has changed"):
            list(found)
        with pytest.raises(DatasetError, match=r"part-0.parquet is not valid Parquet"):
            list(load("memory://bucket/answers"))
        for url in ("memory://bucket/none", "memory://bucket/none-*.parquet"):
            with pytest.raises(SpecError, match="no file"):
                load(url)
        memory.pipe("/bucket/rows.xyz", b"")
        with pytest.raises(SpecError, match="unknown file type"):
            load("memory://bucket/rows.xyz")
    finally:
        memory.rm("/bucket", recursive=True)
    for url in ("s3://key:secret@bucket/rows", "https://host/rows.parquet?token=secret"):
        with pytest.raises(SpecError, match="must not contain") as told:
            load(url)
        assert "secret" not in str(told.value)
    with pytest.raises(SpecError, match="nosuch:// cannot be read"):
        load("nosuch://bucket/rows")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtra, match=r"pip install 'magistrate\[fsspec\]'"):
        load("s3://bucket/rows")
