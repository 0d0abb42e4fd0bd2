"""The detector that comes with the package and `novelty`, added up: what is meant and what is said."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.judges.base import JudgeInfo
from magistrate.judges.detector import NOTHING, Detector
from magistrate.judges.novelty import MISSING, Novelty
from magistrate.signals.familiar import strange
from magistrate.stats.calibration import log_odds, sigmoid
from magistrate.stats.prior import EVEN, check_base_rate, shifted_odds
from magistrate.types import FAITHFUL, HALLUCINATED, Abstention, Claim, Outcome, Sample, Span, Verdict

if TYPE_CHECKING:
    from magistrate.detectors.model import Detection

WEIGHTS = Path(__file__).with_name("combined.toml")
ADVICE = "To count words all the same: novelty; to ask a model: faithfulness"


@dataclass(frozen=True, slots=True)
class Weights:
    """Log-odds of *hallucinated* at even chances: `intercept`, and how much of each part's own is added."""

    intercept: float
    detector: float
    novelty: float
    trained_on: frozenset[str]
    digest: str


@cache
def weights(without: str = "") -> Weights:
    """The weights that come with the package; those that were fitted `without` a family of data sets.

    They were fitted by `benchmarks/fit_combined.py`. Raises `SpecError` for a family that all have seen.
    """
    import tomllib

    told = tomllib.loads(WEIGHTS.read_text(encoding="utf-8"))
    if without and without not in told["without"]:
        raise SpecError(f"weights were fitted without {', '.join(told['without'])}; not without {without!r}")
    mine = told["without"][without] if without else told["all"]
    digest = hashlib.sha256(json.dumps(mine, sort_keys=True).encode()).hexdigest()[:12]
    return Weights(
        mine["intercept"], mine["detector"], mine["novelty"], frozenset(mine["trained_on"]), digest
    )


@dataclass(frozen=True)
class Combined:
    """Adds up what the trained detector thinks of the worst sentence and what `novelty` counts.

    The detector compares meaning: who did what, how much, when, whether. `novelty` counts what of the
    wording, the numbers, dates and names the context lacks. The score is the probability that the output is
    hallucinated where a share `base_rate` of such outputs is; from .5 on that is the label. Its claims are
    the detector's, and numbers, dates, names and quotations that are nowhere in the context. It abstains on
    what neither has learnt to read: other languages than English, and program code. `without` a family of
    data sets it has the weights that were fitted to the others.
    """

    base_rate: float = EVEN
    without: str = ""
    name: str = "combined"

    def __post_init__(self) -> None:
        check_base_rate(self.base_rate)
        weights(self.without)

    @cached_property
    def detector(self) -> Detector:
        """The part that compares."""
        return Detector()

    @cached_property
    def novelty(self) -> Novelty:
        """The part that counts."""
        return Novelty(without=self.without)

    @property
    def card(self) -> str:
        """That of the detector."""
        return self.detector.card

    @property
    def info(self) -> JudgeInfo:
        compares, counts, told = self.detector.info, self.novelty.info, weights(self.without)
        return replace(
            compares,
            name=self.name,
            version=1,
            summary="a small trained encoder that compares, and a count of new words; asks no model",
            threshold=EVEN,
            prompt="+".join((told.digest, compares.prompt, counts.prompt)),
            trained_on=compares.trained_on | counts.trained_on | told.trained_on,
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        return await asyncio.to_thread(self.verdict, sample)

    def verdict(self, sample: Sample) -> Outcome:
        """What both say of one sample; where there is nothing to count, what the detector says."""
        if what := strange(sample):
            return Abstention(sample.id, self.name, "uncertain", f"{what}. {ADVICE}")
        found = self.detector.model.detect(sample)
        if found is None:
            return Abstention(sample.id, self.name, "no_output", NOTHING)
        counted = self.novelty.verdict(sample)
        told = weights(self.without)
        added = {"detector": told.detector * log_odds(self.detector.probability(found.logit)), "novelty": 0.0}
        if isinstance(counted, Verdict):
            added["novelty"] = told.novelty * log_odds(counted.score)
        score = sigmoid(shifted_odds(told.intercept + sum(added.values()), self.base_rate))
        wrong = score >= EVEN
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=HALLUCINATED if wrong else FAITHFUL,
            score=score,
            probability=score if wrong else 1 - score,
            claims=tuple(self._claims(sample, found, counted)) if wrong else (),
            details={
                **self.detector.details(sample, found),
                "signals": counted.details["signals"] if isinstance(counted, Verdict) else {},
                "contributions": added,
                "base_rate": self.base_rate,
            },
        )

    def _claims(self, sample: Sample, found: Detection, counted: Outcome) -> list[Claim]:
        """The detector's, and apart from these numbers, dates and names that are nowhere in the context."""
        claims = list(self.detector.claims(sample, found))
        if isinstance(counted, Verdict):
            taken = [each.output_quote for each in claims]
            claims += [
                each
                for each in counted.claims
                if each.reasoning in MISSING
                and not any(_overlap(each.output_quote, other) for other in taken)
            ]
        return sorted(claims, key=lambda each: (each.output_quote.start, each.output_quote.end))


def _overlap(one: Span, other: Span) -> bool:
    return one.start < other.end and other.start < one.end
