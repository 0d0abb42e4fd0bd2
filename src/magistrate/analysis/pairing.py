"""Who meets whom in the next round of a tournament."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import ceil, log2

MOST_ROUND_ROBIN = 4  # candidates up to which everybody meets everybody


def rounds_for(n: int) -> int:
    """How many rounds tell n candidates apart: all pairs of a few, else one more than a knockout takes."""
    if n <= MOST_ROUND_ROBIN:
        return n - 1 if n % 2 == 0 else n
    return ceil(log2(n)) + 1


def swiss_pairs(
    names: Sequence[str],
    points: Mapping[str, float],
    met: Collection[frozenset[str]],
    byes: Collection[str],
) -> list[tuple[str, str]]:
    """Pairs of candidates with alike points that have not met yet, the best first.

    `names` are in the order that decides between equal points. With an odd number the lowest one that has
    not yet (`byes`) sits out. Where all that are left have met, they meet again.

    >>> swiss_pairs(["a", "b", "c"], {"a": 2, "b": 0, "c": 1}, {frozenset("ac")}, {"b"})
    [('a', 'b')]
    """
    order = sorted(names, key=lambda name: -points.get(name, 0.0))
    if len(order) % 2:
        out = next((name for name in reversed(order) if name not in byes), order[-1])
        order.remove(out)
    return _paired(order, met) or [(order[at], order[at + 1]) for at in range(0, len(order), 2)]


def _paired(order: Sequence[str], met: Collection[frozenset[str]]) -> list[tuple[str, str]] | None:
    """The candidates in pairs that have not met, the best first; None where nothing does that."""
    if not order:
        return []
    first, *others = order
    for other in others:
        if frozenset((first, other)) in met:
            continue
        rest = _paired([name for name in others if name != other], met)
        if rest is not None:
            return [(first, other), *rest]
    return None
