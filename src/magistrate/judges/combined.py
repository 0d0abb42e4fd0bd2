"""The judge `combined`: the large detector and `novelty`, their log-odds added up."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from magistrate.engines.base import Engine
from magistrate.judges.base import JudgeInfo
from magistrate.judges.detector import Detector
from magistrate.judges.novelty import Novelty, pointed
from magistrate.judges.verdicts import LABELS, READS, label_of, probability_of
from magistrate.metrics.calibration import EVEN, check_base_rate, shifted_odds, sigmoid
from magistrate.types import HALLUCINATED, Claim, Outcome, Sample, Verdict

WEIGHTS = Path(__file__).with_name("combined.toml")
LEAST_PROBABILITY = 1e-6  # of either judge, so that its log-odds are finite
SAID = {"contradiction": "the context contradicts", "unsupported": "the context does not hold"}


@dataclass(frozen=True, slots=True)
class Weights:
    """The log-odds of *hallucinated* are `intercept + detector * D + novelty * N`, at even chances.

    D and N are the log-odds of the two judges. `digest` tells weights apart.
    """

    intercept: float
    detector: float
    novelty: float
    digest: str


@cache
def weights() -> Weights:
    """The weights that come with the package, fitted by `benchmarks/detector/measure_large.py`."""
    told = tomllib.loads(WEIGHTS.read_text(encoding="utf-8"))["all"]
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]
    return Weights(told["intercept"], told["detector"], told["novelty"], digest)


def log_odds(probability: float) -> float:
    """ln(p / (1 - p)), of a probability that is kept away from 0 and 1."""
    kept = min(max(probability, LEAST_PROBABILITY), 1 - LEAST_PROBABILITY)
    return math.log(kept / (1 - kept))


@dataclass(frozen=True)
class Combined:
    """Compares meaning and counts what is new: adds the log-odds of the large detector and of `novelty`.

    The score is the probability that the output is hallucinated where a share `base_rate` of outputs is; from
    .5 on that is the label. Claims are the sentences that the context contradicts or does not hold, each with
    the passage that speaks against it, and the numbers, dates and names that are nowhere in the context.
    It abstains where the detector does: on other languages than English, and on program code. Needs the large
    detector: `magistrate models pull detector-large`.
    """

    base_rate: float = EVEN
    name: str = "combined"

    def __post_init__(self) -> None:
        check_base_rate(self.base_rate)

    @cached_property
    def detector(self) -> Detector:
        """The one that compares."""
        return Detector(size="large")

    @cached_property
    def novelty(self) -> Novelty:
        """The one that counts."""
        return Novelty()

    @property
    def info(self) -> JudgeInfo:
        detector, novelty = self.detector.info, self.novelty.info
        return JudgeInfo(
            name=self.name,
            summary="a trained encoder that compares meaning, and what of the wording is new; asks no model",
            labels=LABELS,
            direction="minimize",
            threshold=EVEN,
            reads=READS,
            requires=("output", "context"),
            kind="code",
            long=detector.long,
            lacks=detector.lacks,
            prompt=f"{detector.prompt}+{novelty.prompt}+{weights().digest}",
            trained_on=detector.trained_on | novelty.trained_on,
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        compared = await asyncio.to_thread(self.detector.verdict, sample)
        if not isinstance(compared, Verdict):
            return replace(compared, judge=self.name)
        counted = await self.novelty.judge(sample, engine)
        new = counted.score if isinstance(counted, Verdict) else EVEN  # there was nothing to look up
        told = weights()
        odds = told.intercept + told.detector * log_odds(compared.score) + told.novelty * log_odds(new)
        score = sigmoid(shifted_odds(odds, self.base_rate))
        label = label_of(score, EVEN)
        claims = tuple(self._claims(sample, compared)) if label == HALLUCINATED else ()
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=label,
            score=score,
            probability=probability_of(label, score),
            explanation=_explained(label, claims),
            claims=claims,
            details={
                **compared.details,
                "base_rate": self.base_rate,
                "detector": round(compared.score, 4),
                "novelty": round(new, 4),
            },
        )

    def _claims(self, sample: Sample, compared: Verdict) -> list[Claim]:
        """What the detector says of sentences, and which numbers, dates and names outside of these are new.

        Where there is neither, the sentence that the detector finds worst.
        """
        found = list(compared.claims)
        taken = [each.output_quote for each in found]
        for claim in pointed(sample):
            span = claim.output_quote
            if not any(span.start < other.end and other.start < span.end for other in taken):
                found.append(claim)
        return sorted(found or self.detector.worst(sample), key=lambda each: each.output_quote.start)


def _explained(label: str, claims: Sequence[Claim]) -> str:
    """What the claims say, in a sentence."""
    if label != HALLUCINATED:
        return "the context supports what each sentence says"
    return "; ".join(
        f"{what} {count} {'place' if count == 1 else 'places'} of the output"
        for kind, what in SAID.items()
        if (count := sum(claim.kind == kind for claim in claims))
    )
