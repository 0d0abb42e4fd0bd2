"""A text cut into words, once: the form in which each is compared, and where it stands."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import Any

from magistrate._deadline import checked
from magistrate.features.dates import Date, dates
from magistrate.features.quantities import Quantity, quantities
from magistrate.features.scripts import PART, UNSPACED, compiled
from magistrate.features.stopwords import COMMON, STOP
from magistrate.types import Span

SHORTEST_STEM = 3  # letters that an ending leaves at least
ENDINGS = ("ing", "ed", "es", "s", "ly", "e")
PLAIN_PLURAL = 4  # letters from which on a final s is an ending


@dataclass(frozen=True)
class Wording:
    """The words of `text` in their order: `forms` without case and width, `places` their `[start, end)`.

    A character of a script that is written without spaces is a word. `language` says which words are too
    common to carry content; None where no list is known.
    """

    text: str
    forms: tuple[str, ...]
    places: tuple[tuple[int, int], ...]
    language: str | None

    @cached_property
    def stems(self) -> tuple[str, ...]:
        """Each word without its endings; of unspaced scripts pairs of characters, none behind the last."""
        found = [stem(form) for form in checked(self.forms)]
        for at in range(len(found) - 1):
            if self._joined(at):
                found[at] += self.forms[at + 1]
        if len(found) > 1 and self._joined(len(found) - 2):
            found[-1] = ""  # the last one is in the pair before it
        return tuple(found)

    @property
    def common(self) -> frozenset[str]:
        """The words of its language that are too common to carry content."""
        return STOP.get(self.language or "", frozenset())

    @cached_property
    def content(self) -> tuple[int, ...]:
        """The numbers of the words that carry content: neither too common nor a lone letter."""
        common = self.common
        return tuple(
            number
            for number, (form, stem) in enumerate(zip(self.forms, self.stems, strict=True))
            if stem and form not in common and (len(stem) > 1 or not form.isascii() or form.isdigit())
        )

    @cached_property
    def content_stems(self) -> tuple[str, ...]:
        """The stems of `content`."""
        stems = self.stems
        return tuple(stems[number] for number in self.content)

    @cached_property
    def dates(self) -> tuple[Date, ...]:
        """The dates of the text."""
        return tuple(dates(self.text))

    @cached_property
    def quantities(self) -> tuple[Quantity, ...]:
        """The numbers of the text that are no dates."""
        return tuple(quantities(self.text, [date.span for date in self.dates]))

    @cached_property
    def commonest(self) -> tuple[int, ...]:
        """How many of the words are among the commonest of each language of `STOP`."""
        counted = [word for word in self.forms if word in COMMON]
        return tuple(sum(word in words for word in counted) for words in STOP.values())

    def spoken(self, language: str | None) -> Wording:
        """The same words, of a language."""
        return replace(self, language=language)

    def span(self, first: int, last: int) -> Span:
        """Where the words from number `first` to `last` stand, both included."""
        return Span(self.places[first][0], self.places[last][1])

    def _joined(self, at: int) -> bool:
        """Whether this word and the next are characters of one unspaced run."""
        return (
            self.places[at][1] == self.places[at + 1][0]
            and not self.forms[at].isascii()
            and not self.forms[at + 1].isascii()
        )


def worded(text: str, language: str | None = None) -> Wording:
    """`text` cut into words.

    >>> worded("L'été, 25 °C: 東京!").forms
    ('l', 'été', '25', 'c', '東', '京')
    """
    forms: list[str] = []
    places: list[tuple[int, int]] = []
    for found in checked(_pattern().finditer(text)):
        forms.append(form(found[0]))
        places.append(found.span())
    return Wording(text, tuple(forms), tuple(places), language)


@lru_cache(maxsize=1 << 16)
def form(word: str) -> str:
    """A word without case and width."""
    return word.lower() if word.isascii() else unicodedata.normalize("NFKC", word).casefold()


@lru_cache(maxsize=1 << 16)
def stem(form: str) -> str:
    """A word without the English endings of number, tense and manner; a light one, after Harman (1991).

    Words of other languages lose the same endings everywhere, so that they are still compared alike.
    """
    if len(form) <= SHORTEST_STEM or not form.isalpha():
        return form
    if form.endswith("ies") and len(form) > SHORTEST_STEM + 1:
        return form[:-3] + "y"
    for ending in ENDINGS:
        if form.endswith(ending) and len(form) - len(ending) >= SHORTEST_STEM:
            if ending == "s" and (form.endswith(("ss", "us", "is"))):
                return form
            cut = form[: -len(ending)]
            if ending in ("ing", "ed") and len(cut) > SHORTEST_STEM and cut[-1] == cut[-2]:
                cut = cut[:-1]
            return cut
    return form


def language_of(texts: Sequence[Wording]) -> str | None:
    """The language, an ISO 639 code, whose commonest words are most in `texts`; None where none are there."""
    counts = [sum(several) for several in zip(*(text.commonest for text in texts), strict=True)]
    most = max(counts, default=0)
    return list(STOP)[counts.index(most)] if most else None


@cache
def _pattern() -> Any:
    return compiled(rf"(?V1)[{UNSPACED}]\p{{M}}*|(?:{PART}|[\p{{M}}--[{UNSPACED}]])+")
