"""Fits log odds to what judges say of the sentences of labelled sets; each family of sets has one weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from magistrate.metrics.calibration import TINY
from magistrate.types import HALLUCINATED, Sample

FAMILIES = ("summedits", "begin", "halueval")  # novelty has weights without each of these
SHRINK = 0.02  # pulls the weights towards each other, because the sets judged differ from those fitted


@dataclass(frozen=True)
class Part:
    """A set: log odds of judges for each sentence `[sentences, judges]`, and the output of each sentence.

    Outputs are numbered from 0 to n - 1, in the order of `truth` (hallucinated or not) and `groups` (the
    number of its context).
    """

    name: str
    family: str
    values: np.ndarray
    outputs: np.ndarray
    truth: np.ndarray
    groups: np.ndarray

    def odds(self, fit: np.ndarray) -> np.ndarray:
        """Return the log odds of each output, with the intercept and weights `[1 + judges]` of sentences.

        Each output's are the `joint_odds` of its sentences.
        """
        sentences = np.logaddexp(0, fit[0] + self.values @ fit[1:])
        told = np.bincount(self.outputs, sentences) / np.sqrt(np.bincount(self.outputs))
        return np.asarray(told + np.log(np.maximum(-np.expm1(-told), TINY)))


def truth_of(samples: Sequence[Sample]) -> np.ndarray:
    """Return which samples are hallucinated."""
    return np.array([each.label == HALLUCINATED for each in samples])


def contexts_of(samples: Sequence[Sample]) -> np.ndarray:
    """Return the number of each sample's context."""
    return np.unique(["\n".join(each.sources) for each in samples], return_inverse=True)[1]


def fitted(learnt: Sequence[Part]) -> np.ndarray:
    """Return intercept and weights `[1 + judges]` of a logistic regression with one intercept per set.

    Thresholds do not transfer between sets, so the intercept is the mean over the families. No weight is
    below 0.
    """
    families = sorted({each.family for each in learnt})
    judges = learnt[0].values.shape[1]
    shares = []
    for each in learnt:
        sets = sum(other.family == each.family for other in learnt)
        of_label = np.where(each.truth, each.truth.mean(), 1 - each.truth.mean())
        shares.append(1 / (2 * of_label * len(each.truth) * sets * len(families)))

    def loss(at: np.ndarray) -> float:
        weights, intercepts = at[:judges], at[judges:]
        total = SHRINK * ((weights - weights.mean()) ** 2).sum() * 2
        for each, share, intercept in zip(learnt, shares, intercepts, strict=True):
            odds = each.odds(np.array([intercept, *weights]))
            total += share @ np.logaddexp(0, np.where(each.truth, -odds, odds))
        return float(total)

    bounds = [*[(0, None)] * judges, *[(None, None)] * len(learnt)]
    found = minimize(loss, np.array([*[0.5] * judges, *np.zeros(len(learnt))]), bounds=bounds).x
    means = [
        np.mean([at for at, each in zip(found[judges:], learnt, strict=True) if each.family == family])
        for family in families
    ]
    return np.array([np.mean(means), *found[:judges]])


def known(family: str) -> str:
    """Return the family if there are weights without it, else an empty string."""
    return family if family in FAMILIES else ""
