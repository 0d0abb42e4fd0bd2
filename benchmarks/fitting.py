"""Weights of a few parts, fitted to families of labelled sets that count alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit


@dataclass(frozen=True)
class Part:
    """What was read of one set: values `[n, k]`, the higher the more suspicious, and labels `[n]`."""

    name: str
    family: str
    values: np.ndarray
    truth: np.ndarray


def fitted(sets: Sequence[Part], shrink: float) -> tuple[np.ndarray, float]:
    """Weights `[k]` and an intercept, at even chances.

    Logistic regression in which each family weighs the same, and so does each class within a set; an
    intercept a set, no weight below 0, and weights drawn towards a common one, in standard deviations, by
    `shrink`. The intercept that is answered is the mean over the families.
    """
    families = sorted({each.family for each in sets})
    spread = np.mean([each.values.std(axis=0) for each in sets], axis=0)
    values = np.vstack([each.values / spread for each in sets])
    sign = np.concatenate([np.where(each.truth, 1.0, -1.0) for each in sets])
    number = np.concatenate([np.full(len(each.truth), at) for at, each in enumerate(sets)])
    mine = [sum(other.family == each.family for other in sets) for each in sets]
    weight = np.concatenate(
        [
            np.where(each.truth, 0.5 / each.truth.sum(), 0.5 / (~each.truth).sum()) / share / len(families)
            for each, share in zip(sets, mine, strict=True)
        ]
    )
    k = values.shape[1]

    def loss(at: np.ndarray) -> tuple[float, np.ndarray]:
        margin = sign * (values @ at[:k] + at[k:][number])
        away = at[:k] - at[:k].mean()
        pull = -sign * expit(-margin) * weight
        slopes = [values.T @ pull + 2 * shrink * away, np.bincount(number, pull, len(sets))]
        return float((weight * np.logaddexp(0, -margin)).sum() + shrink * away @ away), np.concatenate(slopes)

    bounds = [(0, None)] * k + [(None, None)] * len(sets)
    at = minimize(loss, np.full(k + len(sets), 0.1), jac=True, method="L-BFGS-B", bounds=bounds).x
    own = [np.mean([at[k + n] for n, each in enumerate(sets) if each.family == name]) for name in families]
    return at[:k] / spread, float(np.mean(own))
