"""Parse the rows of JSONL, CSV, JSON and Parquet files. Parquet needs the extra `parquet`.

A line that cannot be read becomes a `Problem` with its file, line and reason, and reading goes on. `shown`
is the file's name in messages; ids of rows without one begin with `stem`.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from magistrate.datasets.fields import plain
from magistrate.datasets.rows import Problem, Row, json_row, kind_of
from magistrate.errors import DatasetError, MissingExtra

LONGEST_LINE = (
    16 << 20
)  # bytes of a line, and characters of a cell: a compressed file of 2 MB can contain a line of 2 GB
LARGEST_WHOLE = 128 << 20  # bytes of a JSON file that is read at once
TOO_LONG = f"it is longer than {LONGEST_LINE >> 20} MiB; remove fields that no judge reads, or split it"
LIST_BEGINS = re.compile(rb"\s*\[\s*(\{|$)")
BIG_EXPONENT = re.compile(rb"\d[eE]\+?\d{3}")


class CsvReader(Protocol):
    """The type of the objects that `csv.reader` returns, which has no public name."""

    line_num: int

    def __iter__(self) -> Iterator[list[str]]: ...

    def __next__(self) -> list[str]: ...


@contextmanager
def text(stream: io.BufferedIOBase) -> Iterator[io.TextIOWrapper]:
    """Open a stream as text lines, with line ends kept."""
    # Invalid UTF-8 bytes become lone surrogates, so that one bad cell spoils only one row.
    csv.field_size_limit(LONGEST_LINE)
    lines = io.TextIOWrapper(cast(BinaryIO, stream), encoding="utf-8", errors="surrogateescape", newline="")
    try:
        yield lines
    finally:
        lines.detach()


def parse(line: bytes) -> Mapping[str, Any]:
    """Parse the object on one line of JSON. Raises ValueError with a short reason."""
    from pydantic_core import from_json

    try:
        line.decode()
    except UnicodeDecodeError as error:
        bad = line[error.start]
        raise ValueError(f"not UTF-8: byte 0x{bad:02x} at byte {error.start + 1} of the line") from None
    try:
        value = from_json(line, allow_inf_nan=False)
        _check_whole(line, value)
    except ValueError as error:
        reason = plain(str(error).replace(" at line 1 column ", " at column "), 120)
        if not reason.startswith("EOF"):
            reason = reason[:1].lower() + reason[1:]
        raise ValueError(f"not JSON: {reason}") from None
    if not isinstance(value, dict):
        raise ValueError(f"must be an object with columns, got {kind_of(value)}")
    return value


def _check_whole(text: bytes, value: Any) -> None:
    """Raise ValueError if `value`, parsed from `text`, lost one of two values of a key or is infinite."""
    json.loads(text, object_pairs_hook=check_unique, parse_int=str)
    if BIG_EXPONENT.search(text):
        json.dumps(value, allow_nan=False)


def check_unique(pairs: list[tuple[str, Any]]) -> None:
    """Raise ValueError if an object has the same key twice, since it is unclear which value is meant."""
    seen = set[str]()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"duplicate key {key!r}")
        seen.add(key)


def bounded_lines(stream: io.BufferedIOBase) -> Iterator[bytes | None]:
    """Yield the lines of a stream. A line of more than `LONGEST_LINE` bytes is skipped and yields None."""
    while line := stream.readline(LONGEST_LINE + 1):
        if len(line) <= LONGEST_LINE or line.endswith(b"\n"):
            yield line
            continue
        del line
        while (piece := stream.readline(1 << 20)) and not piece.endswith(b"\n"):
            pass
        yield None


def bounded_whole(stream: io.BufferedIOBase, shown: str) -> bytes:
    """Return the rest of a stream. Raises `DatasetError` if it has more than `LARGEST_WHOLE` bytes."""
    held = stream.read(LARGEST_WHOLE + 1)
    if len(held) > LARGEST_WHOLE:
        raise DatasetError(
            f"{shown} is one JSON value of more than {LARGEST_WHOLE >> 20} MiB, which must be read at once; "
            "write one object per line (.jsonl)"
        )
    return held


class _BoundedText:
    """Text lines for `csv.reader`. A line that is too long raises; reading can continue after it.

    `filled` says of each line since it was last cleared whether it has any text.
    """

    def __init__(self, lines: io.TextIOWrapper) -> None:
        self.lines = lines
        self.filled: list[bool] = []

    def __iter__(self) -> _BoundedText:
        return self

    def __next__(self) -> str:
        line = self.lines.readline(LONGEST_LINE + 1)
        if not line:
            raise StopIteration
        if len(line) > LONGEST_LINE and not line.endswith("\n"):
            del line
            while (piece := self.lines.readline(1 << 20)) and not piece.endswith("\n"):
                pass
            raise csv.Error(TOO_LONG)
        self.filled.append(bool(line.strip()))
        return line


def jsonl(stream: io.BufferedIOBase, shown: str, stem: str) -> Iterator[Row | Problem]:
    """Yield the rows of a file with one JSON object per line."""
    begun = False
    for number, raw in enumerate(bounded_lines(stream), 1):
        if raw is None:
            yield Problem(shown, number, TOO_LONG)
            continue
        line = raw.rstrip(b"\r\n")
        if not line.strip():
            continue
        if not begun and LIST_BEGINS.match(line):
            raise DatasetError(f"{shown} is one JSON list, not one object a line; rename it to end in .json")
        begun = True
        try:
            yield Row(shown, number, f"{stem}-{number}", parse(line))
        except ValueError as error:
            yield Problem(shown, number, str(error))


def csv_rows(stream: io.BufferedIOBase, shown: str, stem: str) -> Iterator[Row | Problem]:
    """Yield the rows under a header, separated by commas, or by semicolons or tabs if it has no comma."""
    with text(stream) as lines:
        bounded = _BoundedText(lines)
        try:
            reader = _reader(bounded, strict=True)
        except csv.Error as error:
            raise DatasetError(f"{shown}: the header cannot be read: {error}") from None
        yield from _records(reader, bounded, shown, stem)


def _reader(lines: Iterable[str], *, strict: bool) -> CsvReader:
    """Return a CSV reader whose separator is detected from the first line that is not blank."""
    rest, seen = iter(lines), list[str]()
    for line in rest:
        seen.append(line)
        if line.strip():
            break
    head = seen[-1] if seen else ""
    parted = "," if "," in head else next((mark for mark in ";\t" if mark in head), ",")
    return csv.reader(chain(seen, rest), strict=strict, delimiter=parted)


def _records(reader: CsvReader, bounded: _BoundedText, shown: str, stem: str) -> Iterator[Row | Problem]:
    header: list[str] | None = None
    while True:
        start = reader.line_num + 1
        bounded.filled.clear()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Problem(shown, start, _csv_reason(error))
            lost = f"it is inside a cell that a quote in line {start} opened"
            for number, filled in enumerate(bounded.filled[1:], start + 1):
                if filled:  # so that rows that a stray quote swallowed are not counted as one
                    yield Problem(shown, number, lost)
            continue
        if not cells:
            continue
        if header is None:
            header = _header(shown, cells)
        elif len(cells) != len(header):
            yield Problem(shown, start, f"{len(cells)} cells under {len(header)} columns")
        elif bad := _undecoded(dict(zip(header, cells, strict=True))):
            yield Problem(shown, start, bad)
        else:
            values = dict(zip(header, cells, strict=True))
            yield Row(shown, start, f"{stem}-{start}", values, cells=True)


def _header(shown: str, cells: list[str]) -> list[str]:
    names = [cell.strip() or f"column {number}" for number, cell in enumerate(cells, 1)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DatasetError(f"{shown}:1: two columns have the name {', '.join(map(repr, twice))}; rename one")
    if bad := _undecoded(dict(zip(names, names, strict=True))):
        raise DatasetError(f"{shown}:1: {bad}")
    return names


def _csv_reason(error: csv.Error) -> str:
    if "unexpected end" in str(error):
        return "a quote that starts here is not closed, so the rest of the file is one cell"
    if "field larger" in str(error):
        return f"a cell is longer than {LONGEST_LINE >> 20} MiB; remove columns that no judge reads"
    return str(error) if str(error) == TOO_LONG else f"not CSV: {error}"


def _undecoded(row: Mapping[str, str]) -> str | None:
    for column, cell in row.items():
        try:
            cell.encode()
        except UnicodeEncodeError as error:
            bad = ord(cell[error.start]) - 0xDC00
            place = len(cell[: error.start].encode()) + 1
            return f"not UTF-8: byte 0x{bad:02x} at byte {place} of {column!r}"
    return None


def json_rows(stream: io.BufferedIOBase, shown: str, stem: str) -> Iterator[Row | Problem]:
    """Yield the rows of a JSON list of objects. A file with one object per line is read as JSONL despite
    its name.

    A single object over several lines is accepted if it is an export of spans.
    """
    from pydantic_core import from_json

    start = stream.tell()
    first = next((line for line in iter(lambda: stream.readline(LONGEST_LINE), b"") if line.strip()), b"")
    stream.seek(start)
    if first.lstrip().startswith(b"{"):
        try:
            only = parse(first.strip())
        except ValueError:
            yield _export(stream, shown, stem)
            return
        if key := _key_of_rows(only):
            lines = (line for line in iter(lambda: stream.readline(LONGEST_LINE), b"") if line.strip())
            if next(lines) and next(lines, None) is None:
                raise DatasetError(_in_object(shown, key))
            stream.seek(start)
        yield from jsonl(stream, shown, stem)
        return
    try:
        held = bounded_whole(stream, shown) if first else b"[]"
        items = from_json(held, allow_inf_nan=False)
        _check_whole(held, items)
    except ValueError as error:
        raise DatasetError(f"{shown} is not JSON: {error}") from None
    if not isinstance(items, list):
        raise DatasetError(f"{shown} contains {kind_of(items)}; samples must be a list of objects")
    for number, item in enumerate(items, 1):
        if isinstance(item, dict):
            yield Row(f"{shown} item {number}", None, f"{stem}-{number}", item)
        else:
            reason = f"must be an object with columns, got {kind_of(item)}"
            yield Problem(f"{shown} item {number}", None, reason)


def _export(stream: io.BufferedIOBase, shown: str, stem: str) -> Row:
    """Return the only object of a file as a row. Raises DatasetError if it is not an export of spans."""
    from pydantic_core import from_json

    from magistrate.datasets.spans.samples import is_span

    try:
        text = bounded_whole(stream, shown)
        held = from_json(text, allow_inf_nan=False)
        _check_whole(text, held)
    except ValueError:
        held = None
    if not isinstance(held, dict) or not is_span(held):
        key = _key_of_rows(held) if isinstance(held, dict) else None
        if key:
            raise DatasetError(_in_object(shown, key))
        raise DatasetError(
            f"{shown} contains one JSON object; samples must be a list of objects, or one object per line"
        )
    return Row(shown, None, f"{stem}-1", held)


def _key_of_rows(held: Mapping[str, Any]) -> str | None:
    """Return the key under which an object that is no sample and no span has a list of objects, if any."""
    from magistrate.datasets.fields import field_of
    from magistrate.datasets.spans.samples import is_span

    if is_span(held) or any(field_of(key) for key in held):
        return None
    lists = (key for key, value in held.items() if isinstance(value, list) and value)
    return next((key for key in lists if all(isinstance(item, dict) for item in held[key])), None)


def _in_object(shown: str, key: str) -> str:
    return f"{shown} is one JSON object with a list under {plain(repr(key))}; save that list alone"


def count_jsonl(stream: io.BufferedIOBase) -> int:
    """Return the number of lines that are not blank."""
    return sum(1 for line in bounded_lines(stream) if line is None or line.strip())


def count_csv(stream: io.BufferedIOBase) -> int:
    """Return the number of rows under the header."""
    with text(stream) as lines:
        return max(0, sum(1 for _ in _counted(_BoundedText(lines))) - 1)


def _counted(lines: Iterable[str]) -> Iterator[None]:
    """Yield once for each row that is not blank, even if it cannot be read."""
    try:
        reader = _reader(lines, strict=False)
    except csv.Error:
        return
    while True:
        try:
            if next(reader):
                yield None
        except csv.Error:
            yield None
        except StopIteration:
            return


ROWS_AT_ONCE = 200
LARGEST_PACKED = 1 << 30  # bytes of an unpacked column chunk; larger ones must not exceed BOMB_RATIO
BOMB_RATIO = 200  # compression ratio: texts shrink to a tenth, decompression bombs to a thousandth
READ_AHEAD = 1 << 18  # bytes per column; without it a whole row group is read, perhaps the whole file


def parquet_rows(path: Path, shown: str, stem: str) -> Iterator[Row | Problem]:
    """Yield the rows of a file, with lists of structs as lists of objects. DatasetError if it is damaged or
    a bomb.

    A row of more than `LONGEST_LINE` bytes becomes a problem.

    `shown` is the file's name in messages; ids of rows without one begin with `stem`.
    """
    with _open_parquet(path, shown) as file:
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


def count_parquet(path: Path, shown: str) -> int:
    """Return the number of rows in the file's metadata."""
    with _open_parquet(path, shown) as file:
        return int(file.metadata.num_rows)


@contextmanager
def _open_parquet(path: Path, shown: str) -> Iterator[Any]:
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
                raise DatasetError(f"{shown}: two columns have the name {', '.join(map(repr, twice))}")
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        reason = plain(" ".join(str(error).split()), 200)
        raise DatasetError(f"{shown} is not valid Parquet data ({reason}); copy it again") from None


def _rows_at_once(file: Any, shown: str) -> int:
    """Return a batch size that fits into memory even if each row has the longest text of its column.

    A text that many rows share is in the file once. Raises `DatasetError` for a column chunk that is a
    bomb.
    """
    groups = [file.metadata.row_group(each) for each in range(file.metadata.num_row_groups)]
    parts = [group.column(each) for group in groups for each in range(group.num_columns)]
    for part in parts:
        size = part.total_uncompressed_size
        if size > max(LARGEST_PACKED, BOMB_RATIO * part.total_compressed_size):
            raise DatasetError(
                f"{shown}: a part of column {part.path_in_schema!r} is {size >> 20:,} MiB uncompressed; "
                "write smaller row groups"
            )
    largest = max((part.total_uncompressed_size for part in parts), default=0)
    return int(min(ROWS_AT_ONCE, max(1, LARGEST_WHOLE // max(1, largest))))


def _dicts(batch: Any) -> Iterator[dict[str, Any] | ValueError]:
    """Yield the rows of a batch. A row that cannot be converted to Python values yields its error instead."""
    if batch.nbytes > LONGEST_LINE:
        for place in range(batch.num_rows):
            too_long = batch.slice(place, 1).nbytes > LONGEST_LINE
            yield ValueError(TOO_LONG) if too_long else _single_row(batch, place)
        return
    try:
        yield from batch.to_pylist(maps_as_pydicts="strict")
    except (ValueError, KeyError, OverflowError):
        # Invalid UTF-8 or a timestamp too fine for Python spoils only its own row.
        for place in range(batch.num_rows):
            yield _single_row(batch, place)


def _single_row(batch: Any, place: int) -> dict[str, Any] | ValueError:
    try:
        found: dict[str, Any] = batch.slice(place, 1).to_pylist(maps_as_pydicts="strict")[0]
    except (ValueError, KeyError, OverflowError) as error:
        return ValueError(f"cannot be read: {error}")
    return found
