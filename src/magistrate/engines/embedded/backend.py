"""`Backend`: the interface of a loaded model for the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from magistrate.engines.base import Capture
from magistrate.engines.embedded.prefix_cache import BlockPool, CachedSequence, PrefixCache


@dataclass(frozen=True, slots=True)
class Row:
    """`tokens` to append to `sequence` in one forward pass.

    `wanted` are the positions among them whose logits are returned. `capture` selects what else of the
    model's state is returned for them.
    """

    sequence: CachedSequence
    tokens: list[int]
    wanted: range
    capture: Capture | None = None


class RowOutput(NamedTuple):
    """The logits at a row's wanted positions, float32 `[len(wanted), vocabulary]`, and captured state.

    `hidden` is float32 `[len(wanted), 1 + layers, width]`; `attention` is float32 `[layers, heads,
    len(wanted), read]` over the positions up to the last wanted one. The arrays are views that the next
    forward pass may overwrite.
    """

    logits: np.ndarray
    hidden: np.ndarray | None
    attention: np.ndarray | None = None


def do_nothing() -> None:
    """Do nothing: the default of `Backend.forward(meanwhile=…)`."""


class Backend(Protocol):
    """A loaded model with its key-value cache. `seconds` is the total time of its forward passes."""

    vocabulary: int
    seconds: float

    @property
    def pool(self) -> BlockPool: ...

    @property
    def prefixes(self) -> PrefixCache: ...

    def forward(self, rows: list[Row], meanwhile: Callable[[], None] = do_nothing) -> list[RowOutput]:
        """Append every row's tokens and return the wanted outputs; call `meanwhile` while computing."""
        ...
