"""Where a text may be cut: between words, or between sentences.

Words are those of Unicode's text segmentation (UAX #29): a word with its apostrophe, a number with its
decimal point, an emoji with all its parts, a letter with its marks, one Chinese character, one punctuation
mark; and a run of white space. Sentences end at a line's end or after . ! ? … and what closes with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Literal, get_args

import regex  # type: ignore[import-untyped]

Unit = Literal["words", "sentences"]
UNITS: tuple[Unit, ...] = get_args(Unit)

LONGEST_WORD = 64  # characters; longer ones (a key, an address) may be cut between any two characters
WINDOW = 1024  # characters that are looked at together: finding an edge may take the square of their number
_SPACE = r"\s(?![\p{M}\u200d])"  # without a mark on it
_RUN = regex.compile(rf"(?:(?!{_SPACE}).)++|(?:{_SPACE})++", regex.DOTALL)
_WORD_EDGE = regex.compile(r"(?w)\b")
_CHARACTER = regex.compile(r"\X")
_CLOSING = r"""[\p{Pe}\p{Pf}"']*+"""
_SENTENCE_GAP = regex.compile(  # one pass without going back: text on trial may be made to be slow
    rf"[.!?…]{_CLOSING}(\s++)|[。！？｡]++{_CLOSING}(\s*+)|(\s++)"
)
_PLAIN = 3  # the group of white space after anything else, which ends a sentence only with a line
_LINE_END = frozenset("\r\n")


@lru_cache(maxsize=16)
def edges(text: str, unit: Unit) -> tuple[int, ...]:
    """The places of `text` between two pieces, both ends included: rising offsets into its characters."""
    found = {0, len(text)}
    if unit == "sentences":  # white space at the ends belongs to none
        for match in _SENTENCE_GAP.finditer(text):
            gap = match.lastindex
            if gap is not None and (gap != _PLAIN or not _LINE_END.isdisjoint(match[gap])):
                found.update(match.span(gap))
        found |= {len(text) - len(text.lstrip()), len(text.rstrip())}
    else:
        for run in _RUN.finditer(text):
            found.update(_word_edges(run[0], run.start()))
    return tuple(sorted(found))


def _word_edges(run: str, at: int) -> Iterator[int]:
    """Where the words of a run without white space begin, or the white space."""
    if run.isspace():
        yield at
        return
    if len(run) > WINDOW:
        yield from _character_edges(run, at)
        return
    for start, end in pairwise([*(match.start() for match in _WORD_EDGE.finditer(run)), len(run)]):
        yield at + start
        if end - start > LONGEST_WORD:
            yield from _character_edges(run[start:end], at + start)


def _character_edges(run: str, at: int) -> Iterator[int]:
    """Where the characters of a run begin, those with several code points whole (but for absurd ones)."""
    start = 0
    while start < len(run):
        found = [start + match.start() for match in _CHARACTER.finditer(run[start : start + WINDOW])]
        end = start + WINDOW
        following = found.pop() if end < len(run) and len(found) > 1 else end  # the last may go on beyond
        yield from (at + each for each in found)
        start = following


def pieces(text: str, unit: Unit) -> list[str]:
    """`text` cut at its edges; joined they are the text again."""
    return [text[start:end] for start, end in pairwise(edges(text, unit))]


def has_run(text: str, unit: Unit, least: int, most: int | None) -> bool:
    """Whether a run of pieces with no white space at its ends has from `least` to `most` characters."""
    # A piece may begin with white space that bears a mark.
    spans = list(pairwise(edges(text, unit)))
    starts = [start for start, _ in spans if not text[start : start + 1].isspace()]
    ends = [end for _, end in spans if not text[end - 1 : end].isspace()]
    for start in starts:
        place = bisect_left(ends, start + max(least, 1))
        if place < len(ends) and (most is None or ends[place] <= start + most):
            return True
    return False
