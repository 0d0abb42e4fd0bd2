"""Rows of JSONL, CSV and JSON files, plain or gzip, one at a time.

JSONL and CSV are read as a stream: memory does not grow with the file. A line that cannot be read
becomes a `Problem` with its file, line and reason, and the next ones go on; a file that cannot be
read as a whole (missing, a folder, damaged gzip, UTF-16) raises.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
import sys
import weakref
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, cast

from magistrate.datasets.fields import near, plain
from magistrate.errors import DatasetError, SpecError

Format = Literal["jsonl", "csv", "json"]
FORMATS: Mapping[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".json": "json"}
READABLE = "readable are .jsonl, .ndjson, .csv and .json, each also as .gz"
LARGEST_FIELD = min(sys.maxsize, 2**31 - 1)
UTF16 = (b"\xff\xfe", b"\xfe\xff")
BOM = b"\xef\xbb\xbf"
BIG_EXPONENT = re.compile(rb"\d[eE]\+?\d{3}")


@dataclass(frozen=True, slots=True)
class Problem:
    """A row that could not become a sample; `line` counts from 1, or is None where there are no lines."""

    file: str
    line: int | None
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}" if self.line else f"{self.file}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a source: where it stands, the id it gets if it has none, and what it holds."""

    file: str
    line: int | None
    id: str
    values: Mapping[str, Any]
    cells: bool = False

    def problem(self, reason: str) -> Problem:
        """A problem with this row."""
        return Problem(self.file, self.line, reason)


class CsvReader(Protocol):
    """What `csv.reader` returns, which has no public name."""

    line_num: int

    def __next__(self) -> list[str]: ...


class Source(Protocol):
    """Something that gives the same rows each time it is asked."""

    def rows(self) -> Iterator[Row | Problem]: ...

    def digest(self) -> str:
        """sha256 of the bytes that the rows come from."""
        ...

    def count(self) -> int | None:
        """How many rows there are, bad ones included, where that is known or cheap to learn."""
        ...


class Spool:
    """A temporary copy of a stream, removed when it is no longer used."""

    def __init__(self, stream: BinaryIO) -> None:
        import shutil
        import tempfile

        with tempfile.NamedTemporaryFile(prefix="magistrate-", suffix=".jsonl", delete=False) as copy:
            self.path = Path(copy.name)
            weakref.finalize(self, self.path.unlink, missing_ok=True)
            shutil.copyfileobj(stream, copy)


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file of rows. `shown` is its name in messages, `stem` begins the ids of rows without one."""

    path: Path
    format: Format
    shown: str
    stem: str
    stamp: tuple[int, int]
    spool: Spool | None = None

    def rows(self) -> Iterator[Row | Problem]:
        read = {"jsonl": _jsonl, "csv": _csv, "json": _json}[self.format]
        with self.opened() as stream:
            yield from read(self, stream)

    def digest(self) -> str:
        with self.opened() as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def count(self) -> int | None:
        if self.format == "json":
            return None
        with self.opened() as stream:
            if self.format == "jsonl":
                return sum(1 for line in stream if line.strip())
            with _text(stream) as lines:
                return max(0, sum(1 for cells in csv.reader(lines) if cells) - 1)

    @contextmanager
    def opened(self) -> Iterator[io.BufferedIOBase]:
        """The file's bytes, unpacked; DatasetError where they cannot be had or are not those of before."""
        try:
            if _stamp(self.path) != self.stamp:
                raise DatasetError(f"{self.shown} has changed since it was opened; load it again")
            with self.path.open("rb") as raw:
                zipped = self.path.suffix.lower() == ".gz"
                stream: io.BufferedIOBase = io.BufferedReader(gzip.GzipFile(fileobj=raw)) if zipped else raw
                head = stream.read(3)
                if head[:2] in UTF16:
                    raise DatasetError(f"{self.shown} is UTF-16; save it as UTF-8")
                stream.seek(len(BOM) if head == BOM else 0)
                yield stream
        except EOFError:
            raise DatasetError(
                f"{self.shown} ends early: its gzip data is cut short; copy it again"
            ) from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise DatasetError(f"{self.shown} is not sound gzip data ({error}); copy it again") from None
        except OSError as error:
            raise DatasetError(f"cannot read {self.shown}: {error.strerror or error}") from error


def open_file(name: str | Path) -> FileSource:
    """The file at a path, read by its suffix; SpecError where there is none or it is of no known kind."""
    path = Path(name).expanduser()
    if path.is_dir():
        inside = sorted(child.name for child in path.iterdir() if _format_of(child))
        listed = f"; it holds {', '.join(inside[:8])}" if inside else ""
        raise SpecError(f"{name} is a folder, not a file of samples{listed}")
    if not _there(path):
        raise SpecError(f"no file {plain(repr(str(name)), 200)}{_beside(path)}")
    kind = _format_of(path)
    if kind is None:
        raise SpecError(f"cannot tell what {path.name!r} holds; {READABLE}")
    stem = path.name[: -len("".join(_suffixes(path)))]
    return FileSource(path, kind, str(name), stem or "row", _stamp(path))


def read_stdin() -> FileSource:
    """JSONL from standard input, kept in a temporary file while it is used, so that it has a digest."""
    spool = Spool(sys.stdin.buffer)
    return FileSource(spool.path, "jsonl", "stdin", "stdin", _stamp(spool.path), spool)


def looks_like_path(name: str) -> bool:
    """Whether a word on the command line means a file rather than the name of a set."""
    path = Path(name)
    return len(path.parts) > 1 or name.startswith(("~", ".")) or _format_of(path) is not None or _there(path)


def _there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long for the file system, a folder that may not be entered
        return False


def _suffixes(path: Path) -> list[str]:
    return path.suffixes[-2:] if path.suffix.lower() == ".gz" else path.suffixes[-1:]


def _format_of(path: Path) -> Format | None:
    suffixes = _suffixes(path)
    return FORMATS.get(suffixes[0].lower()) if suffixes else None


def _beside(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f": there is no folder {str(folder)!r}"
    return near(path.name, (child.name for child in folder.iterdir() if _format_of(child)))


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@contextmanager
def _text(stream: io.BufferedIOBase) -> Iterator[io.TextIOWrapper]:
    # Bytes that are no UTF-8 come through as lone surrogates, so that one bad cell spoils one row.
    csv.field_size_limit(LARGEST_FIELD)
    lines = io.TextIOWrapper(cast(BinaryIO, stream), encoding="utf-8", errors="surrogateescape", newline="")
    try:
        yield lines
    finally:
        lines.detach()


# --- the three formats -----------------------------------------------------------------------------


def parse(line: bytes) -> Mapping[str, Any]:
    """The object on one line of JSON; ValueError with a short reason."""
    import jiter

    from magistrate.datasets.rows import kind_of

    try:
        line.decode()
    except UnicodeDecodeError as error:
        bad = line[error.start]
        raise ValueError(f"not UTF-8: byte 0x{bad:02x} at byte {error.start + 1} of the line") from None
    try:
        value = jiter.from_json(line, allow_inf_nan=False, catch_duplicate_keys=True)
        if BIG_EXPONENT.search(line):
            json.dumps(value, allow_nan=False)
    except ValueError as error:
        reason = plain(str(error).replace(" at line 1 column ", " at column "), 120)
        raise ValueError(f"not JSON: {reason[:1].lower()}{reason[1:]}") from None
    if not isinstance(value, dict):
        raise ValueError(f"must be an object with columns, got {kind_of(value)}")
    return value


def _jsonl(source: FileSource, stream: io.BufferedIOBase) -> Iterator[Row | Problem]:
    for number, raw in enumerate(stream, 1):
        line = raw.rstrip(b"\r\n")
        if not line.strip():
            continue
        try:
            yield Row(source.shown, number, f"{source.stem}-{number}", parse(line))
        except ValueError as error:
            yield Problem(source.shown, number, str(error))


def _csv(source: FileSource, stream: io.BufferedIOBase) -> Iterator[Row | Problem]:
    with _text(stream) as lines:
        yield from _records(source, csv.reader(lines, strict=True))


def _records(source: FileSource, reader: CsvReader) -> Iterator[Row | Problem]:
    header: list[str] | None = None
    while True:
        start = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Problem(source.shown, start, _csv_reason(error))
            continue
        if not cells:
            continue
        if header is None:
            header = _header(source, cells)
        elif len(cells) != len(header):
            yield Problem(source.shown, start, f"{len(cells)} cells under {len(header)} columns")
        elif bad := _undecoded(dict(zip(header, cells, strict=True))):
            yield Problem(source.shown, start, bad)
        else:
            values = dict(zip(header, cells, strict=True))
            yield Row(source.shown, start, f"{source.stem}-{start}", values, cells=True)


def _header(source: FileSource, cells: list[str]) -> list[str]:
    names = [cell.strip() or f"column {number}" for number, cell in enumerate(cells, 1)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DatasetError(
            f"{source.shown}:1: two columns are named {', '.join(map(repr, twice))}; rename one"
        )
    if bad := _undecoded(dict(zip(names, names, strict=True))):
        raise DatasetError(f"{source.shown}:1: {bad}")
    return names


def _csv_reason(error: csv.Error) -> str:
    if "unexpected end" in str(error):
        return "a quote opened here is never closed, so the rest of the file is one cell"
    return f"not CSV: {error}"


def _undecoded(row: Mapping[str, str]) -> str | None:
    for column, cell in row.items():
        try:
            cell.encode()
        except UnicodeEncodeError as error:
            bad = ord(cell[error.start]) - 0xDC00
            place = len(cell[: error.start].encode()) + 1
            return f"not UTF-8: byte 0x{bad:02x} at byte {place} of {column!r}"
    return None


def _json(source: FileSource, stream: io.BufferedIOBase) -> Iterator[Row | Problem]:
    """A JSON list of objects; a file of one object a line is read as JSONL whatever its name."""
    import jiter

    from magistrate.datasets.rows import kind_of

    start = stream.tell()
    first = next((line for line in stream if line.strip()), b"")
    stream.seek(start)
    if first.lstrip().startswith(b"{"):
        try:
            parse(first.strip())
        except ValueError:
            raise DatasetError(
                f"{source.shown} holds one JSON object; samples are a list of objects, or one object a line"
            ) from None
        yield from _jsonl(source, stream)
        return
    try:
        items = jiter.from_json(stream.read(), allow_inf_nan=False) if first else []
    except ValueError as error:
        raise DatasetError(f"{source.shown} is not JSON: {error}") from None
    if not isinstance(items, list):
        raise DatasetError(f"{source.shown} holds {kind_of(items)}; samples are a list of objects")
    for number, item in enumerate(items, 1):
        if isinstance(item, dict):
            yield Row(f"{source.shown} item {number}", None, f"{source.stem}-{number}", item)
        else:
            reason = f"must be an object with columns, got {kind_of(item)}"
            yield Problem(f"{source.shown} item {number}", None, reason)
