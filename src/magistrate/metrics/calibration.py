"""From a score to a probability: maps with few parameters, fitted to labels.

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
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import exp, isfinite, log
from typing import TYPE_CHECKING, Literal, get_args

from magistrate.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

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


# --- fits ---------------------------------------------------------------------------------------


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
