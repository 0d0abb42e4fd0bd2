"""One forward pass: the probability that every part of the output is supported by the context."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from magistrate.engines.base import Capability, Choice, Engine, Option, Sampling
from magistrate.errors import SpecError
from magistrate.judges.base import JudgeInfo
from magistrate.judges.template import builtin
from magistrate.types import FAITHFUL, HALLUCINATED, Abstention, Outcome, Prompt, Sample, Trusted, Verdict

if TYPE_CHECKING:
    from magistrate.constraints import Constraint

# Answers of one token: a small model gives the words themselves next to no probability.
OPTIONS = (
    Option(FAITHFUL, ("Yes", "yes", "YES", " Yes", " yes")),
    Option(HALLUCINATED, ("No", "no", "NO", " No", " no")),
)
OPENING = {
    FAITHFUL: "Yes. The whole answer is supported:",
    HALLUCINATED: "No. Not everything in the answer is supported:",
}
EXPLANATION_CHARACTERS = 280


@dataclass(frozen=True)
class Faithfulness:
    """Decides by `choose` whether the output is supported by the context; abstains without one.

    `score` is the probability that it is not. `prior="empty_context"` divides out what the same
    prompt would answer with an empty context. `explain` adds a sentence, opened by the decided
    label, from which the label is then chosen once more: a flip is recorded. `threshold` in (0, 1)
    is the score from which on the label is `hallucinated`. An engine that only names its answer gives
    a score of 0 or 1 and no probability.
    """

    name: str = "faithfulness"
    prior: Literal["none", "empty_context"] = "none"
    explain: bool = False
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise SpecError(f"threshold must be in (0, 1), got {self.threshold}")

    @cached_property
    def constraint(self) -> Constraint:
        """One line of text for the explanation."""
        import re

        from magistrate.constraints import constraint

        return constraint(re.compile(f"[^\\r\\n]{{1,{EXPLANATION_CHARACTERS}}}"))

    @property
    def info(self) -> JudgeInfo:
        prompt = builtin("faithfulness")
        prompts = [prompt, builtin("faithfulness_explanation")] if self.explain else [prompt]
        needs: set[Capability] = {"choose"}
        if self.explain:
            needs |= {"generate", "constraints"}
        if self.prior != "none":
            needs |= {"exact_probability"}  # odds cannot be divided out of a bare answer
        return JudgeInfo(
            name=self.name,
            version=prompt.version,
            summary="one forward pass: the probability that the context supports every part",
            labels=(FAITHFUL, HALLUCINATED),
            direction="minimize",
            reads=("input", "context", "output"),
            needs=frozenset(needs),
            prompt="+".join(each.digest for each in prompts),
            constraint=self.constraint.digest if self.explain else "choice",
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        if not any(text.strip() for text in sample.context):
            return Abstention(
                sample.id,
                self.name,
                "no_context",
                "there is no context to be faithful to; judge it with 'hallucination' instead",
            )
        prompt = self._prompt(sample, sample.context)
        choice = await engine.choose(prompt, OPTIONS)
        score = _probability(choice, HALLUCINATED)
        details: dict[str, object] = {"method": choice.method}
        if self.prior == "empty_context":
            empty = await engine.choose(self._prompt(sample, ("",)), OPTIONS)
            details |= {"raw_score": score, "prior": _probability(empty, HALLUCINATED)}
            score = without_prior(score, _probability(empty, HALLUCINATED))
        label = HALLUCINATED if score >= self.threshold else FAITHFUL
        probability = score if label == HALLUCINATED else 1 - score
        verdict = Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=label,
            score=score,
            probability=None if choice.probabilities is None else probability,
            mass=choice.mass,
            details=details,
        )
        return await self._explained(verdict, prompt, engine) if self.explain else verdict

    def _prompt(self, sample: Sample, context: tuple[str, ...]) -> Prompt:
        return builtin("faithfulness").prompt(context=context, input=sample.input, output=sample.output)

    async def _explained(self, verdict: Verdict, prompt: Prompt, engine: Engine) -> Verdict:
        opening = OPENING[verdict.label]
        generation = await engine.generate(
            prompt.continued(Trusted(opening)), self.constraint, sampling=Sampling(max_tokens=96)
        )
        explanation = generation.text.strip()
        if not explanation:
            return verdict
        again = await engine.choose(
            builtin("faithfulness_explanation").prompt(explanation=explanation), OPTIONS
        )
        return replace(verdict, explanation=explanation, explanation_agrees=again.best == verdict.label)


def without_prior(probability: float, prior: float) -> float:
    """`probability` with the odds that `prior` stands for divided out; both in [0, 1].

    >>> round(without_prior(0.8, 0.5), 3), round(without_prior(0.8, 0.8), 3)
    (0.8, 0.5)
    """
    tiny = 1e-12

    def log_odds(p: float) -> float:
        return math.log(max(p, tiny)) - math.log(max(1 - p, tiny))

    return 1 / (1 + math.exp(log_odds(prior) - log_odds(probability)))


def _probability(choice: Choice, label: str) -> float:
    """The label's probability; an engine that only names a label gives 1 or 0 to it."""
    if choice.probabilities is None:
        return 1.0 if choice.best == label else 0.0
    return choice.probabilities[label]
