"""Names of models that a server does not list, though it answers for them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

SHOWN = 20  # names that are told


def warn_misnamed(address: str, model: str, listed: Sequence[str]) -> None:
    """Warn that `model` is not among those that the server at `address` lists.

    Some servers have one model and answer with it whatever name is asked for, so that a typing error would
    go unseen, and what is stored would bear the wrong name.
    """
    names = ", ".join(listed[:SHOWN]) + (", …" if len(listed) > SHOWN else "")
    warnings.warn(
        f"{address} does not list the model {model!r}, but answers for it; it lists: {names}. "
        f"Name the one that you mean: what is judged now is stored under the name {model!r}",
        UserWarning,
        stacklevel=2,
    )
