"""Calibration maps from a score to a probability, fitted to labels, and a test that one still applies.

===========  ======================================================================================
platt        sigmoid of slope times the score's log odds plus intercept, fitted without penalty
             (Platt 1999)
temperature  sigmoid of the score's log odds divided by one number above 0, which cannot move the score at
             which both labels are equally likely (Guo and others 2017)
isotonic     the non-decreasing steps nearest to the labels, joined by straight lines (Zadrozny and Elkan
             2002), clipped to [1 / (n + 2), (n + 1) / (n + 2)]: n samples never prove a probability of 0
===========  ======================================================================================

The first two are fitted to Platt's targets, (N+ + 1) / (N+ + 2) for the N+ hallucinated and 1 / (N- + 2) for
the N- faithful, by log loss, so they stay finite if the score separates the classes. Scores are clipped to
[`CLIP`, 1 - `CLIP`] before their log odds are taken, so that those of 0 and 1 are finite. All probabilities
are clipped likewise.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import exp, expm1, isfinite, log, log1p, sqrt
from typing import TYPE_CHECKING, Any, Literal, get_args

from magistrate.errors import InputError, SpecError
from magistrate.metrics.distributions import brentq, expit, ks_2samp, logit

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

_HOTTEST = 1e3  # at this temperature every probability is about .5


@dataclass(frozen=True, slots=True)
class Calibrator:
    """A fitted map from a score in [0, 1] to the probability that the output is hallucinated, in (0, 1).

    `parameters` are those of `PARAMETERS[method]`, each a list of numbers. For isotonic it holds the points
    to be joined by straight lines, otherwise one number. Raises `InputError` for parameters that define no
    such map.
    """

    method: Method
    parameters: Mapping[str, tuple[float, ...]]

    def __post_init__(self) -> None:
        given = self.parameters
        if self.method not in METHODS or set(given) != set(PARAMETERS[self.method]):
            raise InputError(
                f"{self.method!r} with {', '.join(given) or 'nothing'} is not a calibration; known: "
                + "; ".join(f"{name} with {' and '.join(each)}" for name, each in PARAMETERS.items())
            )
        if not all(isfinite(value) for values in given.values() for value in values):
            raise InputError(f"the parameters of {self.method} must be finite numbers")
        if self.method == "isotonic":
            _check_points(given["scores"], given["probabilities"])
        elif any(len(values) != 1 for values in given.values()):
            raise InputError(f"each parameter of {self.method} must be one number")
        elif self.method == "temperature" and not given["temperature"][0] > 0:
            raise InputError(f"a temperature must be above 0, got {given['temperature'][0]}")

    def __call__(self, score: float) -> float:
        """Return the calibrated probability of one score."""
        return held(self._of(score))

    def _of(self, score: float) -> float:
        if self.method == "isotonic":
            return _between(score, self.parameters["scores"], self.parameters["probabilities"])
        odds = log_odds(score)
        if self.method == "temperature":
            return sigmoid(odds / self.parameters["temperature"][0])
        return sigmoid(self.parameters["slope"][0] * odds + self.parameters["intercept"][0])

    def of_all(self, scores: ArrayLike) -> Floats:
        """Return the calibrated probabilities `[n]` of scores `[n]`."""
        import numpy as np

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
    """Clip a score or probability to [`CLIP`, 1 - `CLIP`]."""
    return min(max(value, CLIP), 1 - CLIP)


def log_odds(score: float) -> float:
    """Return log(p / (1 - p)) of a score after clipping."""
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
    """Fit a map by this method to the labels.

    `scores` float `[n]` in [0, 1]; `truth` bool `[n]`, True is hallucinated; `weights` float `[n]` above 0,
    all 1 by default. Raises `InputError` for an unknown method and if a class is missing.
    """
    import numpy as np

    raw, flags = np.asarray(scores, dtype=np.float64), np.asarray(truth, dtype=np.bool_)
    counted = np.ones(raw.size) if weights is None else np.asarray(weights, dtype=np.float64)
    if method not in METHODS:
        raise InputError(f"unknown method {method!r}; known: {', '.join(METHODS)}")
    if not raw.size or flags.all() or not flags.any():
        raise InputError("calibration needs samples of both classes")
    fit = {"platt": _platt, "isotonic": _isotonic, "temperature": _temperature}[method]
    found = fit(raw, flags, counted)
    # Ten digits are more than any data determine. Later digits may differ between machines.
    return Calibrator(
        method, {name: tuple(float(f"{each:.10g}") for each in values) for name, values in found.items()}
    )


def shifted(weights: Floats, truth: Flags, base_rate: float | None) -> Floats:
    """Scale weights `[…, n]` so that the share of hallucinated samples is `base_rate`. None leaves them.

    Their sum does not change. NaN if a class is missing. This assumes that only the class frequencies
    differ, not the scores within a class (prior shift: Saerens and others 2002).
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
    """Return the slope and intercept with the least log loss, by Newton's method with halved steps."""
    import numpy as np

    odds, target = logit(np.clip(scores, CLIP, 1 - CLIP)), _targets(truth)
    columns = np.column_stack([odds, np.ones(odds.size)])
    share = weights / weights.sum()

    def loss(point: Floats) -> float:
        margin = columns @ point
        return float((share * (np.logaddexp(0, margin) - target * margin)).sum())

    point = np.array([0.0, float(logit(np.average(target, weights=weights)))])
    for _ in range(100):
        said = expit(columns @ point)
        slope = columns.T @ (share * (said - target))
        curve = (columns * (share * said * (1 - said))[:, None]).T @ columns
        step = np.linalg.lstsq(curve, slope, rcond=1e-13)[0]
        size, before = 1.0, loss(point)
        while size > 1e-10 and loss(point - size * step) > before:
            size /= 2
        point = point - size * step
        if np.abs(size * step).max() < 1e-12:
            break
    return {"slope": [float(point[0])], "intercept": [float(point[1])]}


def _temperature(scores: Floats, truth: Flags, weights: Floats) -> dict[str, list[float]]:
    """Return the temperature with the least log loss, which is convex in the inverse temperature."""
    import numpy as np

    odds, target = logit(np.clip(scores, CLIP, 1 - CLIP)), _targets(truth)

    def rising(inverse: float) -> float:
        return float((weights * odds * (expit(odds * inverse) - target)).sum())

    low, high = 1 / _HOTTEST, float(_HOTTEST)
    if rising(low) >= 0 or rising(high) <= 0:
        return {"temperature": [high if rising(low) >= 0 else low]}
    return {"temperature": [1 / brentq(rising, low, high)]}


def _isotonic(scores: Floats, truth: Flags, weights: Floats) -> dict[str, list[float]]:
    """Return the ends of the isotonic steps, by pooling neighbours that are in the wrong order."""
    import numpy as np

    least = 1 / (truth.size + 2)
    places, inverse = np.unique(scores, return_inverse=True)
    heavy = np.bincount(inverse, weights)
    blocks: list[tuple[float, float, int]] = []  # mean, weight and number of places
    for mean, weight in zip(np.bincount(inverse, weights * truth) / heavy, heavy, strict=True):
        block = (float(mean), float(weight), 1)
        while blocks and blocks[-1][0] >= block[0]:
            before, other, count = blocks.pop()
            whole = other + block[1]
            block = ((before * other + block[0] * block[1]) / whole, whole, count + block[2])
        blocks.append(block)
    steps = np.clip(np.repeat([each[0] for each in blocks], [each[2] for each in blocks]), least, 1 - least)
    kept = np.ones(steps.size, dtype=np.bool_)
    kept[1:-1] = (steps[1:-1] != steps[:-2]) | (steps[1:-1] != steps[2:])
    return {"scores": places[kept].tolist(), "probabilities": steps[kept].tolist()}


def _targets(truth: Flags) -> Floats:
    """Return Platt's targets `[n]`, which lie slightly inside 0 and 1."""
    import numpy as np

    positives, negatives = int(truth.sum()), int((~truth).sum())
    return np.where(truth, (positives + 1) / (positives + 2), 1 / (negatives + 2))


def _check_points(scores: tuple[float, ...], probabilities: tuple[float, ...]) -> None:
    steps = list(pairwise(scores))
    rises = list(pairwise(probabilities))
    if not scores or len(scores) != len(probabilities) or not all(low < high for low, high in steps):
        raise InputError("isotonic needs equally many probabilities and scores, and scores must ascend")
    if not all(low <= high for low, high in rises) or not 0 < probabilities[0] <= probabilities[-1] < 1:
        raise InputError("isotonic needs probabilities above 0 and below 1 that do not descend")


def _between(score: float, points: tuple[float, ...], values: tuple[float, ...]) -> float:
    """Interpolate linearly between points at `score`. Beyond the ends the value is that of the last point."""
    at = bisect_right(points, score)
    if at == 0 or at == len(points):
        return values[0 if at == 0 else -1]
    share = (score - points[at - 1]) / (points[at] - points[at - 1])
    return values[at - 1] + share * (values[at] - values[at - 1])


# --- other base rates -----------------------------------------------------------------------------
#
# Two batches are assumed to differ only in the share of hallucinated samples, not in what these look like
# (prior shift). Then odds are multiplied by a constant (Elkan 2001), and the share can be estimated from the
# probabilities alone (Saerens, Latinne and Decaestecker 2002).

EVEN = 0.5
TINY = 1e-300  # keeps a logarithm finite
LEAST, MOST = 0.01, 0.99  # no batch is assumed to have only one class
STEPS, STILL = 1_000, 1e-6  # maximum rounds, and the change of the share below which rounds stop


def check_base_rate(base_rate: float) -> None:
    """Raise `SpecError` unless the base rate is between 0 and 1."""
    if not 0 < base_rate < 1:
        raise SpecError(f"a base rate must be a share of hallucinated outputs in (0, 1), got {base_rate}")


def shifted_odds(odds: float, base_rate: float, fitted: float = EVEN) -> float:
    """Convert log odds from a base rate of `fitted` hallucinated outputs to a base rate of `base_rate`."""
    return odds + log_odds(base_rate) - log_odds(fitted)


def joint_odds(odds: Sequence[float]) -> float:
    """Return the log odds that a text is not supported, from those of its sentences, at least one.

    A text is supported if all of its sentences are. Errors of one text go together, so n sentences count as
    √n independent ones: its probability of *supported* is the product of theirs to the power of 1 / √n.

    >>> round(joint_odds([1.5]), 9), round(joint_odds([-2.0, -2.0, -2.0, -2.0]), 2)
    (1.5, -1.24)
    """
    told = sum(max(each, 0.0) + log1p(exp(-abs(each))) for each in odds) / sqrt(len(odds))
    return told + log(max(-expm1(-told), TINY))


def estimated_base_rate(probabilities: Iterable[float], fitted: float = EVEN) -> float:
    """Estimate the share of hallucinated outputs in a batch by expectation maximization, within [.01, .99].

    `probabilities` are calibrated to a base rate of `fitted`. The estimate is only as good as their
    calibration: probabilities of a judge at chance level carry no information. Raises `InputError` if there
    are none.
    """
    odds = [log_odds(each) for each in probabilities]
    if not odds:
        raise InputError("a base rate cannot be estimated: there are no verdicts")
    share = fitted
    for _ in range(STEPS):
        before = share
        mean = sum(sigmoid(shifted_odds(each, before, fitted)) for each in odds) / len(odds)
        share = min(max(mean, LEAST), MOST)
        if abs(share - before) < STILL:
            break
    return share


# --- whether scores still have the distribution that the calibration was fitted to -----------------
#
# The test is the two-sample test of Kolmogorov and Smirnov. Samples that share a context are not independent,
# so one sample per context is taken, at random with a seed. Both sides are rounded to the same digits, so
# that a score computed in two ways compares as equal.


LEAST_SCORES, MOST_KEPT = 20, 500
"""Fewer scores on either side say nothing; of more than this a calibration keeps so many at random."""
LEVEL = 0.01  # the highest probability of a false alarm
LEAST_DISTANCE = 0.1  # a smaller shift is no reason to distrust a calibration, even if significant
DIGITS = 6


@dataclass(frozen=True, slots=True)
class ScoreShift:
    """The difference between the distributions of `n` scores and `n_before` earlier ones, one per context.

    `distance` is the greatest difference of the cumulative shares at any one value, in [0, 1]. `p` is its p
    value under the hypothesis that both come from one distribution.
    """

    distance: float
    p: float
    n: int
    n_before: int

    @property
    def shown(self) -> bool:
        """Whether the shift is significant and large enough to matter."""
        return self.p < LEVEL and self.distance >= LEAST_DISTANCE

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return asdict(self) | {"shown": self.shown}


def score_shift(scores: ArrayLike, groups: ArrayLike, before: ArrayLike) -> ScoreShift | None:
    """Compare scores `[n]` with earlier ones `before` `[m]`, which are rounded and one per context.

    `groups` int `[n]` is the same for samples of one context. None if either side has too few contexts.
    """
    import numpy as np

    values, known = np.asarray(scores, dtype=np.float64), np.asarray(before, dtype=np.float64)
    own = np.round(values[one_of_each(groups)], DIGITS)
    if min(own.size, known.size) < LEAST_SCORES:
        return None
    distance, p = ks_2samp(own, known)
    return ScoreShift(distance, p, int(own.size), int(known.size))


def reference(
    scores: ArrayLike, truth: ArrayLike, groups: ArrayLike, base_rate: float | None = None, *, seed: int = 0
) -> tuple[float, ...]:
    """Select scores to compare later ones with: at most `MOST_KEPT`, one per context, rounded and sorted.

    With a `base_rate` in (0, 1), samples of the more frequent class of `truth` bool `[n]` are left out at
    random until this is the share of hallucinated samples.
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
    """Return the indices `[contexts]` of one sample of each context, chosen at random."""
    import numpy as np

    numbers = np.asarray(groups)
    order = np.random.default_rng(seed).permutation(numbers.size)
    _, first = np.unique(numbers[order], return_index=True)
    found: NDArray[np.int64] = np.sort(order[first])
    return found
