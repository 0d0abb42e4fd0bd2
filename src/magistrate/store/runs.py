"""Runs of a store and their samples: the record of a run, finding one by name, queries and changes.

The functions take an open connection within a transaction. Values are passed to the database as parameters
only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, TypeVar

from sqlalchemy import Connection, Select, bindparam, delete, exists, func, insert, or_, select, update

from magistrate._text import shorten
from magistrate.errors import InputError, SpecError, StoreError
from magistrate.store.codec import (
    context_number,
    dumps,
    loads,
    recipes_body,
    recipes_from,
    sample_body,
    sample_from,
    sample_key,
    scoring_body,
    scoring_from,
)
from magistrate.store.postgres import lock_transaction
from magistrate.store.schema import (
    dataset_samples,
    figures,
    insert_missing,
    insert_rows,
    is_server,
    label_items,
    of_row,
    outcomes,
    run_samples,
    run_tags,
    runs,
    samples,
    stop_writers,
)
from magistrate.types import Recipe, Sample, Scoring

FinishedStatus = Literal["done", "interrupted", "failed"]
Status = Literal["running", "done", "interrupted", "failed", "killed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The record of one run: its data, judges and model, its status, and its outcomes by kind.

    `number` counts the runs of a store in order of creation. Times are in UTC. `finished_at` is None while
    `status` is `running`; a killed run keeps that status until `Store.seen` checks it. `reason` is why it
    stopped, if known. `seconds` is the total working time, None if unknown. `dataset_version` names the
    stored data set that was read, if any. `n_total` is the planned number of samples, None if unknown;
    `n_samples` the number stored. `judges` are the keys of `recipes`, then any other judge with an outcome,
    sorted. The counts are over all judges. `scoring` states by judge how its scores are read; it lacks
    judges for which this is unknown, as in runs of older versions of Magistrate. `revision` increases with
    every change that may affect a metric of the run.
    """

    id: str
    number: int
    name: str | None
    created_at: datetime
    finished_at: datetime | None
    status: Status
    reason: str | None = None
    seconds: float | None = None
    dataset: str
    dataset_digest: str
    dataset_version: str | None = None
    model: str
    engine_fingerprint: str
    n_total: int | None
    package_version: str
    recipes: Mapping[str, Recipe]
    settings: Mapping[str, Any]
    tags: tuple[str, ...]
    judges: tuple[str, ...]
    n_samples: int
    n_verdicts: int
    n_failures: int
    n_abstentions: int
    revision: int = 0
    scoring: Mapping[str, Scoring] = field(default_factory=dict)

    @property
    def n_outcomes(self) -> int:
        """The number of verdicts, failures and abstentions."""
        return self.n_verdicts + self.n_failures + self.n_abstentions


Value = TypeVar("Value")

SPEC = "spec"  # the setting of a run that holds its specification
ROWS_AT_ONCE = 500
_RUN_ID = re.compile(r"[0-9a-z-]{1,40}")
# Positions have no gaps, so the last one gives the count.
_SIZE = func.coalesce(
    select(func.max(run_samples.c.position) + 1).where(run_samples.c.run_id == runs.c.id).scalar_subquery(), 0
).label("n_samples")
POSITION = (
    select(run_samples.c.position)
    .where(run_samples.c.run_id == bindparam("in_run"), run_samples.c.sample_id == bindparam("of_sample"))
    .scalar_subquery()
)
_CHANGED = (
    update(runs).where(runs.c.id == bindparam("changed")).values(revision=runs.c.revision + 1)
)  # built once, since building a statement costs more than executing it
_KEPT_ELSEWHERE = or_(
    exists().where(dataset_samples.c.sample_key == samples.c.key),
    exists().where(label_items.c.sample_key == samples.c.key),
)
UNUSED = ~or_(exists().where(run_samples.c.sample_key == samples.c.key), _KEPT_ELSEWHERE)
"""The condition for samples that no run, data set or queue of labels has."""


# --- runs ---------------------------------------------------------------------------------------


def insert_run(connection: Connection, row: Mapping[str, Any], tags: Iterable[str]) -> None:
    """Insert a new run. Raises an integrity error if its id is taken."""
    connection.execute(insert(runs), [row])
    change_tags(connection, row["id"], tags, ())


def run_exists(connection: Connection, run_id: str) -> bool:
    """Return whether there is a run of exactly this id."""
    return connection.scalar(select(exists().where(runs.c.id == run_id))) is True


def newest_run_id(connection: Connection) -> str | None:
    """Return the id of the run that was created last."""
    return connection.scalar(select(runs.c.id).order_by(runs.c.number.desc()).limit(1))


def run_ids_named(connection: Connection, name: str) -> list[str]:
    """Return the ids of the runs with this name, newest first."""
    return list(
        connection.scalars(select(runs.c.id).where(runs.c.name == name).order_by(runs.c.number.desc()))
    )


def run_ids_starting(connection: Connection, prefix: str) -> list[str]:
    """Return the ids of the runs that begin with `prefix`, newest first."""
    if not _RUN_ID.fullmatch(prefix):
        return []
    matching = select(runs.c.id).where(runs.c.id.startswith(prefix, autoescape=True))
    return list(connection.scalars(matching.order_by(runs.c.number.desc())))


def ids_and_names(connection: Connection, limit: int) -> list[str]:
    """Return the ids and names of the newest runs."""
    rows = connection.execute(select(runs.c.id, runs.c.name).order_by(runs.c.number.desc()).limit(limit))
    return [word for row in rows for word in row if word is not None]


def runs_where(
    connection: Connection,
    *,
    run_id: str | None = None,
    limit: int | None = None,
    tag: str | None = None,
    dataset: str | None = None,
    digest: str | None = None,
    unfinished_digest: str | None = None,
) -> list[RunRecord]:
    """Return the records of the runs that meet all given conditions, newest first."""
    chosen = select(runs).order_by(runs.c.number.desc()).limit(limit)
    if run_id is not None:
        chosen = chosen.where(runs.c.id == run_id)
    if dataset is not None:
        chosen = chosen.where(runs.c.dataset == dataset)
    if tag is not None:
        tagged = select(run_tags.c.run_id).where(run_tags.c.tag == tag)
        chosen = chosen.where(runs.c.id.in_(tagged))
    if digest is not None:
        chosen = chosen.where(runs.c.dataset_digest == digest)
    if unfinished_digest is not None:
        chosen = chosen.where(runs.c.dataset_digest == unfinished_digest, runs.c.status != "done")
    ids = select(chosen.subquery().c.id)
    tags: dict[str, list[str]] = {}
    for run, word in connection.execute(select(run_tags).where(run_tags.c.run_id.in_(ids))):
        tags.setdefault(run, []).append(word)
    counts: dict[str, dict[str, dict[str, int]]] = {}
    # The metrics of a run that has not changed since tell these numbers without counting a million rows.
    known = (figures.c.n_ok, figures.c.n_failures, figures.c.n_abstentions)
    current = select(figures.c.run_id, figures.c.judge, *known).join(runs, runs.c.id == figures.c.run_id)
    current = current.where(figures.c.run_id.in_(ids), figures.c.revision == runs.c.revision)
    for run, judge, *numbers in connection.execute(current):
        told = zip(("verdict", "failure", "abstention"), numbers, strict=True)
        counts.setdefault(run, {})[judge] = dict(told)
    groups = (outcomes.c.run_id, outcomes.c.judge, outcomes.c.kind)
    rest = chosen.subquery()
    others = outcomes.c.run_id.in_(select(rest.c.id).where(rest.c.id.not_in(list(counts))))
    counting = select(*groups, func.count()).where(others).group_by(*groups)
    for run, judge, kind, number in connection.execute(counting):
        counts.setdefault(run, {}).setdefault(judge, {})[kind] = number
    return [
        run_from(row, tags.get(row.id, []), counts.get(row.id, {}), row.n_samples)
        for row in connection.execute(chosen.add_columns(_SIZE))
    ]


def find(connection: Connection, digest: str, suits: Callable[[RunRecord], bool]) -> str | None:
    """Return the id of the newest run over the data of this digest that suits, None if there is none.

    Until the transaction ends, no other program finds or creates such a run.
    """
    if is_server(connection):  # SQLite has one writer at a time
        lock_transaction(connection, "find run")
    records = runs_where(connection, digest=digest)
    return next((record.id for record in records if suits(record)), None)


def finish_run(
    connection: Connection,
    run_id: str,
    status: str,
    finished_at: datetime | None,
    n_total: int | None,
    reason: str | None,
) -> None:
    """Set the final status of the run, or reopen it. `n_total` is not changed if None."""
    changes: dict[str, Any] = {"status": status, "finished_at": finished_at, "reason": reason}
    if n_total is not None:
        changes["n_total"] = n_total
    change_run(connection, run_id, **changes)


def add_seconds(connection: Connection, run_id: str, seconds: float) -> None:
    """Add to the run's working time."""
    longer = func.coalesce(runs.c.seconds, 0.0) + seconds
    change_run(connection, run_id, seconds=longer)


def change_run(connection: Connection, run_id: str, **changes: Any) -> None:
    """Change the run and increase its revision, so that cached metrics are outdated."""
    if not changes:
        connection.execute(_CHANGED, {"changed": run_id})
        return
    changes["revision"] = runs.c.revision + 1
    connection.execute(update(runs).where(runs.c.id == run_id).values(changes))


def add_judge(
    connection: Connection,
    run_id: str,
    judge: str,
    recipe: Recipe,
    scoring: Scoring,
    settings: Mapping[str, Any],
) -> None:
    """Add a judge to a run, and `settings` to the run's settings."""
    lock_run(connection, run_id)
    columns = (runs.c.recipes, runs.c.scoring, runs.c.settings)
    row = connection.execute(select(*columns).where(runs.c.id == run_id)).one()
    change_run(
        connection,
        run_id,
        recipes=recipes_body({**recipes_from(row.recipes), judge: recipe}),
        scoring=scoring_body({**scoring_from(row.scoring), judge: scoring}),
        settings=dumps({**loads(row.settings), **settings}),
    )


def rename_run(connection: Connection, run_id: str, name: str | None) -> None:
    """Set the name of the run, or remove it."""
    connection.execute(update(runs).where(runs.c.id == run_id).values(name=name))


def change_tags(connection: Connection, run_id: str, add: Iterable[str], remove: Iterable[str]) -> None:
    """Add and remove tags of the run."""
    for tag in dict.fromkeys(add):
        connection.execute(insert_missing(connection, run_tags), [{"run_id": run_id, "tag": tag}])
    for tag in remove:
        connection.execute(delete(run_tags).where(run_tags.c.run_id == run_id, run_tags.c.tag == tag))


def delete_run(connection: Connection, run_id: str) -> None:
    """Delete the run with its outcomes, and the samples that nothing else uses."""
    lock_run(connection, run_id)
    # A sample that is found unused here must not be used by another program before it is deleted.
    stop_writers(connection, samples)
    mine = select(run_samples.c.sample_key).where(run_samples.c.run_id == run_id)
    others = exists().where(run_samples.c.sample_key == samples.c.key, run_samples.c.run_id != run_id)
    connection.execute(delete(samples).where(samples.c.key.in_(mine), ~others, ~_KEPT_ELSEWHERE))
    connection.execute(delete(runs).where(runs.c.id == run_id))


def lock_run(connection: Connection, run_id: str) -> None:
    """Lock the run's row until the transaction ends. Rows that refer to it can still be written."""
    connection.execute(select(runs.c.id).where(runs.c.id == run_id).with_for_update(key_share=True))


def run_from(
    row: Any, tags: Sequence[str], counts: Mapping[str, Mapping[str, int]], n_samples: int
) -> RunRecord:
    """Return the record of a run's row. `counts` are outcomes by judge and kind."""

    def count(kind: str) -> int:
        return sum(kinds.get(kind, 0) for kinds in counts.values())

    recipes = recipes_from(row.recipes)
    return of_row(
        RunRecord,
        row,
        seconds=_seconds(row),
        recipes=recipes,
        settings=loads(row.settings),
        tags=tuple(sorted(tags)),
        judges=(*recipes, *sorted(counts.keys() - recipes.keys())),
        n_samples=n_samples,
        n_verdicts=count("verdict"),
        n_failures=count("failure"),
        n_abstentions=count("abstention"),
        scoring=scoring_from(row.scoring),
    )


def _seconds(row: Any) -> float | None:
    """Return the run's working time. For runs of older stores it is the time from creation to finish."""
    if row.seconds is not None or row.finished_at is None:
        return row.seconds  # type: ignore[no-any-return]
    passed: float = (row.finished_at - row.created_at).total_seconds()
    return passed if passed >= 0 else None  # the clock was set back meanwhile


# --- finding a run ----------------------------------------------------------------------------------

LAST = "last"
WORDS_COMPARED = 1000
_LETTERS_COMPARED = 100
_WORDS_LISTED = 5


def require_run(connection: Connection, run_id: str) -> None:
    """Raise `SpecError` unless there is a run of exactly this id."""
    if not run_exists(connection, run_id):
        raise _unknown_run(connection, run_id)


def record_of(connection: Connection, run_id: str) -> RunRecord:
    """Return the record of a run that exists."""
    return runs_where(connection, run_id=run_id)[0]


def resolve(connection: Connection, ref: str) -> str:
    """Return the id of the run that `ref` names: `last`, an id, a name or a prefix of an id."""
    if ref == LAST:
        newest = newest_run_id(connection)
        if newest is None:
            raise SpecError(
                "there is no last run, because the store has no runs yet; create one with 'magistrate run'"
            )
        return newest
    if run_exists(connection, ref):
        return ref
    found = run_ids_named(connection, ref) or run_ids_starting(connection, ref)
    if not found:
        raise _unknown_run(connection, ref)
    if len(found) > 1:
        raise SpecError(f"{shown(ref)} matches {len(found)} runs: {_listed(found)}; give an id")
    return found[0]


def _unknown_run(connection: Connection, ref: str) -> SpecError:
    known = ids_and_names(connection, WORDS_COMPARED)
    return SpecError(f"unknown run {shown(ref)}; {near(ref, known)}; see 'magistrate runs'")


def near(word: str, known: Sequence[str]) -> str:
    """Return a text with the words of `known` similar to `word`, or else some of them, for an error."""
    # Comparison time is quadratic in the length, and ids may be long.
    shortened = {candidate[:_LETTERS_COMPARED]: candidate for candidate in known}
    matches = get_close_matches(word[:_LETTERS_COMPARED], shortened, n=_WORDS_LISTED, cutoff=0.5)
    if matches:
        return f"near: {_listed([shortened[match] for match in matches])}"
    return f"known: {_listed(known)}" if known else "there are none yet"


def _listed(words: Sequence[str]) -> str:
    listed = ", ".join(shown(word) for word in words[:_WORDS_LISTED])
    return f"{listed}, …" if len(words) > _WORDS_LISTED else listed


def shown(word: str) -> str:
    """Return untrusted text for an error: quoted, on one line, shortened."""
    return shorten(repr(word))


# --- samples ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SampleRow:
    """A sample as it is stored: the document of its content with the sha256 of it, its label and context."""

    sample_id: str
    sample_key: str
    body: str
    label: str | None
    context: int | None

    @classmethod
    def of(cls, sample: Sample) -> SampleRow:
        """Encode a sample. Raises `InputError` with its id if a value cannot be stored."""
        try:
            body = sample_body(sample)
        except InputError as error:
            raise InputError(f"sample {shown(sample.id)}: {error}") from error
        return cls(sample.id, sample_key(body), body, sample.label, context_number(sample.sources))


def append_samples(connection: Connection, run_id: str, rows: Sequence[SampleRow]) -> None:
    """Append samples to a run. Raises an integrity error for an id that the run already has."""
    lock_run(connection, run_id)
    last = connection.scalar(select(func.max(run_samples.c.position)).where(run_samples.c.run_id == run_id))
    first = 0 if last is None else last + 1
    keep_samples(connection, {row.sample_key: row.body for row in rows})
    insert_rows(
        connection,
        run_samples,
        [
            {
                "run_id": run_id,
                "position": position,
                "sample_id": row.sample_id,
                "sample_key": row.sample_key,
                "label": row.label,
                "context": row.context,
            }
            for position, row in enumerate(rows, first)
        ],
    )
    change_run(connection, run_id)


def keep_samples(connection: Connection, bodies: Mapping[str, str]) -> None:
    """Insert sample contents by their keys. Existing ones are not changed."""
    # Always in the same order, so that two programs with the same samples cannot deadlock.
    rows = [{"key": key, "body": bodies[key]} for key in sorted(bodies)]
    insert_rows(connection, samples, rows, missing=True)


def replace_sample(connection: Connection, run_id: str, sample: Sample) -> bool:
    """Replace the content of the run's sample of this id. Returns False if the run has no such sample."""
    row = SampleRow.of(sample)
    lock_run(connection, run_id)
    stop_writers(connection, samples)
    mine = (run_samples.c.run_id == run_id, run_samples.c.sample_id == sample.id)
    before = connection.scalar(select(run_samples.c.sample_key).where(*mine))
    if before is None:
        return False
    keep_samples(connection, {row.sample_key: row.body})
    changed = {"sample_key": row.sample_key, "label": row.label, "context": row.context}
    connection.execute(update(run_samples).where(*mine).values(changed))
    same = (outcomes.c.run_id == run_id, outcomes.c.position == POSITION)
    about = {"in_run": run_id, "of_sample": sample.id}
    connection.execute(update(outcomes).where(*same).values(gold=sample.label), about)
    change_run(connection, run_id)
    connection.execute(delete(samples).where(samples.c.key == before, UNUSED))
    return True


def has_sample(connection: Connection, run_id: str, sample_id: str) -> bool:
    """Return whether the run has a sample of this id."""
    found = exists().where(run_samples.c.run_id == run_id, run_samples.c.sample_id == sample_id)
    return connection.scalar(select(found)) is True


def samples_of(connection: Connection, run_id: str, damaged: list[str] | None = None) -> Iterator[Sample]:
    """Yield the samples of the run, in order.

    Damaged samples are skipped and named in `damaged`. Without that list they raise `StoreError`.
    """
    asked = select(run_samples.c.sample_id, samples.c.body).join_from(run_samples, samples)
    asked = asked.where(run_samples.c.run_id == run_id).order_by(run_samples.c.position)
    for sample_id, body in streamed(connection, asked):
        yield from read(partial(sample_from, sample_id, body), damaged)


def samples_with(connection: Connection, run_id: str, known: dict[str, Sample]) -> list[Sample]:
    """Return the samples of the run, in order. Contents that are in `known`, by key, are not read again.

    Contents that are read are added to `known`.
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
    """Return the run's next samples after a position, with their positions: at most `ROWS_AT_ONCE`."""
    asked = select(run_samples.c.position, run_samples.c.sample_id, samples.c.body)
    asked = asked.join_from(run_samples, samples)
    asked = asked.where(run_samples.c.run_id == run_id, run_samples.c.position > position)
    rows = connection.execute(asked.order_by(run_samples.c.position).limit(ROWS_AT_ONCE))
    return [(place, sample_from(sample_id, body)) for place, sample_id, body in rows]


def sample_of(connection: Connection, run_id: str, sample_id: str) -> Sample | None:
    """Return the run's sample of this id, or None."""
    asked = select(samples.c.body).join_from(run_samples, samples)
    body = connection.scalar(
        asked.where(run_samples.c.run_id == run_id, run_samples.c.sample_id == sample_id)
    )
    return None if body is None else sample_from(sample_id, body)


def sample_ids(connection: Connection, run_id: str, limit: int | None = None) -> list[str]:
    """Return the ids of the run's samples, or of the first `limit` of them."""
    asked = select(run_samples.c.sample_id).where(run_samples.c.run_id == run_id)
    return list(connection.scalars(asked.order_by(run_samples.c.position).limit(limit)))


def read(make: Callable[[], Value], damaged: list[str] | None) -> Iterator[Value]:
    """Yield the result of `make`. If it is damaged, note that in `damaged`, or raise `StoreError`."""
    try:
        made = make()
    except StoreError as error:
        if damaged is None:
            raise
        damaged.append(str(error))
    else:
        yield made


def streamed(connection: Connection, asked: Select[Any]) -> Iterator[Any]:
    """Yield the rows of a query in batches."""
    with connection.execute(asked.execution_options(yield_per=ROWS_AT_ONCE)) as rows:
        yield from rows
