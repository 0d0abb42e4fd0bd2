"""Which numbers, dates, names and quotations of an output its sources lack."""

from __future__ import annotations

from collections.abc import Sequence

from magistrate._deadline import checked
from magistrate.features.dates import Date
from magistrate.features.mentions import names_of, quoted
from magistrate.features.prepared import Prepared, Sources, joined
from magistrate.features.quantities import Quantity
from magistrate.features.reading import Reading, listed, undefined
from magistrate.types import Span

NO_NUMBERS = "the output has no numbers that are not in the question"
NO_DATES = "the output has no dates that are not in the question"


def numbers(sample: Prepared) -> Reading:
    """Share of the output's numbers that no source says, in any unit of the same measure.

    Dates have a signal of their own; the question's numbers are left out, unless a source says them too.
    """
    if not sample.output.quantities:
        return undefined(NO_NUMBERS)
    counted = [
        (each.span, said)
        for each in checked(sample.output.quantities)
        for said in (_says_number(sample.said, each),)
        if said or not _says_number(sample.said.question, each)
    ]
    return _told(sample, counted, "number", NO_NUMBERS)


def dates(sample: Prepared) -> Reading:
    """Share of the output's dates, weekdays to years, that no source says; the question's are left out."""
    if not sample.output.dates:
        return undefined(NO_DATES)
    counted = [
        (each.span, said)
        for each in checked(sample.output.dates)
        for said in (_says_date(sample.said, each),)
        if said or not _says_date(sample.said.question, each)
    ]
    return _told(sample, counted, "date", NO_DATES)


def names(sample: Prepared) -> Reading:
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
        new = [stem for stem in wanted if stem not in sample.known]
        if new and all(stem in sample.repeated for stem in new):
            continue
        # The first word of a sentence is capitalized anyway: it need not be part of the name behind it.
        said = not new or (len(wanted) > 1 and new == wanted[:1] and first in begins)
        span = output.span(first, last - 1)
        if not said and output.text[span.start : span.end].replace(".", "").isupper():
            said = "".join(output.forms[first:last]) in sample.said.initials
        counted.append((span, said))
    return _told(sample, counted, "name", "the output has no names that are not in the question")


def quotations(sample: Prepared) -> Reading:
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
