"""Status of monitoring: per rule the decisions, flag rates, queue and spending.

An unknown value is None, or an estimate with the reason it is undefined. A missing value never counts as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from magistrate.analysis.columns import columns
from magistrate.errors import SpecError
from magistrate.metrics.classification import Estimate, fields_of
from magistrate.metrics.prevalence import corrected_share
from magistrate.store import Store
from magistrate.store.decisions import SUPERSEDED, Hour, RuleRecord, Spent
from magistrate.store.outbox import Queue
from magistrate.store.watched import AlertRecord
from magistrate.types import HALLUCINATED, Recipe
from magistrate.watch.rates import Rate, answers_by, rate_of
from magistrate.watch.rules import Rule

STATES = (
    *("judged", "abstained", "queued", "waiting", "retrying", "budget_deferred", "failed", "shed", "expired"),
    *("sampled_out", "filtered", "no_output", "no_context", "loop"),
)
PINS = ("judge", "model", "fingerprint", "prompt", "constraint")
UNDECIDED = "undecided"
MOST_REASONS = 3
LEAST_LABELS, LEAST_OF_EITHER = 30, 5
"""Below these the normal approximation of the corrected interval is no longer near 95 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeStatus:
    """How often a judge of a rule flags, and that rate corrected for the judge's errors.

    `labels` describes the labels that the errors were measured on; empty if there were none.
    """

    judge: str
    rate: Rate
    corrected: Estimate
    labels: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return fields_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What a rule has spent in a window that began at `begin`, and its budget for the window, if any.

    The dollars are None if no price is known.
    """

    begin: datetime
    spent: Spent
    budget: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        spent = {name: getattr(self.spent, name) for name in ("calls", "tokens", "dollars")}
        return {"begin": self.begin.isoformat(), "spent": spent, "budget": dict(self.budget)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStatus:
    """The status of a rule: how many targets seen since `since` are in each state. The states sum to `n`.

    `waiting` counts targets of any age that are to be judged. The oldest has waited for `queue_age`
    seconds, None if none waits. `reasons` are the most frequent ones of failed or retried targets: state,
    reason, count.
    """

    rule: str
    version: int
    target: str
    since: datetime
    n: int
    states: Mapping[str, int]
    judges: Sequence[JudgeStatus]
    waiting: int
    queue_age: float | None
    reasons: Sequence[tuple[str, str, int]]
    hour: Spending
    day: Spending

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        keys = ("state", "reason", "n")
        reasons = [dict(zip(keys, each, strict=True)) for each in self.reasons]
        return fields_of(self) | {"since": self.since.isoformat(), "reasons": reasons}


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchStatus:
    """The monitoring status of one store at a point in time."""

    at: datetime
    rules: Sequence[RuleStatus]
    queues: Sequence[Queue]
    alerts: Sequence[AlertRecord]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "at": self.at.isoformat(),
            "rules": [each.to_dict() for each in self.rules],
            "outbox": [
                {
                    "destination": each.destination,
                    "states": dict(each.states),
                    "unsent": each.waiting,
                    "oldest_unsent": None if each.oldest is None else each.oldest.isoformat(),
                    "remark": each.remark,
                }
                for each in self.queues
            ],
            "alerts": [
                {
                    "name": each.name,
                    "firing": each.firing,
                    "since": each.changed_at.isoformat(),
                    "checked_at": each.checked_at.isoformat(),
                    **each.seen,
                }
                for each in self.alerts
            ],
        }


def status(
    store: Store,
    now: datetime,
    since: timedelta,
    *,
    rule: str | None = None,
    labelled: str | None = None,
) -> WatchStatus:
    """Return the monitoring status over the last `since`, for one rule if it is named.

    Judges' errors are measured on the labels of the rule's own run, or of the run `labelled`, by the same
    judge with the same recipe. Raises `SpecError` for an unknown rule or run.
    """
    known = store.watched.rules()
    if rule is not None and rule not in [each.name for each in known]:
        names = ", ".join(each.name for each in known) or "there are none yet"
        raise SpecError(f"rule {rule!r} has not been run on this store; known: {names}")
    label_run = None if labelled is None else store.find_run(labelled).id
    chosen = [each for each in known if rule in (None, each.name)]
    return WatchStatus(
        at=now,
        rules=[rule_status(store, each, now, since, label_run) for each in chosen],
        queues=store.outbox.queues(),
        alerts=store.watched.alerts(),
    )


def rule_status(
    store: Store, record: RuleRecord, now: datetime, since: timedelta, label_run: str | None = None
) -> RuleStatus:
    """Return the status of one rule."""
    rule = Rule.model_validate(record.spec, strict=False)
    begin = max(now - since, record.since)
    counts = store.traces.counts(record.name, begin)
    undecided = store.watched.n_undecided(record.name, rule.target, begin)
    states = {state: counts[state] for state in STATES if state in counts}
    states |= {state: n for state, n in counts.items() if state not in (*STATES, SUPERSEDED)}
    states |= {UNDECIDED: undecided} if undecided else {}
    rows = store.traces.answers(record.name, begin, now + timedelta(microseconds=1))
    waiting, oldest = store.watched.waiting(record.name)
    hour, day = spending(store, rule, now)
    return RuleStatus(
        rule=record.name,
        version=record.version,
        target=rule.target,
        since=begin,
        n=sum(states.values()),
        states=states,
        judges=[
            _judge_status(store, record, judge, begin, now, rows, label_run)
            for judge in judges_of(rule, rows)
        ],
        waiting=waiting,
        queue_age=None if oldest is None else max((now - oldest).total_seconds(), 0.0),
        reasons=store.watched.reasons(record.name, ("failed", "retrying"), begin, MOST_REASONS),
        hour=hour,
        day=day,
    )


def judges_of(rule: Rule, rows: Sequence[Any]) -> list[str]:
    """Return the judges with results, in their order, or else the judge names in the rule."""
    found = dict.fromkeys(said["judge"] for row in rows for said in row[5])
    return list(found) or [part.judge for part in rule.judges]


def spending(store: Store, rule: Rule, now: datetime) -> tuple[Spending, Spending]:
    """Return what a rule has spent in this hour and on this day, against its budgets."""
    hours = store.traces.hours(rule.name, now)
    priced = store.watched.has_price(rule.name, now - timedelta(days=1))
    hour = now.replace(minute=0, second=0, microsecond=0)
    return (
        _spending(hours, hour, priced, rule.budget.hour.model_dump(exclude_none=True)),
        _spending(hours, hour.replace(hour=0), priced, rule.budget.day.model_dump(exclude_none=True)),
    )


def _spending(hours: Sequence[Hour], begin: datetime, priced: bool, budget: Mapping[str, float]) -> Spending:
    spent = sum((each.spent for each in hours if each.at >= begin), Spent())
    return Spending(begin=begin, spent=spent if priced else replace(spent, dollars=None), budget=budget)


# --- correction for judge errors ------------------------------------------------------------------


def _judge_status(
    store: Store,
    record: RuleRecord,
    judge: str,
    begin: datetime,
    now: datetime,
    rows: Sequence[Any],
    label_run: str | None,
) -> JudgeStatus:
    rate = rate_of(begin, now, rows, judge)
    corrected, labels = _corrected(store, record, judge, rows, label_run)
    return JudgeStatus(judge=judge, rate=rate, corrected=corrected, labels=labels)


def differing(own: Recipe, other: Recipe) -> str:
    """Return the fields that make two recipes different judges. Their error rates cannot be compared."""
    return ", ".join(name for name in PINS if getattr(own, name) != getattr(other, name))


def _corrected(
    store: Store, record: RuleRecord, judge: str, rows: Sequence[Any], label_run: str | None
) -> tuple[Estimate, str]:
    """Return the flag rate corrected for the judge's errors on labels, and a description of the labels."""
    answers = list(answers_by(rows, judge))
    if not answers:
        return Estimate.none("no data"), ""
    if record.run_id is None:
        return Estimate.none("no run yet"), ""
    own = store.find_run(record.run_id)
    other = own if label_run is None else store.find_run(label_run)
    if judge not in own.recipes or judge not in other.recipes:
        return Estimate.none(f"{other.name or other.id} has no verdicts of this judge"), ""
    if told := differing(own.recipes[judge], other.recipes[judge]):
        return Estimate.none(f"{other.name or other.id} used another judge: its {told} differs"), ""
    with store.snapshot() as moment:
        samples = {each.id: each for each in moment.samples(other.id) if each.label is not None}
        said = [each for each in moment.bare_outcomes(other.id, judge) if each.sample_id in samples]
    known = columns(samples, said, judge, other.scoring.get(judge))
    positives = int(known.truth.sum())
    if known.n < LEAST_LABELS or min(positives, known.n - positives) < LEAST_OF_EITHER:
        return Estimate.none(
            f"{LEAST_LABELS} labels are needed, {LEAST_OF_EITHER} of each class; there are "
            + (f"{known.n}, {positives} of them {HALLUCINATED}" if known.n else "none")
        ), ""
    in_own = other.id == own.id
    groups = [each.partition(".")[0] if in_own else f"label {each}" for each in known.ids]
    share = corrected_share(
        known.truth,
        known.said,
        [each.flagged for each in answers],
        weights=[1 / each.inclusion for each in answers],
        groups=groups + [each.trace for each in answers],
    )
    where = "its own answers" if in_own else f"run {other.name or other.id}"
    return share, f"{known.n} labels of {where}, {positives} {HALLUCINATED}"
