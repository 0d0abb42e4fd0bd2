"""Stores traces: received spans, the targets extracted from them, rules, and decisions on targets.

The module `watch.decisions` defines the states of decisions and their transitions. Here they are rows that
several processes may work on at once. A worker leases a decision before it judges it. Nobody else takes it
until the lease ends, and results that arrive later are not stored. A lease is a stored row with an end
time, not a lock: after `kill -9` of its owner, another worker takes over when the lease has expired.

The caller passes the current time to every method, always by the local clock. Timestamps of the traced
applications stay in the spans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from sqlalchemy import (
    Connection,
    and_,
    bindparam,
    case,
    func,
    insert,
    or_,
    select,
    update,
)

from magistrate.datasets.spans.span import Span
from magistrate.datasets.spans.targets import Target
from magistrate.store.codec import dumps, loads
from magistrate.store.decisions import (
    DUE,
    SUPERSEDED,
    UNDECIDED,
    WEEK,
    Decide,
    Decision,
    Hour,
    Leased,
    RuleRecord,
    Settled,
    TargetRecord,
    add_decisions,
    decide_again,
    decision_from,
    due_of,
    hours_of,
    leased_from,
    note_lost,
    of_rule,
    outdate,
    rule_from,
    settle_all,
)
from magistrate.store.outcomes import prepared
from magistrate.store.schema import (
    Instant,
    StorePart,
    decisions,
    insert_or,
    rules,
    spans,
    stop_writers,
    targets,
    traces,
)
from magistrate.store.targets import bits_of, kinds_of, record_of, take, target_from

SPANS_AT_ONCE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A trace with its spans, which include all changes up to number `changed`.

    It is unread if it has changed since it was read. `known` is true if it has targets; `kinds` are those
    that were looked for in it before.
    """

    trace_id: str
    changed: int
    is_unread: bool
    ended: bool
    since: datetime
    last_at: datetime
    spans: tuple[Span, ...]
    known: bool
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """What was found in a trace when targets of these `kinds` were looked for, and how to decide on it.

    The trace keeps its targets of other kinds. `seen_at` is the time of targets that are new.
    """

    content: Content
    kinds: Sequence[str]
    found: Sequence[Target]
    decide: Decide
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class Traces(StorePart):
    """The spans, targets, rules and decisions of a store, as `store.traces`."""

    # --- spans ----------------------------------------------------------------------------------

    def put(self, arrived: Sequence[Span], now: datetime) -> int:
        """Store spans and commit. Returns the number of new or changed ones.

        A span replaces the stored one of the same id, unless the stored one has ended and the new one has
        not.
        """
        newest: dict[tuple[str, str], Span] = {}
        for span in arrived:
            key = (span.trace_id, span.span_id)
            if key not in newest or _newer(span, newest[key]):
                newest[key] = span
        coming, changed = iter(sorted(newest)), 0
        while keys := list(islice(coming, SPANS_AT_ONCE)):
            with self._writing() as connection:
                changed += _put(connection, [newest[key] for key in keys], now)
        return changed

    def trace(self, trace_id: str) -> list[Span]:
        """Return the spans of a trace by start time; empty if there is no such trace."""
        with self._reading() as connection:
            return _spans_of(connection, [trace_id])[trace_id]

    def ready(self, now: datetime, quiet_s: float, most_s: float, limit: int) -> list[str]:
        """Return ids of traces that are ready to be read, oldest first.

        Ready are traces whose root has ended and that received nothing for `quiet_s` seconds, and traces
        that have been unread for `most_s` seconds.
        """
        quiet = (traces.c.ended == 1) & (traces.c.last_at <= now - timedelta(seconds=quiet_s))
        asked = select(traces.c.id).where(
            traces.c.changed > traces.c.read, or_(quiet, traces.c.since <= now - timedelta(seconds=most_s))
        )
        with self._reading() as connection:
            return list(connection.scalars(asked.order_by(traces.c.since, traces.c.id).limit(limit)))

    def content(self, trace_ids: Sequence[str]) -> list[Content]:
        """Return the current content of traces, the oldest first."""
        asked = select(traces).where(traces.c.id.in_(trace_ids))
        any_target = select(targets.c.trace_id).where(targets.c.trace_id.in_(trace_ids), targets.c.gone == 0)
        with self._reading() as connection:
            rows = connection.execute(asked.order_by(traces.c.since, traces.c.id)).all()
            found = _spans_of(connection, [row.id for row in rows])
            known = set(connection.scalars(any_target.distinct()))
        return [
            Content(
                trace_id=row.id,
                changed=row.changed,
                is_unread=row.changed > row.read,
                ended=bool(row.ended),
                since=row.since,
                last_at=row.last_at,
                spans=tuple(found[row.id]),
                known=row.id in known,
                kinds=kinds_of(row.kinds),
            )
            for row in rows
        ]

    # --- targets and what is decided of them at first -------------------------------------------

    def lacking(self, kind: str, since: datetime, limit: int | None, *, only_read: bool = False) -> list[str]:
        """Return ids of traces with spans since a moment in which this kind of target was not looked for.

        With `only_read`, without traces that are still to be read anyway.
        """
        asked = select(traces.c.id).where(traces.c.last_at >= since)
        asked = asked.where(traces.c.kinds.bitwise_and(bits_of([kind])) == 0)
        if only_read:
            asked = asked.where(traces.c.changed <= traces.c.read)
        with self._reading() as connection:
            return list(connection.scalars(asked.order_by(traces.c.last_at, traces.c.id).limit(limit)))

    def read(self, these: Sequence[Read], now: datetime) -> int:
        """Store the targets of traces, with each rule's decision, and return the number of traces.

        A trace that another process has read in the meantime is left out.
        """
        found = {each.content.trace_id: each for each in these}
        records = {
            trace_id: [record_of(target, each.seen_at) for target in each.found]
            for trace_id, each in found.items()
        }
        locked = select(traces.c.id, traces.c.read, traces.c.kinds).where(traces.c.id.in_(found))
        with self._writing() as connection:
            rows = connection.execute(locked.order_by(traces.c.id).with_for_update()).all()
            done = []
            for row in rows:
                read, bits = found[row.id], bits_of(found[row.id].kinds)
                changed = read.content.changed
                if row.read < changed or (row.read == changed and bits & ~row.kinds):
                    done.append({"of_id": row.id, "read": changed, "kinds": row.kinds | bits})
            if not done:
                return 0
            mine = [found[row["of_id"]] for row in done]
            take(
                connection,
                [record for each in mine for record in records[each.content.trace_id]],
                {(each.content.trace_id, kind) for each in mine for kind in each.kinds},
                {each.content.trace_id: each.decide for each in mine},
                now,
            )
            connection.execute(_READ, done)
            return len(done)

    def register(
        self, name: str, spec: Mapping[str, Any], digest: str, now: datetime, since: datetime | None = None
    ) -> RuleRecord:
        """Return the version of a rule with this content: the newest if it is equal, else a new one.

        The rule decides on targets seen from now on, or from when it was first registered with this kind of
        target. With `since` it also decides on earlier ones, and replaces the decisions of earlier versions.
        """
        with self._writing() as connection:
            # Of a new rule there is no row to lock, and a newer version may appear beside a locked one.
            stop_writers(connection, rules)
            newest = select(rules).where(rules.c.name == name).order_by(rules.c.version.desc()).limit(1)
            row = connection.execute(newest.with_for_update()).one_or_none()
            same_kind = row is not None and loads(row.spec).get("target") == spec.get("target")
            begun = row.since if row is not None and same_kind else now
            begun = begun if since is None else min(begun, since)
            if row is None or row.digest != digest:
                version = 1 if row is None else row.version + 1
                values = {"name": name, "version": version, "digest": digest, "spec": dumps(dict(spec))}
                connection.execute(insert(rules).values(values | {"since": begun}))
            else:
                version = row.version
                mine = (rules.c.name == name, rules.c.version == version)
                connection.execute(update(rules).where(*mine).values(since=begun))
            if since is not None:
                early = select(targets.c.id).where(targets.c.seen_at >= since)
                outdate(connection, name, version, decisions.c.target.in_(early), now)
            return rule_from(connection.execute(newest).one())

    def cover(self, rule: RuleRecord, kind: str, decide: Decide, now: datetime, limit: int) -> int:
        """Decide on at most `limit` targets without a decision of this rule, and return their number.

        Undecided targets of earlier versions of the rule are taken over.
        """
        live = select(decisions.c.target).where(
            decisions.c.target == targets.c.id,
            decisions.c.rule == rule.name,
            decisions.c.state != SUPERSEDED,
        )
        asked = select(targets).where(
            targets.c.kind == kind, targets.c.gone == 0, targets.c.seen_at >= rule.since, ~live.exists()
        )
        earlier = select(decisions.c.target).where(
            decisions.c.rule == rule.name,
            decisions.c.version < rule.version,
            decisions.c.state.in_(UNDECIDED),
        )
        with self._reading() as connection:  # mostly there are none, and a writer would keep others waiting
            if not any(connection.execute(each.limit(1)).first() for each in (asked, earlier)):
                return 0
        with self._writing() as connection:
            outdate(connection, rule.name, rule.version, decisions.c.state.in_(UNDECIDED), now)
            # Locked against deletion until they have a decision; what is being deleted is left out.
            asked = asked.order_by(targets.c.seen_at, targets.c.id).limit(limit)
            locked = asked.with_for_update(read=True, key_share=True, skip_locked=True, of=targets)
            found = [target_from(row) for row in connection.execute(locked)]
            add_decisions(connection, [(each, draft) for each in found for draft in decide(each)], now)
            return len(found)

    def wake(self, rule: RuleRecord, decide: Decide, now: datetime, limit: int) -> int:
        """Decide again on at most `limit` targets whose waiting time is over, and return their number."""
        asked = select(targets).join(decisions, decisions.c.target == targets.c.id)
        asked = asked.where(*of_rule(rule), decisions.c.state == "waiting", decisions.c.due_at <= now)
        with self._writing() as connection:
            rows = connection.execute(asked.order_by(targets.c.id).limit(limit))
            found = [target_from(row) for row in rows]
            decide_again(connection, [(each, draft) for each in found for draft in decide(each)], now)
            return len(found)

    def undecided(
        self, rule: str, digest: str, kind: str, since: datetime, limit: int | None = None
    ) -> list[TargetRecord]:
        """Return targets seen since a moment without a final decision of the rule with this digest."""
        same = (rules.c.name == decisions.c.rule, rules.c.version == decisions.c.version)
        over = select(decisions.c.target).join(rules, and_(*same))
        over = over.where(
            decisions.c.target == targets.c.id,
            decisions.c.rule == rule,
            rules.c.digest == digest,
            decisions.c.state.not_in((*UNDECIDED, SUPERSEDED)),
        )
        asked = select(targets).where(
            targets.c.kind == kind, targets.c.gone == 0, targets.c.seen_at >= since, ~over.exists()
        )
        with self._reading() as connection:
            rows = connection.execute(asked.order_by(targets.c.seen_at, targets.c.id).limit(limit)).all()
        return [target_from(row) for row in rows]

    # --- what is judged -------------------------------------------------------------------------

    def lease(
        self,
        rule: RuleRecord,
        lease: str,
        until: datetime,
        now: datetime,
        room: Callable[[Sequence[Hour], int], int],
        *,
        newest_first: bool = False,
    ) -> list[Leased]:
        """Lease due decisions. Nobody else takes them before `until`.

        `room` returns how many more may start, given the rule's costs in the hours of the last week and the
        number of decisions already leased. It is called inside the transaction, while no other worker can
        lease.

        A decision whose worker died (`kill -9`, out of memory) is leased alone from then on, so that it
        takes no other down with it. After `MOST_LOST` dead workers it is failed.
        """
        with self._writing() as connection:
            held = select(rules.c.name).where(rules.c.name == rule.name, rules.c.version == rule.version)
            connection.execute(held.with_for_update(key_share=True))
            taken = select(func.count()).where(
                decisions.c.rule == rule.name, decisions.c.state.in_(DUE), decisions.c.lease_until > now
            )
            most = room(hours_of(connection, rule.name, now - WEEK), connection.scalar(taken) or 0)
            if most < 1:
                return []
            note_lost(connection, rule, now)
            order = decisions.c.made_at.desc() if newest_first else decisions.c.made_at
            asked = select(decisions, targets.c.trace_id, targets.c.span_id, targets.c.body).join(targets)
            asked = asked.where(*due_of(rule, now)).order_by(decisions.c.lost, order, decisions.c.target)
            rows = connection.execute(asked.limit(most).with_for_update(skip_locked=True, of=decisions)).all()
            rows = [row for row in rows if not row.lost] or rows[:1]
            if not rows:
                return []
            held_by = {"lease": lease, "lease_until": until, "attempts": decisions.c.attempts + 1}
            mine = (*due_of(rule, now), decisions.c.target.in_([row.target for row in rows]))
            connection.execute(update(decisions).where(*mine).values(held_by))
        return [leased_from(row, lease) for row in rows]

    def renew(self, lease: str, until: datetime) -> None:
        """Extend a lease until `until`."""
        with self._writing() as connection:
            mine = decisions.c.lease == lease
            connection.execute(update(decisions).where(mine).values(lease_until=until))

    def settle(self, settled: Sequence[Settled]) -> list[bool]:
        """Store changes of leased decisions, and their outcomes in the given runs, in one transaction.

        Returns which of them the caller still held. The others' leases had expired and another worker took
        the decision, or later spans superseded it. Of those only the cost is stored.
        """
        if not settled:
            return []
        outcomes = [each.outcome for each in settled if each.outcome is not None]
        rows = {(each.sample_id, each.judge): prepared(each) for each in outcomes}
        with self._writing() as connection:
            return settle_all(connection, settled, rows)

    def defer(self, rule: RuleRecord, state: str, until: datetime, reason: str, now: datetime) -> int:
        """Postpone the due decisions that nobody has leased until `until`, and return their number."""
        values = {"state": state, "reason": reason, "due_at": until, "changed_at": now}
        with self._writing() as connection:
            return connection.execute(update(decisions).where(*due_of(rule, now)).values(values)).rowcount

    def give_up(
        self,
        rule: RuleRecord,
        state: str,
        reason: str,
        now: datetime,
        *,
        made_before: datetime,
        target_before: str = "",
    ) -> int:
        """End the unleased due decisions made before `made_before`, and return their number.

        Of those made exactly then, the ones with a target below `target_before` are ended too.
        """
        values = {"state": state, "reason": reason, "due_at": None, "changed_at": now}
        free = or_(decisions.c.lease_until.is_(None), decisions.c.lease_until <= now)
        at_it = (decisions.c.made_at == made_before) & (decisions.c.target < target_before)
        old = or_(decisions.c.made_at < made_before, at_it)
        mine = (*of_rule(rule), decisions.c.state.in_(DUE), free, old)
        with self._writing() as connection:
            return connection.execute(update(decisions).where(*mine).values(values)).rowcount

    def nth_newest_due(self, rule: RuleRecord, n: int) -> tuple[datetime, str] | None:
        """Return the creation time and target of the n-th newest due decision; None if there are fewer."""
        asked = select(decisions.c.made_at, decisions.c.target).where(
            *of_rule(rule), decisions.c.state.in_(DUE)
        )
        order = (decisions.c.made_at.desc(), decisions.c.target.desc())
        with self._reading() as connection:
            row = connection.execute(asked.order_by(*order).offset(n - 1).limit(1)).one_or_none()
        return None if row is None else (row.made_at, row.target)

    def keep_run(self, rule: RuleRecord, run_id: str) -> str:
        """Set the run of this version of a rule, unless it was changed since `rule` was read; return it."""
        before = rules.c.run_id.is_(None) if rule.run_id is None else rules.c.run_id == rule.run_id
        mine = (rules.c.name == rule.name, rules.c.version == rule.version)
        with self._writing() as connection:
            connection.execute(update(rules).where(*mine, before).values(run_id=run_id))
            return str(connection.scalar(select(rules.c.run_id).where(*mine)))

    # --- questions ------------------------------------------------------------------------------

    def rule(self, name: str) -> RuleRecord | None:
        """Return the newest version of a rule."""
        asked = select(rules).where(rules.c.name == name).order_by(rules.c.version.desc()).limit(1)
        with self._reading() as connection:
            row = connection.execute(asked).one_or_none()
        return None if row is None else rule_from(row)

    def counts(self, rule: str, since: datetime | None = None) -> dict[str, int]:
        """Return the number of a rule's decisions per state, over all versions.

        Those not superseded are as many as the targets the rule decided on. With `since`, only targets seen
        from then on are counted.
        """
        asked = select(decisions.c.state, func.count()).where(decisions.c.rule == rule)
        if since is not None:
            asked = asked.join(targets, decisions.c.target == targets.c.id).where(targets.c.seen_at >= since)
        with self._reading() as connection:
            rows = connection.execute(asked.group_by(decisions.c.state)).all()
        return dict(sorted((state, n) for state, n in rows))

    def decisions(self, rule: str, *, trace_id: str | None = None) -> list[Decision]:
        """Return the decisions of all versions of a rule, by target and revision."""
        # Of a trace, the rule is looked at here: SQLite would go through all decisions of the rule.
        mine = decisions.c.rule == rule if trace_id is None else targets.c.trace_id == trace_id
        asked = select(decisions).join(targets).where(mine)
        order = (targets.c.seen_at, decisions.c.target, decisions.c.version, decisions.c.revision)
        with self._reading() as connection:
            rows = connection.execute(asked.order_by(*order))
            return [decision_from(row) for row in rows if row.rule == rule]

    def answers(
        self, rule: str, since: datetime, until: datetime
    ) -> list[tuple[datetime, str, str, str, float | None, Sequence[Mapping[str, Any]]]]:
        """Return the decisions on targets seen from `since` to before `until`.

        Each is a tuple: time seen, trace id, target id, state, inclusion, and the judges' results.
        """
        asked = select(
            targets.c.seen_at,
            targets.c.trace_id,
            targets.c.id,
            decisions.c.state,
            decisions.c.inclusion,
            decisions.c.asked,
        ).join(decisions, decisions.c.target == targets.c.id)
        asked = asked.where(
            decisions.c.rule == rule,
            decisions.c.state != SUPERSEDED,
            targets.c.seen_at >= since,
            targets.c.seen_at < until,
        )
        with self._reading() as connection:
            rows = connection.execute(asked.order_by(targets.c.seen_at, targets.c.id)).all()
        return [(at, trace, target, state, pi, loads(body)) for at, trace, target, state, pi, body in rows]

    def hours(self, rule: str, now: datetime, since: datetime | None = None) -> list[Hour]:
        """Return a rule's cost per hour with any cost, of the last week or since `since`."""
        with self._reading() as connection:
            return hours_of(connection, rule, now - WEEK if since is None else since)


# --- spans --------------------------------------------------------------------------------------------


def _newer(span: Span, stored: Span) -> bool:
    return span.end_ns is not None or stored.end_ns is None


def _put(connection: Connection, arrived: Sequence[Span], now: datetime) -> int:
    """Store new or changed spans and mark their traces as changed, locking the rows of the traces first."""
    trace_ids = sorted({span.trace_id for span in arrived})
    unseen = {"since": now, "last_at": now, "ended": 0, "changed": 0, "read": 0}
    # One statement inserts or locks a row: between two, another process could delete the trace.
    locking = insert_or(connection, traces)
    locking = locking.on_conflict_do_update(index_elements=["id"], set_={"ended": traces.c.ended})
    connection.execute(locking, [unseen | {"id": each} for each in trace_ids])
    keys = [(span.trace_id, span.span_id) for span in arrived]
    # SQLite has no index for pairs in a list, so this asks for a few more.
    asked = select(spans).where(
        spans.c.trace_id.in_(trace_ids), spans.c.span_id.in_({span_id for _, span_id in keys})
    )
    known = {(row.trace_id, row.span_id): row.body for row in connection.execute(asked)}
    rows, ended = [], dict[str, int]()
    for span, key in zip(arrived, keys, strict=True):
        body, before = dumps(span.as_json(), sort_keys=True), known.get(key)
        if before is not None and (before == body or not _newer(span, Span.from_json(loads(before)))):
            continue
        rows.append({"trace_id": key[0], "span_id": key[1], "received_at": now, "body": body})
        ended[key[0]] = max(ended.get(key[0], 0), int(span.parent_id is None and span.end_ns is not None))
    for trace_id, root in ended.items():
        values = {
            "since": case(
                (traces.c.changed > traces.c.read, traces.c.since), else_=bindparam("at", now, Instant)
            ),
            "last_at": now,
            "ended": 1 if root else traces.c.ended,
            "changed": traces.c.changed + 1,
        }
        connection.execute(update(traces).where(traces.c.id == trace_id).values(values))
    if rows:
        storing = insert_or(connection, spans)
        new = {"body": storing.excluded.body, "received_at": storing.excluded.received_at}
        connection.execute(
            storing.on_conflict_do_update(index_elements=["trace_id", "span_id"], set_=new), rows
        )
    return len(rows)


def _spans_of(connection: Connection, trace_ids: Sequence[str]) -> dict[str, list[Span]]:
    """Return the spans of each trace by start time."""
    found: dict[str, list[Span]] = {trace_id: [] for trace_id in trace_ids}
    asked = select(spans.c.trace_id, spans.c.body).where(spans.c.trace_id.in_(trace_ids))
    for trace_id, body in connection.execute(asked) if trace_ids else ():
        found[trace_id].append(Span.from_json(loads(body)))
    for each in found.values():
        each.sort(key=lambda span: (span.start_ns, span.span_id))
    return found


_READ = update(traces).where(traces.c.id == bindparam("of_id"))
