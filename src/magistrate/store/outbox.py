"""What goes out to other programs: kept until it is taken, and taken by one process at a time.

=========  ===========================================================================================
waiting    it is to be sent, for the first time or again
sent       the receiver has taken it
partly     it was in a request of which the receiver rejected a part, without saying which
refused    the receiver refused it by itself, and would again
=========  ===========================================================================================

A row is written in the transaction that makes what it tells of, so that neither is there without the other.
Who sends it leases it first; what was sent but not noted, as after `kill -9`, is sent again when the lease
has run out, and is the same then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, or_, select, update

from magistrate.errors import StoreError
from magistrate.store.codec import dumps, loads
from magistrate.store.outcomes import outcome_from
from magistrate.store.schema import insert_or, outbox, outcomes, run_samples, spans, targets
from magistrate.types import Outcome

Transaction = Callable[[], AbstractContextManager[Connection]]

WAITING = "waiting"
STATES = (WAITING, "sent", "partly", "refused")
RESPONSE_ID = "gen_ai.response.id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """Something that a sender has leased; `attempts` counts this one too."""

    key: str
    destination: str
    body: Mapping[str, Any]
    outcome_id: int | None
    made_at: datetime
    attempts: int
    lease: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """An outcome that goes out: of which run, on which span, and the id of the model's answer, if known."""

    run_id: str
    trace_id: str
    span_id: str
    outcome: Outcome
    response_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """How much of what goes to one destination is in which state, and since when the oldest waits.

    `remark` is what the oldest of what waits met last, such as an error; empty where it met none.
    """

    destination: str
    states: Mapping[str, int]
    oldest: datetime | None
    remark: str

    @property
    def waiting(self) -> int:
        """How many are not sent yet."""
        return self.states.get(WAITING, 0)


@dataclass(frozen=True, slots=True)
class Outbox:
    """What goes out of a store, reached as `store.outbox`."""

    _writing: Transaction
    _reading: Transaction

    def take(self, destination: str, lease: str, until: datetime, now: datetime, limit: int) -> list[Parcel]:
        """Lease what is due for a destination, the oldest first: nobody else takes it before `until`."""
        asked = select(outbox).where(*_due(destination, now)).order_by(outbox.c.made_at, outbox.c.key)
        with self._writing() as connection:
            rows = connection.execute(asked.limit(limit).with_for_update(skip_locked=True)).all()
            held = {"lease": lease, "lease_until": until, "attempts": outbox.c.attempts + 1}
            keys = [row.key for row in rows]
            connection.execute(update(outbox).where(outbox.c.key.in_(keys)).values(held))
        return [
            Parcel(
                key=row.key,
                destination=row.destination,
                body=loads(row.body),
                outcome_id=row.outcome_id,
                made_at=row.made_at,
                attempts=row.attempts + 1,
                lease=lease,
            )
            for row in rows
        ]

    def end(self, parcels: Sequence[Parcel], state: str, remark: str = "") -> int:
        """What became of leased parcels. One in whose place a later outcome has come stays to be sent."""
        values = {"state": state, "remark": remark, "lease": None, "lease_until": None}
        with self._writing() as connection:
            return connection.execute(update(outbox).where(*_held(parcels)).values(values)).rowcount

    def put_off(self, parcels: Sequence[Parcel], until: datetime, remark: str) -> int:
        """Leased parcels are to be sent again, from then on."""
        values = {"due_at": until, "remark": remark, "lease": None, "lease_until": None}
        with self._writing() as connection:
            return connection.execute(update(outbox).where(*_held(parcels)).values(values)).rowcount

    def judgements(self, parcels: Sequence[Parcel]) -> dict[str, Judgement]:
        """The outcomes that parcels stand for, by key. Those that are damaged, or were deleted
        meanwhile, are not there."""
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
                    continue  # a later one has come in its place
                with suppress(StoreError):
                    found[row.key] = Judgement(
                        run_id=row.run_id,
                        trace_id=row.trace_id,
                        span_id=row.span_id,
                        outcome=outcome_from(row, None),
                        response_id=_response_id(connection, row.trace_id, loads(row.of_target)),
                    )
        return found

    def queues(self) -> list[Queue]:
        """All destinations that something went to, by name."""
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


def put(
    connection: Connection,
    destination: str,
    of: Sequence[str],
    now: datetime,
    *,
    body: Mapping[str, Any],
    target: str | None = None,
    outcome_id: int | None = None,
) -> None:
    """Something is to go to a destination, in place of what was to go `of` the same thing before."""
    row = {
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
    storing = insert_or(connection, outbox).values(row)
    connection.execute(storing.on_conflict_do_update(index_elements=["key"], set_=row))


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
    """The id of the model's answer: of the judged span, else of the one that the output was taken from."""
    found = target["attributes"].get(RESPONSE_ID)
    taken = target["taken"].get("output")
    if found is None and taken is not None:
        here = (spans.c.trace_id == trace_id, spans.c.span_id == taken["span_id"])
        body = connection.scalar(select(spans.c.body).where(*here))
        found = None if body is None else loads(body).get("attributes", {}).get(RESPONSE_ID)
    return found if isinstance(found, str) else None
