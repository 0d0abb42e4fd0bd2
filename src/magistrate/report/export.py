"""Outcomes as files for other tools."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from magistrate.errors import SpecError, StoreError
from magistrate.report.frames import COLUMNS, table
from magistrate.types import Outcome, Sample, Verdict

MORE = ("input", "context", "output", "claims")
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def export(
    samples: Mapping[str, Sample], outcomes: Iterable[Outcome], target: Path, *, replace: bool = False
) -> int:
    """Write one row an outcome to a `.jsonl` or `.csv` file (also `.gz`); answers how many.

    The file appears whole or not at all. In CSV a text that a spreadsheet would read as a formula gets
    an apostrophe before it. Raises `SpecError` for another ending or a file that is there already.
    """
    name = target.name.lower()
    kind = next((each for each in ("jsonl", "csv") if name.endswith((f".{each}", f".{each}.gz"))), None)
    if kind is None:
        raise SpecError(f"cannot tell the format of {target}; end it in .jsonl, .csv, .jsonl.gz or .csv.gz")
    if target.exists() and not replace:
        raise SpecError(f"{target} is there already; use --force to replace it")
    rows = _rows(samples, outcomes)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".magistrate-")
        try:
            with os.fdopen(handle, "wb") as raw, _text(raw, name.endswith(".gz")) as text:
                written = _csv(rows, text) if kind == "csv" else _jsonl(rows, text)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StoreError(f"cannot write {target}: {error.strerror or error}") from error
    return written


def _text(raw: IO[bytes], zipped: bool) -> IO[str]:
    # A fixed time stamp, so that the same outcomes make the same bytes.
    binary: Any = gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) if zipped else raw
    return io.TextIOWrapper(binary, encoding="utf-8", errors="backslashreplace", newline="")


def _rows(samples: Mapping[str, Sample], outcomes: Iterable[Outcome]) -> Iterator[dict[str, Any]]:
    for outcome in outcomes:
        sample = samples[outcome.sample_id]
        (row,) = table(samples, [outcome])
        texts = {"input": sample.input, "context": list(sample.context), "output": sample.output}
        claims = outcome.claims if isinstance(outcome, Verdict) else ()
        yield {**row, **texts, "claims": [asdict(claim) for claim in claims]}


def _jsonl(rows: Iterable[dict[str, Any]], text: IO[str]) -> int:
    written = 0
    for row in rows:
        text.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
        written += 1
    return written


def _csv(rows: Iterable[dict[str, Any]], text: IO[str]) -> int:
    writer = csv.DictWriter(text, [*COLUMNS, *MORE])
    writer.writeheader()
    written = 0
    for row in rows:
        writer.writerow({name: _cell(value) for name, value in row.items()})
        written += 1
    return written


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        value = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and value.startswith(FORMULA):
        return "'" + value
    return value
