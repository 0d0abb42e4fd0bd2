"""Connections to a store: parsing its place, transactions, locks on runs, and error messages."""

from __future__ import annotations

import os
import random
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self, TypeVar

from sqlalchemy import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, ResourceClosedError, StatementError

from magistrate._version import __version__
from magistrate.errors import InputError, SpecError, StoreError
from magistrate.store import postgres, sqlite
from magistrate.store.migrations import LATEST, upgrade
from magistrate.store.schema import is_server, version_of

CLOSED = "it was closed; open it again"
_KNOWN = "known: a path, sqlite:///PATH, postgresql://USER@HOST/DATABASE"
_SERVERS = ("postgresql", "postgres", "postgresql+psycopg")
# The parameters that distinguish stores on one server; anything else in a URL might be a secret.
_SHOWN = ("host", "port", "options")


@dataclass(frozen=True, slots=True, repr=False)
class Place:
    """The location of a store: a `path`, or the `url` of a server's database.

    `words` open it again and may contain a password; `shown` is for people and does not.
    """

    path: Path | None
    url: URL | None
    words: str
    shown: str

    def __repr__(self) -> str:
        return f"Place({self.shown!r})"


def place_of(place: str | os.PathLike[str]) -> Place:
    """Parse a path or a URL. Raises `SpecError` for anything else."""
    words = os.fspath(place)
    if "://" not in words:
        path = _checked_path(words)
        return Place(path, None, str(path), str(path))
    scheme = words.partition("://")[0]
    try:
        url = make_url(words)
    except (ArgumentError, ValueError):
        # The words may contain a password, and the error quotes them, so neither is shown.
        raise SpecError(f"a store's URL {scheme}://… cannot be read; {_KNOWN}") from None
    if url.drivername == "sqlite" and not url.host and not url.query:
        path = _checked_path(url.database or "")
        return Place(path, None, str(path), str(path))
    if url.drivername not in _SERVERS:
        raise SpecError(f"a store cannot use {scheme}://…; {_KNOWN}")
    if "@" in (url.host or "") or "@" in (url.database or ""):
        raise SpecError("a store's URL has more than one @; in a password, write @ as %40 and / as %2F")
    if "password" in url.query:
        url = url.set(password=str(url.query["password"])).difference_update_query(["password"])
    url = url.set(drivername="postgresql")
    query = {name: value for name, value in url.query.items() if name in _SHOWN}
    hidden = URL.create("postgresql", url.username, None, url.host, url.port, url.database, query)
    return Place(None, url, words, hidden.render_as_string())


def exists(place: str | os.PathLike[str]) -> bool:
    """Return whether the file exists. True for a server, where opening it fails if it does not exist."""
    path = place_of(place).path
    return path is None or path.exists()


def open_engine(place: Place, busy_seconds: float) -> Engine:
    """Return an engine on the store at `place`, which is created or upgraded first."""
    with explained(place.shown):
        if place.path is not None:
            engine = sqlite.engine_on(place.path, busy_seconds)
        else:
            assert place.url is not None
            engine = postgres.engine_on(place.url, busy_seconds)
        try:
            with engine.connect() as connection, for_reading(connection).begin():
                found = version_of(connection)
            if found > LATEST:
                raise StoreError(
                    f"it was written by a newer Magistrate (schema {found}, version {__version__} knows "
                    f"{LATEST}); upgrade with: pip install -U magistrate"
                )
            if found < LATEST:
                if place.path is not None and sqlite.reading_only(place.path) is not None:
                    raise StoreError(
                        f"it is from an older Magistrate (schema {found}, this version reads {LATEST}) and "
                        "cannot be upgraded, because its file or folder is read-only; copy it to a writable "
                        "folder, and give the copy with --store"
                    )
                with engine.connect() as connection, for_writing(connection).begin():
                    if is_server(connection):
                        postgres.lock_schema(connection)
                        postgres.check_encoding(connection)
                    upgrade(connection)
        except BaseException:
            engine.dispose()
            raise
    return engine


def for_reading(connection: Connection) -> Connection:
    """Return the connection, set to read a consistent snapshot during a transaction."""
    if is_server(connection):  # SQLite always does
        return connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return connection


def for_writing(connection: Connection) -> Connection:
    """Return the connection, set to take SQLite's write lock when a transaction begins.

    Otherwise a transaction that reads first and writes later may fail at once, without waiting.
    """
    return connection.execution_options(writes=True)


@contextmanager
def explained(shown: str) -> Iterator[None]:
    """Convert a database error into a `StoreError` that names the store and gives advice."""
    try:
        yield
    except StoreError as error:
        if str(error).startswith(f"store {shown}: "):
            raise
        raise StoreError(f"store {shown}: {error}") from error.__cause__
    except ResourceClosedError as error:
        raise StoreError(f"store {shown}: {CLOSED}") from error
    except (StatementError, OverflowError) as error:
        raise StoreError(f"store {shown}: {_advice(error)}") from error
    except Exception as error:
        # Errors that a driver raises while connecting are not wrapped by SQLAlchemy.
        if not (isinstance(error, sqlite3.Error) or _is_psycopg(error)):
            raise
        raise StoreError(f"store {shown}: {_advice(error)}") from error


def _advice(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, sqlite3.Error):
        return sqlite.advice(cause)
    if _is_psycopg(cause):
        return postgres.advice(cause, isinstance(error, DBAPIError) and error.connection_invalidated)
    return str(cause)


def _is_psycopg(error: BaseException) -> bool:
    psycopg = sys.modules.get("psycopg")
    return psycopg is not None and isinstance(error, psycopg.Error)


def _checked_path(words: str) -> Path:
    if words in ("", ":memory:"):
        raise SpecError(f"a store needs a file, got {words!r}; {_KNOWN}")
    if "\0" in words:
        raise SpecError(f"a store's path must not contain a NUL character, got {words!r}")
    return Path(words).expanduser().absolute()


# --- an open store ----------------------------------------------------------------------------------

Value = TypeVar("Value")


class Transactions:
    """Transactions of an open store: one connection for writing, and a new one for every read."""

    def __init__(
        self, place: Place, engine: Engine, clock: Callable[[], datetime], randomness: random.Random
    ) -> None:
        self._place = place
        self._engine = engine
        self._clock = clock
        self._randomness = randomness
        self._writer = for_writing(engine.connect())
        if is_server(self._writer):
            postgres.end_if_abandoned(self._writer)

    @property
    def place(self) -> str:
        """The place that opens this store again: a path, or a URL with its password."""
        return self._place.words

    @property
    def shown(self) -> str:
        """The place without a password, for people."""
        return self._place.shown

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shown!r})"

    def close(self) -> None:
        """Close the connections. The store cannot be used afterwards."""
        self._writer.close()
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with explained(self.shown), self._writer.begin():
            yield self._writer

    @contextmanager
    def _writing_for_good(self) -> Iterator[Connection]:
        """Open a transaction like `_writing` whose commit also survives a power failure."""
        with explained(self.shown):
            if self._place.path is None:  # a server always waits for its disk
                with self._writer.begin():
                    yield self._writer
                return
            with sqlite.synced(self._writer), self._writer.begin():
                yield self._writer

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """Open a connection that reads a consistent snapshot."""
        with explained(self.shown):
            if self._writer.closed:
                raise StoreError(CLOSED)
            with self._engine.connect() as connection:
                try:
                    with for_reading(connection).begin():
                        yield connection
                finally:
                    if self._writer.closed:
                        # A stream that outlives its store cannot return its connection to a pool.
                        connection.invalidate()

    def _stream(self, question: Callable[[Connection], Iterator[Value]]) -> Iterator[Value]:
        with self._reading() as connection:
            yield from question(connection)

    def _now(self) -> datetime:
        now = self._clock()
        if now.tzinfo is None:
            raise InputError(
                f"the clock returned a time without a zone: {now.isoformat()}; use datetime.now(UTC)"
            )
        return now.astimezone(UTC)


# --- locks on runs ------------------------------------------------------------------------------


class RunLock:
    """An exclusive lock to judge one run, until it is released or the process ends; a context manager."""

    def __init__(self, run_id: str, release: Callable[[], None]) -> None:
        self.run_id = run_id
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _busy(run_id: str, share: int | None, holder: str) -> StoreError:
    """Return the error for a run that another process is judging. `holder` names it, if known."""
    by = f"another process ({holder})" if holder else "another process"
    what = f"run {run_id}" if share is None else f"share {share} of run {run_id}, or all of it,"
    return StoreError(f"{what} is being judged by {by}; wait for it or stop it")


def hold(place: Place, engine: Engine, run_id: str, share: int | None = None) -> RunLock:
    """Lock the run, or one share of it, so that only one process judges it.

    Raises `StoreError` with the holder if it is locked. A run and a share of it are not locked at once.
    """
    if place.path is None:
        return _hold_session(engine, run_id, share)
    path, name = place.path, run_id if share is None else share_name(run_id, share)
    release = sqlite.try_lock(path, name)
    if release is None:
        raise _busy(run_id, share, sqlite.holder(path, name))
    # Each takes its own lock before it looks for the other's, so that at least one sees the other.
    if share is None:
        other = sqlite.locked_share(path, run_id)
    else:
        other = run_id if sqlite.is_locked(path, run_id) else None
    if other is not None:
        release()
        raise _busy(run_id, share, sqlite.holder(path, other))
    return RunLock(run_id, release)


def share_name(run_id: str, share: int) -> str:
    """Return the name of the lock of a share."""
    return f"{run_id}-s{share}"


def held(place: Place, engine: Engine, run_id: str) -> bool:
    """Return whether a process holds the lock of the run or of a share of it."""
    if place.path is not None:
        return sqlite.is_locked(place.path, run_id) or sqlite.locked_share(place.path, run_id) is not None
    with engine.connect() as connection:
        return postgres.holder(connection, run_id) is not None


def _hold_session(engine: Engine, run_id: str, share: int | None) -> RunLock:
    """Take advisory locks of the server, which are freed when this connection ends for any reason.

    A process that judges a share has the run's lock together with those that judge other shares.
    """
    connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    # Detached from the pool, so that closing it ends the session.
    connection.detach()
    names = {run_id: share is not None}
    if share is not None:
        names[share_name(run_id, share)] = False
    try:
        for name, shared in names.items():
            if not postgres.try_lock(connection, name, shared=shared):
                raise _busy(run_id, share, postgres.holder(connection, name) or "")
    except BaseException:
        connection.close()
        raise

    def release() -> None:
        # The server frees the locks only some time after the connection has ended, so unlock explicitly.
        # If the connection is lost, so are the locks.
        with connection, suppress(DBAPIError):
            for name, shared in names.items():
                postgres.unlock(connection, name, shared=shared)

    return RunLock(run_id, release)
