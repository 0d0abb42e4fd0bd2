"""The rate of flagged answers over time, estimated from the share of answers that was judged.

An answer judged with probability π represents 1/π answers. The sampling unit is the trace: see
`metrics.prevalence`. A period without verdicts has an undefined rate, not a rate of 0.

This is how often the judge flags, not how often it is right. For that, see `metrics.prevalence`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from magistrate.errors import InputError
from magistrate.metrics.classification import Estimate, fields_of
from magistrate.metrics.prevalence import weighted_share
from magistrate.store import Store
from magistrate.types import HALLUCINATED

OUTSIDE = ("filtered", "no_output", "no_context", "loop", "waiting")
"""States that the rule does not apply to, or not yet; no share is estimated for them."""
UNDRAWN = "sampled_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """The share of answers in `[begin, end)` that one judge flagged.

    `n` answers from `traces` traces have a verdict, and `flagged` of them are flagged. `of` is the number
    of answers that match the rule. `coverage` is the share of the drawn answers that have a verdict, None
    if none was drawn. The others failed, were abstained on, or are still waiting.
    """

    begin: datetime
    end: datetime
    share: Estimate
    n: int
    flagged: int
    traces: int
    of: int
    coverage: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        told = fields_of(self)
        return told | {"begin": self.begin.isoformat(), "end": self.end.isoformat()}


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """One verdict: whether it flags, and the inclusion probability of the answer."""

    trace: str
    flagged: bool
    inclusion: float


def rates(
    store: Store,
    rule: str,
    judge: str,
    *,
    since: datetime,
    until: datetime,
    step: timedelta,
    label: str = HALLUCINATED,
) -> list[Rate]:
    """Return the share of answers with this label per time step, by when the answers were seen."""
    if step <= timedelta(0):
        raise InputError(f"a step must be longer than 0, got {step}")
    rows = store.traces.answers(rule, since, until)
    found, begin = [], since
    while begin < until:
        end = min(begin + step, until)
        inside = [row for row in rows if begin <= row[0] < end]
        found.append(rate_of(begin.astimezone(UTC), end.astimezone(UTC), inside, judge, label))
        begin = end
    return found


def rate_of(
    begin: datetime, end: datetime, rows: Sequence[Any], judge: str, label: str = HALLUCINATED
) -> Rate:
    """Return the share of answers with this label by a judge, from rows of `Traces.answers`."""
    about = [row for row in rows if row[3] not in OUTSIDE]
    drawn = [row for row in about if row[3] != UNDRAWN]
    answers = list(answers_by(drawn, judge, label))
    return Rate(
        begin=begin,
        end=end,
        share=weighted_share(
            [each.flagged for each in answers],
            [each.inclusion for each in answers],
            [each.trace for each in answers],
        ),
        n=len(answers),
        flagged=sum(each.flagged for each in answers),
        traces=len({each.trace for each in answers}),
        of=len(about),
        coverage=_coverage(drawn, judge),
    )


def answers_by(rows: Iterable[Any], judge: str, label: str = HALLUCINATED) -> Iterator[JudgedAnswer]:
    """Yield the verdicts of a judge from rows of `Traces.answers`."""
    for _, trace, _, _, inclusion, asked in rows:
        for said in asked:
            if said["judge"] == judge and said["kind"] == "verdict" and inclusion:
                yield JudgedAnswer(trace, said["label"] == label, inclusion * said["inclusion"])


def _coverage(rows: Sequence[Any], judge: str) -> float | None:
    """Return the share of the answers meant for this judge that have a verdict from it.

    Answers still open count against it, because they may still reach this judge.
    """
    ended = ("judged", "abstained")
    wanted = done = 0
    for _, _, _, state, _, asked in rows:
        mine: Mapping[str, Any] | None = next((each for each in asked if each["judge"] == judge), None)
        if mine is None and state in ended:
            continue  # this judge was not needed
        wanted += 1
        done += mine is not None and mine["kind"] == "verdict"
    return done / wanted if wanted else None
