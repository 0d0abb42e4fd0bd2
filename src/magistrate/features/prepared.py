"""A sample split into words, sentences and passages once, for all text signals."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import chain, pairwise
from typing import NamedTuple

from magistrate._work import check, checked, once
from magistrate.errors import InputError
from magistrate.features.facts import Amounts, Calendar, Date, Quantity, dates_and_numbers, in_unit
from magistrate.features.splitting import sentences, without_separators
from magistrate.features.words import Run, Wording, form, language_of, stem, word_runs, worded
from magistrate.types import Sample, Span

MOST_NAMED = 4  # pieces quoted in a reason
LONGEST = 256  # words aligned together: memory grows with the product of both lengths
BLOCK = 4096  # words whose places are noted together
MANY = 256  # passages; fewer are not worth an array and the import of numpy
MOST_INITIALS = 8  # letters of an abbreviation
_LINKS = "of the de la le du da di del van von der den bin al el y e und and for"
LINKS = frozenset(_LINKS.split())
HUMP = re.compile(  # where a part of a camel-case word may end
    "[A-Z\u00c0-\u00de\u0100-\u1fff\u2102-\U0010ffff](?<=[a-z\u00aa-\u1fff\u2071-\U0010ffff].)"
)
BETWEEN = 1_000  # positions between two texts, so that words of different texts are never near each other


@dataclass(frozen=True, slots=True)
class Reading:
    """A signal's value in [0, 1], higher being more suspicious, with the parts of the output it flags.

    `value` is None if it is undefined, and `reason` then says why. Otherwise `reason` describes the
    finding. `spans` are offsets into the output.
    """

    value: float | None
    spans: tuple[Span, ...] = ()
    reason: str = ""


def undefined(reason: str) -> Reading:
    """Return the reading of a signal that has nothing to look at."""
    return Reading(None, (), reason)


def listed(pieces: Sequence[str]) -> str:
    """Join pieces of text for a sentence: without duplicates, the first few by name, the others as a count.

    >>> listed(["1,998", "12 km", "1,998"])
    '1,998 and 12 km'
    """
    several = list(dict.fromkeys(pieces))
    named = several[:MOST_NAMED]
    if (rest := len(several) - len(named)) > 0:
        return f"{', '.join(named)} and {rest} more"
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"


class WordSequence:
    """A sequence of words. Each word is stored with a number whose bits are the places where it stands."""

    def __init__(self, words: Sequence[str]) -> None:
        self._places = dict.fromkeys(words, 0)
        for begin in range(0, len(words), BLOCK):  # long numbers are changed once a block, not once a word
            some = words[begin : begin + BLOCK]
            places = dict.fromkeys(some, 0)
            for at, word in enumerate(some):
                places[word] |= 1 << at
            for word, several in checked(places.items(), 16):
                self._places[word] |= several << begin

    def shared(self, words: Sequence[str]) -> Iterator[int]:
        """Yield the indices in `words` of a longest common subsequence with this sequence, in no order.

        Words that the sequence has are aligned in stretches of at most `LONGEST`.
        """
        known = [at for at, word in enumerate(words) if word in self._places]
        for begin in range(0, len(known), LONGEST):
            yield from self._aligned(words, known[begin : begin + LONGEST])

    def _aligned(self, words: Sequence[str], known: Sequence[int]) -> Iterator[int]:
        """Yield those of the indices `known` whose words are aligned, the last first (Hyyrö 2004).

        A row is about the first words. Its bit is 0 at each place whose word makes their longest common
        subsequence with this sequence longer.
        """
        row, rows = -1, [-1]
        for at in checked(known, 16):
            places = row & self._places[words[at]]
            row = (row + places) | (row - places)
            rows.append(row)
        before = -1  # the bits of the places that are still to be aligned; at first all
        for number in range(len(known), 0, -1):
            changed = (rows[number] ^ rows[number - 1]) & before
            last = changed.bit_length() - 1
            # The word makes the subsequence longer if the last change is one from 1 to 0.
            if last >= 0 and rows[number - 1] >> last & 1:
                yield known[number - 1]
                before = (1 << last) - 1


@dataclass(frozen=True, slots=True)
class Cover:
    """How well a sentence is covered by its best passage.

    `words` is its number of content words. `lack` is the share in [0, 1] of their weight that `passage`,
    the index of the best passage, does not have.
    """

    span: Span
    words: int
    lack: float
    passage: int


class PassageIndex:
    """Runs of words of the sources, with an index from stems to passages."""

    def __init__(self, passages: Sequence[tuple[Wording, Run]]) -> None:
        self.runs = tuple(passages)
        self._having: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self.runs)

    def having(self, stems: Iterable[str]) -> Mapping[str, Sequence[int]]:
        """Return the indices of the passages with a word of each stem, in order; maybe of other stems too."""
        new = frozenset(stems) - self._having.keys()
        self._having.update({stem: [] for stem in new})
        for number, (source, (first, last)) in checked(enumerate(self.runs if new else ()), 64):
            for each in new.intersection(source.stems[first:last]):
                self._having[each].append(number)
        return self._having


def covers(
    output: Wording,
    sentences: Sequence[Run],
    passages: PassageIndex,
    ignored: Container[str] = frozenset(),
    restated: Container[int] = frozenset(),
) -> tuple[Cover, ...]:
    """Compare each sentence with the passage that covers most of it.

    Skips sentences without content words; words with `ignored` stems and those at `restated` places do not
    count. A word is weighted by
    its inverse frequency among the passages (Spärck Jones 1972), in a form that gives the most weight to
    words that no passage has.
    """
    content = frozenset(
        number for number in output.content if output.stems[number] not in ignored and number not in restated
    )
    found_in = passages.having(map(output.stems.__getitem__, content))
    n = max(len(passages), 1)
    found = []
    for first, last in sentences:
        check()
        counted = [output.stems[at] for at in range(first, last) if at in content]
        if counted:
            having = list(map(found_in.__getitem__, dict.fromkeys(counted)))
            weights = [math.log1p(n / (len(each) + 0.5)) for each in having]
            whole = 0.0
            for weight in weights:  # one after the other: `sum` rounds otherwise on some Pythons
                whole += weight
            best, covered = _best(having, weights, n)
            lack = max(0.0, 1.0 - covered / whole)
            found.append(Cover(output.span(first, last - 1), len(counted), lack, best))
    return tuple(found)


def _best(having: Sequence[Sequence[int]], weights: Sequence[float], n: int) -> tuple[int, float]:
    """Return the first of `n` passages with the most weight, and its weight."""
    if n <= MANY:
        covered = [0.0] * n
        for numbers, weight in zip(having, weights, strict=True):
            for number in numbers:
                covered[number] += weight
        most = max(covered)
        return covered.index(most), most
    import numpy as np

    sums = np.zeros(n)
    for numbers, weight in zip(having, weights, strict=True):
        if numbers:
            sums[np.asarray(numbers)] += weight
    best = int(sums.argmax())
    return best, float(sums[best])


class Sources:
    """The texts that an output may rely on (contexts and earlier messages), and the question, as words.

    Everything computed from these alone, independent of the output, is computed once. `asked` is the
    question. Words that repeat it are neither made up nor supported, so signals of wording ignore them.
    """

    def __init__(self, texts: tuple[Wording, ...], asked: Wording | None) -> None:
        self.texts, self.asked = texts, asked
        self._runs: dict[int, frozenset[tuple[str, ...]]] = {}

    @cached_property
    def known(self) -> frozenset[str]:
        """The stems of all words of the texts, and of the parts of compound words such as `endStart`."""
        stems = chain.from_iterable(text.stems for text in self.texts)
        humped = [text for text in self.texts if HUMP.search(text.text)]
        written = set(chain.from_iterable(text.written for text in humped))
        return frozenset(chain(stems, *map(_parts, checked(written))))

    @cached_property
    def repeated(self) -> frozenset[str]:
        """The stems of the question that no text has. In the output they count neither way."""
        return frozenset(self.asked.stems) - self.known if self.asked is not None else frozenset()

    @cached_property
    def denied(self) -> frozenset[str]:
        """The stems of the content words that the texts negate somewhere."""
        return frozenset(text.stems[at] for text in self.texts for at in text.negated)

    @cached_property
    def affirmed(self) -> frozenset[str]:
        """The stems of the content words that the texts do not negate somewhere."""
        found: set[str] = set()
        for text in self.texts:
            check()
            if text.negated:
                found.update(text.stems[at] for at in text.content if at not in text.negated)
            else:
                found.update(text.content_stems)
        return frozenset(found)

    @cached_property
    def passages(self) -> PassageIndex:
        """The texts' sentences, as passages."""
        return PassageIndex([(text, run) for text in self.texts for run in runs(text)])

    def passage_text(self, number: int) -> str:
        """Return the characters of a passage, up to the next one; empty if there are no passages."""
        if not len(self.passages):
            return ""
        text, (first, last) = self.passages.runs[number]
        end = text.starts[last] if last < len(text.starts) else len(text.text)
        return text.text[text.starts[first] : end]

    def runs(self, size: int) -> frozenset[tuple[str, ...]]:
        """Return all runs of `size` words, none across two texts."""
        if size not in self._runs:
            self._runs[size] = frozenset(
                run for text in self.texts for run in checked(word_runs(text.forms, size))
            )
        return self._runs[size]

    @cached_property
    def places(self) -> Mapping[str, Sequence[int]]:
        """The positions of each stem among the content words; texts are `BETWEEN` positions apart."""
        found: dict[str, list[int]] = {}
        at = 0
        for text in self.texts:
            for word in checked(text.content_stems):
                found.setdefault(word, []).append(at)
                at += 1
            at += BETWEEN
        return found

    @cached_property
    def _facts(self) -> tuple[tuple[tuple[Date, ...], tuple[Quantity, ...]], ...]:
        """The dates of each text, and its numbers that are not dates."""
        return tuple(dates_and_numbers(text) for text in self.texts)

    @property
    def dates(self) -> Iterator[Date]:
        """All dates of the texts."""
        return (date for dates, _ in self._facts for date in dates)

    @property
    def quantities(self) -> Iterator[Quantity]:
        """All numbers of the texts that are not dates."""
        return (number for _, numbers in self._facts for number in numbers)

    @cached_property
    def written(self) -> Mapping[tuple[str, float], Mapping[float, str]]:
        """How the texts write their exact amounts: by `Quantity.amount`, for each size of a unit."""
        found: dict[tuple[str, float], dict[float, str]] = {}
        for text, (_, numbers) in zip(self.texts, self._facts, strict=True):
            for each in checked(numbers):
                if (amount := each.amount) is not None:
                    words = text.text[each.span.start : each.span.end]
                    found.setdefault(amount, {}).setdefault(each.worth, words)
        return found

    @cached_property
    def units(self) -> Mapping[str, Mapping[float, str]]:
        """An amount of each unit in the texts, as it is written: by measure and size of the unit."""
        found: dict[str, dict[float, str]] = {}
        for (measure, _), units in self.written.items():
            found.setdefault(measure, {}).update(units)
        return found

    @cached_property
    def amounts(self) -> Amounts:
        """An index of the numbers."""
        return Amounts(self.quantities)

    @cached_property
    def values(self) -> frozenset[float]:
        """The values of the numbers, without units."""
        return frozenset(each.value for each in self.quantities)

    def say(self, fact: Quantity | Date, *, alike: bool = False) -> bool:
        """Return whether the texts contain a number, maybe as a year, or a date, in one place or several.

        With `alike`, a number without a unit does not match one with a unit.
        """
        if isinstance(fact, Date):
            return self.calendar.says(fact) or (fact.is_year and fact.year in self.values)
        return self.amounts.say(fact, alike=alike) or (fact.measure is None and fact.value in self.years)

    @cached_property
    def calendar(self) -> Calendar:
        """An index of the dates."""
        return Calendar(self.dates)

    @cached_property
    def years(self) -> frozenset[int | None]:
        """The years of the dates."""
        return frozenset(date.year for date in self.dates)

    @cached_property
    def question(self) -> Sources:
        """The question as the only text."""
        return Sources((self.asked,) if self.asked is not None else (), None)

    @cached_property
    def initials(self) -> frozenset[str]:
        """The initials of runs of capitalized words."""
        return frozenset(chain.from_iterable(map(initials, self.texts)))

    @cached_property
    def spaced(self) -> tuple[str, ...]:
        """Each text as one string of words with a space around each word."""
        return tuple(f" {' '.join(text.forms)} " for text in self.texts)


class Converted(NamedTuple):
    """An amount of the output, how it reads in a unit of the sources, and whether these have it."""

    span: Span
    words: str
    known: bool


@dataclass(frozen=True)
class Prepared:
    """The output as words, and its sources."""

    output: Wording
    said: Sources

    @cached_property
    def _facts(self) -> tuple[tuple[Date, ...], tuple[Quantity, ...]]:
        return dates_and_numbers(self.output)

    @property
    def dates(self) -> tuple[Date, ...]:
        """The output's dates."""
        return self._facts[0]

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """The output's numbers that are not dates."""
        return self._facts[1]

    @cached_property
    def sentences(self) -> tuple[Run, ...]:
        """The output's sentences as runs of words; none is empty."""
        return tuple(runs(self.output))

    @cached_property
    def sequence(self) -> WordSequence:
        """Those words of the sources that the output has too, in order."""
        mine = frozenset(self.output.forms)
        return WordSequence([word for text in self.said.texts for word in text.forms if word in mine])

    @cached_property
    def restated(self) -> frozenset[int]:
        """The places of words of numbers and dates that the sources give in other words or units."""
        starts, stems = self.output.starts, self.output.stems
        found: set[int] = set()
        facts: list[Quantity | Date] = [*self.quantities, *self.dates]
        for fact in facts:
            places = range(bisect_left(starts, fact.span.start), bisect_left(starts, fact.span.end))
            if any(stems[at] not in self.said.known for at in places) and self.said.say(fact, alike=True):
                found.update(places)
        return frozenset(found)

    @cached_property
    def converted(self) -> tuple[Converted, ...]:
        """The output's exact amounts as the sources would write them, where these use other units.

        An amount of the sources is written as there. Another one, if its unit is not in the sources, is
        written in the one nearest to it in size that gives a short number.
        """
        return tuple(self._converted())

    def _converted(self) -> Iterator[Converted]:
        for each in checked(self.quantities):
            if (amount := each.amount) is None:
                continue
            same, units = self.said.written.get(amount), self.said.units.get(amount[0], {})
            if same is not None:
                if each.worth not in same:
                    yield Converted(each.span, next(iter(same.values())), True)
            elif each.worth not in units:
                nearest = sorted(units, key=partial(_times, each.worth))
                words = (in_unit(each, worth, units[worth]) for worth in nearest)
                if (found := next(filter(None, words), None)) is not None:
                    yield Converted(each.span, found, False)

    @property
    def is_copied(self) -> bool:
        """Whether the output, with a content word, stands in one text of the sources word for word."""
        words = f" {' '.join(self.output.forms)} "
        return bool(self.output.content) and any(words in text for text in self.said.spaced)

    @cached_property
    def covers(self) -> tuple[Cover, ...]:
        """How well the best passage of the sources covers each sentence."""
        return covers(self.output, self.sentences, self.said.passages, self.said.repeated, self.restated)


def prepared(sample: Sample) -> Prepared:
    """Split a sample into words. Raises `InputError` if there is no output yet.

    For samples that differ only in their outputs, the sources are split once per `scratch`.
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


def _times(one: float, other: float) -> float:
    """Return how many times as large the larger one is; both are above 0."""
    return max(one, other) / min(one, other)


def _cut(texts: Sequence[str], asked: str) -> Sources:
    """Split the texts that are not blank into words, with no language set."""
    return Sources(
        tuple(worded(without_separators(text)) for text in texts if text.strip()),
        worded(asked) if asked.strip() else None,
    )


def _spoken(cut: Sources, language: str | None) -> Sources:
    asked = None if cut.asked is None else cut.asked.spoken(language)
    return Sources(tuple(text.spoken(language) for text in cut.texts), asked)


def runs(wording: Wording) -> Iterator[Run]:
    """Yield the sentences of a text as runs of its words."""
    starts = wording.starts
    for start, end in sentences(wording.text, wording.language or "en"):
        first, last = bisect_left(starts, start), bisect_left(starts, end)
        if first < last:
            yield first, last


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


def joined(spans: Sequence[Span], text: str) -> tuple[Span, ...]:
    """Sort spans, and join neighbours with no letter or digit between them."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda each: (each.start, each.end)):
        last = found[-1] if found else None
        if last is not None and not any(map(str.isalnum, text[last.end : span.start])):
            found[-1] = Span(last.start, max(last.end, span.end), last.kind)
        else:
            found.append(span)
    return tuple(found)


@lru_cache(maxsize=1 << 14)
def _parts(written: str) -> tuple[str, ...]:
    """Return the stems of the parts of a camel-case word; empty for another word."""
    if written[1:].islower() or written.isupper() or written == form(written):
        return ()
    humps = [at for at in range(1, len(written)) if written[at].isupper() and written[at - 1].islower()]
    return tuple(stem(form(written[a:b])) for a, b in pairwise([0, *humps, len(written)])) if humps else ()
