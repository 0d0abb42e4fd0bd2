"""The SQLite file of cached engine calls, shared by threads, programs and runs."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from magistrate import _logging
from magistrate._paths import default_cache
from magistrate.errors import SpecError, StoreError

MOST_BYTES: Final = 2 << 30
OVERHEAD: Final = 200  # bytes of an entry besides its value and its model's name
COARSE: Final = 3600  # seconds by which the time of last use may be wrong, so that most hits need no write
TOUCHES: Final = 512  # hits whose times of use are written in one batch
PAUSE: Final = 1.0  # seconds without writing after another program kept the file locked
_GET = "SELECT value, seal, used FROM calls WHERE key = ?"
_PUT = "INSERT OR REPLACE INTO calls (key, model, made, used, size, seal, value) VALUES (?, ?, ?, ?, ?, ?, ?)"
_TOUCH = "UPDATE calls SET used = ? WHERE key = ? AND used < ?"
_UNWRITABLE = ("SQLITE_FULL", "SQLITE_READONLY", "SQLITE_IOERR", "SQLITE_PERM")  # reading may continue
DAMAGE = (sqlite3.Error, TypeError, ValueError, OverflowError)  # the last three: rows with unexpected content
AT_ONCE: Final = 1000  # entries removed together, so that others can write in between
OPENING, ASKING = 2.0, 0.1  # seconds to wait for a lock: when opening, and per request
PASSING = ("SQLITE_BUSY", "SQLITE_LOCKED")  # temporary: a retry can succeed
VERSION: Final = 1  # of the tables; a file of another version is emptied
APPLICATION: Final = 0x4D614361  # marks a file as ours, which may be emptied
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_ADVICE = "; remove it (the default cache with: magistrate cache prune --all)"

_TABLES = (
    "DROP TABLE IF EXISTS calls",
    "CREATE TABLE calls (id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, model TEXT NOT NULL, "
    "made INTEGER NOT NULL, used INTEGER NOT NULL, size INTEGER NOT NULL, seal BLOB NOT NULL, "
    "value BLOB NOT NULL)",
    "CREATE INDEX calls_by_use ON calls (used, model, size)",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
)


@dataclass(frozen=True, slots=True)
class Kept:
    """The number of entries and their approximate size in bytes."""

    entries: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """The contents of the file, and the counters of this `CallCache`.

    `oldest` and `newest` are the times (UTC) of the entries' last use, accurate to an hour. `file_bytes` is
    the size on disk. `hits`, `misses`, `kept`, `not_kept` and `unreadable` count calls since it was opened,
    and `troubles` counts failures of the file. `trouble` is the reason why it is no longer used, or None.
    """

    path: Path
    entries: int = 0
    bytes: int = 0
    file_bytes: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    models: Mapping[str, Kept]
    hits: int
    misses: int
    kept: int
    not_kept: int
    unreadable: int
    troubles: int
    trouble: str | None


_left: list[sqlite3.Connection | None] = []  # connections of a parent process, kept alive but never closed


class CallCache:
    """Stores bytes by key in an SQLite file. Reads and writes never raise; an unreadable entry is a miss.

    The first failure is logged as a warning (`cache.trouble`). All are counted in `stats()`.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """Set up the fields without opening the file; use `CallCache.open`."""
        self.path = path
        self.trouble: str | None = None
        self.damaged = False
        self._clock = clock
        self._log = _logging.get("cache")
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._writing = True
        self._paused_at = float("-inf")
        self._touched: dict[bytes, int] = {}
        self._hits = self._misses = self._kept = self._not_kept = self._unreadable = self._troubles = 0

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        most_bytes: int = MOST_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> CallCache:
        """Open the cache in a file (default: `cache.db` in Magistrate's folder), which is created if missing.

        If it contains more than `most_bytes`, the least recently used entries are removed. `clock` returns
        seconds since 1970. Never raises: if the file cannot be used, nothing is found or stored, and
        `trouble` is the reason.
        """
        cache = cls(Path(path) if path is not None else default_cache(), clock)
        try:
            cache._connection = _connect(cache.path)
            if _used_bytes(cache._connection) > most_bytes:
                done = cache._remove(max_bytes=most_bytes * 9 // 10)
                cache._log.info("cache.pruned", path=cache.path, entries=done.entries, bytes=done.bytes)
        except (*DAMAGE, OSError, StoreError) as error:
            cache._fail(error, final=True)
        else:
            cache._log.debug("cache.opened", path=cache.path)
        return cache

    def __enter__(self) -> CallCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def abandon(self) -> None:
        """Drop the connection without closing it, as a forked child must. The cache then counts as closed."""
        self._lock = threading.RLock()
        _left.append(self._connection)
        self._connection = None
        self._touched = {}

    @property
    def usable(self) -> bool:
        """Whether the file is open: False after a permanent failure and after `close`."""
        return self._connection is not None

    def close(self) -> None:
        """Write the times of use and close the file. Afterwards nothing is found or stored."""
        with self._lock:
            self._write_touches()
            self._disconnect()

    @staticmethod
    def discard(path: Path) -> int:
        """Remove the file, whatever it contains, and return its size in bytes. Raises `StoreError`."""
        freed = 0
        for each in files(path):
            try:
                size = each.stat().st_size
                each.unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StoreError(f"cache {each}: it cannot be removed ({error.strerror})") from error
            freed += size
        return freed

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, or None if there is no intact one."""
        with self._lock:
            row = None
            if self._connection is not None:
                try:
                    row = self._connection.execute(_GET, (key,)).fetchone()
                except DAMAGE as error:
                    self._fail(error)
            if row is None:
                self._misses += 1
                return None
            value, seal, used = row
            if not isinstance(value, bytes) or seal != _seal(key, value):
                self._misses += 1
                self._unreadable += 1
                self._log.warning("cache.unreadable", path=self.path, reason="a stored value has changed")
                return None
            self._hits += 1
            now = int(self._clock())
            if not isinstance(used, int) or now - used >= COARSE:
                self._touched[key] = now
                if len(self._touched) >= TOUCHES:
                    self._write_touches()
            return value

    def put(self, key: bytes, value: bytes, model: str) -> None:
        """Store `value` for later calls of `get`, also from other programs, if possible."""
        with self._lock:
            now = self._clock()
            if self._connection is None or not self._writing or 0 <= now - self._paused_at < PAUSE:
                self._not_kept += 1
                return
            size = len(value) + 2 * len(model) + OVERHEAD
            row = (key, model, int(now), int(now), size, _seal(key, value), value)
            try:
                self._connection.execute(_PUT, row)
                self._kept += 1
            except DAMAGE as error:
                self._not_kept += 1
                self._fail(error, writing=True)

    def unread(self, key: bytes, error: Exception) -> None:
        """Count a hit whose value could not be parsed as a miss instead."""
        with self._lock:
            self._hits -= 1
            self._misses += 1
            self._unreadable += 1
            self._touched.pop(key, None)
        self._log.info("cache.unreadable", path=self.path, reason=f"{type(error).__name__}: {error}")

    def refused(self, error: Exception) -> None:
        """Count an answer that cannot be stored because it cannot be serialized."""
        with self._lock:
            self._not_kept += 1
        self._log.info("cache.refused", reason=f"{type(error).__name__}: {error}")

    def stats(self) -> CacheStats:
        """Return statistics of the file and of this process; reads the whole index."""
        with self._lock:
            self._write_touches()
            facts: dict[str, Any] = {}
            if self._connection is not None:
                try:
                    facts = _facts(self._connection)
                except DAMAGE as error:
                    self._fail(error)
            models = {name: Kept(*counts) for name, counts in facts.pop("models", {}).items()}
            return CacheStats(
                path=self.path,
                models=models,
                file_bytes=sum(each.stat().st_size for each in files(self.path) if each.exists()),
                hits=self._hits,
                misses=self._misses,
                kept=self._kept,
                not_kept=self._not_kept,
                unreadable=self._unreadable,
                troubles=self._troubles,
                trouble=self.trouble,
                **facts,
            )

    def prune(
        self,
        *,
        older_than: timedelta | None = None,
        max_bytes: int | None = None,
        model: str | None = None,
        everything: bool = False,
    ) -> Kept:
        """Remove entries, shrink the file and return what was removed.

        `older_than` removes entries unused for that long. `max_bytes` removes the least recently used ones
        until the rest fits. `model` limits both to its entries, or alone removes all of them. Raises
        `SpecError` if no argument is given, and `StoreError` if the file cannot be changed.
        """
        if not everything and older_than is None and max_bytes is None and model is None:
            raise SpecError("choose what to remove: older_than, max_bytes, model or everything")
        if (max_bytes or 0) < 0 or (older_than or timedelta()) < timedelta():
            raise SpecError(f"older_than and max_bytes must not be negative, got {older_than}, {max_bytes}")
        with self._lock:
            if self._connection is None:
                raise StoreError(f"cache {self.path}: {self.trouble or 'it was closed; open it again'}")
            self._write_touches()
            try:
                done = self._remove(None if everything else older_than, max_bytes, model, everything)
            except DAMAGE as error:
                self._fail(error)
                why = self.trouble or "another program has locked it; wait, then try again"
                raise StoreError(f"cache {self.path}: {why}") from error
        self._log.info("cache.pruned", path=self.path, entries=done.entries, bytes=done.bytes)
        return done

    # ------------------------------------------------------------------------------------------------

    def _remove(
        self,
        older_than: timedelta | None = None,
        max_bytes: int | None = None,
        model: str | None = None,
        everything: bool = False,
    ) -> Kept:
        assert self._connection is not None
        connection, entries, freed = self._connection, 0, 0
        last = (1 << 62) if older_than is None else int(self._clock() - older_than.total_seconds())
        whole = everything or (max_bytes is None and older_than is None)
        if whole or older_than is not None:
            for batch in _oldest(connection, model, last):
                entries, freed = entries + len(batch), freed + sum(batch.values())
                _delete(connection, list(batch))
        if max_bytes is not None and not whole:
            asked = "SELECT total(size) FROM calls WHERE ? IS NULL OR model = ?"
            excess = int(connection.execute(asked, (model, model)).fetchone()[0]) - max_bytes
            for batch in _oldest(connection, model, 1 << 62) if excess > 0 else ():
                chosen = []
                for each, size in batch.items():
                    if excess <= 0:
                        break
                    chosen.append(each)
                    entries, freed, excess = entries + 1, freed + size, excess - size
                _delete(connection, chosen)
                if excess <= 0:
                    break
        _shrink(connection)
        return Kept(entries, freed)

    def _write_touches(self) -> None:
        """Write pending times of use together. On failure they are lost; they only order the pruning."""
        touched, self._touched = self._touched, {}
        if self._connection is None or not self._writing or not touched:
            return
        try:
            with _transaction(self._connection):
                self._connection.executemany(_TOUCH, [(used, key, used) for key, used in touched.items()])
        except sqlite3.Error as error:
            self._fail(error, writing=True)

    def _fail(self, error: Exception, *, writing: bool = False, final: bool = False) -> None:
        """React to a failure: pause writing, stop writing, or close the file."""
        self._troubles += 1
        name = getattr(error, "sqlite_errorname", None) or ""
        reason = f"{error}{f' ({name})' if name else ''}"
        unexpected = not isinstance(error, sqlite3.Error | OSError | StoreError)
        if name.startswith(_DAMAGED) or (unexpected and not writing):
            self.damaged, reason = True, f"the file is damaged: {reason}{_ADVICE}"
        if name.startswith(PASSING) and not final:
            effect = "answers that could not be stored will be requested again"
            self._paused_at = self._clock() if writing else self._paused_at
        elif writing and name.startswith(_UNWRITABLE):
            effect, self._writing = "no more answers are stored; existing ones are still used", False
        elif writing and unexpected:
            effect = "this answer is not stored"
        else:
            effect = "it is not used"
            self.trouble = reason
            self._disconnect()
        tell = self._log.warning if self._troubles == 1 else self._log.debug
        tell("cache.trouble", path=self.path, reason=reason, effect=effect)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except sqlite3.Error as error:
                self._log.debug("cache.trouble", path=self.path, reason=str(error), effect="it was closing")


def files(path: Path) -> tuple[Path, Path, Path]:
    """Return the cache's file and the two that SQLite keeps next to it while it is in use."""
    return path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def _seal(key: bytes, value: bytes) -> bytes:
    """Return a checksum that detects a change on disk; SQLite does not check contents."""
    return blake2b(b"%d:%b%b" % (len(key), key, value), digest_size=8).digest()


# --- the tables ----------------------------------------------------------------------------------


def _connect(path: Path) -> sqlite3.Connection:
    """Open the file, creating it if missing. Raises `sqlite3.Error` and `StoreError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Autocommit; all threads share one connection, guarded by our own lock.
    connection = sqlite3.connect(path, timeout=OPENING, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA cell_size_check = ON")
        if not _is_ours(connection):
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _switch_to_wal(connection)
        # A crash may lose the last writes but never damages the rest.
        connection.execute("PRAGMA synchronous = NORMAL")
        if not _is_ours(connection):
            with _transaction(connection):
                if not _is_ours(connection):  # no other program was faster
                    for statement in _TABLES:
                        connection.execute(statement)
        connection.execute(f"PRAGMA busy_timeout = {round(1000 * ASKING)}")
    except BaseException:
        connection.close()
        raise
    return connection


def _is_ours(connection: sqlite3.Connection) -> bool:
    """Return whether the tables exist in this version. Raises `StoreError` for another program's database."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION:
        raise StoreError("the file is a database of another program and is not changed")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return bool(tables) and version == VERSION


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    # If two programs switch a new file at once, SQLite does not wait: one of them fails.
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
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the body in a transaction: all of it is done, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _oldest(connection: sqlite3.Connection, model: str | None, last: int) -> Iterator[dict[int, int]]:
    """Yield batches {id: size} of entries last used by `last`, oldest first; the caller deletes them."""
    asked = (
        "SELECT id, size FROM calls WHERE used <= ? AND (? IS NULL OR model = ?) ORDER BY used, id LIMIT ?"
    )
    while batch := dict(connection.execute(asked, (last, model, model, AT_ONCE)).fetchall()):
        yield batch


def _delete(connection: sqlite3.Connection, ids: list[int]) -> None:
    """Delete the entries with these ids."""
    with _transaction(connection):
        connection.executemany("DELETE FROM calls WHERE id = ?", [(each,) for each in ids])


def _shrink(connection: sqlite3.Connection) -> None:
    """Release free pages of the file, in steps that let others write in between."""
    while connection.execute("PRAGMA freelist_count").fetchone()[0]:
        before = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute("PRAGMA incremental_vacuum(4096)").fetchall()
        if connection.execute("PRAGMA page_count").fetchone()[0] >= before:
            break
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _used_bytes(connection: sqlite3.Connection) -> int:
    """Return the size of the pages in use; cheap, unlike a sum over all entries."""
    pages = [f"PRAGMA {each}" for each in ("page_count", "freelist_count", "page_size")]
    count, free, size = (connection.execute(each).fetchone()[0] for each in pages)
    return int((count - free) * size)


def _facts(connection: sqlite3.Connection) -> dict[str, Any]:
    """Return entry counts, sizes and times of use, in total and per model; reads the whole index."""
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
