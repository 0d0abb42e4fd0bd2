"""The rows of Parquet files, batch by batch; needs the extra `parquet`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from magistrate.datasets.fields import plain
from magistrate.datasets.formats import LARGEST_WHOLE, LONGEST_LINE, TOO_LONG
from magistrate.datasets.source import Problem, Row
from magistrate.datasets.values import json_row
from magistrate.errors import DatasetError, MissingExtra

ROWS_AT_ONCE = 200
LARGEST_PACKED = 1 << 30  # bytes of a column's part that is much smaller while it is packed
PACKED = 200  # times smaller: texts are packed to a tenth, bombs to a thousandth
READ_AHEAD = 1 << 18  # bytes of each column; without it a whole row group is read, perhaps the whole file


def rows(path: Path, shown: str, stem: str) -> Iterator[Row | Problem]:
    """The rows of a file, lists of structs as lists of objects; DatasetError where it is damaged or a bomb.

    A row of more than `LONGEST_LINE` bytes is one that cannot be read.

    `shown` is the file's name in messages, `stem` begins the ids of rows without one.
    """
    with _opened(path, shown) as file:
        number = 0
        for batch in file.iter_batches(batch_size=_rows_at_once(file, shown), use_threads=False):
            for found in _dicts(batch):
                number += 1
                where = f"{shown} row {number}"
                try:
                    if isinstance(found, ValueError):
                        raise found
                    yield Row(where, None, f"{stem}-{number}", json_row(found))
                except ValueError as error:
                    yield Problem(where, None, plain(" ".join(str(error).split()), 200))


def count(path: Path, shown: str) -> int:
    """How many rows the file says that it has."""
    with _opened(path, shown) as file:
        return int(file.metadata.num_rows)


@contextmanager
def _opened(path: Path, shown: str) -> Iterator[Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        if error.name not in ("pyarrow", "pyarrow.parquet"):
            raise
        raise MissingExtra("pyarrow", "parquet") from None
    try:
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=READ_AHEAD) as file:
            columns = file.schema_arrow.names
            twice = sorted({name for name in columns if columns.count(name) > 1})
            if twice:
                raise DatasetError(f"{shown}: two columns are named {', '.join(map(repr, twice))}")
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        reason = plain(" ".join(str(error).split()), 200)
        raise DatasetError(f"{shown} is not sound Parquet data ({reason}); copy it again") from None


def _rows_at_once(file: Any, shown: str) -> int:
    """So few rows that they fit into memory even if each holds the longest text of its column.

    A text that many rows share is in the file once. Raises `DatasetError` for a part that is a bomb.
    """
    groups = [file.metadata.row_group(each) for each in range(file.metadata.num_row_groups)]
    parts = [group.column(each) for group in groups for each in range(group.num_columns)]
    for part in parts:
        size = part.total_uncompressed_size
        if size > max(LARGEST_PACKED, PACKED * part.total_compressed_size):
            raise DatasetError(
                f"{shown}: a part of column {part.path_in_schema!r} is {size >> 20:,} MiB once unpacked; "
                "write smaller row groups"
            )
    largest = max((part.total_uncompressed_size for part in parts), default=0)
    return int(min(ROWS_AT_ONCE, max(1, LARGEST_WHOLE // max(1, largest))))


def _dicts(batch: Any) -> Iterator[dict[str, Any] | ValueError]:
    """The rows of a batch; where one cannot be made Python values, its error in its place."""
    if batch.nbytes > LONGEST_LINE:
        for place in range(batch.num_rows):
            too_long = batch.slice(place, 1).nbytes > LONGEST_LINE
            yield ValueError(TOO_LONG) if too_long else _alone(batch, place)
        return
    try:
        yield from batch.to_pylist(maps_as_pydicts="strict")
    except (ValueError, KeyError, OverflowError):
        # A text that is no UTF-8 or a moment too fine for Python spoils its own row only.
        for place in range(batch.num_rows):
            yield _alone(batch, place)


def _alone(batch: Any, place: int) -> dict[str, Any] | ValueError:
    try:
        found: dict[str, Any] = batch.slice(place, 1).to_pylist(maps_as_pydicts="strict")[0]
    except (ValueError, KeyError, OverflowError) as error:
        return ValueError(f"cannot be read: {error}")
    return found
