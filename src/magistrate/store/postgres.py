"""A PostgreSQL database as a store: its connections, locks and error messages."""

from __future__ import annotations

import os
import re
import socket
from hashlib import sha256
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.pool import QueuePool

from magistrate.errors import MissingExtra, StoreError

ABANDONED = 30.0  # seconds that a transaction may be silent; shorter than other programs wait for its locks

_KEPT = "committed data is safe"
_LOST = f"the connection to the server was lost; run again when the server is back, {_KEPT}"
_REFUSED = "the server rejected the user or the password; check the URL, or PGUSER, PGPASSWORD and ~/.pgpass"
_ABSENT = "the server has no such database; create it with: createdb NAME"
_UNREACHED = "the server cannot be reached; check that it is running, and check the host and the port"
# By SQLSTATE, or by a prefix of it, such as its two-character class.
_ADVICE = {
    "08": _LOST,
    "28": _REFUSED,
    "3D": _ABSENT,
    "3F000": "the schema of its search path is not there; make it with: CREATE SCHEMA NAME",
    "22P05": "its encoding cannot store the text; use a database created with ENCODING 'UTF8'",
    "25006": "it is read-only, perhaps a replica; use the primary server",
    "25P03": f"it was silent within a transaction for too long, so the server ended it; run again, {_KEPT}",
    "40": f"another program changed the same rows at the same time; run again, {_KEPT}",
    "42501": "this user may not do that there; use a database or a schema of its own, or have it granted: "
    "GRANT USAGE, CREATE ON SCHEMA public TO that user",
    "53100": f"the server's disk is full; free some space there and run again, {_KEPT}",
    "53200": f"the server ran out of memory; run again later, {_KEPT}",
    "53300": f"the server has no free connection; close some or raise max_connections, {_KEPT}",
    "54000": "an id, a name, a judge or a tag is longer than the limit of an index, about 2,700 bytes; "
    "shorten it",
    "55P03": f"another program has locked it; wait for that program or stop it, then run again, {_KEPT}",
    "57014": f"the server's statement_timeout was too short for this; raise it and run again, {_KEPT}",
    "57P": _LOST,
}
# A refused connection has no SQLSTATE, only a message: the server's after FATAL, or the driver's.
_WORDS = {
    r"authentication failed|no password supplied|role .* does not exist": _REFUSED,
    r"pg_hba\.conf": "the server does not allow this user from this machine; allow it in the server's "
    "pg_hba.conf",
    r"database .* does not exist": _ABSENT,
    r"too many|remaining connection slots": _ADVICE["53300"],
    r"starting up": "the server is starting; run again in a moment",
    r"shutting down": "the server is shutting down; run again when it is back",
    r"(^|: )invalid ": "the URL cannot be used; check the part after the question mark",
}


def engine_on(url: URL, busy_seconds: float) -> Engine:
    """Return an engine on the database at `url`. Raises `MissingExtra` if the driver is not installed."""
    here = f"magistrate, pid {os.getpid()} on {socket.gethostname()}"
    given: dict[str, Any] = {
        "connect_timeout": 10,
        "fallback_application_name": here[:63],
        "client_encoding": "utf8",
        # A lock's connection is idle for hours, and firewalls drop idle connections.
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
    }
    given = {name: value for name, value in given.items() if name not in url.query}
    try:
        engine = create_engine(
            url.set(drivername="postgresql+psycopg"),
            poolclass=QueuePool,
            pool_size=2,
            max_overflow=-1,
            pool_pre_ping=True,
            isolation_level="READ COMMITTED",
            connect_args=given,
        )
    except ImportError as error:
        raise MissingExtra("psycopg", "postgres") from error
    event.listen(engine, "connect", lambda connection, record: _configure(connection, busy_seconds))
    return engine


def _configure(connection: Any, busy_seconds: float) -> None:
    try:
        connection.autocommit = True
        # A lost host must not keep its locks for two hours, the default timeout of operating systems.
        connection.execute(
            f"SET lock_timeout = {round(busy_seconds * 1000)}; SET tcp_keepalives_idle = 60; "
            "SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 6"
        )
        connection.autocommit = False
    except BaseException:
        connection.close()
        raise


def end_if_abandoned(connection: Connection) -> None:
    """Let the server end this session if a transaction of it is silent for `ABANDONED` seconds.

    Otherwise a host that is lost within a transaction keeps its locks until the server notices, which is
    longer than other programs wait for them.
    """
    with connection.begin():
        connection.execute(text(f"SET idle_in_transaction_session_timeout = {round(1000 * ABANDONED)}"))


def check_encoding(connection: Connection) -> None:
    """Raise `StoreError` if the database cannot store every text."""
    encoding = connection.scalar(text("SHOW server_encoding"))
    if encoding != "UTF8":
        raise StoreError(f"its encoding is {encoding}; create a database with: createdb --encoding=UTF8 NAME")


# --- locks --------------------------------------------------------------------------------------


def lock_schema(connection: Connection) -> None:
    """Lock the schema until the transaction ends, so that only one program upgrades it."""
    lock_transaction(connection, "upgrade")


def lock_transaction(connection: Connection, name: str) -> None:
    """Wait for the lock `name` and hold it until the transaction ends."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _key(connection, name)})


def try_lock(connection: Connection, name: str, *, shared: bool = False) -> bool:
    """Take the lock `name` for this connection's session. Returns False if another session has it.

    Several sessions can have it `shared`, and then none alone.
    """
    asked = text(f"SELECT pg_try_advisory_lock{'_shared' if shared else ''}(:key)")
    return connection.scalar(asked, {"key": _key(connection, name)}) is True


def unlock(connection: Connection, name: str, *, shared: bool = False) -> None:
    """Release the lock `name`, taken in the same way."""
    asked = text(f"SELECT pg_advisory_unlock{'_shared' if shared else ''}(:key)")
    connection.execute(asked, {"key": _key(connection, name)})


def holder(connection: Connection, name: str) -> str | None:
    """Return the application name of the program that holds the lock `name`, or None."""
    key = _key(connection, name) % 2**64
    asked = text(
        "SELECT coalesce(a.application_name, '') "
        "FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid "
        "WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 "
        "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
        "AND l.classid = CAST(:high AS oid) AND l.objid = CAST(:low AS oid)"
    )
    words: str | None = connection.scalar(asked, {"high": str(key >> 32), "low": str(key % 2**32)})
    return None if words is None else words.removeprefix("magistrate, ")


def _key(connection: Connection, name: str) -> int:
    # Advisory locks belong to a database, and a database may hold a store in each of its schemas.
    schema = connection.scalar(text("SELECT current_schema()"))
    digest = sha256(f"magistrate\0{schema}\0{name}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


# --- errors -------------------------------------------------------------------------------------


def advice(error: Any, lost: bool) -> str:
    """Return the meaning of psycopg's error for a store, and what to do. `lost`: the connection broke."""
    words = " ".join(str(error).split())
    state = error.sqlstate or ""
    for length in (5, 3, 2):
        if found := _ADVICE.get(state[:length]):
            return f"{found} ({words})"
    if lost:
        return f"{_LOST} ({words})"
    if state:
        return f"{words} ({state})"
    for pattern, found in _WORDS.items():
        if re.search(pattern, words.partition("FATAL:")[2] or words):
            return f"{found} ({words})"
    return f"{_UNREACHED} ({words})"
