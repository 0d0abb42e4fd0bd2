"""The judge `semantic_entropy`: measures how many different meanings a generator's answers have."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from magistrate.engines.base import Capability, Engine
from magistrate.errors import SpecError
from magistrate.judges.base import LABELS, Call, JudgeInfo, label_of
from magistrate.judges.composite import gather_or_cancel
from magistrate.judges.sampled_answers import (
    NO_ANSWERS,
    YES,
    Draws,
    Given,
    comparing,
    entails,
    question,
    recorded,
)
from magistrate.judges.template import builtin_prompt
from magistrate.types import Abstention, Outcome, Sample, Verdict

LEAST = 2  # answers; the entropy of a single one is always 0


@dataclass(frozen=True)
class SemanticEntropy:
    """Groups answers to the same input by meaning and measures the entropy of the groups.

    See Kuhn and others 2023, arXiv:2302.09664, and Farquhar and others 2024, Nature 630. The answers are
    the sample's `alternatives`; if it has none, `n` are sampled as in `selfcheck`. Two texts mean the same
    if the run's engine finds, with a probability of at least `same`, that each says all that the other
    says. The entropy of the groups' shares is divided by the logarithm of the number of answers: 0 if all
    mean the same, 1 if no two do. The output joins the group with its meaning.

    `score=entropy` is the normalized entropy: it tells whether the generator knows an answer to the
    question. `score=outside` is 1 minus the share of the output's group: it tells something about this
    output. At a score of `threshold`, in (0, 1], and above the label is `hallucinated`. With
    `score=entropy` the judge abstains (`uncertain`) instead of calling an output faithful whose meaning
    none of the answers shares.
    """

    name: str = "semantic_entropy"
    n: int = 5
    score: Literal["entropy", "outside"] = "entropy"
    context: Given = "present"
    generator: Engine | None = None
    temperature: float = 1.0
    max_tokens: int = 96
    seed: int = 0
    same: float = 0.5
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if self.n != 0 and not LEAST <= self.n <= 50:
            raise SpecError(f"n must be {LEAST} to 50, or 0 for recorded alternatives only, got {self.n}")
        if not (0 < self.threshold <= 1 and 0 < self.same < 1):
            raise SpecError(
                f"threshold must be in (0, 1] and same in (0, 1), got {self.threshold} and {self.same}"
            )
        self._draws.check("the generator of semantic entropy")

    @property
    def info(self) -> JudgeInfo:
        needs: set[Capability] = {"choose"}
        needs |= {"generate"} if self.n and self.generator is None else set()
        return JudgeInfo(
            name=self.name,
            version=builtin_prompt("entails").version,
            summary="how many different meanings other answers of the generator have, and whether the output "
            "shares one",
            labels=LABELS,
            threshold=self.threshold,
            reads=("input", "context", "messages", "output", "alternatives"),
            requires=("output", *(() if self.n else ("alternatives",))),
            needs=frozenset(needs),
            prompt=f"{builtin_prompt('answer').digest}+{builtin_prompt('entails').digest}",
            constraint="choice",
        )

    def plan(self, sample: Sample) -> list[Call]:
        """Return the calls that sample the answers, and the longest of the comparisons (all pairs)."""
        given = recorded(sample)
        texts = [*given, sample.output or ""]
        count = len(given) or self.n
        times = count * (count + 1)
        if given:
            first, second = sorted(texts, key=len)[-2:]
            return [Call(question(first, second, sample.input), times=times)]
        compared = comparing(times, texts, sample.input, self.max_tokens)
        return [self._draws.call(sample), compared] if self.n else []

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        answers = recorded(sample)
        own = not answers
        if own and not self._draws.possible(sample):
            return Abstention(sample.id, self.name, "missing_input", NO_ANSWERS)
        if own:
            answers = await self._draws.draw(sample, engine)
        if len(answers) < LEAST:
            message = f"an entropy needs at least {LEAST} answers, got {len(answers)}"
            return Abstention(sample.id, self.name, "uncertain", message)
        groups: list[list[int]] = []
        for number, answer in enumerate(answers):
            at = await self._place(answer, groups, answers, sample, engine)
            if at is None:
                groups.append([number])
            else:
                groups[at].append(number)
        at = await self._place((sample.output or "").strip(), groups, answers, sample, engine)
        return self._verdict(sample, answers, groups, at, own)

    @property
    def _draws(self) -> Draws:
        return Draws(self.n, self.context, self.generator, self.temperature, self.max_tokens, self.seed)

    async def _place(
        self, text: str, groups: list[list[int]], answers: list[str], sample: Sample, engine: Engine
    ) -> int | None:
        """Return the first group whose first answer means the same as `text`, None if there is none."""
        for at, group in enumerate(groups):
            other = answers[group[0]]
            if text == other or await self._alike(text, other, sample, engine):
                return at
        return None

    async def _alike(self, one: str, other: str, sample: Sample, engine: Engine) -> bool:
        pairs = ((one, other), (other, one))
        found = await gather_or_cancel(
            entails(engine, first, second, sample.input) for first, second in pairs
        )
        return all(each.probability(YES) >= self.same for each in found)

    def _verdict(
        self, sample: Sample, answers: list[str], groups: list[list[int]], at: int | None, own: bool
    ) -> Outcome:
        entropy = normalized_entropy([len(group) for group in groups])
        share = 0.0 if at is None else len(groups[at]) / len(answers)
        score = entropy if self.score == "entropy" else 1 - share
        held = (
            "none of them says what the output says"
            if at is None
            else f"{share:.0%} say what the output says"
        )
        meanings = "one meaning" if len(groups) == 1 else f"{len(groups)} meanings"
        explanation = f"{len(answers)} other answers have {meanings}; {held}"
        if at is None and score < self.threshold:
            message = f"{explanation}, so their entropy says nothing about it; see score=outside"
            return Abstention(sample.id, self.name, "uncertain", message)
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=label_of(score, self.threshold),
            score=score,
            explanation=explanation,
            details={
                "signals": {"semantic_entropy": entropy, "outside_share": 1 - share},
                "groups": [[answers[number] for number in group] for group in groups],
                "output_group": at,
                "drawn": own,
            },
        )


def normalized_entropy(counts: list[int]) -> float:
    """Return the entropy of the groups' shares, divided by its maximum for as many members; in [0, 1].

    >>> normalized_entropy([4]), normalized_entropy([1, 1]), round(normalized_entropy([3, 1]), 3)
    (0.0, 1.0, 0.406)
    """
    whole = sum(counts)
    if whole < LEAST:
        return 0.0
    if len(counts) == whole:
        return 1.0
    nats = math.fsum(count / whole * math.log(whole / count) for count in counts)
    return min(max(nats / math.log(whole), 0.0), 1.0)
