"""Every question the store is asked and every change made to it, one named function each.

All take an open connection within a transaction; values reach the database as parameters only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import (
    Connection,
    Select,
    bindparam,
    delete,
    exists,
    func,
    insert,
    select,
    update,
)

from magistrate.errors import StoreError
from magistrate.store.codec import sample_from, sample_key
from magistrate.store.dialects import insert_missing, stop_writers
from magistrate.store.records import RunRecord
from magistrate.store.rows import run_from
from magistrate.store.tables import dataset_samples, outcomes, run_samples, run_tags, runs, samples
from magistrate.types import Sample

Value = TypeVar("Value")

ROWS_AT_ONCE = 500
_RUN_ID = re.compile(r"[0-9a-z-]{1,40}")
# Positions have no gaps, and the last one is found without counting.
_SIZE = func.coalesce(
    select(func.max(run_samples.c.position) + 1).where(run_samples.c.run_id == runs.c.id).scalar_subquery(), 0
).label("n_samples")
POSITION = (
    select(run_samples.c.position)
    .where(run_samples.c.run_id == bindparam("in_run"), run_samples.c.sample_id == bindparam("of_sample"))
    .scalar_subquery()
)
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
    change_run(connection, run_id, **changes)


def expect(connection: Connection, run_id: str, n_total: int) -> None:
    """The run has so many samples to judge."""
    change_run(connection, run_id, n_total=n_total)


def add_seconds(connection: Connection, run_id: str, seconds: float) -> None:
    """The run has been at work for so many more seconds."""
    longer = func.coalesce(runs.c.seconds, 0.0) + seconds
    change_run(connection, run_id, seconds=longer)


def change_run(connection: Connection, run_id: str, **changes: Any) -> None:
    """The run is not what it was: figures counted before are of an earlier revision."""
    changes["revision"] = runs.c.revision + 1
    connection.execute(update(runs).where(runs.c.id == run_id).values(changes))


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


def append_samples(connection: Connection, run_id: str, chunk: Sequence[tuple[str, str | None, str]]) -> None:
    """More samples for a run, as ids, labels and bodies, after those it has.

    An id that the run has is an integrity error.
    """
    lock_run(connection, run_id)
    last = connection.scalar(select(func.max(run_samples.c.position)).where(run_samples.c.run_id == run_id))
    first = 0 if last is None else last + 1
    keyed = [(sample_id, label, sample_key(body), body) for sample_id, label, body in chunk]
    keep_samples(connection, {key: body for _, _, key, body in keyed})
    connection.execute(
        insert(run_samples),
        [
            {
                "run_id": run_id,
                "position": position,
                "sample_id": sample_id,
                "sample_key": key,
                "label": label,
            }
            for position, (sample_id, label, key, _) in enumerate(keyed, first)
        ],
    )
    change_run(connection, run_id)


def keep_samples(connection: Connection, bodies: Mapping[str, str]) -> None:
    """The contents of samples by their keys; those that are there already are left alone."""
    # In one order everywhere, so that two programs with the same samples never wait for each other.
    rows = [{"key": key, "body": bodies[key]} for key in sorted(bodies)]
    connection.execute(insert_missing(connection, samples), rows)


def replace_sample(connection: Connection, run_id: str, sample_id: str, label: str | None, body: str) -> bool:
    """The run's sample of this id has another content; False where the run has no such sample."""
    lock_run(connection, run_id)
    stop_writers(connection, samples)
    mine = (run_samples.c.run_id == run_id, run_samples.c.sample_id == sample_id)
    before = connection.scalar(select(run_samples.c.sample_key).where(*mine))
    if before is None:
        return False
    key = sample_key(body)
    keep_samples(connection, {key: body})
    connection.execute(update(run_samples).where(*mine).values(sample_key=key, label=label))
    same = (outcomes.c.run_id == run_id, outcomes.c.position == POSITION)
    about = {"in_run": run_id, "of_sample": sample_id}
    connection.execute(update(outcomes).where(*same).values(gold=label), about)
    change_run(connection, run_id)
    used = exists().where(run_samples.c.sample_key == samples.c.key)
    connection.execute(delete(samples).where(samples.c.key == before, ~used, ~_IN_A_DATASET))
    return True


def has_sample(connection: Connection, run_id: str, sample_id: str) -> bool:
    """Does the run have a sample of this id?"""
    found = exists().where(run_samples.c.run_id == run_id, run_samples.c.sample_id == sample_id)
    return connection.scalar(select(found)) is True


def samples_of(connection: Connection, run_id: str, damaged: list[str] | None = None) -> Iterator[Sample]:
    """What did the run judge, in order?

    Samples that are damaged are left out and named in `damaged`; without it they raise `StoreError`.
    """
    asked = select(run_samples.c.sample_id, samples.c.body).join_from(run_samples, samples)
    asked = asked.where(run_samples.c.run_id == run_id).order_by(run_samples.c.position)
    for sample_id, body in streamed(connection, asked):
        yield from read(partial(sample_from, sample_id, body), damaged)


def samples_with(connection: Connection, run_id: str, known: dict[str, Sample]) -> list[Sample]:
    """What did the run judge, in order? Contents that are `known` by their keys are not read anew.

    The others are among them afterwards.
    """
    asked = select(run_samples.c.sample_id, run_samples.c.sample_key).order_by(run_samples.c.position)
    rows = connection.execute(asked.where(run_samples.c.run_id == run_id)).all()
    missing = [key for key in dict.fromkeys(key for _, key in rows) if key not in known]
    ids = {key: sample_id for sample_id, key in rows}
    for first in range(0, len(missing), ROWS_AT_ONCE):
        wanted = samples.c.key.in_(missing[first : first + ROWS_AT_ONCE])
        for key, body in connection.execute(select(samples.c.key, samples.c.body).where(wanted)):
            known[key] = sample_from(ids[key], body)
    shared = ((sample_id, known[key]) for sample_id, key in rows)
    return [each if each.id == sample_id else replace(each, id=sample_id) for sample_id, each in shared]


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


def read(make: Callable[[], Value], damaged: list[str] | None) -> Iterator[Value]:
    """What `make` makes; nothing where it is damaged and that is noted, else `StoreError`."""
    try:
        made = make()
    except StoreError as error:
        if damaged is None:
            raise
        damaged.append(str(error))
    else:
        yield made


def streamed(connection: Connection, asked: Select[Any]) -> Iterator[Any]:
    """The rows of an answer, some at a time."""
    with connection.execute(asked.execution_options(yield_per=ROWS_AT_ONCE)) as rows:
        yield from rows
