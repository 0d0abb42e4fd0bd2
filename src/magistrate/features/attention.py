"""How much attention a model pays to the context, and how much to the output it is reading.

These functions map arrays to arrays. An engine with the capability `attention` provides the input, see
`Captured.attention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from magistrate.errors import InputError

if TYPE_CHECKING:
    import numpy as np

Places = Sequence[tuple[int, int]]


def attention_share(attention: np.ndarray, context: Places) -> np.ndarray:
    """Return the share of each head's attention on the context, averaged over the output's positions.

    `attention`: float `[layers, heads, n, read]`, rows that sum to at most 1; `context`: half-open ranges
    of the `read` positions. Returns float64 `[layers, heads]` in [0, 1]. Raises `InputError` for other
    shapes.
    """
    import numpy as np

    _check(attention, context)
    on_context = sum(attention[..., start:end].sum(axis=-1, dtype=np.float64) for start, end in context)
    return np.asarray(np.clip(np.asarray(on_context).mean(axis=-1), 0.0, 1.0))


def lookback_ratio(attention: np.ndarray, context: Places, begin: int) -> np.ndarray:
    """Return each head's ratio of attention on the context to attention on context and output, by position.

    Both are means over their tokens, so that their lengths do not matter: A(context) / (A(context) +
    A(output)), where the output begins at position `begin` (lookback lens, Chuang and others 2024,
    arXiv:2407.07071). Position i of `attention` `[layers, heads, n, read]` has read the positions before
    `begin + i`. Returns float64 `[layers, heads, n]` in [0, 1]. The first position has read no output: its
    ratio is 1, or 0 without attention on the context.
    """
    import numpy as np

    _check(attention, context)
    n, read = attention.shape[2:]
    if not 0 < begin <= read:
        raise InputError(f"the output must start at a position in (0, {read}], got {begin}")
    length = sum(end - start for start, end in context)
    old = np.asarray(
        sum(attention[..., start:end].sum(axis=-1, dtype=np.float64) for start, end in context)
    ) / max(length, 1)
    own = attention[..., begin:].astype(np.float64).sum(axis=-1) / np.maximum(np.arange(n), 1)
    whole = old + own
    return np.asarray(np.divide(old, whole, out=np.zeros_like(old), where=whole > 0))


def _check(attention: np.ndarray, context: Places) -> None:
    if attention.ndim != 4 or 0 in attention.shape:
        raise InputError(
            f"attention must have the shape [layers, heads, n, read], got {list(attention.shape)}"
        )
    read = attention.shape[3]
    if not context or any(not 0 <= start < end <= read for start, end in context):
        raise InputError(f"the context must be ranges within the {read} positions, got {list(context)}")
