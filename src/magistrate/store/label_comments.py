"""Stores the comments that people write on items of label queues; they are only appended to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, insert, select

from magistrate.errors import InputError
from magistrate.store.audit import log_change
from magistrate.store.labels import checked_annotator, item_place, require_item, require_queue
from magistrate.store.schema import StorePart, Transaction, label_comments, of_row, stop_writers

LONGEST_COMMENT, MOST_COMMENTS = 2_000, 500  # characters of one; comments on an item


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    """What `author` wrote on the item at `position` of a queue."""

    id: int
    position: int
    author: str
    text: str
    at: datetime


def checked_comment(text: str) -> str:
    """Return a comment without surrounding blanks. Raises `InputError` if it is empty or too long."""
    text = text.replace("\r\n", "\n").strip()
    if not text:
        raise InputError("write a comment first")
    if len(text) > LONGEST_COMMENT:
        raise InputError(f"a comment has at most {LONGEST_COMMENT:,} characters; got {len(text):,}")
    return text


@dataclass(frozen=True, slots=True)
class Comments(StorePart):
    """The comments on items, available as `store.comments`. Methods raise `SpecError` for unknown items."""

    _writing_for_good: Transaction

    def add(
        self, queue: str, position: int, author: str, text: str, *, now: datetime, by: str | None = None
    ) -> Comment:
        """Append a comment and return it. The item's last one is stored once if it is sent twice.

        `by` is who makes the change, for the audit log. Raises `InputError` for an unusable text, and if the
        item has `MOST_COMMENTS` already.
        """
        author, text = checked_annotator(author), checked_comment(text)
        with self._writing_for_good() as connection:
            name = require_queue(connection, queue).name
            require_item(connection, name, position)
            stop_writers(connection, label_comments)
            here = (label_comments.c.queue == name, label_comments.c.position == position)
            asked = select(label_comments).where(*here).order_by(label_comments.c.id.desc()).limit(1)
            last = connection.execute(asked).one_or_none()
            if last is not None and (last.author, last.text) == (author, text):
                return _comment(last)
            n = connection.scalar(select(func.count()).where(*here)) or 0
            if n >= MOST_COMMENTS:
                raise InputError(f"an item has at most {MOST_COMMENTS} comments")
            row = {"queue": name, "position": position, "author": author, "text": text, "at": now}
            connection.execute(insert(label_comments), [row])
            details = "" if author == by else f"as {author}"
            log_change(connection, by, "comment", item_place(name, position), now, details)
            return _comment(connection.execute(asked).one())

    def of(self, queue: str, position: int | None = None) -> list[Comment]:
        """Return the comments on an item, oldest first; without `position` those on all items, by item."""
        with self._reading() as connection:
            asked = select(label_comments).where(
                label_comments.c.queue == require_queue(connection, queue).name
            )
            if position is not None:
                asked = asked.where(label_comments.c.position == position)
            asked = asked.order_by(label_comments.c.position, label_comments.c.id)
            return [_comment(row) for row in connection.execute(asked)]


def _comment(row: Row[Any]) -> Comment:
    return of_row(Comment, row)
