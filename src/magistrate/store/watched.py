"""The state of watching: undecided, waiting and failed targets, alerts, and how far servers were read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select, update

from magistrate.store import outbox
from magistrate.store.codec import dumps, loads
from magistrate.store.decisions import DUE, SUPERSEDED, RuleRecord, rule_from
from magistrate.store.schema import (
    StorePart,
    alerts,
    decisions,
    insert_missing,
    insert_or,
    of_row,
    outcomes,
    rules,
    run_samples,
    sources,
    targets,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRecord:
    """The state of an alert: whether it fires, since when, and the values at the last check."""

    name: str
    firing: bool
    changed_at: datetime
    checked_at: datetime
    seen: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Watched(StorePart):
    """Queries on what is watched, and the states of alerts, as `store.watched`."""

    def rules(self) -> list[RuleRecord]:
        """Return the newest version of every rule, by name."""
        newest = select(rules.c.name, func.max(rules.c.version).label("version")).group_by(rules.c.name)
        last = newest.subquery()
        asked = select(rules).join(last, (rules.c.name == last.c.name) & (rules.c.version == last.c.version))
        with self._reading() as connection:
            rows = connection.execute(asked.order_by(rules.c.name)).all()
        return [rule_from(row) for row in rows]

    def n_undecided(self, rule: str, kind: str, since: datetime) -> int:
        """Return the number of targets seen since `since` without a decision of the rule."""
        live = select(decisions.c.target).where(
            decisions.c.target == targets.c.id, decisions.c.rule == rule, decisions.c.state != SUPERSEDED
        )
        asked = select(func.count()).where(
            targets.c.kind == kind, targets.c.gone == 0, targets.c.seen_at >= since, ~live.exists()
        )
        with self._reading() as connection:
            return connection.scalar(asked) or 0

    def seen_at(self, run_id: str) -> dict[str, datetime]:
        """Return when the samples of a rule's run were seen, by sample id; empty for any other run."""
        asked = select(run_samples.c.sample_id, func.min(targets.c.seen_at).label("seen_at"))
        asked = asked.select_from(decisions)
        asked = asked.join(targets, targets.c.id == decisions.c.target)
        asked = asked.join(outcomes, outcomes.c.id == decisions.c.outcome_id)
        asked = asked.join(run_samples, run_samples.c.run_id == outcomes.c.run_id)
        asked = asked.where(outcomes.c.run_id == run_id, run_samples.c.position == outcomes.c.position)
        with self._reading() as connection:
            rows = connection.execute(asked.group_by(run_samples.c.sample_id)).all()
        return {row.sample_id: row.seen_at for row in rows}

    def waiting(self, rule: str) -> tuple[int, datetime | None]:
        """Return the number of targets waiting to be judged, and since when the oldest waits."""
        asked = select(func.count(), func.min(decisions.c.made_at))
        with self._reading() as connection:
            n, oldest = connection.execute(
                asked.where(decisions.c.rule == rule, decisions.c.state.in_(DUE))
            ).one()
        return n, oldest

    def reasons(
        self, rule: str, states: Sequence[str], since: datetime, limit: int
    ) -> list[tuple[str, str, int]]:
        """Return the most frequent reasons of decisions in these states: state, reason, number."""
        n = func.count()
        asked = select(decisions.c.state, decisions.c.reason, n).join(targets)
        asked = asked.where(
            decisions.c.rule == rule, decisions.c.state.in_(states), targets.c.seen_at >= since
        )
        asked = asked.group_by(decisions.c.state, decisions.c.reason)
        with self._reading() as connection:
            rows = connection.execute(asked.order_by(n.desc(), decisions.c.reason).limit(limit)).all()
        return [(state, reason, number) for state, reason, number in rows]

    def has_price(self, rule: str, since: datetime) -> bool:
        """Return whether the price is known of everything that the rule has judged since `since`."""
        unpriced = select(decisions.c.target).where(
            decisions.c.rule == rule, decisions.c.changed_at >= since, decisions.c.dollars.is_(None)
        )
        with self._reading() as connection:
            return connection.execute(unpriced.limit(1)).one_or_none() is None

    # --- alerts -----------------------------------------------------------------------------------

    def alerts(self) -> list[AlertRecord]:
        """Return all alerts that were ever checked, by name."""
        with self._reading() as connection:
            rows = connection.execute(select(alerts).order_by(alerts.c.name)).all()
        return [of_row(AlertRecord, row, firing=bool(row.firing), seen=loads(row.body)) for row in rows]

    def note_alert(
        self,
        name: str,
        before: bool,
        firing: bool,
        seen: Mapping[str, Any],
        now: datetime,
        messages: Iterable[tuple[str, Mapping[str, Any]]],
    ) -> bool:
        """Record a check of an alert; return True if its state changed from `before`.

        `before` is the state that the caller has read, and must still be current. Of several processes that
        see the same change, only one gets True; a process with an outdated state does not. Only with True
        are the `messages`, each with its destination, put into the outbox, in the same transaction.
        """
        with self._writing() as connection:
            unseen = {"name": name, "firing": 0, "changed_at": now, "checked_at": now, "body": "{}"}
            connection.execute(insert_missing(connection, alerts).values(unseen))
            here = alerts.c.name == name
            connection.execute(update(alerts).where(here).values(checked_at=now, body=dumps(dict(seen))))
            if firing == before:
                return False
            turning = update(alerts).where(here, alerts.c.firing == int(before))
            if connection.execute(turning.values(firing=int(firing), changed_at=now)).rowcount != 1:
                return False
            told = [outbox.message(to, (name, str(body["id"])), now, body=body) for to, body in messages]
            outbox.put(connection, told)
        return True


@dataclass(frozen=True, slots=True)
class Sources(StorePart):
    """The cursors of sources by name, available as `store.sources`."""

    def cursor(self, name: str) -> Mapping[str, Any] | None:
        """Return the cursor of a source; None if it was never read."""
        with self._reading() as connection:
            body = connection.scalar(select(sources.c.cursor).where(sources.c.name == name))
        return None if body is None else loads(body)

    def keep(self, name: str, cursor: Mapping[str, Any], now: datetime) -> None:
        """Store the cursor of a source, after its spans were stored. Committed when this returns."""
        with self._writing() as connection:
            row = {"name": name, "cursor": dumps(dict(cursor)), "changed_at": now}
            adding = insert_or(connection, sources).values(row)
            new = {each: adding.excluded[each] for each in ("cursor", "changed_at")}
            connection.execute(adding.on_conflict_do_update(index_elements=["name"], set_=new))
