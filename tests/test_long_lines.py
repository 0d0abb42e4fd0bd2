"""Lines, cells and files of samples that are too long to be held: named, passed over, and never held."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from magistrate import datasets
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
