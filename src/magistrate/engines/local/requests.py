"""What the scheduler moves forward: a prompt to read, then a program that goes on from there.

A program is a generator: it yields what it wants computed and is sent the answers, so that each verb
reads like straight-line code.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from magistrate.engines.base import Capture
from magistrate.engines.local.backend import Answer, Backend, Row
from magistrate.engines.local.blocks import Sequence

if TYPE_CHECKING:
    from magistrate.constraints.masks import Matcher

CHUNK = 256  # tokens of one text in one forward, so that long texts do not hold up the others


def no_matcher() -> None:
    """Nothing is to be prepared, and no mask will be wanted."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Rows to compute. `prepare` is called while they are, and says whose mask will be wanted."""

    rows: list[Row]
    prepare: Callable[[], Matcher | None] = no_matcher


class Begun(NamedTuple):
    """A prompt in the cache: what a program starts from.

    `cached` tokens of it were there before; `after` is the answer at its last token.
    """

    backend: Backend
    sequence: Sequence
    cached: int
    after: Answer


Program = Generator[Ask, list[Answer], Any]


@dataclass(slots=True, eq=False)
class Request:
    """A prompt (int32 `[n]`, at least one token) and the program that follows.

    `blocks` and `sequences` are the most of the cache that both will hold; `wish` says what of the model's
    state is to be captured where the prompt ends.
    """

    prompt: np.ndarray
    begin: Callable[[Begun], Program]
    blocks: int
    future: Future[Any]
    sequences: int = 1
    wish: Capture | None = None
    sequence: Sequence = field(default_factory=Sequence)
    cached: int = 0
    program: Program | None = None
    rows: list[Row] = field(default_factory=list)
    prepare: Callable[[], Matcher | None] = no_matcher
    size: int = 0  # tokens that its next forward computes
    error: BaseException | None = None

    @property
    def reading(self) -> bool:
        """The prompt is not in the cache yet."""
        return self.program is None

    def wants(self, ask: Ask) -> None:
        """Take note of what the next forward is to compute for it."""
        self.rows, self.prepare = ask.rows, ask.prepare
        self.size = sum(len(row.tokens) for row in ask.rows)

    def read_on(self) -> None:
        """Ask for the next chunk of the prompt."""
        start, end = next(chunks(self.sequence.length, len(self.prompt)))
        last = range(end - start - 1, end - start) if end == len(self.prompt) else range(0)
        self.wants(Ask([Row(self.sequence, self.prompt[start:end].tolist(), last, self.wish)]))


def chunks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Cut `[start, stop)` into pieces of at most `CHUNK`, none of them of one unless that is all there is."""
    while start < stop:
        lone = stop - start == CHUNK + 1
        end = min(start + CHUNK - lone, stop)
        yield start, end
        start = end
