"""How much of an output's wording its context lacks: words, word runs, subsequences, sentences."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from magistrate._deadline import alone, checked
from magistrate.errors import InputError
from magistrate.features.prepared import Prepared, Reading, joined, listed, undefined
from magistrate.features.words import word_runs, words
from magistrate.types import Sample, Span

NEAR = 4  # words with content within which two words of a source are said together
LONGEST_RUN = 6  # of characters, for chrF
REACH = 4  # characters: a word is foreign to a passage that has no run of so many of its own
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
