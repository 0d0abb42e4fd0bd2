"""The true share of positives, estimated from few labels and many predictions, or from a weighted sample.

==============  ===================================================================================
corrected       prediction-powered inference with power tuning: mean of λ·prediction over the unlabelled,
                plus mean of label - λ·prediction over the labelled (Angelopoulos and others 2023;
                Angelopoulos, Duchi and Zrnic 2023), λ in [0, 1] being what makes its variance least
labelled        the mean of the labels alone (λ = 0), including samples that have no prediction
naive           the mean of the predictions over the unlabelled, with all their errors
rogan_gladen    (naive + specificity - 1) / (recall + specificity - 1), both measured on the labelled
                (Rogan and Gladen 1978)
==============  ===================================================================================

Standard errors sum the contributions of the samples of a group before squaring them (the cluster-robust
sandwich; with groups of one sample they are those of the papers). Intervals are Student's with G - k degrees
of freedom and G / (G - k) times the variance, for G labelled groups and k figures estimated from them: one,
the mean, and for the corrected and Rogan and Gladen's one more. They are clipped to [0, 1]. If one lies
wholly outside, there is neither estimate nor interval. If nothing varies, because all values are 0 or all
are 1, the interval is Wilson's for as many samples as there are groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING, Any

from magistrate._text import counted, decimal
from magistrate.errors import InputError
from magistrate.metrics.classification import CONFIDENCE, Estimate
from magistrate.metrics.distributions import stdtrit, wilson_interval

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Prevalence:
    """The share of positives, in [0, 1], estimated in four ways, each with its 95 % interval.

    `n_labelled` samples have a label and a prediction. `n_failed` have a label only; these count in
    `labelled`, and `positives_failed` of them are positive. `tuning` is λ; `standard_error` is that of
    `corrected`. `worth` is how many labels alone would give the standard error of `corrected`, None if that
    is 0. `beyond` holds, by name, value, low and high before clipping, for estimates whose value is outside
    [0, 1].
    """

    n_labelled: int
    n_unlabelled: int
    corrected: Estimate
    labelled: Estimate
    naive: Estimate
    rogan_gladen: Estimate
    tuning: float
    standard_error: float
    worth: float | None
    n_failed: int = 0
    positives_failed: int = 0
    beyond: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        names = ("corrected", "labelled", "naive", "rogan_gladen")
        return {
            "n_labelled": self.n_labelled,
            "n_labelled_without_verdict": self.n_failed,
            "positives_without_verdict": self.positives_failed,
            "n_unlabelled": self.n_unlabelled,
            **{name: getattr(self, name).to_dict() for name in names},
            "tuning": self.tuning,
            "standard_error": self.standard_error,
            "worth": self.worth,
            "uncut": {name: list(each) for name, each in self.beyond.items()},
        }


def prevalence(
    truth: ArrayLike,
    predicted: ArrayLike,
    unlabelled: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    called: ArrayLike | None = None,
    unlabelled_called: ArrayLike | None = None,
    failed: ArrayLike = (),
    tuning: float | None = None,
) -> Prevalence:
    """Estimate the mean of the population that `truth` is a sample of.

    `truth` bool `[n]`, `predicted` float `[n]` in [0, 1] for the same samples, `unlabelled` float `[N]`;
    `failed` bool `[m]` are labels of samples without a prediction. `groups` int `[n + N + m]`, in this
    order, is the same number for samples that belong together. `called` bool `[n]` and `unlabelled_called`
    bool `[N]` are the predicted labels, used for the last two estimates if `predicted` holds no labels.
    `tuning` fixes λ. Raises `InputError` for fewer than two labelled groups, for no unlabelled sample, and
    for shapes that do not match.
    """
    import numpy as np

    y, f, u = (np.asarray(each, dtype=np.float64) for each in (truth, predicted, unlabelled))
    if f.shape != y.shape or y.ndim != 1 or u.ndim != 1 or not u.size:
        raise InputError(
            f"needs labels, predictions and at least one more prediction: got {y.shape}, {f.shape}, {u.shape}"
        )
    lost = np.asarray(failed, dtype=np.float64)
    total = y.size + u.size + lost.size
    numbers = np.arange(total) if groups is None else np.asarray(groups)
    if numbers.shape != (total,):
        raise InputError(f"groups and samples must have the same length: got {numbers.shape} for {total}")
    _, everywhere = np.unique(numbers, return_inverse=True)
    members = everywhere[: y.size + u.size]
    n_groups = np.unique(members[: y.size]).size
    if n_groups < 2:
        raise InputError(f"an interval needs at least two independent labelled samples, got {n_groups}")
    spread = _Spread(members, y.size)
    lam = _tuning(y, f, u) if tuning is None else tuning
    corrected, error = spread.mean(y - lam * f, lam * u)
    _, alone = spread.mean(y, np.zeros(0))
    said = f if called is None else np.asarray(called, dtype=np.float64)
    others = u if unlabelled_called is None else np.asarray(unlabelled_called, dtype=np.float64)
    naive, naive_error = spread.mean(np.zeros(0), others)
    beyond: dict[str, tuple[float, float, float]] = {}
    return Prevalence(
        y.size,
        u.size,
        _interval(_Unclipped(corrected, error, n_groups, 2), "corrected", beyond),
        _labelled_mean(
            np.concatenate([y, lost]), np.concatenate([members[: y.size], everywhere[members.size :]])
        ),
        _interval(_Unclipped(naive, naive_error, np.unique(members[y.size :]).size), "naive", beyond),
        _rogan_gladen(y > 0, said, others, spread, n_groups, beyond),
        lam,
        error,
        y.size * (alone / error) ** 2 if error > 0 else None,
        lost.size,
        int(lost.sum()),
        beyond,
    )


def corrected_share(
    truth: ArrayLike, said: ArrayLike, others: ArrayLike, *, weights: ArrayLike, groups: ArrayLike
) -> Estimate:
    """Return Rogan and Gladen's estimate for other samples that were drawn with unequal probabilities.

    `truth` and `said` bool `[n]` are the true labels and the judge's labels of the same samples. `others`
    bool `[N]` are the judge's labels of the samples in question, `weights` `[N]` one over the probability
    with which each was drawn. `groups` `[n + N]` is the same for samples that belong together. The estimate
    is undefined for fewer than two labelled groups and for no others. Raises `InputError` for shapes that do
    not match.
    """
    import numpy as np

    y, f, u, w = (np.asarray(each, dtype=np.float64) for each in (truth, said, others, weights))
    numbers = np.asarray(groups)
    if f.shape != y.shape or w.shape != u.shape or numbers.shape != (y.size + u.size,):
        raise InputError(f"shapes do not match: {y.shape}, {f.shape}, {u.shape}, {w.shape}, {numbers.shape}")
    _, members = np.unique(numbers, return_inverse=True)
    n_groups = int(np.unique(members[: y.size]).size)
    if not u.size or n_groups < 2:
        return Estimate.none("no data" if not u.size else "fewer than two independent labelled samples")
    return _rogan_gladen(y > 0, f, u, _Spread(members, y.size), n_groups, {}, w)


def _labelled_mean(labels: Floats, members: NDArray[np.int64]) -> Estimate:
    """Return the mean of all labels, with its interval."""
    import numpy as np

    value, error = _Spread(members, labels.size).mean(labels, np.zeros(0))
    return _interval(_Unclipped(value, error, np.unique(members).size), "labelled", {})


@dataclass(frozen=True, slots=True)
class _Spread:
    """The group of each sample, labelled ones first, to compute standard errors of means."""

    members: NDArray[np.int64]
    n: int

    def mean(self, labelled: Floats, unlabelled: Floats) -> tuple[float, float]:
        """Return the sum of the means of two columns (one may be empty), and its standard error."""
        parts = [each - each.mean() if each.size else each for each in (labelled, unlabelled)]
        value = sum(float(each.mean()) for each in (labelled, unlabelled) if each.size)
        return value, self.error(*(each / max(each.size, 1) for each in parts))

    def error(self, labelled: Floats, unlabelled: Floats) -> float:
        """Return the standard error of a figure from the contribution of each sample."""
        import numpy as np

        moves = np.zeros(self.members.size)
        moves[: labelled.size] = labelled
        moves[self.n : self.n + unlabelled.size] = unlabelled
        return sqrt(float((np.bincount(self.members, moves) ** 2).sum()))


@dataclass(frozen=True, slots=True)
class _Unclipped:
    """An estimate before clipping to [0, 1], its standard error, and what its degrees of freedom rest on."""

    value: float
    error: float
    n_groups: int
    taken: int = 1

    def ends(self) -> tuple[float, float]:
        """Return the 95 % interval by Student's t."""

        freedom = self.n_groups - self.taken
        far = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * self.error * sqrt(self.n_groups / freedom)
        return self.value - far, self.value + far


def _interval(uncut: _Unclipped, name: str, beyond: dict[str, tuple[float, float, float]]) -> Estimate:
    """Return the estimate with its interval, clipped to [0, 1]. A value outside is also noted in `beyond`."""
    value = min(max(uncut.value, 0.0), 1.0)
    if uncut.n_groups <= uncut.taken:
        return Estimate(
            value, None, None, f"no interval from {counted(uncut.n_groups, 'independent context')}"
        )
    if uncut.error == 0:
        return _constant(value, uncut.n_groups)
    low, high = uncut.ends()
    if not 0 <= uncut.value <= 1:
        beyond[name] = (uncut.value, low, high)
    if high <= 0 or low >= 1:
        side = "below 0" if high <= 0 else "above 1"
        return Estimate.none(
            f"its 95 % interval, [{decimal(low)}, {decimal(high)}], is {side}: labels and outputs do not fit "
            "together"
        )
    return Estimate(value, max(low, 0.0), min(high, 1.0))


def _constant(value: float, n_groups: int) -> Estimate:
    """Return Wilson's interval for a share of 0 or 1, with each group counted once."""

    if value not in (0, 1):
        return Estimate(value, None, None, "no interval: nothing varies")
    return Estimate(value, *wilson_interval(value, n_groups))


def _tuning(y: Floats, f: Floats, u: Floats) -> float:
    """Return the λ of least variance in [0, 1]: cov(label, prediction) / ((1 + n / N) var(prediction))."""
    import numpy as np

    variance = float(np.var(np.concatenate([f, u]), ddof=1))
    if variance == 0:
        return 0.0  # constant predictions carry no information
    covariance = float(((y - y.mean()) * (f - f.mean())).mean())
    return min(max(covariance / ((1 + y.size / u.size) * variance), 0.0), 1.0)


def _rogan_gladen(
    truth: NDArray[np.bool_],
    said: Floats,
    others: Floats,
    spread: _Spread,
    n_groups: int,
    beyond: dict[str, tuple[float, float, float]],
    weights: Floats | None = None,
) -> Estimate:
    import numpy as np

    if truth.all() or not truth.any():
        return Estimate.none("the labelled samples are all of one class")
    recall, specificity = float(said[truth].mean()), float(1 - said[~truth].mean())
    informed = recall + specificity - 1
    if informed <= 0:
        return Estimate.none(
            f"recall and specificity ({recall:.2f} and {specificity:.2f}) are no better than chance"
        )
    shares = np.ones(others.size) if weights is None else weights
    shares = shares / shares.sum()
    naive = float((shares * others).sum())
    value = (naive + specificity - 1) / informed
    moves = np.zeros(truth.size)
    moves[truth] = -value * (said[truth] - recall) / truth.sum()
    moves[~truth] = (1 - value) * (1 - said[~truth] - specificity) / (~truth).sum()
    error = spread.error(moves / informed, shares * (others - naive) / informed)
    return _interval(_Unclipped(value, error, n_groups, 2), "rogan_gladen", beyond)


# --- a sample drawn with known probabilities ------------------------------------------------------

NO_DATA = "no data"


def weighted_share(hits: Sequence[bool], inclusion: Sequence[float], groups: Sequence[str]) -> Estimate:
    """Return the share of hits in the population that was drawn from, with its 95 % interval.

    A sample drawn with probability π represents 1/π samples: the share is the sum of 1/π over the hits,
    divided by the sum over all (Hájek 1971, the ratio form of Horvitz and Thompson 1952). Its variance is
    that of the linearised ratio, summed by group, since groups are drawn together. The interval is Wilson's
    at the number of independent draws with the same variance. It also holds at 0 and 1, where that number
    is Kish's (1965).

    `inclusion` are the probabilities in (0, 1] with which each was drawn, `groups` are the same for those
    drawn together. Without data it is undefined, for the reason "no data".

    >>> weighted_share([], [], []).undefined
    'no data'
    >>> round(weighted_share([True, False], [1.0, 0.1], ["a", "b"]).value, 3)
    0.091
    """
    import numpy as np

    if not len(hits) == len(inclusion) == len(groups):
        raise InputError(
            f"lists must have the same length: got {len(hits)}, {len(inclusion)} and {len(groups)}"
        )
    if not len(hits):
        return Estimate.none(NO_DATA)
    drawn, hit = np.asarray(inclusion, dtype=np.float64), np.asarray(hits, dtype=np.float64)
    if not ((drawn > 0) & (drawn <= 1)).all():
        raise InputError("probabilities of inclusion must be above 0 and at most 1")
    weights = 1 / drawn
    value = float((weights * hit).sum() / weights.sum())
    _, members = np.unique(np.asarray(groups), return_inverse=True)
    n_groups = int(members.max()) + 1
    if n_groups == 1:
        return Estimate(value, None, None, "no interval from one group")
    together = np.bincount(members, weights)
    kish = float(together.sum() ** 2 / (together**2).sum())
    residuals = np.bincount(members, weights * (hit - value)) / weights.sum()
    variance = float((residuals**2).sum()) * n_groups / (n_groups - 1)
    effective = kish if variance == 0 else value * (1 - value) / variance
    # With few groups the variance is itself uncertain (Korn and Graubard 1998).
    middle = (1 + CONFIDENCE) / 2
    known = float(stdtrit(len(hits) - 1, middle) / stdtrit(n_groups - 1, middle)) ** 2 if variance else 1.0
    low, high = wilson_interval(value, max(min(effective * min(known, 1.0), len(hits)), 1.0), CONFIDENCE)
    return Estimate(value, min(low, value), max(high, value))
