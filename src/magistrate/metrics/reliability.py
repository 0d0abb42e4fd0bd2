"""Calibration error of scores: ECE, Brier score, log loss, and the bins of a reliability diagram.

All three are 0 for scores that are certain and right. For n weighted samples and bins of scores:

========  ========================================================================================
ece       mean over the bins, by weight, of |mean score - observed share| (Naeini and others 2015)
brier     mean of (score - truth)² (Brier 1950)
log_loss  mean of -log of the probability given to the truth, with scores clipped to [`CLIP`, 1 - `CLIP`]
========  ========================================================================================

A mean of distances is above 0 even for perfectly calibrated scores, and more so the fewer samples a bin has.
`ece_by_chance` is the ECE of such scores, the mean over labels drawn from the scores themselves (consistency
resampling: Bröcker and Smith 2007). For the same reason the ECE has no interval: resampling the samples adds
to the distances again, so that the interval would lie above the truth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from magistrate.errors import InputError
from magistrate.metrics.calibration import CLIP, shifted
from magistrate.metrics.classification import Estimate, PlainFields
from magistrate.metrics.distributions import wilson_interval

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]

Binning = Literal["mass", "width"]
BINS = 10
LOSSES = ("ece", "brier", "log_loss")
NO_INTERVAL = "no interval: chance increases an ECE; compare with the value by chance"

_DRAWS, _FEWEST, _LABELS = 200, 20, 4_000_000  # sets of labels, their minimum, and most labels in all


@dataclass(frozen=True, slots=True)
class Bin(PlainFields):
    """A bin of samples with scores in [`low`, `high`]: their mean score and the share that is hallucinated.

    `observed` has the Wilson interval for `n` samples, as if each had its own context.
    """

    low: float
    high: float
    n: int
    mean_score: float
    observed: Estimate


@dataclass(frozen=True, slots=True)
class Reliability(PlainFields):
    """Scores compared with labels: three losses (ECE and Brier in [0, 1], log loss from 0 on), and the bins.

    `ece_by_chance`, in [0, 1], is the mean ECE of perfectly calibrated scores with this n and these bins.
    `base_rate` is the share of hallucinated samples that they are weighted to, None for that of the data.
    """

    n: int
    ece: float
    ece_by_chance: float
    brier: float
    log_loss: float
    bins: tuple[Bin, ...]
    binning: Binning = "mass"
    base_rate: float | None = None


def reliability(
    truth: ArrayLike,
    scores: ArrayLike,
    *,
    bins: int = BINS,
    binning: Binning = "mass",
    base_rate: float | None = None,
    seed: int = 0,
) -> Reliability:
    """Measure scores `[n]` in [0, 1] as probabilities of `truth` bool `[n]`, n > 0.

    Bins hold equally many samples (`mass`; equal scores are never split, so there may be fewer bins) or are
    equally wide (`width`). `seed` is for the labels drawn for `ece_by_chance`. Raises `InputError` for other
    shapes or ranges, and if `base_rate` needs a class that is missing.
    """
    import numpy as np

    flags, values = _checked(truth, scores)
    members = bin_numbers(values, bins, binning)
    weights = shifted(np.ones(values.size), flags, base_rate)
    if np.isnan(weights).any():
        raise InputError("a base rate needs samples of both classes")
    ece, brier, log_loss = _losses_once(flags, values, weights, members)
    found = tuple(_bin(flags, values, weights, members == number) for number in np.unique(members))
    chance = _by_chance(values, weights, members, seed)
    return Reliability(
        values.size, float(ece), chance, float(brier), float(log_loss), found, binning, base_rate
    )


def _by_chance(scores: Floats, weights: Floats, members: Ints, seed: int) -> float:
    """Return the mean ECE of labels drawn from the scores, with the same bins and weights."""
    import numpy as np

    source, total = np.random.default_rng(seed), weights.sum()
    draws = max(_FEWEST, min(_DRAWS, _LABELS // scores.size))
    found = []
    for _ in range(draws):
        off = weights * (scores - (source.random(scores.size) < scores))
        found.append(np.abs(np.bincount(members, off)).sum() / total)
    return float(np.mean(found))


def _losses_once(truth: Flags, scores: Floats, weights: Floats, members: Ints) -> tuple[float, float, float]:
    """Return the three losses of one set of weights, without the matrix of `losses`."""
    import numpy as np

    total, off = weights.sum(), scores - truth
    held = np.clip(np.where(truth, scores, 1 - scores), CLIP, 1 - CLIP)
    ece = np.abs(np.bincount(members, weights * off)).sum() / total
    return float(ece), float((weights * off**2).sum() / total), float(-(weights * np.log(held)).sum() / total)


def losses(truth: Flags, scores: Floats, members: Ints) -> Callable[[Floats], Floats]:
    """Return the three losses `[b, 3]` as a function of weights `[b, n]`, over fixed bins.

    All of them are ratios of weighted sums, so many draws cost one matrix product.
    """
    import numpy as np

    held = np.clip(scores, CLIP, 1 - CLIP)
    rows = np.arange(scores.size)
    columns = np.zeros((scores.size, int(members.max()) + 4))
    columns[rows, members] = scores - truth
    columns[:, -3] = (scores - truth) ** 2
    columns[:, -2] = -np.log(np.where(truth, held, 1 - held))
    columns[:, -1] = 1

    def of(weights: Floats) -> Floats:
        sums = weights @ columns
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = sums[:, :-1] / sums[:, -1:]
        return np.column_stack([np.abs(shares[:, :-2]).sum(axis=1), shares[:, -2:]])

    return of


def bin_numbers(scores: Floats, bins: int, binning: Binning) -> Ints:
    """Return the bin number `[n]` of each score, from 0 on. A bin may be empty."""
    import numpy as np

    if bins < 1:
        raise InputError(f"there must be at least one bin, got {bins}")
    if binning == "width":
        return np.minimum((scores * bins).astype(np.int64), bins - 1)
    # Equal scores all belong to the bin of the middle one.
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts + 1) / 2
    return np.asarray((middle * bins / scores.size).astype(np.int64)[inverse])


def _bin(truth: Flags, scores: Floats, weights: Floats, inside: Flags) -> Bin:
    """Return one bin. If the classes are reweighted, the odds of the interval's ends are too."""
    import numpy as np

    own, n = scores[inside], int(inside.sum())
    hits = int(truth[inside].sum())
    low, high = wilson_interval(hits / n, n)
    positive, negative = truth & inside, ~truth & inside
    up = float(weights[truth][0]) if truth.any() else 1.0
    down = float(weights[~truth][0]) if not truth.all() else 1.0

    def moved(share: float) -> float:
        return share * up / (share * up + (1 - share) * down)

    mean = float(np.average(own, weights=weights[inside]))
    share = float(weights[positive].sum() / (weights[positive].sum() + weights[negative].sum()))
    return Bin(float(own.min()), float(own.max()), n, mean, Estimate(share, moved(low), moved(high)))


def _checked(truth: ArrayLike, scores: ArrayLike) -> tuple[Flags, Floats]:
    import numpy as np

    flags, values = np.asarray(truth), np.asarray(scores, dtype=np.float64)
    if flags.dtype != np.bool_ or flags.ndim != 1 or values.shape != flags.shape or not values.size:
        raise InputError(
            f"labels must be booleans and scores equally many numbers, at least one; got {flags.dtype} of "
            f"{flags.shape} and {values.shape}"
        )
    if not ((values >= 0) & (values <= 1)).all():
        raise InputError("scores must be in [0, 1]")
    return flags, values
