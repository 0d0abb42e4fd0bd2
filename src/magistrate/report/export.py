"""Outcomes as files for other tools: one row an outcome, with its sample."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from magistrate.errors import SpecError
from magistrate.report.frames import COLUMNS, table
from magistrate.types import Outcome, Sample, Scoring, Verdict

MORE = ("input", "context", "output", "claims")
FORMULA = re.compile(r"[\t\r]|[\s\ufeff\u200b\0]*[=+\-@＝＋－＠]")  # programs skip what is not seen before it
ENDINGS = {
    ".jsonl": "jsonl",
    ".csv": "csv",
    ".jsonl.gz": "jsonl",
    ".csv.gz": "csv",
    ".parquet": "parquet",
    ".html": "html",
}


def format_of(target: Path, *, replace: bool = False) -> str:
    """The format that a file's ending names: a value of `ENDINGS`.

    Raises `SpecError` for another ending, and for a file that is there already unless it is to be replaced.
    """
    name = target.name.lower()
    found = next((kind for ending, kind in ENDINGS.items() if name.endswith(ending)), None)
    if found is None:
        *others, last = ENDINGS
        raise SpecError(f"cannot tell the format of {target}; end it in {', '.join(others)} or {last}")
    if target.exists() and not replace:
        raise SpecError(f"{target} is there already; use --force to replace it")
    return found


def export(
    samples: Mapping[str, Sample],
    outcomes: Iterable[Outcome],
    target: Path,
    *,
    replace: bool = False,
    scoring: Mapping[str, Scoring] | None = None,
) -> int:
    """Write one row an outcome to a file of any format in `ENDINGS` but HTML; answers how many.

    `scoring` says by judge how scores are read, as in `table`.
    In CSV a text that a spreadsheet would read as a formula gets an apostrophe before it. Raises the errors
    of `format_of` and `write_whole`, and `MissingExtra` for Parquet without pyarrow.
    """
    kind = format_of(target, replace=replace)
    if kind == "html":
        raise SpecError(f"{target} is a report, not rows; write it with: magistrate export RUN --to {target}")
    rows = _rows(samples, outcomes, scoring)
    if kind == "parquet":
        from magistrate.report.parquet import write_rows

        return write_whole(target, lambda raw: write_rows(rows, raw))

    def write(raw: IO[bytes]) -> int:
        with _text(raw, target.name.lower().endswith(".gz")) as text:
            return _csv(rows, text) if kind == "csv" else _jsonl(rows, text)

    return write_whole(target, write)


def write_whole(target: Path, write: Callable[[IO[bytes]], int]) -> int:
    """Let `write` write a file, which appears whole or not at all; answers what `write` does.

    Raises `SpecError` where it cannot be written.
    """
    # Opened like any other file, so that others may read it where the user lets them.
    temporary = target.parent / f".magistrate-{uuid4().hex}"
    try:
        try:
            with temporary.open("xb") as raw:
                written = write(raw)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise SpecError(f"cannot write {target}: {error.strerror or error}") from error
    return written


def _text(raw: IO[bytes], zipped: bool) -> IO[str]:
    # A fixed time stamp, so that the same outcomes make the same bytes.
    binary: Any = gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) if zipped else raw
    return io.TextIOWrapper(binary, encoding="utf-8", errors="backslashreplace", newline="")


def _rows(
    samples: Mapping[str, Sample], outcomes: Iterable[Outcome], scoring: Mapping[str, Scoring] | None
) -> Iterator[dict[str, Any]]:
    for outcome in outcomes:
        sample = samples[outcome.sample_id]
        (row,) = table(samples, [outcome], scoring)
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
    if isinstance(value, str) and FORMULA.match(value):
        return "'" + value
    return value
