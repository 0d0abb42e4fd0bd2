"""What the scheduler needs of a loaded model (`Backend`), and numbers computed from its logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from magistrate.engines.base import Capture, Captured
from magistrate.engines.embedded.prefix_cache import BlockPool, CachedSequence, PrefixCache


@dataclass(frozen=True, slots=True)
class Row:
    """`tokens` to append to `sequence` in one forward pass.

    `wanted` are the positions among them whose logits are returned; `capture` says what else of the model's
    state is returned there.
    """

    sequence: CachedSequence
    tokens: list[int]
    wanted: range
    capture: Capture | None = None


class RowOutput(NamedTuple):
    """The logits at a row's wanted positions: float32 `[len(wanted), vocabulary]`, and what was captured.

    `hidden` is float32 `[len(wanted), 1 + layers, width]`; `attention` is float32 `[layers, heads,
    len(wanted), read]` over the positions up to the last wanted one. The arrays are views that the next
    forward pass may overwrite.
    """

    logits: np.ndarray
    hidden: np.ndarray | None
    attention: np.ndarray | None = None


def do_nothing() -> None:
    """The default of `Backend.forward(meanwhile=…)`."""


class Backend(Protocol):
    """A loaded model with its key-value cache. `seconds` is the total time of its forward passes."""

    vocabulary: int
    seconds: float

    @property
    def pool(self) -> BlockPool: ...

    @property
    def prefixes(self) -> PrefixCache: ...

    def forward(self, rows: list[Row], meanwhile: Callable[[], None] = do_nothing) -> list[RowOutput]:
        """Append every row's tokens and return what is wanted; calls `meanwhile` while it computes."""
        ...


# --- numbers from logits --------------------------------------------------------------------------


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Natural log-probabilities, float64, of logits `[..., vocabulary]`."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True)))


def log_sum_exp(logits: np.ndarray) -> float:
    """The natural logarithm of the sum of the exponentials of logits `[vocabulary]`.

    In float32 but for the sum, which is exact to about 1e-7: in float64 the probabilities of a long text
    would take as long as its forward pass.
    """
    top = logits.max()
    return float(top) + float(np.log(np.exp(logits - top).sum(dtype=np.float64)))


def logprobs(logits: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
    """What each row of `logits` `[len(tokens), vocabulary]` gives the token beside it: float64, in nats."""
    return np.array([float(row[token]) - log_sum_exp(row) for row, token in zip(logits, tokens, strict=True)])


def captured(output: RowOutput, capture: Capture) -> Captured:
    """What `capture` names, at every position of `output`."""
    n, vocabulary = output.logits.shape
    top = min(capture.top, vocabulary)
    tokens, likeliest, entropies = np.empty((n, top), np.int32), np.empty((n, top)), np.empty(n)
    for index, row in enumerate(output.logits):
        scores = log_softmax(row)
        entropies[index] = -(np.exp(scores) * scores).sum()
        if top:
            best = np.argpartition(-scores, top - 1)[:top]
            best = best[np.lexsort((best, -scores[best]))]
            tokens[index], likeliest[index] = best, scores[best]
    hidden = output.hidden.copy() if capture.hidden and output.hidden is not None else None
    attention = output.attention.copy() if capture.attention and output.attention is not None else None
    return Captured(tokens, likeliest, entropies, hidden, attention)


def joined(parts: Sequence[Captured]) -> Captured:
    """Captures of consecutive positions as one."""
    hidden = [part.hidden for part in parts if part.hidden is not None]
    attention = [part.attention for part in parts if part.attention is not None]
    return Captured(
        np.concatenate([part.top_tokens for part in parts]),
        np.concatenate([part.top_logprobs for part in parts]),
        np.concatenate([part.entropies for part in parts]),
        np.concatenate(hidden) if hidden else None,
        _padded_attention(attention) if attention else None,
    )


def _padded_attention(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Attention `[layers, heads, n, read]` of consecutive parts, each padded to the longest `read`."""
    read = max(part.shape[3] for part in parts)
    return np.concatenate(
        [np.pad(part, ((0, 0), (0, 0), (0, 0), (0, read - part.shape[3]))) for part in parts], axis=2
    )
