"""How frequent flagged answers are over time, from the share of them that was judged.

An answer that was taken with probability π stands for 1/π answers, and traces are what is drawn: see
`metrics.weighted`. A time without verdicts has no share, which is not a share of 0.

This is how often the judge flags, not how often it is right to: see `metrics.prevalence` for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from magistrate.errors import InputError
from magistrate.metrics.classification import Estimate, fields_of
from magistrate.metrics.weighted import weighted_share
from magistrate.store import Store
from magistrate.types import HALLUCINATED

OUTSIDE = ("filtered", "no_output", "no_context", "loop", "waiting")
"""States of what the rule is not about, or not yet: no share of it is estimated."""
UNDRAWN = "sampled_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """The share of flagged answers in `[begin, end)`, by one judge.

    `n` answers have a verdict, of `traces` traces, and `flagged` of them are flagged. They stand for `of`
    answers that the rule is about, counted. `coverage` is the share of those drawn that have a verdict, None
    where none was drawn: the others failed, were declined, or wait.
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
        """Plain values."""
        told = fields_of(self)
        return told | {"begin": self.begin.isoformat(), "end": self.end.isoformat()}


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """One verdict: whether it flags, and the probability with which it was asked for."""

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
    """The shares of answers that a judge gave this label, by when they were seen, a step after the other."""
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
    """The share of answers in rows of `Traces.answers` that a judge gave this label."""
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
    """The verdicts of a judge among rows of `Traces.answers`."""
    for _, trace, _, _, inclusion, asked in rows:
        for said in asked:
            if said["judge"] == judge and said["kind"] == "verdict" and inclusion:
                yield JudgedAnswer(trace, said["label"] == label, inclusion * said["inclusion"])


def _coverage(rows: Sequence[Any], judge: str) -> float | None:
    """Of what this judge was to be asked about, the share with a verdict of it.

    What is still open may come to be asked about, and counts against it.
    """
    ended = ("judged", "abstained")
    wanted = done = 0
    for _, _, _, state, _, asked in rows:
        mine: Mapping[str, Any] | None = next((each for each in asked if each["judge"] == judge), None)
        if mine is None and state in ended:
            continue  # it was not this one's turn
        wanted += 1
        done += mine is not None and mine["kind"] == "verdict"
    return done / wanted if wanted else None
