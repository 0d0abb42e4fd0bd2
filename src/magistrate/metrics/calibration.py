"""Scores as probabilities: maps fitted to labels, how well they hold, and where they no longer do.

Maps have few parameters:

===========  ======================================================================================
platt        sigmoid of slope times the score's log odds plus intercept, fitted without penalty
             (Platt 1999)
temperature  sigmoid of the score's log odds divided by one number above 0, which cannot move the score at
             which both labels are as likely (Guo and others 2017)
isotonic     the non-decreasing steps nearest to the labels, joined by straight lines (Zadrozny and Elkan
             2002), held within [1 / (n + 2), (n + 1) / (n + 2)]: no n samples show that something never is
===========  ======================================================================================

The first two are fitted to Platt's targets, (N+ + 1) / (N+ + 2) for the N+ hallucinated and 1 / (N- + 2) for
the N- faithful, by log loss: they stay finite where the score separates the classes. Scores are held within
[`CLIP`, 1 - `CLIP`] before their log odds are taken, so that 0 and 1 have some, and so are all probabilities.

A probability can be moved to another share of hallucinated outputs than it was fitted to. What changes
between two batches is taken to be how frequent the hallucinated are, not what they look like (prior shift):
then odds are multiplied by a constant (Elkan 2001), and the share itself can be found from the
probabilities alone (Saerens, Latinne and Decaestecker 2002).

Three losses say how far scores are from probabilities. All are 0 for scores that are certain and right. Of
n samples each with a weight, over bins of scores:

========  ========================================================================================
ece       mean over the bins, by weight, of |mean score - observed share| (Naeini and others 2015)
brier     mean of (score - truth)² (Brier 1950)
log_loss  mean of -log of the probability that the truth was given, scores held within [`CLIP`, 1 - `CLIP`]
========  ========================================================================================

A mean of distances is above 0 even where every score is the very probability: the fewer samples a bin has,
the more. `ece_by_chance` is what such scores would show here, the mean over labels drawn from the scores
themselves (consistency resampling: Bröcker and Smith 2007). For the same reason the ECE has no interval:
resampling adds to the distances once more, and the interval would lie above the truth.

Whether scores come from where others came from is tested by Kolmogorov and Smirnov's two-sample test. Samples
that share a context are not independent, so one of each context is taken, at random with a seed. Both
sides are rounded alike, so that the same score computed in two ways is the same score.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import exp, isfinite, log
from typing import TYPE_CHECKING, Any, Literal, get_args

from magistrate.errors import InputError, SpecError
from magistrate.metrics.classification import Estimate, fields_of, wilson

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]

Method = Literal["platt", "isotonic", "temperature"]
METHODS: tuple[Method, ...] = get_args(Method)
PARAMETERS: Mapping[Method, tuple[str, ...]] = {
    "platt": ("slope", "intercept"),
    "temperature": ("temperature",),
    "isotonic": ("scores", "probabilities"),
}
CLIP = 1e-4
"""Scores nearer to 0 or 1 than this count as this near wherever their logarithm is taken."""

_HOTTEST = 1e3  # a temperature beyond this makes every probability .5


@dataclass(frozen=True, slots=True)
class Calibrator:
    """A fitted map from a score in [0, 1] to the probability that the output is hallucinated, in (0, 1).

    `parameters` are those of `PARAMETERS[method]`, each a list of numbers: of one, and for isotonic, of the
    points that straight lines join. Raises `InputError` for parameters that make no such map.
    """

    method: Method
    parameters: Mapping[str, tuple[float, ...]]

    def __post_init__(self) -> None:
        given = self.parameters
        if self.method not in METHODS or set(given) != set(PARAMETERS[self.method]):
            raise InputError(
                f"{self.method!r} with {', '.join(given) or 'nothing'} is no map; known: "
                + "; ".join(f"{name} with {' and '.join(each)}" for name, each in PARAMETERS.items())
            )
        if not all(isfinite(value) for values in given.values() for value in values):
            raise InputError(f"the parameters of {self.method} must be finite numbers")
        if self.method == "isotonic":
            _check_points(given["scores"], given["probabilities"])
        elif any(len(values) != 1 for values in given.values()):
            raise InputError(f"each parameter of {self.method} is one number")
        elif self.method == "temperature" and not given["temperature"][0] > 0:
            raise InputError(f"a temperature must be above 0, got {given['temperature'][0]}")

    def __call__(self, score: float) -> float:
        """The calibrated probability of one score."""
        return held(self._of(score))

    def _of(self, score: float) -> float:
        if self.method == "isotonic":
            return _between(score, self.parameters["scores"], self.parameters["probabilities"])
        odds = log_odds(score)
        if self.method == "temperature":
            return sigmoid(odds / self.parameters["temperature"][0])
        return sigmoid(self.parameters["slope"][0] * odds + self.parameters["intercept"][0])

    def of_all(self, scores: ArrayLike) -> Floats:
        """The calibrated probabilities `[n]` of scores `[n]`."""
        import numpy as np
        from scipy.special import expit, logit

        raw, own = np.asarray(scores, dtype=np.float64), self.parameters
        odds = logit(np.clip(raw, CLIP, 1 - CLIP))
        if self.method == "isotonic":
            found = np.interp(raw, own["scores"], own["probabilities"])
        elif self.method == "temperature":
            found = expit(odds / own["temperature"][0])
        else:
            found = expit(own["slope"][0] * odds + own["intercept"][0])
        return np.asarray(np.clip(found, CLIP, 1 - CLIP))


def held(value: float) -> float:
    """A score or probability within [`CLIP`, 1 - `CLIP`]."""
    return min(max(value, CLIP), 1 - CLIP)


def log_odds(score: float) -> float:
    """log(p / (1 - p)) of a score, held."""
    return log(held(score) / (1 - held(score)))


def sigmoid(value: float) -> float:
    """1 / (1 + exp(-value)), for any finite value.

    >>> sigmoid(0), sigmoid(-1000)
    (0.5, 0.0)
    """
    if value >= 0:
        return 1 / (1 + exp(-value))
    return exp(value) / (1 + exp(value))


def fitted(
    method: Method, scores: ArrayLike, truth: ArrayLike, weights: ArrayLike | None = None
) -> Calibrator:
    """The map of this kind nearest to the labels.

    `scores` float `[n]` in [0, 1], `truth` bool `[n]`: True is hallucinated; `weights` float `[n]`, above 0,
    all 1 where they are left out. Raises `InputError` for an unknown method and where a class is missing.
    """
    import numpy as np

    raw, flags = np.asarray(scores, dtype=np.float64), np.asarray(truth, dtype=np.bool_)
    counted = np.ones(raw.size) if weights is None else np.asarray(weights, dtype=np.float64)
    if method not in METHODS:
        raise InputError(f"unknown method {method!r}; known: {', '.join(METHODS)}")
    if not raw.size or flags.all() or not flags.any():
        raise InputError("calibrating needs samples of both classes")
    fit = {"platt": _platt, "isotonic": _isotonic, "temperature": _temperature}[method]
    found = fit(raw, flags, counted)
    # Ten digits are more than any data pins; what lies behind them may differ from machine to machine.
    return Calibrator(method, {name: tuple(map(_short, values)) for name, values in found.items()})


def shifted(weights: Floats, truth: Flags, base_rate: float | None) -> Floats:
    """Weights `[…, n]` scaled so that the share of the hallucinated is `base_rate`; None leaves them.

    Their sum stays. NaN where a class that is to have a share is not there. The scores within a class are
    taken to be as they are, only how frequent the class is differs (prior shift: Saerens and others 2002).
    """
    import numpy as np

    if base_rate is None:
        return weights
    total = weights.sum(axis=-1, keepdims=True)
    positive = (weights * truth).sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        up, down = base_rate * total / positive, (1 - base_rate) * total / (total - positive)
        return np.asarray(weights * np.where(truth, up, down))


# --- fits -----------------------------------------------------------------------------------------


def _platt(scores: Floats, truth: Flags, weights: Floats) -> dict[str, list[float]]:
    import numpy as np
    from scipy.special import logit
    from sklearn.linear_model import LogisticRegression

    odds = logit(np.clip(scores, CLIP, 1 - CLIP)).reshape(-1, 1)
    target = _targets(truth)
    # A target between 0 and 1 is both labels, each with its share of the sample's weight.
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(
        np.concatenate([odds, odds]),
        np.repeat([True, False], truth.size),
        np.concatenate([weights * target, weights * (1 - target)]),
    )
    return {"slope": [float(model.coef_[0, 0])], "intercept": [float(model.intercept_[0])]}


def _temperature(scores: Floats, truth: Flags, weights: Floats) -> dict[str, list[float]]:
    import numpy as np
    from scipy.optimize import minimize_scalar
    from scipy.special import logit

    odds, target = logit(np.clip(scores, CLIP, 1 - CLIP)), _targets(truth)

    def loss(log_temperature: float) -> float:
        scaled = odds / np.exp(log_temperature)
        return float(np.average(np.logaddexp(0, scaled) - target * scaled, weights=weights))

    bound = log(_HOTTEST)
    best = minimize_scalar(loss, bounds=(-bound, bound), method="bounded", options={"xatol": 1e-10})
    return {"temperature": [float(np.exp(best.x))]}


def _isotonic(scores: Floats, truth: Flags, weights: Floats) -> dict[str, list[float]]:
    from sklearn.isotonic import IsotonicRegression

    least = 1 / (truth.size + 2)
    model = IsotonicRegression(y_min=least, y_max=1 - least, out_of_bounds="clip")
    model.fit(scores, truth.astype(float), weights)
    return {"scores": model.X_thresholds_.tolist(), "probabilities": model.y_thresholds_.tolist()}


def _targets(truth: Flags) -> Floats:
    """Platt's targets `[n]`, a little short of 0 and 1."""
    import numpy as np

    positives, negatives = int(truth.sum()), int((~truth).sum())
    return np.where(truth, (positives + 1) / (positives + 2), 1 / (negatives + 2))


def _check_points(scores: tuple[float, ...], probabilities: tuple[float, ...]) -> None:
    steps = list(pairwise(scores))
    rises = list(pairwise(probabilities))
    if not scores or len(scores) != len(probabilities) or not all(low < high for low, high in steps):
        raise InputError("isotonic takes as many probabilities as scores, which must ascend")
    if not all(low <= high for low, high in rises) or not 0 < probabilities[0] <= probabilities[-1] < 1:
        raise InputError("isotonic takes probabilities above 0 and below 1 that do not descend")


def _between(score: float, points: tuple[float, ...], values: tuple[float, ...]) -> float:
    """The value at `score` on the straight lines between points; that of the last one beyond it."""
    at = bisect_right(points, score)
    if at == 0 or at == len(points):
        return values[0 if at == 0 else -1]
    share = (score - points[at - 1]) / (points[at] - points[at - 1])
    return values[at - 1] + share * (values[at] - values[at - 1])


def _short(value: float) -> float:
    return float(f"{value:.10g}")


# --- another base rate ----------------------------------------------------------------------------


EVEN = 0.5
LEAST_SHARE, MOST_SHARE = 0.01, 0.99  # no batch is taken to be all of one kind
STEPS, STILL = 1_000, 1e-6  # at most so many rounds, or until a round moves the share by less


def check_base_rate(base_rate: float) -> None:
    """Raise `SpecError` for what is no share between 0 and 1."""
    if not 0 < base_rate < 1:
        raise SpecError(f"a base rate is a share of hallucinated outputs in (0, 1), got {base_rate}")


def shifted_odds(odds: float, base_rate: float, fitted: float = EVEN) -> float:
    """Log-odds that hold where `fitted` of the outputs are hallucinated, where `base_rate` are."""
    return odds + log_odds(base_rate) - log_odds(fitted)


def estimated_base_rate(probabilities: Iterable[float], fitted: float = EVEN) -> float:
    """The share of hallucinated outputs in a batch, by expectation maximization; held within [.01, .99].

    `probabilities` hold where a share `fitted` is hallucinated. It is as good as they are calibrated: the
    probabilities of a judge that ranks at chance say nothing of the share. Raises `InputError` without any.
    """
    odds = [log_odds(each) for each in probabilities]
    if not odds:
        raise InputError("a base rate is estimated from verdicts, and there are none")
    share = fitted
    for _ in range(STEPS):
        before = share
        mean = sum(sigmoid(shifted_odds(each, before, fitted)) for each in odds) / len(odds)
        share = min(max(mean, LEAST_SHARE), MOST_SHARE)
        if abs(share - before) < STILL:
            break
    return share


# --- reliability ----------------------------------------------------------------------------------


Binning = Literal["mass", "width"]
BINS = 10
LOSSES = ("ece", "brier", "log_loss")
NO_INTERVAL = "no interval: chance adds to an ECE, see how much by chance"

_DRAWS, _FEWEST, _LABELS = 200, 20, 4_000_000  # sets of labels, fewer where there would be more labels in all


@dataclass(frozen=True, slots=True)
class Bin:
    """Samples whose scores lie within [`low`, `high`]: their mean score and the share that is hallucinated.

    `observed` has the Wilson interval of `n` samples as if each had a context of its own.
    """

    low: float
    high: float
    n: int
    mean_score: float
    observed: Estimate

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return fields_of(self)


@dataclass(frozen=True, slots=True)
class Reliability:
    """Scores beside labels: three losses (ece and brier in [0, 1], log loss from 0 on), and the bins.

    `ece_by_chance`, in [0, 1], is the ECE that scores which are the very probabilities show on average at
    this n, in these bins. `base_rate` is the share of the hallucinated that they are weighted to, None for
    that of the data.
    """

    n: int
    ece: float
    ece_by_chance: float
    brier: float
    log_loss: float
    bins: tuple[Bin, ...]
    binning: Binning = "mass"
    base_rate: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return fields_of(self)


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

    Bins hold equally many samples (`mass`; equal scores are never parted, so there may be fewer) or are
    equally wide. `seed` is that of the labels drawn for `ece_by_chance`. Raises `InputError` for other
    shapes or ranges, and where `base_rate` needs a class that is not there.
    """
    import numpy as np

    flags, values = _checked(truth, scores)
    members = bin_numbers(values, bins, binning)
    weights = shifted(np.ones(values.size), flags, base_rate)
    if np.isnan(weights).any():
        raise InputError("a base rate needs samples of both classes")
    ece, brier, log_loss = losses(flags, values, members)(weights.reshape(1, -1))[0]
    found = tuple(_bin(flags, values, weights, members == number) for number in np.unique(members))
    chance = _by_chance(values, weights, members, seed)
    return Reliability(
        values.size, float(ece), chance, float(brier), float(log_loss), found, binning, base_rate
    )


def _by_chance(scores: Floats, weights: Floats, members: Ints, seed: int) -> float:
    """The mean ECE of labels drawn from the scores, in the same bins and at the same weights."""
    import numpy as np

    source, total = np.random.default_rng(seed), weights.sum()
    draws = max(_FEWEST, min(_DRAWS, _LABELS // scores.size))
    found = []
    for _ in range(draws):
        off = weights * (scores - (source.random(scores.size) < scores))
        found.append(np.abs(np.bincount(members, off)).sum() / total)
    return float(np.mean(found))


def losses(truth: Flags, scores: Floats, members: Ints) -> Callable[[Floats], Floats]:
    """The three losses `[b, 3]` as a function of weights `[b, n]`, over bins that stay as they are.

    All of them are ratios of weighted sums, so many draws cost one product of matrices.
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
    """The number of the bin `[n]` that each score is in, from 0 on; a bin may be empty."""
    import numpy as np

    if bins < 1:
        raise InputError(f"there must be at least one bin, got {bins}")
    if binning == "width":
        return np.minimum((scores * bins).astype(np.int64), bins - 1)
    # A score belongs to the bin in which the middle one of its equals stands.
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts + 1) / 2
    return np.asarray((middle * bins / scores.size).astype(np.int64)[inverse])


def _bin(truth: Flags, scores: Floats, weights: Floats, inside: Flags) -> Bin:
    """One bin; under other weights of the classes the interval's ends are odds times the same factor."""
    import numpy as np

    own, n = scores[inside], int(inside.sum())
    hits = int(truth[inside].sum())
    low, high = wilson(hits / n, n)
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
            "labels must be booleans and scores as many numbers, at least one; got "
            f"{flags.dtype} of {flags.shape} and {values.shape}"
        )
    if not ((values >= 0) & (values <= 1)).all():
        raise InputError("scores must be in [0, 1]")
    return flags, values


# --- other data -----------------------------------------------------------------------------------


LEAST_CONTEXTS, MOST_KEPT = 20, 500
"""Fewer scores on either side say nothing; of more than this a calibration keeps so many at random."""
LEVEL = 0.01  # the chance at most that a shift is seen where there is none
LEAST_DISTANCE = 0.1  # a smaller one is no reason to distrust a calibration, however sure it is
DIGITS = 6


@dataclass(frozen=True, slots=True)
class ScoreShift:
    """How far `n` scores are from `n_before` others: one a context on either side.

    `distance` is the greatest difference of the two shares of scores up to any one value, in [0, 1]; `p` is
    its p value where both come from one distribution.
    """

    distance: float
    p: float
    n: int
    n_before: int

    @property
    def shown(self) -> bool:
        """Whether the scores are shown to come from elsewhere, by enough to matter."""
        return self.p < LEVEL and self.distance >= LEAST_DISTANCE

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return fields_of(self) | {"shown": self.shown}


def score_shift(scores: ArrayLike, groups: ArrayLike, before: ArrayLike) -> ScoreShift | None:
    """How far scores `[n]` are from those `before` `[m]`, which are of a context each and rounded.

    `groups` int `[n]` is the same for samples of one context. None where either side has too few contexts.
    """
    import numpy as np
    from scipy.stats import ks_2samp

    values, known = np.asarray(scores, dtype=np.float64), np.asarray(before, dtype=np.float64)
    own = np.round(values[one_of_each(groups)], DIGITS)
    if min(own.size, known.size) < LEAST_CONTEXTS:
        return None
    found = ks_2samp(own, known, method="asymp")
    return ScoreShift(float(found.statistic), float(found.pvalue), int(own.size), int(known.size))


def reference(
    scores: ArrayLike, truth: ArrayLike, groups: ArrayLike, base_rate: float | None = None, *, seed: int = 0
) -> tuple[float, ...]:
    """Scores `[n]` to hold later ones against: at most `MOST`, one a context, rounded and sorted.

    With a `base_rate` in (0, 1) so many of the more frequent class of `truth` bool `[n]` are left out at
    random that this is the share of the hallucinated.
    """
    import numpy as np

    values, flags = np.asarray(scores, dtype=np.float64), np.asarray(truth, dtype=np.bool_)
    chosen = one_of_each(groups, seed=seed)
    source = np.random.default_rng(seed)
    chosen = source.permutation(chosen)
    if base_rate is not None:
        bad, good = chosen[flags[chosen]], chosen[~flags[chosen]]
        whole = min(bad.size / base_rate, good.size / (1 - base_rate))
        chosen = np.concatenate([bad[: round(whole * base_rate)], good[: round(whole * (1 - base_rate))]])
        chosen = source.permutation(chosen)
    kept = np.sort(np.round(values[chosen[:MOST_KEPT]], DIGITS))
    return tuple(float(each) for each in kept)


def one_of_each(groups: ArrayLike, *, seed: int = 0) -> NDArray[np.int64]:
    """The places `[contexts]` of one sample of each context, chosen at random."""
    import numpy as np

    numbers = np.asarray(groups)
    order = np.random.default_rng(seed).permutation(numbers.size)
    _, first = np.unique(numbers[order], return_index=True)
    found: NDArray[np.int64] = np.sort(order[first])
    return found
