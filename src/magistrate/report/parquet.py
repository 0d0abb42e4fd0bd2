"""Outcomes as a Parquet file: the columns of the other formats, every one of them nullable.

`context` is a list of texts. `claims` is a JSON text, which every reader of the format can hold.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import IO, Any

from magistrate.errors import MissingExtra
from magistrate.report.frames import COLUMNS

AT_ONCE = 5_000  # rows in memory, and in a row group
KINDS = {"string": "string", "Float64": "float64", "Int64": "int64"}


def write_rows(rows: Iterable[dict[str, Any]], raw: IO[bytes]) -> int:
    """Write the rows, some at a time; answers how many. Raises `MissingExtra` without pyarrow."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetWriter
    except ModuleNotFoundError as error:
        raise MissingExtra("pyarrow", "parquet") from error
    text = pyarrow.string()
    schema = pyarrow.schema(
        [(name, getattr(pyarrow, KINDS[kind])()) for name, kind in COLUMNS.items()]
        + [("input", text), ("context", pyarrow.list_(text)), ("output", text), ("claims", text)]
    )
    written, coming = 0, iter(rows)
    with ParquetWriter(raw, schema, compression="zstd") as writer:
        while some := [_row(row) for row in itertools.islice(coming, AT_ONCE)]:
            writer.write_table(pyarrow.Table.from_pylist(some, schema))
            written += len(some)
    return written


def _row(row: dict[str, Any]) -> dict[str, Any]:
    claims = json.dumps(row["claims"], ensure_ascii=False, allow_nan=False)
    return {name: _utf8(value) for name, value in {**row, "claims": claims}.items()}


def _utf8(value: Any) -> Any:
    """Half of a surrogate pair, for which the format has no word, is written as its escape."""
    if isinstance(value, list):
        return [_utf8(each) for each in value]
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
