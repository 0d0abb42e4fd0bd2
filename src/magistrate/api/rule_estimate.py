"""Estimate what a rule of monitoring would judge and what that takes, without calling a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from magistrate import _async
from magistrate.api.estimate import estimate
from magistrate.report.estimate import Estimate
from magistrate.runs.prepare import prepare_judges, price_for
from magistrate.store.decisions import TargetRecord
from magistrate.watch.decisions import first
from magistrate.watch.rules import Rule


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
