"""Stores what rules decide on targets: decisions, their leases and changes, and what judging costs.

Functions on a connection, which `store.traces` calls in its transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, case, or_, select, update

import magistrate.store.outcomes as outcome_rows
import magistrate.store.runs as runs
from magistrate.store.codec import loads, sample_from
from magistrate.store.schema import (
    decisions,
    insert_missing,
    insert_or,
    of_row,
    outcomes,
    run_samples,
    spending,
)
from magistrate.types import Outcome, Sample

MOST_LOST = 3
SUPERSEDED = "superseded"
DUE = ("queued", "retrying", "budget_deferred")
"""The states of targets that are judged as soon as they are due."""
UNASKED = ("waiting", "filtered", "sampled_out", "no_output", "no_context", "loop", "queued")
"""The states in which no judge was asked, so the decision can be repeated."""
UNDECIDED = ("waiting", *DUE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRecord:
    """A part of a trace that can be judged. `sample` is None if a part of it is `missing`.

    `content` is a hash of what a judge reads, and `revision` increases when it changes. `seen_at` is when
    the target was first extracted.
    """

    id: str
    trace_id: str
    span_id: str
    kind: str
    name: str
    revision: int
    seen_at: datetime
    content: str | None
    missing: str | None
    why: str
    sample: Sample | None
    taken: Mapping[str, Any]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A rule's decision on a target before any judge is called."""

    rule: str
    version: int
    state: str
    reason: str = ""
    inclusion: float | None = None
    due_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRecord:
    """One version of a rule, which decides on targets seen from `since` on."""

    name: str
    version: int
    digest: str
    spec: Mapping[str, Any]
    since: datetime
    run_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A rule's decision on one revision of a target.

    `inclusion` is the probability with which the rule samples such a target. `asked` holds each judge's
    result in order, with the probability with which it was called. `calls`, `tokens` and `dollars` are sums
    over all attempts; `dollars` is None if a price is unknown.
    """

    rule: str
    version: int
    target: str
    revision: int
    state: str
    reason: str
    inclusion: float | None
    made_at: datetime
    changed_at: datetime
    due_at: datetime | None
    attempts: int
    calls: int
    tokens: int
    dollars: float | None
    outcome_id: int | None
    asked: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased(Decision):
    """A decision that a worker has leased, with the sample to judge."""

    lease: str
    sample: Sample
    trace_id: str
    span_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The cost of a rule in one hour, or of one target; `dollars` is None if a price is unknown."""

    calls: int = 0
    tokens: int = 0
    dollars: float | None = 0.0

    def __add__(self, other: Spent) -> Spent:
        known = self.dollars is not None and other.dollars is not None
        dollars = (self.dollars or 0.0) + (other.dollars or 0.0) if known else None
        return Spent(calls=self.calls + other.calls, tokens=self.tokens + other.tokens, dollars=dollars)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """The cost of a rule in the hour that begins `at`, and the `most` spent on one target."""

    at: datetime
    spent: Spent
    most: Spent


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change to a leased decision. It ends the lease unless `kept` is true.

    `spent` is the cost since the last change, `so_far` the total cost in this lease. If an outcome is
    stored with it, it is sent to the destinations `send_to`. `by` says whether a model or only code judged.
    """

    state: str
    now: datetime
    reason: str = ""
    due_at: datetime | None = None
    asked: Sequence[Mapping[str, Any]] = ()
    kept: bool = False
    spent: Spent = Spent()
    so_far: Spent = Spent()
    send_to: Sequence[str] = ()
    by: str = "llm"


Decide = Callable[[TargetRecord], Iterable[Draft]]


# --- decisions ----------------------------------------------------------------------------------------


def add_decisions(connection: Connection, target: TargetRecord, decide: Decide, now: datetime) -> None:
    """Store each rule's decision on a target, with earlier judges' results for the same content."""
    for draft in decide(target):
        said = select(decisions.c.asked, decisions.c.outcome_id).where(
            decisions.c.rule == draft.rule,
            decisions.c.version == draft.version,
            decisions.c.target == target.id,
            decisions.c.content == target.content,
            decisions.c.asked != "[]",
        )
        earlier = connection.execute(said.order_by(decisions.c.revision.desc()).limit(1)).one_or_none()
        row = {
            **asdict(draft),
            "target": target.id,
            "revision": target.revision,
            "content": target.content,
            "made_at": now,
            "changed_at": now,
            "attempts": 0,
            "calls": 0,
            "tokens": 0,
            "dollars": 0.0,
            "outcome_id": None if earlier is None else earlier.outcome_id,
            "asked": "[]" if earlier is None else earlier.asked,
        }
        connection.execute(insert_missing(connection, decisions).values(row))


def decide_again(connection: Connection, target: TargetRecord, decide: Decide, now: datetime) -> None:
    """Recompute the decisions on a target for which no judge was called yet."""
    for draft in decide(target):
        mine = (decisions.c.rule == draft.rule, decisions.c.version == draft.version)
        unasked = (decisions.c.state.in_(UNASKED), decisions.c.attempts == 0)
        values = {
            "state": draft.state,
            "reason": draft.reason,
            "inclusion": draft.inclusion,
            "due_at": draft.due_at,
            "changed_at": now,
        }
        changing = update(decisions).where(*mine, decisions.c.target == target.id, *unasked)
        connection.execute(changing.values(values))


def supersede(connection: Connection, target: str, reason: str, now: datetime) -> None:
    _end_all(connection, decisions.c.target == target, reason, now)


def outdate(
    connection: Connection, name: str, version: int, which: ColumnElement[bool], now: datetime
) -> None:
    """Supersede the decisions of earlier versions of a rule that match `which`."""
    earlier = (decisions.c.rule == name) & (decisions.c.version < version)
    _end_all(connection, earlier & which, f"version {version} of the rule makes the decision", now)


def _end_all(connection: Connection, which: ColumnElement[bool], reason: str, now: datetime) -> None:
    values = {"state": SUPERSEDED, "reason": reason, "due_at": None, "changed_at": now}
    values |= {"lease": None, "lease_until": None}
    connection.execute(update(decisions).where(which, decisions.c.state != SUPERSEDED).values(values))


def of_rule(rule: RuleRecord) -> tuple[ColumnElement[bool], ...]:
    return (decisions.c.rule == rule.name, decisions.c.version == rule.version)


def due_of(rule: RuleRecord, now: datetime) -> tuple[ColumnElement[bool], ...]:
    free = or_(decisions.c.lease_until.is_(None), decisions.c.lease_until <= now)
    return (*of_rule(rule), decisions.c.state.in_(DUE), decisions.c.due_at <= now, free)


def note_lost(connection: Connection, rule: RuleRecord, now: datetime) -> None:
    """Clear expired leases, and fail decisions that lost too many workers."""
    over = (*of_rule(rule), decisions.c.state.in_(DUE), decisions.c.lease_until <= now)
    values = {"lost": decisions.c.lost + 1, "lease": None, "lease_until": None}
    if not connection.execute(update(decisions).where(*over).values(values)).rowcount:
        return
    ended = (*of_rule(rule), decisions.c.state.in_(DUE), decisions.c.lost >= MOST_LOST)
    reason = f"{MOST_LOST} workers ended while judging it"
    failed = {"state": "failed", "reason": reason, "due_at": None, "changed_at": now}
    connection.execute(update(decisions).where(*ended).values(failed))


def key_of(row: Row[Any] | Decision) -> tuple[ColumnElement[bool], ...]:
    return tuple(
        decisions.c[name] == getattr(row, name) for name in ("rule", "version", "target", "revision")
    )


def decision_from(row: Row[Any]) -> Decision:
    """Return the decision in a table row."""
    return of_row(Decision, row, asked=loads(row.asked))


def leased_from(row: Row[Any], lease: str) -> Leased:
    sample = sample_from(*loads(row.body)["sample"])
    asked, attempts = loads(row.asked), row.attempts + 1
    return of_row(Leased, row, asked=asked, attempts=attempts, lease=lease, sample=sample)


def rule_from(row: Row[Any]) -> RuleRecord:
    """Return the version of a rule in a table row."""
    return of_row(RuleRecord, row, spec=loads(row.spec))


def keep_outcome(connection: Connection, run_id: str, sample: Sample, outcome: Outcome) -> int:
    """Store an outcome in a run, replacing an earlier failure, and its sample if the run lacks it."""
    runs.lock_run(connection, run_id)
    if not runs.has_sample(connection, run_id, sample.id):
        runs.append_samples(connection, run_id, [runs.SampleRow.of(sample)])
    row = outcome_rows.prepared(outcome)
    outcome_rows.replace_failures(connection, run_id, [row])
    outcome_rows.insert_outcomes(connection, run_id, [row])
    asked = (
        select(outcomes.c.id)
        .join(run_samples)
        .where(
            outcomes.c.run_id == run_id,
            run_samples.c.sample_id == sample.id,
            outcomes.c.judge == outcome.judge,
        )
    )
    return int(connection.execute(asked).scalar_one())


# --- spending -----------------------------------------------------------------------------------------

WEEK = timedelta(days=7)
_AMOUNTS = ("calls", "tokens", "dollars")


def hours_of(connection: Connection, rule: str, since: datetime) -> list[Hour]:
    asked = select(spending).where(spending.c.rule == rule, spending.c.hour > since)
    return [
        Hour(
            at=row.hour,
            spent=Spent(**{name: getattr(row, name) for name in _AMOUNTS}),
            most=Spent(**{name: getattr(row, f"most_{name}") for name in _AMOUNTS}),
        )
        for row in connection.execute(asked.order_by(spending.c.hour))
    ]


def add_spending(connection: Connection, rule: str, change: Change) -> None:
    spent, so_far = (
        {name: getattr(each, name) or 0 for name in _AMOUNTS} for each in (change.spent, change.so_far)
    )
    hour = change.now.replace(minute=0, second=0, microsecond=0)
    row = {"rule": rule, "hour": hour, "targets": int(not change.kept), **spent}
    row |= {f"most_{name}": amount for name, amount in so_far.items()}
    adding = insert_or(connection, spending).values(row)
    sums = {name: spending.c[name] + adding.excluded[name] for name in ("targets", *_AMOUNTS)}
    most = {
        name: case((spending.c[name] > adding.excluded[name], spending.c[name]), else_=adding.excluded[name])
        for name in (f"most_{each}" for each in _AMOUNTS)
    }
    connection.execute(adding.on_conflict_do_update(index_elements=["rule", "hour"], set_=sums | most))
