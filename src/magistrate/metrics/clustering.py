"""How many independent samples a share or an area is worth where samples share a context.

The design effect (Kish 1965) is how many times greater the variance of a figure is that lets samples of a
context go together, by its residuals summed context by context, than the one that takes them all for
independent; never below 1. Samples divided by it are the effective number, at which an interval of
independent samples holds (Rao and Scott 1992). Few contexts know their own variance badly, so it is also
multiplied by (t of n - 1 / t of m - 1)² for m contexts of n samples (Korn and Graubard 1998). A figure of 0
or 1 has no residuals; it is then worth as many samples as it has contexts. With every sample alone in its
context all of this is 1 and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from magistrate.metrics.distributions import rankdata, stdtrit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Worth:
    """`n` samples in `contexts` contexts and how many independent ones they are worth, in [1, n]."""

    n: int
    contexts: int
    effective: float

    @property
    def shared(self) -> bool:
        """Whether any two of the samples have the same context."""
        return self.contexts < self.n


def of_share(hits: Flags, among: Flags, groups: Ints) -> Worth:
    """What the samples `among` are worth for the share of them that are `hits`; all `[n]`, one at least."""
    own, members = hits[among], groups[among]
    return _worth(own - own.mean(), members)


def of_both(hits: Flags, truth: Flags, groups: Ints) -> tuple[Worth, Worth]:
    """What the positives and the negatives are worth for the mean of their two shares of `hits`.

    Both by the design effect of the mean itself, since a hard context makes for errors on either class; a
    class without any error, or without any hit, is worth its contexts at most.
    """
    import numpy as np

    residuals = np.zeros(truth.size)
    for among in (truth, ~truth):
        residuals[among] = (hits[among] - hits[among].mean()) / among.sum()
    return _of_classes(residuals, truth, groups)


def of_area(truth: Flags, scores: Floats, groups: Ints) -> tuple[Worth, Worth]:
    """What the positives and the negatives are worth for the area under the ROC curve.

    By the structural components of the area (DeLong and others 1988): how often a sample is on the right
    side of those of the other class, summed context by context (Obuchowski 1997).
    """
    import numpy as np

    ranks, residuals = rankdata(scores), np.zeros(truth.size)
    for among in (truth, ~truth):
        below = (ranks[among] - rankdata(scores[among])) / (~among).sum()
        residuals[among] = (below - below.mean()) / among.sum()
    # A negative sample below many makes the area smaller, so that its residual has the other sign.
    return _of_classes(np.where(truth, residuals, -residuals), truth, groups)


def _of_classes(residuals: Floats, truth: Flags, groups: Ints) -> tuple[Worth, Worth]:
    whole, parts = _worth(residuals, groups), list[Worth]()
    for among in (truth, ~truth):
        n, contexts = int(among.sum()), _count(groups[among])
        effective = n * whole.effective / whole.n if residuals.any() else contexts
        if not residuals[among].any() and contexts < n:
            effective = min(effective, contexts)
        parts.append(Worth(n, contexts, max(effective, 1.0)))
    return parts[0], parts[1]


def _worth(residuals: Floats, groups: Ints) -> Worth:
    """What samples with these residuals `[n]`, which sum to 0, are worth."""
    import numpy as np

    _, members = np.unique(groups, return_inverse=True)
    n, contexts = residuals.size, int(members.max()) + 1
    if contexts == n:
        return Worth(n, contexts, n)
    alone = float((residuals**2).sum()) * n / (n - 1)
    if contexts == 1 or not alone > 1e-18:
        return Worth(n, contexts, contexts)
    together = float((np.bincount(members, residuals) ** 2).sum()) * contexts / (contexts - 1)
    middle = (1 + CONFIDENCE) / 2
    known = float(stdtrit(n - 1, middle) / stdtrit(contexts - 1, middle)) ** 2
    return Worth(n, contexts, max(n / max(together / alone, 1.0) * known, 1.0))


def _count(groups: Ints) -> int:
    import numpy as np

    return int(np.unique(groups).size)
