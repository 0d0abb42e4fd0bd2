"""The judge `combined`: what a detector says of the meaning, and `novelty` of the wording."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from magistrate._work import checked
from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.features.prepared import prepared
from magistrate.features.words import strange
from magistrate.judges.base import LABELS, READS, JudgeInfo, label_of, probability_of
from magistrate.judges.detector import NOTHING, SUMMARIES, Detector, Size
from magistrate.judges.novelty import Novelty, facts_not_there
from magistrate.metrics.calibration import EVEN, check_base_rate, joint_odds, log_odds, shifted_odds, sigmoid
from magistrate.types import HALLUCINATED, Abstention, Claim, Outcome, Sample, Verdict

if TYPE_CHECKING:
    from magistrate.detectors.detector import Detection

WEIGHTS = Path(__file__).with_name("combined.toml")
SAID = {"contradiction": "contradicts", "unsupported": "does not support"}
SAID_MOST = 3  # facts in an explanation, at most


@dataclass(frozen=True, slots=True)
class Weights:
    """The log odds that a sentence is not supported: `intercept + detector * D + novelty * N - copied * C`.

    D is its logit from the detector before calibration, N its log odds from `novelty`, both at even odds.
    C is 1 if the sentence stands in the context word for word, else 0.
    """

    intercept: float
    detector: float
    novelty: float
    copied: float
    trained_on: frozenset[str]
    digest: str


@cache
def weights(size: Size, without: str = "") -> Weights:
    """Return the weights for a size of the detector; with `without` those fitted without a family of sets.

    They were fitted by `benchmarks/detector/fit_combined.py`. Raises `SpecError` for a family that was never
    left out.
    """
    import tomllib

    told = tomllib.loads(WEIGHTS.read_text(encoding="utf-8"))[size]
    if without and without not in told["without"]:
        raise SpecError(
            f"there are weights fitted without {', '.join(told['without'])}, but not without {without!r}"
        )
    mine = told["without"][without] if without else told["all"]
    digest = hashlib.sha256(json.dumps(mine, sort_keys=True).encode()).hexdigest()[:12]
    return Weights(
        mine["intercept"],
        mine["detector"],
        mine["novelty"],
        mine["copied"],
        frozenset(mine["trained_on"]),
        digest,
    )


@dataclass(frozen=True)
class Combined:
    """Adds up what a trained detector says of the meaning of each sentence, and `novelty` of its wording.

    A sentence that stands in the context word for word is likelier supported than both say, though not
    certainly: it may answer another question. The score is the probability that the output is hallucinated,
    if a share `base_rate` of outputs is. At .5 and above the label is `hallucinated`. Claims are the
    sentences that the context contradicts or does not contain, and the numbers, dates, names and quotations
    that are nowhere in it. The detector knows English prose only: on other languages and on program code
    `novelty` decides alone, and the explanation says so. `size` selects the detector: the small one is in the
    package, the large one comes by `magistrate models pull detector-large`. `without` names a family of
    data sets: the weights are then those fitted to all other families, to measure the judge on that one.
    """

    size: Size = "small"
    base_rate: float = EVEN
    without: str = ""
    name: str = "combined"

    def __post_init__(self) -> None:
        check_base_rate(self.base_rate)
        weights(self.size, self.without)

    @property
    def novelty(self) -> Novelty:
        """The judge that compares the wording."""
        return Novelty(self.base_rate, self.without)

    @cached_property
    def detector(self) -> Detector:
        """The judge that compares the meaning."""
        return Detector(size=self.size, base_rate=self.base_rate)

    @property
    def info(self) -> JudgeInfo:
        detector, novelty = self.detector.info, self.novelty.info
        told = weights(self.size, self.without)
        return JudgeInfo(
            name=self.name,
            version=7,
            summary=f"{SUMMARIES[self.size]}, and novelty of the wording; asks no model",
            labels=LABELS,
            direction="minimize",
            threshold=EVEN,
            reads=READS,
            requires=("output", "context"),
            kind="code",
            long=detector.long,
            lacks=detector.lacks,
            prompt=f"{detector.prompt}+{novelty.prompt}+{told.digest}",
            trained_on=detector.trained_on | novelty.trained_on | told.trained_on,
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        if what := strange(sample):
            return await self._by_wording(sample, engine, what)
        found = await asyncio.to_thread(self.detector.model.detect, sample)
        if found is None:
            return Abstention(sample.id, self.name, "no_output", NOTHING)
        places = [(each.start, each.end) for each in found.sentences]
        wording, copied = await self.wording(sample, places, engine), self.copied(sample, places)
        odds = self.odds(found, wording, copied)
        score = sigmoid(shifted_odds(joint_odds(odds), self.base_rate))
        label = label_of(score, EVEN)
        shares = [sigmoid(shifted_odds(each, self.base_rate)) for each in odds]
        claims, facts = self._claims(sample, found, shares) if label == HALLUCINATED else ([], [])
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=label,
            score=score,
            probability=probability_of(label, score),
            explanation=_explained(found, claims, facts),
            claims=tuple(sorted((*claims, *facts), key=lambda each: each.output_quote.start)),
            details={
                **self.detector.details(sample, found, shares),
                "novelty": [round(sigmoid(each), 4) for each in wording],
                "copied": copied,
            },
        )

    async def wording(
        self, sample: Sample, sentences: Sequence[tuple[int, int]], engine: Engine
    ) -> list[float]:
        """Return the log odds by novelty of sentences `[start, end)`, at even odds; 0 if it abstains."""
        judge, output = replace(self.novelty, base_rate=EVEN), sample.output or ""
        told = [
            await judge.judge(replace(sample, output=output[start:end]), engine) for start, end in sentences
        ]
        return [log_odds(each.score) if isinstance(each, Verdict) else 0.0 for each in told]

    def copied(self, sample: Sample, sentences: Sequence[tuple[int, int]]) -> list[bool]:
        """Return which sentences `[start, end)` of the output stand in its context word for word."""
        output = sample.output or ""
        return [
            prepared(replace(sample, output=output[start:end])).is_copied
            for start, end in checked(sentences, 16)
        ]

    def odds(self, found: Detection, wording: Sequence[float], copied: Sequence[bool]) -> list[float]:
        """Return the log odds of *not supported* of each sentence, at even odds.

        `wording` are those by novelty, `copied` says which sentences stand in the context word for word.
        """
        told = weights(self.size, self.without)
        return [
            told.intercept + told.detector * each.logit + told.novelty * new - told.copied * copy
            for each, new, copy in zip(found.sentences, wording, copied, strict=True)
        ]

    async def _by_wording(self, sample: Sample, engine: Engine, why: str) -> Outcome:
        """Judge what the detector cannot read, for the reason `why`."""
        counted = await self.novelty.judge(sample, engine)
        if not isinstance(counted, Verdict):
            return replace(counted, judge=self.name)
        reason = f"judged by its wording alone ({why}): {counted.explanation}"
        return replace(
            counted, judge=self.name, explanation=reason, details={**counted.details, "detector": why}
        )

    def _claims(
        self, sample: Sample, found: Detection, shares: Sequence[float]
    ) -> tuple[list[Claim], list[Claim]]:
        """Return claims for sentences, and for the facts outside of them that the context lacks."""
        claims = list(self.detector.claims(sample, found, shares))
        taken = [each.output_quote for each in claims]
        facts = [
            each
            for each in facts_not_there(sample)
            if not any(
                each.output_quote.start < other.end and other.start < each.output_quote.end for other in taken
            )
        ]
        return claims, facts


def _explained(found: Detection, claims: Sequence[Claim], facts: Sequence[Claim]) -> str:
    """Return what the claims say, in a sentence."""
    count, said = len(found.sentences), []
    kinds = {verb: sum(claim.kind == kind for claim in claims) for kind, verb in SAID.items()}
    if told := " and ".join(f"{verb} {of}" for verb, of in kinds.items() if of):
        said.append(f"the context {told} of {count} {'sentence' if count == 1 else 'sentences'}")
    if facts:
        said.append(f"not in the context: {', '.join(each.output_text for each in facts[:SAID_MOST])}")
    return "; ".join(said) or "the context supports what each sentence says"
