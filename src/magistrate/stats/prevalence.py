"""How frequent something truly is, from few labels and many predictions.

==============  ===================================================================================
corrected       prediction-powered inference with power tuning: mean of λ·prediction over the unlabelled,
                plus mean of label - λ·prediction over the labelled (Angelopoulos and others 2023;
                Angelopoulos, Duchi and Zrnic 2023), λ in [0, 1] being what makes its variance least
labelled        the mean of the labels alone (λ = 0)
naive           the mean of the predictions over the unlabelled, errors and all
rogan_gladen    (naive + specificity - 1) / (recall + specificity - 1), both measured on the labelled
                (Rogan and Gladen 1978)
==============  ===================================================================================

Standard errors add up what samples of one group contribute before they are squared (the cluster-robust
sandwich; with groups of one it is that of the papers). Intervals are Student's, of G - k degrees of freedom
and G / (G - k) times the variance, for G labelled groups and the k figures that are taken from them: one, the
mean, and for the corrected and Rogan and Gladen's one more. They are cut at 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

from magistrate.errors import InputError
from magistrate.stats.classification import CONFIDENCE, Estimate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Prevalence:
    """The share of the positive, in [0, 1], estimated in four ways, each with its 95 % interval.

    `tuning` is λ; `standard_error` that of `corrected`. `worth` is how many labels alone would have the
    corrected estimate's standard error, None where that is 0.
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

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        names = ("corrected", "labelled", "naive", "rogan_gladen")
        return {
            "n_labelled": self.n_labelled,
            "n_unlabelled": self.n_unlabelled,
            **{name: getattr(self, name).to_dict() for name in names},
            "tuning": self.tuning,
            "standard_error": self.standard_error,
            "worth": self.worth,
        }


def prevalence(
    truth: ArrayLike,
    predicted: ArrayLike,
    unlabelled: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    called: ArrayLike | None = None,
    unlabelled_called: ArrayLike | None = None,
    tuning: float | None = None,
) -> Prevalence:
    """Estimate the mean of what `truth` is a sample of.

    `truth` bool `[n]`, `predicted` float `[n]` in [0, 1] for the same samples, `unlabelled` float `[N]`;
    `groups` int `[n + N]`, labelled ones first: the same number for samples that belong together. `called`
    bool `[n]` and `unlabelled_called` bool `[N]` are labels that were predicted, for the last two estimates,
    where `predicted` is no such label. `tuning` fixes λ. Raises `InputError` for fewer than two labelled
    groups, for no unlabelled sample, and for shapes that do not match.
    """
    import numpy as np

    y, f, u = (np.asarray(each, dtype=np.float64) for each in (truth, predicted, unlabelled))
    if f.shape != y.shape or y.ndim != 1 or u.ndim != 1 or not u.size:
        raise InputError(
            f"labels, predictions and at least one more prediction: got {y.shape}, {f.shape}, {u.shape}"
        )
    numbers = np.arange(y.size + u.size) if groups is None else np.asarray(groups)
    if numbers.shape != (y.size + u.size,):
        raise InputError(f"groups must be as many as samples: got {numbers.shape} for {y.size + u.size}")
    _, members = np.unique(numbers, return_inverse=True)
    n_groups = np.unique(members[: y.size]).size
    if n_groups < 2:
        raise InputError(f"an interval takes at least two independent labelled samples, got {n_groups}")
    spread = _Spread(members, y.size)
    lam = _tuning(y, f, u) if tuning is None else tuning
    corrected, error = spread.mean(y - lam * f, lam * u)
    labelled, alone = spread.mean(y, np.zeros(0))
    said = f if called is None else np.asarray(called, dtype=np.float64)
    others = u if unlabelled_called is None else np.asarray(unlabelled_called, dtype=np.float64)
    naive, naive_error = spread.mean(np.zeros(0), others)
    return Prevalence(
        y.size,
        u.size,
        spread.interval(corrected, error, n_groups, 2),
        spread.interval(labelled, alone, n_groups),
        spread.interval(naive, naive_error, np.unique(members[y.size :]).size),
        _rogan_gladen(y > 0, said, others, spread, n_groups),
        lam,
        error,
        y.size * (alone / error) ** 2 if error > 0 else None,
    )


@dataclass(frozen=True, slots=True)
class _Spread:
    """Which group each sample is in, labelled ones first, and what means of them may vary by."""

    members: NDArray[np.int64]
    n: int

    def mean(self, labelled: Floats, unlabelled: Floats) -> tuple[float, float]:
        """The sum of the means of two columns (one may be empty), and its standard error."""
        parts = [each - each.mean() if each.size else each for each in (labelled, unlabelled)]
        value = sum(float(each.mean()) for each in (labelled, unlabelled) if each.size)
        return value, self.error(*(each / max(each.size, 1) for each in parts))

    def error(self, labelled: Floats, unlabelled: Floats) -> float:
        """The standard error of a figure to which each sample contributes so much."""
        import numpy as np

        moves = np.zeros(self.members.size)
        moves[: labelled.size] = labelled
        moves[self.n : self.n + unlabelled.size] = unlabelled
        return sqrt(float((np.bincount(self.members, moves) ** 2).sum()))

    def interval(self, value: float, error: float, n_groups: int, taken: int = 1) -> Estimate:
        """The 95 % interval, cut to [0, 1]; a value beyond them is drawn to the edge."""
        from scipy.stats import t

        if (freedom := n_groups - taken) < 1:
            return Estimate(value, None, None, f"no interval from {n_groups} independent contexts")
        far = float(t.ppf((1 + CONFIDENCE) / 2, freedom)) * error * sqrt(n_groups / freedom)
        low, middle, high = (min(max(each, 0.0), 1.0) for each in (value - far, value, value + far))
        return Estimate(middle, low, high)


def _tuning(y: Floats, f: Floats, u: Floats) -> float:
    """λ of least variance: cov(label, prediction) / ((1 + n / N) var(prediction)), within [0, 1]."""
    import numpy as np

    variance = float(np.var(np.concatenate([f, u]), ddof=1))
    if variance == 0:
        return 0.0  # predictions that are all the same say nothing
    covariance = float(((y - y.mean()) * (f - f.mean())).mean())
    return min(max(covariance / ((1 + y.size / u.size) * variance), 0.0), 1.0)


def _rogan_gladen(
    truth: NDArray[np.bool_], said: Floats, others: Floats, spread: _Spread, n_groups: int
) -> Estimate:
    import numpy as np

    if truth.all() or not truth.any():
        return Estimate.none("the labelled samples are all of one class")
    recall, specificity = float(said[truth].mean()), float(1 - said[~truth].mean())
    informed = recall + specificity - 1
    if informed <= 0:
        return Estimate.none(
            f"recall and specificity ({recall:.2f} and {specificity:.2f}) are those of chance"
        )
    naive = float(others.mean())
    value = (naive + specificity - 1) / informed
    moves = np.zeros(truth.size)
    moves[truth] = -value * (said[truth] - recall) / truth.sum()
    moves[~truth] = (1 - value) * (1 - said[~truth] - specificity) / (~truth).sum()
    error = spread.error(moves / informed, (others - naive) / others.size / informed)
    return spread.interval(value, error, n_groups, 2)
