"""Texts as HTML: quotes and labelled spans marked, overlaps included, and heat maps.

Long texts are cut into blocks, so that a browser lays out only what is looked at.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

from magistrate._text import Heat, seen
from magistrate.errors import InputError
from magistrate.metrics.spans import characters
from magistrate.report.formatting import heat_of
from magistrate.types import Sample, Verdict

BLOCK_ROWS = 40  # lines on the screen, about, that a block fills
COLUMNS = 80  # characters of a line on the screen, about
LONGEST_LINE = 3 * BLOCK_ROWS * COLUMNS  # characters without a line end that stay together
JOINING = "\u200d\ufe0e\ufe0f"  # with what stands before them they are one sign


@dataclass(frozen=True, slots=True)
class Block:
    """Half-open character offsets into a text; it ends with a line, or `cut` says that the line goes on."""

    start: int
    end: int
    cut: bool = False


def blocks_of(text: str) -> list[Block]:
    """The whole of `text` in order, in blocks of about `ROWS` lines on the screen; one for a short text."""
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
    """Every line with its end, very long ones in parts."""
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
    """Where a line is cut: behind the last blank between two offsets, else not within a sign."""
    blank = text.rfind(" ", first, last)
    if blank >= 0:
        return blank + 1
    for at in range(last, first, -1):
        if text[at] not in JOINING and text[at - 1] != JOINING[0] and not unicodedata.combining(text[at]):
            return at
    return last


# --- marking ----------------------------------------------------------------------------------------


LONGEST = 20_000  # characters of a text that are shown whole
AROUND = 600  # characters kept on both sides of a mark, in a text that is longer
TITLES = 5  # marks that are named in words where more of them overlap


@dataclass(frozen=True, slots=True)
class Mark:
    """Half-open character offsets into a text and what stands there.

    `kind` is that of a claim or `gold` for what people marked; `claim` the number of the claim, from 1;
    `title` says it in words.
    """

    start: int
    end: int
    kind: str
    title: str
    claim: int | None = None


def marked(text: str, marks: Iterable[Mark], longest: int = LONGEST) -> Markup:
    """`text` escaped, every mark a `<mark>` whose parts together are the marked words, no more and no less.

    Each part has its marks' kinds as classes and the numbers of its claims in `data-claims`; where a claim
    begins, `data-begins` has its number. Of a text longer than `longest` only the beginning and what is
    near a mark is there, and each gap says how much is missing.
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
    """The whole of `text`, marked as `marked` does, a long one in blocks that a browser lays out when seen.

    With a `side`, every claim's quote begins at an element of the id `SIDE-NUMBER`. Parts of the claim
    `chosen` also have the class `chosen`.
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
    """What stands where so many characters are left out."""
    return Markup('<span class="gap">… {} characters are left out here …</span>').format(f"{n:,}")


def _kept(text: str, marks: Iterable[Mark]) -> list[Mark]:
    """The marks that have a place in the text, cut at its ends."""
    inside = [Mark(max(m.start, 0), min(m.end, len(text)), m.kind, m.title, m.claim) for m in marks]
    return [mark for mark in inside if mark.start < mark.end]


def _shown(text: str, marks: Sequence[Mark], longest: int) -> list[tuple[int, int]]:
    """The stretches of a text that are shown, in order and apart from each other."""
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
    """Each stretch as HTML, cut wherever a mark begins or ends."""
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
            if left < start:  # between two stretches
                continue
            words = escape(seen(text[left:right]))
            found.append(_mark(words, [marks[n] for n in sorted(over)], left, side, chosen))
            at = right
        yield found


def _mark(words: Markup, over: Sequence[Mark], at: int, side: str, chosen: int | None) -> str:
    """Words as they stand under these marks; the attributes of other people's words are escaped."""
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
    """`body` is the output; `legend` says what the colours mean, with `low` and `high` at its ends; `told`
    says the same in words. Where it cannot be shown, `told` says why and there is no body."""

    body: Markup
    legend: str
    low: str
    high: str
    told: str


def heat_map(sample: Sample, verdict: Verdict | None, longest: int = LONGEST) -> HeatMap | None:
    """The heat map among a verdict's details, None where there is none or nothing to lay it over.

    Of an output longer than `longest` only the beginning is painted.
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
        f"{heat.high:g} {heat.unit}",
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
        parts.append(f'<mark class="heat h{level}" title="{heat.figure(value)} {unit}">{words}</mark>')
    if len(text) > longest:
        parts.append(gap(len(text) - longest))
    return Markup("".join(parts))
