"""Write, read and count outcomes in the store, and convert them from and to rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, bindparam, case, delete, func, select

from magistrate._text import shorten
from magistrate.errors import InputError
from magistrate.store.codec import (
    claims_from,
    claims_plain,
    dumps,
    loads,
    naming,
    steps_body,
    steps_from,
)
from magistrate.store.runs import change_run, read, streamed
from magistrate.store.schema import insert_rows, outcomes, run_samples, steps
from magistrate.types import Abstention, Failure, Outcome, Usage, Verdict

# Built once, since building a statement costs more than executing it.
_PLACES = select(run_samples.c.sample_id, run_samples.c.position, run_samples.c.label).where(
    run_samples.c.run_id == bindparam("in_run"),
    run_samples.c.sample_id.in_(bindparam("of_samples", expanding=True)),
)
_STORED = select(outcomes.c.position, outcomes.c.judge, outcomes.c.id).where(
    outcomes.c.run_id == bindparam("in_run"),
    outcomes.c.position.in_(bindparam("at", expanding=True)),
)
# In the order of the fields of `Usage`.
SPENT = (
    outcomes.c.calls,
    outcomes.c.prompt_tokens,
    outcomes.c.cached_tokens,
    outcomes.c.generated_tokens,
    outcomes.c.forced_tokens,
    outcomes.c.reused,
)


def prepared(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as a row for `insert_outcomes`. Raises `InputError` if a value cannot be stored."""
    try:
        body = steps_body(outcome.steps) if outcome.steps else None
        return outcome_row(outcome) | {"of_sample": outcome.sample_id, "body_of_steps": body, "attempt": 1}
    except InputError as error:
        raise InputError(
            f"the outcome of judge {outcome.judge!r} for sample {shorten(repr(outcome.sample_id))}: {error}"
        ) from error


def insert_outcomes(connection: Connection, run_id: str, rows: Sequence[dict[str, Any]]) -> None:
    """Insert outcomes. Raises an integrity error if the run lacks a sample or already has an outcome."""
    change_run(connection, run_id)  # locks the run, so that no sample's label changes meanwhile
    asked = {"in_run": run_id, "of_samples": list({row["of_sample"] for row in rows})}
    places = {sample_id: (at, gold) for sample_id, at, gold in connection.execute(_PLACES, asked)}
    bodies = dict[tuple[int | None, str], str]()
    for row in rows:
        # Without a position the database rejects the row.
        row["position"], row["gold"] = places.get(row["of_sample"], (None, None))
        row["run_id"] = run_id
        if row["body_of_steps"] is not None:
            bodies[row["position"], row["judge"]] = row["body_of_steps"]
    insert_rows(connection, outcomes, rows)
    if bodies:
        stored = connection.execute(_STORED, {"in_run": run_id, "at": list({at for at, _ in bodies})})
        ids = {(position, judge): number for position, judge, number in stored}
        insert_rows(
            connection, steps, [{"outcome_id": ids[pair], "body": body} for pair, body in bodies.items()]
        )


def replace_failures(connection: Connection, run_id: str, rows: Sequence[dict[str, Any]]) -> None:
    """Delete the earlier failure of each row's sample and judge, if any. The row counts as one more
    attempt, and its usage includes that of the deleted one.
    """
    earlier = select(run_samples.c.sample_id, outcomes.c.judge, outcomes.c.id, outcomes.c.attempt, *SPENT)
    earlier = earlier.join_from(outcomes, run_samples).with_for_update(of=outcomes)
    earlier = earlier.where(
        outcomes.c.run_id == run_id,
        run_samples.c.sample_id.in_({row["of_sample"] for row in rows}),
        outcomes.c.kind == "failure",
    )
    failures = {(each.sample_id, each.judge): each for each in connection.execute(earlier)}
    for row in rows if failures else ():
        if found := failures.pop((row["of_sample"], row["judge"]), None):
            connection.execute(delete(outcomes).where(outcomes.c.id == found.id))
            row["attempt"] = found.attempt + 1
            for column in SPENT:
                row[column.key] += getattr(found, column.key)


def usage_of(connection: Connection, run_id: str) -> Usage:
    """Return the total usage of all outcomes of the run."""
    sums = select(*(func.coalesce(func.sum(column), 0) for column in SPENT))
    return Usage(*map(int, connection.execute(sums.where(outcomes.c.run_id == run_id)).one()))


def dearest_of(connection: Connection, run_id: str) -> Usage:
    """Return the usage of the outcome with the most tokens."""
    tokens = outcomes.c.prompt_tokens + outcomes.c.generated_tokens
    asked = select(*SPENT).where(outcomes.c.run_id == run_id).order_by(tokens.desc()).limit(1)
    row = connection.execute(asked).one_or_none()
    return Usage() if row is None else Usage(*map(int, row))


def has_outcome(connection: Connection, run_id: str, sample_id: str, judge: str) -> bool:
    """Return whether this judge has an outcome for this sample of the run."""
    asked = select(outcomes.c.id).join(run_samples).where(*_pair(run_id, sample_id, judge))
    return connection.scalar(asked) is not None


def _pair(run_id: str, sample_id: str, judge: str) -> tuple[ColumnElement[bool], ...]:
    return (outcomes.c.run_id == run_id, run_samples.c.sample_id == sample_id, outcomes.c.judge == judge)


def pairs_of(connection: Connection, run_id: str) -> dict[tuple[str, str], tuple[str | None, int]]:
    """Return the pairs of sample id and judge with an outcome, and its failure code, if any, and attempt."""
    failure = case((outcomes.c.kind == "failure", outcomes.c.code), else_=None)
    asked = select(run_samples.c.sample_id, outcomes.c.judge, failure, outcomes.c.attempt)
    asked = asked.select_from(outcomes).join(run_samples).where(outcomes.c.run_id == run_id)
    return {
        (sample_id, judge): (code, attempt) for sample_id, judge, code, attempt in streamed(connection, asked)
    }


def outcomes_of(
    connection: Connection,
    run_id: str,
    *,
    judge: str | None,
    sample_id: str | None,
    with_steps: bool,
    damaged: list[str] | None = None,
) -> Iterator[Outcome]:
    """Yield the outcomes of the run, in the order of its samples, then of judge names.

    Damaged outcomes are skipped and named in `damaged`. Without that list they raise `StoreError`.
    """
    asked: Select[Any] = select(outcomes, run_samples.c.sample_id).join(run_samples)
    if with_steps:
        asked = asked.add_columns(steps.c.body.label("steps")).outerjoin(steps)
    asked = asked.where(outcomes.c.run_id == run_id)
    if judge is not None:
        asked = asked.where(outcomes.c.judge == judge)
    if sample_id is not None:
        asked = asked.where(run_samples.c.sample_id == sample_id)
    asked = asked.order_by(outcomes.c.position, outcomes.c.judge)
    for row in streamed(connection, asked):
        yield from read(partial(outcome_from, row, row.steps if with_steps else None), damaged)


def bare_outcomes_of(connection: Connection, run_id: str, judge: str) -> Iterator[Outcome]:
    """Yield the judge's outcomes in the order of the samples.

    They have labels, scores and codes only. Documents, which may be long, are not read.
    """
    columns = [outcomes.c[name] for name in ("kind", "label", "score", "probability", "code")]
    asked = select(run_samples.c.sample_id, *columns).select_from(outcomes).join(run_samples)
    asked = asked.where(outcomes.c.run_id == run_id, outcomes.c.judge == judge)
    for sample_id, kind, label, score, probability, code in streamed(
        connection, asked.order_by(outcomes.c.position)
    ):
        if kind == "verdict":
            yield Verdict(sample_id, judge, label, score, probability)
        elif kind == "failure":
            yield Failure(sample_id, judge, code, "")
        else:
            yield Abstention(sample_id, judge, code, "")


# --- as rows ----------------------------------------------------------------------------------------


def outcome_row(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome's columns, without its run, its sample and its steps."""
    usage = outcome.usage
    row: dict[str, Any] = {
        "judge": outcome.judge,
        "label": None,
        "score": None,
        "probability": None,
        "code": None,
        "seconds": _finite("seconds", outcome.seconds),
        "calls": usage.calls,
        "prompt_tokens": usage.prompt,
        "cached_tokens": usage.cached,
        "generated_tokens": usage.generated,
        "forced_tokens": usage.forced,
        "reused": usage.reused,
    }
    match outcome:
        case Verdict():
            row |= {
                "kind": "verdict",
                "label": outcome.label,
                "score": _finite("score", outcome.score),
                "probability": _finite("probability", outcome.probability),
                "body": _verdict_body(outcome),
            }
        case Failure():
            row |= {"kind": "failure", "code": outcome.code, "body": dumps({"message": outcome.message})}
        case Abstention():
            row |= {"kind": "abstention", "code": outcome.reason, "body": dumps({"message": outcome.message})}
    return row


def outcome_from(row: Any, steps: str | None) -> Outcome:
    """Return the outcome of a row that also has `sample_id`. `steps` is the text of its steps, if any.

    Raises `StoreError` with its name if it is damaged.
    """
    with naming(f"what judge {shorten(repr(row.judge))} said of sample", row.sample_id):
        return _outcome(row, steps)


def _outcome(row: Any, steps: str | None) -> Outcome:
    body = loads(row.body)
    shared: dict[str, Any] = {
        "sample_id": row.sample_id,
        "judge": row.judge,
        "steps": steps_from(steps) if steps else (),
        "usage": Usage(
            row.calls,
            row.prompt_tokens,
            row.cached_tokens,
            row.generated_tokens,
            row.forced_tokens,
            row.reused,
        ),
        "seconds": row.seconds,
    }
    if row.kind == "failure":
        return Failure(code=row.code, message=body["message"], **shared)
    if row.kind == "abstention":
        return Abstention(reason=row.code, message=body["message"], **shared)
    return Verdict(
        label=row.label,
        score=row.score,
        probability=row.probability,
        explanation=body.get("explanation"),
        explanation_agrees=body.get("explanation_agrees"),
        mass=body.get("mass"),
        claims=claims_from(body.get("claims", ())),
        details=body.get("details", {}),
        **shared,
    )


def _verdict_body(verdict: Verdict) -> str:
    fields = {
        "explanation": verdict.explanation,
        "explanation_agrees": verdict.explanation_agrees,
        "mass": _finite("mass", verdict.mass),
        "claims": claims_plain(verdict.claims) or None,
        "details": dict(verdict.details) or None,
    }
    kept = {name: value for name, value in fields.items() if value is not None}
    return dumps(kept) if kept else "{}"


def _finite(name: str, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, got {value!r}; return a Failure instead")
    return value
