"""Revisions of rules that were saved on the page: what was written, and whether the rule is on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, insert, select

from magistrate.store.audit import log_change
from magistrate.store.schema import StorePart, rule_edits, stop_writers


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleEdit:
    """One revision of a rule. `text` is its YAML, `base` the digest of the rule in the file then."""

    rule: str
    revision: int
    made_at: datetime
    base: str
    text: str
    enabled: bool


@dataclass(frozen=True, slots=True)
class RuleEdits(StorePart):
    """The revisions of rules, available as `store.rule_edits`. None is ever changed."""

    def newest(self) -> dict[str, RuleEdit]:
        """Return the newest revision of every rule that has some, by the rule's name."""
        last = select(rule_edits.c.rule, func.max(rule_edits.c.revision).label("revision"))
        newest = last.group_by(rule_edits.c.rule).subquery()
        same = (rule_edits.c.rule == newest.c.rule) & (rule_edits.c.revision == newest.c.revision)
        with self._reading() as connection:
            rows = connection.execute(select(rule_edits).join(newest, same)).all()
        return {row.rule: _edit(row) for row in rows}

    def history(self, rule: str) -> list[RuleEdit]:
        """Return all revisions of a rule, newest first."""
        asked = select(rule_edits).where(rule_edits.c.rule == rule)
        with self._reading() as connection:
            rows = connection.execute(asked.order_by(rule_edits.c.revision.desc())).all()
        return [_edit(row) for row in rows]

    def add(self, edit: RuleEdit, *, by: str | None = None) -> bool:
        """Store the next revision of a rule. Returns False if the newest is not the one before it.

        `by` is who made it, for the audit log.
        """
        row = {name: getattr(edit, name) for name in ("rule", "revision", "made_at", "base", "text")}
        newest = select(func.max(rule_edits.c.revision)).where(rule_edits.c.rule == edit.rule)
        with self._writing() as connection:
            stop_writers(connection, rule_edits)
            if (connection.scalar(newest) or 0) != edit.revision - 1:
                return False
            connection.execute(insert(rule_edits).values(row | {"enabled": int(edit.enabled)}))
            details = f"revision {edit.revision}, {'on' if edit.enabled else 'off'}"
            log_change(connection, by, "change rule", edit.rule, edit.made_at, details)
        return True


def _edit(row: Row[Any]) -> RuleEdit:
    return RuleEdit(
        rule=row.rule,
        revision=row.revision,
        made_at=row.made_at,
        base=row.base,
        text=row.text,
        enabled=bool(row.enabled),
    )
