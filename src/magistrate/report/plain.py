"""Foreign text made fit for a terminal: it can be read, and it can do nothing.

Judged text may hold escape sequences that move the cursor, rename the window or reorder what is
read. Every such character is replaced by one visible character, so offsets stay true. Text goes to
rich as `Text`, never as markup.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from magistrate._text import Marked
from magistrate._text import plain as plain

if TYPE_CHECKING:
    from rich.text import Text

OPEN, CLOSE = "⟦", "⟧"


def marked(text: str, spans: Iterable[Marked], style: str) -> Text:
    """`text` with every span in `style` and between ⟦ ⟧, which also shows where there is no colour.

    Overlapping spans are merged; what reaches beyond the text is cut.
    """
    from rich.text import Text

    shown, end = Text(), 0
    for start, stop in _merged(spans, len(text)):
        shown.append(plain(text[end:start]))
        shown.append(f"{OPEN}{plain(text[start:stop])}{CLOSE}", style=style)
        end = stop
    return shown.append(plain(text[end:]))


def around(text: str, start: int, end: int, by: int) -> tuple[int, int]:
    """Where to cut `text` so that about `by` characters are shown on both sides of a place: at a space where
    there is one, and never more than twice as many characters away."""
    first = 0 if start <= by else max(text.rfind(" ", 0, start - by) + 1, start - 2 * by)
    stop = text.find(" ", end + by, end + 2 * by)
    return first, min(end + 2 * by, len(text)) if stop < 0 else stop


def _merged(spans: Iterable[Marked], length: int) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted((max(s.start, 0), min(s.end, length)) for s in spans):
        if stop <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged
