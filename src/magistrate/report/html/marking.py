"""A text as HTML in which quotes and labelled spans are marked, overlaps included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

from magistrate._text import seen
from magistrate.report.html.blocks import blocks_of

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
    joined: list[tuple[int, int]] = []
    for start, end in sorted((max(start, 0), min(end, len(text))) for start, end in wanted):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


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
