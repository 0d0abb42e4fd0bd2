"""A sample cut into words, sentences and passages once, for all text signals."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from magistrate._deadline import check, checked
from magistrate._scratch import once
from magistrate.errors import InputError
from magistrate.features.facts import Amounts, Calendar, Date, Quantity, dates_and_numbers, initials
from magistrate.features.splitting import sentences
from magistrate.features.words import Run, Wording, form, language_of, stem, word_runs, worded
from magistrate.types import Sample, Span

MOST_NAMED = 4  # pieces that a reason quotes
LONGEST = 256  # words of the other run that are aligned together: memory grows with the product
ABSENT = LONGEST + 1
BETWEEN = 1_000  # words with content between two texts: words so far apart are not said together


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


class WordSequence:
    """Words in their order, as numbers."""

    def __init__(self, words: Sequence[str]) -> None:
        import numpy as np

        self._numbers: dict[str, int] = {}
        self._words = np.fromiter(
            (self._numbers.setdefault(word, len(self._numbers)) for word in words), np.int32, len(words)
        )

    def shared(self, words: Sequence[str]) -> Iterator[int]:
        """The numbers of those of `words` that are in a longest common subsequence with this.

        Of more than `LONGEST` words each stretch of so many is aligned by itself.
        """
        for begin in range(0, len(words), LONGEST):
            check()
            for at in self._aligned(words[begin : begin + LONGEST]):
                yield begin + at

    def _aligned(self, words: Sequence[str]) -> Iterator[int]:
        import numpy as np
        from rapidfuzz.distance import LCSseq

        # Words that only one side has change nothing, so the others alone are compared, as characters.
        letters: dict[int, int] = {}
        written = [
            ABSENT if number is None else letters.setdefault(number, len(letters) + 1)
            for number in map(self._numbers.get, words)
        ]
        if not letters:
            return
        table = np.zeros(len(self._numbers), np.uint32)
        table[list(letters)] = list(letters.values())
        found = table[self._words]
        mine = found[found > 0].tobytes().decode("utf-32")
        for block in LCSseq.opcodes("".join(map(chr, written)), mine):
            if block.tag == "equal":
                yield from range(block.src_start, block.src_end)


@dataclass(frozen=True, slots=True)
class Cover:
    """A sentence, how many words with content it has, and the share in [0, 1] of their weight that is lacking
    from `passage`, the number of the one that covers most."""

    span: Span
    words: int
    lack: float
    passage: int


class PassageIndex:
    """Runs of words of the sources, and for each stem the numbers of the passages that have it."""

    def __init__(self, passages: Sequence[tuple[Wording, Run]]) -> None:
        self.runs = tuple(passages)
        self._having: dict[str, array[int]] = {}
        for number, (source, (first, last)) in enumerate(self.runs):
            if number % 64 == 0:
                check()
            for each in set(source.stems[first:last]):
                self._having.setdefault(each, array("l")).append(number)

    def __len__(self) -> int:
        return len(self.runs)

    def having(self, stem: str) -> Sequence[int]:
        """The numbers of the passages with a word of this stem, in their order."""
        return self._having.get(stem, ())


def covers(
    output: Wording, sentences: Sequence[Run], passages: PassageIndex, ignored: Container[str] = frozenset()
) -> tuple[Cover, ...]:
    """Each sentence against the passage that covers most of it; sentences without content are left out, and
    words whose stems are `ignored` do not count.

    A word weighs its inverse frequency among the passages (Spärck Jones 1972), in a form that gives words
    that no passage has the most.
    """
    import numpy as np

    content = frozenset(number for number in output.content if output.stems[number] not in ignored)
    n = max(len(passages), 1)
    found = []
    for first, last in sentences:
        check()
        counted = [output.stems[at] for at in range(first, last) if at in content]
        if counted:
            covered, whole = np.zeros(n), 0.0
            for stem in dict.fromkeys(counted):
                having = passages.having(stem)
                weight = math.log1p(n / (len(having) + 0.5))
                whole += weight
                if having:
                    covered[np.asarray(having)] += weight
            best = int(covered.argmax())
            lack = max(0.0, 1.0 - float(covered[best] / whole))
            found.append(Cover(output.span(first, last - 1), len(counted), lack, best))
    return tuple(found)


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
    def passages(self) -> PassageIndex:
        """The texts' sentences."""
        return PassageIndex([(text, run) for text in self.texts for run in runs(text)])

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
                run for text in self.texts for run in checked(word_runs(text.forms, size))
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
    def _facts(self) -> tuple[tuple[tuple[Date, ...], tuple[Quantity, ...]], ...]:
        """Of each text its dates, and its numbers that are no dates."""
        return tuple(dates_and_numbers(text.text) for text in self.texts)

    @property
    def dates(self) -> Iterator[Date]:
        """All dates of the texts."""
        return (date for dates, _ in self._facts for date in dates)

    @property
    def quantities(self) -> Iterator[Quantity]:
        """All numbers of the texts that are no dates."""
        return (number for _, numbers in self._facts for number in numbers)

    @cached_property
    def amounts(self) -> Amounts:
        """The numbers, to look one up."""
        return Amounts(self.quantities)

    @cached_property
    def values(self) -> frozenset[float]:
        """What the numbers are, whatever their units."""
        return frozenset(each.value for each in self.quantities)

    @cached_property
    def calendar(self) -> Calendar:
        """The dates, to look one up."""
        return Calendar(self.dates)

    @cached_property
    def years(self) -> frozenset[int | None]:
        """The years of the dates."""
        return frozenset(date.year for date in self.dates)

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
    """The output as words, and the sources that it may rely on."""

    output: Wording
    said: Sources

    @cached_property
    def _facts(self) -> tuple[tuple[Date, ...], tuple[Quantity, ...]]:
        return dates_and_numbers(self.output.text)

    @property
    def dates(self) -> tuple[Date, ...]:
        """The output's dates."""
        return self._facts[0]

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """The output's numbers that are no dates."""
        return self._facts[1]

    @cached_property
    def sentences(self) -> tuple[Run, ...]:
        """The output's sentences as runs of words; none is empty."""
        return tuple(runs(self.output))

    @cached_property
    def covers(self) -> tuple[Cover, ...]:
        """What the best passage of the sources leaves uncovered of each sentence."""
        return covers(self.output, self.sentences, self.said.passages, self.said.repeated)


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
