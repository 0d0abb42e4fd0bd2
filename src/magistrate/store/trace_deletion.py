"""Delete traces with everything derived from them.

Deleted are their spans, targets, decisions and unsent messages, and the outcomes with their steps. Samples
in runs of rules are deleted too, unless another run, a data set or a label queue uses them. What was spent
stays counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, delete, func, or_, select

from magistrate.store.runs import UNUSED, change_run, lock_run
from magistrate.store.schema import (
    StorePart,
    decisions,
    rules,
    run_samples,
    run_tags,
    samples,
    stop_writers,
    targets,
    traces,
)

WATCH_TAG = "watch"
"""The tag of the runs in which rules store their outcomes."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """The number of deleted traces, their targets, and samples of runs with their outcomes."""

    traces: int = 0
    targets: int = 0
    samples: int = 0

    def __add__(self, other: Deleted) -> Deleted:
        return Deleted(self.traces + other.traces, self.targets + other.targets, self.samples + other.samples)


@dataclass(frozen=True, slots=True)
class TraceDeletion(StorePart):
    """Deletes traces of a store, as `store.trace_deletion`."""

    def delete(self, trace_id: str) -> Deleted:
        """Delete a trace with everything derived from it. Does nothing if it does not exist.

        A worker that is judging it stores nothing more of it. Later spans of it create it again.
        """
        with self._writing() as connection:
            return _delete(connection, trace_id)

    def delete_before(self, moment: datetime, now: datetime, limit: int) -> Deleted:
        """Delete at most `limit` traces without new spans since `moment`, the oldest first.

        Traces that are being judged are skipped until the next call.
        """
        held = (
            select(decisions.c.target)
            .select_from(decisions)
            .join(targets)
            .where(targets.c.trace_id == traces.c.id, decisions.c.lease_until > now)
        )
        asked = select(traces.c.id).where(traces.c.last_at < moment, ~held.exists())
        with self._reading() as connection:
            old = list(connection.scalars(asked.order_by(traces.c.last_at, traces.c.id).limit(limit)))
        done = Deleted()
        for trace_id in old:
            done += self.delete(trace_id)
        return done

    def known(self, beginning: str, limit: int) -> list[str]:
        """Return at most `limit` ids of traces that begin with `beginning`."""
        here = func.substr(traces.c.id, 1, len(beginning)) == beginning
        with self._reading() as connection:
            return list(
                connection.scalars(select(traces.c.id).where(here).order_by(traces.c.id).limit(limit))
            )


def _delete(connection: Connection, trace_id: str) -> Deleted:
    locked = select(traces.c.id).where(traces.c.id == trace_id).with_for_update()
    if connection.scalar(locked) is None:
        return Deleted()
    # In the order in which a worker that stores a verdict locks them, so that neither waits for the other.
    decided = select(decisions.c.target).join(targets).where(targets.c.trace_id == trace_id)
    order = (decisions.c.rule, decisions.c.version, decisions.c.target, decisions.c.revision)
    connection.execute(decided.order_by(*order).with_for_update(of=decisions)).all()
    places = connection.execute(
        select(targets.c.id, targets.c.span_id).where(targets.c.trace_id == trace_id)
    ).all()
    n_samples = _delete_samples(connection, [f"{trace_id}.{row.span_id}" for row in places])
    connection.execute(delete(traces).where(traces.c.id == trace_id))  # the rest is deleted by cascade
    return Deleted(1, len(places), n_samples)


def _delete_samples(connection: Connection, names: Iterable[str]) -> int:
    """Delete the samples of these names, of all revisions, from runs of rules, and return their number."""
    # A run of an earlier model does not belong to its rule any more, but still has the tag.
    of_rules = select(rules.c.run_id).where(rules.c.run_id.is_not(None))
    tagged = select(run_tags.c.run_id).where(run_tags.c.tag == WATCH_TAG)
    mine = or_(run_samples.c.run_id.in_(of_rules), run_samples.c.run_id.in_(tagged))
    found: list[Any] = []
    for name in names:
        later = (run_samples.c.sample_id > f"{name}.", run_samples.c.sample_id < f"{name}/")  # / follows .
        called = or_(run_samples.c.sample_id == name, and_(*later))
        asked = select(run_samples.c.run_id, run_samples.c.position, run_samples.c.sample_key)
        found += connection.execute(asked.where(mine, called)).all()
    if not found:
        return 0
    for run_id in sorted({row.run_id for row in found}):
        lock_run(connection, run_id)
    stop_writers(connection, samples)
    for row in found:
        here = (run_samples.c.run_id == row.run_id, run_samples.c.position == row.position)
        connection.execute(delete(run_samples).where(*here))  # outcomes and steps are deleted by cascade
        connection.execute(delete(samples).where(samples.c.key == row.sample_key, UNUSED))
        change_run(connection, row.run_id)
    return len(found)
