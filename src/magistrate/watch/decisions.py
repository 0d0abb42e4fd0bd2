"""What a rule decides about a target, and how that decision changes: pure functions over store values.

===============  ==========================================================================================
waiting          the trace may still change: it has not been quiet for as long as the rule requires
filtered         the rule's conditions do not match the target
sampled_out      not drawn
no_output        there is no output to judge
no_context       there is no context to judge the output against
loop             it is one of Magistrate's own traces
queued           to be judged
retrying         to be judged again after a failure that may be temporary
budget_deferred  to be judged in the next hour or day: the budget of this one is spent
judged           the last judge gave a verdict
abstained        the last judge abstained
failed           the judge cannot judge it, or the trace cannot be read
shed             the queue was longer than the rule allows
expired          it waited longer than the rule allows
superseded       replaced by the decision for a later revision of the target or version of the rule
===============  ==========================================================================================

Each pair of target and rule has exactly one decision that is not superseded. Only the rule's own limits
(`keep`, `most_queued`) drop a target that waits to be judged. A spent budget defers it. A temporary failure
is retried without end, with pauses of up to about an hour. A decision fails for good after `ATTEMPTS`
failures of another kind, or when several workers in a row died while they worked on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from magistrate._text import shorten_inside
from magistrate.judges.base import JudgeInfo
from magistrate.judges.cascade import PASSED_ON
from magistrate.runs.execute import engine_failed
from magistrate.store.decisions import Draft, Hour, Spent, TargetRecord
from magistrate.types import Abstention, Failure, Outcome, Usage, Verdict
from magistrate.watch.results import SERVICE
from magistrate.watch.rules import ENVIRONMENT, BudgetPart, Rule
from magistrate.watch.sampling import is_drawn, share

SERVICE_KEY = "resource.service.name"
PASSING = ("rate_limited", "timeout", "cancelled")
ATTEMPTS = 3  # for failures that do not look temporary
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 3600.0
REASON = 300  # characters


# --- the first decision ---------------------------------------------------------------------------


def first(
    rule: Rule, version: int, target: TargetRecord, now: datetime, ready_at: datetime, note: str = ""
) -> Draft:
    """Return a rule's first decision about a target. `note` is the reason if the target is queued."""
    state, reason = "queued", note
    due_at: datetime | None = now
    inclusion: float | None = rule.sample.rate
    if target.attributes.get(SERVICE_KEY) == SERVICE:
        state, reason, due_at, inclusion = "loop", f"{SERVICE_KEY} is {SERVICE}", None, None
    elif ready_at > now:
        state, reason, due_at, inclusion = "waiting", f"not quiet for {rule.quiet:g} seconds", ready_at, None
    elif told := why_not(rule, target.attributes):
        state, reason, due_at, inclusion = "filtered", told, None, None
    elif target.sample is None:
        state, reason, due_at, inclusion = target.missing or "no_output", target.why, None, None
    elif not is_drawn(rule.sample.rate, target.trace_id, rule.sample.cohort):
        state, reason, due_at = "sampled_out", "", None
    return Draft(
        rule=rule.name,
        version=version,
        state=state,
        reason=shorten_inside(reason, REASON),
        inclusion=inclusion,
        due_at=due_at,
    )


def why_not(rule: Rule, attributes: Mapping[str, Any]) -> str | None:
    """Return why a rule does not match a target with these attributes, or None if it does."""
    if rule.environment is not None:
        said = [attributes.get(f"{at}{name}") for name in ENVIRONMENT for at in ("resource.", "")]
        if rule.environment not in said:
            return f"environment: it is not {rule.environment!r}"
    for name, condition in rule.where.items():
        if told := condition.why_not(attributes, name):
            return f"{name}: {told}"
    return None


# --- the next judge -------------------------------------------------------------------------------


def next_judge(rule: Rule, asked: Sequence[Mapping[str, Any]], trace_id: str) -> float | None:
    """Return the probability with which the next judge is called, or None if no judge is called.

    `asked` contains the results of the judges before it, in the format of `answer`.
    """
    if not asked:
        return 1.0
    if len(asked) == len(rule.judges):
        return None
    part, last = rule.judges[len(asked)], asked[-1]
    if last["kind"] == "abstention":
        return 1.0 if last["code"] in PASSED_ON else None
    low, high = part.band
    if low <= last["score"] <= high:
        return 1.0
    floor = part.floor or 0.0
    return floor if is_drawn(floor, trace_id, rule.sample.cohort, str(len(asked))) else None


def answer(outcome: Verdict | Abstention, info: JudgeInfo, inclusion: float) -> dict[str, Any]:
    """Convert a judge's result for storage in a decision. A score of 1 always means hallucinated."""
    told: dict[str, Any] = {"judge": outcome.judge, "inclusion": inclusion}
    if isinstance(outcome, Abstention):
        return told | {"kind": "abstention", "code": outcome.reason}
    score = 1 - outcome.score if info.direction == "maximize" else outcome.score
    return told | {"kind": "verdict", "label": outcome.label, "score": score}


def ended(asked: Sequence[Mapping[str, Any]]) -> str:
    """Return the final state of a decision after its last judge."""
    return "judged" if asked[-1]["kind"] == "verdict" else "abstained"


# --- failures -------------------------------------------------------------------------------------


def passes(failure: Failure) -> bool:
    """Return whether the failure may be temporary: the engine failed, not the judge."""
    return failure.code in PASSING or (failure.code == "engine_error" and engine_failed(failure))


def after_failure(failure: Failure, attempts: int, target: str, now: datetime) -> tuple[str, datetime | None]:
    """Return the state after a failure at this attempt, and when to retry."""
    if not passes(failure) and attempts >= ATTEMPTS:
        return "failed", None
    return "retrying", now + pause(attempts, target)


def pause(attempts: int, target: str) -> timedelta:
    """Return the wait before the next attempt: exponential backoff with jitter derived from the target."""
    seconds = min(FIRST_PAUSE * 2 ** min(attempts - 1, 20), LONGEST_PAUSE)
    return timedelta(seconds=seconds * (0.75 + 0.5 * share(target, "pause", str(attempts))))


def told(outcome: Outcome) -> str:
    """Return why an outcome is not a verdict, shortened for the decision."""
    return "" if isinstance(outcome, Verdict) else shorten_inside(str(outcome), REASON)


# --- budget ---------------------------------------------------------------------------------------


def spent(usage: Usage, dollars: float | None) -> Spent:
    """Return what an outcome has spent. Cached answers cost nothing and are not counted."""
    return Spent(calls=usage.calls, tokens=usage.prompt + usage.generated, dollars=dollars)


def room(budget: BudgetPart, hours: Sequence[Hour], under_way: int, now: datetime, most: int) -> int:
    """Return how many more targets may start, at most `most`.

    Each target is assumed to cost as much as the most expensive one of the last week. Until a cost is
    known, targets start one at a time. One target may always start in a window in which nothing was spent,
    because a budget smaller than one target would otherwise defer it forever.
    """
    free = most
    for limit, used, dearest, _, _ in _windows(budget, hours, now):
        fitting = int((limit - used) // dearest) if dearest else int(used < limit)
        free = min(free, max(fitting, int(used == 0)) - under_way)
    return max(free, 0)


def exhausted(budget: BudgetPart, hours: Sequence[Hour], now: datetime) -> tuple[datetime, str] | None:
    """Return when the budget resets and what is spent of it, or None while one more target fits."""
    found = [
        (until, f"{used:,.10g} of {limit:,.10g} {name} have been spent")
        for limit, used, dearest, until, name in _windows(budget, hours, now)
        if used and used + dearest > limit
    ]
    return max(found, default=None)


def _windows(
    budget: BudgetPart, hours: Sequence[Hour], now: datetime
) -> Iterable[tuple[float, float, float, datetime, str]]:
    """Yield each limit, the amount spent, the most one target cost, the end of its window, and its name."""
    hour = now.replace(minute=0, second=0, microsecond=0)
    day = hour.replace(hour=0)
    windows = (
        (budget.hour, hour, hour + timedelta(hours=1), "this hour"),
        (budget.day, day, day + timedelta(days=1), "this day"),
    )
    for amount, begin, end, when in windows:
        for measure in ("calls", "tokens", "dollars"):
            limit = getattr(amount, measure)
            if limit is not None:
                used = sum(getattr(each.spent, measure) for each in hours if begin <= each.at < end)
                dearest = max((getattr(each.most, measure) for each in hours), default=0)
                yield limit, used, dearest, end, f"{measure} of {when}"
