"""The text signals: how much of an output's wording, numbers, dates and names its context lacks."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from types import MappingProxyType

from magistrate._deadline import alone, checked
from magistrate.errors import InputError, SpecError
from magistrate.features.facts import Date, Quantity, names_of, quoted
from magistrate.features.prepared import Prepared, Reading, Sources, joined, listed, prepared, undefined
from magistrate.features.words import word_runs, words
from magistrate.types import Sample, Span

NEAR = 4  # words with content within which two words of a source are said together
LONGEST_RUN = 6  # of characters, for chrF
REACH = 4  # characters: a word is foreign to a passage that has no run of so many of its own
NO_CONTEXT = undefined("there is no context")
NO_OUTPUT = undefined("the output is empty")
NO_WORDS = undefined("the output has no words")
NO_CONTENT = undefined("the output has no words with content that are not in the question")
UNSUPPORTED = 0.5  # a sentence of which no passage covers so much is flagged
NOTHING = undefined("the output has no sentence with words of content")


def output_length(sample: Sample) -> int:
    """How many characters the output has. Raises `InputError` if there is no output yet."""
    return len(_output(sample))


def ngram_novelty(sample: Sample, n: int) -> float:
    """Share, in [0, 1], of the output's runs of `n` words that stand in none of its contexts.

    Repeated runs count each time. An output of fewer than `n` words is one run of all its words; one
    without words has nothing new (0); without a context all is new (1). Raises `InputError` for
    `n` < 1 or if there is no output yet.
    """
    if n < 1:
        raise InputError(f"n-grams need n of at least 1, got {n}")
    written = words(_output(sample))
    if not written:
        return 0.0
    size = min(n, len(written))
    known = {run for text in sample.context for run in word_runs(words(text), size)}
    runs = list(word_runs(written, size))
    return sum(run not in known for run in runs) / len(runs)


def _output(sample: Sample) -> str:
    if sample.output is None:
        raise InputError(f"sample {sample.id!r} has no output yet; run its task first")
    return sample.output


def content_words(sample: Prepared) -> Reading:
    """Share of the words with content whose stems no source has; the question's own are left out."""
    output = sample.output
    counted = [
        (number, stem)
        for number, stem in zip(output.content, output.content_stems, strict=True)
        if stem not in sample.said.repeated
    ]
    if not counted:
        return NO_CONTENT
    new = [output.span(number, number) for number, stem in counted if stem not in sample.said.known]
    return _share(sample, new, len(counted), "words with content")


def ngrams(sample: Prepared, n: int) -> Reading:
    """Share of the output's runs of `n` words that stand in no source; a shorter output is one run."""
    forms = sample.output.forms
    if not forms:
        return NO_WORDS
    size = min(n, len(forms))
    known = sample.said.runs(size)
    runs = list(word_runs(forms, size))
    new = [at for at, run in enumerate(runs) if run not in known]
    spans = joined([sample.output.span(at, at + size - 1) for at in new], sample.output.text)
    reason = f"{len(new)} of {len(runs)} runs of {size} words are not in the context" if new else ""
    return Reading(len(new) / len(runs), spans, reason)


def word_pairs(sample: Prepared) -> Reading:
    """Share of neighbouring words with content, in a sentence, that stand within `NEAR` nowhere.

    A pair with a word that no source has is new too; pairs of words of the question are left out.
    """
    output, places = sample.output, sample.said.places
    behind = [last for _, last in sample.sentences]
    new: list[Span] = []
    n = 0
    for (one, a), (other, b) in checked(pairwise(zip(output.content, output.content_stems, strict=True)), 16):
        if bisect_left(behind, one + 1) != bisect_left(behind, other + 1):
            continue
        if a in sample.said.repeated or b in sample.said.repeated:
            continue
        n += 1
        if not _together(places.get(a, ()), places.get(b, ())):
            new.append(output.span(one, other))
    if not n:
        return undefined("the output has no two words with content beside each other")
    return _share(sample, new, n, "pairs of neighbouring words", joined(new, output.text))


def rouge_l(sample: Prepared) -> Reading:
    """One less ROUGE-L precision (Lin 2004): the share of words outside the longest common subsequence.

    Sentence by sentence against all the sources in their order, so that the order of sentences is free.
    """
    forms = sample.output.forms
    if not forms:
        return NO_WORDS
    stems = sample.output.stems
    new: list[Span] = []
    for first, last in sample.sentences:
        kept = {first + at for at in sample.said.sequence.shared(forms[first:last])}
        new += [
            sample.output.span(at, at)
            for at in range(first, last)
            if at not in kept and stems[at] not in sample.said.repeated
        ]
    n = sum(stem not in sample.said.repeated for stem in stems)
    if not n:
        return NO_CONTENT
    reason = f"{len(new)} of {n} words are not in the context in this order" if new else ""
    return Reading(len(new) / n, joined(new, sample.output.text), reason)


def chrf(sample: Prepared) -> Reading:
    """One less chrF (Popović 2015) with beta 0, its precision: the share of runs of 1 to 6 characters that
    the passages which cover its sentences best lack.

    Flags the words of which these have no run of four characters.
    """
    output = sample.output
    if not output.forms:
        return NO_WORDS
    best = sorted({cover.passage for cover in sample.covers})
    said = "\n".join(sample.said.passage_text(number) for number in best)
    folded = said.casefold()
    known = {folded[at : at + REACH] for at in checked(range(len(folded) - REACH + 1))}
    with alone():
        value = 1 - _chrf_precision(output.text, said)
    new = [
        output.span(number, number)
        for number, word in enumerate(output.forms)
        if len(word) >= REACH
        and not any(word[at : at + REACH] in known for at in range(len(word) - REACH + 1))
    ]
    return Reading(
        min(1.0, max(0.0, value)),
        joined(new, output.text),
        f"{value:.0%} of its short runs of characters are not in the passages nearest to it"
        if value > 0.005
        else "",
    )


def _share(
    sample: Prepared, new: Sequence[Span], n: int, what: str, spans: Sequence[Span] | None = None
) -> Reading:
    text = sample.output.text
    places = joined(new, text) if spans is None else tuple(spans)
    pieces = [text[span.start : span.end] for span in new]
    verb = "is" if len(new) == 1 else "are"
    reason = f"{len(new)} of {n} {what} {verb} not in the context: {listed(pieces)}" if new else ""
    return Reading(len(new) / n, places, reason)


def _together(some: Sequence[int], others: Sequence[int]) -> bool:
    """Whether a place of one word is within `NEAR` of one of another's; both are in their order."""
    few, many = (some, others) if len(some) <= len(others) else (others, some)
    for place in few:
        at = bisect_left(many, place - NEAR)
        if at < len(many) and many[at] <= place + NEAR:
            return True
    return False


def _chrf_precision(output: str, reference: str) -> float:
    """chrF with beta 0 in [0, 1]: the share of the runs of 1 to 6 characters that the reference has too.

    White space does not count. The mean over the lengths that both texts have runs of, as in sacrebleu.
    """
    found, texts = [], ["".join(text.split()) for text in (output, reference)]
    for size in range(1, min(LONGEST_RUN, *map(len, texts)) + 1):
        said, known = (
            Counter(text[at : at + size] for at in checked(range(len(text) - size + 1))) for text in texts
        )
        found.append((said & known).total() / said.total())
    return sum(found) / len(found) if found else 0.0


def sentence_support(sample: Prepared) -> Reading:
    """What of the sentences' words one passage each does not cover, weighted by rarity; the mean by length.

    Passages are the sources' sentences. Of one that takes its words from many places little is covered.
    """
    covers = sample.covers
    if not covers:
        return NOTHING
    total = sum(each.words for each in covers)
    return _support(sample, sum(each.lack * each.words for each in covers) / total)


def weakest_sentence(sample: Prepared) -> Reading:
    """As `sentence_support`, of the sentence that is covered least."""
    covers = sample.covers
    return _support(sample, max(each.lack for each in covers)) if covers else NOTHING


def _support(sample: Prepared, value: float) -> Reading:
    weak = tuple(each.span for each in sample.covers if each.lack > UNSUPPORTED)
    n = len(sample.covers)
    if not weak:
        return Reading(value)
    some = (
        "its only sentence has"
        if n == 1
        else f"{len(weak)} of {n} sentences {'has' if len(weak) == 1 else 'have'}"
    )
    return Reading(value, weak, f"{some} no passage in the context that holds most of its words")


# --- numbers, dates, names and quotations ---------------------------------------------------------

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


# --- all signals by name --------------------------------------------------------------------------


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
        content_words,
    ),
    TextSignal(
        "bigrams",
        "runs of two words that the context lacks",
        "share of runs",
        _LESS,
        partial(ngrams, n=2),
    ),
    TextSignal(
        "trigrams",
        "runs of three words that the context lacks",
        "share of runs",
        _LESS,
        partial(ngrams, n=3),
    ),
    TextSignal(
        "word_pairs",
        "neighbouring words with content that stand together nowhere in the context",
        "share of pairs",
        _LESS,
        word_pairs,
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
        sentence_support,
    ),
    TextSignal(
        "weakest_sentence",
        "the same, of the sentence that is supported least",
        "share of weight",
        "a sentence is farther from any one passage",
        weakest_sentence,
    ),
    TextSignal(
        "rouge_l",
        "words outside the longest common subsequence with the context (1 - ROUGE-L precision)",
        "share of words",
        _LESS,
        rouge_l,
    ),
    TextSignal(
        "chrf",
        "runs of one to six characters that the context lacks (1 - chrF precision)",
        "share of runs",
        _LESS,
        chrf,
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
