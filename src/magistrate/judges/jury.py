"""The judge `jury`: several judges on the same sample, combined into one score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.judges.base import (
    LABELS,
    Call,
    Judge,
    JudgeInfo,
    check_binary,
    check_threshold,
    label_of,
    planned_calls,
    probability_of,
)
from magistrate.judges.composite import composite_info, gather_or_cancel, suspicion
from magistrate.judges.outcomes import member_outcome
from magistrate.metrics.jury import Pooling, pooled
from magistrate.types import HALLUCINATED, Abstention, Claim, Failure, Outcome, Sample, Verdict

NO_MEMBERS = "needs members: jury:members=JUDGE+JUDGE+JUDGE; put a judge with options in parentheses"
MOST_MEMBERS = 20


@dataclass(frozen=True)
class Jury:
    """Runs all `members` concurrently and combines their scores by `aggregate`.

    Scores are scores of hallucination: 1 is the worst. At `threshold` and above the label is
    `hallucinated`. `mean`, `median`, `logit` (the mean of log odds), `majority` (the share of members that
    say hallucinated) and `geometric_median` are described in `magistrate.metrics.jury`. `weights` has
    one number per member.

    A member that fails or abstains is left out and counted; it is no vote for either label. If fewer than
    `least` members are left, the jury fails with the code of the first failure, or abstains if no member
    failed. Details hold each member's result (`members`), how many were counted and left out, and `spread`,
    the difference of the highest and lowest score. If the jury says hallucinated, its claims are those of
    the members that do. A probability is given only if all scores are probabilities from engines.

    Raises `SpecError` for judges of anything but faithfulness, members with equal names, and numbers that
    do not fit the members.
    """

    members: tuple[Judge, ...] = ()
    aggregate: Pooling = "mean"
    weights: tuple[float, ...] = ()
    least: int = 2
    threshold: float = 0.5
    name: str = "jury"

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        for judge in self.members:
            check_binary(judge.info, "a jury")
        n, names = len(self.members), [judge.info.name for judge in self.members]
        if self.members and not 2 <= n <= MOST_MEMBERS:
            raise SpecError(f"a jury needs 2 to {MOST_MEMBERS} members, got {n}")
        if len(set(names)) < n:
            raise SpecError(f"members of a jury need different names, got {', '.join(names)}")
        if self.least < 1 or (self.members and self.least > n):
            raise SpecError(f"least must be 1 to the number of members, {n}; got {self.least}")
        if self.weights and (len(self.weights) != n or not all(0 < each < 1e9 for each in self.weights)):
            raise SpecError(
                f"weights must be positive numbers, one for each member ({n}), got {list(self.weights)}"
            )

    @property
    def info(self) -> JudgeInfo:
        if not self.members:
            summary = "combines the scores of several judges; judges without a verdict are left out"
            return JudgeInfo(self.name, summary=summary, labels=LABELS, lacks=NO_MEMBERS)
        infos = [judge.info for judge in self.members]
        names, how = ", ".join(each.name for each in infos), self.aggregate.replace("_", " ")
        info = composite_info(
            infos,
            name=self.name,
            summary=f"{names}: the {how} of them",
            long="members for which a sample is too long are left out",
        )
        # A field that only some members need is not required: the others can judge without it.
        required = tuple(name for name in info.requires if all(name in each.requires for each in infos))
        return replace(info, requires=required, threshold=self.threshold)

    def plan(self, sample: Sample) -> Sequence[Call]:
        """Return the calls of all members; a member whose calls do not fit is left out."""
        return [
            replace(call, optional=True) for judge in self.members for call in planned_calls(judge, sample)
        ]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        if not self.members:
            raise SpecError(f"judge {self.name!r} {NO_MEMBERS}")
        said = await gather_or_cancel(member_outcome(judge, sample, engine) for judge in self.members)
        counted = [at for at, each in enumerate(said) if isinstance(each, Verdict)]
        if len(counted) < self.least:
            return self._too_few(sample, said)
        verdicts = [each for each in said if isinstance(each, Verdict)]
        scores = [suspicion(each, self.members[at].info) for each, at in zip(verdicts, counted, strict=True)]
        votes = [each.label == HALLUCINATED for each in verdicts]
        weights = [self.weights[at] for at in counted] if self.weights else None
        score = pooled(scores, votes, self.aggregate, weights)
        label = label_of(score, self.threshold)
        sure = self.aggregate != "majority" and all(each.probability is not None for each in verdicts)
        heats = [
            each.details["heat"] for each in verdicts if each.label == HALLUCINATED and "heat" in each.details
        ]
        return Verdict(
            sample.id,
            self.name,
            label,
            score,
            probability=probability_of(label, score) if sure else None,
            explanation=_told(said, votes),
            mass=min((each.mass for each in verdicts if each.mass is not None), default=None),
            claims=_claims(verdicts) if label == HALLUCINATED else (),
            details={
                "members": [
                    member_details(each, judge) for each, judge in zip(said, self.members, strict=True)
                ],
                "aggregate": self.aggregate,
                **({"weights": list(self.weights)} if self.weights else {}),
                "least": self.least,
                "counted": len(counted),
                "left_out": len(said) - len(counted),
                "spread": max(scores) - min(scores),
                **({"heat": heats[0]} if heats and label == HALLUCINATED else {}),
            },
        )

    def _too_few(self, sample: Sample, said: Sequence[Outcome]) -> Outcome:
        """Return the failure or abstention of a jury with too few verdicts."""
        silent = [each for each in said if not isinstance(each, Verdict)]
        n = len(said) - len(silent)
        why = "; ".join(f"{each.judge} {each}" for each in silent)
        message = f"{n} of {len(said)} members gave a verdict, but least={self.least}: {why}"
        failed = [each for each in silent if isinstance(each, Failure)]
        if failed:
            return Failure(sample.id, self.name, failed[0].code, message)
        reasons = {each.reason: None for each in silent if isinstance(each, Abstention)}
        return Abstention(
            sample.id, self.name, next(iter(reasons)) if len(reasons) == 1 else "uncertain", message
        )


def member_details(outcome: Outcome, judge: Judge) -> Mapping[str, Any]:
    """Return a member's result as plain JSON values: label and score (1 the worst), or why it has none."""
    match outcome:
        case Verdict():
            return {
                "judge": outcome.judge,
                "label": outcome.label,
                "score": suspicion(outcome, judge.info),
                "explanation": outcome.explanation,
            }
        case Failure():
            return {"judge": outcome.judge, "failed": outcome.code, "message": outcome.message}
        case Abstention():
            return {"judge": outcome.judge, "abstained": outcome.reason, "message": outcome.message}


def _told(said: Sequence[Outcome], votes: Sequence[bool]) -> str:
    """Return the members' votes as one line."""
    words = [
        f"{each.judge} {each.label} ({each.score:.2f})"
        if isinstance(each, Verdict)
        else f"{each.judge} {'failed' if isinstance(each, Failure) else 'abstained'}"
        for each in said
    ]
    return f"{sum(votes)} of {len(votes)} say hallucinated: {', '.join(words)}"


def _claims(verdicts: Sequence[Verdict]) -> tuple[Claim, ...]:
    """Return the claims of the members that say hallucinated, one per place."""
    found: dict[tuple[int, int], Claim] = {}
    for verdict in verdicts:
        for claim in verdict.claims if verdict.label == HALLUCINATED else ():
            if claim.kind != "agreement":
                found.setdefault((claim.output_quote.start, claim.output_quote.end), claim)
    return tuple(found.values())
