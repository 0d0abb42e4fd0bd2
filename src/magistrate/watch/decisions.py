"""What a rule decides of a target, and what becomes of it: pure functions over values of the store.

===============  ==========================================================================================
waiting          the trace may still change: it is not quiet for as long as the rule wants
filtered         the rule is not about such targets
sampled_out      not drawn
no_output        there is nothing to judge
no_context       there is nothing to judge it by
loop             it is one of Magistrate's own traces
queued           to be judged
retrying         to be judged again: something failed that may pass
budget_deferred  to be judged in the next hour or day: the budget of this one is spent
judged           the last judge gave a verdict
abstained        the last judge declined
failed           the judge cannot judge it, or the trace cannot be read
shed             more waited to be judged than the rule allows
expired          it waited longer than the rule allows
superseded       a later revision of the target or version of the rule was decided in its place
===============  ==========================================================================================

Of each target and rule one decision is not superseded. Nothing but the rule itself (`keep`, `most_queued`)
ends what waits to be judged: a budget puts off, and a failure that may pass is tried again for ever, at
most once an hour. Only what several workers in a row did not survive has failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from magistrate._text import shorten_inside
from magistrate.judges.base import JudgeInfo
from magistrate.judges.cascade import PASSED_ON
from magistrate.runs.execute import engine_failed
from magistrate.store.traces import Draft, Hour, Spent, TargetRecord
from magistrate.types import Abstention, Failure, Outcome, Usage, Verdict
from magistrate.watch.results import SERVICE
from magistrate.watch.rules import ENVIRONMENT, BudgetPart, Rule
from magistrate.watch.sampling import is_drawn, share

SERVICE_KEY = "resource.service.name"
PASSING = ("rate_limited", "timeout", "cancelled")
ATTEMPTS = 3  # of what fails in a way that does not pass by itself
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 3600.0
REASON = 300  # characters


# --- before any judge is asked --------------------------------------------------------------------


def first(
    rule: Rule, version: int, target: TargetRecord, now: datetime, ready_at: datetime, note: str = ""
) -> Draft:
    """What a rule decides of a target; `note` is the reason where it takes it."""
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
    """Why a rule is not about a target with these attributes, in words of the rule; None where it is."""
    if rule.environment is not None:
        said = [attributes.get(f"{at}{name}") for name in ENVIRONMENT for at in ("resource.", "")]
        if rule.environment not in said:
            return f"environment: it is not {rule.environment!r}"
    for name, condition in rule.where.items():
        if told := condition.why_not(attributes, name):
            return f"{name}: {told}"
    return None


# --- which judge is next --------------------------------------------------------------------------


def next_judge(rule: Rule, asked: Sequence[Mapping[str, Any]], trace_id: str) -> float | None:
    """The probability with which the next judge is asked, where it is asked; else None.

    `asked` is what the judges before it said, as `answer` has it.
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
    """What a judge said, as decisions keep it: a score of 1 means hallucinated, whatever the judge's own."""
    told: dict[str, Any] = {"judge": outcome.judge, "inclusion": inclusion}
    if isinstance(outcome, Abstention):
        return told | {"kind": "abstention", "code": outcome.reason}
    score = 1 - outcome.score if info.direction == "maximize" else outcome.score
    return told | {"kind": "verdict", "label": outcome.label, "score": score}


def ended(asked: Sequence[Mapping[str, Any]]) -> str:
    """The state of a decision whose last judge has spoken."""
    return "judged" if asked[-1]["kind"] == "verdict" else "abstained"


# --- what failed ----------------------------------------------------------------------------------


def passes(failure: Failure) -> bool:
    """Whether the same question may be answered later: the engine failed, and not the judge."""
    return failure.code in PASSING or (failure.code == "engine_error" and engine_failed(failure))


def after_failure(failure: Failure, attempts: int, target: str, now: datetime) -> tuple[str, datetime | None]:
    """The state after a failure at this attempt, and when it is tried again."""
    if not passes(failure) and attempts >= ATTEMPTS:
        return "failed", None
    return "retrying", now + pause(attempts, target)


def pause(attempts: int, target: str) -> timedelta:
    """How long to wait before the next attempt: twice as long each time, and not all targets alike."""
    seconds = min(FIRST_PAUSE * 2 ** min(attempts - 1, 20), LONGEST_PAUSE)
    return timedelta(seconds=seconds * (0.75 + 0.5 * share(target, "pause", str(attempts))))


def told(outcome: Outcome) -> str:
    """Why an outcome is no verdict, for the decision."""
    return "" if isinstance(outcome, Verdict) else shorten_inside(str(outcome), REASON)


# --- what it costs --------------------------------------------------------------------------------


def spent(usage: Usage, dollars: float | None) -> Spent:
    """What an outcome has spent; what a cache answered costs nothing and is not counted."""
    return Spent(calls=usage.calls, tokens=usage.prompt + usage.generated, dollars=dollars)


def room(budget: BudgetPart, hours: Sequence[Hour], under_way: int, now: datetime, most: int) -> int:
    """How many more targets may begin, at most `most`, if each takes as much as the dearest of the last week.

    Until it is known what one takes, they come one at a time. One may always begin in a window in which
    nothing was spent: a budget of less than one target takes would else put it off for ever.
    """
    free = most
    for limit, used, dearest, _, _ in _windows(budget, hours, now):
        fitting = int((limit - used) // dearest) if dearest else int(used < limit)
        free = min(free, max(fitting, int(used == 0)) - under_way)
    return max(free, 0)


def exhausted(budget: BudgetPart, hours: Sequence[Hour], now: datetime) -> tuple[datetime, str] | None:
    """When the budget is whole again, and what of it is spent; None while one more target fits."""
    found = [
        (until, f"{used:,.10g} of {limit:,.10g} {name} are spent")
        for limit, used, dearest, until, name in _windows(budget, hours, now)
        if used and used + dearest > limit
    ]
    return max(found, default=None)


def _windows(
    budget: BudgetPart, hours: Sequence[Hour], now: datetime
) -> Iterable[tuple[float, float, float, datetime, str]]:
    """Each limit, what is spent of it, the most that one target took, when its window ends, and its name."""
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
