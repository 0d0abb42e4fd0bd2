"""Strengths of candidates from pairwise comparisons, ties included.

The model is Bradley and Terry's (1952) with Davidson's (1970) ties: i beats j with a probability
proportional to s_i, loses with s_j, and ties with v * sqrt(s_i * s_j). The logarithms of the strengths are
estimated by Newton's method. A ridge of `RIDGE` keeps them finite if all comparisons in a bootstrap draw go
one way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from magistrate.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WIN, LOSS, TIE = 0, 1, 2
RIDGE = 1e-3
LONGEST_STEP, MOST_STEPS, STILL = 2.0, 100, 1e-8
ELO = 400.0
"""Points by which a candidate that wins ten times as often as it loses is above the other one."""

_AT_ONCE = 3_000_000  # numbers that the second moments may take in memory at a time


class PairCounts:
    """Counts of wins, losses and ties of each pair from n comparisons of k candidates, under any weights.

    `first` and `second` are different candidates, int `[n]` in [0, k). `outcome` int `[n]` is `WIN` if the
    first won, `LOSS` if the second won, or `TIE`. Raises `InputError` for other shapes or values.
    """

    def __init__(
        self,
        first: NDArray[np.int64],
        second: NDArray[np.int64],
        outcome: NDArray[np.int64],
        k: int,
    ) -> None:
        import numpy as np

        if not (first.shape == second.shape == outcome.shape) or first.ndim != 1 or not first.size:
            raise InputError("first, second and outcome must be flat, non-empty lists of the same length")
        if (
            (first == second).any()
            or min(first.min(), second.min()) < 0
            or max(first.max(), second.max()) >= k
        ):
            raise InputError(f"a comparison needs two different candidates from 0 to {k - 1}")
        low, high = np.minimum(first, second), np.maximum(first, second)
        swapped = np.where((first > second) & (outcome != TIE), 1 - outcome, outcome)
        pairs, self._pair = np.unique(low * k + high, return_inverse=True)
        self.low, self.high, self.k = pairs // k, pairs % k, k
        self._cell = self._pair * 3 + swapped
        self.ties = bool((outcome == TIE).any())
        self.whole = self(np.ones((1, first.size)))[0]

    def __call__(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return counts `[b, pairs, 3]`: wins of the lower number, wins of the higher number, and ties."""
        import numpy as np

        size = self.low.size * 3
        counts = [np.bincount(self._cell, each, size) for each in weights]
        return np.array(counts, dtype=np.float64).reshape(-1, size // 3, 3)

    def wins(self) -> NDArray[np.float64]:
        """Return a table `[k, k]`: how often the row beat the column."""
        import numpy as np

        table = np.zeros((self.k, self.k))
        table[self.low, self.high], table[self.high, self.low] = self.whole[:, WIN], self.whole[:, LOSS]
        return table

    def tied(self) -> NDArray[np.float64]:
        """Return a table `[k, k]`: how often row and column tied."""
        import numpy as np

        table = np.zeros((self.k, self.k))
        table[self.low, self.high] = table[self.high, self.low] = self.whole[:, TIE]
        return table


def strengths(
    counts: NDArray[np.float64], low: NDArray[np.int64], high: NDArray[np.int64], k: int, *, ties: bool
) -> NDArray[np.float64]:
    """Return `[b, k + 1]`: k log strengths with mean 0 in each row, then the logarithm of the tie factor.

    `counts` `[b, pairs, 3]` are as `PairCounts` returns them. Without `ties` the tie factor is minus
    infinity.
    """
    import numpy as np

    step = max(1, _AT_ONCE // (max(low.size, 1) * 3 * (k + 1)))
    found = [_newton(counts[at : at + step], low, high, k, ties=ties) for at in range(0, len(counts), step)]
    whole = np.concatenate(found)
    whole[:, :k] -= whole[:, :k].mean(1, keepdims=True)
    return whole


def _newton(
    counts: NDArray[np.float64], low: NDArray[np.int64], high: NDArray[np.int64], k: int, *, ties: bool
) -> NDArray[np.float64]:
    import numpy as np

    n_pairs, places = low.size, np.arange(low.size)
    # The model is log-linear: `design` is what each outcome of a pair adds to the log odds, by parameter.
    design = np.zeros((n_pairs, 3 if ties else 2, k + 1))
    design[places, WIN, low] = design[places, LOSS, high] = 1.0
    if ties:
        design[places, TIE, low] = design[places, TIE, high] = 0.5
        design[:, TIE, k] = 1.0
    given = counts[:, :, : design.shape[1]]
    totals = given.sum(2)
    seen = np.einsum("bpo,pod->bd", given, design)
    flat = design.reshape(-1, k + 1)
    theta = np.zeros((len(counts), k + 1))
    for _ in range(MOST_STEPS):
        odds = (theta @ flat.T).reshape(len(counts), n_pairs, -1)
        shares = np.exp(odds - odds.max(2, keepdims=True))
        shares /= shares.sum(2, keepdims=True)
        expected = totals[:, :, None] * shares
        mean = np.einsum("bpo,pod->bpd", shares, design)
        gradient = seen - np.einsum("bpo,pod->bd", expected, design) - RIDGE * theta
        second = np.einsum("bq,qd,qe->bde", expected.reshape(len(counts), -1), flat, flat, optimize=True)
        second -= np.einsum("bp,bpd,bpe->bde", totals, mean, mean, optimize=True)
        second += RIDGE * np.eye(k + 1)
        move = np.linalg.solve(second, gradient[:, :, None])[:, :, 0]
        theta += np.clip(move, -LONGEST_STEP, LONGEST_STEP)
        if np.abs(move).max() < STILL:
            break
    if not ties:
        theta[:, k] = -np.inf
    return theta


def components(wins: NDArray[np.float64], tied: NDArray[np.float64]) -> list[list[int]]:
    """Return groups of candidates in which everyone reaches everyone by wins and ties, in both directions.

    Strengths are finite and unique exactly if there is one group (Ford 1957). Otherwise the members of some
    group never lost to those of another, or were never compared with them.
    """
    import numpy as np

    reach = ((wins + tied) > 0) | np.eye(len(wins), dtype=np.bool_)
    for middle in range(len(wins)):
        reach |= np.outer(reach[:, middle], reach[middle])
    both = reach & reach.T
    return [np.flatnonzero(both[at]).tolist() for at in range(len(wins)) if both[at].argmax() == at]


def elo(logarithms: NDArray[np.float64] | Sequence[float]) -> NDArray[np.float64]:
    """Convert log strengths to points on the Elo scale, around 1,000."""
    import numpy as np

    return 1000 + np.asarray(logarithms) * ELO / float(np.log(10))
