"""What the scheduler needs of a model: rows of tokens in, numbers out, and a cache that can be shared.

How the cache is kept is the backend's own business: in blocks that it hands out itself, or in cells that
a library assigns. What is in it is accounted in blocks of `BLOCK` tokens and in sequences, so that the
scheduler begins no more than fits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from magistrate.engines.base import Capture
from magistrate.engines.local.blocks import Sequence


@dataclass(frozen=True, slots=True)
class Row:
    """`tokens` to append to `sequence`; `wanted` are the positions among them whose logits are needed, and
    `wish` says what else of the model's state there."""

    sequence: Sequence
    tokens: list[int]
    wanted: range
    wish: Capture | None = None


class Answer(NamedTuple):
    """What a row's wanted positions gave: float32 `[len(wanted), vocabulary]`, and what the row wished for.

    `hidden` is float32 `[len(wanted), 1 + layers, width]`; `attention` is float32 `[layers, heads,
    len(wanted), read]` over the positions up to the last that was wanted. Views that the next forward may
    overwrite.
    """

    logits: np.ndarray
    hidden: np.ndarray | None
    attention: np.ndarray | None = None


def nothing() -> None:
    """There is nothing to do meanwhile."""


class Pool(Protocol):
    """What the cache has room for, and who holds what of it: `total` blocks and `sequences` at a time."""

    total: int
    sequences: int

    def fork(self, sequence: Sequence, length: int) -> Sequence:
        """The first `length` tokens of `sequence` as a new sequence that shares what holds them."""
        ...

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Forget all tokens past the first `length`."""
        ...

    def drop(self, sequence: Sequence) -> None:
        """Give up a sequence; it is empty afterwards, so dropping twice is harmless."""
        ...


class Prefixes(Protocol):
    """Texts that were read and are still in the cache; they give way to whoever needs the room."""

    def match(self, tokens: np.ndarray) -> tuple[list[int], int]:
        """The blocks that hold the longest remembered beginning of `tokens` (int32 `[n]`), and its length,
        at most n - 2."""
        ...

    def longest(self, tokens: np.ndarray) -> Sequence:
        """A new sequence with what `match` finds, which counts as a use of it."""
        ...

    def keep(self, tokens: np.ndarray, sequence: Sequence) -> None:
        """Remember that `sequence` holds `tokens` (int32 `[n]`, from its first on)."""
        ...


class Backend(Protocol):
    """A loaded model. `seconds` is what all forwards so far took to compute."""

    vocabulary: int
    seconds: float

    @property
    def pool(self) -> Pool: ...

    @property
    def prefixes(self) -> Prefixes: ...

    def forward(self, rows: list[Row], meanwhile: Callable[[], None] = nothing) -> list[Answer]:
        """Append every row's tokens and answer what is wanted; `meanwhile` is called as it computes."""
        ...
