"""The judge `candidates`: the model first quotes doubtful statements, then checks each one separately."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from magistrate.constraints import Constraint, Quote, constraint
from magistrate.constraints.quote import Unit, quote_schema, quoted
from magistrate.constraints.schema import closed_object, short_text
from magistrate.engines.base import Engine, Sampling
from magistrate.errors import SpecError
from magistrate.judges.base import LABELS, READS, Call, JudgeInfo, check_threshold
from magistrate.judges.composite import gather_or_cancel
from magistrate.judges.question import Answers, Label, LabelProbabilities, choose_label
from magistrate.judges.template import builtin_prompt, fields_of, written_freely
from magistrate.types import FAITHFUL, HALLUCINATED, Claim, Outcome, Prompt, Sample, Span, Verdict

SUPPORTED = (
    Label(FAITHFUL, 0.0, answers=("Yes",)),
    Label(HALLUCINATED, 1.0, answers=("No",)),
)
REASON = 120  # characters, at most


@dataclass(frozen=True)
class Candidates:
    """Lets the model quote up to `n` doubtful statements, each with a reason, and checks them by `choose`.

    A statement is confirmed if the probability that it is unsupported is at least `threshold`. The first
    confirmed statement decides. With `exhaustive` all are checked and the least supported decides. Without
    a candidate the output is faithful, with a score of 0 and no probability. Every candidate becomes a
    claim: `unsupported` if confirmed, else `agreement`. `order` sets whether the reason or the quote is
    written first, `unit` the unit that quotes consist of. With `constrained=false` the model writes freely,
    and its text is parsed as it is.
    """

    name: str = "candidates"
    n: int = 3
    least: int = 0
    exhaustive: bool = False
    order: Literal["reason_first", "quote_first"] = "reason_first"
    unit: Unit = "words"
    threshold: float = 0.5
    permute: bool = False
    constrained: bool = True

    def __post_init__(self) -> None:
        if not (1 <= self.n <= 20 and 0 <= self.least <= self.n):
            raise SpecError(f"n must be 1 to 20 and least 0 to n, got {self.n} and {self.least}")
        check_threshold(self.threshold)

    @property
    def info(self) -> JudgeInfo:
        prompt = builtin_prompt("candidates")
        return JudgeInfo(
            name=self.name,
            version=prompt.version,
            summary="many steps: quote doubtful statements, then check each one separately",
            labels=LABELS,
            threshold=self.threshold,
            reads=READS,
            requires=("context", "output"),
            needs=frozenset({"generate", "choose", *({"constraints"} if self.constrained else ())}),
            prompt=prompt.digest,
            constraint=self._shape.digest,
        )

    def plan(self, sample: Sample) -> list[Call]:
        """Return the call that lists the statements, and the longest possible check."""
        output = sample.output or ""
        longest = quote_schema("output", self.unit, (output,))["maxLength"]
        times = self.n * (2 if self.permute else 1)
        check = Call(self._prompt(sample, output), extra=8, times=times)
        if len(output) > longest:  # only a quote's length is known; a token covers at least one byte
            widest = max(len(each.encode("utf-8", "replace")) for each in set(output))
            check = Call(self._prompt(sample, "…"), extra=longest * widest, times=times)
        return [Call(self._prompt(sample), self._budget), check]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        output = sample.output or ""
        shape = self._constraint(output).over(output=output)
        written = await engine.generate(
            self._prompt(sample),
            shape if self.constrained else None,
            sampling=Sampling(max_tokens=self._budget),
        )
        found = written.value if self.constrained else written_freely(written, shape)
        reasons: dict[Quote, str] = {}  # small models repeat statements: check each one once
        for each in found["candidates"]:
            reasons.setdefault(quoted(each["quote"], "output", self.unit, (output,)), each["reason"])
        candidates = list(reasons.items())
        details: dict[str, Any] = {"candidates": len(candidates), "steered": written.steered}
        if not candidates:
            return Verdict(
                sample.id,
                self.name,
                FAITHFUL,
                0.0,
                explanation="no doubtful statement was found",
                details=details,
            )
        checked = await self._checked(sample, [quote for quote, _ in candidates], engine)
        scores = [each.probability(HALLUCINATED) for each in checked]
        score = max(scores)
        worst = scores.index(score)
        confirmed = score >= self.threshold
        quote, reason = candidates[worst]
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=HALLUCINATED if confirmed else FAITHFUL,
            score=score,
            probability=None if checked[worst].probabilities is None else score if confirmed else 1 - score,
            explanation=f"“{quote}”: {reason}" if confirmed else "no doubtful statement was confirmed",
            mass=min((each.mass for each in checked if each.mass is not None), default=None),
            claims=tuple(
                self._claim(*candidate, each) for candidate, each in zip(candidates, checked, strict=False)
            ),
            details={**details, "checked": len(checked), "method": checked[worst].method},
        )

    # ------------------------------------------------------------------------------------------------

    @cached_property
    def _shape(self) -> Constraint:
        return self._constraint("")

    def _constraint(self, output: str) -> Constraint:
        fields: dict[str, Any] = {
            "reason": short_text(REASON),
            "quote": quote_schema("output", self.unit, (output,)),
        }
        names = ["reason", "quote"] if self.order == "reason_first" else ["quote", "reason"]
        candidate = closed_object({name: fields[name] for name in names})
        candidates = {"type": "array", "items": candidate, "minItems": self.least, "maxItems": self.n}
        return constraint(closed_object({"candidates": candidates}))

    @property
    def _budget(self) -> int:
        return 96 * self.n + 16

    def _prompt(self, sample: Sample, statement: str = "", answers: Answers | None = None) -> Prompt:
        words = {
            "count": f"{self.least} to {self.n}" if self.least else f"at most {self.n}",
            "none": "" if self.least else ", and none if nothing is doubtful",
            "order": self.order,
            "reply": (answers or Answers(SUPPORTED)).reply(),
        }
        return builtin_prompt("candidates").prompt(
            {**fields_of(sample, READS), "statement": statement}, words
        )

    async def _checked(self, sample: Sample, quotes: list[Quote], engine: Engine) -> list[LabelProbabilities]:
        """Check the candidates in order, up to the one that decides."""

        def check(quote: str) -> Any:
            return choose_label(
                engine, SUPPORTED, lambda answers: self._prompt(sample, quote, answers), permute=self.permute
            )

        if self.exhaustive:
            return await gather_or_cancel(check(quote) for quote in quotes)
        checked: list[LabelProbabilities] = []
        for quote in quotes:
            checked.append(await check(quote))
            if checked[-1].probability(HALLUCINATED) >= self.threshold:
                break
        return checked

    def _claim(self, quote: Quote, reason: str, found: LabelProbabilities) -> Claim:
        confirmed = found.probability(HALLUCINATED) >= self.threshold
        share = (
            None
            if found.probabilities is None
            else found.probability(HALLUCINATED if confirmed else FAITHFUL)
        )
        return Claim(
            kind="unsupported" if confirmed else "agreement",
            output_quote=Span(quote.start, quote.end, "doubtful"),
            reasoning=reason,
            probability=share,
            output_text=str(quote),
        )
