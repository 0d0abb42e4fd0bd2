"""Tables of the newest schema, and the statements that differ between SQLite and PostgreSQL.

`migrations` creates the tables. Untrusted text is stored with `Words`, documents as the ASCII JSON of `codec`
in text columns (a JSON column type rejects `\\u0000`), so that every string can be stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    inspect,
    text,
)
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.types import TypeDecorator

from magistrate.errors import StoreError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record", bound="DataclassInstance")
Transaction = Callable[[], AbstractContextManager[Connection]]

_UNSAFE = re.compile("[\\\\\0\ud800-\udfff]")
_ESCAPED = re.compile(r"\\u([0-9a-f]{4})")


class Words(TypeDecorator[str]):
    """Stores any Python string as database text: backslash, NUL and surrogates become `\\uXXXX`."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None or not _UNSAFE.search(value):
            return value
        return _UNSAFE.sub(lambda found: f"\\u{ord(found.group()):04x}", value)

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        if value is None or "\\" not in value:
            return value
        return _ESCAPED.sub(lambda found: chr(int(found.group(1), 16)), value)


class Instant(TypeDecorator[datetime]):
    """Stores a time as text in UTC with microseconds, which sorts chronologically."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:
        return None if value is None else value.astimezone(UTC).isoformat(timespec="microseconds")

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        return None if value is None else datetime.fromisoformat(value)


# A number that the database generates; SQLite generates one for this type only.
Number = Integer().with_variant(BigInteger(), "postgresql")

metadata = MetaData()

schema_version = Table(
    "schema_version",
    metadata,
    Column("version", Integer, primary_key=True),
    Column("applied_at", Text, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("number", Number, primary_key=True),
    Column("id", Words, nullable=False, unique=True),
    Column("name", Words),
    Column("created_at", Instant, nullable=False),
    Column("finished_at", Instant),
    Column("status", Text, nullable=False),
    Column("dataset", Words, nullable=False),
    Column("dataset_digest", Words, nullable=False),
    Column("model", Words, nullable=False),
    Column("engine_fingerprint", Words, nullable=False),
    Column("n_total", BigInteger),
    Column("package_version", Words, nullable=False),
    Column("recipes", Text, nullable=False),
    Column("settings", Text, nullable=False),
    Column("reason", Words),
    Column("seconds", Double),
    Column("dataset_version", Words),
    Column("revision", BigInteger, nullable=False, server_default="0"),
    Column("scoring", Text, nullable=False, server_default="{}"),
    Index("runs_name", "name"),
    Index("runs_dataset", "dataset"),
    Index("runs_digest", "dataset_digest"),
)

run_tags = Table(
    "run_tags",
    metadata,
    Column("run_id", Words, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("tag", Words, primary_key=True),
    Index("run_tags_tag", "tag"),
)

samples = Table(
    "samples",
    metadata,
    Column("key", Text, primary_key=True),
    Column("body", Text, nullable=False),
)

# `context` is the same number for samples with equal sources, so that a report need not read them; it is NULL
# for a sample without a source. The foreign key of `sample_key` is checked at commit, so that samples can be
# deleted before their run.
run_samples = Table(
    "run_samples",
    metadata,
    Column("run_id", Words, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("sample_id", Words, nullable=False),
    Column(
        "sample_key",
        Text,
        ForeignKey("samples.key", deferrable=True, initially="DEFERRED"),
        nullable=False,
    ),
    Column("label", Words),
    Column("context", BigInteger),
    UniqueConstraint("run_id", "sample_id"),
    Index("run_samples_key", "sample_key"),
)

# Outcomes refer to their sample by position: keys are small, and the index has them in data set order.
# `gold` is the sample's label, so that a cell of a confusion matrix is one range of an index.
outcomes = Table(
    "outcomes",
    metadata,
    Column("id", Number, primary_key=True),
    Column("run_id", Words, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("judge", Words, nullable=False),
    Column("kind", Text, nullable=False),
    Column("label", Words),
    Column("score", Double),
    Column("probability", Double),
    Column("code", Words),
    Column("seconds", Double, nullable=False),
    Column("calls", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("generated_tokens", BigInteger, nullable=False),
    Column("forced_tokens", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
    Column("reused", BigInteger, nullable=False, server_default="0"),
    Column("attempt", BigInteger, nullable=False, server_default="1"),
    Column("gold", Words),
    UniqueConstraint("run_id", "position", "judge"),
    ForeignKeyConstraint(
        ["run_id", "position"], ["run_samples.run_id", "run_samples.position"], ondelete="CASCADE"
    ),
    Index("outcomes_cells", "run_id", "judge", "kind", "label", "gold", "position"),
    Index("outcomes_scores", "run_id", "judge", "label", "gold", "score", "position"),
)

# In a separate table from outcomes, so that a report does not read them.
steps = Table(
    "steps",
    metadata,
    Column("outcome_id", Number, ForeignKey("outcomes.id", ondelete="CASCADE"), primary_key=True),
    Column("body", Text, nullable=False),
)

# Cached metrics of a judge's outcomes, as of a revision of the run; all of them can be computed
# again. `body` and `scores` come last, since lists do not read them.
figures = Table(
    "figures",
    metadata,
    Column("run_id", Words, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("judge", Words, primary_key=True),
    Column("place", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("made_by", Words, nullable=False),
    Column("n_total", BigInteger, nullable=False),
    Column("n_ok", BigInteger, nullable=False),
    Column("n_failures", BigInteger, nullable=False),
    Column("n_abstentions", BigInteger, nullable=False),
    Column("metric", Text),
    Column("value", Double),
    Column("low", Double),
    Column("high", Double),
    Column("body", Text, nullable=False),
    Column("scores", LargeBinary, nullable=False),
)

# A data set is stored once, by the sha256 of its content, regardless of its names and versions.
dataset_contents = Table(
    "dataset_contents",
    metadata,
    Column("digest", Text, primary_key=True),
    Column("n_samples", BigInteger, nullable=False),
)

dataset_samples = Table(
    "dataset_samples",
    metadata,
    Column("digest", Text, ForeignKey("dataset_contents.digest", ondelete="CASCADE"), primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("sample_id", Words, nullable=False),
    Column(
        "sample_key",
        Text,
        ForeignKey("samples.key", deferrable=True, initially="DEFERRED"),
        nullable=False,
    ),
    UniqueConstraint("digest", "sample_id"),
    Index("dataset_samples_key", "sample_key"),
)

dataset_versions = Table(
    "dataset_versions",
    metadata,
    Column("name", Words, primary_key=True),
    Column("version", BigInteger, primary_key=True),
    Column("digest", Text, ForeignKey("dataset_contents.digest"), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("source", Words, nullable=False),
    Index("dataset_versions_digest", "digest"),
)

# --- watching ---------------------------------------------------------------------------------------

# A trace is read again when `changed`, which counts new and changed spans, is greater than `read`. `since`
# is when the first unread span arrived. All times are from the local clock.
traces = Table(
    "traces",
    metadata,
    Column("id", Words, primary_key=True),
    Column("since", Instant, nullable=False),
    Column("last_at", Instant, nullable=False),
    Column("ended", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),
    Column("read", BigInteger, nullable=False),
    Column("kinds", BigInteger, nullable=False, server_default="0"),
    Index("traces_last", "last_at"),
)
Index(
    "traces_unread",
    traces.c.since,
    sqlite_where=traces.c.changed
    > traces.c.read,  # in PostgreSQL too, whose option here would import its dialect
)

spans = Table(
    "spans",
    metadata,
    Column("trace_id", Words, ForeignKey("traces.id", ondelete="CASCADE"), primary_key=True),
    Column("span_id", Words, primary_key=True),
    Column("received_at", Instant, nullable=False),
    Column("body", Text, nullable=False),
)

# Targets that can be judged in a trace. `content` is the sha256 of the judge's input, None if something is
# missing; the revision increases with it. `gone` is 1 if later spans showed another target in its place.
targets = Table(
    "targets",
    metadata,
    Column("id", Text, primary_key=True),
    Column("trace_id", Words, ForeignKey("traces.id", ondelete="CASCADE"), nullable=False),
    Column("span_id", Words, nullable=False),
    Column("kind", Text, nullable=False),
    Column("name", Words, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("gone", BigInteger, nullable=False),
    Column("seen_at", Instant, nullable=False),
    Column("content", Text),
    Column("missing", Text),
    Column("body", Text, nullable=False),
    Index("targets_trace", "trace_id"),
    Index("targets_seen", "kind", "seen_at"),
)

# The run for a version's outcomes is created with the first of them.
rules = Table(
    "rules",
    metadata,
    Column("name", Words, primary_key=True),
    Column("version", BigInteger, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("since", Instant, nullable=False),
    Column("run_id", Words, ForeignKey("runs.id", ondelete="SET NULL")),
    Index("rules_run", "run_id"),
)

# Revisions of rules that were saved on the page; `base` is the digest of the rule in the file then.
rule_edits = Table(
    "rule_edits",
    metadata,
    Column("rule", Words, primary_key=True),
    Column("revision", BigInteger, primary_key=True),
    Column("made_at", Instant, nullable=False),
    Column("base", Text, nullable=False),
    Column("text", Words, nullable=False),
    Column("enabled", BigInteger, nullable=False),
)

# Decisions of rules on targets: one row per pair is not superseded. `due_at` is when a worker has to
# process it again, None for never; the worker on it holds the `lease`. `asked` lists the results of the
# judges, `outcome_id` is the last outcome.
decisions = Table(
    "decisions",
    metadata,
    Column("rule", Words, primary_key=True),
    Column("version", BigInteger, primary_key=True),
    Column("target", Text, ForeignKey("targets.id", ondelete="CASCADE"), primary_key=True),
    Column("revision", BigInteger, primary_key=True),
    Column("state", Text, nullable=False),
    Column("reason", Words, nullable=False),
    Column("inclusion", Double),
    Column("content", Text),
    Column("made_at", Instant, nullable=False),
    Column("changed_at", Instant, nullable=False),
    Column("due_at", Instant),
    Column("attempts", BigInteger, nullable=False),
    Column("lease", Text),
    Column("lease_until", Instant),
    Column("calls", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("dollars", Double),
    Column("outcome_id", Number, ForeignKey("outcomes.id", ondelete="SET NULL")),
    Column("asked", Text, nullable=False),
    Column("lost", BigInteger, nullable=False, server_default="0"),
    ForeignKeyConstraint(["rule", "version"], ["rules.name", "rules.version"]),
    Index("decisions_due", "rule", "version", "state", "due_at"),
    Index("decisions_target", "target"),
    Index("decisions_outcome", "outcome_id"),
)
Index(
    "decisions_live",
    decisions.c.rule,
    decisions.c.target,
    unique=True,
    sqlite_where=decisions.c.state != "superseded",  # as above
)

# Spending of a rule per hour: the totals, the number of targets, and the maximum for one target.
spending = Table(
    "spending",
    metadata,
    Column("rule", Words, primary_key=True),
    Column("hour", Instant, primary_key=True),
    Column("targets", BigInteger, nullable=False),
    Column("calls", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("dollars", Double, nullable=False),
    Column("most_calls", BigInteger, nullable=False),
    Column("most_tokens", BigInteger, nullable=False),
    Column("most_dollars", Double, nullable=False),
)

# --- labels by people -------------------------------------------------------------------------------

# `population` is the number of samples to draw from, `covered` the number with a chance to be drawn.
label_queues = Table(
    "label_queues",
    metadata,
    Column("name", Words, primary_key=True),
    Column("created_at", Instant, nullable=False),
    Column("source", Words, nullable=False),
    Column("run_id", Words),
    Column("digest", Words, nullable=False),
    Column("policy", Text, nullable=False),
    Column("population", BigInteger, nullable=False),
    Column("covered", BigInteger, nullable=False),
    Column("settings", Text, nullable=False),
)

# Items are offered in the order of their positions; `inclusion` is the probability with which one was drawn.
label_items = Table(
    "label_items",
    metadata,
    Column("queue", Words, ForeignKey("label_queues.name", ondelete="CASCADE"), primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("sample_id", Words, nullable=False),
    Column(
        "sample_key",
        Text,
        ForeignKey("samples.key", deferrable=True, initially="DEFERRED"),
        nullable=False,
    ),
    Column("policy", Text, nullable=False),
    Column("priority", Double, nullable=False),
    Column("inclusion", Double, nullable=False),
    Column("reason", Words, nullable=False),
    Column("wanted", BigInteger, nullable=False),
    UniqueConstraint("queue", "sample_id"),
    Index("label_items_key", "sample_key"),
)


def _of_an_item() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["queue", "position"], ["label_items.queue", "label_items.position"], ondelete="CASCADE"
    )


# Who has leased an item, and whether verdicts or comments were `shown` to them; rows of ended leases stay.
label_leases = Table(
    "label_leases",
    metadata,
    Column("queue", Words, primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("annotator", Words, primary_key=True),
    Column("expires", Instant, nullable=False),
    Column("shown", BigInteger, nullable=False),
    _of_an_item(),
)

# Append-only: an annotator's newest revision is their current label.
labels = Table(
    "labels",
    metadata,
    Column("id", Number, primary_key=True),
    Column("queue", Words, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("annotator", Words, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("label", Text, nullable=False),
    Column("spans", Text, nullable=False),
    Column("quote", Text),
    Column("note", Words, nullable=False),
    Column("seconds", Double),
    Column("shown", BigInteger, nullable=False),
    Column("at", Instant, nullable=False),
    UniqueConstraint("queue", "position", "annotator", "revision"),
    _of_an_item(),
)

# What people write on items beside their labels; append-only.
label_comments = Table(
    "label_comments",
    metadata,
    Column("id", Number, primary_key=True),
    Column("queue", Words, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("author", Words, nullable=False),
    Column("text", Words, nullable=False),
    Column("at", Instant, nullable=False),
    _of_an_item(),
    Index("label_comments_item", "queue", "position"),
)

# Adjudicated gold labels of items, from the labels of these ids; append-only.
label_gold = Table(
    "label_gold",
    metadata,
    Column("queue", Words, primary_key=True),
    Column("position", BigInteger, primary_key=True),
    Column("revision", BigInteger, primary_key=True),
    Column("label", Text, nullable=False),
    Column("spans", Text, nullable=False),
    Column("reason", Words, nullable=False),
    Column("adjudicator", Words, nullable=False),
    Column("labels", Text, nullable=False),
    Column("at", Instant, nullable=False),
    _of_an_item(),
)

# Messages to a `destination`, one per `key`: a judge's outcome, or an alert in `body`.
outbox = Table(
    "outbox",
    metadata,
    Column("key", Text, primary_key=True),
    Column("destination", Words, nullable=False),
    Column("state", Text, nullable=False),
    Column("remark", Words, nullable=False),
    Column("body", Text, nullable=False),
    Column("target", Text, ForeignKey("targets.id", ondelete="CASCADE")),
    Column("outcome_id", Number, ForeignKey("outcomes.id", ondelete="CASCADE")),
    Column("made_at", Instant, nullable=False),
    Column("due_at", Instant, nullable=False),
    Column("attempts", BigInteger, nullable=False),
    Column("lease", Text),
    Column("lease_until", Instant),
    Index("outbox_due", "destination", "state", "due_at"),
    Index("outbox_target", "target"),
    Index("outbox_outcome", "outcome_id"),
)

# States of alerts: whether it fires, since when, and the values at the last check.
alerts = Table(
    "alerts",
    metadata,
    Column("name", Words, primary_key=True),
    Column("firing", BigInteger, nullable=False),
    Column("changed_at", Instant, nullable=False),
    Column("checked_at", Instant, nullable=False),
    Column("body", Text, nullable=False),
)

# How far each server was read from which spans are pulled.
sources = Table(
    "sources",
    metadata,
    Column("name", Words, primary_key=True),
    Column("cursor", Text, nullable=False),
    Column("changed_at", Instant, nullable=False),
)

# Users of a server; `token` is the hash of theirs.
users = Table(
    "users",
    metadata,
    Column("name", Words, primary_key=True),
    Column("role", Text, nullable=False),
    Column("token", Text, nullable=False, unique=True),
    Column("created_at", Instant, nullable=False),
    Column("token_at", Instant, nullable=False),
)

# Who changed what and when. Triggers of the database refuse to change or delete a row.
audit_log = Table(
    "audit_log",
    metadata,
    Column("id", Number, primary_key=True),
    Column("at", Instant, nullable=False),
    Column("who", Words, nullable=False),
    Column("action", Text, nullable=False),
    Column("object", Words, nullable=False),
    Column("details", Words, nullable=False),
    Index("audit_log_at", "at"),
    Index("audit_log_who", "who"),
)


@dataclass(frozen=True, slots=True)
class StorePart:
    """A part of a store, with the transactions of the whole to write and to read in."""

    _writing: Transaction
    _reading: Transaction


# --- rows as values -----------------------------------------------------------------------------------


def of_row(kind: type[Record], row: Any, **given: Any) -> Record:
    """Return a record whose fields are the columns of `row`, except for those `given`."""
    names = (field.name for field in fields(kind) if field.name not in given)
    return kind(**{name: getattr(row, name) for name in names}, **given)


# --- differences of the databases -------------------------------------------------------------------


def is_server(connection: Connection) -> bool:
    """Return whether the database is PostgreSQL."""
    return connection.dialect.name == "postgresql"


def insert_or(connection: Connection, table: Table) -> Any:
    """Return an insert statement that supports conflict clauses."""
    if is_server(connection):
        # Two dozen modules that SQLite does not need.
        from sqlalchemy.dialects.postgresql import insert as postgresql_insert

        return postgresql_insert(table)
    return sqlite_insert(table)


def insert_missing(connection: Connection, table: Table) -> Any:
    """Return an insert statement that skips rows that already exist."""
    return insert_or(connection, table).on_conflict_do_nothing()


def insert_rows(
    connection: Connection, table: Table, rows: Sequence[dict[str, Any]], *, missing: bool = False
) -> None:
    """Insert many rows, all with the same columns of the table; other keys are ignored.

    With `missing`, rows that already exist are skipped. Goes past SQLAlchemy's parameters, which cost more
    than the insertion: SQLite gets a tuple a row, and a server all rows as one JSON document.
    """
    if not rows:
        return
    names = tuple(name for name in rows[0] if name in table.c)
    command, processors = _insertion(connection.dialect, table, names, missing)
    columns = ([row[name] for row in rows] for name in names)
    texts = [
        column if process is None else [process(value) for value in column]
        for column, process in zip(columns, processors, strict=True)
    ]
    tuples = list(zip(*texts, strict=True))
    if is_server(connection):
        named = [dict(zip(names, row, strict=True)) for row in tuples]
        connection.exec_driver_sql(command, (json.dumps(named),))
    else:
        connection.exec_driver_sql(command, tuples)


@lru_cache(64)
def _insertion(
    dialect: Dialect, table: Table, names: tuple[str, ...], missing: bool
) -> tuple[str, Sequence[Callable[[Any], Any] | None]]:
    """Return the statement that inserts these columns, and the conversion of each column's values."""
    quoted = dialect.identifier_preparer.quote
    into = f"INSERT INTO {quoted(table.name)} ({', '.join(map(quoted, names))})"
    types = [table.c[name].type for name in names]
    if dialect.name == "postgresql":
        typed = (f"{quoted(name)} {kind.compile(dialect)}" for name, kind in zip(names, types, strict=True))
        given = f"SELECT * FROM json_to_recordset(%s::json) AS given ({', '.join(typed)})"
    else:
        given = f"VALUES ({', '.join('?' for _ in names)})"
    processors = [kind.dialect_impl(dialect).bind_processor(dialect) for kind in types]
    return f"{into} {given}{' ON CONFLICT DO NOTHING' if missing else ''}", processors


def stop_writers(connection: Connection, table: Table) -> None:
    """Block other writers of the table until the transaction ends. SQLite has only one writer anyway."""
    if is_server(connection):
        connection.execute(text(f"LOCK TABLE {table.name} IN SHARE ROW EXCLUSIVE MODE"))


_ELSEWHERE = {
    "sqlite": "choose another path with --store",
    "postgresql": "use another database, or a schema of its own: CREATE SCHEMA magistrate, "
    "then add ?options=-csearch_path%3Dmagistrate to the URL",
}


def version_of(connection: Connection) -> int:
    """Return the schema version of a store; 0 for an empty database.

    Raises `StoreError` for a database of another program.
    """
    names = set(inspect(connection).get_table_names())
    if not names:
        return 0
    if not {"schema_version", "runs", "run_samples"} <= names:
        raise StoreError(
            f"it is a database of another program (tables: {', '.join(sorted(names)[:5])}); "
            f"{_ELSEWHERE[connection.dialect.name]}"
        )
    return int(connection.scalar(text("SELECT max(version) FROM schema_version")) or 0)
