"""An SQLite file as a store: its connections, lock files and error messages.

A store without write permission can be read. SQLite then needs special options, since it would otherwise
create files beside it.
"""

from __future__ import annotations

import os
import re
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.pool import NullPool

from magistrate.errors import StoreError

if TYPE_CHECKING:
    from filelock import FileLock

# Checking whether a run is locked takes its lock for a moment; this waits longer than that.
_PATIENCE = 0.3
_PLAIN = re.compile(r"[0-9a-z-]{1,40}")

_ADVICE = {
    "SQLITE_NOTADB": "it is not a Magistrate store and not an SQLite database; choose another path with "
    "--store",
    "SQLITE_CORRUPT": "the file is damaged; restore a backup, or recover what is left with: sqlite3 FILE "
    ".recover",
    "SQLITE_CANTOPEN": "it cannot be opened; check that its folder exists and is writable",
    "SQLITE_READONLY": "its file or folder is read-only; make it writable, or choose another with --store",
    "SQLITE_PERM": "there is no permission to write; make it writable or choose another path with --store",
    "SQLITE_FULL": "the disk is full; free some space and run again, committed data is safe",
    "SQLITE_IOERR": "the disk cannot be written or read (full, over a quota, or failing); free some space "
    "and run again, committed data is safe",
    "SQLITE_BUSY": "another program has locked it; wait for that program or stop it, then run again, "
    "committed data is safe",
    "SQLITE_LOCKED": "a reader in this program has locked it; finish reading first",
}


def engine_on(path: Path, busy_seconds: float) -> Engine:
    """Return an engine on the file at `path`; its parent folders are created."""
    if path.is_dir():
        raise StoreError("it is a folder; give a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"its folder cannot be created ({error.strerror}); choose another path with --store"
        ) from error
    # No pool: a stream that is never read to its end must not leave a connection open.
    engine = create_engine(URL.create("sqlite", database=str(path)), poolclass=NullPool)

    def choose(dialect: Any, record: Any, arguments: list[Any], options: dict[str, Any]) -> None:
        way = reading_only(path)
        if way is not None:
            arguments[0], options["uri"] = f"{path.resolve().as_uri()}?{way}", True

    def configure(connection: Any, record: Any) -> None:
        _configure(connection, busy_seconds, writes=reading_only(path) is None)

    event.listen(engine, "do_connect", choose)
    event.listen(engine, "connect", configure)
    event.listen(engine, "begin", _begin)
    return engine


def reading_only(path: Path) -> str | None:
    """Return the URI query with which SQLite opens a file without write permission; None if it is writable.

    If SQLite cannot create files beside it, it sees concurrent changes only while the files `-wal` and
    `-shm` exist. If they do not, no process is writing, and the file is treated as immutable until the next
    query. Raises `StoreError` if only `-wal` exists.
    """
    real = path.resolve()
    if not real.exists():
        return None
    log, shared = (real.with_name(real.name + ending) for ending in ("-wal", "-shm"))
    if not writable(real.parent) and not (log.exists() and shared.exists()):
        if log.exists() and log.stat().st_size:
            raise StoreError(
                f"its last changes are in {log}, which cannot be read because the folder is read-only; copy "
                "both files to a writable folder, and give the copy with --store"
            )
        return "mode=ro&immutable=1"
    return None if writable(real) else "mode=ro"


def writable(path: Path) -> bool:
    """Return whether this process may write the path. The file is not opened, since that could end a lock."""
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def advice(error: sqlite3.Error) -> str:
    """Return the meaning of the error for a store, and what to do."""
    name = getattr(error, "sqlite_errorname", "")
    for code, words in _ADVICE.items():
        if name == code or name.startswith(f"{code}_"):
            return f"{words} ({error})"
    return f"{error}{f' ({name})' if name else ''}"


def _configure(connection: Any, busy_seconds: float, *, writes: bool) -> None:
    # SQLAlchemy's begin event opens every transaction; the driver must not open its own.
    connection.isolation_level = None
    # A damaged text is reported with its sample and does not stop the reading of the others.
    connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    try:
        connection.execute(f"PRAGMA busy_timeout = {round(busy_seconds * 1000)}")
        if writes:
            _switch_to_wal(connection, busy_seconds)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        # The pool does not know the connection yet and would not close it.
        connection.close()
        raise


@contextmanager
def synced(connection: Connection) -> Iterator[None]:
    """Make commits of this connection wait for the disk. Must not be used within a transaction."""
    driver = connection.connection.driver_connection
    assert driver is not None
    driver.execute("PRAGMA synchronous = FULL")
    try:
        yield
    finally:
        driver.execute("PRAGMA synchronous = NORMAL")


def _switch_to_wal(connection: Any, busy_seconds: float) -> None:
    # SQLite does not wait if two programs switch a new file at once, but fails for one of them.
    deadline = time.monotonic() + busy_seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() >= deadline:
                raise
            time.sleep(0.01)


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


# --- locks --------------------------------------------------------------------------------------


def try_lock(store: Path, run_id: str) -> Callable[[], None] | None:
    """Take a run's lock file and return a function to release it; None if another process has it.

    The operating system frees it when this process ends for any reason.
    """
    path = _lock_path(store, run_id)
    lock = _acquired(path, _PATIENCE)
    if lock is None:
        return None
    with suppress(OSError):  # some systems also lock the bytes against writing
        path.write_text(f"pid {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
    return lambda: _let_go(path, lock)


def holder(store: Path, run_id: str) -> str:
    """Return which process has a run's lock file, as recorded in the file."""
    with suppress(OSError, ValueError):
        return _lock_path(store, run_id).read_text(encoding="utf-8")[:200]
    return ""


def is_locked(store: Path, run_id: str) -> bool:
    """Return whether a process holds the run's lock file. The file of a killed process is removed."""
    path = _lock_path(store, run_id)
    if not path.exists():
        return False
    if not (writable(path) and writable(path.parent)):
        return _seen_held(path)
    lock = _acquired(path, 0)
    if lock is not None:
        _let_go(path, lock)
    return lock is None


def locked_share(store: Path, run_id: str) -> str | None:
    """Return the name of the lock of a share of the run that a process holds, or None."""
    store = store.resolve()
    for path in store.parent.glob(f"{escape(f'{store.name}-{run_id}')}-s*.lock"):
        name = path.name.removeprefix(f"{store.name}-").removesuffix(".lock")
        if is_locked(store, name):
            return name
    return None


def _seen_held(path: Path) -> bool:
    """Check a lock file without write permission. If this is not possible, the run counts as locked."""
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
    # Resolve links, so that a store with two names has one lock.
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
            f"the lock file {path} cannot be created ({error.strerror}); make its folder writable, or choose "
            "another path with --store"
        ) from error
    return lock


def _let_go(path: Path, lock: FileLock) -> None:
    # Unlink while the lock is still held: processes that already opened the file notice that it is gone.
    with suppress(OSError):
        path.unlink()
    lock.release()
