"""Stores the targets that were found in traces, with what rules decide on them at first.

Functions on a connection, which `store.traces` calls in its transactions, for many traces at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, Row, bindparam, select, update

from magistrate.datasets.spans.targets import Target
from magistrate.store.codec import dumps, loads, sample_body, sample_from
from magistrate.store.decisions import (
    Decide,
    TargetRecord,
    add_decisions,
    decide_again,
    supersede,
)
from magistrate.store.schema import insert_rows, of_row, targets
from magistrate.types import Sample

KINDS = ("answer", "call")
"""The kinds of targets. A trace stores as bits, in this order, which ones were looked for in it."""


def bits_of(kinds: Sequence[str]) -> int:
    """Return kinds of targets as bits."""
    return sum(1 << KINDS.index(kind) for kind in set(kinds))


def kinds_of(bits: int) -> tuple[str, ...]:
    """Return the kinds of targets of these bits."""
    return tuple(kind for place, kind in enumerate(KINDS) if bits >> place & 1)


def record_of(target: Target, now: datetime) -> TargetRecord:
    """Return the record of a newly found target."""
    key = f"{target.trace_id}\0{target.span_id}\0{target.kind}".encode("utf-8", "surrogatepass")
    return TargetRecord(
        id=sha256(key).hexdigest(),
        trace_id=target.trace_id,
        span_id=target.span_id,
        kind=target.kind,
        name=target.name,
        revision=1,
        seen_at=now,
        content=None if target.sample is None else _content(target.sample),
        missing=None if target.sample is not None else target.missing,
        why=target.why,
        sample=target.sample,
        taken={name: asdict(each) for name, each in target.taken.items()},
        attributes=dict(target.attributes),
    )


def _content(sample: Sample) -> str:
    """Return the sha256 of what a judge reads. Metadata are excluded: they may change with every span."""
    return sha256(sample_body(replace(sample, metadata={})).encode("ascii")).hexdigest()


def _row(record: TargetRecord) -> dict[str, Any]:
    body = {
        "sample": None if record.sample is None else [record.sample.id, sample_body(record.sample)],
        "why": record.why,
        "taken": dict(record.taken),
        "attributes": dict(record.attributes),
    }
    plain = ("id", "trace_id", "span_id", "kind", "name", "revision", "seen_at", "content", "missing")
    return {name: getattr(record, name) for name in plain} | {"gone": 0, "body": dumps(body, sort_keys=True)}


def target_from(row: Row[Any]) -> TargetRecord:
    """Return the target in a table row."""
    body = loads(row.body)
    return of_row(
        TargetRecord,
        row,
        why=body["why"],
        sample=None if body["sample"] is None else sample_from(*body["sample"]),
        taken=body["taken"],
        attributes=body["attributes"],
    )


_CHANGING = update(targets).where(targets.c.id == bindparam("of_id"))


def take(
    connection: Connection,
    found: Sequence[TargetRecord],
    looked_for: Collection[tuple[str, str]],
    decide: Mapping[str, Decide],
    now: datetime,
) -> None:
    """Store the targets as now found in traces, with the decisions on them.

    `looked_for` are pairs of a trace and a kind of target. Targets of other pairs stay as they are. A target
    whose content changed gets a new revision. Decisions on the previous one are superseded, as are those on
    targets that are gone. `decide` makes the decisions on the targets of each trace.
    """
    mine = select(targets).where(targets.c.trace_id.in_({trace_id for trace_id, _ in looked_for}))
    known = {
        row.id: row
        for row in connection.execute(mine.order_by(targets.c.id))
        if (row.trace_id, row.kind) in looked_for
    }
    fresh, changed, same = list[TargetRecord](), list[TargetRecord](), list[TargetRecord]()
    for each in found:
        before = known.pop(each.id, None)
        if before is None:
            fresh.append(each)
            continue
        is_new = before.gone or before.content != each.content
        revision = before.revision + bool(is_new)
        (changed if is_new else same).append(replace(each, seen_at=before.seen_at, revision=revision))
    if fresh:
        insert_rows(connection, targets, list(map(_row, fresh)))
    if old := [_row(each) for each in (*changed, *same)]:
        connection.execute(_CHANGING, [row | {"of_id": row.pop("id")} for row in old])
    if changed:
        ids = [each.id for each in changed]
        supersede(connection, ids, "later spans changed what is judged", now)
    gone = [row.id for row in known.values() if not row.gone]
    if gone:
        connection.execute(update(targets).where(targets.c.id.in_(gone)).values(gone=1))
        supersede(connection, gone, "later spans have another answer instead", now)
    new = [(each, draft) for each in (*fresh, *changed) for draft in decide[each.trace_id](each)]
    add_decisions(connection, new, now)
    again = [(each, draft) for each in same for draft in decide[each.trace_id](each)]
    decide_again(connection, again, now)
