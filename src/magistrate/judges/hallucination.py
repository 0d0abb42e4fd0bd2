"""The judge `hallucination`: in one call the model writes short reasons and a score, under a schema."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from magistrate.constraints import Constraint, constraint
from magistrate.constraints.schema import closed_object
from magistrate.engines.base import Engine, Sampling
from magistrate.errors import SpecError
from magistrate.judges.base import LABELS, READS, Call, JudgeInfo, check_threshold, label_of
from magistrate.judges.template import builtin_prompt, fields_of, written_freely
from magistrate.types import Outcome, Prompt, Sample, Verdict


@dataclass(frozen=True)
class Hallucination:
    """Scores an output in [0, 1] (1 = hallucinated) with one to `most_reasons` reasons.

    `order` says whether the model writes reasons or score first. At a score of `threshold`, in (0, 1], and
    above the label is `hallucinated`. Without a context, or with a blank one, it judges by general
    knowledge. The score is the number that the model wrote. It is not a probability, so the verdict has
    none. With `constrained=false` the model writes freely and its text is parsed as it is; the failure rate
    then shows the value of the constraint.
    """

    name: str = "hallucination"
    order: Literal["reasons_first", "score_first"] = "reasons_first"
    threshold: float = 0.5
    most_reasons: int = 3
    most_characters: int = 160
    constrained: bool = True

    def __post_init__(self) -> None:
        check_threshold(self.threshold, one=True)
        if self.most_reasons < 1 or self.most_characters < 1:
            raise SpecError("most_reasons and most_characters must be at least 1")

    @cached_property
    def constraint(self) -> Constraint:
        """The schema of the model's text."""
        reason = {"type": "string", "minLength": 1, "maxLength": self.most_characters}
        fields = {
            "reasons": {"type": "array", "items": reason, "minItems": 1, "maxItems": self.most_reasons},
            "score": {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.01},
        }
        names = ["reasons", "score"] if self.order == "reasons_first" else ["score", "reasons"]
        return constraint(closed_object({name: fields[name] for name in names}))

    @property
    def info(self) -> JudgeInfo:
        prompt = builtin_prompt("hallucination")
        return JudgeInfo(
            name=self.name,
            version=prompt.version,
            summary="one step: a score in [0, 1] with short reasons, under a schema",
            labels=LABELS,
            threshold=self.threshold,
            reads=READS,
            needs=frozenset({"generate", *({"constraints"} if self.constrained else ())}),
            prompt=prompt.digest,
            constraint=self.constraint.digest,
        )

    def plan(self, sample: Sample) -> list[Call]:
        """Return one generation."""
        return [Call(self._prompt(sample), self._budget)]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        written = await engine.generate(
            self._prompt(sample),
            self.constraint if self.constrained else None,
            sampling=Sampling(max_tokens=self._budget),
        )
        found = written.value if self.constrained else written_freely(written, self.constraint)
        score = float(found["score"])
        reasons = [str(reason) for reason in found["reasons"]]
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=label_of(score, self.threshold),
            score=score,
            explanation="; ".join(reasons) or None,
            details={"reasons": reasons, "steered": written.steered},
        )

    @property
    def _budget(self) -> int:
        """One token per character of the reasons; beyond that the engine steers the text to its end."""
        return self.most_reasons * (self.most_characters + 4) + 32

    def _prompt(self, sample: Sample) -> Prompt:
        return builtin_prompt("hallucination").prompt(fields_of(sample, READS), {"order": self.order})
