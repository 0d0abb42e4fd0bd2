"""Hidden states of a model that read an output, pooled into one vector per layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from magistrate.errors import InputError, SpecError

if TYPE_CHECKING:
    import numpy as np

    from magistrate.engines.base import Captured

Pooling = Literal["mean", "last"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)


def pooled(captured: Captured, how: Pooling) -> np.ndarray:
    """Return float32 `[1 + layers, width]`: per layer the mean over the output's tokens, or the last one.

    `captured` comes from `likelihood`: its first position is before the output and is left out. Raises
    `InputError` if no hidden states were captured.
    """
    import numpy as np

    if how not in POOLINGS:
        raise SpecError(f"the pooling must be {' or '.join(POOLINGS)}, got {how!r}")
    if captured.hidden is None or len(captured.hidden) < 2:
        raise InputError("no hidden states of the output were captured; use Capture(hidden=True)")
    own = captured.hidden[1:]
    found = own[-1] if how == "last" else own.mean(axis=0, dtype=np.float64)
    return np.asarray(found, np.float32)
