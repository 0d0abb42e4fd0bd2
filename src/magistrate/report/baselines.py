"""What one gets without judging: trivial rules to stand beside every judge's numbers.

`majority` gives the commoner label to everything (a tie goes to faithful); `always_hallucinated`
says so. `length` looks at nothing but how many characters the output has, `ngram_overlap` at nothing
but the share of its bigrams that no context has.

The last two use the threshold and the direction with the best balanced accuracy **on this very
data**, and their AUROC is direction-free, max(a, 1 - a). No such rule could be fixed in advance, so
their figures are an upper bound of what the shortcut gives: a judge above it has done more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magistrate.features.overlap import ngram_novelty, output_length
from magistrate.metrics.classification import classification
from magistrate.metrics.distributions import roc_curve
from magistrate.types import FAITHFUL, HALLUCINATED, Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FOOTNOTE = (
    "Length and n-gram overlap are given the threshold and direction that are best on this very data, "
    "and an AUROC free of direction, max(a, 1 - a): an upper bound of what the shortcut gives."
)


@dataclass(frozen=True, slots=True)
class Baseline:
    """A trivial rule in words and its metrics: a number in [0, 1], or None where undefined."""

    name: str
    rule: str
    metrics: Mapping[str, float | None]

    def to_dict(self) -> dict[str, float | str | None]:
        """Every metric by name, and the rule."""
        return {**self.metrics, "rule": self.rule}


def baselines(samples: Iterable[Sample]) -> tuple[Baseline, ...]:
    """The four trivial rules over the samples that are labelled faithful or hallucinated.

    Samples without one of these labels or without an output are left out; empty if none is left.
    """
    import numpy as np

    kept = [s for s in samples if s.label in (FAITHFUL, HALLUCINATED) and s.output is not None]
    if not kept:
        return ()
    truth = np.array([s.label == HALLUCINATED for s in kept])
    more = bool(2 * truth.sum() > truth.size)
    return (
        _constant("majority", truth, more),
        _constant("always_hallucinated", truth, True),
        _threshold("length", truth, kept, output_length, "the output has {} characters"),
        _threshold("ngram_overlap", truth, kept, _new_bigrams, "the share of new bigrams is {}"),
    )


def _new_bigrams(sample: Sample) -> float:
    return ngram_novelty(sample, 2)


def _constant(name: str, truth: NDArray[np.bool_], answer: bool) -> Baseline:
    """The rule that gives one label to everything."""
    import numpy as np

    rule = f"always {HALLUCINATED if answer else FAITHFUL}"
    return _measured(name, rule, truth, np.full(truth.shape, answer), np.full(truth.shape, float(answer)))


def _threshold(
    name: str, truth: NDArray[np.bool_], samples: list[Sample], signal: Callable[[Sample], float], words: str
) -> Baseline:
    """The rule that cuts `signal` where balanced accuracy is best, in the better direction."""
    import numpy as np

    values = np.array([signal(s) for s in samples], dtype=np.float64)
    best, rule, said = 0.5, f"never {HALLUCINATED}: no threshold does better", np.zeros_like(truth)
    if truth.any() and not truth.all():
        for sign, side in ((1.0, "or more"), (-1.0, "or less")):
            false_rate, true_rate, cuts = roc_curve(truth, sign * values)
            balanced = (true_rate + 1 - false_rate) / 2
            top = int(balanced.argmax())
            if balanced[top] > best:
                best, said = float(balanced[top]), sign * values >= cuts[top]
                rule = f"{HALLUCINATED} where " + words.format(f"{sign * cuts[top]:.4g} {side}")
    spread = float(np.ptp(values))
    ranks = (values - values.min()) / spread if spread else np.zeros_like(values)
    return _measured(name, rule, truth, said, ranks)


def _measured(
    name: str,
    rule: str,
    truth: NDArray[np.bool_],
    said: NDArray[np.bool_],
    scores: NDArray[np.float64],
) -> Baseline:
    metrics = {key: e.value for key, e in classification(truth, said, scores).metrics.items()}
    if (area := metrics["auroc"]) is not None:
        metrics["auroc"] = max(area, 1 - area)
    return Baseline(name, rule, metrics)
