"""Which way a judge's scores run, so that whatever ranks by them is given the higher the worse."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from magistrate.types import FAITHFUL, HALLUCINATED, Outcome, Verdict


@dataclass(slots=True)
class Direction:
    """What the verdicts of one judge, added one by one, say of its scores.

    No stored verdict names the direction, but all of them together do.
    """

    _ends: dict[str, tuple[float, float]] = field(default_factory=dict)
    _low: set[bool] = field(default_factory=set)

    def add(self, verdict: Verdict) -> None:
        """Count one verdict; those of other labels than faithful and hallucinated say nothing."""
        label, score = verdict.label, verdict.score
        if label not in (FAITHFUL, HALLUCINATED):
            return
        least, most = self._ends.get(label, (score, score))
        self._ends[label] = min(least, score), max(most, score)
        bad = label == HALLUCINATED
        sure = 1.0 if verdict.probability is None else verdict.probability
        likely = sure if bad else 1 - sure
        self._low.add(abs(score - (1 - likely)) < abs(score - likely))

    @property
    def turned(self) -> bool:
        """Whether a low score means hallucinated.

        Every verdict that says hallucinated then scores below every one that says faithful. Where all say the
        same, each score must be nearer to the probability of faithful than to that of hallucinated; without
        probabilities the label counts as certain.
        """
        if len(self._ends) == 2:
            return self._ends[HALLUCINATED][1] < self._ends[FAITHFUL][0]
        return self._low == {True}


def of_outcomes(outcomes: Iterable[Outcome]) -> bool:
    """Whether a low score means hallucinated by the outcomes of one judge."""
    direction = Direction()
    for each in outcomes:
        if isinstance(each, Verdict):
            direction.add(each)
    return direction.turned
