"""Splits samples by context, so that nothing is tested on what it was trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def held_out(groups: Sequence[int | str], share: float, seed: int) -> list[bool]:
    """Return for each sample whether it is held out. `groups` is the same for samples that belong together.

    A `share` in [0, 1) of the groups is chosen by `seed`: at least one and never all, or none for a `share`
    of 0.

    >>> held_out([0, 0, 1, 2, 2], 0.3, 0)
    [False, False, False, True, True]
    """
    known = sorted(set(groups), key=str)
    wanted = min(max(round(share * len(known)), 1), len(known) - 1) if share else 0
    order = sorted(known, key=lambda group: hashlib.sha256(f"{seed} {group}".encode()).digest())
    chosen = set(order[:wanted])
    return [group in chosen for group in groups]
