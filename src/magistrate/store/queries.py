"""Every question the store is asked and every change made to it, one named function each.

All take an open connection within a transaction; values reach the database as parameters only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, bindparam, delete, exists, func, insert, select, update
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from magistrate.store.codec import sample_from, sample_key, steps_body
from magistrate.store.records import RunRecord
from magistrate.store.rows import outcome_from, outcome_row, run_from
from magistrate.store.tables import outcomes, run_samples, run_tags, runs, samples, steps
from magistrate.types import Outcome, Sample

ROWS_AT_ONCE = 500
_RUN_ID = re.compile(r"[0-9a-z-]{1,40}")

# --- runs ---------------------------------------------------------------------------------------


def insert_run(connection: Connection, row: Mapping[str, Any], tags: Iterable[str]) -> None:
    """A new run; an integrity error where its id is taken."""
    connection.execute(insert(runs), [row])
    change_tags(connection, row["id"], tags, ())


def run_exists(connection: Connection, run_id: str) -> bool:
    """Is there a run of exactly this id?"""
    return connection.scalar(select(exists().where(runs.c.id == run_id))) is True


def newest_run_id(connection: Connection) -> str | None:
    """Which run was created last?"""
    return connection.scalar(select(runs.c.id).order_by(runs.c.number.desc()).limit(1))


def run_ids_named(connection: Connection, name: str) -> list[str]:
    """Which runs bear this name? Newest first."""
    return list(
        connection.scalars(select(runs.c.id).where(runs.c.name == name).order_by(runs.c.number.desc()))
    )


def run_ids_starting(connection: Connection, prefix: str) -> list[str]:
    """Which runs' ids begin with `prefix`? Newest first."""
    if not _RUN_ID.fullmatch(prefix):
        return []
    matching = select(runs.c.id).where(runs.c.id.startswith(prefix, autoescape=True))
    return list(connection.scalars(matching.order_by(runs.c.number.desc())))


def ids_and_names(connection: Connection, limit: int) -> list[str]:
    """By which words can the newest runs be called?"""
    rows = connection.execute(select(runs.c.id, runs.c.name).order_by(runs.c.number.desc()).limit(limit))
    return [word for row in rows for word in row if word is not None]


def runs_where(
    connection: Connection,
    *,
    run_id: str | None = None,
    limit: int | None = None,
    tag: str | None = None,
    dataset: str | None = None,
) -> list[RunRecord]:
    """Which runs meet every condition given, newest first, and how far is each?"""
    chosen = select(runs).order_by(runs.c.number.desc()).limit(limit)
    if run_id is not None:
        chosen = chosen.where(runs.c.id == run_id)
    if dataset is not None:
        chosen = chosen.where(runs.c.dataset == dataset)
    if tag is not None:
        tagged = select(run_tags.c.run_id).where(run_tags.c.tag == tag)
        chosen = chosen.where(runs.c.id.in_(tagged))
    ids = select(chosen.subquery().c.id)
    tags: dict[str, list[str]] = {}
    for run, word in connection.execute(select(run_tags).where(run_tags.c.run_id.in_(ids))):
        tags.setdefault(run, []).append(word)
    counts: dict[str, dict[str, dict[str, int]]] = {}
    groups = (outcomes.c.run_id, outcomes.c.judge, outcomes.c.kind)
    counting = select(*groups, func.count()).where(outcomes.c.run_id.in_(ids)).group_by(*groups)
    for run, judge, kind, number in connection.execute(counting):
        counts.setdefault(run, {}).setdefault(judge, {})[kind] = number
    sizing = select(run_samples.c.run_id, func.count()).where(run_samples.c.run_id.in_(ids))
    sizing = sizing.group_by(run_samples.c.run_id)
    sizes: dict[str, int] = {row[0]: row[1] for row in connection.execute(sizing)}
    return [
        run_from(row, tags.get(row.id, []), counts.get(row.id, {}), sizes.get(row.id, 0))
        for row in connection.execute(chosen)
    ]


def finish_run(
    connection: Connection, run_id: str, status: str, finished_at: datetime, n_total: int | None
) -> None:
    """The run is over; `n_total` is kept as it was where None."""
    changes: dict[str, Any] = {"status": status, "finished_at": finished_at}
    if n_total is not None:
        changes["n_total"] = n_total
    connection.execute(update(runs).where(runs.c.id == run_id).values(changes))


def rename_run(connection: Connection, run_id: str, name: str | None) -> None:
    """The run bears another name, or none."""
    connection.execute(update(runs).where(runs.c.id == run_id).values(name=name))


def change_tags(connection: Connection, run_id: str, add: Iterable[str], remove: Iterable[str]) -> None:
    """The run bears the tags in `add` and none of those in `remove`."""
    for tag in dict.fromkeys(add):
        connection.execute(sqlite_insert(run_tags).on_conflict_do_nothing(), [{"run_id": run_id, "tag": tag}])
    for tag in remove:
        connection.execute(delete(run_tags).where(run_tags.c.run_id == run_id, run_tags.c.tag == tag))


def delete_run(connection: Connection, run_id: str) -> None:
    """The run is gone with its outcomes, and the samples that no other run uses."""
    mine = select(run_samples.c.sample_key).where(run_samples.c.run_id == run_id)
    others = exists().where(run_samples.c.sample_key == samples.c.key, run_samples.c.run_id != run_id)
    connection.execute(delete(samples).where(samples.c.key.in_(mine), ~others))
    connection.execute(delete(runs).where(runs.c.id == run_id))


# --- samples ------------------------------------------------------------------------------------


def append_samples(connection: Connection, run_id: str, chunk: Sequence[tuple[str, str]]) -> None:
    """More samples for a run, as ids with bodies, after those it has; an id it has is an integrity error."""
    last = connection.scalar(select(func.max(run_samples.c.position)).where(run_samples.c.run_id == run_id))
    first = 0 if last is None else last + 1
    keyed = [(sample_id, sample_key(body), body) for sample_id, body in chunk]
    connection.execute(
        sqlite_insert(samples).on_conflict_do_nothing(),
        [{"key": key, "body": body} for _, key, body in keyed],
    )
    connection.execute(
        insert(run_samples),
        [
            {"run_id": run_id, "position": position, "sample_id": sample_id, "sample_key": key}
            for position, (sample_id, key, _) in enumerate(keyed, first)
        ],
    )


def has_sample(connection: Connection, run_id: str, sample_id: str) -> bool:
    """Does the run have a sample of this id?"""
    found = exists().where(run_samples.c.run_id == run_id, run_samples.c.sample_id == sample_id)
    return connection.scalar(select(found)) is True


def samples_of(connection: Connection, run_id: str) -> Iterator[Sample]:
    """What did the run judge, in order?"""
    asked = select(run_samples.c.sample_id, samples.c.body).join_from(run_samples, samples)
    asked = asked.where(run_samples.c.run_id == run_id).order_by(run_samples.c.position)
    for sample_id, body in _streamed(connection, asked):
        yield sample_from(sample_id, body)


def sample_of(connection: Connection, run_id: str, sample_id: str) -> Sample | None:
    """What is the run's sample of this id?"""
    asked = select(samples.c.body).join_from(run_samples, samples)
    body = connection.scalar(
        asked.where(run_samples.c.run_id == run_id, run_samples.c.sample_id == sample_id)
    )
    return None if body is None else sample_from(sample_id, body)


def sample_ids(connection: Connection, run_id: str, limit: int) -> list[str]:
    """What are the run's first samples called?"""
    asked = select(run_samples.c.sample_id).where(run_samples.c.run_id == run_id)
    return list(connection.scalars(asked.order_by(run_samples.c.position).limit(limit)))


# --- outcomes -----------------------------------------------------------------------------------

# Made once: building a statement costs more than running it.
_POSITION = (
    select(run_samples.c.position)
    .where(run_samples.c.run_id == bindparam("in_run"), run_samples.c.sample_id == bindparam("of_sample"))
    .scalar_subquery()
)
_INSERT_OUTCOME = insert(outcomes).values(run_id=bindparam("in_run"), position=_POSITION)
_INSERT_STEPS = insert(steps)


def insert_outcome(connection: Connection, run_id: str, outcome: Outcome) -> None:
    """One more outcome; an integrity error where the run lacks the sample or has the outcome."""
    row = outcome_row(outcome) | {"in_run": run_id, "of_sample": outcome.sample_id}
    done = connection.execute(_INSERT_OUTCOME, row)
    if outcome.steps:
        [key] = done.inserted_primary_key or [None]
        connection.execute(_INSERT_STEPS, {"outcome_id": key, "body": steps_body(outcome.steps)})


def outcomes_of(
    connection: Connection, run_id: str, *, judge: str | None, sample_id: str | None, with_steps: bool
) -> Iterator[Outcome]:
    """What came out of the run, in the order of its samples, then of the judges' names?"""
    asked: Select[Any] = select(outcomes, run_samples.c.sample_id).join(run_samples)
    if with_steps:
        asked = asked.add_columns(steps.c.body.label("steps")).outerjoin(steps)
    asked = asked.where(outcomes.c.run_id == run_id)
    if judge is not None:
        asked = asked.where(outcomes.c.judge == judge)
    if sample_id is not None:
        asked = asked.where(run_samples.c.sample_id == sample_id)
    asked = asked.order_by(outcomes.c.position, outcomes.c.judge)
    for row in _streamed(connection, asked):
        yield outcome_from(row, row.steps if with_steps else None)


def _streamed(connection: Connection, asked: Select[Any]) -> Iterator[Any]:
    return iter(connection.execute(asked.execution_options(yield_per=ROWS_AT_ONCE)))
