"""What the fourth version of the schema adds to older stores: the labels of samples beside outcomes."""

from __future__ import annotations

import json
import re

from sqlalchemy import Connection, text

_AT_ONCE = 1000
_UNSAFE = re.compile("[\\\\\0\ud800-\udfff]")


def name_labels(connection: Connection) -> None:
    """Copy every sample's label from its document to the runs that have it, then to their outcomes."""
    after = ""
    while rows := connection.execute(
        text("SELECT key, body FROM samples WHERE key > :after ORDER BY key LIMIT :most"),
        {"after": after, "most": _AT_ONCE},
    ).all():
        after = rows[-1].key
        labels = [(row.key, json.loads(row.body).get("label")) for row in rows]
        named = [{"key": key, "label": _kept(label)} for key, label in labels if isinstance(label, str)]
        if named:
            connection.execute(text("UPDATE run_samples SET label = :label WHERE sample_key = :key"), named)
    connection.execute(
        text(
            "UPDATE outcomes SET gold = (SELECT label FROM run_samples WHERE "
            "run_samples.run_id = outcomes.run_id AND run_samples.position = outcomes.position)"
        )
    )


def _kept(label: str) -> str:
    """As `tables.Words` kept text when this step was written."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found.group()):04x}", label)
