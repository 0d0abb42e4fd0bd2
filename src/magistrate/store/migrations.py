"""The schema as numbered steps, which are only appended to: a released step is never edited.

Version `k` of the schema is the result of the first `k` steps. Their SQL is frozen text, with `{key}`,
`{id}` and `{bytes}` as placeholders for types of the database; `schema` describes the newest version. What
SQL cannot express is a function, which is frozen as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256

from sqlalchemy import Connection, text

from magistrate.store.schema import is_server, version_of

# --- the part of the fourth step that is not SQL ----------------------------------------------------

_AT_ONCE = 1000
_UNSAFE_THEN = re.compile("[\\\\\0\ud800-\udfff]")


def name_labels(connection: Connection) -> None:
    """Copy every sample's label from its document to the runs that have it, then to their outcomes."""
    after = ""
    while rows := connection.execute(
        text("SELECT key, body FROM samples WHERE key > :after ORDER BY key LIMIT :most"),
        {"after": after, "most": _AT_ONCE},
    ).all():
        after = rows[-1].key
        labels = [(row.key, json.loads(row.body).get("label")) for row in rows]
        named = [{"key": key, "label": _kept(label)} for key, label in labels if isinstance(label, str)]
        if named:
            connection.execute(text("UPDATE run_samples SET label = :label WHERE sample_key = :key"), named)
    connection.execute(
        text(
            "UPDATE outcomes SET gold = (SELECT label FROM run_samples WHERE "
            "run_samples.run_id = outcomes.run_id AND run_samples.position = outcomes.position)"
        )
    )


def _kept(label: str) -> str:
    """Encode text as `schema.Words` did when this step was written."""
    return _UNSAFE_THEN.sub(lambda found: f"\\u{ord(found.group()):04x}", label)


# --- the part of the eleventh step that is not SQL of both databases ---------------------------------

_SEALED = "the audit log is only appended to"


def seal_audit_log(connection: Connection) -> None:
    """Make the database refuse to change or delete rows of the audit log."""
    if is_server(connection):
        connection.exec_driver_sql(
            "CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{_SEALED}'; END $$"
        )
        connection.exec_driver_sql(
            "CREATE TRIGGER audit_log_sealed BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change()"
        )
        return
    for change in ("UPDATE", "DELETE"):
        connection.exec_driver_sql(
            f"CREATE TRIGGER audit_log_no_{change.lower()} BEFORE {change} ON audit_log "
            f"BEGIN SELECT RAISE(ABORT, '{_SEALED}'); END"
        )


# --- the part of the fourteenth step that is not SQL -------------------------------------------------


def number_contexts(connection: Connection) -> None:
    """Give every sample of a run the number of its sources: the first 8 bytes of their sha256."""
    after = ""
    while rows := connection.execute(
        text("SELECT key, body FROM samples WHERE key > :after ORDER BY key LIMIT :most"),
        {"after": after, "most": _AT_ONCE},
    ).all():
        after = rows[-1].key
        numbers = [(row.key, _number_then(row.body)) for row in rows]
        known = [{"key": key, "context": number} for key, number in numbers if number is not None]
        if known:
            connection.execute(
                text("UPDATE run_samples SET context = :context WHERE sample_key = :key"), known
            )


def _number_then(body: str) -> int | None:
    """Return what `codec.context_number` did when this step was written; None for a damaged document."""
    try:
        sample = json.loads(body)
        sources = [*sample.get("context", ()), *(said for _, said in sample.get("messages", ()))]
        if not any(said.strip() for said in sources):
            return None
    except (ValueError, TypeError, AttributeError):
        return None
    told = json.dumps(sources, separators=(",", ":")).encode("ascii")
    return int.from_bytes(sha256(told).digest()[:8], "big", signed=True)


# --- the steps --------------------------------------------------------------------------------------

_VERSIONS = "CREATE TABLE schema_version (version INTEGER NOT NULL PRIMARY KEY, applied_at TEXT NOT NULL)"

_FIRST = (
    """CREATE TABLE runs (
        number {key},
        id TEXT NOT NULL UNIQUE,
        name TEXT,
        created_at TEXT NOT NULL,
        finished_at TEXT,
        status TEXT NOT NULL,
        dataset TEXT NOT NULL,
        dataset_digest TEXT NOT NULL,
        model TEXT NOT NULL,
        engine_fingerprint TEXT NOT NULL,
        n_total BIGINT,
        package_version TEXT NOT NULL,
        recipes TEXT NOT NULL,
        settings TEXT NOT NULL
    )""",
    "CREATE INDEX runs_name ON runs (name)",
    "CREATE INDEX runs_dataset ON runs (dataset)",
    """CREATE TABLE run_tags (
        run_id TEXT NOT NULL,
        tag TEXT NOT NULL,
        PRIMARY KEY (run_id, tag),
        FOREIGN KEY (run_id) REFERENCES runs (id) ON DELETE CASCADE
    )""",
    "CREATE INDEX run_tags_tag ON run_tags (tag)",
    "CREATE TABLE samples (key TEXT NOT NULL PRIMARY KEY, body TEXT NOT NULL)",
    """CREATE TABLE run_samples (
        run_id TEXT NOT NULL,
        position BIGINT NOT NULL,
        sample_id TEXT NOT NULL,
        sample_key TEXT NOT NULL,
        PRIMARY KEY (run_id, position),
        UNIQUE (run_id, sample_id),
        FOREIGN KEY (run_id) REFERENCES runs (id) ON DELETE CASCADE,
        FOREIGN KEY (sample_key) REFERENCES samples (key) DEFERRABLE INITIALLY DEFERRED
    )""",
    "CREATE INDEX run_samples_key ON run_samples (sample_key)",
    """CREATE TABLE outcomes (
        id {key},
        run_id TEXT NOT NULL,
        position BIGINT NOT NULL,
        judge TEXT NOT NULL,
        kind TEXT NOT NULL,
        label TEXT,
        score DOUBLE PRECISION,
        probability DOUBLE PRECISION,
        code TEXT,
        seconds DOUBLE PRECISION NOT NULL,
        calls BIGINT NOT NULL,
        prompt_tokens BIGINT NOT NULL,
        cached_tokens BIGINT NOT NULL,
        generated_tokens BIGINT NOT NULL,
        forced_tokens BIGINT NOT NULL,
        body TEXT NOT NULL,
        UNIQUE (run_id, position, judge),
        FOREIGN KEY (run_id, position) REFERENCES run_samples (run_id, position) ON DELETE CASCADE
    )""",
    """CREATE TABLE steps (
        outcome_id {id} NOT NULL PRIMARY KEY,
        body TEXT NOT NULL,
        FOREIGN KEY (outcome_id) REFERENCES outcomes (id) ON DELETE CASCADE
    )""",
)

# The list of runs counts the outcomes of every run from this index alone.
_COUNTS = ("CREATE INDEX outcomes_counts ON outcomes (run_id, judge, kind)",)

# Resumable runs: why a run stopped, cached calls, number of attempts;
# and data sets that are stored once, by content hash, under names with versions.
_SURVIVAL = (
    "ALTER TABLE runs ADD COLUMN reason TEXT",
    "ALTER TABLE runs ADD COLUMN seconds DOUBLE PRECISION",
    "ALTER TABLE runs ADD COLUMN dataset_version TEXT",
    "CREATE INDEX runs_digest ON runs (dataset_digest)",
    "ALTER TABLE outcomes ADD COLUMN reused BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE outcomes ADD COLUMN attempt BIGINT NOT NULL DEFAULT 1",
    """CREATE TABLE dataset_contents (
        digest TEXT NOT NULL PRIMARY KEY,
        n_samples BIGINT NOT NULL
    )""",
    """CREATE TABLE dataset_samples (
        digest TEXT NOT NULL,
        position BIGINT NOT NULL,
        sample_id TEXT NOT NULL,
        sample_key TEXT NOT NULL,
        PRIMARY KEY (digest, position),
        UNIQUE (digest, sample_id),
        FOREIGN KEY (digest) REFERENCES dataset_contents (digest) ON DELETE CASCADE,
        FOREIGN KEY (sample_key) REFERENCES samples (key) DEFERRABLE INITIALLY DEFERRED
    )""",
    "CREATE INDEX dataset_samples_key ON dataset_samples (sample_key)",
    """CREATE TABLE dataset_versions (
        name TEXT NOT NULL,
        version BIGINT NOT NULL,
        digest TEXT NOT NULL,
        created_at TEXT NOT NULL,
        source TEXT NOT NULL,
        PRIMARY KEY (name, version),
        FOREIGN KEY (digest) REFERENCES dataset_contents (digest)
    )""",
    "CREATE INDEX dataset_versions_digest ON dataset_versions (digest)",
)

# For pages: the cell of a confusion matrix that an outcome is in, and cached metrics.
_PAGES = (
    "ALTER TABLE runs ADD COLUMN revision BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE run_samples ADD COLUMN label TEXT",
    "ALTER TABLE outcomes ADD COLUMN gold TEXT",
    name_labels,
    "DROP INDEX outcomes_counts",
    "CREATE INDEX outcomes_cells ON outcomes (run_id, judge, kind, label, gold, position)",
    "CREATE INDEX outcomes_scores ON outcomes (run_id, judge, label, gold, score, position)",
    """CREATE TABLE figures (
        run_id TEXT NOT NULL,
        judge TEXT NOT NULL,
        place BIGINT NOT NULL,
        revision BIGINT NOT NULL,
        made_by TEXT NOT NULL,
        n_total BIGINT NOT NULL,
        n_ok BIGINT NOT NULL,
        n_failures BIGINT NOT NULL,
        n_abstentions BIGINT NOT NULL,
        metric TEXT,
        value DOUBLE PRECISION,
        low DOUBLE PRECISION,
        high DOUBLE PRECISION,
        body TEXT NOT NULL,
        scores {bytes} NOT NULL,
        PRIMARY KEY (run_id, judge),
        FOREIGN KEY (run_id) REFERENCES runs (id) ON DELETE CASCADE
    )""",
)

# How each judge's scores are read, by judge; empty for runs that were stored before.
_SCORING = ("ALTER TABLE runs ADD COLUMN scoring TEXT NOT NULL DEFAULT '{{}}'",)

# Watching: received spans, targets to judge, rules, and their decisions on targets.
_WATCH = (
    """CREATE TABLE traces (
        id TEXT NOT NULL PRIMARY KEY,
        since TEXT NOT NULL,
        last_at TEXT NOT NULL,
        ended BIGINT NOT NULL,
        changed BIGINT NOT NULL,
        read BIGINT NOT NULL
    )""",
    "CREATE INDEX traces_unread ON traces (since) WHERE changed > read",
    """CREATE TABLE spans (
        trace_id TEXT NOT NULL,
        span_id TEXT NOT NULL,
        received_at TEXT NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (trace_id, span_id),
        FOREIGN KEY (trace_id) REFERENCES traces (id) ON DELETE CASCADE
    )""",
    """CREATE TABLE targets (
        id TEXT NOT NULL PRIMARY KEY,
        trace_id TEXT NOT NULL,
        span_id TEXT NOT NULL,
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        revision BIGINT NOT NULL,
        gone BIGINT NOT NULL,
        seen_at TEXT NOT NULL,
        content TEXT,
        missing TEXT,
        body TEXT NOT NULL,
        FOREIGN KEY (trace_id) REFERENCES traces (id) ON DELETE CASCADE
    )""",
    "CREATE INDEX targets_trace ON targets (trace_id)",
    "CREATE INDEX targets_seen ON targets (kind, seen_at)",
    """CREATE TABLE rules (
        name TEXT NOT NULL,
        version BIGINT NOT NULL,
        digest TEXT NOT NULL,
        spec TEXT NOT NULL,
        since TEXT NOT NULL,
        run_id TEXT,
        PRIMARY KEY (name, version),
        FOREIGN KEY (run_id) REFERENCES runs (id) ON DELETE SET NULL
    )""",
    "CREATE INDEX rules_run ON rules (run_id)",
    """CREATE TABLE decisions (
        rule TEXT NOT NULL,
        version BIGINT NOT NULL,
        target TEXT NOT NULL,
        revision BIGINT NOT NULL,
        state TEXT NOT NULL,
        reason TEXT NOT NULL,
        inclusion DOUBLE PRECISION,
        content TEXT,
        made_at TEXT NOT NULL,
        changed_at TEXT NOT NULL,
        due_at TEXT,
        attempts BIGINT NOT NULL,
        lease TEXT,
        lease_until TEXT,
        calls BIGINT NOT NULL,
        tokens BIGINT NOT NULL,
        dollars DOUBLE PRECISION,
        outcome_id {id},
        asked TEXT NOT NULL,
        PRIMARY KEY (rule, version, target, revision),
        FOREIGN KEY (rule, version) REFERENCES rules (name, version),
        FOREIGN KEY (target) REFERENCES targets (id) ON DELETE CASCADE,
        FOREIGN KEY (outcome_id) REFERENCES outcomes (id) ON DELETE SET NULL
    )""",
    "CREATE INDEX decisions_due ON decisions (rule, version, state, due_at)",
    "CREATE INDEX decisions_target ON decisions (target)",
    "CREATE INDEX decisions_outcome ON decisions (outcome_id)",
    "CREATE UNIQUE INDEX decisions_live ON decisions (rule, target) WHERE state <> 'superseded'",
    """CREATE TABLE spending (
        rule TEXT NOT NULL,
        hour TEXT NOT NULL,
        targets BIGINT NOT NULL,
        calls BIGINT NOT NULL,
        tokens BIGINT NOT NULL,
        dollars DOUBLE PRECISION NOT NULL,
        most_calls BIGINT NOT NULL,
        most_tokens BIGINT NOT NULL,
        most_dollars DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (rule, hour)
    )""",
)

# How many workers died while they were working on a decision.
_LOST = ("ALTER TABLE decisions ADD COLUMN lost BIGINT NOT NULL DEFAULT 0",)

# Labels by people.
_LABELS = (
    """CREATE TABLE label_queues (
        name TEXT NOT NULL PRIMARY KEY,
        created_at TEXT NOT NULL,
        source TEXT NOT NULL,
        run_id TEXT,
        digest TEXT NOT NULL,
        policy TEXT NOT NULL,
        population BIGINT NOT NULL,
        covered BIGINT NOT NULL,
        settings TEXT NOT NULL
    )""",
    """CREATE TABLE label_items (
        queue TEXT NOT NULL,
        position BIGINT NOT NULL,
        sample_id TEXT NOT NULL,
        sample_key TEXT NOT NULL,
        policy TEXT NOT NULL,
        priority DOUBLE PRECISION NOT NULL,
        inclusion DOUBLE PRECISION NOT NULL,
        reason TEXT NOT NULL,
        wanted BIGINT NOT NULL,
        PRIMARY KEY (queue, position),
        UNIQUE (queue, sample_id),
        FOREIGN KEY (queue) REFERENCES label_queues (name) ON DELETE CASCADE,
        FOREIGN KEY (sample_key) REFERENCES samples (key) DEFERRABLE INITIALLY DEFERRED
    )""",
    "CREATE INDEX label_items_key ON label_items (sample_key)",
    """CREATE TABLE label_leases (
        queue TEXT NOT NULL,
        position BIGINT NOT NULL,
        annotator TEXT NOT NULL,
        expires TEXT NOT NULL,
        shown BIGINT NOT NULL,
        PRIMARY KEY (queue, position, annotator),
        FOREIGN KEY (queue, position) REFERENCES label_items (queue, position) ON DELETE CASCADE
    )""",
    """CREATE TABLE labels (
        id {key},
        queue TEXT NOT NULL,
        position BIGINT NOT NULL,
        annotator TEXT NOT NULL,
        revision BIGINT NOT NULL,
        label TEXT NOT NULL,
        spans TEXT NOT NULL,
        quote TEXT,
        note TEXT NOT NULL,
        seconds DOUBLE PRECISION,
        shown BIGINT NOT NULL,
        at TEXT NOT NULL,
        UNIQUE (queue, position, annotator, revision),
        FOREIGN KEY (queue, position) REFERENCES label_items (queue, position) ON DELETE CASCADE
    )""",
    """CREATE TABLE label_gold (
        queue TEXT NOT NULL,
        position BIGINT NOT NULL,
        revision BIGINT NOT NULL,
        label TEXT NOT NULL,
        spans TEXT NOT NULL,
        reason TEXT NOT NULL,
        adjudicator TEXT NOT NULL,
        labels TEXT NOT NULL,
        at TEXT NOT NULL,
        PRIMARY KEY (queue, position, revision),
        FOREIGN KEY (queue, position) REFERENCES label_items (queue, position) ON DELETE CASCADE
    )""",
)

# Messages to other programs until they are delivered, and the alerts of watching.
_WATCH_OUT = (
    """CREATE TABLE outbox (
        key TEXT NOT NULL PRIMARY KEY,
        destination TEXT NOT NULL,
        state TEXT NOT NULL,
        remark TEXT NOT NULL,
        body TEXT NOT NULL,
        target TEXT,
        outcome_id {id},
        made_at TEXT NOT NULL,
        due_at TEXT NOT NULL,
        attempts BIGINT NOT NULL,
        lease TEXT,
        lease_until TEXT,
        FOREIGN KEY (target) REFERENCES targets (id) ON DELETE CASCADE,
        FOREIGN KEY (outcome_id) REFERENCES outcomes (id) ON DELETE CASCADE
    )""",
    "CREATE INDEX outbox_due ON outbox (destination, state, due_at)",
    "CREATE INDEX outbox_target ON outbox (target)",
    "CREATE INDEX outbox_outcome ON outbox (outcome_id)",
    """CREATE TABLE alerts (
        name TEXT NOT NULL PRIMARY KEY,
        firing BIGINT NOT NULL,
        changed_at TEXT NOT NULL,
        checked_at TEXT NOT NULL,
        body TEXT NOT NULL
    )""",
    "CREATE INDEX traces_last ON traces (last_at)",
)

# How far the servers were read from which spans are pulled.
_SOURCES = (
    """CREATE TABLE sources (
        name TEXT NOT NULL PRIMARY KEY,
        cursor TEXT NOT NULL,
        changed_at TEXT NOT NULL
    )""",
)

# Users of a server with roles, and who changed what.
_USERS = (
    """CREATE TABLE users (
        name TEXT NOT NULL PRIMARY KEY,
        role TEXT NOT NULL,
        token TEXT NOT NULL UNIQUE,
        created_at TEXT NOT NULL,
        token_at TEXT NOT NULL
    )""",
    """CREATE TABLE audit_log (
        id {key},
        at TEXT NOT NULL,
        who TEXT NOT NULL,
        action TEXT NOT NULL,
        object TEXT NOT NULL,
        details TEXT NOT NULL
    )""",
    "CREATE INDEX audit_log_at ON audit_log (at)",
    "CREATE INDEX audit_log_who ON audit_log (who)",
    seal_audit_log,
)

# Revisions of rules that were saved on the page.
_RULE_EDITS = (
    """CREATE TABLE rule_edits (
        rule TEXT NOT NULL,
        revision BIGINT NOT NULL,
        made_at TEXT NOT NULL,
        base TEXT NOT NULL,
        text TEXT NOT NULL,
        enabled BIGINT NOT NULL,
        PRIMARY KEY (rule, revision)
    )""",
)

# Comments on items of label queues.
_COMMENTS = (
    """CREATE TABLE label_comments (
        id {key},
        queue TEXT NOT NULL,
        position BIGINT NOT NULL,
        author TEXT NOT NULL,
        text TEXT NOT NULL,
        at TEXT NOT NULL,
        FOREIGN KEY (queue, position) REFERENCES label_items (queue, position) ON DELETE CASCADE
    )""",
    "CREATE INDEX label_comments_item ON label_comments (queue, position)",
)

# Which samples of a run share their sources, so that a report of many samples does not read them.
_CONTEXTS = ("ALTER TABLE run_samples ADD COLUMN context BIGINT", number_contexts)

# Which kinds of targets were looked for in a trace, as bits. Where there are none, they are looked for again.
_KINDS = (
    "ALTER TABLE traces ADD COLUMN kinds BIGINT NOT NULL DEFAULT 0",
    *(
        f"""UPDATE traces SET kinds = kinds + {bit} WHERE EXISTS (
            SELECT 1 FROM targets WHERE targets.trace_id = traces.id AND targets.kind = '{kind}'
        )"""
        for bit, kind in ((1, "answer"), (2, "call"))
    ),
)

MIGRATIONS: tuple[tuple[str | Callable[[Connection], None], ...], ...] = (
    _FIRST,
    _COUNTS,
    _SURVIVAL,
    _PAGES,
    _SCORING,
    _WATCH,
    _LOST,
    _LABELS,
    _WATCH_OUT,
    _SOURCES,
    _USERS,
    _RULE_EDITS,
    _COMMENTS,
    _CONTEXTS,
    _KINDS,
)
LATEST = len(MIGRATIONS)

_TYPES = {
    "sqlite": {"key": "INTEGER NOT NULL PRIMARY KEY", "id": "INTEGER", "bytes": "BLOB"},
    "postgresql": {
        "key": "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
        "id": "BIGINT",
        "bytes": "BYTEA",
    },
}
_TEXT = re.compile(r"\bTEXT\b")


def _definition(connection: Connection, statement: str) -> str:
    """Return a statement of a migration in the SQL of this database."""
    statement = statement.format(**_TYPES[connection.dialect.name])
    # Text sorts by code point, as in SQLite, regardless of the server's locale.
    return _TEXT.sub('TEXT COLLATE "C"', statement) if is_server(connection) else statement


def upgrade(connection: Connection, *, upto: int = LATEST) -> None:
    """Apply the missing steps up to version `upto`, within the caller's transaction."""
    done = version_of(connection)
    if done == 0:
        connection.exec_driver_sql(_definition(connection, _VERSIONS))
    for number in range(done + 1, upto + 1):
        for statement in MIGRATIONS[number - 1]:
            if callable(statement):
                statement(connection)
            else:
                connection.exec_driver_sql(_definition(connection, statement))
        connection.execute(
            text("INSERT INTO schema_version (version, applied_at) VALUES (:version, :applied_at)"),
            {"version": number, "applied_at": datetime.now(UTC).isoformat(timespec="seconds")},
        )
