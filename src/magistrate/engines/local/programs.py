"""The three verbs as programs for the scheduler, each starting from a prompt that was read.

Rows of one token take another attention kernel than longer ones, with other last bits. What was given is
therefore never read in rows of one token, and what is written is always computed in the same rows, so
that equal questions have equal answers however they come to be asked.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from magistrate.engines.base import Capture, Captured, TraceStep
from magistrate.engines.local.backend import Answer, Row
from magistrate.engines.local.blocks import BLOCK, blocks_for
from magistrate.engines.local.capture import captured, joined, logprobs, partition
from magistrate.engines.local.pen import Pen
from magistrate.engines.local.requests import Ask, Begun, chunks
from magistrate.types import Usage

Path = tuple[int, ...]


class Weighed(NamedTuple):
    """Log-probability of every path in nats, what it cost, and what was captured at the answer's place."""

    totals: list[float]
    usage: Usage
    captured: Captured | None


class Scored(NamedTuple):
    """Log-probability of every token of a text, float64 `[n]` in nats, cost, and what was captured."""

    logprobs: np.ndarray
    usage: Usage
    captured: Captured | None


@dataclass(frozen=True, slots=True)
class Written:
    """What a generation program answers."""

    tokens: Path
    finished: bool
    steered: bool
    usage: Usage
    trace: tuple[TraceStep, ...]


def choose(
    begun: Begun, paths: Sequence[Path], wish: Capture | None = None
) -> Generator[Ask, list[Answer], Weighed]:
    """Weigh token paths after the prompt, in one forward over the tree that they form."""
    caught = None if wish is None else captured(begun.after, wish)
    after = begun.after.logits[0]
    whole = partition(after)
    totals = [float(after[path[0]]) - whole for path in paths]
    usage = Usage(calls=1, prompt=begun.sequence.length, cached=begun.cached)
    tree = leaves(paths)
    pool = begun.backend.pool
    forks = [pool.fork(begun.sequence, begun.sequence.length) for _ in tree]
    try:
        if tree:
            # The last token predicts nothing that is asked for; it keeps short branches from being lone.
            rows = [
                Row(fork, [*leaf, leaf[-1]], range(len(leaf))) for fork, leaf in zip(forks, tree, strict=True)
            ]
            answers = yield Ask(rows)
            found = {
                leaf[:length]: answer.logits
                for leaf, answer in zip(tree, answers, strict=True)
                for length in range(1, len(leaf) + 1)
            }
            for index, path in enumerate(paths):
                if len(path) > 1:
                    totals[index] += float(logprobs(found[path[:-1]][: len(path) - 1], path[1:]).sum())
        return Weighed(totals, usage, caught)
    finally:
        for fork in forks:
            pool.drop(fork)


def leaves(paths: Sequence[Path]) -> list[Path]:
    """What must be read after a prompt to weigh all `paths`: no leaf is the beginning of another."""
    needed = sorted({path[:-1] for path in paths if len(path) > 1})
    return [
        each
        for each, following in zip(needed, [*needed, ()][1:], strict=True)
        if following[: len(each)] != each
    ]


def blocks_to_choose(prompt: int, paths: Sequence[Path]) -> int:
    """How many blocks `choose` holds for a prompt of so many tokens: branches share only its full ones."""
    branches = sum(blocks_for(prompt + len(leaf) + 1) - prompt // BLOCK for leaf in leaves(paths))
    return blocks_for(prompt) + branches


def sequences_to_choose(paths: Sequence[Path]) -> int:
    """How many sequences `choose` holds at a time."""
    return 1 + len(leaves(paths))


def likelihood(begun: Begun, text: Path, wish: Capture | None = None) -> Generator[Ask, list[Answer], Scored]:
    """Score every token of `text` after the prompt; what is captured has a position more than the text."""
    usage = Usage(calls=1, prompt=begun.sequence.length + len(text), cached=begun.cached)
    scores = [logprobs(begun.after.logits, text[:1])]
    caught = [] if wish is None else [captured(begun.after, wish)]
    # The last token predicts nothing that is asked for; it keeps a short text from being lone.
    for start, end in chunks(0, len(text)) if len(text) > 1 or wish is not None else ():
        given = [*text[start:end]] if len(text) > 1 else [text[0]] * 2
        asked = text[start + 1 : end + 1]
        wanted = range(len(asked) if wish is None else end - start)
        (answer,) = yield Ask([Row(begun.sequence, given, wanted, wish)])
        scores.append(logprobs(answer.logits[: len(asked)], asked))
        if wish is not None:
            caught.append(captured(answer, wish))
    return Scored(np.concatenate(scores), usage, joined(caught) if caught else None)


def generate(begun: Begun, pen: Pen) -> Generator[Ask, list[Answer], Written]:
    """Let `pen` write until it is done; it is shown the logits after every run that it appends.

    The prompt that was read ends with what the pen had written already.
    """
    pool, sequence = begun.backend.pool, begun.sequence
    given = sequence.length - len(pen.tokens)
    logits = begun.after.logits[0]
    while True:
        pen.write(logits)
        if pen.done:
            usage = Usage(1, given, min(begun.cached, given), len(pen.tokens), pen.forced_count)
            return Written(tuple(pen.tokens), pen.finished, pen.steered, usage, tuple(pen.trace))
        pool.truncate(sequence, given + pen.kept)
        following = pen.tokens[pen.kept :]
        (answer,) = yield Ask(
            [Row(sequence, following, range(len(following) - 1, len(following)))], pen.prepare
        )
        logits = answer.logits[0]
