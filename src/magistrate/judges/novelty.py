"""The baseline: what of an output's wording, numbers, dates and names its context lacks, in milliseconds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.features.catalog import read
from magistrate.features.cover import Cover
from magistrate.features.prepared import prepared
from magistrate.features.reading import Reading
from magistrate.features.support import UNSUPPORTED
from magistrate.judges.base import NO_LIMIT, JudgeInfo
from magistrate.metrics.calibration import EVEN, check_base_rate, shifted_odds, sigmoid
from magistrate.types import FAITHFUL, HALLUCINATED, Abstention, Claim, Outcome, Sample, Verdict

WEIGHTS = Path(__file__).with_name("novelty.toml")
POINTED = ("numbers", "dates", "names", "quotations")  # signals whose every span is a claim of its own
SAID_MOST = 3  # reasons in an explanation


@dataclass(frozen=True, slots=True)
class Weights:
    """What each signal's value adds to the log-odds of *hallucinated*, at even chances; none is negative."""

    intercept: float
    of: Mapping[str, float]
    trained_on: frozenset[str]
    digest: str


@cache
def weights(without: str = "") -> Weights:
    """The weights that come with the package; those that were fitted `without` a family of data sets.

    They were fitted by `benchmarks/fit_novelty.py`. Raises `SpecError` for a family that all have seen.
    """
    import tomllib

    told = tomllib.loads(WEIGHTS.read_text(encoding="utf-8"))
    if without and without not in told["without"]:
        raise SpecError(f"weights were fitted without {', '.join(told['without'])}; not without {without!r}")
    mine = told["without"][without] if without else told["all"]
    digest = hashlib.sha256(json.dumps(mine, sort_keys=True).encode()).hexdigest()[:12]
    return Weights(mine["intercept"], mine["weights"], frozenset(mine["trained_on"]), digest)


@dataclass(frozen=True)
class Novelty:
    """Adds up a few text signals of what the output says and the context does not. Asks no model.

    The score is the probability that the output is hallucinated where a share `base_rate` of such outputs
    is; from .5 on that is the label. Set it to what you expect: of answers over retrieved text often .2. What
    changes few words is not seen by it; a fluent contradiction in the context's own words passes.
    It abstains without a context, and where nothing is said that could be looked up. `without` a family of
    data sets it has the weights that were fitted to the others: so it can be measured on that family.
    """

    base_rate: float = EVEN
    without: str = ""
    name: str = "novelty"

    def __post_init__(self) -> None:
        check_base_rate(self.base_rate)
        weights(self.without)

    @property
    def info(self) -> JudgeInfo:
        return JudgeInfo(
            name=self.name,
            version=1,
            summary="what of the output's wording, numbers, dates and names the context lacks; asks no model",
            labels=(FAITHFUL, HALLUCINATED),
            direction="minimize",
            threshold=EVEN,
            reads=("context", "messages", "input", "output"),
            requires=("output", "context"),
            kind="code",
            long=NO_LIMIT,
            prompt=weights(self.without).digest,
            trained_on=weights(self.without).trained_on,
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        told = weights(self.without)
        cut = prepared(sample)
        found = read(cut, [*told.of, "quotations"])
        if found["sentence_support"].value is None:
            return Abstention(
                sample.id, self.name, "uncertain", f"nothing to look up: {found['sentence_support'].reason}"
            )
        added = {name: weight * (found[name].value or 0.0) for name, weight in told.of.items()}
        odds = shifted_odds(told.intercept + sum(added.values()), self.base_rate)
        score = sigmoid(odds)
        label = HALLUCINATED if score >= EVEN else FAITHFUL
        claims = _claims(cut.output.text, found, cut.covers) if label == HALLUCINATED else ()
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=label,
            score=score,
            probability=score if label == HALLUCINATED else 1 - score,
            explanation=_explained(label, found, added),
            claims=claims,
            details={
                "signals": {name: reading.value for name, reading in found.items()},
                "contributions": added,
                "base_rate": self.base_rate,
                "heat": _heat(cut.output.text, cut.covers),
            },
        )


def _explained(label: str, found: Mapping[str, Reading], added: Mapping[str, float]) -> str:
    """What weighs most first, in words."""
    weighty = sorted(added, key=lambda name: -added[name])
    reasons = [found[name].reason for name in weighty if added[name] > 0 and found[name].reason][:SAID_MOST]
    if label == HALLUCINATED:
        return "; ".join(reasons) or "much of its wording is not in the context"
    if not reasons:
        return "its wording, numbers and names are all in the context"
    return f"too little to call it hallucinated: {'; '.join(reasons)}"


def _claims(text: str, found: Mapping[str, Reading], covers: tuple[Cover, ...]) -> tuple[Claim, ...]:
    """Numbers, dates, names and quotations that are not there, and sentences that no passage supports.

    Where there are none of these, the sentence that is supported least.
    """
    claims = [
        Claim(
            "unsupported",
            span,
            reasoning=f"{what} is not in the context",
            output_text=text[span.start : span.end],
        )
        for name in POINTED
        for span in found[name].spans
        for what in (f"this {name.removesuffix('s')}",)
    ]
    weak = [each for each in covers if each.lack > UNSUPPORTED]
    if not claims and not weak:
        weak = [max(covers, key=lambda each: each.lack)]
    claims += [
        Claim(
            "unsupported",
            each.span,
            reasoning=f"no passage of the context holds more than {1 - each.lack:.0%} of its weight",
            output_text=text[each.span.start : each.span.end],
        )
        for each in weak
    ]
    return tuple(sorted(claims, key=lambda claim: (claim.output_quote.start, claim.output_quote.end)))


def _heat(text: str, covers: tuple[Cover, ...]) -> dict[str, object]:
    """How little of each sentence a passage of the context holds, as a heat map."""
    return {
        "name": "held by no one passage",
        "unit": "share of a sentence's words, by weight",
        "low": 0.0,
        "high": 1.0,
        "text": text,
        "pieces": [[each.span.start, each.span.end, round(each.lack, 4)] for each in covers],
    }
