"""Outcomes as a page lists them: which ones, a line for each, and what it opens to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from magistrate._text import shorten
from magistrate.report.formatting import decimal, duration, without_heat
from magistrate.report.html.marking import HeatMap, Mark, heat_map, marked
from magistrate.types import FAITHFUL, HALLUCINATED, Abstention, Claim, Failure, Outcome, Sample, Verdict

KNOWN = (FAITHFUL, HALLUCINATED)
KINDS = ("wrong", "failed", "abstained", HALLUCINATED, "other")
TOLD = {
    "wrong": "wrong verdicts",
    "failed": "failures",
    "abstained": "abstentions",
    HALLUCINATED: "other verdicts that say hallucinated",
    "other": "other verdicts",
}


@dataclass(frozen=True, slots=True)
class Listed:
    """The outcomes that are listed, in the order they came, and of each kind in `KINDS` how many there are
    and how many are left out.
    """

    outcomes: tuple[Outcome, ...]
    n: int
    left_out: Mapping[str, int]

    @property
    def words(self) -> str | None:
        """What is left out, None where nothing is."""
        missing = [f"{n:,} {TOLD[kind]}" for kind, n in self.left_out.items() if n]
        if not missing:
            return None
        return (
            f"{len(self.outcomes):,} of {self.n:,} outcomes are listed, wrong ones, failures and abstentions "
            f"first; left out: {', '.join(missing)}. The figures above are over all of them."
        )


def listed(samples: Mapping[str, Sample], outcomes: Iterable[Outcome], most: int) -> Listed:
    """At most `most` of the outcomes: by the order of `KINDS`, within a kind the first ones."""
    kept: dict[str, list[tuple[int, Outcome]]] = {kind: [] for kind in KINDS}
    counts = dict.fromkeys(KINDS, 0)
    for at, outcome in enumerate(outcomes):
        kind = _kind(samples[outcome.sample_id], outcome)
        counts[kind] += 1
        if len(kept[kind]) < most:
            kept[kind].append((at, outcome))
    chosen = [pair for kind in KINDS for pair in kept[kind]][:most]
    shown = dict.fromkeys(KINDS, 0)
    for _, outcome in chosen:
        shown[_kind(samples[outcome.sample_id], outcome)] += 1
    chosen.sort(key=lambda pair: pair[0])
    left_out = {kind: counts[kind] - shown[kind] for kind in KINDS}
    return Listed(tuple(outcome for _, outcome in chosen), sum(counts.values()), left_out)


def is_right(sample: Sample, outcome: Outcome) -> bool | None:
    """Whether a verdict says what a person said; None where one of them said neither word."""
    if not isinstance(outcome, Verdict) or outcome.label not in KNOWN or sample.label not in KNOWN:
        return None
    return outcome.label == sample.label


def _kind(sample: Sample, outcome: Outcome) -> str:
    if not isinstance(outcome, Verdict):
        return "failed" if isinstance(outcome, Failure) else "abstained"
    if is_right(sample, outcome) is False:
        return "wrong"
    return HALLUCINATED if outcome.label == HALLUCINATED else "other"


# --- an outcome as a row --------------------------------------------------------------------------


EXCERPT = 160
LONGEST_DATA = 10_000  # characters of metadata and of details


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A claim in words; `place` says which text of the context it quotes."""

    number: int
    kind: str
    output: str
    context: str | None
    place: str | None
    probability: str | None
    reasoning: str


@dataclass(frozen=True, slots=True)
class Text:
    """A text with its marks, under a title."""

    title: str
    body: Markup


@dataclass(frozen=True, slots=True)
class Row:
    """What a page says of one outcome.

    `judged` is the verdict's label, or `failed` or `abstained` with `code`. `right` is `right`, `wrong` or
    empty where nothing can be said. Texts are as they came, except those that are `Markup`.
    """

    id: str
    judge: str
    judged: str
    code: str | None
    gold: str | None
    right: str
    score: float | None
    facts: tuple[tuple[str, str], ...]
    excerpt: str
    said: str | None
    said_title: str
    claims: tuple[ClaimRow, ...]
    asked: tuple[Text, ...]
    heat: HeatMap | None
    output: Text
    sources: tuple[Text, ...]
    data: tuple[tuple[str, str], ...]
    has_gold_spans: bool


def row_of(sample: Sample, outcome: Outcome) -> Row:
    """Everything about `outcome` but its engine calls."""
    verdict = outcome if isinstance(outcome, Verdict) else None
    numbered = [*enumerate(verdict.claims, 1)] if verdict else []
    right = is_right(sample, outcome)
    what = said_of(outcome)
    return Row(
        id=sample.id,
        judge=outcome.judge,
        judged=what.judged,
        code=what.code,
        gold=sample.label,
        right="" if right is None else "right" if right else "wrong",
        score=verdict.score if verdict else None,
        facts=tuple(facts_of(outcome)),
        excerpt=shorten((sample.output or "")[: 20 * EXCERPT], EXCERPT),
        said=what.words,
        said_title=what.title,
        claims=tuple(claim_row(number, claim, sample) for number, claim in numbered),
        asked=tuple(_asked(sample)),
        heat=heat_map(sample, verdict),
        output=Text("Output", _output(sample, numbered)),
        sources=tuple(_sources(sample, numbered)),
        data=tuple(_data(sample, verdict)),
        has_gold_spans=bool(sample.spans),
    )


@dataclass(frozen=True, slots=True)
class Said:
    """The label, or `failed` or `abstained` with its code, and the words that go with it under a title."""

    judged: str
    code: str | None
    words: str | None
    title: str


def said_of(outcome: Outcome) -> Said:
    """What an outcome says, in words."""
    match outcome:
        case Verdict():
            flipped = outcome.explanation_agrees is False
            title = "Explanation, which leads to another label" if flipped else "Explanation"
            return Said(outcome.label, None, outcome.explanation or None, title)
        case Failure():
            return Said("failed", outcome.code, outcome.message, "Why it failed")
        case Abstention():
            return Said("abstained", outcome.reason, outcome.message, "Why it abstained")


def facts_of(outcome: Outcome) -> list[tuple[str, str]]:
    """Figures of an outcome by their names, in words."""
    facts = []
    if isinstance(outcome, Verdict):
        facts += [("score", f"{outcome.score:.3f}")]
        if outcome.probability is not None:
            facts += [("probability", f"{outcome.probability:.3f}")]
        if outcome.mass is not None:
            facts += [("mass", decimal(outcome.mass))]
    usage = outcome.usage
    facts += [("time", duration(outcome.seconds))]
    facts += [("tokens", f"{usage.prompt:,} read, {usage.generated:,} written")]
    return facts


def claim_row(number: int, claim: Claim, sample: Sample) -> ClaimRow:
    """The claim that is the `number`th of a verdict on `sample`."""
    return ClaimRow(
        number=number,
        kind=claim.kind,
        output=claim.output_text or (sample.output or "")[claim.output_quote.start : claim.output_quote.end],
        context=claim.context_text,
        place=None if claim.context_index is None else source_title(sample, claim.context_index).lower(),
        probability=None if claim.probability is None else decimal(claim.probability),
        reasoning=claim.reasoning,
    )


def output_marks(sample: Sample, numbered: Iterable[tuple[int, Claim]]) -> list[Mark]:
    """What claims, each with its number, and people mark in the output."""
    marks = [
        Mark(c.output_quote.start, c.output_quote.end, c.kind, f"claim {n}: {c.kind}", n) for n, c in numbered
    ]
    return [*marks, *(Mark(s.start, s.end, "gold", f"marked by people: {s.kind}") for s in sample.spans)]


def source_marks(sample: Sample, numbered: Iterable[tuple[int, Claim]]) -> list[list[Mark]]:
    """What claims, each with its number, mark in each of `Sample.sources`."""
    marks: list[list[Mark]] = [[] for _ in sample.sources]
    for n, claim in numbered:
        quote, at = claim.context_quote, claim.context_index
        if quote is not None and at is not None and 0 <= at < len(marks):
            marks[at].append(Mark(quote.start, quote.end, claim.kind, f"claim {n}: {claim.kind}", n))
    return marks


def source_title(sample: Sample, index: int) -> str:
    """What the text of this index in `Sample.sources` is called."""
    n = len(sample.context)
    if index >= n:
        turn = sample.messages[index - n].role if index - n < len(sample.messages) else "?"
        return f"Message {index - n + 1}, {turn}"
    return "Context" if n == 1 else f"Context {index + 1}"


def _output(sample: Sample, numbered: Sequence[tuple[int, Claim]]) -> Markup:
    if sample.output is None:
        return Markup('<span class="gap">not produced yet</span>')
    return marked(sample.output, output_marks(sample, numbered))


def _sources(sample: Sample, numbered: Sequence[tuple[int, Claim]]) -> list[Text]:
    """All that the output may rely on, in the order of `Sample.sources`."""
    marks = source_marks(sample, numbered)
    return [Text(source_title(sample, at), marked(text, marks[at])) for at, text in enumerate(sample.sources)]


def _asked(sample: Sample) -> list[Text]:
    named = (("Input", sample.input), ("Expected", sample.expected))
    return [Text(title, marked(text, ())) for title, text in named if text is not None]


def _data(sample: Sample, verdict: Verdict | None) -> list[tuple[str, str]]:
    named = (("Metadata", sample.metadata), ("Details", without_heat(verdict.details) if verdict else {}))
    return [(title, json_text(values)) for title, values in named if values]


def json_text(values: Mapping[str, object], longest: int = LONGEST_DATA) -> str:
    """Plain values as JSON for people, cut where it is longer."""
    text = json.dumps(dict(values), ensure_ascii=False, indent=2, default=str)
    cut = len(text) - longest
    return text if cut <= 0 else f"{text[:longest]}\n… {cut:,} characters are left out here …"
