"""Messages to other programs: kept until delivered, and sent by one process at a time.

=========  ===========================================================================================
waiting    it is to be sent, for the first time or again
sent       the receiver has accepted it
partly     it was in a request of which the receiver rejected a part, without saying which
refused    the receiver rejected it on its own, and would again
=========  ===========================================================================================

A row is written in the transaction that creates the thing it reports, so that neither exists without the
other. A sender leases a row first. If it was sent but not recorded, as after `kill -9`, it is sent again,
unchanged, when the lease has expired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, or_, select, update

from magistrate.errors import StoreError
from magistrate.store.codec import dumps, loads
from magistrate.store.outcomes import outcome_from
from magistrate.store.schema import (
    StorePart,
    insert_or,
    of_row,
    outbox,
    outcomes,
    run_samples,
    spans,
    targets,
)
from magistrate.types import Outcome

WAITING = "waiting"
STATES = (WAITING, "sent", "partly", "refused")
RESPONSE_ID = "gen_ai.response.id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A leased message. `attempts` includes this one."""

    key: str
    destination: str
    body: Mapping[str, Any]
    outcome_id: int | None
    made_at: datetime
    attempts: int
    lease: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """An outcome to send, with its run and span, and the id of the model's answer, if known."""

    run_id: str
    trace_id: str
    span_id: str
    outcome: Outcome
    response_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The number of messages to one destination by state, and the time of the oldest waiting one.

    `remark` is the last problem of the oldest waiting message, such as an error; empty if there was none.
    """

    destination: str
    states: Mapping[str, int]
    oldest: datetime | None
    remark: str

    @property
    def waiting(self) -> int:
        """The number of messages that are not sent yet."""
        return self.states.get(WAITING, 0)


@dataclass(frozen=True, slots=True)
class Outbox(StorePart):
    """The outgoing messages of a store, as `store.outbox`."""

    def take(self, destination: str, lease: str, until: datetime, now: datetime, limit: int) -> list[Parcel]:
        """Lease due messages for a destination, oldest first. No other process takes them before `until`."""
        asked = select(outbox).where(*_due(destination, now)).order_by(outbox.c.made_at, outbox.c.key)
        with self._writing() as connection:
            rows = connection.execute(asked.limit(limit).with_for_update(skip_locked=True)).all()
            held = {"lease": lease, "lease_until": until, "attempts": outbox.c.attempts + 1}
            keys = [row.key for row in rows]
            connection.execute(update(outbox).where(outbox.c.key.in_(keys)).values(held))
        return [
            of_row(Parcel, row, body=loads(row.body), attempts=row.attempts + 1, lease=lease) for row in rows
        ]

    def end(self, parcels: Sequence[Parcel], state: str, remark: str = "") -> int:
        """Set the final state of leased messages. One that was replaced by a later outcome keeps waiting."""
        values = {"state": state, "remark": remark, "lease": None, "lease_until": None}
        with self._writing() as connection:
            return connection.execute(update(outbox).where(*_held(parcels)).values(values)).rowcount

    def put_off(self, parcels: Sequence[Parcel], until: datetime, remark: str) -> int:
        """Schedule leased messages to be sent again at `until`."""
        values = {"due_at": until, "remark": remark, "lease": None, "lease_until": None}
        with self._writing() as connection:
            return connection.execute(update(outbox).where(*_held(parcels)).values(values)).rowcount

    def judgements(self, parcels: Sequence[Parcel]) -> dict[str, Judgement]:
        """Return the outcomes of messages, by key. Outcomes that are damaged, or were deleted in the
        meantime, are missing.
        """
        asked = (
            select(outcomes, outbox.c.key, run_samples.c.sample_id, targets.c.trace_id, targets.c.span_id)
            .add_columns(targets.c.body.label("of_target"))
            .select_from(outbox)
            .join(outcomes, outbox.c.outcome_id == outcomes.c.id)
            .join(run_samples)
            .join(targets, outbox.c.target == targets.c.id)
            .where(outbox.c.key.in_([each.key for each in parcels]))
        )
        leased = {each.key: each.outcome_id for each in parcels}
        found = {}
        with self._reading() as connection:
            for row in connection.execute(asked).all():
                if row.id != leased[row.key]:
                    continue  # replaced by a later one
                with suppress(StoreError):
                    found[row.key] = of_row(
                        Judgement,
                        row,
                        outcome=outcome_from(row, None),
                        response_id=_response_id(connection, row.trace_id, loads(row.of_target)),
                    )
        return found

    def queues(self) -> list[Queue]:
        """Return all destinations that had messages, by name."""
        counted = select(outbox.c.destination, outbox.c.state, func.count(), func.min(outbox.c.made_at))
        found: dict[str, dict[str, int]] = {}
        oldest: dict[str, datetime] = {}
        with self._reading() as connection:
            for destination, state, n, first in connection.execute(
                counted.group_by(outbox.c.destination, outbox.c.state)
            ):
                found.setdefault(destination, {})[state] = n
                if state == WAITING:
                    oldest[destination] = first
            remarks = {name: _remark(connection, name) for name in oldest}
        return [
            Queue(
                destination=name,
                states={state: found[name][state] for state in STATES if state in found[name]},
                oldest=oldest.get(name),
                remark=remarks.get(name, ""),
            )
            for name in sorted(found)
        ]


def message(
    destination: str,
    of: Sequence[str],
    now: datetime,
    *,
    body: Mapping[str, Any],
    target: str | None = None,
    outcome_id: int | None = None,
) -> dict[str, Any]:
    """Return a message to a destination, to `put`."""
    return {
        "key": sha256("\0".join((destination, *of)).encode("utf-8", "surrogatepass")).hexdigest(),
        "destination": destination,
        "state": WAITING,
        "remark": "",
        "body": dumps(dict(body)),
        "target": target,
        "outcome_id": outcome_id,
        "made_at": now,
        "due_at": now,
        "attempts": 0,
        "lease": None,
        "lease_until": None,
    }


def put(connection: Connection, messages: Sequence[dict[str, Any]]) -> None:
    """Enqueue messages, each replacing an earlier one of the same thing to the same destination."""
    if not messages:
        return
    storing = insert_or(connection, outbox)
    new = {name: storing.excluded[name] for name in messages[0]}
    connection.execute(storing.on_conflict_do_update(index_elements=["key"], set_=new), messages)


def _due(destination: str, now: datetime) -> tuple[ColumnElement[bool], ...]:
    free = or_(outbox.c.lease_until.is_(None), outbox.c.lease_until <= now)
    return (outbox.c.destination == destination, outbox.c.state == WAITING, outbox.c.due_at <= now, free)


def _held(parcels: Sequence[Parcel]) -> tuple[ColumnElement[bool], ...]:
    keys, leases = [each.key for each in parcels], {each.lease for each in parcels}
    return (outbox.c.key.in_(keys), outbox.c.lease.in_(leases), outbox.c.state == WAITING)


def _remark(connection: Connection, destination: str) -> str:
    here = (outbox.c.destination == destination, outbox.c.state == WAITING)
    asked = select(outbox.c.remark).where(*here).order_by(outbox.c.made_at, outbox.c.key)
    return connection.scalar(asked.limit(1)) or ""


def _response_id(connection: Connection, trace_id: str, target: Mapping[str, Any]) -> str | None:
    """Return the id of the model's answer, from the judged span, else from the span of the output."""
    found = target["attributes"].get(RESPONSE_ID)
    taken = target["taken"].get("output")
    if found is None and taken is not None:
        here = (spans.c.trace_id == trace_id, spans.c.span_id == taken["span_id"])
        body = connection.scalar(select(spans.c.body).where(*here))
        found = None if body is None else loads(body).get("attributes", {}).get(RESPONSE_ID)
    return found if isinstance(found, str) else None
