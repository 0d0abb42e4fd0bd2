"""Regular expressions from outside: measured before they are compiled, stopped while they search.

A pattern of 22 characters such as `((a{1000}){1000}){1000}` compiles to a billion parts, and `(a+)+$`
searches for ever. So a pattern is parsed first and its parts are counted as the compiler will write them; a
search has a limit of time. `searched` is the only way in which a pattern from outside meets a text.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

from magistrate._deadline import check
from magistrate.errors import ConstraintError, InputError

LONGEST_PATTERN = 100_000  # characters
MOST_PARTS = 50_000  # of a compiled pattern, repetitions written out; 0.3 to 1.3 kB each
GRAPHEME = 10  # parts of \\X
PARTS_KEPT = 2_000  # of a compiled pattern that is kept for the next time
LONGEST_TEXT = 2_000_000  # characters; a search can take some 100 bytes for each
PATTERN_SECONDS = 0.5  # of computing, for one search


class PatternTooSlow(InputError):
    """A search took longer than `PATTERN_SECONDS`, or more memory than there is."""


def compiled(pattern: str, flags: int = 0) -> Any:
    """A pattern in the syntax of the package `regex`, for `searched`; `flags` are that package's.

    Raises `ConstraintError` for what is no pattern, and for one that is too long, too large when its
    repetitions are written out, nested too deeply, or that calls itself.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise ConstraintError(
            f"the pattern {quoted(pattern)} has {len(pattern):,} characters; at most {LONGEST_PATTERN:,}"
        )
    return _compiled(pattern, flags)


def searched(pattern: Any, text: str, *, whole: bool = False) -> Any:
    """The match of a compiled pattern in a text (`whole`: of all of it), None where there is none.

    Raises `PatternTooSlow` after `PATTERN_SECONDS`, and for a text of more than `LONGEST_TEXT` characters.
    """
    if len(text) > LONGEST_TEXT:
        raise PatternTooSlow(
            f"a pattern is searched in at most {LONGEST_TEXT:,} characters, and this text has {len(text):,}"
        )
    check()
    search = pattern.fullmatch if whole else pattern.search
    try:
        return search(text, timeout=PATTERN_SECONDS)
    except TimeoutError:
        raise PatternTooSlow(
            f"the pattern took longer than {PATTERN_SECONDS:g} s on this text: {quoted(pattern.pattern)}"
        ) from None
    except MemoryError:
        raise PatternTooSlow(f"the pattern took all memory on this text: {quoted(pattern.pattern)}") from None


def _compiled(pattern: str, flags: int) -> Any:
    kept = _kept(pattern, flags)
    return kept if kept is not None else _compile(pattern, flags)


@lru_cache(maxsize=256)
def _kept(pattern: str, flags: int) -> Any:
    """The compiled pattern, None where it is too large to be kept."""
    return _compile(pattern, flags) if _checked_parts(pattern, flags) <= PARTS_KEPT else None


def _compile(pattern: str, flags: int) -> Any:
    import regex  # type: ignore[import-untyped]

    try:
        return regex.compile(pattern, flags, cache_pattern=False)  # its cache holds 500, however large
    except regex.error as error:
        raise ConstraintError(f"{quoted(pattern)} is no regular expression: {error}") from None
    except RecursionError:
        raise _too_deep(pattern) from None


def _checked_parts(pattern: str, flags: int) -> int:
    import regex

    try:
        parts = _parts(_parsed(pattern, flags), importlib.import_module("regex._regex_core"))
    except regex.error as error:
        raise ConstraintError(f"{quoted(pattern)} is no regular expression: {error}") from None
    except RecursionError:
        raise _too_deep(pattern) from None
    if parts > MOST_PARTS:
        shown = f"{parts:,}" if parts < 10**12 else "more than a million million"
        raise ConstraintError(
            f"the pattern {quoted(pattern)} has {shown} parts once its repetitions are written out; at most "
            f"{MOST_PARTS:,}: write smaller counts, or * and +"
        )
    return parts


def _parsed(pattern: str, flags: int) -> Any:
    """The tree that the package `regex` compiles; it has no public door to it."""
    core = importlib.import_module("regex._regex_core")
    while True:
        source = core.Source(pattern)
        info = core.Info(flags, source.char_type, {})
        info.guess_encoding = core.UNICODE
        source.ignore_space = bool(info.flags & core.VERBOSE)
        try:
            return core._parse_pattern(source, info)
        except core._UnscopedFlagSet:  # a flag inside that holds for all of it: once more, with it
            if info.global_flags == flags:
                raise
            flags = info.global_flags


def _parts(node: Any, core: Any) -> int:
    """How many parts a parsed pattern compiles to.

    The compiler writes what must come `n` times `n` times, and once more where it may come oftener: a `+`
    doubles what is inside, and a `+` around that doubles it again.
    """
    if isinstance(node, core.CallGroup):
        raise ConstraintError("a pattern that calls its own groups, as (?R) and (?1) do, is not accepted")
    parts = GRAPHEME if isinstance(node, core.Grapheme) else 1
    for value in vars(node).values():
        if isinstance(value, core.RegexBase):
            parts += _parts(value, core)
        elif isinstance(value, list | tuple):
            parts += sum(_parts(each, core) for each in value if isinstance(each, core.RegexBase))
    if not isinstance(node, core.GreedyRepeat):  # what lazy and possessive repetitions are as well
        return parts
    least: int = node.min_count
    written: int = least + (node.max_count != least)
    return parts * max(1, written)


def _too_deep(pattern: str) -> ConstraintError:
    return ConstraintError(f"the pattern {quoted(pattern)} is nested too deeply")


def quoted(pattern: str) -> str:
    """The beginning of a pattern, for messages."""
    return f"{pattern[:80]!r}{'…' if len(pattern) > 80 else ''}"
