"""Where a long text can be cut so that a browser lays out only the part that is looked at."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

ROWS = 40  # lines on the screen, about, that a block fills
COLUMNS = 80  # characters of a line on the screen, about
LONGEST_LINE = 3 * ROWS * COLUMNS  # characters without a line end that stay together
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
        if rows and rows + size > ROWS:
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
