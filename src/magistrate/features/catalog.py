"""The text signals by name: what each one measures, and how all of them are computed for a sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from magistrate._deadline import checked
from magistrate.errors import SpecError
from magistrate.features import overlap
from magistrate.features.dates import Date
from magistrate.features.names import names_of, quoted
from magistrate.features.numbers import Quantity
from magistrate.features.prepared import Prepared, Reading, Sources, joined, listed, prepared, undefined
from magistrate.types import Sample, Span

NO_CONTEXT = undefined("there is no context")
NO_OUTPUT = undefined("the output is empty")
NO_NUMBERS = "the output has no numbers that are not in the question"
NO_DATES = "the output has no dates that are not in the question"


def new_numbers(sample: Prepared) -> Reading:
    """Share of the output's numbers that no source says, in any unit of the same measure.

    Dates have a signal of their own; the question's numbers are left out, unless a source says them too.
    """
    counted = [
        (each.span, said)
        for each in checked(sample.quantities)
        for said in (_says_number(sample.said, each),)
        if said or not _says_number(sample.said.question, each)
    ]
    return _told(sample, counted, "number", NO_NUMBERS)


def new_dates(sample: Prepared) -> Reading:
    """Share of the output's dates, weekdays to years, that no source says; the question's are left out."""
    counted = [
        (each.span, said)
        for each in checked(sample.dates)
        for said in (_says_date(sample.said, each),)
        if said or not _says_date(sample.said.question, each)
    ]
    return _told(sample, counted, "date", NO_DATES)


def new_names(sample: Prepared) -> Reading:
    """Share of the names of which a word is in no source; an abbreviation may be a source's initials.

    Of scripts with capital letters only. Names of the question are left out.
    """
    output = sample.output
    stems = output.stems
    begins = {first for first, _ in sample.sentences}
    counted: list[tuple[Span, bool]] = []
    for first, last in checked(names_of(output, sample.sentences)):
        wanted = [
            stems[at] for at in range(first, last) if len(stems[at]) > 1 and stems[at] not in output.common
        ]
        new = [stem for stem in wanted if stem not in sample.said.known]
        if new and all(stem in sample.said.repeated for stem in new):
            continue
        # The first word of a sentence is capitalized anyway: it need not be part of the name behind it.
        said = not new or (len(wanted) > 1 and new == wanted[:1] and first in begins)
        span = output.span(first, last - 1)
        if not said and output.text[span.start : span.end].replace(".", "").isupper():
            said = "".join(output.forms[first:last]) in sample.said.initials
        counted.append((span, said))
    return _told(sample, counted, "name", "the output has no names that are not in the question")


def new_quotations(sample: Prepared) -> Reading:
    """Share of the output's strings in quotation marks, of two words at least, that stand so in no source."""
    output = sample.output
    said: dict[str, bool] = {}  # looking one up takes as long as the sources are
    counted = []
    for first, last in checked(quoted(output), 16):
        words = f" {' '.join(output.forms[first:last])} "
        if words not in said:
            said[words] = any(words in text for text in sample.said.bounded)
        counted.append((output.span(first, last - 1), said[words]))
    return _told(sample, counted, "quotation", "the output quotes nothing")


def _says_number(sources: Sources, number: Quantity) -> bool:
    """Whether sources say a number, be it as a year."""
    return sources.amounts.say(number) or (number.measure is None and number.value in sources.years)


def _says_date(sources: Sources, date: Date) -> bool:
    """Whether sources say a date, one alone or several together; a bare year also as a number."""
    return sources.calendar.says(date) or (date.is_year and date.year in sources.values)


def _told(sample: Prepared, counted: Sequence[tuple[Span, bool]], what: str, none: str) -> Reading:
    """The share of what is not said, with where it stands."""
    if not counted:
        return undefined(none)
    text = sample.output.text
    new = [span for span, said in counted if not said]
    if not new:
        return Reading(0.0)
    n, verb = len(counted), "is" if len(new) == 1 else "are"
    pieces = listed([text[span.start : span.end] for span in new])
    some = f"the only {what}" if n == 1 else f"{len(new)} of {n} {what}s"
    return Reading(len(new) / n, joined(new, text), f"{some} {verb} not in the context: {pieces}")


@dataclass(frozen=True, slots=True)
class TextSignal:
    """A number in [0, 1] that is read off a sample's texts alone, higher being more suspicious."""

    name: str
    summary: str
    unit: str
    higher_means: str
    read: Callable[[Prepared], Reading] = field(repr=False, compare=False)


_LESS = "less of the output is in the context"
_ALL = (
    TextSignal(
        "content_words",
        "words with content whose stem the context lacks",
        "share of words",
        _LESS,
        overlap.content_words,
    ),
    TextSignal(
        "bigrams",
        "runs of two words that the context lacks",
        "share of runs",
        _LESS,
        partial(overlap.ngrams, n=2),
    ),
    TextSignal(
        "trigrams",
        "runs of three words that the context lacks",
        "share of runs",
        _LESS,
        partial(overlap.ngrams, n=3),
    ),
    TextSignal(
        "word_pairs",
        "neighbouring words with content that stand together nowhere in the context",
        "share of pairs",
        _LESS,
        overlap.word_pairs,
    ),
    TextSignal(
        "numbers",
        "numbers with their units that the context does not say",
        "share of numbers",
        _LESS,
        new_numbers,
    ),
    TextSignal("dates", "dates that the context does not say", "share of dates", _LESS, new_dates),
    TextSignal("names", "names of which the context lacks a word", "share of names", _LESS, new_names),
    TextSignal(
        "quotations",
        "strings in quotation marks that the context has not so",
        "share of quotations",
        _LESS,
        new_quotations,
    ),
    TextSignal(
        "sentence_support",
        "rare words of each sentence that no one passage holds together",
        "share of weight",
        "sentences are farther from any one passage",
        overlap.sentence_support,
    ),
    TextSignal(
        "weakest_sentence",
        "the same, of the sentence that is supported least",
        "share of weight",
        "a sentence is farther from any one passage",
        overlap.weakest_sentence,
    ),
    TextSignal(
        "rouge_l",
        "words outside the longest common subsequence with the context (1 - ROUGE-L precision)",
        "share of words",
        _LESS,
        overlap.rouge_l,
    ),
    TextSignal(
        "chrf",
        "runs of one to six characters that the context lacks (1 - chrF precision)",
        "share of runs",
        _LESS,
        overlap.chrf,
    ),
)
SIGNALS: Mapping[str, TextSignal] = MappingProxyType({each.name: each for each in _ALL})


def readings(sample: Sample, names: Iterable[str] | None = None) -> dict[str, Reading]:
    """What the signals of these names, by default all, say of a sample; its texts are cut up once.

    The output is compared with `sample.sources`: contexts and what was said before. Without one of them, or
    without an output, every value is None. Raises `SpecError` for an unknown name and `InputError` where the
    output is not there yet.
    """
    asked = list(SIGNALS if names is None else names)
    if missing := [name for name in asked if name not in SIGNALS]:
        raise SpecError(f"unknown text signal {missing[0]!r}; known: {', '.join(SIGNALS)}")
    return read(prepared(sample), asked)


def read(cut: Prepared, names: Iterable[str]) -> dict[str, Reading]:
    """The same, of a sample that was cut up before; every name must be known."""
    nothing = NO_OUTPUT if not cut.output.text.strip() else None if cut.said.texts else NO_CONTEXT
    return {name: SIGNALS[name].read(cut) if nothing is None else nothing for name in checked(names, 1)}
