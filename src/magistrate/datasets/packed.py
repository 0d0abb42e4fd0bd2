"""Packed files, read as the bytes they hold: gzip and Zstandard."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from magistrate.errors import DatasetError

PACKED = (".gz", ".zst")


@contextmanager
def unpacked(raw: io.BufferedReader, suffix: str, shown: str) -> Iterator[io.BufferedIOBase]:
    """The bytes of an open file by its last suffix, which may be none of `PACKED`.

    DatasetError where they are damaged or cut short, also while they are read.
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
    # Python has Zstandard of its own from 3.14 on.
    import sys

    if sys.version_info >= (3, 14):
        from compression.zstd import ZstdError, ZstdFile
    else:
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
    return DatasetError(f"{shown} is not sound {kind} data ({error}); copy it again")
