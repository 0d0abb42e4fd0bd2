"""A faithful sample split into words, sentences, names and numbers with their places, and edits of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from typing import NamedTuple, TypeVar

from magistrate.training.synthetic.lexicon import Lexicon, listed, word_set
from magistrate.types import Sample, Span

WORD = re.compile(r"[^\W_]+(?:['’.&-][^\W_]+)*")
NUMBER = re.compile(
    r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\w,])|(?<![\w.,])\d+(?:\.\d+)?(?![\d.,]*\d|\w)"
)
SENTENCE_END = re.compile(r"(?<=[.!?])['\")\]”’]*\s+(?=[\"'(\[“‘]?[\w])|\n+")
ABBREVIATIONS = re.compile(
    rf"(?:\b(?:{'|'.join(map(re.escape, sorted(word_set('abbreviations'))))})|\b[A-Z])\.$"
)
STOP = word_set("stop")
TITLES = word_set("titles")
PARTICLES = word_set("particles")
# Capitalised words of transcripts and web pages that are not names.
NO_NAMES = word_set("no_names")
LONGEST = 5  # most words of a name; longer runs are headlines and tables
CALENDAR = frozenset(listed("months") + listed("weekdays"))


class Word(NamedTuple):
    """A word and its place. It is a tuple, because a context has thousands."""

    start: int
    end: int
    text: str

    @property
    def lower(self) -> str:
        return self.text.lower()


class Place(NamedTuple):
    """Characters `[start, end)` and their text."""

    start: int
    end: int
    text: str


class Text:
    """A text whose parts are computed on first use."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def words(self) -> list[Word]:
        return [Word(m.start(), m.end(), m.group()) for m in WORD.finditer(self.text)]

    @cached_property
    def vocabulary(self) -> frozenset[str]:
        """The lower-case words, without possessive endings."""
        return frozenset(map(plain, set(WORD.findall(self.text.lower()))))

    @cached_property
    def sentences(self) -> list[Place]:
        """Sentences without surrounding white space. Line ends separate sentences too."""
        found: list[Place] = []
        start = 0
        for match in SENTENCE_END.finditer(self.text):
            if "\n" not in match.group() and ABBREVIATIONS.search(
                self.text, max(start, match.start() - 12), match.start()
            ):
                continue
            end = match.start() + len(match.group().rstrip())
            self._add(found, start, end)
            start = match.end()
        self._add(found, start, len(self.text))
        return found

    def _add(self, found: list[Place], start: int, end: int) -> None:
        piece = self.text[start:end]
        start += len(piece) - len(piece.lstrip())
        if stripped := piece.strip():
            found.append(Place(start, start + len(stripped), stripped))

    @cached_property
    def numbers(self) -> list[Place]:
        return [Place(m.start(), m.end(), m.group()) for m in NUMBER.finditer(self.text)]

    @cached_property
    def starts(self) -> frozenset[int]:
        """The offsets of the first word of each sentence, quotation or title."""
        firsts = {
            match.end() for match in re.finditer(r"(?:^|[.!?:;\n\"“‘—–]|\s['-])\s*[\"'(“‘]*", self.text)
        }
        return frozenset(firsts | {each.start for each in self.sentences})

    @cached_property
    def inner_capitals(self) -> frozenset[str]:
        """Capitalised words that do not begin a sentence."""
        return frozenset(
            word.text
            for word in self.words
            if word.text[0].isupper() and word.start not in self.starts and word.text != "I"
        )

    @cached_property
    def titled(self) -> bool:
        """Whether most words are capitalised, as in a headline."""
        letters = [word for word in self.words if word.text[0].isalpha() and word.lower not in STOP]
        capitals = sum(word.text[0].isupper() for word in letters)
        return len(letters) > 4 and capitals > 0.7 * len(letters)

    def names(self, proper: frozenset[str]) -> list[Place]:
        """Return runs of capitalised words. The first word of a sentence counts if it is in `proper`."""
        if self.titled:
            return []
        found: list[Place] = []
        run: list[Word] = []
        for word in self.words:
            if run and word.text in PARTICLES and word.start - run[-1].end < 8:
                continue  # such as "of" in University of Texas
            if self._capital(word, proper):
                if run and not self._joins(run[-1], word):
                    self._close(found, run)
                    run = []
                run.append(word)
            else:
                self._close(found, run)
                run = []
        self._close(found, run)
        return found

    def _capital(self, word: Word, proper: frozenset[str]) -> bool:
        text = word.text
        if (
            not text[0].isupper()
            or text in CALENDAR
            or text in NO_NAMES
            or text.lower() in STOP
            or ("'" in text and len(text) < 5)
        ):
            return False
        return word.start not in self.starts or text in proper

    def _joins(self, last: Word, word: Word) -> bool:
        """Return whether two capitalised words belong to one name."""
        between = self.text[last.end : word.start]
        if between == ". ":
            return last.text in TITLES or len(last.text) == 1
        return between == " " or (
            between[:1] == between[-1:] == " " and PARTICLES.issuperset(between.split())
        )

    def _close(self, found: list[Place], run: list[Word]) -> None:
        if 0 < len(run) <= LONGEST:
            end = run[-1].end
            text = self.text[run[0].start : end]
            for mark in ("'s", "’s"):
                if text.endswith(mark):
                    text, end = text[:-2], end - 2
            if len(text) > 1 and text not in TITLES:
                found.append(Place(run[0].start, end, text))


def plain(word: str) -> str:
    """Return a word without its possessive ending."""
    return word.removesuffix("'s").removesuffix("’s")


def content(words: Iterable[str]) -> list[str]:
    """Return the lower-case words that carry meaning."""
    return [word for word in words if word not in STOP and (len(word) > 2 or word.isdigit())]


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Edit:
    """New text for `[start, end)` of the output. `mark` is the range of wrong characters in the new text."""

    start: int
    end: int
    text: str
    mark: tuple[int, int] | None = None

    @classmethod
    def wrong(cls, start: int, end: int, text: str) -> Edit:
        """Return an edit whose characters are all wrong, except for surrounding white space."""
        lead = len(text) - len(text.lstrip())
        return cls(start, end, text, (lead, len(text.rstrip())))


@dataclass(frozen=True, slots=True)
class Variant:
    """A changed output with its wrong spans. `context` is set if the context was changed instead or too."""

    output: str
    spans: tuple[Span, ...] = ()
    context: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Pools:
    """Names, sentences, clauses and words of all samples, to insert into other samples."""

    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sentences: Sequence[tuple[str, str]] = ()
    by_word: Mapping[str, Sequence[int]] = field(default_factory=dict)
    clauses: Sequence[str] = ()
    words: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(eq=False)
class Draft:
    """A faithful sample split into its parts, with everything that changes of it need."""

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
        """The lower-case words of the sources."""
        return frozenset().union(*(source.vocabulary for source in self.sources))

    @cached_property
    def source_text(self) -> str:
        return "\n".join(source.text for source in self.sources).lower()

    @cached_property
    def proper(self) -> frozenset[str]:
        """Words capitalised inside a sentence, or before such a word and unknown to the dictionary."""
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
        """The names in the sources, without duplicates."""
        found = (name.text for source in self.sources for name in source.names(self.proper))
        return list(dict.fromkeys(found))

    @cached_property
    def source_nouns(self) -> dict[str, list[str]]:
        """The common nouns of the sources by their form, without duplicates."""
        found: dict[str, dict[str, None]] = {}
        for word in dict.fromkeys(word.text for source in self.sources for word in source.words[:600]):
            plain_word = word.isalpha() and word.islower() and len(word) > 3 and word not in STOP
            if plain_word and (form := self.lexicon.is_noun(word)):
                found.setdefault(form, {})[word] = None
        return {form: list(words) for form, words in found.items()}

    def near(self, word: str, other: str) -> bool:
        """Return whether two words are neighbours somewhere in the sources, and so may refer to one thing."""
        return re.search(
            rf"\b{re.escape(word)}\W+(?:\w+\W+)?{re.escape(other)}\b", self.source_text
        ) is not None or (
            re.search(rf"\b{re.escape(other)}\W+(?:\w+\W+)?{re.escape(word)}\b", self.source_text) is not None
        )

    @cached_property
    def partners(self) -> frozenset[tuple[str, str]]:
        """Pairs of words that occur in one name, so that two names with them may have the same bearer."""
        pairs: set[tuple[str, str]] = set()
        for name in (*self.source_names, *(each.text for each in self.names)):
            words = name.lower().split()
            pairs.update((first, second) for first in words for second in words)
        return frozenset(pairs)

    def same_bearer(self, name: str, other: str) -> bool:
        """Return whether two names may have one bearer: a shared word, initials, or both in a longer name."""
        if alike(name, other):
            return True
        return any((a, b) in self.partners for a in name.lower().split() for b in other.lower().split())

    def novel(self, text: str) -> list[str]:
        """Return the words of a text that carry meaning and do not occur in the sources."""
        return [
            word for word in content(plain(word.lower) for word in Text(text).words) if word not in self.known
        ]

    def with_variant(self, variant: Variant) -> Draft:
        """Return the draft of a harmless variant. Cached parts of unchanged sources are reused."""
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
        ):  # a name stays a name with another context
            if name in self.__dict__:
                made.__dict__[name] = self.__dict__[name]
        return made

    def sentence_at(self, place: int) -> Place:
        """Return the sentence of the output that contains a place."""
        return next(each for each in self.output.sentences if each.start <= place < each.end)


def sort_of(name: str, lexicon: Lexicon) -> str:
    """Guess the bearer of a name: place, group or person; if unclear, the form: acronym, single or long."""
    words = name.split()
    if name.isupper() and len(name) < 7:
        return "acronym"
    if any(word.lower() in GROUPS for word in words):
        return "group"
    if lexicon.is_place(name):
        return "place"
    return "person" if len(words) == 2 else "single" if len(words) == 1 else "long"


def alike(name: str, other: str) -> bool:
    """Return whether two names share a word, or one is the initials or the beginning of the other."""
    mine, theirs = name.lower().replace(".", ""), other.lower().replace(".", "")
    first = "".join(word[0] for word in mine.split() if word not in STOP)
    second = "".join(word[0] for word in theirs.split() if word not in STOP)
    shared = set(re.split(r"[\s-]+", mine)) & set(re.split(r"[\s-]+", theirs)) - STOP
    return bool(shared) or mine in (second, theirs) or theirs == first or mine[:4] == theirs[:4]


GROUPS = word_set("groups")


def edited(text: str, edits: Sequence[Edit]) -> Variant | None:
    """Return the text with all edits and their marks as spans; None if edits overlap or change nothing."""
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
    """Return a word with the capitalisation of another."""
    if len(like) > 1 and like.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if like[:1].isupper() else word


def shuffled(random: Random, items: Sequence[T]) -> list[T]:
    """Return the items in a random order."""
    return random.sample(items, len(items))
