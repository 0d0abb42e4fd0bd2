"""Write model folders atomically: a folder exists completely or not at all.

The work is done in a hidden folder next to the target, which is renamed at the end. A file lock, which the
operating system releases when its process ends, lets one process work while others wait for its result.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from magistrate.errors import ModelError

Report = Callable[[str, int, "int | None"], None]

CHUNK = 1 << 20
POLL_SECONDS = 0.2
FULL_SIGNS = (
    "No space left on device",
    "File too large",
    "Disk quota exceeded",
    "not enough space on the disk",
)
_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


def quiet(stage: str, done: int, total: int | None) -> None:
    """Do nothing: a report function that ignores its input."""


@contextlib.contextmanager
def claimed(target: Path, report: Report = quiet) -> Iterator[Path]:
    """Yield an empty scratch folder next to `target` for this process alone; it is removed at the end.

    Waits while another process works on the same target. Removes scratch folders of killed processes. Disk
    errors become `ModelError`.
    """
    with on_disk(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent / f".{target.name}.lock", report):
            _sweep(target)
            # A new name each time: a child of a killed process may still be writing to the old one.
            scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
            try:
                yield scratch
            finally:
                # Such a child may have written while the old folder was removed, so remove again.
                _sweep(target)


def publish(folder: Path, target: Path, scratch: Path) -> None:
    """Rename a finished `folder` to `target`, replacing an existing one."""
    for path in folder.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    if target.exists():
        target.rename(scratch / "replaced")
    folder.rename(target)


@contextlib.contextmanager
def on_disk(folder: Path) -> Iterator[None]:
    """Turn disk errors below `folder` into a `ModelError` that says what to do."""
    try:
        yield
    except BrokenPipeError:  # the reader of a report is gone; the disk is fine
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise ModelError(full(folder)) from error
        raise ModelError(
            f"cannot write the model under {folder}: {error.strerror or error}; "
            "check its permissions or set MAGISTRATE_HOME to another folder"
        ) from error


def full(folder: Path) -> str:
    """Return the error message for a full disk."""
    return (
        f"the disk is full: the model does not fit under {folder}; partial files were removed; free some "
        "space or set MAGISTRATE_HOME to a folder on a larger disk"
    )


def need(folder: Path, size: int, what: str) -> None:
    """Raise `ModelError` before anything is written if `size` bytes do not fit under `folder`."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise ModelError(
            f"{what} needs {size / 1e6:,.0f} MB but only {free / 1e6:,.0f} MB are free under {folder}; "
            "free some space or set MAGISTRATE_HOME to a folder on a larger disk"
        )


def copy(source: IO[bytes], target: Path, limit: int, report: Report = quiet) -> str:
    """Copy a stream into a new file and return its sha256. More than `limit` bytes are an error."""
    digest, done = hashlib.sha256(), 0
    with target.open("xb") as out:
        while chunk := source.read(CHUNK):
            done += len(chunk)
            if done > limit:
                raise ModelError(f"the file is longer than the {limit:,} bytes that the catalogue pins")
            digest.update(chunk)
            out.write(chunk)
            report("unpack", done, limit)
    return digest.hexdigest()


def sha256(path: Path, report: Report = quiet) -> str:
    """Return the sha256 of a file; cached in this process for the same size and modification time."""
    stat = path.stat()
    return _sha256(path.resolve(), stat.st_size, stat.st_mtime_ns, _Ignored(report))


class _Ignored:
    """A callback that is not part of the cache key."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Ignored)

    def __hash__(self) -> int:
        return 0


@functools.lru_cache(maxsize=64)
def _sha256(path: Path, size: int, _modified: int, callback: _Ignored) -> str:
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            callback.report("verify", done, size)
    return digest.hexdigest()


def _sweep(target: Path) -> None:
    for scratch in target.parent.glob(f".{target.name}.partial-*"):
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path, report: Report) -> Iterator[None]:
    from filelock import FileLock, Timeout

    lock = FileLock(path, thread_local=False)
    while True:
        try:
            lock.acquire(timeout=0)
            break
        except Timeout:
            report("wait", 0, None)
            time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        lock.release()
