"""What a signal says of a sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magistrate.types import Span

MOST_NAMED = 4  # pieces that a reason quotes


@dataclass(frozen=True, slots=True)
class Reading:
    """A signal's value in [0, 1], higher being more suspicious, with what of the output it flags.

    `value` is None where it is undefined, and `reason` then says why; else `reason` says in words what was
    found. `spans` are offsets into the output.
    """

    value: float | None
    spans: tuple[Span, ...] = ()
    reason: str = ""


def undefined(reason: str) -> Reading:
    """The reading of a signal that has nothing to look at."""
    return Reading(None, (), reason)


def listed(pieces: Sequence[str]) -> str:
    """Pieces of text in a sentence: each once, the first few, the others counted.

    >>> listed(["1,998", "12 km", "1,998"])
    '1,998 and 12 km'
    """
    several = list(dict.fromkeys(pieces))
    named = several[:MOST_NAMED]
    if (rest := len(several) - len(named)) > 0:
        return f"{', '.join(named)} and {rest} more"
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
