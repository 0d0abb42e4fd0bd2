"""Locks on runs: one process at a time may judge a run, and its lock ends with it."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from magistrate.errors import StoreError
from magistrate.store import postgres, sqlite
from magistrate.store.connection import Place

if TYPE_CHECKING:
    from filelock import FileLock

# Somebody who only asks whether a run is held takes its lock for a moment; this outlasts that.
_PATIENCE = 0.3
_PLAIN = re.compile(r"[0-9a-z-]{1,40}")


class RunLock:
    """The right to judge one run, until it is let go or the process ends; a context manager."""

    def __init__(self, run_id: str, release: Callable[[], None]) -> None:
        self.run_id = run_id
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Let others judge the run; again does nothing."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _busy(run_id: str, holder: str) -> StoreError:
    """The error of a run that somebody else is judging; `holder` says who, if that is known."""
    by = f"another process ({holder})" if holder else "another process"
    return StoreError(f"run {run_id} is being judged by {by}; wait for it or end it")


def hold(place: Place, engine: Engine, run_id: str) -> RunLock:
    """Take the run's lock, or raise `StoreError` naming who has it."""
    if place.path is not None:
        return _hold_file(place.path, run_id)
    return _hold_session(engine, run_id)


def held(place: Place, engine: Engine, run_id: str) -> bool:
    """Does some process hold the run's lock?"""
    if place.path is not None:
        return _file_held(place.path, run_id)
    with engine.connect() as connection:
        return postgres.holder(connection, run_id) is not None


# --- on a server --------------------------------------------------------------------------------


def _hold_session(engine: Engine, run_id: str) -> RunLock:
    """Take an advisory lock of the server, which it frees when this connection ends, however it does."""
    connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    # Not the pool's any more: closing it ends the session.
    connection.detach()
    try:
        if not postgres.try_lock(connection, run_id):
            raise _busy(run_id, postgres.holder(connection, run_id) or "")
    except BaseException:
        connection.close()
        raise

    def release() -> None:
        # The server frees the lock a moment after the connection has ended; others should not see that.
        # Where the connection is lost, so is the lock.
        with connection, suppress(DBAPIError):
            postgres.unlock(connection, run_id)

    return RunLock(run_id, release)


# --- beside an SQLite file ----------------------------------------------------------------------


def _hold_file(store: Path, run_id: str) -> RunLock:
    """Take the run's lock file, which the operating system frees when this process ends, however it does."""
    path = _lock_path(store, run_id)
    lock = _acquired(path, _PATIENCE)
    if lock is None:
        holder = ""
        with suppress(OSError, ValueError):
            holder = path.read_text(encoding="utf-8")[:200]
        raise _busy(run_id, holder)
    with suppress(OSError):  # a system that locks the bytes too will not have them written
        path.write_text(f"pid {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
    return RunLock(run_id, lambda: _let_go(path, lock))


def _file_held(store: Path, run_id: str) -> bool:
    """Does some process hold the run's lock file? One that a killed process left is cleared away."""
    path = _lock_path(store, run_id)
    if not path.exists():
        return False
    if not (sqlite.writable(path) and sqlite.writable(path.parent)):
        return _seen_held(path)
    lock = _acquired(path, 0)
    if lock is not None:
        _let_go(path, lock)
    return lock is None


def _seen_held(path: Path) -> bool:
    """The same of a file that cannot be written; without a way to know, a run is at work as it says."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    return False


def _lock_path(store: Path, run_id: str) -> Path:
    # Through links, so that a store of two names has one lock.
    store = store.resolve()
    name = run_id if _PLAIN.fullmatch(run_id) else sha256(run_id.encode("utf-8", "replace")).hexdigest()
    return store.with_name(f"{store.name}-{name}.lock")


def _acquired(path: Path, patience: float) -> FileLock | None:
    from filelock import FileLock, Timeout

    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=patience, poll_interval=0.02)
    except Timeout:
        return None
    except OSError as error:
        raise StoreError(
            f"the lock file {path} cannot be made ({error.strerror}); allow writing in its folder, "
            "or choose another path with --store"
        ) from error
    return lock


def _let_go(path: Path, lock: FileLock) -> None:
    # While it is still ours: whoever opened the file before notices that it has no name any more.
    with suppress(OSError):
        path.unlink()
    lock.release()
