"""Pairs candidates for the next round of a tournament."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import ceil, log2

MOST_ROUND_ROBIN = 4  # most candidates for which all pairs meet


def rounds_for(n: int) -> int:
    """Return the number of rounds for n candidates: all pairs of a few, else one more than a knockout."""
    if n <= MOST_ROUND_ROBIN:
        return n - 1 if n % 2 == 0 else n
    return ceil(log2(n)) + 1


def swiss_pairs(
    names: Sequence[str],
    points: Mapping[str, float],
    met: Collection[frozenset[str]],
    byes: Collection[str],
) -> list[tuple[str, str]]:
    """Pair candidates with similar points that have not met yet, best first.

    The order of `names` breaks ties. With an odd number of candidates, the lowest one not yet in `byes`
    sits out. If no pairing without a rematch exists, neighbours in the order are paired.

    >>> swiss_pairs(["a", "b", "c"], {"a": 2, "b": 0, "c": 1}, {frozenset("ac")}, {"b"})
    [('a', 'b')]
    """
    order = sorted(names, key=lambda name: -points.get(name, 0.0))
    if len(order) % 2:
        out = next((name for name in reversed(order) if name not in byes), order[-1])
        order.remove(out)
    return _paired(order, met) or [(order[at], order[at + 1]) for at in range(0, len(order), 2)]


def _paired(order: Sequence[str], met: Collection[frozenset[str]]) -> list[tuple[str, str]] | None:
    """Pair the candidates without rematches, best first, by backtracking; None if that is impossible."""
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
