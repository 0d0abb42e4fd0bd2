"""Stores the audit log: who changed what and when.

An entry is inserted in the transaction of its change, so that there is neither without the other. The
database refuses to change or delete entries; see `migrations.seal_audit_log`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, insert, select

from magistrate.errors import InputError
from magistrate.store.schema import StorePart, audit_log

LONGEST = 500  # characters of an object or of details


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """A change: `who` did `action` to `object`. `details` hold neither secrets nor judged text."""

    id: int
    at: datetime
    who: str
    action: str
    object: str
    details: str


def log_change(
    connection: Connection, by: str | None, action: str, object: str, now: datetime, details: str = ""
) -> None:
    """Add an entry within the caller's transaction; nothing without `by`."""
    if by is None:
        return
    row = {"at": now, "who": by, "action": action, "object": object[:LONGEST], "details": details[:LONGEST]}
    connection.execute(insert(audit_log), [row])


def parse_moment(text: str) -> datetime:
    """Parse a date or a time in ISO 8601, in UTC if it names no zone. Raises `InputError`.

    >>> parse_moment("2026-01-02").isoformat()
    '2026-01-02T00:00:00+00:00'
    """
    try:
        found = datetime.fromisoformat(text)
        return (found.replace(tzinfo=UTC) if found.tzinfo is None else found).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InputError(f"a time looks like 2026-01-02 or 2026-01-02T09:30, got {text[:40]!r}") from None


@dataclass(frozen=True, slots=True)
class AuditLog(StorePart):
    """The entries of the audit log, available as `store.audit`."""

    def add(self, by: str, action: str, object: str, details: str = "") -> None:
        """Add an entry for an action that changes nothing in the store itself."""
        with self._writing() as connection:
            log_change(connection, by, action, object, datetime.now(UTC), details)

    def entries(
        self, *, limit: int, who: str | None = None, since: datetime | None = None, before: int | None = None
    ) -> list[AuditEntry]:
        """Return at most `limit` entries, newest first: of `who`, from `since` on, with ids below `before`.

        Without a condition, of everybody and of all time.
        """
        asked = select(audit_log)
        if who is not None:
            asked = asked.where(audit_log.c.who == who)
        if since is not None:
            asked = asked.where(audit_log.c.at >= since)
        if before is not None:
            asked = asked.where(audit_log.c.id < before)
        with self._reading() as connection:
            rows = connection.execute(asked.order_by(audit_log.c.id.desc()).limit(limit))
            return [AuditEntry(**row._mapping) for row in rows]
