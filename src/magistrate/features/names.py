"""Find the names, the quotations and the initials of a text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from magistrate.features.facts import AMBIGUOUS, MONTHS, WEEKDAYS
from magistrate.features.words import Run, Wording, compiled

MOST_CAPITALS = 0.85  # share of content words; with more, as in headings, capitals carry no information
MOST_INITIALS = 8
LEAST_QUOTED = 2  # words; a single quoted word is usually emphasis
DATED = frozenset((*WEEKDAYS, *(month for month in MONTHS if month not in AMBIGUOUS)))
_LINKS = "of the de la le du da di del van von der den bin al el y e und and for"
LINKS = frozenset(_LINKS.split())


def names_of(wording: Wording, sentences: tuple[Run, ...]) -> list[Run]:
    """Return the names in a text as runs of words: capitalized ones and links (Bank *of* England).

    A single capitalized word that starts a sentence or a quotation is no name, unless it is all capitals. A
    text that is mostly capitals, or has none, has no names.
    """
    written = wording.written
    # Weekdays and months are dates, not names.
    capital = [
        word[0].isupper() and form not in DATED for word, form in zip(written, wording.forms, strict=True)
    ]
    told = [capital[at] for at in wording.content]
    if len(told) > 3 and sum(told) > MOST_CAPITALS * len(told):
        return []
    starts = {first for first, _ in sentences}
    common = wording.common
    found: list[Run] = []
    at = 0
    while at < len(written):
        if not capital[at]:
            at += 1
            continue
        last = _end(wording, written, capital, at)
        first = at
        if _begins(wording, at, starts) and wording.forms[first] in common:
            first += 1  # "The Great Outdoors"
        while first < last and wording.forms[first] in LINKS:
            first += 1
        if first < last and not _is_plain(wording, written, first, last, starts):
            found.append((first, last))
        at = max(last, at + 1)
    return found


def quoted(wording: Wording) -> list[Run]:
    """Return the texts in quotation marks of at least `LEAST_QUOTED` words, as runs of words."""
    starts, found = wording.starts, []
    for match in _quotations().finditer(wording.text):
        inner = next(number for number in range(1, 7) if match[number] is not None)
        first, last = (bisect_left(starts, at) for at in match.span(inner))
        if last - first >= LEAST_QUOTED:
            found.append((first, last))
    return found


def initials(wording: Wording) -> Iterator[str]:
    """Yield the initials of runs of capitalized words, such as *un* for United Nations."""
    letters = ""
    ended = -1
    for word, start, end in zip(wording.forms, wording.starts, wording.ends, strict=True):
        if letters and wording.text[ended:start].strip():
            letters = ""
        if wording.text[start].isupper():
            letters = (letters + word[0])[: MOST_INITIALS + 1]
            if 1 < len(letters) <= MOST_INITIALS:
                yield letters
        elif letters and word not in LINKS:
            letters = ""
        ended = end


def _end(wording: Wording, written: Sequence[str], capital: list[bool], at: int) -> int:
    """Return the index after the run of capitalized words that begins at `at`."""
    last = at + 1
    while last < len(written):
        between = wording.text[wording.ends[last - 1] : wording.starts[last]]
        if between.strip(" -'’.&") or (between.startswith(".") and len(written[last - 1]) > 2):
            break
        if capital[last]:
            last += 1
        elif between == " " and wording.forms[last] in LINKS and _linked(wording, capital, last):
            last += 2
        else:
            break
    if written[last - 1] in ("s", "S") and last - at > 1:
        last -= 1
    return last


def _linked(wording: Wording, capital: list[bool], at: int) -> bool:
    """Return whether a capitalized word follows a linking word, separated by one space."""
    return (
        at + 1 < len(capital)
        and capital[at + 1]
        and wording.text[wording.ends[at] : wording.starts[at + 1]] == " "
        and wording.forms[at] not in ("and", "und", "y", "e", "for")
    )


def _begins(wording: Wording, at: int, starts: set[int]) -> bool:
    """Return whether a word may begin a sentence: also after a colon, a quotation mark or a bullet."""
    if at in starts or at == 0:
        return True
    before = wording.text[wording.ends[at - 1] : wording.starts[at]]
    return bool(before.strip(" ,-'’&/()"))


def _is_plain(wording: Wording, written: Sequence[str], first: int, last: int, starts: set[int]) -> bool:
    """Return whether a run is no name: a common word, a letter, or one word at the start of a sentence."""
    if last - first > 1:
        return False
    word = written[first]
    if wording.forms[first] in wording.common or len(word) == 1:
        return True
    return _begins(wording, first, starts) and not (word.isupper() and len(word) > 1)


@cache
def _quotations() -> Any:
    return compiled(
        r'"([^"\n]+)"|“([^“”\n]+)”|„([^“”„\n]+)[“”]|«([^«»\n]+)»|「([^「」\n]+)」|(?<!\w)[‘\']([^‘’\'\n]+(?:\w[’\']\w[^‘’\'\n]*)*)[’\'](?!\w)'
    )
