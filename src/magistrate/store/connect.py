"""From a path to a connection with the right pragmas, and from a database's error to what to do."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, ResourceClosedError, StatementError
from sqlalchemy.pool import NullPool

from magistrate.errors import SpecError, StoreError
from magistrate.store.migrations import LATEST, upgrade, version

CLOSED = "it was closed; open it again"
_KNOWN = "known: a path, sqlite:///PATH"
_ADVICE = {
    "SQLITE_NOTADB": "it is not a Magistrate store nor any SQLite database; choose another path with --store",
    "SQLITE_CORRUPT": "the file is damaged; restore a copy, or save the rest with: sqlite3 FILE .recover",
    "SQLITE_CANTOPEN": "it cannot be opened; check that its folder exists and that you may write there",
    "SQLITE_READONLY": "its file or folder is read-only; allow writing or choose another path with --store",
    "SQLITE_PERM": "you may not write there; allow writing or choose another path with --store",
    "SQLITE_FULL": "the disk is full; free some space and run again, what was committed is kept",
    "SQLITE_IOERR": "the disk cannot be written or read: full, over a quota, or failing; "
    "free some space and run again, what was committed is kept",
    "SQLITE_BUSY": "another program keeps it locked; wait for that program or end it, then run again, "
    "what was committed is kept",
    "SQLITE_LOCKED": "a reader of this program keeps it locked; finish reading first",
}


def sqlite_path(place: str | os.PathLike[str]) -> Path:
    """The file that a path or an `sqlite:///PATH` URL names; `SpecError` for anything else."""
    words = os.fspath(place)
    if "://" in words:
        try:
            url = make_url(words)
        except (ArgumentError, ValueError) as error:
            # The words may hold a password, so only what stands before them is shown.
            raise SpecError(f"a store's URL {words.split('://')[0]}://… cannot be read; {_KNOWN}") from error
        if url.get_backend_name() != "sqlite" or url.host or url.query:
            raise SpecError(f"a store cannot be at {url.render_as_string(hide_password=True)!r}; {_KNOWN}")
        words = url.database or ""
    if words in ("", ":memory:"):
        raise SpecError(f"a store needs a file, got {os.fspath(place)!r}; {_KNOWN}")
    if "\0" in words:
        raise SpecError(f"a store's path may not hold a NUL character, got {words!r}")
    return Path(words).expanduser().absolute()


def open_engine(path: Path, busy_seconds: float) -> Engine:
    """An engine on the store at `path`, which is created or upgraded first."""
    with explained(path):
        if path.is_dir():
            raise StoreError("it is a folder; name a file in it")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"its folder cannot be made ({error.strerror}); choose another path with --store"
            ) from error
        # No pool: a stream that is never read to its end must not leave a connection open behind it.
        engine = create_engine(URL.create("sqlite", database=str(path)), poolclass=NullPool)
        event.listen(engine, "connect", lambda connection, record: _configure(connection, busy_seconds))
        event.listen(engine, "begin", _begin)
        try:
            with engine.connect() as connection, connection.begin():
                found = version(connection)
            if found < LATEST:
                with engine.connect() as connection, for_writing(connection).begin():
                    upgrade(connection)
        except BaseException:
            engine.dispose()
            raise
    return engine


def for_writing(connection: Connection) -> Connection:
    """The connection, made to take the write lock when a transaction begins.

    A transaction that reads first and writes later can be refused at once, without waiting.
    """
    return connection.execution_options(writes=True)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn a database's error into a `StoreError` that names the store and says what to do."""
    try:
        yield
    except StoreError as error:
        raise StoreError(f"store {path}: {error}") from error.__cause__
    except ResourceClosedError as error:
        raise StoreError(f"store {path}: {CLOSED}") from error
    except (StatementError, sqlite3.Error, OverflowError) as error:
        raise StoreError(f"store {path}: {_advice(getattr(error, 'orig', error))}") from error


def _advice(error: BaseException | None) -> str:
    name = getattr(error, "sqlite_errorname", "")
    for code, advice in _ADVICE.items():
        if name == code or name.startswith(f"{code}_"):
            return f"{advice} ({error})"
    return f"{error}{f' ({name})' if name else ''}"


def _configure(connection: Any, busy_seconds: float) -> None:
    # SQLAlchemy's begin event opens every transaction; the driver must not open its own.
    connection.isolation_level = None
    try:
        connection.execute(f"PRAGMA busy_timeout = {round(busy_seconds * 1000)}")
        _switch_to_wal(connection, busy_seconds)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        # The pool does not know the connection yet and would leave it open.
        connection.close()
        raise


def _switch_to_wal(connection: Any, busy_seconds: float) -> None:
    # SQLite does not wait when two programs switch a new file at once: one of them is refused.
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
