"""A sample cut into words and sentences once, for every signal that looks at it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from magistrate._deadline import checked
from magistrate._scratch import once
from magistrate.errors import InputError
from magistrate.features.cover import Cover, Passages, Run, covers
from magistrate.features.dates import Calendar
from magistrate.features.mentions import initials
from magistrate.features.quantities import Amounts
from magistrate.features.sequence import WordSequence
from magistrate.features.splitting import sentences
from magistrate.features.wording import Wording, form, language_of, stem, worded
from magistrate.types import Sample, Span

BETWEEN = 1_000  # words with content between two texts: words so far apart are not said together


class Sources:
    """What an output may rely on, the contexts and what was said before, and the question, as words.

    All that is computed of these alone, whatever the output, is computed once. `asked` is the question: what
    repeats it is neither made up nor supported, so signals of wording leave it out of the account.
    """

    def __init__(self, texts: tuple[Wording, ...], asked: Wording | None) -> None:
        self.texts, self.asked = texts, asked
        self._runs: dict[int, frozenset[tuple[str, ...]]] = {}

    @cached_property
    def known(self) -> frozenset[str]:
        """The stems of all words of the texts; of glued words, such as `endStart`, of their parts too."""
        found = set(chain.from_iterable(text.stems for text in self.texts))
        found.update(chain.from_iterable(text.content_stems for text in self.texts))
        for text in self.texts:
            found.update(_parts(text))
        return frozenset(found)

    @cached_property
    def repeated(self) -> frozenset[str]:
        """The stems of the words of the question that no text has: in the output they mean neither."""
        return frozenset(self.asked.stems) - self.known if self.asked is not None else frozenset()

    @cached_property
    def passages(self) -> Passages:
        """The texts' sentences."""
        return Passages([(text, run) for text in self.texts for run in runs(text)])

    def passage_text(self, number: int) -> str:
        """The characters of one of `passages`, up to the next; nothing where there are none."""
        if not len(self.passages):
            return ""
        text, (first, last) = self.passages.runs[number]
        end = text.places[last][0] if last < len(text.places) else len(text.text)
        return text.text[text.places[first][0] : end]

    def runs(self, size: int) -> frozenset[tuple[str, ...]]:
        """All runs of `size` words, none across two texts."""
        if size not in self._runs:
            self._runs[size] = frozenset(
                run
                for text in self.texts
                for run in checked(zip(*(text.forms[at:] for at in range(size)), strict=False))
            )
        return self._runs[size]

    @cached_property
    def sequence(self) -> WordSequence:
        """All words in their order."""
        return WordSequence(list(chain.from_iterable(text.forms for text in self.texts)))

    @cached_property
    def places(self) -> Mapping[str, Sequence[int]]:
        """For each stem where it stands among the words with content; texts are `BETWEEN` words apart."""
        found: dict[str, list[int]] = {}
        at = 0
        for text in self.texts:
            for word in checked(text.content_stems):
                found.setdefault(word, []).append(at)
                at += 1
            at += BETWEEN
        return found

    @cached_property
    def amounts(self) -> Amounts:
        """The numbers."""
        return Amounts(chain.from_iterable(text.quantities for text in self.texts))

    @cached_property
    def values(self) -> frozenset[float]:
        """What the numbers are, whatever their units."""
        return frozenset(each.value for text in self.texts for each in text.quantities)

    @cached_property
    def calendar(self) -> Calendar:
        """The dates."""
        return Calendar(chain.from_iterable(text.dates for text in self.texts))

    @cached_property
    def years(self) -> frozenset[int | None]:
        """The years of the dates."""
        return frozenset(date.year for text in self.texts for date in text.dates)

    @cached_property
    def question(self) -> Sources:
        """The question as if it were the only text."""
        return Sources((self.asked,) if self.asked is not None else (), None)

    @cached_property
    def initials(self) -> frozenset[str]:
        """The initials of runs of capitalized words."""
        return frozenset(chain.from_iterable(map(initials, self.texts)))

    @cached_property
    def bounded(self) -> tuple[str, ...]:
        """The words of each text and of the question, each text one string with a space around each word."""
        return tuple(f" {' '.join(text.forms)} " for text in (*self.texts, *filter(None, [self.asked])))


@dataclass(frozen=True)
class Prepared:
    """What is on trial, as words, and what it may rely on."""

    output: Wording
    said: Sources

    @property
    def known(self) -> frozenset[str]:
        """As `Sources` has it."""
        return self.said.known

    @property
    def repeated(self) -> frozenset[str]:
        """As `Sources` has it."""
        return self.said.repeated

    @cached_property
    def sentences(self) -> tuple[Run, ...]:
        """The output's sentences as runs of words; none is empty."""
        return tuple(runs(self.output))

    @cached_property
    def covers(self) -> tuple[Cover, ...]:
        """What the best passage of the sources leaves uncovered of each sentence."""
        return covers(self.output, self.sentences, self.said.passages, self.repeated)


def prepared(sample: Sample) -> Prepared:
    """A sample cut into words. Raises `InputError` if there is no output yet.

    Of samples that differ in their outputs alone, the rest is cut once in a `scratch`.
    """
    if sample.output is None:
        raise InputError(f"sample {sample.id!r} has no output yet; run its task first")
    output = worded(sample.output)
    given = sample.sources, sample.input or ""
    cut = once(("worded", *given), lambda: _cut(*given))
    language = language_of([output, *cut.texts])
    return Prepared(
        output.spoken(language), once(("sources", language, *given), lambda: _spoken(cut, language))
    )


def _cut(texts: Sequence[str], asked: str) -> Sources:
    """The texts that say anything, cut into words of no language yet."""
    return Sources(
        tuple(worded(text) for text in texts if text.strip()), worded(asked) if asked.strip() else None
    )


def _spoken(cut: Sources, language: str | None) -> Sources:
    asked = None if cut.asked is None else cut.asked.spoken(language)
    return Sources(tuple(text.spoken(language) for text in cut.texts), asked)


def runs(wording: Wording) -> Iterator[Run]:
    """The sentences of a text as runs of its words."""
    starts = [start for start, _ in wording.places]
    for start, end in sentences(wording.text, wording.language or "en"):
        first, last = bisect_left(starts, start), bisect_left(starts, end)
        if first < last:
            yield first, last


def joined(spans: Sequence[Span], text: str) -> tuple[Span, ...]:
    """Spans in their order, neighbours joined where no letter or digit stands between them."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda each: (each.start, each.end)):
        last = found[-1] if found else None
        if last is not None and not any(map(str.isalnum, text[last.end : span.start])):
            found[-1] = Span(last.start, max(last.end, span.end), last.kind)
        else:
            found.append(span)
    return tuple(found)


def _parts(wording: Wording) -> Iterator[str]:
    """The stems of the parts of words in which a small letter is followed by a capital one."""
    for word, (start, end) in checked(zip(wording.forms, wording.places, strict=True)):
        written = wording.text[start:end]
        if written[1:].islower() or written == word or written.isupper():
            continue
        cut = 0
        for at in range(1, len(written)):
            if written[at].isupper() and written[at - 1].islower():
                yield stem(form(written[cut:at]))
                cut = at
        if cut:
            yield stem(form(written[cut:]))
