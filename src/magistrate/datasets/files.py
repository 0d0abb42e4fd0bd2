"""Read files of samples one row at a time: JSONL, CSV, JSON (each plain or compressed) and Parquet.

Spans of traces and logs of Inspect are recognized by their content, the latter also by the suffix `.eval`.
All but JSON lists and spans are read as a stream, so memory does not grow with the file. A row that cannot
be read becomes a `Problem` with its file, line and reason, and reading goes on. A file that cannot be read
as a whole (missing, a folder, damaged, UTF-16) raises.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import sys
import weakref
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from magistrate.datasets import formats, inspect_logs
from magistrate.datasets.fields import near, plain
from magistrate.datasets.rows import Problem, Row
from magistrate.datasets.spans.samples import gathered, is_span
from magistrate.errors import DatasetError, SpecError, require_extra

PACKED = (".gz", ".zst")


@contextmanager
def unpacked(raw: io.BufferedReader, suffix: str, shown: str) -> Iterator[io.BufferedIOBase]:
    """Yield the bytes of an open file, decompressed by its suffix if that is one of `PACKED`.

    Raises DatasetError if they are damaged or cut short, also during reading.
    """
    match suffix.lower():
        case ".gz":
            with _gzip(raw, shown) as stream:
                yield stream
        case ".zst":
            with _zstandard(raw, shown) as stream:
                yield stream
        case _:
            yield raw


@contextmanager
def _gzip(raw: BinaryIO, shown: str) -> Iterator[io.BufferedIOBase]:
    try:
        yield io.BufferedReader(gzip.GzipFile(fileobj=raw))
    except EOFError:
        raise _cut(shown, "gzip") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise _unsound(shown, "gzip", error) from None


@contextmanager
def _zstandard(raw: BinaryIO, shown: str) -> Iterator[io.BufferedIOBase]:
    # Python includes Zstandard from 3.14 on.
    import sys

    if sys.version_info >= (3, 14):
        from compression.zstd import ZstdError, ZstdFile
    else:
        require_extra("zstd", "backports", "backports.zstd")
        from backports.zstd import ZstdError, ZstdFile
    try:
        with ZstdFile(raw) as stream:
            yield stream
    except EOFError:
        raise _cut(shown, "Zstandard") from None
    except ZstdError as error:
        raise _unsound(shown, "Zstandard", error) from None


def _cut(shown: str, kind: str) -> DatasetError:
    return DatasetError(f"{shown} ends early: its {kind} data is cut short; copy it again")


def _unsound(shown: str, kind: str, error: Exception) -> DatasetError:
    return DatasetError(f"{shown} is not valid {kind} data ({error}); copy it again")


Format = Literal["jsonl", "csv", "json", "parquet", "eval"]
FORMATS: Mapping[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".json": "json",
    ".parquet": "parquet",
    ".eval": "eval",
}
READABLE = "supported are .jsonl, .ndjson, .csv and .json, each also as .gz and .zst, and .parquet and .eval"
UNPACKED = ("parquet", "eval")  # both are compressed inside; a compressed copy allows no random access
HUB = "hf://"
UTF16 = (b"\xff\xfe", b"\xfe\xff")
ZIP = b"PK\x03\x04"  # what Excel and LibreOffice write begins like any zip file
SHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")
AS_CSV = "save the sheet as CSV (UTF-8)"
BOM = b"\xef\xbb\xbf"


class Spool:
    """A temporary copy of a stream, deleted when it is no longer used."""

    def __init__(self, stream: BinaryIO) -> None:
        import shutil
        import tempfile

        with tempfile.NamedTemporaryFile(prefix="magistrate-", suffix=".jsonl", delete=False) as copy:
            self.path = Path(copy.name)
            weakref.finalize(self, self.path.unlink, missing_ok=True)
            shutil.copyfileobj(stream, copy)


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file of rows. `shown` is its name in messages; ids of rows without one begin with `stem`."""

    path: Path
    format: Format
    shown: str
    stem: str
    stamp: tuple[int, int]
    spool: Spool | None = None

    def rows(self) -> Iterator[Row | Problem]:
        yield from gathered(self.objects()) if self.format in ("jsonl", "json") else self.objects()

    def objects(self) -> Iterator[Row | Problem]:
        """Yield the rows as they are in the file, even if they are spans."""
        with self.opened() as stream:
            match self.format:
                case "jsonl":
                    yield from formats.jsonl(stream, self.shown, self.stem)
                case "csv":
                    yield from formats.csv_rows(stream, self.shown, self.stem)
                case "json" if self._holds_log(stream):
                    yield from inspect_logs.rows(self.path, self.shown)
                case "json":
                    yield from formats.json_rows(stream, self.shown, self.stem)
                case "eval":
                    yield from inspect_logs.rows(self.path, self.shown)
                case "parquet":
                    yield from formats.parquet_rows(self.path, self.shown, self.stem)

    def digest(self) -> str:
        with self.opened() as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def count(self) -> int | None:
        if self.format in ("json", "eval"):
            return None
        with self.opened() as stream:
            if self.format == "parquet":
                return formats.count_parquet(self.path, self.shown)
            if self.format == "csv":
                return formats.count_csv(stream)
            return None if self._holds_spans(stream) else formats.count_jsonl(stream)

    def _holds_spans(self, stream: io.BufferedIOBase) -> bool:
        """Return whether the first row is a span. If so, the number of traces is not known in advance."""
        start = stream.tell()
        first = next(formats.jsonl(stream, self.shown, self.stem), None)
        stream.seek(start)
        return isinstance(first, Row) and is_span(first.values)

    def _holds_log(self, stream: io.BufferedIOBase) -> bool:
        start = stream.tell()
        head = stream.read(inspect_logs.LOOKED_AT)
        stream.seek(start)
        return self.path.suffix.lower() not in PACKED and inspect_logs.is_log(head)

    @contextmanager
    def opened(self) -> Iterator[io.BufferedIOBase]:
        """Yield the file's decompressed bytes. Raises DatasetError if it cannot be read or has changed."""
        try:
            if _stamp(self.path) != self.stamp:
                raise DatasetError(f"{self.shown} has changed since it was opened; load it again")
            with self.path.open("rb") as raw, unpacked(raw, self.path.suffix, self.shown) as stream:
                head = stream.read(4)
                if head == ZIP and self.format in ("csv", "json", "jsonl"):
                    raise DatasetError(f"{self.shown} is a spreadsheet or a zip file; {AS_CSV}, or unpack it")
                if head[:2] in UTF16:
                    raise DatasetError(f"{self.shown} is UTF-16; save it as UTF-8")
                stream.seek(len(BOM) if head[:3] == BOM else 0)
                yield stream
            if _stamp(self.path) != self.stamp:
                raise DatasetError(f"{self.shown} has changed while it was read; load it again")
        except OSError as error:
            raise DatasetError(f"cannot read {self.shown}: {error.strerror or error}") from error


def open_file(name: str | Path) -> FileSource:
    """Return the file at a path, its format by suffix. SpecError if it is missing or of an unknown kind."""
    path = Path(name).expanduser()
    if path.is_dir():
        inside = sorted(child.name for child in path.iterdir() if format_of(child))
        listed = f"; it holds {', '.join(inside[:8])}" if inside else ""
        raise SpecError(f"{name} is a folder, not a file of samples{listed}")
    if not _there(path):
        raise SpecError(f"no file {plain(repr(str(name)), 200)}{_beside(path)}")
    kind = format_of(path)
    if kind is None and path.suffix.lower() in SHEETS:
        raise SpecError(f"{plain(path.name)!r} is a spreadsheet; {AS_CSV} and name that file")
    if kind is None:
        raise SpecError(f"unknown file type {path.name!r}; {READABLE}")
    stem = path.name[: -len("".join(_suffixes(path)))]
    return FileSource(path, kind, str(name), stem or "row", _stamp(path))


def read_stdin() -> FileSource:
    """Read JSONL from standard input into a temporary file, so that it can be hashed and read again."""
    spool = Spool(sys.stdin.buffer)
    return FileSource(spool.path, "jsonl", "stdin", "stdin", _stamp(spool.path), spool)


def looks_like_path(name: str) -> bool:
    """Return whether a command-line argument is a file rather than the name of a set."""
    return not name.startswith(HUB) and (named_like_file(name) or _there(Path(name)))


def named_like_file(name: str) -> bool:
    """Return whether a word has the form of a path or a file name, whether the file exists or not."""
    path = Path(name)
    return len(path.parts) > 1 or name.startswith(("~", ".")) or format_of(path) is not None


def format_of(path: Path) -> Format | None:
    """Return the format of a file by its name, or None if it is not known."""
    suffixes = _suffixes(path)
    kind = FORMATS.get(suffixes[0].lower()) if suffixes else None
    return None if kind in UNPACKED and len(suffixes) > 1 else kind


def _there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # name too long, folder without permission, NUL character
        return False


def _suffixes(path: Path) -> list[str]:
    return path.suffixes[-2:] if path.suffix.lower() in PACKED else path.suffixes[-1:]


def _beside(path: Path) -> str:
    if "\\" in path.name and _there(other := Path(str(path).replace("\\", "/"))):
        return f" (did you mean {str(other)!r}?)"
    folder = path.parent
    if not folder.is_dir():
        return f": there is no folder {str(folder)!r}"
    return near(path.name, (child.name for child in folder.iterdir() if format_of(child)))


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
