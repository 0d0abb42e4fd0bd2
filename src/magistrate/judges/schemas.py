"""JSON schemas that judges write under: closed objects, short lines of text, verbatim quotes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from magistrate.constraints import Quote, QuoteOf
from magistrate.constraints.quote import Unit, has_run, locate, pieces
from magistrate.errors import InvalidOutput

SHORTEST, LONGEST = 16, 160  # characters of a quote: a statement rather than a word, and no whole page


def closed_object(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object that has all of these properties, in this order, and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def short_text(most: int) -> dict[str, str]:
    """The schema of one line of up to `most` characters, with nothing in it that looks like JSON."""
    return {"type": "string", "pattern": f'^[^"\\\\{{}}\\[\\]\\x00-\\x1f\\x7f-\\x9f]{{1,{most}}}$'}


def quote_schema(source: str, unit: Unit, texts: Sequence[str]) -> dict[str, Any]:
    """The schema of a quote of `texts`, named `source`.

    It has at least `SHORTEST` characters, if every text has a run of as many, and at most `LONGEST`; a longer
    sentence may be quoted whole.
    """
    longest = LONGEST
    if unit == "sentences":
        longest = max([longest, *(len(piece) for text in texts for piece in pieces(text, unit))])
    inked = [text for text in texts if text.strip()]
    least = SHORTEST if inked and all(has_run(text, unit, SHORTEST, longest) for text in inked) else 1
    quote = {"of": source, "unit": unit}
    return {"type": "string", "x-quote": quote, "minLength": least, "maxLength": longest}


def quoted(text: str, source: str, unit: Unit, texts: Sequence[str]) -> Quote:
    """Where a quote stands that the constraint has let through. Raises `InvalidOutput` if nowhere."""
    if isinstance(text, Quote):
        return text
    found = locate(text, QuoteOf(source, unit), texts)
    if found is None:
        raise InvalidOutput(f"{text[:100]!r} is no run of {unit} of the {source}", text)
    return found
