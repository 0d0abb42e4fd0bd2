"""Selects samples for labelling, each with a known inclusion probability.

=============  ====================================================================================
uniform        all with equal probability
disagreement   by the distance between judges' scores; with one judge, by closeness to 0.5
threshold      by closeness of a judge's score to its threshold
stratified     equally from each fifth of a judge's scores, and from each value of a field in it
failures       only samples on which a judge failed, abstained or was not called
drift          half uniform, half by the distance from a reference period (`labels.drift`)
mixed          half uniform, half by disagreement
=============  ====================================================================================

A policy gives every sample a weight. `inclusion` turns the weights into probabilities, and `draw` draws
exactly the requested number of samples with exactly these probabilities, by systematic sampling with a random
start along a hashed order (Madow 1949). The drawn samples are offered in another hashed order, so that an
annotator who stops early has labelled a random subset. A sample drawn with probability π represents 1/π
samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import combinations
from math import exp, floor
from typing import Literal, get_args

from magistrate._text import decimal
from magistrate.errors import InputError, SpecError

Policy = Literal["mixed", "uniform", "disagreement", "threshold", "stratified", "failures", "drift"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
BINS = 5
NEAR = 0.1  # a score that is so far from the threshold weighs 1/e of one that is at it

_SALT = "magistrate:labels:v1"
_BITS = 53  # as many as a float holds exactly


@dataclass(frozen=True, slots=True)
class Wanted:
    """The weight that a policy gives a sample, at least 0, and the reason."""

    weight: float
    reason: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sample that could be labelled, with its judges' scores.

    `scores` holds one score in [0, 1] per judge, where 1 means hallucinated, or None without a verdict.
    `missing` then gives the reason. `key` identifies the content. `group` is the value of the field that
    defines strata. `drift` is how far it lies from the reference, and why; None without a reference.
    """

    key: str
    scores: tuple[float | None, ...] = ()
    missing: str | None = None
    group: str | None = None
    drift: Wanted | None = None


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drawn sample, by its index `place` among the candidates.

    `priority` in [0, 1] is its weight relative to the largest.
    """

    place: int
    priority: float
    inclusion: float
    reason: str


def share(seed: int, purpose: str, key: str) -> float:
    """Return a deterministic pseudo-random number in [0, 1) from a hash of seed, purpose and key.

    >>> share(0, "order", "a") == share(0, "order", "a") != share(1, "order", "a")
    True
    """
    words = "\0".join((_SALT, str(seed), purpose, key)).encode("utf-8", "surrogatepass")
    return (int.from_bytes(sha256(words).digest()[:8], "big") >> (64 - _BITS)) / (1 << _BITS)


# --- weights --------------------------------------------------------------------------------------


def wanted(
    policy: Policy, candidates: Sequence[Candidate], *, threshold: float | None = None
) -> list[Wanted]:
    """Return the weight that a policy gives each candidate. Raises `SpecError` if it lacks verdicts.

    `threshold` belongs to the judge whose scores come first, on a scale where 1 means hallucinated.
    """
    if policy == "uniform":
        return [Wanted(1.0, "drawn at random")] * len(candidates)
    if policy == "failures":
        return [_failed(each) for each in candidates]
    if policy == "drift":
        return _half("nothing differs from the reference", [_drifted(each) for each in candidates])
    if not any(score is not None for each in candidates for score in each.scores):
        raise SpecError(
            f"the policy {policy} needs verdicts, but there are none: label a run with verdicts, or use "
            "--policy uniform"
        )
    by_first = policy in ("threshold", "stratified")
    if by_first and all(not each.scores or each.scores[0] is None for each in candidates):
        raise SpecError(
            f"the policy {policy} needs verdicts of one judge, but this judge has none: choose another with "
            "--judge, or use --policy uniform"
        )
    if policy == "disagreement":
        return [_apart(each) for each in candidates]
    if policy == "threshold":
        return [_near(each, 0.5 if threshold is None else threshold) for each in candidates]
    if policy == "stratified":
        return _strata(candidates)
    if policy == "mixed":
        return _half("no two scores differ", [_apart(each) for each in candidates])
    raise SpecError(f"unknown policy {policy!r}; known: {', '.join(POLICIES)}")


def _half(nothing: str, others: Sequence[Wanted]) -> list[Wanted]:
    """Draw half at random and half by `others`; all at random, for the reason `nothing`, without weights."""
    total = sum(each.weight for each in others)
    if not total:
        return [Wanted(1.0, f"drawn at random; {nothing}")] * len(others)
    mean = total / len(others)
    return [Wanted((mean + each.weight) / 2, f"drawn at random, or as {each.reason}") for each in others]


def _drifted(candidate: Candidate) -> Wanted:
    if candidate.drift is None:
        raise SpecError("the policy drift needs a run, and what to compare it with: --reference RUN or TIME")
    return candidate.drift


def _apart(candidate: Candidate) -> Wanted:
    scores = [score for score in candidate.scores if score is not None]
    if not scores:
        return Wanted(0.0, f"{candidate.missing or 'there is no score'}")
    if len(scores) == 1:
        return Wanted(1 - abs(2 * scores[0] - 1), f"the score is {decimal(scores[0])}")
    pairs = [abs(one - other) for one, other in combinations(scores, 2)]
    low, high = decimal(min(scores)), decimal(max(scores))
    return Wanted(sum(pairs) / len(pairs), f"scores are from {low} to {high}")


def _near(candidate: Candidate, threshold: float) -> Wanted:
    score = candidate.scores[0] if candidate.scores else None
    if score is None:
        return Wanted(0.0, candidate.missing or "there is no score")
    told = f"the score is {decimal(score)}, the threshold {decimal(threshold)}"
    return Wanted(exp(-abs(score - threshold) / NEAR), told)


def _strata(candidates: Sequence[Candidate]) -> list[Wanted]:
    """Give each stratum the same total weight: fifths of the scores, or no score, times the groups."""
    ranked = sorted(
        (score, each.key) for each in candidates if each.scores and (score := each.scores[0]) is not None
    )
    edges = [ranked[at * len(ranked) // BINS][0] for at in range(1, BINS)]

    def stratum(each: Candidate) -> tuple[int, str | None]:
        score = each.scores[0] if each.scores else None
        return (-1 if score is None else sum(score >= edge for edge in edges), each.group)

    found = [stratum(each) for each in candidates]
    sizes = Counter(found)
    told = []
    for (number, group), candidate in zip(found, candidates, strict=True):
        lost = f"no score ({candidate.missing or 'not judged'})"
        part = lost if number < 0 else f"scores, part {number + 1} of {BINS}"
        told.append(Wanted(1 / sizes[number, group], part if group is None else f"{part}, {group}"))
    return told


def _failed(candidate: Candidate) -> Wanted:
    return Wanted(0.0 if candidate.missing is None else 1.0, candidate.missing or "every judge has a verdict")


# --- drawing --------------------------------------------------------------------------------------


def inclusion(weights: Sequence[float], size: int) -> list[float]:
    """Return probabilities proportional to the weights that sum to `size`, each capped at 1.

    >>> inclusion([1, 1, 2], 2)
    [0.5, 0.5, 1.0]
    """
    if size < 1 or size > sum(weight > 0 for weight in weights):
        raise InputError(f"of {sum(weight > 0 for weight in weights)} samples {size} cannot be drawn")
    certain: set[int] = set()
    while True:
        rest = [at for at in range(len(weights)) if at not in certain and weights[at] > 0]
        total = sum(weights[at] for at in rest)
        left = size - len(certain)
        over = [at for at in rest if weights[at] * left >= total]
        if not over:
            break
        certain.update(over)
    found = [0.0] * len(weights)
    for at in rest:
        found[at] = weights[at] * left / total
    for at in certain:
        found[at] = 1.0
    return found


def draw(candidates: Sequence[Candidate], wants: Sequence[Wanted], size: int, seed: int) -> list[Drawn]:
    """Draw `size` candidates by their weights, and return them in labelling order."""
    weights = [each.weight for each in wants]
    chances = inclusion(weights, size)
    start = share(seed, "start", "")
    most = max(weights)
    summed, chosen = 0.0, list[int]()
    for at in sorted(range(len(candidates)), key=lambda at: share(seed, "place", candidates[at].key)):
        before, summed = summed, summed + chances[at]
        # Sums of many floats must not lose one that is certain, nor count one that cannot be.
        if chances[at] >= 1 or (chances[at] > 0 and floor(summed - start) > floor(before - start)):
            chosen.append(at)
    chosen.sort(key=lambda at: share(seed, "order", candidates[at].key))
    return [Drawn(at, weights[at] / most, chances[at], wants[at].reason) for at in chosen]
