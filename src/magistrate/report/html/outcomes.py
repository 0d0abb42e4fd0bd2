"""Render outcomes as HTML: texts with quotes and labelled spans marked, heat maps, and rows of a report.

Long texts are split into blocks, so that a browser lays out only the visible ones.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

from magistrate._text import Heat, seen, shorten
from magistrate.errors import InputError
from magistrate.metrics.spans import characters
from magistrate.report.counts import is_right
from magistrate.report.formatting import decimal, duration, heat_of, without_heat
from magistrate.types import HALLUCINATED, Abstention, Claim, Failure, Outcome, Sample, Verdict

BLOCK_ROWS = 40  # approximate number of screen lines per block
COLUMNS = 80  # approximate number of characters per screen line
LONGEST_LINE = 3 * BLOCK_ROWS * COLUMNS  # longest run of characters without a line end that is not split
JOINING = "\u200d\ufe0e\ufe0f"  # they form one glyph with the preceding character


@dataclass(frozen=True, slots=True)
class Block:
    """Half-open character offsets into a text. It ends at a line end unless `cut`: then the line goes on."""

    start: int
    end: int
    cut: bool = False


def blocks_of(text: str) -> list[Block]:
    """Split the whole of `text` into blocks of about `BLOCK_ROWS` screen lines; a short text is one block."""
    found: list[Block] = []
    start = rows = 0
    for line in _lines(text):
        size = 1 + (line.end - line.start) // COLUMNS
        if rows and rows + size > BLOCK_ROWS:
            found.append(Block(start, line.start))
            start, rows = line.start, 0
        rows += size
        if line.cut:
            found.append(Block(start, line.end, cut=True))
            start, rows = line.end, 0
    return [*found, Block(start, len(text))] if start < len(text) or not found else found


def _lines(text: str) -> Iterator[Block]:
    """Yield every line with its line end, very long ones in parts."""
    start = 0
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        while end - start > LONGEST_LINE:
            cut = _place(text, start + LONGEST_LINE // 2, start + LONGEST_LINE)
            yield Block(start, cut, cut=True)
            start = cut
        yield Block(start, end)
        start = end


def _place(text: str, first: int, last: int) -> int:
    """Return where to cut a line: after the last space between two offsets, else at the end of a glyph."""
    blank = text.rfind(" ", first, last)
    if blank >= 0:
        return blank + 1
    for at in range(last, first, -1):
        if text[at] not in JOINING and text[at - 1] != JOINING[0] and not unicodedata.combining(text[at]):
            return at
    return last


# --- marking ----------------------------------------------------------------------------------------


LONGEST = 20_000  # characters of a text that are shown whole
AROUND = 600  # characters kept on each side of a mark in a longer text
TITLES = 5  # maximum number of overlapping marks named in a tooltip


@dataclass(frozen=True, slots=True)
class Mark:
    """Half-open character offsets into a text, with a description of the mark.

    `kind` is that of a claim, or `gold` for spans marked by people. `claim` is the number of the claim,
    from 1. `title` describes the mark in words.
    """

    start: int
    end: int
    kind: str
    title: str
    claim: int | None = None


def marked(text: str, marks: Iterable[Mark], longest: int = LONGEST) -> Markup:
    """Escape `text` and wrap every mark in `<mark>` elements that together cover exactly the marked words.

    Each element has the kinds of its marks as classes and the numbers of its claims in `data-claims`. Where
    a claim begins, `data-begins` has its number. If the text is longer than `longest`, only its beginning
    and the parts near marks are kept, and each gap states how many characters are missing.
    """
    kept = _kept(text, marks)
    parts: list[str] = []
    end = 0
    stretches = _shown(text, kept, longest)
    for (start, stop), pieces in zip(stretches, _pieces(text, kept, stretches), strict=True):
        if start > end:
            parts.append(gap(start - end))
        parts += pieces
        end = stop
    if end < len(text):
        parts.append(gap(len(text) - end))
    return Markup("".join(parts))


def blocked(text: str, marks: Iterable[Mark], *, side: str = "", chosen: int | None = None) -> Markup:
    """Render the whole of `text` like `marked`, a long one in blocks that a browser lays out when visible.

    With a `side`, the quote of every claim begins at an element with the id `SIDE-NUMBER`. The parts of the
    claim `chosen` also get the class `chosen`.
    """
    kept = _kept(text, marks)
    blocks = blocks_of(text)
    drawn = _pieces(text, kept, [(block.start, block.end) for block in blocks], side, chosen)
    if len(blocks) == 1:
        return Markup("".join(next(drawn)))
    parts: list[str] = []
    for block, pieces in zip(blocks, drawn, strict=True):
        parts.append('<div class="block cut">' if block.cut else '<div class="block">')
        parts += pieces
        parts.append("</div>")
    return Markup("".join(parts))


def gap(n: int) -> Markup:
    """Return the placeholder for `n` characters that are left out."""
    return Markup('<span class="gap">… {} characters are omitted here …</span>').format(f"{n:,}")


def _kept(text: str, marks: Iterable[Mark]) -> list[Mark]:
    """Return the non-empty marks, cut at the ends of the text."""
    inside = [Mark(max(m.start, 0), min(m.end, len(text)), m.kind, m.title, m.claim) for m in marks]
    return [mark for mark in inside if mark.start < mark.end]


def _shown(text: str, marks: Sequence[Mark], longest: int) -> list[tuple[int, int]]:
    """Return the stretches of a text to show, in order and without overlap."""
    if len(text) <= longest:
        return [(0, len(text))]
    wanted = [(0, longest // 2)] + [(m.start - AROUND, min(m.end, m.start + longest) + AROUND) for m in marks]
    return characters((max(start, 0), min(end, len(text))) for start, end in wanted)


def _pieces(
    text: str,
    marks: Sequence[Mark],
    stretches: Sequence[tuple[int, int]],
    side: str = "",
    chosen: int | None = None,
) -> Iterator[list[str]]:
    """Yield each stretch as HTML, split wherever a mark begins or ends."""
    starts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for number, mark in enumerate(marks):
        starts.setdefault(mark.start, []).append(number)
        ends.setdefault(mark.end, []).append(number)
    places = sorted({*starts, *ends, *(at for stretch in stretches for at in stretch)})
    over: set[int] = set()
    walk = iter([*pairwise(places)])
    for start, end in stretches:
        found: list[str] = []
        at = start
        while at < end:
            left, right = next(walk)
            over -= set(ends.get(left, ()))
            over |= set(starts.get(left, ()))
            if left < start:  # gap between two stretches
                continue
            words = escape(seen(text[left:right]))
            found.append(_mark(words, [marks[n] for n in sorted(over)], left, side, chosen))
            at = right
        yield found


def _mark(words: Markup, over: Sequence[Mark], at: int, side: str, chosen: int | None) -> str:
    """Return words wrapped in the element for these marks. Attributes with untrusted text are escaped."""
    if not over:
        return words
    kinds = dict.fromkeys(mark.kind for mark in over)
    if chosen is not None and any(mark.claim == chosen for mark in over):
        kinds["chosen"] = None
    claims = " ".join(str(mark.claim) for mark in over if mark.claim is not None)
    begins = [str(mark.claim) for mark in over if mark.claim is not None and mark.start == at]
    titles = "; ".join(mark.title for mark in over[:TITLES])
    titles += f"; and {len(over) - TITLES} more" if len(over) > TITLES else ""
    numbers = f' data-claims="{claims}"' if claims else ""
    numbers += f' data-begins="{" ".join(begins)}"' if begins else ""
    anchors = "".join(f'<span id="{side}-{number}"></span>' for number in begins) if side else ""
    title = escape(seen(titles).replace("\n", " "))
    return f'{anchors}<mark class="{escape(" ".join(kinds))}" title="{title}"{numbers}>{words}</mark>'


# --- heat -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A rendered heat map: `body` is the output, `legend` names the values from `low` to `high`, and `told`
    describes it in words. If it cannot be shown, `body` is empty and `told` says why.
    """

    body: Markup
    legend: str
    low: str
    high: str
    told: str


def heat_map(sample: Sample, verdict: Verdict | None, longest: int = LONGEST) -> HeatMap | None:
    """Return the heat map in a verdict's details, or None if there is none or the output is empty.

    If the output is longer than `longest`, only its beginning is rendered.
    """
    if verdict is None or not sample.output:
        return None
    try:
        heat = heat_of(verdict.details)
    except InputError as error:
        return HeatMap(Markup(""), "", "", "", str(error))
    if heat is None:
        return None
    return HeatMap(
        _painted(sample.output, heat, longest),
        heat.name,
        f"{heat.low:g}",
        f"{heat.high:g} {heat.unit}".rstrip(),
        heat.told(sample.output),
    )


def _painted(text: str, heat: Heat, longest: int) -> Markup:
    parts: list[str] = []
    shown = text[:longest]
    unit = escape(seen(heat.unit))
    for start, end, value in heat.runs(shown):
        words = escape(seen(shown[start:end]))
        level = 0 if value is None else heat.level(value)
        if value is None or not level:
            parts.append(words)
            continue
        title = f"{heat.figure(value)} {unit}".rstrip()
        parts.append(f'<mark class="heat h{level}" title="{title}">{words}</mark>')
    if len(text) > longest:
        parts.append(gap(len(text) - longest))
    return Markup("".join(parts))


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
    """The listed outcomes in their original order, the total number of outcomes, and the number left out of
    each kind in `KINDS`.
    """

    outcomes: tuple[Outcome, ...]
    n: int
    left_out: Mapping[str, int]

    @property
    def words(self) -> str | None:
        """What is left out, in words; None if nothing is."""
        missing = [f"{n:,} {TOLD[kind]}" for kind, n in self.left_out.items() if n]
        if not missing:
            return None
        return (
            f"{len(self.outcomes):,} of {self.n:,} outcomes are listed, wrong ones, failures and abstentions "
            f"first; not listed: {', '.join(missing)}. The figures above include all of them."
        )


def listed(samples: Mapping[str, Sample], outcomes: Iterable[Outcome], most: int) -> Listed:
    """Select at most `most` of the outcomes: by the order of `KINDS`, within a kind the first ones."""
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


def judged_right(sample: Sample, outcome: Outcome) -> bool | None:
    """Return whether a verdict matches the gold label; None if one is neither faithful nor hallucinated."""
    return is_right(outcome.label, sample.label) if isinstance(outcome, Verdict) else None


def _kind(sample: Sample, outcome: Outcome) -> str:
    if not isinstance(outcome, Verdict):
        return "failed" if isinstance(outcome, Failure) else "abstained"
    if judged_right(sample, outcome) is False:
        return "wrong"
    return HALLUCINATED if outcome.label == HALLUCINATED else "other"


# --- an outcome as a row --------------------------------------------------------------------------


EXCERPT = 160
LONGEST_DATA = 10_000  # characters of metadata and of details


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A claim in words. `place` names the text of the context that it quotes."""

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
    """The values that a page shows of one outcome.

    `judged` is the verdict's label, or `failed` or `abstained` with `code`. `right` is `right`, `wrong` or
    empty if unknown. Texts are not escaped, except those of type `Markup`.
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


def row_of(sample: Sample, outcome: Outcome) -> Row:
    """Return the row of `outcome`, with everything except its engine calls."""
    verdict = outcome if isinstance(outcome, Verdict) else None
    numbered = [*enumerate(verdict.claims, 1)] if verdict else []
    right = judged_right(sample, outcome)
    what = outcome_text(outcome)
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
    )


@dataclass(frozen=True, slots=True)
class OutcomeText:
    """The label, or `failed` or `abstained` with its code, and the text that goes with it under a title."""

    judged: str
    code: str | None
    words: str | None
    title: str


def outcome_text(outcome: Outcome) -> OutcomeText:
    """Return the label, code and text of an outcome."""
    match outcome:
        case Verdict():
            flipped = outcome.explanation_agrees is False
            title = "Explanation, which contradicts the label" if flipped else "Explanation"
            return OutcomeText(outcome.label, None, outcome.explanation or None, title)
        case Failure():
            return OutcomeText("failed", outcome.code, outcome.message, "Why it failed")
        case Abstention():
            return OutcomeText("abstained", outcome.reason, outcome.message, "Why it abstained")


def facts_of(outcome: Outcome) -> list[tuple[str, str]]:
    """Return the numbers of an outcome as pairs of name and text."""
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
    """Return the row of a claim, the `number`th of a verdict on `sample`."""
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
    """Return the marks in the output: the quotes of numbered claims, and the spans marked by people."""
    marks = [
        Mark(c.output_quote.start, c.output_quote.end, c.kind, f"claim {n}: {c.kind}", n) for n, c in numbered
    ]
    return [*marks, *(Mark(s.start, s.end, "gold", f"marked by people: {s.kind}") for s in sample.spans)]


def source_marks(sample: Sample, numbered: Iterable[tuple[int, Claim]]) -> list[list[Mark]]:
    """Return the marks of numbered claims in each of `Sample.sources`."""
    marks: list[list[Mark]] = [[] for _ in sample.sources]
    for n, claim in numbered:
        quote, at = claim.context_quote, claim.context_index
        if quote is not None and at is not None and 0 <= at < len(marks):
            marks[at].append(Mark(quote.start, quote.end, claim.kind, f"claim {n}: {claim.kind}", n))
    return marks


def source_title(sample: Sample, index: int) -> str:
    """Return the title of the text at this index in `Sample.sources`."""
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
    """Return all sources of the sample with their marks, in the order of `Sample.sources`."""
    marks = source_marks(sample, numbered)
    return [Text(source_title(sample, at), marked(text, marks[at])) for at, text in enumerate(sample.sources)]


def _asked(sample: Sample) -> list[Text]:
    named = (("Input", sample.input), ("Expected", sample.expected))
    return [Text(title, marked(text, ())) for title, text in named if text is not None]


def _data(sample: Sample, verdict: Verdict | None) -> list[tuple[str, str]]:
    named = (("Metadata", sample.metadata), ("Details", without_heat(verdict.details) if verdict else {}))
    return [(title, json_text(values)) for title, values in named if values]


def json_text(values: Mapping[str, object], longest: int = LONGEST_DATA) -> str:
    """Return plain values as indented JSON, truncated if it is longer than `longest`."""
    text = json.dumps(dict(values), ensure_ascii=False, indent=2, default=str)
    cut = len(text) - longest
    return text if cut <= 0 else f"{text[:longest]}\n… {cut:,} characters are omitted here …"
