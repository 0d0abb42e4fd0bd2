"""A text taken apart: words with their places, sentences, names and numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

from magistrate.training.synthetic.words import listed, word_set

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
# Capitalised words of transcripts and web pages that name nothing.
NO_NAMES = word_set("no_names")
LONGEST = 5  # words of a name; longer runs are headlines and tables
CALENDAR = frozenset(listed("months") + listed("weekdays"))


class Word(NamedTuple):
    """A word and where it stands; a tuple, as a context has thousands."""

    start: int
    end: int
    text: str

    @property
    def lower(self) -> str:
        return self.text.lower()


class Place(NamedTuple):
    """Characters `[start, end)` and what stands there."""

    start: int
    end: int
    text: str


class Text:
    """A text whose parts are found once, when they are asked for."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def words(self) -> list[Word]:
        return [Word(m.start(), m.end(), m.group()) for m in WORD.finditer(self.text)]

    @cached_property
    def vocabulary(self) -> frozenset[str]:
        """The lower-case words, each without the mark of a possessive."""
        return frozenset(map(plain, set(WORD.findall(self.text.lower()))))

    @cached_property
    def sentences(self) -> list[Place]:
        """Sentences without the white space around them; line ends separate them, too."""
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
        """Where the first word of each sentence, quotation or title stands."""
        firsts = {
            match.end() for match in re.finditer(r"(?:^|[.!?:;\n\"“‘—–]|\s['-])\s*[\"'(“‘]*", self.text)
        }
        return frozenset(firsts | {each.start for each in self.sentences})

    @cached_property
    def inner_capitals(self) -> frozenset[str]:
        """Words with a capital where no sentence begins."""
        return frozenset(
            word.text
            for word in self.words
            if word.text[0].isupper() and word.start not in self.starts and word.text != "I"
        )

    @cached_property
    def titled(self) -> bool:
        """Whether nearly all words have a capital, as in a headline, or none has."""
        letters = [word for word in self.words if word.text[0].isalpha() and word.lower not in STOP]
        capitals = sum(word.text[0].isupper() for word in letters)
        return len(letters) > 4 and capitals > 0.7 * len(letters)

    def names(self, proper: frozenset[str]) -> list[Place]:
        """Runs of capitalised words; the first of a sentence counts where `proper` has it."""
        if self.titled:
            return []
        found: list[Place] = []
        run: list[Word] = []
        for word in self.words:
            if run and word.text in PARTICLES and word.start - run[-1].end < 8:
                continue  # University of Texas
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
        """Whether two capitalised words are of one name."""
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
    """A word without the mark of a possessive."""
    return word.removesuffix("'s").removesuffix("’s")


def content(words: Iterable[str]) -> list[str]:
    """The lower-case words that carry meaning."""
    return [word for word in words if word not in STOP and (len(word) > 2 or word.isdigit())]
