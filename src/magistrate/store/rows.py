"""Outcomes and runs as rows of the tables, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from magistrate._text import shorten
from magistrate.errors import InputError
from magistrate.store.codec import (
    claims_from,
    claims_plain,
    dumps,
    loads,
    naming,
    recipes_from,
    scoring_from,
    steps_from,
)
from magistrate.store.records import RunRecord
from magistrate.types import Abstention, Failure, Outcome, Usage, Verdict


def outcome_row(outcome: Outcome) -> dict[str, Any]:
    """An outcome's columns, without its run, its sample and its steps."""
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
    """The outcome of a row that also has `sample_id`; `steps` is the text of its steps, if any.

    `StoreError` names one that is damaged.
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


def run_from(
    row: Any, tags: Sequence[str], counts: Mapping[str, Mapping[str, int]], n_samples: int
) -> RunRecord:
    """The record of a run's row; `counts` are outcomes by judge and kind."""

    def count(kind: str) -> int:
        return sum(kinds.get(kind, 0) for kinds in counts.values())

    recipes = recipes_from(row.recipes)
    return RunRecord(
        id=row.id,
        number=row.number,
        name=row.name,
        created_at=row.created_at,
        finished_at=row.finished_at,
        status=row.status,
        reason=row.reason,
        seconds=_seconds(row),
        dataset=row.dataset,
        dataset_digest=row.dataset_digest,
        dataset_version=row.dataset_version,
        model=row.model,
        engine_fingerprint=row.engine_fingerprint,
        n_total=row.n_total,
        package_version=row.package_version,
        recipes=recipes,
        settings=loads(row.settings),
        tags=tuple(sorted(tags)),
        judges=(*recipes, *sorted(counts.keys() - recipes.keys())),
        n_samples=n_samples,
        n_verdicts=count("verdict"),
        n_failures=count("failure"),
        n_abstentions=count("abstention"),
        revision=row.revision,
        scoring=scoring_from(row.scoring),
    )


def _seconds(row: Any) -> float | None:
    """How long a run was at work; runs of older stores only say when they began and ended."""
    if row.seconds is not None or row.finished_at is None:
        return row.seconds  # type: ignore[no-any-return]
    passed: float = (row.finished_at - row.created_at).total_seconds()
    return passed if passed >= 0 else None  # somebody set the clock back meanwhile


def _verdict_body(verdict: Verdict) -> str:
    fields = {
        "explanation": verdict.explanation,
        "explanation_agrees": verdict.explanation_agrees,
        "mass": _finite("mass", verdict.mass),
        "claims": claims_plain(verdict.claims),
        "details": dict(verdict.details),
    }
    return dumps(
        {name: value for name, value in fields.items() if value is not None and value not in ([], {})}
    )


def _finite(name: str, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, got {value!r}; return a Failure instead")
    return value
