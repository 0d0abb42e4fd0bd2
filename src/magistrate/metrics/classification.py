"""Six metrics of labels and scores against the truth, each with a 95 % interval.

Every interval has a closed form, so it needs no seed, costs the same for ten rows and a million,
and is honest at the edges: a judge that was right four times out of four is not certain to be
right. (A percentile bootstrap can only return [1, 1] there; benchmarks/interval_coverage.py simulates the
coverage of both.)

==================  ============================================================================
accuracy            Wilson score interval of a proportion
precision, recall   Wilson, given how many were predicted positive or are positive
balanced_accuracy   Wilson for each class, combined by the square-and-add rule
                    (Newcombe 1998; Zou and Donner 2008)
f1                  Wilson for tp / (tp + fp + fn), of which F1 is a monotone function
                    (the indirect Wilson interval of Lam and others 2023)
auroc               score interval over Hanley and McNeil's variance (Newcombe 2006, method 5),
                    wider than necessary if many scores are tied
==================  ============================================================================

If samples share contexts, the same formulas are used with their effective number (`EffectiveSize`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import hypot
from typing import TYPE_CHECKING, Any

from magistrate._text import counted, decimal
from magistrate.errors import InputError
from magistrate.metrics.distributions import (
    brentq,
    ndtri,
    numbered,
    rankdata,
    roc_auc_score,
    stdtrit,
    wilson_interval,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]


CONFIDENCE = 0.95
LEAST_GROUPS = 6
"""Fewer groups than this have no interval: were all of five on one side, the exact p value would be .0625."""


# --- effective number of samples that share contexts ----------------------------------------------
#
# The design effect (Kish 1965) is the ratio of a figure's variance with samples of a context grouped
# (residuals summed per context) to its variance with all samples independent; it is never below 1. The
# effective number is the number of samples divided by it, and intervals for independent samples hold at this
# number (Rao and Scott 1992). With few contexts the variance is itself uncertain, so the number is also
# multiplied by (t of n - 1 / t of m - 1)² for m contexts of n samples (Korn and Graubard 1998). A figure of 0
# or 1 has no residuals; its effective number is the number of contexts. If every sample has a context of its
# own, all these factors are 1.


@dataclass(frozen=True, slots=True)
class EffectiveSize:
    """`n` samples in `contexts` contexts, and the number of independent samples they are worth, in [1, n]."""

    n: int
    contexts: int
    effective: float

    @property
    def shared(self) -> bool:
        """Whether any two of the samples have the same context."""
        return self.contexts < self.n


def size_for_share(hits: Flags, among: Flags, groups: Ints) -> EffectiveSize:
    """Return the effective size of the samples `among` for their share of `hits`. All are `[n]`, n > 0."""
    own, members = hits[among], groups[among]
    return _effective_size(own - own.mean(), members)


def size_for_classes(hits: Flags, truth: Flags, groups: Ints) -> tuple[EffectiveSize, EffectiveSize]:
    """Return the effective sizes of positives and negatives for the mean share of `hits` in the two classes.

    Both use the design effect of the mean itself, since a hard context causes errors in either class. The
    effective size of a class without errors, or without hits, is at most its number of contexts.
    """
    import numpy as np

    residuals = np.zeros(truth.size)
    for among in (truth, ~truth):
        residuals[among] = (hits[among] - hits[among].mean()) / among.sum()
    return _of_classes(residuals, truth, groups)


def size_for_area(truth: Flags, scores: Floats, groups: Ints) -> tuple[EffectiveSize, EffectiveSize]:
    """Return the effective sizes of positives and negatives for the area under the ROC curve.

    They use the structural components of the area (DeLong and others 1988): how often a sample is on the
    right side of those of the other class, summed per context (Obuchowski 1997).
    """
    import numpy as np

    ranks, residuals = rankdata(scores), np.zeros(truth.size)
    for among in (truth, ~truth):
        below = (ranks[among] - rankdata(scores[among])) / (~among).sum()
        residuals[among] = (below - below.mean()) / among.sum()
    # A negative sample ranked above positives makes the area smaller, so its residual has the other sign.
    return _of_classes(np.where(truth, residuals, -residuals), truth, groups)


def _of_classes(residuals: Floats, truth: Flags, groups: Ints) -> tuple[EffectiveSize, EffectiveSize]:
    whole, parts = _effective_size(residuals, groups), list[EffectiveSize]()
    for among in (truth, ~truth):
        n, contexts = int(among.sum()), _count(groups[among])
        effective = n * whole.effective / whole.n if residuals.any() else contexts
        if not residuals[among].any() and contexts < n:
            effective = min(effective, contexts)
        parts.append(EffectiveSize(n, contexts, max(effective, 1.0)))
    return parts[0], parts[1]


def _effective_size(residuals: Floats, groups: Ints) -> EffectiveSize:
    """Return the effective size of samples with these residuals `[n]`, which sum to 0."""
    import numpy as np

    members = numbered(groups)
    n, contexts = residuals.size, int(members.max()) + 1
    if contexts == n:
        return EffectiveSize(n, contexts, n)
    alone = float((residuals**2).sum()) * n / (n - 1)
    if contexts == 1 or not alone > 1e-18:
        return EffectiveSize(n, contexts, contexts)
    together = float((np.bincount(members, residuals) ** 2).sum()) * contexts / (contexts - 1)
    middle = (1 + CONFIDENCE) / 2
    known = float(stdtrit(n - 1, middle) / stdtrit(contexts - 1, middle)) ** 2
    return EffectiveSize(n, contexts, max(n / max(together / alone, 1.0) * known, 1.0))


def _count(groups: Ints) -> int:
    return int(numbered(groups).max(initial=-1)) + 1


METRICS = ("accuracy", "balanced_accuracy", "precision", "recall", "f1", "auroc")


def fields_of(value: Any, **renamed: str) -> dict[str, Any]:
    """Return the fields of a dataclass as plain JSON values. `renamed` gives some of them other names."""
    return {renamed.get(each.name, each.name): _plain(getattr(value, each.name)) for each in fields(value)}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.to_dict() if hasattr(value, "to_dict") else value


class PlainFields:
    """Base class of dataclasses whose fields are given as plain JSON values."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return fields_of(self)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its 95 % interval `low <= value <= high`. Metrics are in [0, 1].

    All three are None if the figure is undefined; only `low` and `high` are None if just the interval is.
    `undefined` is the reason.
    """

    value: float | None
    low: float | None
    high: float | None
    undefined: str | None = None

    @classmethod
    def none(cls, reason: str) -> Estimate:
        """Return the estimate of a figure that is undefined for this data."""
        return cls(None, None, None, reason)

    def __str__(self) -> str:
        shown = decimal(self.value)
        return shown if self.low is None else f"{shown} [{decimal(self.low)}, {decimal(self.high)}]"

    def to_dict(self) -> dict[str, float | str | None]:
        """Return `value`, `low`, `high` and, only if something is undefined, `undefined`."""
        plain: dict[str, float | str | None] = {"value": self.value, "low": self.low, "high": self.high}
        return plain if self.undefined is None else plain | {"undefined": self.undefined}


@dataclass(frozen=True, slots=True)
class Confusion:
    """The confusion matrix of predicted and true labels. Positive means hallucinated."""

    true_positive: int
    false_positive: int
    true_negative: int
    false_negative: int

    @property
    def n(self) -> int:
        """The number of samples."""
        return self.positives + self.negatives

    @property
    def positives(self) -> int:
        """The number of samples that are truly hallucinated."""
        return self.true_positive + self.false_negative

    @property
    def negatives(self) -> int:
        """The number of samples that are truly faithful."""
        return self.true_negative + self.false_positive

    def to_dict(self) -> dict[str, int]:
        """The four counts by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Classification:
    """The confusion matrix and an estimate for each name in `METRICS`."""

    confusion: Confusion
    metrics: Mapping[str, Estimate]


def classification(
    labels: ArrayLike,
    predictions: ArrayLike,
    scores: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> Classification:
    """Measure predictions and scores against labels.

    `labels` bool `[n]`: True is hallucinated, the positive class. `predictions` bool `[n]`. `scores` float
    `[n]` in [0, 1], higher is more hallucinated, or None if there are none. `groups` int `[n]`, the same
    number for samples of the same context; None if each sample has its own. A figure over samples that share
    fewer than `LEAST_GROUPS` contexts has no interval. n may be 0. Raises `InputError` for other shapes,
    types or ranges.

    >>> round(classification([True, True, False, False], [True, False, False, False]).metrics["f1"].value, 3)
    0.667
    """
    truth, said = _flags(labels, "labels"), _flags(predictions, "predictions")
    if said.shape != truth.shape:
        raise InputError(
            f"labels and predictions must have the same length: got {truth.size} and {said.size}"
        )
    confusion = Confusion(
        int((truth & said).sum()),
        int((~truth & said).sum()),
        int((~truth & ~said).sum()),
        int((truth & ~said).sum()),
    )
    members = None if groups is None else _groups(groups, truth.size)
    metrics = _from_counts(confusion)
    if members is not None and truth.size:
        metrics |= _clustered(truth, said, members, metrics)
    metrics["auroc"] = (
        Estimate.none("there are no scores")
        if scores is None
        else _auroc(truth, _scores(scores, truth.size), members)
    )
    return Classification(confusion, metrics)


def _flags(values: ArrayLike, name: str) -> NDArray[np.bool_]:
    """Return `values` as a bool array `[n]`. Anything other than True and False is rejected, not coerced."""
    import numpy as np

    array = np.asarray(values)
    if array.size == 0:
        array = array.astype(np.bool_)
    if array.ndim != 1 or array.dtype != np.bool_:
        raise InputError(f"{name} must be a flat list of booleans, got {array.dtype} of shape {array.shape}")
    return array


def _scores(values: ArrayLike, n: int) -> NDArray[np.float64]:
    """Return `values` as a float64 array `[n]` in [0, 1]."""
    import numpy as np

    array = np.asarray(values, dtype=np.float64)
    if array.shape != (n,):
        raise InputError(
            f"scores and labels must have the same length: got shape {array.shape} for {n} labels"
        )
    outside = array[~((array >= 0) & (array <= 1))]  # catches NaN too
    if outside.size:
        raise InputError(f"scores must be in [0, 1], got {outside[0]!s}")
    return array


def _groups(values: ArrayLike, n: int) -> NDArray[np.int64]:
    """Return `values` as an int array `[n]`."""
    import numpy as np

    array = np.asarray(values)
    if array.shape != (n,) or (n and not np.issubdtype(array.dtype, np.integer)):
        raise InputError(f"groups must be {n} whole numbers, got {array.dtype} of shape {array.shape}")
    return array.astype(np.int64)


def _from_counts(c: Confusion) -> dict[str, Estimate]:
    """Return the five metrics that depend on the confusion matrix alone."""
    predicted = c.true_positive + c.false_positive
    no_positive = "no sample is hallucinated" if c.n else "there are no samples"
    return {
        "accuracy": proportion(c.true_positive + c.true_negative, c.n, "there are no samples"),
        "balanced_accuracy": _balanced_accuracy(c),
        "precision": proportion(
            c.true_positive, predicted, "nothing was flagged" if c.n else "there are no samples"
        ),
        "recall": proportion(c.true_positive, c.positives, no_positive),
        "f1": _f1(c),
    }


def _one_class(c: Confusion) -> str | None:
    """Return why a metric that needs both classes is undefined, or None if both classes are present."""
    if c.positives and c.negatives:
        return None
    if not c.n:
        return "there are no samples"
    return f"every sample is {'hallucinated' if c.positives else 'faithful'}"


def proportion(hits: int, n: int, undefined: str) -> Estimate:
    """Return `hits / n` with Wilson's interval; for n = 0 no value, with the reason `undefined`."""
    return Estimate(hits / n, *wilson_interval(hits / n, n)) if n else Estimate.none(undefined)


def _balanced_accuracy(c: Confusion) -> Estimate:
    """Return the mean of recall and specificity, by square-and-add over their Wilson intervals."""
    if reason := _one_class(c):
        return Estimate.none(reason)
    recall, specificity = c.true_positive / c.positives, c.true_negative / c.negatives
    return _averaged(
        (recall, *wilson_interval(recall, c.positives)),
        (specificity, *wilson_interval(specificity, c.negatives)),
    )


def _averaged(one: tuple[float, float, float], other: tuple[float, float, float]) -> Estimate:
    """Return the mean of two shares, each given with the ends of its interval."""
    value = (one[0] + other[0]) / 2
    low = value - hypot(one[0] - one[1], other[0] - other[1]) / 2
    high = value + hypot(one[2] - one[0], other[2] - other[0]) / 2
    return Estimate(value, max(low, 0.0), min(high, 1.0))


def _f1(c: Confusion) -> Estimate:
    """Return F1 = 2j / (1 + j) for j = tp / (tp + fp + fn), so an interval of j maps to one of F1."""
    union = c.true_positive + c.false_positive + c.false_negative
    if not union:
        reason = "no sample is hallucinated and none was flagged" if c.n else "there are no samples"
        return Estimate.none(reason)
    low, high = (2 * j / (1 + j) for j in wilson_interval(c.true_positive / union, union))
    return Estimate(2 * c.true_positive / (union + c.true_positive), low, high)


def _clustered(
    truth: NDArray[np.bool_],
    said: NDArray[np.bool_],
    groups: NDArray[np.int64],
    alone: Mapping[str, Estimate],
) -> dict[str, Estimate]:
    """Return those metrics whose samples share contexts, with intervals at the effective sizes."""
    import numpy as np

    right, found = truth == said, dict[str, Estimate]()
    shares = {
        "accuracy": (right, np.ones_like(truth)),
        "precision": (truth, said),
        "recall": (said, truth),
        "f1": (truth & said, truth | said),
    }
    for name, (hits, among) in shares.items():
        value = alone[name].value
        if value is None or not (worth := size_for_share(hits, among, groups)).shared:
            continue
        low, high = wilson_interval(float(hits[among].mean()), worth.effective)
        if name == "f1":
            low, high = 2 * low / (1 + low), 2 * high / (1 + high)
        found[name] = _without_interval(value, worth) or Estimate(value, min(low, value), max(high, value))
    value = alone["balanced_accuracy"].value
    whole = size_for_share(right, np.ones_like(truth), groups)
    if value is None or not whole.shared:
        return found
    positive, negative = size_for_classes(right, truth, groups)
    recall, specificity = float(said[truth].mean()), float((~said[~truth]).mean())
    found["balanced_accuracy"] = _without_interval(value, whole, positive, negative) or _averaged(
        (recall, *wilson_interval(recall, positive.effective)),
        (specificity, *wilson_interval(specificity, negative.effective)),
    )
    return found


def _without_interval(value: float, *worths: EffectiveSize) -> Estimate | None:
    """Return the figure without an interval if samples share too few contexts for one, else None."""
    fewest = min((each.contexts for each in worths if each.shared), default=LEAST_GROUPS)
    if fewest >= LEAST_GROUPS:
        return None
    return Estimate(value, None, None, f"no interval from {counted(fewest, 'independent context')}")


def _auroc(
    truth: NDArray[np.bool_], scores: NDArray[np.float64], groups: NDArray[np.int64] | None
) -> Estimate:
    """Return the probability that a hallucinated sample scores above a faithful one. Ties count half."""
    import numpy as np

    positives = int(truth.sum())
    negatives = truth.size - positives
    if reason := _one_class(Confusion(positives, 0, negatives, 0)):
        return Estimate.none(reason)

    value = float(roc_auc_score(truth, scores))
    whole = None if groups is None else size_for_share(truth, np.ones_like(truth), groups)
    if groups is None or whole is None or not whole.shared:
        return Estimate(value, *auroc_interval(value, positives, negatives))
    positive, negative = size_for_area(truth, scores, groups)
    ends = auroc_interval(value, positive.effective, negative.effective)
    return _without_interval(value, whole, positive, negative) or Estimate(value, *ends)


def auroc_interval(value: float, positives: float, negatives: float) -> tuple[float, float]:
    """Return the 95 % score interval of an AUROC `value` in [0, 1] from two groups of at least one.

    It contains the areas t that the observed one does not contradict: (t - value)² <= z² V(t), with Hanley
    and McNeil's variance V at t itself and both group sizes replaced by their mean in its numerator.
    """

    pairs = positives * negatives
    others = (positives + negatives) / 2 - 1
    z_squared = float(ndtri((1 + CONFIDENCE) / 2)) ** 2

    def spread(t: float) -> float:
        """z² V(t) times the number of pairs, without its factor t (1 - t)."""
        return z_squared * (1 + others * ((1 - t) / (2 - t) + t / (1 + t)))

    def excess(t: float) -> float:
        return pairs * (t - value) ** 2 - t * (1 - t) * spread(t)

    def perfect(t: float) -> float:
        """`excess` for an area of 1, divided by 1 - t. Its root at 1 is not the bound we want."""
        return pairs * (1 - t) - t * spread(t)

    if value in (0, 1):
        bound = float(brentq(perfect, 0, 1))
        return (bound, 1.0) if value else (0.0, 1 - bound)
    return float(brentq(excess, 0, value)), float(brentq(excess, value, 1))
