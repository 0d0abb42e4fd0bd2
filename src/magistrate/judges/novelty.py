"""The judge `novelty`: finds wording, numbers, dates and names of an output that its context lacks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.features.frames import without_frames
from magistrate.features.prepared import Cover, Prepared, Reading, prepared
from magistrate.features.signals import UNSUPPORTED, read
from magistrate.judges.base import (
    LABELS,
    NO_LIMIT,
    READS,
    JudgeInfo,
    heat_map,
    label_of,
    probability_of,
    unsupported,
)
from magistrate.metrics.calibration import EVEN, check_base_rate, shifted_odds, sigmoid
from magistrate.types import HALLUCINATED, Abstention, Claim, Outcome, Sample, Verdict

WEIGHTS = Path(__file__).with_name("novelty.toml")
POINTED = ("numbers", "dates", "names", "quotations")  # signals whose spans each become a claim
ONLY_FRAMES = "the output only says what the context does not tell, or speaks to its reader"
FLIPPED = "this is negated in the output or in the context, not in both"
SAID_MOST = 3  # reasons in an explanation, at most


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each signal adds to the log odds of *hallucinated*, at even odds. None is negative."""

    intercept: float
    of: Mapping[str, float]
    trained_on: frozenset[str]
    digest: str


@cache
def weights(without: str = "") -> Weights:
    """Return the weights of the package; with `without` those fitted without a family of data sets.

    They were fitted by `benchmarks/fit_novelty.py`. Raises `SpecError` for a family that was never left
    out.
    """
    import tomllib

    told = tomllib.loads(WEIGHTS.read_text(encoding="utf-8"))
    if without and without not in told["without"]:
        raise SpecError(
            f"there are weights fitted without {', '.join(told['without'])}, but not without {without!r}"
        )
    mine = told["without"][without] if without else told["all"]
    digest = hashlib.sha256(json.dumps(mine, sort_keys=True).encode()).hexdigest()[:12]
    return Weights(mine["intercept"], mine["weights"], frozenset(mine["trained_on"]), digest)


@dataclass(frozen=True)
class Novelty:
    """Adds up a few text signals for content of the output that is not in the context. Needs no model.

    The score is the probability that the output is hallucinated, if a share `base_rate` of outputs is. At
    .5 and above the label is `hallucinated`. Set `base_rate` to the share you expect: for answers over
    retrieved text it is often .2. It misses changes of few words, and fluent contradictions in the
    context's own words. Abstains without a context, and if the output has nothing to look up, or only says
    that the context does not tell something. `without` names a family of data sets: the weights are then
    those fitted to all other families, to measure the judge on that one.
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
            version=3,
            summary="wording, numbers, dates and names of the output that the context lacks; asks no model",
            labels=LABELS,
            direction="minimize",
            threshold=EVEN,
            reads=READS,
            requires=("output", "context"),
            kind="code",
            long=NO_LIMIT,
            prompt=weights(self.without).digest,
            trained_on=weights(self.without).trained_on,
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        told = weights(self.without)
        cut, worded, found = _read(sample, told.of)
        if found["sentence_support"].value is None:
            why = found["sentence_support"].reason if worded is cut else ONLY_FRAMES
            return Abstention(sample.id, self.name, "uncertain", f"nothing to compare: {why}")
        added = {name: weight * (found[name].value or 0.0) for name, weight in told.of.items()}
        odds = shifted_odds(told.intercept + sum(added.values()), self.base_rate)
        score = sigmoid(odds)
        label = label_of(score, EVEN)
        claims = _claims(cut.output.text, found, worded.covers) if label == HALLUCINATED else ()
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=label,
            score=score,
            probability=probability_of(label, score),
            explanation=_explained(label, found, added),
            claims=claims,
            details={
                "signals": {name: reading.value for name, reading in found.items()},
                "contributions": added,
                "base_rate": self.base_rate,
                "heat": _heat(cut.output.text, worded.covers),
            },
        )


def _read(sample: Sample, names: Iterable[str]) -> tuple[Prepared, Prepared, dict[str, Reading]]:
    """Return the sample split, the same without what is about the context or to the reader, and signals.

    Signals of facts are read of the first, those of wording of the second.
    """
    whole = prepared(sample)
    text = without_frames(whole.output.text)
    worded = whole if text == whole.output.text else prepared(replace(sample, output=text))
    wording = [name for name in names if name not in POINTED]
    return whole, worded, {**read(whole, POINTED), **read(worded, wording)}


def _explained(label: str, found: Mapping[str, Reading], added: Mapping[str, float]) -> str:
    """Return the reasons, those with the most weight first."""
    weighty = sorted(added, key=lambda name: -added[name])
    reasons = [found[name].reason for name in weighty if added[name] > 0 and found[name].reason][:SAID_MOST]
    if label == HALLUCINATED:
        return "; ".join(reasons) or "much of the output's wording is not in the context"
    if not reasons:
        return "all wording, numbers and names of the output are in the context"
    return f"not enough for hallucinated: {'; '.join(reasons)}"


def _claims(text: str, found: Mapping[str, Reading], covers: tuple[Cover, ...]) -> tuple[Claim, ...]:
    """Return claims for facts that are not in the context, and for sentences that no passage supports.

    Facts are numbers, dates, names and quotations, and words that only one side negates. If there are no such
    claims, return one for the least supported sentence.
    """
    claims = _facts(text, found)
    claims += [unsupported(text, span.start, span.end, FLIPPED) for span in found["negations"].spans]
    weak = [each for each in covers if each.lack > UNSUPPORTED]
    if not claims and not weak:
        weak = [max(covers, key=lambda each: each.lack)]
    claims += [
        unsupported(
            text,
            each.span.start,
            each.span.end,
            _missing(each.lack),
        )
        for each in weak
    ]
    return tuple(sorted(claims, key=lambda claim: (claim.output_quote.start, claim.output_quote.end)))


def _missing(lack: float) -> str:
    """Return what no passage has of a sentence that lacks this share.

    >>> _missing(1.0)
    'no passage of the context contains any of its content words'
    >>> _missing(0.75)
    'no passage of the context contains more than 25% of its content words, by weight'
    """
    if lack == 1.0:
        return "no passage of the context contains any of its content words"
    return f"no passage of the context contains more than {1 - lack:.0%} of its content words, by weight"


def facts_not_there(sample: Sample) -> list[Claim]:
    """Return claims for the numbers, dates, names and quotations that are not in the context."""
    cut = prepared(sample)
    return _facts(cut.output.text, read(cut, POINTED))


def _facts(text: str, found: Mapping[str, Reading]) -> list[Claim]:
    return [
        unsupported(text, span.start, span.end, f"this {name.removesuffix('s')} is not in the context")
        for name in POINTED
        for span in found[name].spans
    ]


def _heat(text: str, covers: tuple[Cover, ...]) -> dict[str, object]:
    """Return a heat map of how little of each sentence is in any one passage of the context."""
    pieces = [[each.span.start, each.span.end, round(each.lack, 4)] for each in covers]
    return heat_map("share of a sentence's words that no single passage has", "", text, pieces)
