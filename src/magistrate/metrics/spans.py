"""Span metrics: how well quotes match the spans that people marked, in characters over all samples.

The definition is RAGTruth's (Niu and others 2024): characters that are both marked and quoted, divided by
those quoted (precision) or by those marked (recall). Within a sample a character counts once, even if
several spans contain it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from magistrate.metrics.classification import Estimate
from magistrate.metrics.distributions import ratio
from magistrate.metrics.resampling import estimates_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

SPAN_METRICS = ("precision", "recall", "f1", "iou")

Stretch = tuple[int, int]
"""Half-open offsets of characters."""


@dataclass(frozen=True, slots=True)
class SpanScores:
    """Character-level figures of `n` samples. The three counts are of characters.

    `not_counted` is the number of samples that are hallucinated but have no marked spans.
    """

    n: int
    marked: int
    quoted: int
    both: int
    metrics: Mapping[str, Estimate]
    not_counted: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return {
            "n": self.n,
            "not_counted": self.not_counted,
            "characters": {"marked": self.marked, "quoted": self.quoted, "both": self.both},
            **{name: estimate.to_dict() for name, estimate in self.metrics.items()},
        }


def characters(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Merge stretches into sorted ones that do not touch.

    >>> characters([(4, 9), (0, 5), (12, 12)])
    [(0, 9)]
    """
    merged: list[Stretch] = []
    for start, end in sorted(each for each in stretches if each[1] > each[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def overlap(first: Iterable[Stretch], second: Iterable[Stretch]) -> int:
    """Return the number of characters that are in both."""
    one, two = characters(first), characters(second)
    return _length(one) + _length(two) - _length(characters([*one, *two]))


def span_scores(
    marked: Sequence[Iterable[Stretch]],
    quoted: Sequence[Iterable[Stretch]],
    groups: ArrayLike,
    not_counted: int = 0,
) -> SpanScores:
    """Return precision, recall, F1 and intersection over union of quotes against marked spans.

    `groups` `[n]` is the same for samples that belong together, for the intervals.
    """
    import numpy as np

    counts = np.array(
        [
            (_length(characters(gold)), _length(characters(said)), overlap(gold, said))
            for gold, said in zip(
                [list(each) for each in marked], [list(each) for each in quoted], strict=True
            )
        ],
        dtype=np.float64,
    ).reshape(-1, 3)
    if not len(counts):
        nothing = dict.fromkeys(SPAN_METRICS, Estimate.none("no sample has marked hallucinations"))
        return SpanScores(0, 0, 0, 0, nothing, not_counted)
    gold, said, both = (int(total) for total in counts.sum(0))
    undefined = {
        "precision": "the judge quoted nothing as wrong",
        "recall": "nothing is marked as hallucinated",
        "f1": "nothing is marked and the judge quoted nothing",
        "iou": "nothing is marked and the judge quoted nothing",
    }
    metrics = estimates_of(SPAN_METRICS, lambda weights: _figures(weights @ counts), groups, undefined)
    return SpanScores(len(counts), gold, said, both, metrics, not_counted)


def _length(stretches: Iterable[Stretch]) -> int:
    return sum(end - start for start, end in stretches)


def _figures(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return `SPAN_METRICS` `[b, 4]` from counts of characters marked, quoted and both `[b, 3]`."""
    import numpy as np

    gold, said, both = sums.T
    pairs = [(both, said), (both, gold), (2 * both, gold + said), (both, gold + said - both)]
    return np.stack([ratio(a, b) for a, b in pairs], axis=1)
