"""Which letters stand in words with spaces between them, for patterns of the package `regex` (version 1)."""

from __future__ import annotations

from typing import Any

UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
"""Scripts that are written without spaces, as the inside of a set."""

SPACED = rf"[\p{{L}}--[{UNSPACED}]]"
"""A letter of any other script."""

PART = rf"[[\p{{L}}\p{{N}}]--[{UNSPACED}]]"
"""A letter of any other script, or a digit: what a number or a word cannot be cut from."""


def compiled(pattern: str) -> Any:
    """A pattern of the package `regex`; its users keep it, and make it when it is first needed."""
    import regex  # type: ignore[import-untyped]

    return regex.compile(pattern)
