"""Among remembered texts the longest beginning is found, and never one that is not there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magistrate.engines.local.blocks import BLOCK, BlockPool, Sequence
from magistrate.engines.local.numbered import PrefixList
from magistrate.engines.local.tree import PrefixTree, shared_prefix


class Paper:
    """A pool whose blocks hold the tokens themselves."""

    def __init__(self, blocks: int, kind: type[PrefixTree | PrefixList] = PrefixTree) -> None:
        self.cells = np.zeros((blocks, BLOCK), np.int32)
        self.pool = BlockPool(
            blocks, lambda source, target: self.cells.__setitem__(target, self.cells[source])
        )
        self.tree = kind(self.pool)

    def read(self, text: np.ndarray) -> Sequence:
        """What the scheduler does with a prompt: take what is there, compute the rest, remember it."""
        sequence = self.tree.longest(text)
        rest = text[sequence.length :]
        self.pool.extend(sequence, len(rest))
        for token in rest:
            self.cells[sequence.blocks[sequence.length // BLOCK], sequence.length % BLOCK] = token
            sequence.length += 1
        self.tree.keep(text, sequence)
        return sequence

    def text(self, blocks: list[int], length: int) -> list[int]:
        return [int(self.cells[blocks[at // BLOCK], at % BLOCK]) for at in range(length)]


STEM = [(7 * at) % 5 + 1 for at in range(200)]
texts = st.builds(
    lambda length, tail: np.array(STEM[:length] + tail, np.int32),
    st.integers(0, 140),
    st.lists(st.sampled_from([1, 2, 300, 70000]), min_size=2, max_size=70),
)


both = pytest.mark.parametrize("kind", [PrefixTree, PrefixList])


@both
@settings(max_examples=200, deadline=None)
@given(st.lists(texts, min_size=1, max_size=30))
def test_the_longest_remembered_beginning_is_found(
    kind: type[PrefixTree | PrefixList], read: list[np.ndarray]
) -> None:
    paper = Paper(400, kind)
    for number, text in enumerate(read):
        known = max((shared_prefix(text, other) for other in read[:number]), default=0)
        blocks, length = paper.tree.match(text)
        assert length == min(known, len(text) - 2)
        assert paper.text(blocks, length) == text[:length].tolist()
        sequence = paper.read(text)
        assert paper.text(sequence.blocks, len(text)) == text.tolist()
        paper.pool.drop(sequence)
    while paper.tree.evict():
        pass
    assert len(paper.tree) == 0 and paper.pool.free == paper.pool.total


@both
@settings(max_examples=200, deadline=None)
@given(st.lists(texts, min_size=1, max_size=40), st.integers(8, 20), st.integers(0, 3))
def test_what_is_evicted_is_forgotten_and_what_is_held_is_kept(
    kind: type[PrefixTree | PrefixList], read: list[np.ndarray], blocks: int, most_held: int
) -> None:
    paper = Paper(blocks + 8 * most_held, kind)
    held: list[tuple[np.ndarray, Sequence]] = []
    for text in read:
        found, length = paper.tree.match(text)
        assert paper.text(found, length) == text[:length].tolist()
        held.append((text, paper.read(text)))
        while len(held) > most_held:
            paper.pool.drop(held.pop(0)[1])
        for other, sequence in held:
            assert paper.text(sequence.blocks, len(other)) == other.tolist()
    for _, sequence in held:
        paper.pool.drop(sequence)
    while paper.tree.evict():
        pass
    assert len(paper.tree) == 0 and paper.pool.free == paper.pool.total


def test_the_least_recently_used_goes_first_and_a_text_loses_its_end_before_its_beginning() -> None:
    paper = Paper(12)
    old, used = np.array([1] * 96, np.int32), np.array([2] * 96, np.int32)
    for text in (old, used, old, used):
        paper.pool.drop(paper.read(text))
    assert len(paper.tree) == 6
    paper.tree.evict()
    paper.tree.evict()
    assert paper.tree.match(old)[1] == BLOCK and paper.tree.match(used)[1] == 94
    paper.pool.drop(paper.tree.longest(old))  # a use, and from now on the other is the older one
    paper.tree.evict()
    assert paper.tree.match(old)[1] == BLOCK and paper.tree.match(used)[1] == 2 * BLOCK


def test_a_thousand_texts_that_differ_in_their_ends_share_one_beginning() -> None:
    paper = Paper(1100)
    for number in range(1000):
        text = np.array([*STEM[:150], number, number + 1, 7], np.int32)
        sequence = paper.read(text)
        assert paper.text(sequence.blocks, len(text)) == text.tolist()
        paper.pool.drop(sequence)
    assert len(paper.tree) == 4 + 1000
    assert paper.tree.match(np.array([*STEM[:150], 500, 501, 7, 1, 1], np.int32))[1] == 153


def test_whole_texts_go_one_by_one_and_a_longer_one_takes_the_place_of_its_beginning() -> None:
    paper = Paper(40, PrefixList)
    old, used = np.array([1] * 96, np.int32), np.array([2] * 96, np.int32)
    for text in (old, old[:40], used, used[:70], old):
        paper.pool.drop(paper.read(text))
    assert len(paper.tree) == 2
    paper.pool.drop(paper.read(np.append(used, used)))
    assert len(paper.tree) == 2
    assert paper.tree.evict() and paper.tree.match(old) == ([], 0)
    assert paper.tree.match(np.append(used, used))[1] == 190
    assert paper.tree.evict() and not paper.tree.evict() and paper.pool.free == 40


def test_remembered_texts_hold_no_more_than_they_may_but_the_last_is_always_there() -> None:
    pool = BlockPool(40, lambda source, target: None)
    remembered = PrefixList(pool, most=6)

    def read(token: int, tokens: int) -> np.ndarray:
        text = np.array([*STEM[:64], *[token] * (tokens - 64)], np.int32)
        sequence = remembered.longest(text)
        pool.extend(sequence, tokens - sequence.length)
        sequence.length = tokens
        remembered.keep(text, sequence)
        pool.drop(sequence)
        return text

    first, second, third = (read(token, 128) for token in (300, 301, 302))
    assert len(remembered) == 2 and pool.free == 40 - 6  # two blocks are shared
    assert [remembered.match(text)[1] for text in (first, second, third)] == [64, 126, 126]
    long = read(303, 400)
    assert len(remembered) == 1 and remembered.match(long)[1] == 398
