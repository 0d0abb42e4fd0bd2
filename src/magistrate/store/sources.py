"""Stores the cursors of `watch pull`: how far each other server was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select

from magistrate.store.codec import dumps, loads
from magistrate.store.schema import insert_or, sources

Transaction = Callable[[], AbstractContextManager[Connection]]


@dataclass(frozen=True, slots=True)
class Sources:
    """The cursors of sources by name, available as `store.sources`."""

    _writing: Transaction
    _reading: Transaction

    def cursor(self, name: str) -> Mapping[str, Any] | None:
        """Return the cursor of a source; None if it was never read."""
        with self._reading() as connection:
            body = connection.scalar(select(sources.c.cursor).where(sources.c.name == name))
        return None if body is None else loads(body)

    def keep(self, name: str, cursor: Mapping[str, Any], now: datetime) -> None:
        """Store the cursor of a source, after its spans were stored. Committed when this returns."""
        with self._writing() as connection:
            row = {"name": name, "cursor": dumps(dict(cursor)), "changed_at": now}
            adding = insert_or(connection, sources).values(row)
            new = {each: adding.excluded[each] for each in ("cursor", "changed_at")}
            connection.execute(adding.on_conflict_do_update(index_elements=["name"], set_=new))
