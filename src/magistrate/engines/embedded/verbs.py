"""The three verbs as programs for the scheduler; each starts from a prompt that is in the cache.

Rows of one token take another attention kernel than longer rows, with other last bits. So given text is never
read in rows of one token, and written text is always computed in the same rows: the same question gets the
same answer, whatever else is in the batch.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from magistrate.engines.base import Capture, Captured, TraceStep
from magistrate.engines.embedded.backend import Row, RowOutput, captured, joined, log_sum_exp, logprobs
from magistrate.engines.embedded.decoder import Decoder
from magistrate.engines.embedded.prefix_cache import BLOCK, blocks_for
from magistrate.engines.embedded.scheduler import ForwardRequest, Prefilled, chunks
from magistrate.types import Usage

SPELLINGS_AT_ONCE = 32  # partial spellings that are followed in one forward pass
SPELLINGS_LEFT = 1e-6  # share of the found probability that spellings not followed to their end may have

Path = tuple[int, ...]


class PathScores(NamedTuple):
    """Log-probability of every path in nats, its usage, and what was captured where the answer begins."""

    totals: list[float]
    usage: Usage
    captured: Captured | None


class TokenScores(NamedTuple):
    """Log-probability of every token of a text, float64 `[n]` in nats, its usage, and what was captured."""

    logprobs: np.ndarray
    usage: Usage
    captured: Captured | None


@dataclass(frozen=True, slots=True)
class Decoded:
    """The tokens that `generate` wrote, and how."""

    tokens: Path
    finished: bool
    steered: bool
    usage: Usage
    trace: tuple[TraceStep, ...]


# --- choose ---------------------------------------------------------------------------------------


def choose(
    prefilled: Prefilled, paths: Sequence[Path], capture: Capture | None = None
) -> Generator[ForwardRequest, list[RowOutput], PathScores]:
    """Score token paths after the prompt, in one forward pass over the tree that they form."""
    state = None if capture is None else captured(prefilled.last, capture)
    first = prefilled.last.logits[0]
    normalizer = log_sum_exp(first)
    totals = [float(first[path[0]]) - normalizer for path in paths]
    usage = Usage(calls=1, prompt=prefilled.sequence.length, cached=prefilled.cached)
    tree = leaves(paths)
    pool = prefilled.backend.pool
    forks = [pool.fork(prefilled.sequence, prefilled.sequence.length) for _ in tree]
    try:
        if tree:
            # The last token is repeated so that no row has one token; what it predicts is not used.
            rows = [
                Row(fork, [*leaf, leaf[-1]], range(len(leaf))) for fork, leaf in zip(forks, tree, strict=True)
            ]
            outputs = yield ForwardRequest(rows)
            found = {
                leaf[:length]: output.logits
                for leaf, output in zip(tree, outputs, strict=True)
                for length in range(1, len(leaf) + 1)
            }
            for index, path in enumerate(paths):
                if len(path) > 1:
                    totals[index] += float(logprobs(found[path[:-1]][: len(path) - 1], path[1:]).sum())
        return PathScores(totals, usage, state)
    finally:
        for fork in forks:
            pool.drop(fork)


def leaves(paths: Sequence[Path]) -> list[Path]:
    """What must be read after a prompt to score all `paths`; no leaf is a prefix of another."""
    needed = sorted({path[:-1] for path in paths if len(path) > 1})
    return [
        each
        for each, following in zip(needed, [*needed, ()][1:], strict=True)
        if following[: len(each)] != each
    ]


def blocks_to_choose(prompt: int, paths: Sequence[Path]) -> int:
    """How many blocks `choose` holds for a prompt of `prompt` tokens; branches share only its full blocks."""
    branches = sum(blocks_for(prompt + len(leaf) + 1) - prompt // BLOCK for leaf in leaves(paths))
    return blocks_for(prompt) + branches


# --- choose over every way to spell an option -----------------------------------------------------


class Spellings:
    """Which tokens can begin the rest of a text; `vocabulary` maps each token's bytes to its id."""

    def __init__(self, vocabulary: Mapping[bytes, int]) -> None:
        self._vocabulary = vocabulary
        self._longest = max(map(len, vocabulary))

    def steps(self, text: bytes, at: int) -> list[tuple[int, int]]:
        """Tokens that spell `text[at:end]`, as pairs `(token, end)`."""
        ends = range(at + 1, min(len(text), at + self._longest) + 1)
        return [(self._vocabulary[text[at:end]], end) for end in ends if text[at:end] in self._vocabulary]


def choose_all(
    prefilled: Prefilled,
    texts: Sequence[bytes],
    ends: Sequence[int | None],
    spellings: Spellings,
    capture: Capture | None = None,
) -> Generator[ForwardRequest, list[RowOutput], PathScores]:
    """Log-probability of every text, summed over all its spellings, each followed by its token of `ends`.

    A model can write `hallucinated` in hundreds of ways, of which the tokenizer's own has nearly all the
    probability; this says how nearly. Partial spellings are followed in the order of their probability,
    until those left have together less than `SPELLINGS_LEFT` of what was found.
    """
    state = None if capture is None else captured(prefilled.last, capture)
    pool = prefilled.backend.pool
    found = [0.0] * len(texts)
    left: list[tuple[float, Path, int, int]] = []  # minus log-probability, tokens so far, text, place in it

    def follow(output: RowOutput, score: float, path: Path, text: int, at: int) -> None:
        row = output.logits[-1]
        normalizer = log_sum_exp(row)
        end = ends[text]
        if at == len(texts[text]):
            assert end is not None
            found[text] += math.exp(score + float(row[end]) - normalizer)
            return
        for token, after in spellings.steps(texts[text], at):
            total = score + float(row[token]) - normalizer
            if after == len(texts[text]) and end is None:
                found[text] += math.exp(total)
            else:
                heapq.heappush(left, (-total, (*path, token), text, after))

    for index in range(len(texts)):
        follow(prefilled.last, 0.0, (), index, 0)
    while left and math.fsum(math.exp(-each[0]) for each in left) > SPELLINGS_LEFT * math.fsum(found):
        chosen = [heapq.heappop(left) for _ in range(min(SPELLINGS_AT_ONCE, len(left)))]
        forks = [pool.fork(prefilled.sequence, prefilled.sequence.length) for _ in chosen]
        try:
            # The last token is repeated so that no row has one token.
            rows = [
                Row(fork, [*path, path[-1]], range(len(path) - 1, len(path)))
                for fork, (_, path, _, _) in zip(forks, chosen, strict=True)
            ]
            for output, (score, path, text, at) in zip((yield ForwardRequest(rows)), chosen, strict=True):
                follow(output, -score, path, text, at)
        finally:
            for fork in forks:
                pool.drop(fork)
    usage = Usage(calls=1, prompt=prefilled.sequence.length, cached=prefilled.cached)
    return PathScores([math.log(each) if each else -math.inf for each in found], usage, state)


def blocks_to_choose_all(prompt: int, texts: Sequence[bytes]) -> int:
    """How many blocks `choose_all` holds for a prompt of `prompt` tokens."""
    longest = max(map(len, texts)) + 1
    return blocks_for(prompt) + SPELLINGS_AT_ONCE * (blocks_for(prompt + longest) - prompt // BLOCK)


# --- likelihood and generate ----------------------------------------------------------------------


def likelihood(
    prefilled: Prefilled, text: Path, capture: Capture | None = None
) -> Generator[ForwardRequest, list[RowOutput], TokenScores]:
    """Score every token of `text` after the prompt; captures one position more than the text has tokens."""
    usage = Usage(calls=1, prompt=prefilled.sequence.length + len(text), cached=prefilled.cached)
    scores = [logprobs(prefilled.last.logits, text[:1])]
    states = [] if capture is None else [captured(prefilled.last, capture)]
    # The last token is read too, so that a short text is no row of one token.
    for start, end in chunks(0, len(text)) if len(text) > 1 or capture is not None else ():
        given = [*text[start:end]] if len(text) > 1 else [text[0]] * 2
        scored = text[start + 1 : end + 1]
        wanted = range(len(scored) if capture is None else end - start)
        (output,) = yield ForwardRequest([Row(prefilled.sequence, given, wanted, capture)])
        scores.append(logprobs(output.logits[: len(scored)], scored))
        if capture is not None:
            states.append(captured(output, capture))
    return TokenScores(np.concatenate(scores), usage, joined(states) if states else None)


def generate(prefilled: Prefilled, decoder: Decoder) -> Generator[ForwardRequest, list[RowOutput], Decoded]:
    """Let `decoder` write until it is done, showing it the logits after every run of tokens it appends.

    The prompt that was read ends with the tokens that the decoder had written already.
    """
    pool, sequence = prefilled.backend.pool, prefilled.sequence
    given = sequence.length - len(decoder.tokens)
    logits = prefilled.last.logits[0]
    while True:
        decoder.write(logits)
        if decoder.done:
            cached = min(prefilled.cached, given)
            usage = Usage(1, given, cached, len(decoder.tokens), decoder.forced_count)
            return Decoded(
                tuple(decoder.tokens), decoder.finished, decoder.steered, usage, tuple(decoder.trace)
            )
        pool.truncate(sequence, given + decoder.kept)
        following = decoder.tokens[decoder.kept :]
        row = Row(sequence, following, range(len(following) - 1, len(following)))
        (output,) = yield ForwardRequest([row], decoder.prepare)
        logits = output.logits[0]
