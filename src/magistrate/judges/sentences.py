"""The judge `sentences`: judges an output sentence by sentence, and combines the scores."""

from __future__ import annotations

from dataclasses import dataclass, replace

from magistrate._work import checked
from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.features.splitting import Ranking, passages, sentences
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
    run_judge,
)
from magistrate.judges.composite import Aggregate, aggregated, gather_or_cancel, suspicion
from magistrate.judges.context_slice import ContextSlice
from magistrate.types import (
    FAITHFUL,
    HALLUCINATED,
    Abstention,
    Claim,
    Failure,
    Outcome,
    Sample,
    Span,
    Verdict,
)


@dataclass(frozen=True)
class Sentences:
    """Judges every sentence of the output by `of`, against the context or its most relevant passages.

    `aggregate` combines the sentences' scores: `any`, the highest, since one wrong sentence is enough;
    `all`, the lowest; `mean`; `noisy_or`, which treats them as independent probabilities. At `threshold`,
    in (0, 1), and above the label is `hallucinated`, and each such sentence is a claim with its position.
    `passages` is the number of passages of the context that each sentence is compared with (0: all of it);
    `language` is an ISO 639 code. If one sentence has no verdict, the output has none.
    """

    of: Judge
    name: str = "sentences"
    aggregate: Aggregate = "any"
    threshold: float = 0.5
    passages: int = 0
    language: str = "en"

    def __post_init__(self) -> None:
        check_binary(self.of.info, "sentences")
        check_threshold(self.threshold)
        if self.passages < 0:
            raise SpecError(f"passages must not be negative, got {self.passages}")

    @property
    def info(self) -> JudgeInfo:
        return replace(
            self.of.info,
            name=self.name,
            summary=f"judges each sentence with another judge and combines the scores ({self.aggregate})",
            labels=LABELS,
            direction="minimize",
            threshold=self.threshold,
            calibrated_on=None,
        )

    def plan(self, sample: Sample) -> list[Call]:
        """Return the calls of `of` for every sentence."""
        return [
            call for part in checked(self._parts(sample), 1) for call in planned_calls(self.of, part.reduced)
        ]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        spans = sentences(sample.output or "", self.language)
        parts = self._parts(sample)
        outcomes = await gather_or_cancel(run_judge(self.of, part.reduced, engine) for part in parts)
        verdicts: list[Verdict] = []
        for number, (part, outcome) in enumerate(zip(parts, outcomes, strict=True), 1):
            if isinstance(outcome, Failure | Abstention):
                return replace(outcome, message=f"sentence {number}: {outcome.message}")
            verdict = part.restored(outcome)
            verdicts.append(replace(verdict, score=suspicion(verdict, self.of.info)))
        scores = [verdict.score for verdict in verdicts]
        score = aggregated(scores, self.aggregate)
        label = label_of(score, self.threshold)
        # A rule's verdicts, such as on a sentence copied from the context, are certain and need no
        # probability.
        asked = [each for each in verdicts if each.details.get("method") != "rule"]
        known = bool(asked) and all(each.probability is not None for each in asked)
        real = self.aggregate != "mean" and known
        masses = [verdict.mass for verdict in verdicts if verdict.mass is not None]
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=label,
            score=score,
            probability=probability_of(label, score) if real else None,
            explanation=_explained(verdicts),
            mass=min(masses, default=None),
            claims=tuple(
                claim
                for part, span, each in zip(parts, spans, verdicts, strict=True)
                for claim in _claims(part.sample.output or "", span, each)
            ),
            details={"sentences": [[*span, each.score] for span, each in zip(spans, verdicts, strict=True)]},
        )

    def _parts(self, sample: Sample) -> list[ContextSlice]:
        """Return a sample for each sentence, with the sentence as its output."""
        output = sample.output or ""
        texts = [output[start:end] for start, end in sentences(output, self.language)]
        pieces = passages(sample.context, self.language) if self.passages else []
        if self.passages >= len(pieces):
            return [ContextSlice.whole(replace(sample, output=text)) for text in checked(texts)]
        ranking = Ranking([piece.of(sample.context) for piece in pieces])
        best = [sorted(ranking.order(text)[: self.passages]) for text in checked(texts, 1)]
        return [
            ContextSlice(replace(sample, output=text), tuple(pieces[number] for number in numbers))
            for text, numbers in zip(texts, best, strict=True)
        ]


def _claims(sentence: str, span: tuple[int, int], verdict: Verdict) -> list[Claim]:
    """Return the claims of a sentence's verdict, at positions in the output; without any, the sentence."""
    start, end = span
    if not verdict.claims and verdict.label == FAITHFUL:
        return []
    if not verdict.claims:
        return [
            Claim(
                "unsupported",
                Span(start, end),
                reasoning=verdict.explanation or "",
                probability=verdict.probability,
                output_text=sentence,
            )
        ]
    return [
        replace(
            claim,
            output_quote=replace(
                claim.output_quote,
                start=claim.output_quote.start + start,
                end=claim.output_quote.end + start,
            ),
        )
        for claim in verdict.claims
    ]


def _explained(verdicts: list[Verdict]) -> str | None:
    wrong = [str(number) for number, each in enumerate(verdicts, 1) if each.label == HALLUCINATED]
    if not wrong:
        return None
    return f"of {len(verdicts)} sentences not supported: {', '.join(wrong)}"
