"""Every question the store is asked and every change made to it, one named function each.

All take an open connection within a transaction; values reach the database as parameters only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    select,
    update,
)

from magistrate.display import shorten
from magistrate.errors import InputError
from magistrate.store.codec import sample_from, sample_key, steps_body
from magistrate.store.dialects import insert_missing, stop_writers
from magistrate.store.records import RunRecord
from magistrate.store.rows import outcome_from, outcome_row, run_from
from magistrate.store.tables import dataset_samples, outcomes, run_samples, run_tags, runs, samples, steps
from magistrate.types import Outcome, Sample, Usage

ROWS_AT_ONCE = 500
_RUN_ID = re.compile(r"[0-9a-z-]{1,40}")
# Positions have no gaps, and the last one is found without counting.
_SIZE = func.coalesce(
    select(func.max(run_samples.c.position) + 1).where(run_samples.c.run_id == runs.c.id).scalar_subquery(), 0
).label("n_samples")
_IN_A_DATASET = exists().where(dataset_samples.c.sample_key == samples.c.key)

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
    unfinished_digest: str | None = None,
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
    if unfinished_digest is not None:
        chosen = chosen.where(runs.c.dataset_digest == unfinished_digest, runs.c.status != "done")
    ids = select(chosen.subquery().c.id)
    tags: dict[str, list[str]] = {}
    for run, word in connection.execute(select(run_tags).where(run_tags.c.run_id.in_(ids))):
        tags.setdefault(run, []).append(word)
    counts: dict[str, dict[str, dict[str, int]]] = {}
    groups = (outcomes.c.run_id, outcomes.c.judge, outcomes.c.kind)
    counting = select(*groups, func.count()).where(outcomes.c.run_id.in_(ids)).group_by(*groups)
    for run, judge, kind, number in connection.execute(counting):
        counts.setdefault(run, {}).setdefault(judge, {})[kind] = number
    return [
        run_from(row, tags.get(row.id, []), counts.get(row.id, {}), row.n_samples)
        for row in connection.execute(chosen.add_columns(_SIZE))
    ]


def finish_run(
    connection: Connection,
    run_id: str,
    status: str,
    finished_at: datetime | None,
    n_total: int | None,
    reason: str | None,
) -> None:
    """The run is over, or not any more; `n_total` is kept as it was where None."""
    changes: dict[str, Any] = {"status": status, "finished_at": finished_at, "reason": reason}
    if n_total is not None:
        changes["n_total"] = n_total
    connection.execute(update(runs).where(runs.c.id == run_id).values(changes))


def expect(connection: Connection, run_id: str, n_total: int) -> None:
    """The run has so many samples to judge."""
    connection.execute(update(runs).where(runs.c.id == run_id).values(n_total=n_total))


def add_seconds(connection: Connection, run_id: str, seconds: float) -> None:
    """The run has been at work for so many more seconds."""
    longer = func.coalesce(runs.c.seconds, 0.0) + seconds
    connection.execute(update(runs).where(runs.c.id == run_id).values(seconds=longer))


def rename_run(connection: Connection, run_id: str, name: str | None) -> None:
    """The run bears another name, or none."""
    connection.execute(update(runs).where(runs.c.id == run_id).values(name=name))


def change_tags(connection: Connection, run_id: str, add: Iterable[str], remove: Iterable[str]) -> None:
    """The run bears the tags in `add` and none of those in `remove`."""
    for tag in dict.fromkeys(add):
        connection.execute(insert_missing(connection, run_tags), [{"run_id": run_id, "tag": tag}])
    for tag in remove:
        connection.execute(delete(run_tags).where(run_tags.c.run_id == run_id, run_tags.c.tag == tag))


def delete_run(connection: Connection, run_id: str) -> None:
    """The run is gone with its outcomes, and the samples that nothing else uses."""
    lock_run(connection, run_id)
    # A sample that is found unused here must not be used by another program before it is gone.
    stop_writers(connection, samples)
    mine = select(run_samples.c.sample_key).where(run_samples.c.run_id == run_id)
    others = exists().where(run_samples.c.sample_key == samples.c.key, run_samples.c.run_id != run_id)
    connection.execute(delete(samples).where(samples.c.key.in_(mine), ~others, ~_IN_A_DATASET))
    connection.execute(delete(runs).where(runs.c.id == run_id))


def lock_run(connection: Connection, run_id: str) -> None:
    """Have the run's row alone until the transaction ends; those that refer to it may go on."""
    connection.execute(select(runs.c.id).where(runs.c.id == run_id).with_for_update(key_share=True))


# --- samples ------------------------------------------------------------------------------------


def append_samples(connection: Connection, run_id: str, chunk: Sequence[tuple[str, str]]) -> None:
    """More samples for a run, as ids with bodies, after those it has; an id it has is an integrity error."""
    lock_run(connection, run_id)
    last = connection.scalar(select(func.max(run_samples.c.position)).where(run_samples.c.run_id == run_id))
    first = 0 if last is None else last + 1
    keyed = [(sample_id, sample_key(body), body) for sample_id, body in chunk]
    keep_samples(connection, {key: body for _, key, body in keyed})
    connection.execute(
        insert(run_samples),
        [
            {"run_id": run_id, "position": position, "sample_id": sample_id, "sample_key": key}
            for position, (sample_id, key, _) in enumerate(keyed, first)
        ],
    )


def keep_samples(connection: Connection, bodies: Mapping[str, str]) -> None:
    """The contents of samples by their keys; those that are there already are left alone."""
    # In one order everywhere, so that two programs with the same samples never wait for each other.
    rows = [{"key": key, "body": bodies[key]} for key in sorted(bodies)]
    connection.execute(insert_missing(connection, samples), rows)


def replace_sample(connection: Connection, run_id: str, sample_id: str, body: str) -> bool:
    """The run's sample of this id has another content; False where the run has no such sample."""
    lock_run(connection, run_id)
    stop_writers(connection, samples)
    mine = (run_samples.c.run_id == run_id, run_samples.c.sample_id == sample_id)
    before = connection.scalar(select(run_samples.c.sample_key).where(*mine))
    if before is None:
        return False
    key = sample_key(body)
    keep_samples(connection, {key: body})
    connection.execute(update(run_samples).where(*mine).values(sample_key=key))
    used = exists().where(run_samples.c.sample_key == samples.c.key)
    connection.execute(delete(samples).where(samples.c.key == before, ~used, ~_IN_A_DATASET))
    return True


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


def samples_after(connection: Connection, run_id: str, position: int) -> list[tuple[int, Sample]]:
    """What are the run's next samples after a position, with theirs? At most as many as fit at once."""
    asked = select(run_samples.c.position, run_samples.c.sample_id, samples.c.body)
    asked = asked.join_from(run_samples, samples)
    asked = asked.where(run_samples.c.run_id == run_id, run_samples.c.position > position)
    rows = connection.execute(asked.order_by(run_samples.c.position).limit(ROWS_AT_ONCE))
    return [(place, sample_from(sample_id, body)) for place, sample_id, body in rows]


def sample_of(connection: Connection, run_id: str, sample_id: str) -> Sample | None:
    """What is the run's sample of this id?"""
    asked = select(samples.c.body).join_from(run_samples, samples)
    body = connection.scalar(
        asked.where(run_samples.c.run_id == run_id, run_samples.c.sample_id == sample_id)
    )
    return None if body is None else sample_from(sample_id, body)


def sample_ids(connection: Connection, run_id: str, limit: int | None = None) -> list[str]:
    """What are the run's samples, or the first of them, called?"""
    asked = select(run_samples.c.sample_id).where(run_samples.c.run_id == run_id)
    return list(connection.scalars(asked.order_by(run_samples.c.position).limit(limit)))


# --- outcomes -----------------------------------------------------------------------------------

# Made once: building a statement costs more than running it.
_POSITION = (
    select(run_samples.c.position)
    .where(run_samples.c.run_id == bindparam("in_run"), run_samples.c.sample_id == bindparam("of_sample"))
    .scalar_subquery()
)
_INSERT_OUTCOMES = insert(outcomes).values(run_id=bindparam("in_run"), position=_POSITION)
_OUTCOME = (
    select(outcomes.c.id)
    .where(
        outcomes.c.run_id == bindparam("in_run"),
        outcomes.c.position == _POSITION,
        outcomes.c.judge == bindparam("by_judge"),
    )
    .scalar_subquery()
)
# As `Usage` has them.
_SPENT = (
    outcomes.c.calls,
    outcomes.c.prompt_tokens,
    outcomes.c.cached_tokens,
    outcomes.c.generated_tokens,
    outcomes.c.forced_tokens,
    outcomes.c.reused,
)
_INSERT_STEPS = insert(steps).values(outcome_id=_OUTCOME)


def prepared(outcome: Outcome) -> dict[str, Any]:
    """An outcome as a row for `insert_outcomes`; `InputError` where a value of it cannot be stored."""
    try:
        body = steps_body(outcome.steps) if outcome.steps else None
        return outcome_row(outcome) | {"of_sample": outcome.sample_id, "steps": body, "attempt": 1}
    except InputError as error:
        raise InputError(
            f"the outcome of judge {outcome.judge!r} for sample {shorten(repr(outcome.sample_id))}: {error}"
        ) from error


def insert_outcomes(connection: Connection, run_id: str, rows: Sequence[dict[str, Any]]) -> None:
    """More outcomes; an integrity error where the run lacks a sample or has an outcome already."""
    connection.execute(
        _INSERT_OUTCOMES,
        [{key: row[key] for key in row if key != "steps"} | {"in_run": run_id} for row in rows],
    )
    bodies = [
        {
            "in_run": run_id,
            "of_sample": row["of_sample"],
            "by_judge": row["judge"],
            "body": row["steps"],
        }
        for row in rows
        if row["steps"] is not None
    ]
    if bodies:
        connection.execute(_INSERT_STEPS, bodies)


def replace_failures(connection: Connection, run_id: str, rows: Sequence[dict[str, Any]]) -> None:
    """Where a row's sample and judge have a failure, it goes; the row counts as one attempt more, and bears
    what all of them have spent."""
    for row in rows:
        earlier = select(outcomes.c.id, outcomes.c.attempt, *_SPENT).join(run_samples)
        earlier = earlier.with_for_update(of=outcomes)
        earlier = earlier.where(*_pair(run_id, row["of_sample"], row["judge"]), outcomes.c.kind == "failure")
        if found := connection.execute(earlier).one_or_none():
            connection.execute(delete(outcomes).where(outcomes.c.id == found.id))
            row["attempt"] = found.attempt + 1
            for column in _SPENT:
                row[column.key] += getattr(found, column.key)


def usage_of(connection: Connection, run_id: str) -> Usage:
    """What have all outcomes of the run spent together?"""
    sums = select(*(func.coalesce(func.sum(column), 0) for column in _SPENT))
    return Usage(*map(int, connection.execute(sums.where(outcomes.c.run_id == run_id)).one()))


def dearest_of(connection: Connection, run_id: str) -> Usage:
    """What has the outcome spent that read and wrote the most tokens?"""
    tokens = outcomes.c.prompt_tokens + outcomes.c.generated_tokens
    asked = select(*_SPENT).where(outcomes.c.run_id == run_id).order_by(tokens.desc()).limit(1)
    row = connection.execute(asked).one_or_none()
    return Usage() if row is None else Usage(*map(int, row))


def has_outcome(connection: Connection, run_id: str, sample_id: str, judge: str) -> bool:
    """Has this judge an outcome for this sample of the run?"""
    asked = select(outcomes.c.id).join(run_samples).where(*_pair(run_id, sample_id, judge))
    return connection.scalar(asked) is not None


def _pair(run_id: str, sample_id: str, judge: str) -> tuple[ColumnElement[bool], ...]:
    return (outcomes.c.run_id == run_id, run_samples.c.sample_id == sample_id, outcomes.c.judge == judge)


def pairs_of(connection: Connection, run_id: str) -> dict[tuple[str, str], tuple[str | None, int]]:
    """Which samples have an outcome by which judges, with which failure if any, at which attempt?"""
    failure = case((outcomes.c.kind == "failure", outcomes.c.code), else_=None)
    asked = select(run_samples.c.sample_id, outcomes.c.judge, failure, outcomes.c.attempt)
    asked = asked.select_from(outcomes).join(run_samples).where(outcomes.c.run_id == run_id)
    return {
        (sample_id, judge): (code, attempt)
        for sample_id, judge, code, attempt in _streamed(connection, asked)
    }


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
    with connection.execute(asked.execution_options(yield_per=ROWS_AT_ONCE)) as rows:
        yield from rows
