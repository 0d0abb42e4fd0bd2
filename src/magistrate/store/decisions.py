"""Stores what rules decide on targets: decisions, their leases and changes, and what judging costs.

Functions on a connection, which `store.traces` calls in its transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, bindparam, case, or_, select, update

import magistrate.store.outcomes as outcome_rows
import magistrate.store.runs as runs
from magistrate.store import outbox
from magistrate.store.codec import dumps, loads, sample_from
from magistrate.store.schema import (
    decisions,
    insert_missing,
    insert_or,
    is_server,
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
KEY = ("rule", "version", "target", "revision")
_ORDER = tuple(decisions.c[name] for name in KEY)
_AMOUNTS = ("calls", "tokens", "dollars")


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


@dataclass(frozen=True, slots=True)
class Settled:
    """The change of a leased decision, and the outcome that goes with it, in the run `run_id`."""

    leased: Leased
    change: Change
    run_id: str | None = None
    outcome: Outcome | None = None


Decide = Callable[[TargetRecord], Iterable[Draft]]


# --- decisions ----------------------------------------------------------------------------------------


def add_decisions(
    connection: Connection, drafts: Sequence[tuple[TargetRecord, Draft]], now: datetime
) -> None:
    """Store rules' decisions on targets, with earlier judges' results for the same content."""
    if not drafts:
        return
    said = select(
        *(decisions.c[name] for name in ("rule", "version", "target", "content", "asked", "outcome_id"))
    )
    said = said.where(decisions.c.target.in_({target.id for target, _ in drafts}), decisions.c.asked != "[]")
    earlier = {
        (row.rule, row.version, row.target, row.content): row
        for row in connection.execute(said.order_by(decisions.c.revision))
    }
    rows = []
    for target, draft in drafts:
        kept = earlier.get((draft.rule, draft.version, target.id, target.content))
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
            "outcome_id": None if kept is None else kept.outcome_id,
            "asked": "[]" if kept is None else kept.asked,
        }
        rows.append(row)
    adding = insert_missing(connection, decisions)
    if is_server(connection):
        adding = adding.returning(decisions.c.target)  # as in `insert_rows`
    connection.execute(adding, rows)


_MINE = tuple(decisions.c[name] == bindparam(f"of_{name}") for name in KEY)
_AGAIN = update(decisions).where(
    *(decisions.c[name] == bindparam(f"of_{name}") for name in ("rule", "version", "target")),
    or_(*(decisions.c.state == each for each in UNASKED)),  # no IN: this is executed for many rows at once
    decisions.c.attempts == 0,
)
_SETTLED = update(decisions).where(*_MINE)


def decide_again(connection: Connection, drafts: Sequence[tuple[TargetRecord, Draft]], now: datetime) -> None:
    """Recompute the decisions on targets for which no judge was called yet."""
    rows = [
        {
            "of_rule": draft.rule,
            "of_version": draft.version,
            "of_target": target.id,
            "state": draft.state,
            "reason": draft.reason,
            "inclusion": draft.inclusion,
            "due_at": draft.due_at,
            "changed_at": now,
        }
        for target, draft in drafts
    ]
    if rows:
        connection.execute(_AGAIN, rows)


def supersede(connection: Connection, of: Sequence[str], reason: str, now: datetime) -> None:
    """Supersede the decisions of all rules on these targets."""
    _end_all(connection, decisions.c.target.in_(of), reason, now)


def outdate(
    connection: Connection, name: str, version: int, which: ColumnElement[bool], now: datetime
) -> None:
    """Supersede the decisions of earlier versions of a rule that match `which`."""
    earlier = (decisions.c.rule == name) & (decisions.c.version < version)
    _end_all(connection, earlier & which, f"replaced by version {version} of the rule", now)


def _end_all(connection: Connection, which: ColumnElement[bool], reason: str, now: datetime) -> None:
    values = {"state": SUPERSEDED, "reason": reason, "due_at": None, "changed_at": now}
    values |= {"lease": None, "lease_until": None}
    live = (which, decisions.c.state != SUPERSEDED)
    if is_server(connection):  # in the order of `settle_all`, so that neither waits for the other
        connection.execute(select(decisions.c.target).where(*live).order_by(*_ORDER).with_for_update()).all()
    connection.execute(update(decisions).where(*live).values(values))


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


# --- results ------------------------------------------------------------------------------------------


def settle_all(
    connection: Connection, settled: Sequence[Settled], rows: Mapping[tuple[str, str], dict[str, Any]]
) -> list[bool]:
    """Store changes of leased decisions with their outcomes, of which `rows` are the prepared ones."""
    leases = {each.leased.lease for each in settled}
    mine = (decisions.c.lease.in_(leases), decisions.c.target.in_({each.leased.target for each in settled}))
    asked = select(decisions).where(*mine, decisions.c.state != SUPERSEDED)
    locked = connection.execute(asked.order_by(*_ORDER).with_for_update()).all()
    held = {(row.lease, *(getattr(row, name) for name in KEY)): row for row in locked}
    found = [held.get((each.leased.lease, *_key(each.leased))) for each in settled]
    _add_spending(connection, settled)
    mine_still = [each for each, row in zip(settled, found, strict=True) if row is not None]
    ids = _keep_outcomes(connection, mine_still, rows)
    changes, messages = [], list[dict[str, Any]]()
    for each, row in zip(settled, found, strict=True):
        if row is None:
            continue
        change, outcome = each.change, each.outcome
        outcome_id = None if outcome is None else ids[outcome.sample_id, outcome.judge]
        spent = Spent(calls=row.calls, tokens=row.tokens, dollars=row.dollars) + change.spent
        changes.append(
            {
                **{f"of_{name}": getattr(row, name) for name in KEY},
                "state": change.state,
                "reason": change.reason,
                "due_at": change.due_at,
                "changed_at": change.now,
                **{name: getattr(spent, name) for name in _AMOUNTS},
                "outcome_id": outcome_id or row.outcome_id,
                "asked": _asked(loads(row.asked), each, outcome_id) if change.asked else row.asked,
                "lease": row.lease if change.kept else None,
                "lease_until": row.lease_until if change.kept else None,
            }
        )
        if outcome is None:
            continue
        for destination in change.send_to:
            of = (row.rule, row.target, outcome.judge)
            about: dict[str, Any] = {"target": row.target, "outcome_id": outcome_id}
            messages.append(outbox.message(destination, of, change.now, body={"by": change.by}, **about))
    if changes:
        connection.execute(_SETTLED, changes)
    outbox.put(connection, messages)
    return [row is not None for row in found]


def _key(leased: Leased) -> tuple[Any, ...]:
    return tuple(getattr(leased, name) for name in KEY)


def _asked(before: Sequence[Mapping[str, Any]], settled: Settled, outcome_id: int | None) -> str:
    """Return the judges' results to store: those of the change, with the outcomes that are known of them."""
    kept = {each["judge"]: each["outcome"] for each in before if "outcome" in each}
    asked = [dict(each) for each in settled.change.asked]
    for each in asked:
        if each["judge"] in kept:
            each["outcome"] = kept[each["judge"]]
    if settled.outcome is not None and asked[-1]["judge"] == settled.outcome.judge:
        asked[-1]["outcome"] = outcome_id
    return dumps(asked)


def _keep_outcomes(
    connection: Connection, settled: Sequence[Settled], rows: Mapping[tuple[str, str], dict[str, Any]]
) -> dict[tuple[str, str], int]:
    """Store outcomes in their runs, replacing earlier failures, and the samples that the runs lack.

    Returns the id of each by sample id and judge.
    """
    runs_of: dict[str, list[Settled]] = {}
    for each in settled:
        if each.run_id is not None:
            runs_of.setdefault(each.run_id, []).append(each)
    found: dict[tuple[str, str], int] = {}
    for run_id, group in sorted(runs_of.items()):
        runs.lock_run(connection, run_id)
        samples = {each.leased.sample.id: each.leased.sample for each in group}
        mine = (run_samples.c.run_id == run_id, run_samples.c.sample_id.in_(samples))
        known = set(connection.scalars(select(run_samples.c.sample_id).where(*mine)))
        if missing := [sample for sample_id, sample in samples.items() if sample_id not in known]:
            runs.append_samples(connection, run_id, [runs.SampleRow.of(each) for each in missing])
        new = [rows[each.outcome.sample_id, each.outcome.judge] for each in group if each.outcome is not None]
        outcome_rows.replace_failures(connection, run_id, new)
        outcome_rows.insert_outcomes(connection, run_id, new)
        asked = select(run_samples.c.sample_id, outcomes.c.judge, outcomes.c.id).join_from(
            outcomes, run_samples
        )
        stored = connection.execute(asked.where(outcomes.c.run_id == run_id, *mine))
        found |= {(sample_id, judge): number for sample_id, judge, number in stored}
    return found


# --- spending -----------------------------------------------------------------------------------------

WEEK = timedelta(days=7)


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


def _add_spending(connection: Connection, settled: Sequence[Settled]) -> None:
    """Add what changes have spent to the hours of their rules. Sums and maxima do not need every row."""
    hours: dict[tuple[str, datetime], dict[str, Any]] = {}
    for each in settled:
        change = each.change
        key = (each.leased.rule, change.now.replace(minute=0, second=0, microsecond=0))
        row = hours.setdefault(
            key, dict.fromkeys(("targets", *_AMOUNTS, *(f"most_{name}" for name in _AMOUNTS)), 0)
        )
        row["targets"] += int(not change.kept)
        for name in _AMOUNTS:
            row[name] += getattr(change.spent, name) or 0
            row[f"most_{name}"] = max(row[f"most_{name}"], getattr(change.so_far, name) or 0)
    adding = insert_or(connection, spending)
    sums = {name: spending.c[name] + adding.excluded[name] for name in ("targets", *_AMOUNTS)}
    most = {
        name: case((spending.c[name] > adding.excluded[name], spending.c[name]), else_=adding.excluded[name])
        for name in (f"most_{each}" for each in _AMOUNTS)
    }
    adding = adding.on_conflict_do_update(index_elements=["rule", "hour"], set_=sums | most)
    rows = [{"rule": rule, "hour": hour, **row} for (rule, hour), row in sorted(hours.items())]
    connection.execute(adding, rows)
