"""What the kinds of change work on and what they make: an original taken apart, edits, variants."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from typing import TypeVar

from magistrate.training.synthetic.lexicon import Lexicon
from magistrate.training.synthetic.text import STOP, Place, Text, content, plain
from magistrate.training.synthetic.words import word_set
from magistrate.types import Sample, Span

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Edit:
    """New characters for `[start, end)` of the output. `mark` says which of the new ones are wrong."""

    start: int
    end: int
    text: str
    mark: tuple[int, int] | None = None

    @classmethod
    def wrong(cls, start: int, end: int, text: str) -> Edit:
        """An edit of which all characters but the white space around them are wrong."""
        lead = len(text) - len(text.lstrip())
        return cls(start, end, text, (lead, len(text.rstrip())))


@dataclass(frozen=True, slots=True)
class Variant:
    """A changed output with what is wrong in it; `context` where that was changed instead or too."""

    output: str
    spans: tuple[Span, ...] = ()
    context: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Pools:
    """Names and sentences of all samples, for what is taken from elsewhere."""

    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sentences: Sequence[tuple[str, str]] = ()
    by_word: Mapping[str, Sequence[int]] = field(default_factory=dict)
    clauses: Sequence[str] = ()
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(eq=False)
class Draft:
    """A faithful sample taken apart, with what the kinds need to change it."""

    sample: Sample
    lexicon: Lexicon
    pools: Pools = field(default_factory=Pools)

    @cached_property
    def output(self) -> Text:
        return Text(self.sample.output or "")

    @cached_property
    def sources(self) -> tuple[Text, ...]:
        """The contexts, the messages and the question."""
        return tuple(map(Text, (*self.sample.sources, *([self.sample.input] if self.sample.input else ()))))

    @cached_property
    def known(self) -> frozenset[str]:
        """Lower-case words of the sources."""
        return frozenset().union(*(source.vocabulary for source in self.sources))

    @cached_property
    def source_text(self) -> str:
        return "\n".join(source.text for source in self.sources).lower()

    @cached_property
    def proper(self) -> frozenset[str]:
        """Words that stand with a capital inside some sentence, or that no dictionary has as common words."""
        texts = (self.output, *self.sources)
        inner = frozenset().union(*(text.inner_capitals for text in texts))
        first = {
            word.text
            for text in texts
            for word, after in zip(text.words, text.words[1:], strict=False)
            if word.start in text.starts
            and word.text[0].isupper()
            and after.text in inner
            and after.start == word.end + 1
            and not self.lexicon.knows(word.lower)
        }
        return inner | first

    @cached_property
    def names(self) -> list[Place]:
        """The names in the output."""
        return self.output.names(self.proper)

    @cached_property
    def source_names(self) -> list[str]:
        """The names in the sources, each once."""
        found = (name.text for source in self.sources for name in source.names(self.proper))
        return list(dict.fromkeys(found))

    @cached_property
    def source_nouns(self) -> dict[str, list[str]]:
        """The common nouns of the sources by their form, each once."""
        found: dict[str, dict[str, None]] = {}
        for word in dict.fromkeys(word.text for source in self.sources for word in source.words[:600]):
            plain_word = word.isalpha() and word.islower() and len(word) > 3 and word not in STOP
            if plain_word and (form := self.lexicon.is_noun(word)):
                found.setdefault(form, {})[word] = None
        return {form: list(words) for form, words in found.items()}

    def near(self, word: str, other: str) -> bool:
        """Whether two words stand side by side somewhere in the sources: such may be of one thing."""
        return re.search(
            rf"\b{re.escape(word)}\W+(?:\w+\W+)?{re.escape(other)}\b", self.source_text
        ) is not None or (
            re.search(rf"\b{re.escape(other)}\W+(?:\w+\W+)?{re.escape(word)}\b", self.source_text) is not None
        )

    @cached_property
    def partners(self) -> frozenset[tuple[str, str]]:
        """Pairs of words that stand in one name somewhere: such names may be of one and the same."""
        pairs: set[tuple[str, str]] = set()
        for name in (*self.source_names, *(each.text for each in self.names)):
            words = name.lower().split()
            pairs.update((first, second) for first in words for second in words)
        return frozenset(pairs)

    def same_bearer(self, name: str, other: str) -> bool:
        """Whether two names may be of one and the same: a shared word, initials, or both in a longer name."""
        if alike(name, other):
            return True
        return any((a, b) in self.partners for a in name.lower().split() for b in other.lower().split())

    def novel(self, text: str) -> list[str]:
        """The words of a text that carry meaning and stand nowhere in the sources."""
        return [
            word for word in content(plain(word.lower) for word in Text(text).words) if word not in self.known
        ]

    def with_variant(self, variant: Variant) -> Draft:
        """The draft of a harmless variant; what is known of the sources is kept where they stay."""
        context = self.sample.context if variant.context is None else variant.context
        made = Draft(replace(self.sample, output=variant.output, context=context), self.lexicon, self.pools)
        same = (
            ("sources", "known", "source_text", "source_nouns", "source_names")
            if variant.context is None
            else ()
        )
        for name in (
            *same,
            "proper",
        ):  # what stands with a capital somewhere is a name under another context, too
            if name in self.__dict__:
                made.__dict__[name] = self.__dict__[name]
        return made

    def sentence_at(self, place: int) -> Place:
        """The sentence of the output that holds a place."""
        return next(each for each in self.output.sentences if each.start <= place < each.end)


def sort_of(name: str, lexicon: Lexicon) -> str:
    """A guess of what bears a name: place, group, person, or acronym, single, long where it is less clear."""
    words = name.split()
    if name.isupper() and len(name) < 7:
        return "acronym"
    if any(word.lower() in GROUPS for word in words):
        return "group"
    if lexicon.is_place(name):
        return "place"
    return "person" if len(words) == 2 else "single" if len(words) == 1 else "long"


def alike(name: str, other: str) -> bool:
    """Whether two names share a word, or one is the initials or the beginning of the other."""
    mine, theirs = name.lower().replace(".", ""), other.lower().replace(".", "")
    first = "".join(word[0] for word in mine.split() if word not in STOP)
    second = "".join(word[0] for word in theirs.split() if word not in STOP)
    shared = set(re.split(r"[\s-]+", mine)) & set(re.split(r"[\s-]+", theirs)) - STOP
    return bool(shared) or mine in (second, theirs) or theirs == first or mine[:4] == theirs[:4]


GROUPS = word_set("groups")


def edited(text: str, edits: Sequence[Edit]) -> Variant | None:
    """The text with all edits made and their marks as spans; None where two overlap or none changes it."""
    pieces: list[str] = []
    spans: list[Span] = []
    at = length = 0
    for edit in sorted(edits, key=lambda each: each.start):
        if edit.start < at:
            return None
        pieces += [text[at : edit.start], edit.text]
        length += edit.start - at
        if edit.mark is not None and edit.mark[1] > edit.mark[0]:
            spans.append(Span(length + edit.mark[0], length + edit.mark[1]))
        length += len(edit.text)
        at = edit.end
    output = "".join([*pieces, text[at:]])
    return None if output == text else Variant(output, tuple(spans))


def cased(word: str, like: str) -> str:
    """A word with the capitals of another."""
    if len(like) > 1 and like.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if like[:1].isupper() else word


def shuffled(random: Random, items: Sequence[T]) -> list[T]:
    """The items in a random order."""
    return random.sample(items, len(items))
