"""How well the sentences of an output are covered, each by the passage of the sources that covers it best."""

from __future__ import annotations

from magistrate.features.prepared import Prepared
from magistrate.features.reading import Reading, undefined

UNSUPPORTED = 0.5  # a sentence of which no passage covers so much is flagged
NOTHING = undefined("the output has no sentence with words of content")


def sentence_support(sample: Prepared) -> Reading:
    """What of the sentences' words one passage each does not cover, weighted by rarity; the mean by length.

    Passages are the sources' sentences. Of one that takes its words from many places little is covered.
    """
    covers = sample.covers
    if not covers:
        return NOTHING
    total = sum(each.words for each in covers)
    return _told(sample, sum(each.lack * each.words for each in covers) / total)


def weakest_sentence(sample: Prepared) -> Reading:
    """As `sentence_support`, of the sentence that is covered least."""
    covers = sample.covers
    return _told(sample, max(each.lack for each in covers)) if covers else NOTHING


def _told(sample: Prepared, value: float) -> Reading:
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
