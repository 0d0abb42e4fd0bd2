"""The three verbs as programs for the scheduler.

Rows of one token take another attention kernel than longer ones, with other last bits. What was given is
therefore never read in rows of one token, and what is written is always computed in the same rows, so
that equal questions have equal answers however they come to be asked.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from magistrate.engines.base import TraceStep
from magistrate.engines.local.backend import Backend, Row
from magistrate.engines.local.blocks import BLOCK, blocks_for
from magistrate.engines.local.blocks import Sequence as Cached
from magistrate.engines.local.pen import Pen, log_softmax
from magistrate.engines.local.prefix import PrefixCache
from magistrate.engines.local.scheduler import CHUNK
from magistrate.types import Usage


@dataclass(frozen=True, slots=True)
class Written:
    """What a generation program answers."""

    tokens: tuple[int, ...]
    finished: bool
    steered: bool
    usage: Usage
    trace: tuple[TraceStep, ...]


def chunks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Cut `[start, stop)` into pieces of at most `CHUNK`, none of them of one unless that is all there is."""
    while start < stop:
        lone = stop - start == CHUNK + 1
        end = min(start + CHUNK - lone, stop)
        yield start, end
        start = end


def read(prefixes: PrefixCache, sequence: Cached, tokens: list[int]) -> Generator[list[Row], Any, np.ndarray]:
    """Read the rest of a prompt in chunks, each remembered; answers the logits `[vocabulary]` after it."""
    logits: list[np.ndarray] = []
    for start, end in chunks(sequence.length, len(tokens)):
        last = range(end - start - 1, end - start) if end == len(tokens) else range(0)
        logits = yield [Row(sequence, tokens[start:end], last)]
        prefixes.keep(np.array(tokens[:end], np.int32), sequence)
    return np.asarray(logits[0][0])


def choose(
    backend: Backend, prefixes: PrefixCache, prompt: list[int], paths: Sequence[tuple[int, ...]]
) -> Generator[list[Row], list[np.ndarray], tuple[list[float], Usage]]:
    """Log-probability of every token path after the prompt, in nats."""
    sequence = prefixes.longest(np.array(prompt, np.int32))
    cached = sequence.length
    branches: list[Cached] = []
    try:
        first = log_softmax((yield from read(prefixes, sequence, prompt)))
        totals = [float(first[path[0]]) for path in paths]
        longer = [index for index, path in enumerate(paths) if len(path) > 1]
        branches = [backend.pool.fork(sequence, sequence.length) for _ in longer]
        if longer:
            rows = [
                # The last token predicts nothing that is asked for; it keeps short paths from being lone.
                Row(branch, list(paths[index]), range(len(paths[index]) - 1))
                for branch, index in zip(branches, longer, strict=True)
            ]
            for index, logits in zip(longer, (yield rows), strict=True):
                totals[index] += float(_logprobs(logits, paths[index][1:]).sum())
        return totals, Usage(calls=1, prompt=len(prompt), cached=cached)
    finally:
        for held in (sequence, *branches):
            backend.pool.drop(held)


def blocks_to_choose(prompt: int, paths: Sequence[tuple[int, ...]]) -> int:
    """How many blocks `choose` holds for a prompt of so many tokens: branches share only its full ones."""
    branches = sum(blocks_for(prompt + len(path)) - prompt // BLOCK for path in paths if len(path) > 1)
    return blocks_for(prompt) + branches


def likelihood(
    backend: Backend, prefixes: PrefixCache, prompt: list[int], text: tuple[int, ...]
) -> Generator[list[Row], list[np.ndarray], tuple[np.ndarray, Usage]]:
    """Log-probability of every token of `text` after the prompt, float64 `[len(text)]`, in nats."""
    sequence = prefixes.longest(np.array(prompt, np.int32))
    cached = sequence.length
    try:
        logits = yield from read(prefixes, sequence, prompt)
        logprobs = [_logprobs(logits[None], text[:1])]
        # The last token predicts nothing that is asked for; it keeps a short text from being lone.
        for start, end in chunks(0, len(text)) if len(text) > 1 else ():
            asked = text[start + 1 : end + 1]
            (logits,) = yield [Row(sequence, list(text[start:end]), range(len(asked)))]
            logprobs.append(_logprobs(logits, asked))
        usage = Usage(calls=1, prompt=len(prompt) + len(text), cached=cached)
        return np.concatenate(logprobs), usage
    finally:
        backend.pool.drop(sequence)


def generate(
    backend: Backend, prefixes: PrefixCache, prompt: list[int], pen: Pen
) -> Generator[list[Row], list[np.ndarray], Written]:
    """Let `pen` write until it is done; it is shown the logits after every run that it appends."""
    pen.begin()
    sequence = prefixes.longest(np.array(prompt, np.int32))
    cached = sequence.length
    try:
        if not pen.done:
            logits = yield from read(prefixes, sequence, prompt + pen.tokens)
        while not pen.done:
            pen.write(logits)
            if pen.done:
                break
            backend.pool.truncate(sequence, len(prompt) + pen.kept)
            following = (prompt + pen.tokens)[sequence.length :]
            ((logits,),) = yield [Row(sequence, following, range(len(following) - 1, len(following)))]
        usage = Usage(1, len(prompt), cached, len(pen.tokens), pen.forced_count)
        return Written(tuple(pen.tokens), pen.finished, pen.steered, usage, tuple(pen.trace))
    finally:
        backend.pool.drop(sequence)


def _logprobs(logits: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
    """What each row of `logits` `[len(tokens), vocabulary]` gives the token beside it, in nats.

    Row by row, because a whole chunk in float64 would take hundreds of megabytes.
    """
    return np.array([log_softmax(row)[token] for row, token in zip(logits, tokens, strict=True)])
