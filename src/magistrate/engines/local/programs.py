"""The three verbs as programs for the scheduler."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from magistrate.engines.base import TraceStep
from magistrate.engines.local.backend import Backend, Row
from magistrate.engines.local.blocks import Sequence as Cached
from magistrate.engines.local.pen import Pen, log_softmax
from magistrate.engines.local.prefix import PrefixCache
from magistrate.types import Usage

CHUNK = 256  # tokens of one prompt in one forward, so that long prompts do not hold up the others


@dataclass(frozen=True, slots=True)
class Written:
    """What a generation program answers."""

    tokens: tuple[int, ...]
    finished: bool
    steered: bool
    usage: Usage
    trace: tuple[TraceStep, ...]


def read(prefixes: PrefixCache, sequence: Cached, tokens: list[int]) -> Generator[list[Row], Any, np.ndarray]:
    """Read the rest of a prompt in chunks and remember it; answers the last token's logits `[vocabulary]`."""
    position = sequence.length
    logits: list[np.ndarray] = []
    while position < len(tokens):
        # Never a single token at the end: it would take another kernel, with other last bits.
        lone = len(tokens) - position == CHUNK + 1
        chunk = tokens[position : position + CHUNK - lone]
        position += len(chunk)
        last = range(len(chunk) - 1, len(chunk)) if position == len(tokens) else range(0)
        logits = yield [Row(sequence, chunk, last)]
    prefixes.keep(np.array(tokens, np.int32), sequence)
    return np.asarray(logits[0][0])


def choose(
    backend: Backend, prefixes: PrefixCache, prompt: list[int], paths: Sequence[tuple[int, ...]]
) -> Generator[list[Row], list[np.ndarray], tuple[list[float], Usage]]:
    """Log-probability of every token path after the prompt, in nats."""
    sequence = prefixes.longest(np.array(prompt, np.int32))
    cached = sequence.length
    branches: list[Cached] = []
    try:
        first = log_softmax((yield from read(prefixes, sequence, prompt))[None])[0]
        totals = [float(first[path[0]]) for path in paths]
        longer = [index for index, path in enumerate(paths) if len(path) > 1]
        branches = [backend.pool.fork(sequence, sequence.length) for _ in longer]
        if longer:
            rows = [
                Row(branch, list(paths[index][:-1]), range(len(paths[index]) - 1))
                for branch, index in zip(branches, longer, strict=True)
            ]
            for index, logits in zip(longer, (yield rows), strict=True):
                following = paths[index][1:]
                totals[index] += float(log_softmax(logits)[range(len(following)), following].sum())
        return totals, Usage(calls=1, prompt=len(prompt), cached=cached)
    finally:
        for held in (sequence, *branches):
            backend.pool.drop(held)


def likelihood(
    backend: Backend, prefixes: PrefixCache, prompt: list[int], text: tuple[int, ...]
) -> Generator[list[Row], list[np.ndarray], tuple[np.ndarray, Usage]]:
    """Log-probability of every token of `text` after the prompt, float64 `[len(text)]`, in nats."""
    sequence = prefixes.longest(np.array(prompt, np.int32))
    cached = sequence.length
    try:
        before = log_softmax((yield from read(prefixes, sequence, prompt))[None])[0]
        logprobs = [np.array([before[text[0]]])]
        # The last token predicts nothing that is asked for, so it is not read.
        for start in range(0, len(text) - 1, CHUNK):
            chunk = list(text[start : min(start + CHUNK, len(text) - 1)])
            (logits,) = yield [Row(sequence, chunk, range(len(chunk)))]
            following = list(text[start + 1 : start + 1 + len(chunk)])
            logprobs.append(log_softmax(logits)[range(len(following)), following])
        return np.concatenate(logprobs), Usage(calls=1, prompt=len(prompt) + len(text), cached=cached)
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
            if pen.went_back:
                backend.pool.truncate(sequence, len(prompt) + len(pen.tokens) - 1)
            following = (prompt + pen.tokens)[sequence.length :]
            ((logits,),) = yield [Row(sequence, following, range(len(following) - 1, len(following)))]
        usage = Usage(1, len(prompt), cached, len(pen.tokens), pen.forced_count)
        return Written(tuple(pen.tokens), pen.finished, pen.steered, usage, tuple(pen.trace))
    finally:
        backend.pool.drop(sequence)
