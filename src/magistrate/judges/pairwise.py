"""The judge `pairwise`: decides which of two answers is better, in both orders."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.judges.base import READS, Call, JudgeInfo
from magistrate.judges.composite import gather_or_cancel
from magistrate.judges.question import Answers, Label, LabelProbabilities, choose_label
from magistrate.judges.template import builtin_prompt, fields_of
from magistrate.types import Abstention, Outcome, Prompt, Sample, Verdict

BETTER, TIE, WORSE = "better", "tie", "worse"
FIRST, SECOND = "first", "second"
FAITHFULNESS = (
    "Faithfulness: the answer is better of which more is supported by the context, statement by statement; "
    "an answer that adds to the context or contradicts it is worse, also where what it adds may be true."
)


@dataclass(frozen=True)
class Pairwise:
    """Decides whether the output is better or worse than `alternatives[0]` by `criteria`, or neither.

    It asks twice, once with each answer first. The score is the probability that the output is better,
    averaged over both orders; a tie counts half. The label is `better` or `worse` only if both orders agree
    on it, otherwise `tie`: a conflict means that the position decided, not the answer. Details hold both
    orders (`orders`), whether they agree (`consistent`) and `first_preferred` in [-1, 1], the mean of how
    much more probable the first answer was than the second. Two answers that are exactly equal tie by rule,
    without a call. `ties=false` does not offer a tie; conflicting orders are still one.
    """

    criteria: str = ""
    ties: bool = True
    name: str = "pairwise"

    def __post_init__(self) -> None:
        if any(line.startswith("===") for line in self.criteria.splitlines()):
            raise SpecError(
                f"criteria must be a text without lines that start with ===, got {self.criteria!r}"
            )
        if "\ue000" in self.criteria:
            raise SpecError("criteria cannot contain the character U+E000")

    @property
    def info(self) -> JudgeInfo:
        prompt = builtin_prompt("pairwise")
        content = repr((prompt.source, self._criteria, self.ties))
        reads = (*READS, "alternatives")
        return JudgeInfo(
            name=self.name,
            version=prompt.version,
            summary="which of two answers is better, asked in both orders; a conflict is a tie",
            labels=(BETTER, TIE, WORSE),
            direction="maximize",
            reads=reads,
            requires=("output", "alternatives") if self.criteria else ("context", "output", "alternatives"),
            needs=frozenset({"choose"}),
            prompt=hashlib.sha256(content.encode()).hexdigest()[:12],
            constraint="choice",
        )

    def plan(self, sample: Sample) -> list[Call]:
        """Return one choice per order; empty if there are not two different answers."""
        if not _other(sample) or _same(sample):
            return []
        return [Call(self._prompt(sample, swapped)) for swapped in (False, True)]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        if not _other(sample):
            return Abstention(sample.id, self.name, "missing_input", "the first alternative is blank")
        if _same(sample):
            because = "both answers are identical"
            return Verdict(sample.id, self.name, TIE, 0.5, explanation=because, details={"method": "rule"})
        straight, swapped = await gather_or_cancel(
            self._asked(sample, engine, turn) for turn in (False, True)
        )
        orders = [_order(straight, "output", FIRST), _order(swapped, "alternative", SECOND)]
        consistent = orders[0]["said"] == orders[1]["said"]
        label = str(orders[0]["said"]) if consistent else TIE
        shares = [each["probabilities"] for each in orders]
        score = sum(each[BETTER] + each[TIE] / 2 for each in shares) / 2
        known = straight.probabilities is not None and swapped.probabilities is not None
        offered = self.ties or label != TIE  # a conflict of two answers has no probability
        told = (
            "both orders agree"
            if consistent
            else "the orders conflict: "
            + ", ".join(f"{each['said']} if the {each['first']} comes first" for each in orders)
        )
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=label,
            score=min(max(score, 0.0), 1.0),
            probability=sum(each["probabilities"][label] for each in orders) / 2
            if known and offered
            else None,
            explanation=told,
            mass=min((each.mass for each in (straight, swapped) if each.mass is not None), default=None),
            details={
                "method": straight.method,
                "consistent": consistent,
                "orders": orders,
                "first_preferred": sum(
                    each.probability(FIRST) - each.probability(SECOND) for each in (straight, swapped)
                )
                / 2,
            },
        )

    @property
    def _criteria(self) -> str:
        return self.criteria or FAITHFULNESS

    @property
    def _labels(self) -> tuple[Label, ...]:
        """The possible answers, with scores for the answer that stands first."""
        both = (Label(FIRST, 1.0, answers=("A",)), Label(SECOND, 0.0, answers=("B",)))
        return (*both, Label(TIE, 0.5, answers=("Tie",))) if self.ties else both

    async def _asked(self, sample: Sample, engine: Engine, swapped: bool) -> LabelProbabilities:
        return await choose_label(engine, self._labels, lambda _: self._prompt(sample, swapped))

    def _prompt(self, sample: Sample, swapped: bool) -> Prompt:
        answers = (_other(sample), sample.output or "") if swapped else (sample.output or "", _other(sample))
        fields = {**fields_of(sample, READS), "first": answers[0], "second": answers[1]}
        words = {"criteria": self._criteria, "reply": Answers(self._labels).reply()}
        return builtin_prompt("pairwise").prompt(fields, words)


def _other(sample: Sample) -> str:
    """Return the answer to compare with, or an empty string if it is blank."""
    found = sample.alternatives[0] if sample.alternatives else ""
    return found if found.strip() else ""


def _same(sample: Sample) -> bool:
    return (sample.output or "").strip() == _other(sample).strip()


def _order(found: LabelProbabilities, first: str, mine: str) -> dict[str, Any]:
    """Return one order's result from the output's point of view; `mine` is the output's position."""
    theirs = SECOND if mine == FIRST else FIRST
    names = {mine: BETTER, theirs: WORSE, TIE: TIE}
    offered = (FIRST, SECOND, TIE) if found.probabilities is None else tuple(found.probabilities)
    shares = {
        names[place]: found.probability(place) if place in offered else 0.0 for place in (mine, TIE, theirs)
    }
    return {"first": first, "said": names[found.best], "probabilities": shares}
