"""Every way in which a vocabulary can spell a text, weighed best first.

A model may write `hallucinated` in hundreds of ways; the canonical one has nearly all the probability,
and this says how nearly.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Generator, Mapping, Sequence

from magistrate.engines.base import Capture
from magistrate.engines.local.backend import Answer, Row
from magistrate.engines.local.blocks import BLOCK, blocks_for
from magistrate.engines.local.capture import captured, partition
from magistrate.engines.local.programs import Path, Weighed
from magistrate.engines.local.requests import Ask, Begun
from magistrate.types import Usage

AT_ONCE = 32  # beginnings that are followed in one forward
LEFT = 1e-6  # share of the found probability that beginnings not followed to their end may have


class Spellings:
    """Which tokens can begin what is left of a text; `vocabulary` gives each token's bytes."""

    def __init__(self, vocabulary: Mapping[bytes, int]) -> None:
        self._vocabulary = vocabulary
        self._longest = max(map(len, vocabulary))

    def steps(self, text: bytes, at: int) -> list[tuple[int, int]]:
        """Tokens that spell `text[at:end]`, as pairs `(token, end)`."""
        ends = range(at + 1, min(len(text), at + self._longest) + 1)
        return [(self._vocabulary[text[at:end]], end) for end in ends if text[at:end] in self._vocabulary]


def choose_all(
    begun: Begun,
    texts: Sequence[bytes],
    ends: Sequence[int | None],
    spellings: Spellings,
    wish: Capture | None = None,
) -> Generator[Ask, list[Answer], Weighed]:
    """Log-probability of every text, summed over its spellings, each followed by its token of `ends`.

    Beginnings are followed in the order of their probability, until those left have together less than
    `LEFT` of what was found.
    """
    caught = None if wish is None else captured(begun.after, wish)
    pool = begun.backend.pool
    found = [0.0] * len(texts)
    left: list[tuple[float, Path, int, int]] = []  # minus log-probability, tokens so far, text, place in it

    def follow(answer: Answer, score: float, path: Path, text: int, at: int) -> None:
        row = answer.logits[-1]
        whole = partition(row)
        end = ends[text]
        if at == len(texts[text]):
            assert end is not None
            found[text] += math.exp(score + float(row[end]) - whole)
            return
        for token, after in spellings.steps(texts[text], at):
            likelier = score + float(row[token]) - whole
            if after == len(texts[text]) and end is None:
                found[text] += math.exp(likelier)
            else:
                heapq.heappush(left, (-likelier, (*path, token), text, after))

    for index in range(len(texts)):
        follow(begun.after, 0.0, (), index, 0)
    while left and math.fsum(math.exp(-each[0]) for each in left) > LEFT * math.fsum(found):
        chosen = [heapq.heappop(left) for _ in range(min(AT_ONCE, len(left)))]
        forks = [pool.fork(begun.sequence, begun.sequence.length) for _ in chosen]
        try:
            # The last token is there twice so that no row is of one token.
            rows = [
                Row(fork, [*path, path[-1]], range(len(path) - 1, len(path)))
                for fork, (_, path, _, _) in zip(forks, chosen, strict=True)
            ]
            for answer, (score, path, text, at) in zip((yield Ask(rows)), chosen, strict=True):
                follow(answer, -score, path, text, at)
        finally:
            for fork in forks:
                pool.drop(fork)
    usage = Usage(calls=1, prompt=begun.sequence.length, cached=begun.cached)
    return Weighed([math.log(each) if each else -math.inf for each in found], usage, caught)


def sequences_to_choose_all() -> int:
    """How many sequences `choose_all` holds at a time."""
    return 1 + AT_ONCE


def blocks_to_choose_all(prompt: int, texts: Sequence[bytes]) -> int:
    """How many blocks `choose_all` holds for a prompt of so many tokens."""
    longest = max(map(len, texts)) + 1
    return blocks_for(prompt) + AT_ONCE * (blocks_for(prompt + longest) - prompt // BLOCK)
