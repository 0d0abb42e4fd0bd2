"""Numbers from logits: log-probabilities, entropies and the likeliest tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from magistrate.engines.base import Capture, Captured
from magistrate.engines.local.backend import Answer


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Natural log-probabilities, float64, of logits `[vocabulary]`."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    return np.asarray(wide - np.log(np.exp(wide).sum()))


def partition(logits: np.ndarray) -> float:
    """The natural logarithm of the sum of the exponentials of logits `[vocabulary]`.

    In float32 but for the sum, which is exact to about 1e-7: in float64 a long text's probabilities
    would take as long as its forward.
    """
    top = logits.max()
    return float(top) + float(np.log(np.exp(logits - top).sum(dtype=np.float64)))


def logprobs(logits: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
    """What each row of `logits` `[len(tokens), vocabulary]` gives the token beside it: float64, in nats."""
    return np.array([float(row[token]) - partition(row) for row, token in zip(logits, tokens, strict=True)])


def captured(answer: Answer, wish: Capture) -> Captured:
    """What `wish` names, of every position of `answer`."""
    n, vocabulary = answer.logits.shape
    top = min(wish.top, vocabulary)
    tokens, likeliest, entropies = np.empty((n, top), np.int32), np.empty((n, top)), np.empty(n)
    for index, row in enumerate(answer.logits):
        scores = log_softmax(row)
        entropies[index] = -(np.exp(scores) * scores).sum()
        if top:
            best = np.argpartition(-scores, top - 1)[:top]
            best = best[np.lexsort((best, -scores[best]))]
            tokens[index], likeliest[index] = best, scores[best]
    hidden = answer.hidden.copy() if wish.hidden and answer.hidden is not None else None
    attention = answer.attention.copy() if wish.attention and answer.attention is not None else None
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
        _widened(attention) if attention else None,
    )


def _widened(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Attention `[layers, heads, n, read]` of consecutive positions, each part having read further."""
    read = max(part.shape[3] for part in parts)
    return np.concatenate(
        [np.pad(part, ((0, 0), (0, 0), (0, 0), (0, read - part.shape[3]))) for part in parts], axis=2
    )
