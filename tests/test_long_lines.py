"""Lines, cells and files of samples that are too long to be held: named, passed over, and never held."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from magistrate import datasets
from magistrate.datasets.samples import opened_cell
from magistrate.errors import DatasetError

GOOD = '{"output": "a", "context": "b"}\n'
SIZE = 300 << 20


def written(path: Path, pieces: Iterator[bytes] | list[bytes]) -> Path:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for piece in pieces:
            file.write(piece)
    return path


def long(begin: bytes, end: bytes) -> list[bytes]:
    return [begin, *[b"x" * (1 << 20)] * (SIZE >> 20), end]


@pytest.mark.full
def test_a_long_line_in_a_small_packed_file_is_a_row_that_cannot_be_read(tmp_path: Path) -> None:
    good = GOOD.encode()
    files = {
        "line.jsonl.gz": [good, *long(b'{"output": "', b'"}\n'), good],
        "cell.csv.gz": [b"output,context\na,b\n", *long(b'"', b'",b\n'), b"c,d\n"],
        "bare.csv.gz": [b"output,context\na,b\n", *long(b"", b"\n"), b"c,d\n"],
        "only.csv.gz": [b"output\na\n", *long(b"", b"\n"), b"c\n"],
    }
    for name, pieces in files.items():
        written(tmp_path / name, pieces)
    code = (
        "import resource, sys\n"
        "from magistrate import datasets\n"
        "list(datasets.load(sys.argv[1]))\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20),) * 2)\n"
        "for name in sys.argv[2:]:\n"
        "    found = datasets.load(name)\n"
        "    rows = [sample.output for sample in found]\n"
        "    print(name, rows, [(p.line, p.reason) for p in found.problems], found.size)\n"
    )
    warm = tmp_path / "warm.jsonl"
    warm.write_text(GOOD)
    done = subprocess.run(
        [sys.executable, "-c", code, str(warm), *files],
        capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == len(files), done.stdout + done.stderr[-2000:]
    for line, (name, good_rows, number) in zip(
        lines,
        [("line", ["a", "a"], 2), ("cell", ["a", "c"], 3), ("bare", ["a", "c"], 3), ("only", ["a", "c"], 3)],
        strict=True,
    ):
        assert line.startswith(f"{name}.") and str(good_rows) in line and f"[({number}, '" in line, line
        assert "longer than 16 MiB" in line, line


def test_a_cell_as_python_prints_it_takes_no_more_memory_than_its_text_is_worth() -> None:
    printed = repr(["one's own", 'a "quoted" text'] * 1_000)
    assert opened_cell("context", printed) == ["one's own", 'a "quoted" text'] * 1_000
    tracemalloc.start()
    try:
        for cell in (f"[{'0,' * 1_000_000}]", f"[{'a and ' * 300_000}a]", f"[{'1+' * 400_000}1]"):
            assert opened_cell("metadata", cell) == cell
            assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


def test_a_json_list_that_is_read_at_once_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magistrate.datasets.formats.LARGEST_WHOLE", 1 << 20)
    path = written(tmp_path / "list.json.gz", [b"[", b"{}," * 500_000, b"{}]"])
    with pytest.raises(DatasetError, match=r"list\.json\.gz is one JSON value of more than 1 MiB.*\.jsonl"):
        list(datasets.load(str(path)))


def test_a_long_json_list_on_one_line_is_read(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    row = GOOD.strip().replace('"a"', f'"{"a" * (1 << 20)}"')
    path.write_text(f"[{', '.join([row] * 20)}]")
    assert len(list(datasets.load(str(path)))) == 20


def test_a_long_cell_of_parquet_is_a_row_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "cells.parquet"
    long = "x" * (17 << 20)
    for nested in (False, True):
        contexts: list[object] = ["c", "d", "c"] if not nested else [["c"], ["d", long], ["c"]]
        outputs = ["a", "b" if nested else long, "c"]
        parquet.write_table(pyarrow.table({"output": outputs, "context": contexts}), path, compression="zstd")
        found = datasets.load(str(path))
        assert [sample.output for sample in found] == ["a", "c"]
        (problem,) = found.problems
        assert "row 2" in str(problem) and "longer than 16 MiB" in str(problem)


@pytest.mark.full
def test_a_text_that_many_rows_of_parquet_share_is_not_held_for_each(tmp_path: Path) -> None:
    path, warm = tmp_path / "shared.parquet", tmp_path / "warm.parquet"
    shared = pyarrow.array(["x" * (8 << 20)]).dictionary_encode()
    many = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 80, pyarrow.int32()), shared.dictionary)
    rows = [str(n) for n in range(80)]
    parquet.write_table(pyarrow.table({"output": rows, "context": many}), path, store_schema=False)
    parquet.write_table(pyarrow.table({"output": ["a"], "context": ["b"]}), warm)
    code = (
        "import resource, sys\n"
        "from magistrate import datasets\n"
        "list(datasets.load(sys.argv[1]))\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (600 << 20),) * 2)\n"
        "print(sum(1 for each in datasets.load(sys.argv[2])))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(warm), str(path)],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.stdout == "80\n", done.stdout + done.stderr[-2000:]


def test_a_part_of_parquet_that_unpacks_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magistrate.datasets.formats.LARGEST_PACKED", 1 << 20)
    path = tmp_path / "bomb.parquet"
    parquet.write_table(
        pyarrow.table({"output": ["x" * (8 << 20)], "context": ["c"]}), path, compression="zstd"
    )
    with pytest.raises(DatasetError, match=r"bomb\.parquet: a part of column 'output' is 8 MiB uncompressed"):
        list(datasets.load(str(path)))
