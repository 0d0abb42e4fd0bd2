"""Estimate what a rule of monitoring would judge and what that takes, without calling a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from magistrate import _async
from magistrate.api.estimate import estimate
from magistrate.report.estimate import Estimate
from magistrate.runs.prepare import prepare_judges, price_for
from magistrate.store import Store
from magistrate.store.decisions import TargetRecord
from magistrate.store.targets import record_of
from magistrate.watch.decisions import first
from magistrate.watch.reading import find
from magistrate.watch.rules import Rule

TOGETHER = 25  # traces in memory at once


def undecided_targets(
    store: Store, rule: Rule, since: datetime, most: int | None = None
) -> list[TargetRecord]:
    """Return the targets since a moment that a rule has not decided on, at most `most`.

    They include those that nobody has looked for yet in stored traces. Nothing is written.
    """
    found = store.traces.undecided(rule.name, rule.digest, rule.target, since, most)
    left = None if most is None else most - len(found)
    trace_ids = store.traces.lacking(rule.target, since, None)
    for begin in range(0, len(trace_ids), TOGETHER):
        if left is not None and left <= 0:
            break
        for content in store.traces.content(trace_ids[begin : begin + TOGETHER]):
            new = find(content, [rule.target])[1]
            found += [record_of(target, content.last_at) for target in new]
            left = None if left is None else left - len(new)
    return found[:most]


def estimate_rule(rule: Rule, targets: Sequence[TargetRecord]) -> tuple[Counter[str], list[Estimate]]:
    """Count the targets per state, and estimate the most that each judge would cost."""
    now = datetime.now(UTC)
    states: Counter[str] = Counter()
    samples = []
    for target in targets:
        state = first(rule, 1, target, now, now).state
        states[state] += 1
        if state == "queued" and target.sample is not None:
            samples.append(target.sample)
    estimates = []
    for spec in rule.specs() if samples else ():
        plan = prepare_judges(spec)
        price = price_for(plan.engine, spec.engine.price)
        estimates.append(_async.run(estimate(samples, plan.judges, plan.engine, price=price)))
    return states, estimates
