"""A text as HTML in which quotes and labelled spans are marked, overlaps included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

from magistrate.display import seen

LONGEST = 20_000  # characters of a text that are shown whole
AROUND = 600  # characters kept on both sides of a mark, in a text that is longer


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
    inside = [_within(mark, len(text)) for mark in marks]
    kept = [mark for mark in inside if mark.start < mark.end]
    parts: list[Markup] = []
    end = 0
    for start, stop in _shown(text, kept, longest):
        if start > end:
            parts.append(gap(start - end))
        parts += _pieces(text, kept, start, stop)
        end = stop
    if end < len(text):
        parts.append(gap(len(text) - end))
    return Markup("").join(parts)


def _within(mark: Mark, length: int) -> Mark:
    return Mark(max(mark.start, 0), min(mark.end, length), mark.kind, mark.title, mark.claim)


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


def gap(n: int) -> Markup:
    """What stands where so many characters are left out."""
    return Markup('<span class="gap">… {} characters are left out here …</span>').format(f"{n:,}")


def _pieces(text: str, marks: Sequence[Mark], start: int, end: int) -> Iterator[Markup]:
    """The stretch between two offsets, cut wherever a mark begins or ends."""
    cuts = {start, end}
    cuts |= {at for mark in marks for at in (mark.start, mark.end) if start < at < end}
    places = sorted(cuts)
    for left, right in pairwise(places):
        words = escape(seen(text[left:right]))
        over = [mark for mark in marks if mark.start <= left and right <= mark.end]
        yield _mark(words, over, left) if over else words


def _mark(words: Markup, over: Sequence[Mark], at: int) -> Markup:
    kinds = " ".join(dict.fromkeys(mark.kind for mark in over))
    claims = " ".join(str(mark.claim) for mark in over if mark.claim is not None)
    begins = " ".join(str(mark.claim) for mark in over if mark.claim is not None and mark.start == at)
    title = seen("; ".join(mark.title for mark in over)).replace("\n", " ")
    numbers = Markup(' data-claims="{}"').format(claims) if claims else Markup("")
    numbers += Markup(' data-begins="{}"').format(begins) if begins else Markup("")
    return Markup('<mark class="{}" title="{}"{}>{}</mark>').format(kinds, title, numbers, words)
