"""What speaks for an outcome, ready to be shown: claims, marked texts, figures and data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from magistrate._text import shorten
from magistrate.report.formatting import without_heat
from magistrate.report.html.marking import HeatMap, Mark, blocked, heat_map
from magistrate.report.html.outcomes import (
    Said,
    Text,
    claim_row,
    facts_of,
    json_text,
    output_marks,
    said_of,
    source_marks,
    source_title,
)
from magistrate.types import Claim, Outcome, Sample, Span, Verdict

CLAIMS_AT_ONCE = 200
QUOTE = 300  # characters of a quote in the list; the whole of it is marked where it stands
REASONING = 4_000
HEATED = 30_000  # characters of an output under a heat map
KINDS = ("contradiction", "unsupported", "agreement")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLine:
    """A claim in the list; `in_output` and `in_context` say whether words are marked there."""

    number: int
    kind: str
    output: str
    context: str | None
    place: str | None
    probability: str | None
    reasoning: str
    in_output: bool
    in_context: bool

    @property
    def anchor(self) -> str:
        """The id of what a link to this claim goes to."""
        side = "output" if self.in_output else "context" if self.in_context else "claim"
        return f"{side}-{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A sample beside what one judge made of it; without `said` the judge has not come to it.

    Of `n_claims` those from `first` on are listed and marked; `chosen` is the number of one of them. `kinds`
    are those of all marks that are drawn; `overlap` says whether words are marked by several claims.
    """

    said: Said | None
    facts: tuple[tuple[str, str], ...]
    claims: tuple[ClaimLine, ...]
    n_claims: int
    first: int
    chosen: int | None
    kinds: tuple[str, ...]
    overlap: bool
    asked: tuple[Text, ...]
    output: Text | None
    sources: tuple[Text, ...]
    heat: HeatMap | None
    data: tuple[tuple[str, str], ...]

    @property
    def last(self) -> int:
        """The number of the last claim that is listed."""
        return self.first + len(self.claims) - 1


def evidence_of(sample: Sample, outcome: Outcome | None, claim: int | None = None) -> Evidence:
    """What `outcome` rests on, with the claim of this number chosen, if there is one."""
    verdict = outcome if isinstance(outcome, Verdict) else None
    claims = verdict.claims if verdict else ()
    chosen = claim if claim is not None and 1 <= claim <= len(claims) else None
    start = ((chosen or 1) - 1) // CLAIMS_AT_ONCE * CLAIMS_AT_ONCE
    numbered = [*enumerate(claims[start : start + CLAIMS_AT_ONCE], start + 1)]
    kinds = {each.kind for _, each in numbered}
    marks = output_marks(sample, numbered), *source_marks(sample, numbered)
    return Evidence(
        said=said_of(outcome) if outcome else None,
        facts=tuple(facts_of(outcome)) if outcome else (),
        claims=tuple(_line(number, each, sample) for number, each in numbered),
        n_claims=len(claims),
        first=start + 1,
        chosen=chosen,
        kinds=(*(kind for kind in KINDS if kind in kinds), *(("gold",) if sample.spans else ())),
        overlap=any(map(_overlap, marks)),
        asked=tuple(_asked(sample)),
        output=None if sample.output is None else _text("Output", sample.output, "output", marks[0], chosen),
        sources=tuple(
            _text(source_title(sample, at), text, "context", marks[1 + at], chosen)
            for at, text in enumerate(sample.sources)
        ),
        heat=heat_map(sample, verdict, HEATED),
        data=tuple(_data(sample, verdict)),
    )


def _line(number: int, claim: Claim, sample: Sample) -> ClaimLine:
    row = claim_row(number, claim, sample)
    at, sources = claim.context_index, sample.sources
    beside = sources[at] if at is not None and 0 <= at < len(sources) else None
    return ClaimLine(
        number=number,
        kind=claim.kind,
        output=shorten(row.output[: 4 * QUOTE], QUOTE),
        context=None if row.context is None else shorten(row.context[: 4 * QUOTE], QUOTE),
        place=row.place,
        probability=row.probability,
        reasoning=claim.reasoning if len(claim.reasoning) <= REASONING else claim.reasoning[:REASONING] + "…",
        in_output=_stands(claim.output_quote, sample.output),
        in_context=_stands(claim.context_quote, beside),
    )


def _stands(quote: Span | None, text: str | None) -> bool:
    """Are there words of the text in the quote?"""
    return quote is not None and text is not None and max(quote.start, 0) < min(quote.end, len(text))


def _text(title: str, text: str, side: str, marks: list[Mark], chosen: int | None) -> Text:
    return Text(title, blocked(text, marks, side=side, chosen=chosen))


def _overlap(marks: list[Mark]) -> bool:
    """Do words lie in the quotes of two claims?"""
    places = sorted(
        (mark.start, mark.end) for mark in marks if mark.claim is not None and mark.start < mark.end
    )
    return any(later[0] < earlier[1] for earlier, later in pairwise(places))


def _asked(sample: Sample) -> list[Text]:
    """What belongs to the sample besides its output and what that may rely on."""
    named = [("Input", sample.input), ("Expected", sample.expected)]
    named += [(f"Alternative {at}", text) for at, text in enumerate(sample.alternatives, 1)]
    return [Text(title, blocked(text, ())) for title, text in named if text is not None]


def _data(sample: Sample, verdict: Verdict | None) -> list[tuple[str, str]]:
    details: Mapping[str, object] = without_heat(verdict.details) if verdict else {}
    named = (("Metadata of the sample", sample.metadata), ("Details of the verdict", details))
    return [(title, json_text(values, 100_000)) for title, values in named if values]
