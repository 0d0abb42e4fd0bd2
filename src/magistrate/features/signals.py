"""Text signals: how much of an output's wording, numbers, dates and names its context lacks."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from functools import cache, partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from magistrate._work import alone, checked
from magistrate.errors import InputError, SpecError
from magistrate.features.facts import AMBIGUOUS, MONTHS, WEEKDAYS
from magistrate.features.prepared import LINKS, Prepared, Reading, joined, listed, prepared, undefined
from magistrate.features.words import Run, Wording, compiled, word_runs, words
from magistrate.types import Sample, Span

NEAR = 4  # two words are together if they are at most this many content words apart
LONGEST_RUN = 6  # characters, for chrF
REACH = 4  # characters: a word is new to a passage that has none of its runs of this length
NO_CONTEXT = undefined("there is no context")
NO_OUTPUT = undefined("the output is empty")
NO_WORDS = undefined("the output has no words")
NO_CONTENT = undefined("all content words of the output are also in the question")
MOST_CAPITALS = 0.85  # share of content words; with more, as in headings, capitals carry no information
LEAST_QUOTED = 2  # words; a single quoted word is usually emphasis
DATED = frozenset((*WEEKDAYS, *(month for month in MONTHS if month not in AMBIGUOUS)))
UNSUPPORTED = 0.5  # a sentence is flagged if more than this share of its weight is uncovered
NOTHING = undefined("the output has no sentence with content words")


def output_length(sample: Sample) -> int:
    """Return the number of characters of the output. Raises `InputError` if there is no output yet."""
    return len(_output(sample))


def ngram_novelty(sample: Sample, n: int) -> float:
    """Return the share, in [0, 1], of the output's runs of `n` words that are in none of its contexts.

    Repeated runs count each time. An output of fewer than `n` words is one run of all its words. An output
    without words has nothing new (0). Without a context everything is new (1). Raises `InputError` for `n`
    < 1 or if there is no output yet.
    """
    if n < 1:
        raise InputError(f"n must be at least 1, got {n}")
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
    """Return the share of content words whose stems no source has; words only in the question are ignored."""
    output = sample.output
    counted = [
        (number, stem)
        for number, stem in zip(output.content, output.content_stems, strict=True)
        if stem not in sample.said.repeated
    ]
    if not counted:
        return NO_CONTENT
    new = [output.span(number, number) for number, stem in counted if stem not in sample.said.known]
    return _share(sample, new, len(counted), "content words")


def ngrams(sample: Prepared, n: int) -> Reading:
    """Return the share of the output's runs of `n` words that no source has; a shorter output is one run."""
    forms = sample.output.forms
    if not forms:
        return NO_WORDS
    size = min(n, len(forms))
    known = sample.said.runs(size)
    runs = list(word_runs(forms, size))
    new = [at for at, run in enumerate(runs) if run not in known]
    spans = joined([sample.output.span(at, at + size - 1) for at in new], sample.output.text)
    size_words = f"{size} word{'s' if size > 1 else ''}"
    told = f"{len(new)} of {len(runs)} sequences of {size_words} {_are(new)} not in the context"
    return Reading(len(new) / len(runs), spans, told if new else "")


def word_pairs(sample: Prepared) -> Reading:
    """Return the share of neighbouring content words in a sentence that are within `NEAR` in no source.

    A pair with a word that no source has is new too. Pairs with a word only in the question are ignored.
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
        return undefined("the output has no two adjacent content words")
    return _share(sample, new, n, "pairs of neighbouring words", joined(new, output.text))


def rouge_l(sample: Prepared) -> Reading:
    """Return one minus ROUGE-L precision (Lin 2004): the share of words not in a longest common
    subsequence.

    Each sentence is aligned separately with all the sources, so the order of sentences does not matter.
    """
    forms = sample.output.forms
    if not forms:
        return NO_WORDS
    stems, restated, repeated = sample.output.stems, sample.restated, sample.said.repeated
    new: list[int] = []
    for first, last in sample.sentences:
        kept = {first + at for at in sample.sequence.shared(forms[first:last])}
        new += [
            at
            for at in range(first, last)
            if at not in kept and at not in restated and stems[at] not in repeated
        ]
    n = sum(stem not in repeated for stem in stems)
    if not n:
        return NO_CONTENT
    reason = f"{len(new)} of {n} words {_are(new)} not in the context in this order" if new else ""
    begins = [at for at, before in zip(new, (None, *new), strict=False) if before != at - 1]
    ends = [at for at, after in zip(new, (*new[1:], None), strict=False) if after != at + 1]
    spans = list(map(sample.output.span, begins, ends))
    return Reading(len(new) / n, joined(spans, sample.output.text), reason)


def chrf(sample: Prepared) -> Reading:
    """Return one minus chrF precision (Popović 2015) against the passages that best cover the output.

    That is the share of the output's runs of 1 to 6 characters that these passages do not have. Flags the
    words that share no run of four characters with them.
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
    reason = f"{len(new)} of {n} {what} {_are(new)} not in the context: {listed(pieces)}" if new else ""
    return Reading(len(new) / n, places, reason)


def _are(things: Sized) -> str:
    return "is" if len(things) == 1 else "are"


def _together(some: Sequence[int], others: Sequence[int]) -> bool:
    """Return whether a position of one word is within `NEAR` of one of the other; both lists are sorted."""
    few, many = (some, others) if len(some) <= len(others) else (others, some)
    for place in few:
        at = bisect_left(many, place - NEAR)
        if at < len(many) and many[at] <= place + NEAR:
            return True
    return False


def _chrf_precision(output: str, reference: str) -> float:
    """Return chrF with beta 0, in [0, 1]: the share of runs of 1 to 6 characters that the reference has.

    White space is ignored. It is the mean over the lengths for which both texts have runs, as in sacrebleu.
    """
    found, texts = [], ["".join(text.split()) for text in (output, reference)]
    for size in range(1, min(LONGEST_RUN, *map(len, texts)) + 1):
        said, known = (
            Counter(text[at : at + size] for at in checked(range(len(text) - size + 1))) for text in texts
        )
        found.append((said & known).total() / said.total())
    return sum(found) / len(found) if found else 0.0


def sentence_support(sample: Prepared) -> Reading:
    """Return the share of each sentence's words, weighted by rarity, that its best passage does not have.

    It is the mean over the sentences, weighted by length. Passages are the sources' sentences. A sentence
    that combines words from many places is hardly covered.
    """
    covers = sample.covers
    if not covers:
        return NOTHING
    total = sum(each.words for each in covers)
    return _support(sample, sum(each.lack * each.words for each in covers) / total)


def weakest_sentence(sample: Prepared) -> Reading:
    """Return the value of `sentence_support` for the least covered sentence."""
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


def negations(sample: Prepared) -> Reading:
    """Return the share of covered sentences with a word that is negated contrary to their best passage.

    A word counts if the sources negate it always or never, and that passage has it. English only.
    """
    output, counted = sample.output, 0
    content, starts = frozenset(output.content), output.starts
    negative = any(text.negated for text in (output, *sample.said.texts))
    flipped: list[Span] = []
    for cover in checked(sample.covers, 16):
        if cover.lack > UNSUPPORTED:
            continue
        counted += 1
        if not negative:
            continue
        source, (first, last) = sample.said.passages.runs[cover.passage]
        near = frozenset(source.stems[first:last])
        for at in range(bisect_left(starts, cover.span.start), bisect_left(starts, cover.span.end)):
            stem = output.stems[at]
            if at not in content or stem not in near:
                continue
            denied = stem in sample.said.denied
            # Last, because few outputs get there, what the texts affirm: most of their words.
            if denied is not (at in output.negated) and denied is not (stem in sample.said.affirmed):
                flipped.append(output.span(at, at))
                break
    if not counted:
        return undefined("no passage holds most of the words of a sentence")
    if not flipped:
        return Reading(0.0)
    said = listed([output.text[each.start : each.end] for each in flipped])
    reason = f"negated in the output or in the context, not in both: {said}"
    return Reading(len(flipped) / counted, joined(flipped, output.text), reason)


# --- numbers, dates, names and quotations ---------------------------------------------------------

NO_NUMBERS = "the output has no numbers that are not in the question"
NO_DATES = "the output has no dates that are not in the question"


def new_numbers(sample: Prepared) -> Reading:
    """Return the share of the output's numbers that no source has, in any unit of the same measure.

    Dates have their own signal. Numbers in the question are ignored, unless a source has them too.
    """
    counted = [
        (each.span, said)
        for each in checked(sample.quantities)
        for said in (sample.said.say(each),)
        if said or not sample.said.question.say(each)
    ]
    return _told(sample, counted, "number", NO_NUMBERS)


def new_dates(sample: Prepared) -> Reading:
    """Return the share of the output's dates, from weekdays to years, that no source has.

    Dates in the question are ignored.
    """
    counted = [
        (each.span, said)
        for each in checked(sample.dates)
        for said in (sample.said.say(each),)
        if said or not sample.said.question.say(each)
    ]
    return _told(sample, counted, "date", NO_DATES)


def new_names(sample: Prepared) -> Reading:
    """Return the share of names with a word that no source has.

    An abbreviation may match initials in a source. Only for scripts with capital letters. Names in the
    question are ignored.
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
        # The first word of a sentence is always capitalized, so it may not belong to the name after it.
        said = not new or (len(wanted) > 1 and new == wanted[:1] and first in begins)
        span = output.span(first, last - 1)
        if not said and output.text[span.start : span.end].replace(".", "").isupper():
            said = "".join(output.forms[first:last]) in sample.said.initials
        counted.append((span, said))
    return _told(sample, counted, "name", "the output has no names that are not in the question")


def new_quotations(sample: Prepared) -> Reading:
    """Return the share of the output's quoted strings, of two words or more, that no source has verbatim."""
    output = sample.output
    said: dict[str, bool] = {}  # a lookup scans all sources: cache the results
    counted = []
    for first, last in checked(quoted(output), 16):
        words = f" {' '.join(output.forms[first:last])} "
        if words not in said:
            said[words] = any(words in text for text in (*sample.said.spaced, *sample.said.question.spaced))
        counted.append((output.span(first, last - 1), said[words]))
    return _told(sample, counted, "quotation", "the output quotes nothing")


def _told(sample: Prepared, counted: Sequence[tuple[Span, bool]], what: str, none: str) -> Reading:
    """Return the share of facts that are not in the sources, with their spans."""
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


# --- names and quotations in a text ---------------------------------------------------------------


def names_of(wording: Wording, sentences: tuple[Run, ...]) -> list[Run]:
    """Return the names in a text as runs of words: capitalized ones and links (Bank *of* England).

    A single capitalized word that starts a sentence or a quotation is no name, unless it is all capitals. A
    text that is mostly capitals, or has none, has no names.
    """
    written = wording.written
    # Weekdays and months are dates, not names.
    capital = [
        word[0].isupper() and form not in DATED for word, form in zip(written, wording.forms, strict=True)
    ]
    told = [capital[at] for at in wording.content]
    if len(told) > 3 and sum(told) > MOST_CAPITALS * len(told):
        return []
    starts = {first for first, _ in sentences}
    common = wording.common
    found: list[Run] = []
    at = 0
    while at < len(written):
        if not capital[at]:
            at += 1
            continue
        last = _end(wording, written, capital, at)
        first = at
        if _begins(wording, at, starts) and wording.forms[first] in common:
            first += 1  # "The Great Outdoors"
        while first < last and wording.forms[first] in LINKS:
            first += 1
        if first < last and not _is_plain(wording, written, first, last, starts):
            found.append((first, last))
        at = max(last, at + 1)
    return found


def _end(wording: Wording, written: Sequence[str], capital: list[bool], at: int) -> int:
    """Return the index after the run of capitalized words that begins at `at`."""
    last = at + 1
    while last < len(written):
        between = wording.text[wording.ends[last - 1] : wording.starts[last]]
        if between.strip(" -'’.&") or (between.startswith(".") and len(written[last - 1]) > 2):
            break
        if capital[last]:
            last += 1
        elif between == " " and wording.forms[last] in LINKS and _linked(wording, capital, last):
            last += 2
        else:
            break
    if written[last - 1] in ("s", "S") and last - at > 1:
        last -= 1
    return last


def _linked(wording: Wording, capital: list[bool], at: int) -> bool:
    """Return whether a capitalized word follows a linking word, separated by one space."""
    return (
        at + 1 < len(capital)
        and capital[at + 1]
        and wording.text[wording.ends[at] : wording.starts[at + 1]] == " "
        and wording.forms[at] not in ("and", "und", "y", "e", "for")
    )


def _begins(wording: Wording, at: int, starts: set[int]) -> bool:
    """Return whether a word may begin a sentence: also after a colon, a quotation mark or a bullet."""
    if at in starts or at == 0:
        return True
    before = wording.text[wording.ends[at - 1] : wording.starts[at]]
    return bool(before.strip(" ,-'’&/()"))


def _is_plain(wording: Wording, written: Sequence[str], first: int, last: int, starts: set[int]) -> bool:
    """Return whether a run is no name: a common word, a letter, or one word at the start of a sentence."""
    if last - first > 1:
        return False
    word = written[first]
    if wording.forms[first] in wording.common or len(word) == 1:
        return True
    return _begins(wording, first, starts) and not (word.isupper() and len(word) > 1)


def quoted(wording: Wording) -> list[Run]:
    """Return the texts in quotation marks of at least `LEAST_QUOTED` words, as runs of words."""
    starts, found = wording.starts, []
    for match in _quotations().finditer(wording.text):
        inner = next(number for number in range(1, 7) if match[number] is not None)
        first, last = (bisect_left(starts, at) for at in match.span(inner))
        if last - first >= LEAST_QUOTED:
            found.append((first, last))
    return found


@cache
def _quotations() -> Any:
    return compiled(
        r'"([^"\n]+)"|“([^“”\n]+)”|„([^“”„\n]+)[“”]|«([^«»\n]+)»|「([^「」\n]+)」|(?<!\w)[‘\']([^‘’\'\n]+(?:\w[’\']\w[^‘’\'\n]*)*)[’\'](?!\w)'
    )


# --- all signals by name --------------------------------------------------------------------------


SIGNALS: Mapping[str, Callable[[Prepared], Reading]] = MappingProxyType(
    {
        "content_words": content_words,
        "bigrams": partial(ngrams, n=2),
        "trigrams": partial(ngrams, n=3),
        "word_pairs": word_pairs,
        "numbers": new_numbers,
        "dates": new_dates,
        "names": new_names,
        "quotations": new_quotations,
        "sentence_support": sentence_support,
        "weakest_sentence": weakest_sentence,
        "negations": negations,
        "rouge_l": rouge_l,
        "chrf": chrf,
    }
)
"""Every signal: a number in [0, 1] computed from a sample's texts alone, higher being more suspicious."""


def readings(sample: Sample, names: Iterable[str] | None = None) -> dict[str, Reading]:
    """Compute the signals of these names, by default all, for a sample; its texts are split once.

    The output is compared with `sample.sources`: contexts and earlier messages. Without a source or an
    output, every value is None. Raises `SpecError` for an unknown name and `InputError` if the sample has
    no output yet.
    """
    asked = list(SIGNALS if names is None else names)
    if missing := [name for name in asked if name not in SIGNALS]:
        raise SpecError(f"unknown text signal {missing[0]!r}; known: {', '.join(SIGNALS)}")
    return read(prepared(sample), asked)


def read(cut: Prepared, names: Iterable[str]) -> dict[str, Reading]:
    """Compute signals for a sample that is already split; every name must be known."""
    nothing = NO_OUTPUT if not cut.output.text.strip() else None if cut.said.texts else NO_CONTEXT
    return {name: SIGNALS[name](cut) if nothing is None else nothing for name in checked(names, 1)}
