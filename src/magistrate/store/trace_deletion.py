"""Deletes traces with everything that was made of them.

That is their spans, targets and decisions, what judges said of them with its steps, what waits to be sent,
and the samples in runs of rules, where no other run, no data set and no label queue uses them. What was spent
stays counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, and_, delete, exists, func, or_, select

from magistrate.store.runs import change_run, lock_run
from magistrate.store.schema import (
    dataset_samples,
    decisions,
    label_items,
    rules,
    run_samples,
    run_tags,
    samples,
    stop_writers,
    targets,
    traces,
)

WATCH_TAG = "watch"
"""The tag of the runs that rules keep their outcomes in."""

Transaction = Callable[[], AbstractContextManager[Connection]]


@dataclass(frozen=True, slots=True)
class Deleted:
    """How much was deleted: traces, their targets, and samples of runs with what judges said of them."""

    traces: int = 0
    targets: int = 0
    samples: int = 0

    def __add__(self, other: Deleted) -> Deleted:
        return Deleted(self.traces + other.traces, self.targets + other.targets, self.samples + other.samples)


@dataclass(frozen=True, slots=True)
class TraceDeletion:
    """Deletes traces of a store, reached as `store.trace_deletion`."""

    _writing: Transaction
    _reading: Transaction

    def delete(self, trace_id: str) -> Deleted:
        """Delete a trace with everything that was made of it; nothing where there is none.

        A worker that judges it meanwhile stores nothing more of it. Spans of it that come later make it anew.
        """
        with self._writing() as connection:
            return _delete(connection, trace_id)

    def delete_before(self, moment: datetime, now: datetime, limit: int) -> Deleted:
        """Delete at most `limit` traces of which nothing has come since a moment, the oldest first.

        One that somebody judges at this moment is left for the next time.
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
        """The ids of traces that begin so, as many as `limit`."""
        here = func.substr(traces.c.id, 1, len(beginning)) == beginning
        with self._reading() as connection:
            return list(
                connection.scalars(select(traces.c.id).where(here).order_by(traces.c.id).limit(limit))
            )


def _delete(connection: Connection, trace_id: str) -> Deleted:
    locked = select(traces.c.id).where(traces.c.id == trace_id).with_for_update()
    if connection.scalar(locked) is None:
        return Deleted()
    places = connection.execute(
        select(targets.c.id, targets.c.span_id).where(targets.c.trace_id == trace_id)
    ).all()
    n_samples = _delete_samples(connection, [f"{trace_id}.{row.span_id}" for row in places])
    connection.execute(delete(traces).where(traces.c.id == trace_id))  # the rest goes with it
    return Deleted(1, len(places), n_samples)


def _delete_samples(connection: Connection, names: Iterable[str]) -> int:
    """Delete the samples of these names, of all revisions, from the runs of rules; the answer is how many."""
    # A run of an earlier model is not its rule's any more, but has the tag that all of them get.
    of_rules = select(rules.c.run_id).where(rules.c.run_id.is_not(None))
    tagged = select(run_tags.c.run_id).where(run_tags.c.tag == WATCH_TAG)
    mine = or_(run_samples.c.run_id.in_(of_rules), run_samples.c.run_id.in_(tagged))
    n = 0
    for name in names:
        later = (run_samples.c.sample_id > f"{name}.", run_samples.c.sample_id < f"{name}/")  # / is after .
        called = or_(run_samples.c.sample_id == name, and_(*later))
        asked = select(run_samples.c.run_id, run_samples.c.position, run_samples.c.sample_key)
        for row in connection.execute(asked.where(mine, called)).all():
            lock_run(connection, row.run_id)
            stop_writers(connection, samples)
            here = (run_samples.c.run_id == row.run_id, run_samples.c.position == row.position)
            connection.execute(delete(run_samples).where(*here))  # its outcomes and their steps go with it
            in_runs = exists().where(run_samples.c.sample_key == samples.c.key)
            in_sets = exists().where(dataset_samples.c.sample_key == samples.c.key)
            in_queues = exists().where(label_items.c.sample_key == samples.c.key)
            unused = (samples.c.key == row.sample_key, ~in_runs, ~in_sets, ~in_queues)
            connection.execute(delete(samples).where(*unused))
            change_run(connection, row.run_id)
            n += 1
    return n
