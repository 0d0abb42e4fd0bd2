"""What judges share when they quote: how long a quote may be, and where a written one stands."""

from __future__ import annotations

from collections.abc import Sequence

from magistrate.constraints import Quote, QuoteOf
from magistrate.constraints.pieces import Unit, pieces
from magistrate.constraints.quote import locate
from magistrate.errors import InvalidOutput

__all__ = ["Unit", "bounded_quote", "quoted", "short_text"]

LONGEST = 160  # characters of a quote; a longer sentence may be quoted whole


def short_text(most: int) -> dict[str, str]:
    """The schema of one line of up to `most` characters, with nothing in it that looks like JSON."""
    return {"type": "string", "pattern": f'^[^"\\\\{{}}\\[\\]\\x00-\\x1f]{{1,{most}}}$'}


def bounded_quote(text: str, unit: Unit) -> int:
    """How many characters a quote of `text` may have: enough for any one of its pieces."""
    return max(LONGEST, *(len(piece) for piece in pieces(text, unit))) if unit == "sentences" else LONGEST


def quoted(text: str, source: str, unit: Unit, texts: Sequence[str]) -> Quote:
    """Where a quote stands that the constraint has let through. Raises `InvalidOutput` if nowhere."""
    if isinstance(text, Quote):
        return text
    found = locate(text, QuoteOf(source, unit), texts)
    if found is None:
        raise InvalidOutput(f"{text[:100]!r} is no run of {unit} of the {source}", text)
    return found
