"""Coverage of 95 % intervals for a nearly perfect judge: the closed form compared with a bootstrap.

Run: .venv/bin/python benchmarks/interval_coverage.py
"""

from __future__ import annotations

import warnings

import numpy as np
from scipy.stats import bootstrap

from magistrate.metrics import classification

DRAWS, RESAMPLES, SHARE, ERROR = 200, 500, 0.5, 0.02


def main() -> None:
    """Print, for several sizes, the share of draws whose interval contains the true value."""
    random = np.random.default_rng(0)
    truths = {"balanced_accuracy": 1 - ERROR, "f1": 1 - ERROR}
    print(f"judge that errs on {ERROR:.0%} of each class, {SHARE:.0%} positive, {DRAWS} draws a row, seed 0")
    print(f"{'rows':>5} {'metric':<18} {'closed form':>12} {'bootstrap':>10}")
    for n in (12, 50, 200):
        held = {(metric, way): 0 for metric in truths for way in ("closed", "bootstrap")}
        for _ in range(DRAWS):
            labels = np.arange(n) < n * SHARE
            said = labels ^ (random.random(n) < ERROR)
            measured = classification(labels, said).metrics
            for metric, truth in truths.items():
                estimate = measured[metric]
                assert estimate.low is not None and estimate.high is not None
                held[metric, "closed"] += estimate.low <= truth <= estimate.high
                low, high = resampled(metric, labels, said, random)
                held[metric, "bootstrap"] += low <= truth <= high
        for metric in truths:
            closed, other = held[metric, "closed"] / DRAWS, held[metric, "bootstrap"] / DRAWS
            print(f"{n:>5} {metric:<18} {closed:>12.1%} {other:>10.1%}")


def resampled(
    metric: str, labels: np.ndarray, said: np.ndarray, random: np.random.Generator
) -> tuple[float, float]:
    """Return the percentile bootstrap interval."""

    def statistic(truth: np.ndarray, guess: np.ndarray, axis: int = -1) -> np.ndarray:
        right, wrong = (truth & guess).sum(axis), (truth & ~guess).sum(axis)
        false, calm = (~truth & guess).sum(axis), (~truth & ~guess).sum(axis)
        if metric == "f1":
            return np.asarray(2 * right / np.maximum(2 * right + false + wrong, 1))
        return np.asarray(right / np.maximum(right + wrong, 1) + calm / np.maximum(calm + false, 1)) / 2

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # resamples without variation are expected here
        found = bootstrap(
            (labels, said), statistic, paired=True, vectorized=True, method="percentile",
            n_resamples=RESAMPLES, random_state=random,
        ).confidence_interval  # fmt: skip
    return float(found.low), float(found.high)


if __name__ == "__main__":
    main()
