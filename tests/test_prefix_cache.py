"""Among remembered texts the longest beginning is found, and never one that is not there."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from magistrate.engines.embedded.prefix_cache import (
    BLOCK,
    BlockPool,
    CachedSequence,
    PrefixCache,
    shared_prefix,
)
from tiers import tries


class Paper:
    """A pool whose blocks hold the tokens themselves."""

    def __init__(self, blocks: int) -> None:
        self.cells = np.zeros((blocks, BLOCK), np.int32)
        self.pool = BlockPool(
            blocks, lambda source, target: self.cells.__setitem__(target, self.cells[source])
        )
        self.cache = PrefixCache(self.pool)

    def read(self, text: np.ndarray) -> CachedSequence:
        """What the scheduler does with a prompt: take what is there, compute the rest, remember it."""
        sequence = self.cache.longest(text)
        rest = text[sequence.length :]
        self.pool.extend(sequence, len(rest))
        for token in rest:
            self.cells[sequence.blocks[sequence.length // BLOCK], sequence.length % BLOCK] = token
            sequence.length += 1
        self.cache.keep(text, sequence)
        return sequence

    def text(self, blocks: list[int], length: int) -> list[int]:
        return [int(self.cells[blocks[at // BLOCK], at % BLOCK]) for at in range(length)]


STEM = [(7 * at) % 5 + 1 for at in range(200)]
texts = st.builds(
    lambda length, tail: np.array(STEM[:length] + tail, np.int32),
    st.integers(0, 140),
    st.lists(st.sampled_from([1, 2, 300, 70000]), min_size=2, max_size=70),
)


@settings(max_examples=tries(200), deadline=None)
@given(st.lists(texts, min_size=1, max_size=30))
def test_the_longest_remembered_beginning_is_found(read: list[np.ndarray]) -> None:
    paper = Paper(400)
    for number, text in enumerate(read):
        known = max((shared_prefix(text, other) for other in read[:number]), default=0)
        blocks, length = paper.cache.match(text)
        assert length == min(known, len(text) - 2)
        assert paper.text(blocks, length) == text[:length].tolist()
        sequence = paper.read(text)
        assert paper.text(sequence.blocks, len(text)) == text.tolist()
        paper.pool.drop(sequence)
    while paper.cache.evict():
        pass
    assert len(paper.cache) == 0 and paper.pool.free == paper.pool.total


@settings(max_examples=tries(200), deadline=None)
@given(st.lists(texts, min_size=1, max_size=40), st.integers(8, 20), st.integers(0, 3))
def test_what_is_evicted_is_forgotten_and_what_is_held_is_kept(
    read: list[np.ndarray], blocks: int, most_held: int
) -> None:
    paper = Paper(blocks + 8 * most_held)
    held: list[tuple[np.ndarray, CachedSequence]] = []
    for text in read:
        found, length = paper.cache.match(text)
        assert paper.text(found, length) == text[:length].tolist()
        held.append((text, paper.read(text)))
        while len(held) > most_held:
            paper.pool.drop(held.pop(0)[1])
        for other, sequence in held:
            assert paper.text(sequence.blocks, len(other)) == other.tolist()
    for _, sequence in held:
        paper.pool.drop(sequence)
    while paper.cache.evict():
        pass
    assert len(paper.cache) == 0 and paper.pool.free == paper.pool.total


def test_the_least_recently_used_goes_first_and_a_text_loses_its_end_before_its_beginning() -> None:
    paper = Paper(12)
    old, used = np.array([1] * 96, np.int32), np.array([2] * 96, np.int32)
    for text in (old, used, old, used):
        paper.pool.drop(paper.read(text))
    assert len(paper.cache) == 6
    paper.cache.evict()
    paper.cache.evict()
    assert paper.cache.match(old)[1] == BLOCK and paper.cache.match(used)[1] == 94
    paper.pool.drop(paper.cache.longest(old))  # a use, and from now on the other is the older one
    paper.cache.evict()
    assert paper.cache.match(old)[1] == BLOCK and paper.cache.match(used)[1] == 2 * BLOCK


def test_a_thousand_texts_that_differ_in_their_ends_share_one_beginning() -> None:
    paper = Paper(1100)
    for number in range(1000):
        text = np.array([*STEM[:150], number, number + 1, 7], np.int32)
        sequence = paper.read(text)
        assert paper.text(sequence.blocks, len(text)) == text.tolist()
        paper.pool.drop(sequence)
    assert len(paper.cache) == 4 + 1000
    assert paper.cache.match(np.array([*STEM[:150], 500, 501, 7, 1, 1], np.int32))[1] == 153
