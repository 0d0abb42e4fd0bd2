"""A sample cut into words and sentences once, for every signal that looks at it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from magistrate.errors import InputError
from magistrate.signals.cover import Cover, Run, covers
from magistrate.signals.splitting import sentences
from magistrate.signals.wording import Wording, form, language_of, worded
from magistrate.types import Sample, Span


@dataclass(frozen=True)
class Prepared:
    """What is on trial and what it may rely on, as words.

    `sources` are the contexts and what was said before. `asked` is the question: what repeats it is neither
    made up nor supported, so signals of wording leave it out of the account.
    """

    output: Wording
    sources: tuple[Wording, ...]
    asked: Wording | None = None

    @cached_property
    def known(self) -> frozenset[str]:
        """The stems of all words of the sources; of glued words, such as `endStart`, of their parts too."""
        found = set(chain.from_iterable(source.stems for source in self.sources))
        found.update(chain.from_iterable(source.content_stems for source in self.sources))
        for source in self.sources:
            found.update(_parts(source))
        return frozenset(found)

    @cached_property
    def repeated(self) -> frozenset[str]:
        """The stems of the words of the question that no source has: in the output they mean neither."""
        return frozenset(self.asked.stems) - self.known if self.asked is not None else frozenset()

    @cached_property
    def sentences(self) -> tuple[Run, ...]:
        """The output's sentences as runs of words; none is empty."""
        return tuple(runs(self.output))

    @cached_property
    def passages(self) -> tuple[tuple[Wording, Run], ...]:
        """The sources' sentences as runs of words."""
        return tuple((source, run) for source in self.sources for run in runs(source))

    @cached_property
    def covers(self) -> tuple[Cover, ...]:
        """What the best passage of the sources leaves uncovered of each sentence."""
        return covers(self.output, self.sentences, self.passages, self.repeated)

    def passage_text(self, number: int) -> str:
        """The characters of one of `passages`, up to the next; nothing where there are none."""
        if not self.passages:
            return ""
        source, (first, last) = self.passages[number]
        end = source.places[last][0] if last < len(source.places) else len(source.text)
        return source.text[source.places[first][0] : end]

    @cached_property
    def source_forms(self) -> tuple[tuple[str, ...], ...]:
        """The words of every source."""
        return tuple(source.forms for source in self.sources)


def prepared(sample: Sample) -> Prepared:
    """A sample cut into words. Raises `InputError` if there is no output yet."""
    if sample.output is None:
        raise InputError(f"sample {sample.id!r} has no output yet; run its task first")
    output = worded(sample.output)
    sources = [worded(text) for text in sample.sources if text.strip()]
    asked = worded(sample.input) if sample.input and sample.input.strip() else None
    language = language_of([*output.forms, *chain.from_iterable(each.forms for each in sources)])
    return Prepared(
        output.spoken(language),
        tuple(each.spoken(language) for each in sources),
        None if asked is None else asked.spoken(language),
    )


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
    from magistrate.signals.wording import stem

    for word, (start, end) in zip(wording.forms, wording.places, strict=True):
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
