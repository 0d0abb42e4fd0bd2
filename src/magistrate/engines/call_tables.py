"""The tables of the cache of calls: opened, begun anew where they are another version's, and emptied."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from magistrate.errors import StoreError

AT_ONCE: Final = 1000  # entries removed together, so that others can write in between
OPENING, ASKING = 2.0, 0.1  # seconds to wait for a lock
PASSING = ("SQLITE_BUSY", "SQLITE_LOCKED")  # later it will work
VERSION: Final = 1  # of the tables; a file of another version is begun anew
APPLICATION: Final = 0x4D614361  # says that a file is ours to begin anew

_TABLES = (
    "DROP TABLE IF EXISTS calls",
    "CREATE TABLE calls (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, model TEXT NOT NULL, "
    "made INTEGER NOT NULL, used INTEGER NOT NULL, size INTEGER NOT NULL, seal BLOB NOT NULL, "
    "value BLOB NOT NULL)",
    "CREATE INDEX calls_by_use ON calls (used, model, size)",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
)


def connect(path: Path) -> sqlite3.Connection:
    """A connection to the file, made where there is none. Raises `sqlite3.Error` and `StoreError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Autocommit; one connection for all threads, behind a lock of its own.
    connection = sqlite3.connect(path, timeout=OPENING, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA cell_size_check = ON")
        if not _is_ours(connection):
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _switch_to_wal(connection)
        # A crash may lose what was written last, never more: the rest is as it was.
        connection.execute("PRAGMA synchronous = NORMAL")
        if not _is_ours(connection):
            with transaction(connection):
                if not _is_ours(connection):  # nobody else was quicker
                    for statement in _TABLES:
                        connection.execute(statement)
        connection.execute(f"PRAGMA busy_timeout = {round(1000 * ASKING)}")
    except BaseException:
        connection.close()
        raise
    return connection


def _is_ours(connection: sqlite3.Connection) -> bool:
    """Whether the tables are there in this version. Raises `StoreError` for another program's database."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION:
        raise StoreError("the file is another program's database, which is left alone")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return bool(tables) and version == VERSION


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    # SQLite does not wait when two programs switch a new file at once: one of them is refused.
    deadline = time.monotonic() + OPENING
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            return
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith(PASSING) or time.monotonic() >= deadline:
                raise
            time.sleep(0.01)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All that the body does, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def oldest(connection: sqlite3.Connection, model: str | None, last: int) -> Iterator[dict[int, int]]:
    """Sizes by id of the entries last used at `last` or before, oldest first; the caller removes them."""
    asked = (
        "SELECT id, size FROM calls WHERE used <= ? AND (? IS NULL OR model = ?) ORDER BY used, id LIMIT ?"
    )
    while several := dict(connection.execute(asked, (last, model, model, AT_ONCE)).fetchall()):
        yield several


def delete(connection: sqlite3.Connection, ids: list[int]) -> None:
    """Remove these entries."""
    with transaction(connection):
        connection.executemany("DELETE FROM calls WHERE id = ?", [(each,) for each in ids])


def give_back(connection: sqlite3.Connection) -> None:
    """Cut what is free off the file, in steps that let others write in between."""
    while connection.execute("PRAGMA freelist_count").fetchone()[0]:
        before = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute("PRAGMA incremental_vacuum(4096)").fetchall()
        if connection.execute("PRAGMA page_count").fetchone()[0] >= before:
            break
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def used_bytes(connection: sqlite3.Connection) -> int:
    """Bytes of the pages that hold something; costs nothing, unlike a sum over all entries."""
    pages = [f"PRAGMA {each}" for each in ("page_count", "freelist_count", "page_size")]
    count, free, size = (connection.execute(each).fetchone()[0] for each in pages)
    return int((count - free) * size)


def facts_of(connection: sqlite3.Connection) -> dict[str, Any]:
    """Entries, bytes and times of use, and both counts by model; reads the whole index."""
    asked = (
        "SELECT model, count(*), total(size), min(used), max(used) FROM calls GROUP BY model ORDER BY model"
    )
    rows = connection.execute(asked).fetchall()
    return {
        "entries": sum(row[1] for row in rows),
        "bytes": int(sum(row[2] for row in rows)),
        "oldest": datetime.fromtimestamp(min(row[3] for row in rows), UTC) if rows else None,
        "newest": datetime.fromtimestamp(max(row[4] for row in rows), UTC) if rows else None,
        "models": {row[0]: (row[1], int(row[2])) for row in rows},
    }
