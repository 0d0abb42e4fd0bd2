"""The judge `likelihood`: how much more probable the output is with the context than without."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.features.likelihoods import Gained, Gains, gains
from magistrate.features.words import STOP
from magistrate.features.words import words as spoken
from magistrate.judges.base import (
    LABELS,
    READS,
    Call,
    JudgeInfo,
    check_threshold,
    heat_map,
    label_of,
    unsupported,
)
from magistrate.judges.composite import gather_or_cancel
from magistrate.judges.template import builtin_prompt, fields_of
from magistrate.types import HALLUCINATED, Claim, Data, Outcome, Prompt, Sample, Verdict

COLDEST, HOTTEST = 0.0, 3.0  # nats a word loses with the context: none, or a factor of twenty
STEEPEST = 700.0  # nats; exp of more overflows a float


@dataclass(frozen=True)
class Likelihood:
    """Measures how probable the output is, with the context and without, and scores the difference.

    With g, the mean over the tokens of log p(token | context) - log p(token) in nats, the score is 1 / (1 +
    exp(g)): .5 if the context changes nothing, .27 if it makes each token e times as probable, above .5 if
    it makes them less probable. It is not a calibrated probability; `magistrate calibrate` makes one. At
    `threshold`, in (0, 1), and above the label is `hallucinated`. Then up to `most` places that the context
    makes least probable become claims: words other than the commonest ones, or sentences with
    `unit=sentences`. `language` is an ISO 639 code. `details["signals"]` holds the measurements,
    `details["heat"]` the loss of each word.
    """

    name: str = "likelihood"
    threshold: float = 0.3
    most: int = 5
    unit: str = "words"
    language: str = "en"

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        if self.most < 1:
            raise SpecError(f"most must be at least 1, got {self.most}")
        if self.unit not in ("words", "sentences"):
            raise SpecError(f"unit must be words or sentences, got {self.unit!r}")

    @property
    def info(self) -> JudgeInfo:
        prompt = builtin_prompt("answer")
        return JudgeInfo(
            name=self.name,
            version=prompt.version,
            summary="two forward passes: how much more probable the context makes each word of the output",
            labels=LABELS,
            threshold=self.threshold,
            reads=READS,
            requires=("context", "output"),
            needs=frozenset({"likelihood"}),
            prompt=prompt.digest,
            constraint="likelihood",
        )

    def plan(self, sample: Sample) -> list[Call]:
        """Return two calls: with the context and without."""
        said = Data(sample.output or "", "output")
        return [Call(prompt.continued(said)) for prompt in prompts(sample)]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        output = sample.output or ""
        first, second = await gather_or_cancel(
            engine.likelihood(prompt, output) for prompt in prompts(sample)
        )
        found = gains(first, second)
        score = 1 / (1 + math.exp(min(max(found.mean, -STEEPEST), STEEPEST)))
        label = label_of(score, self.threshold)
        words = found.words()
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=label,
            score=score,
            explanation=_explained(found),
            claims=self._claims(found, words) if label == HALLUCINATED else (),
            details={"signals": found.signals(), "heat": heat(output, words)},
        )

    def _claims(self, found: Gains, words: Sequence[Gained]) -> tuple[Claim, ...]:
        """Return claims for the places that lose most; if none loses, for the one that gains least."""
        common = STOP.get(self.language, frozenset())
        places = words if self.unit == "words" else found.sentences(self.language)
        telling = [each for each in places if set(spoken(found.text[each.start : each.end])) - common]
        least = sorted(telling or places, key=self._gain)[: self.most]
        chosen = [each for each in least if each.gain < 0] or least[:1]
        return tuple(
            unsupported(found.text, each.start, each.end, self._told(each))
            for each in sorted(chosen, key=lambda each: each.start)
        )

    def _gain(self, place: Gained) -> float:
        """Return a word's total gain, or a sentence's gain per token: totals would favour long sentences."""
        return place.gain if self.unit == "words" else place.mean_gain

    def _told(self, place: Gained) -> str:
        change = self._gain(place)
        what = "it" if self.unit == "words" else "its average token"
        factor = math.exp(min(abs(change), STEEPEST))
        times = f"{factor:.1f}" if factor < 100 else "over 100"
        more = "less probable, by a factor of" if change < 0 else "only more probable by a factor of"
        return f"the context makes {what} {more} {times} ({change:+.2f} nats)"


def prompts(sample: Sample) -> tuple[Prompt, Prompt]:
    """Return the prompts that the output answers: with context and messages, and without them."""
    fields = fields_of(sample, ("context", "messages", "input"))
    template = builtin_prompt("answer")
    return template.prompt(fields), template.prompt({**fields, "context": "", "messages": ()})


def heat(output: str, words: Sequence[Gained]) -> dict[str, object]:
    """Return a heat map of how much each word loses with the context, clipped to the ends of the scale."""
    pieces = [[each.start, each.end, round(min(max(-each.gain, COLDEST), HOTTEST), 3)] for each in words]
    name = "how much less probable the context makes a word"
    return heat_map(name, "nats", output, pieces, low=COLDEST, high=HOTTEST)


def _explained(found: Gains) -> str:
    losing = found.negative_share
    return (
        f"With the context, a token of the output gains {found.mean:.2f} nats on average; {losing:.0%} of "
        "the tokens lose."
    )
