"""Decision thresholds: chooses the best one for a stated aim.

An output is called hallucinated if its score is at least the threshold. Candidate cuts lie midway between
neighbouring scores, and between the outermost ones and 0 and 1, so no threshold equals a score that it was
chosen by.

=========================  =====================================================================
maximize METRIC            the highest f1, balanced_accuracy or accuracy
precision P                the highest recall among the cuts with a precision of at least P
recall R                   the highest precision among the cuts with a recall of at least R
costs MISS/FALSE_ALARM     the lowest mean cost of a sample, where a hallucination called faithful
                           costs MISS and a faithful output called hallucinated FALSE_ALARM
=========================  =====================================================================

Of equally good cuts the highest is taken: it raises the fewest alarms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import isfinite
from typing import TYPE_CHECKING, Literal

from magistrate.errors import InputError, SpecError
from magistrate.metrics.distributions import numbered, stdtrit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]

MAXIMIZED = ("f1", "balanced_accuracy", "accuracy")
RATES = ("precision", "recall", "f1", "balanced_accuracy", "accuracy", "flagged")
LEAST_SAMPLES, LEAST_OF_EITHER, FOLDS = 50, 15, 5
"""What it takes to choose a threshold: so many labelled samples, and of either class so many of them, in at
least as many contexts as there are folds."""
LEAST_GAIN = 0.05
"""Balanced accuracy that a threshold must add to be worth a remark."""
EQUAL = 1e-12  # figures closer than this count as equal: they differ only in the order of summation


@dataclass(frozen=True, slots=True)
class Aim:
    """What a threshold is chosen for. Created by `maximize`, `precision`, `recall`, `costs` or `parse`."""

    kind: Literal["maximize", "precision", "recall", "costs"]
    metric: str = ""
    least: float = 0.0
    miss: float = 0.0
    false_alarm: float = 0.0

    def __post_init__(self) -> None:
        if self.kind == "maximize" and self.metric not in MAXIMIZED:
            raise SpecError(f"cannot maximize {self.metric!r}; known: {', '.join(MAXIMIZED)}")
        if self.kind in ("precision", "recall") and not 0 < self.least <= 1:
            raise SpecError(f"the {self.kind} to reach must be in (0, 1], got {self.least:g}")
        costs = (self.miss, self.false_alarm)
        if self.kind == "costs" and not (all(map(isfinite, costs)) and min(costs) >= 0 < max(costs)):
            raise SpecError(
                f"costs must be numbers of at least 0, not both 0; got {self.miss:g}/{self.false_alarm:g}"
            )

    @classmethod
    def costs(cls, text: str) -> Aim:
        """Parse `MISS/FALSE_ALARM`, such as 10/1. Raises `SpecError`."""
        miss, slash, alarm = text.partition("/")
        try:
            if not slash:
                raise ValueError
            return cls("costs", miss=float(miss), false_alarm=float(alarm))
        except ValueError:
            raise SpecError(f"write costs as MISS/FALSE_ALARM, such as 10/1; got {text!r}") from None

    @classmethod
    def parse(cls, text: str) -> Aim:
        """Parse an aim as `str` writes it: `maximize f1`, `precision 0.95`, `recall 0.9`, `costs 10/1`.

        >>> str(Aim.parse("precision 0.95"))
        'precision 0.95'
        """
        kind, _, rest = text.strip().partition(" ")
        try:
            match kind:
                case "maximize":
                    return cls("maximize", metric=rest.strip())
                case "precision" | "recall":
                    return cls(kind, least=float(rest))
                case "costs":
                    return cls.costs(rest)
        except ValueError:
            raise SpecError(f"{kind} needs a number, such as 0.9; got {rest!r}") from None
        raise SpecError(
            f"unknown aim {text!r}; known: maximize METRIC, precision P, recall R, costs MISS/ALARM"
        )

    def __str__(self) -> str:
        if self.kind == "maximize":
            return f"maximize {self.metric}"
        if self.kind == "costs":
            return f"costs {self.miss:.10g}/{self.false_alarm:.10g}"
        return f"{self.kind} {self.least:.10g}"


class Unreachable(InputError):
    """No threshold reaches an aim. The message says how close the best one comes."""


def best_cut(scores: ArrayLike, truth: ArrayLike, aim: Aim, weights: ArrayLike | None = None) -> float:
    """Return the threshold in (0, 1) that is best for `aim`.

    `scores` float `[n]` in [0, 1], `truth` bool `[n]`, `weights` float `[n]`, all 1 by default. Raises
    `Unreachable` if no cut has the required precision or recall, `InputError` if a class is missing.
    """
    import numpy as np

    values, flags = np.asarray(scores, dtype=np.float64), np.asarray(truth, dtype=np.bool_)
    if not values.size or flags.all() or not flags.any():
        raise InputError("a threshold needs samples of both classes")
    counted = np.ones(values.size) if weights is None else np.asarray(weights, dtype=np.float64)
    cuts, hits, alarms = _cuts(values, flags, counted)
    positive, negative = counted[flags].sum(), counted[~flags].sum()
    figures = rates(hits, alarms, positive - hits, negative - alarms)
    if aim.kind == "maximize":
        return _first(cuts, figures[aim.metric])
    if aim.kind == "costs":
        return _first(cuts, -(aim.miss * (positive - hits) + aim.false_alarm * alarms) / counted.sum())
    held, sought = ("precision", "recall") if aim.kind == "precision" else ("recall", "precision")
    reached = figures[held] >= aim.least - EQUAL  # False for NaN, if nothing is flagged
    if not (reached & (hits > 0)).any():
        best = int(np.nanargmax(figures[held]))
        raise Unreachable(
            f"no threshold reaches a {held} of {aim.least:g} on {values.size} samples: the highest is "
            f"{figures[held][best]:.3f}, at {cuts[best]:.3f}"
        )
    among = np.where(reached & (hits > 0), figures[sought], -1.0)
    return _first(cuts, among, figures[held])


@dataclass(frozen=True, slots=True)
class ThresholdGain:
    """The effect of another threshold: balanced accuracies in [0, 1] over labelled samples.

    `own` is that of the judge's labels. `held_out` is that of labels by thresholds chosen on contexts other
    than the sample's. `low` to `high` is the 95 % interval of `held_out - own`, by contexts.
    """

    own: float
    held_out: float
    low: float
    high: float

    @property
    def gain(self) -> float:
        """`held_out - own`, in [-1, 1]."""
        return self.held_out - self.own

    @property
    def shown(self) -> bool:
        """Whether another threshold is significantly better, and by enough to matter."""
        return self.low > 0 and self.gain >= LEAST_GAIN

    def to_dict(self) -> dict[str, float | bool]:
        """The fields as plain JSON values."""
        return asdict(self) | {"gain": self.gain, "shown": self.shown}


def threshold_gain(
    truth: ArrayLike, said: ArrayLike, scores: ArrayLike, groups: ArrayLike, *, seed: int = 0
) -> ThresholdGain | None:
    """Return how much balanced accuracy a threshold chosen on other contexts adds to the judge's labels.

    `truth` and `said` bool `[n]`, True is hallucinated; `scores` float `[n]` in [0, 1], higher is more
    hallucinated; `groups` int `[n]`, the same for samples of one context. Contexts are split into `FOLDS` at
    random. The interval groups samples by context, by Student's t for as many contexts. None if there are
    too few samples or contexts.
    """
    import numpy as np

    flags, own = np.asarray(truth, dtype=np.bool_), np.asarray(said, dtype=np.bool_)
    values = np.asarray(scores, dtype=np.float64)
    members = numbered(groups)
    places = [int(numbered(members[each]).max(initial=-1)) + 1 for each in (flags, ~flags)]
    positives = int(flags.sum())
    fewest = min(positives, flags.size - positives)
    if flags.size < LEAST_SAMPLES or fewest < LEAST_OF_EITHER or min(places) < 2 * FOLDS:
        return None
    contexts = int(members.max()) + 1
    fold = (np.random.default_rng(seed).permutation(contexts) % FOLDS)[members]
    held_out = np.zeros(flags.size, dtype=np.bool_)
    for number in range(FOLDS):
        train = fold != number
        if flags[train].all() or not flags[train].any():
            return None
        cut = best_cut(values[train], flags[train], Aim("maximize", metric="balanced_accuracy"))
        held_out[~train] = values[~train] >= cut
    before, after = own == flags, held_out == flags
    change = after.astype(np.float64) - before
    moved = np.zeros(contexts)
    for among in (flags, ~flags):
        rest = (change[among] - change[among].mean()) / (2 * among.sum())
        moved += np.bincount(members[among], rest, contexts)
    error = float(np.sqrt((moved**2).sum() * contexts / (contexts - 1)))
    # Only as many contexts as the rarer class has contribute to the estimate of the spread.
    far = float(stdtrit(min(places) - 1, 0.975)) * error
    found = [float((each[flags].mean() + each[~flags].mean()) / 2) for each in (before, after)]
    gain = found[1] - found[0]
    return ThresholdGain(found[0], found[1], gain - far, gain + far)


def rates(tp: Floats, fp: Floats, fn: Floats, tn: Floats) -> dict[str, Floats]:
    """Return `RATES` by name from (weighted) counts of any one shape; NaN where a figure is undefined."""
    import numpy as np

    with np.errstate(divide="ignore", invalid="ignore"):
        recall = tp / (tp + fn)
        total = tp + fp + fn + tn
        return {
            "precision": tp / (tp + fp),
            "recall": recall,
            "f1": 2 * tp / (2 * tp + fp + fn),
            "balanced_accuracy": (recall + tn / (tn + fp)) / 2,
            "accuracy": (tp + tn) / total,
            "flagged": (tp + fp) / total,
        }


def confusion_of(truth: NDArray[np.bool_], said: NDArray[np.bool_]) -> Callable[[Floats], tuple[Floats, ...]]:
    """Return a function from weights `[b, n]` to (tp, fp, fn, tn), each `[b]`."""
    import numpy as np

    cells = np.column_stack([truth & said, ~truth & said, truth & ~said, ~truth & ~said]).astype(np.float64)
    return lambda weights: tuple((weights @ cells).T)


def _cuts(scores: Floats, truth: NDArray[np.bool_], weights: Floats) -> tuple[Floats, Floats, Floats]:
    """Return every cut, the highest first, with the weights of hits and false alarms at or above it."""
    import numpy as np

    distinct, inverse = np.unique(scores, return_inverse=True)
    up = np.bincount(inverse, weights * truth, distinct.size)[::-1].cumsum()
    down = np.bincount(inverse, weights * ~truth, distinct.size)[::-1].cumsum()
    edges = np.concatenate([[0.0], distinct, [1.0]])
    cuts = ((edges[1:] + edges[:-1]) / 2)[::-1]
    hits, alarms = np.concatenate([[0.0], up]), np.concatenate([[0.0], down])
    # There is no cut above a score of exactly 1. The cut below a score of exactly 0 is 0.
    kept = slice(1, None) if distinct[-1] == 1 else slice(None)
    return cuts[kept], hits[kept], alarms[kept]


def _first(cuts: Floats, *figures: Floats) -> float:
    """Return the highest cut with the best figure. Ties are decided by the next figure."""
    import numpy as np

    left = np.ones(cuts.size, dtype=np.bool_)
    for figure in figures:
        known = np.where(np.isnan(figure) | ~left, -np.inf, figure)
        left &= known >= known.max() - EQUAL
    return float(cuts[left][0])
