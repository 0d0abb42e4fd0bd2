"""Trivial rules under the same protocol: chosen on the dev part, measured on the test part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from magistrate.bench.quality.protocol import Split
from magistrate.signals.overlap import ngram_novelty, output_length
from magistrate.types import HALLUCINATED, Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Ruled:
    """A trivial rule's scores in [0, 1] on both parts, higher for what its dev part says is hallucinated."""

    name: str
    dev: NDArray[np.float64]
    test: NDArray[np.float64]


RULES: dict[str, Callable[[Sample], float]] = {
    "length": output_length,
    "new bigrams": partial(ngram_novelty, n=2),
}


def ruled(split: Split) -> Iterator[Ruled]:
    """Always hallucinated, and the two shortcuts in the direction that ranks the dev part better."""
    import numpy as np
    from sklearn.metrics import roc_auc_score

    yield Ruled("always hallucinated", np.ones(len(split.dev)), np.ones(len(split.test)))
    truth = np.array([sample.label == HALLUCINATED for sample in split.dev])
    for name, rule in RULES.items():
        dev, test = (np.array([rule(s) for s in part], dtype=np.float64) for part in (split.dev, split.test))
        if roc_auc_score(truth, dev) < 0.5:
            dev, test = -dev, -test
        low, spread = dev.min(), np.ptp(dev)
        scaled = [(each - low) / spread if spread else np.zeros_like(each) for each in (dev, test)]
        yield Ruled(name, *(np.clip(each, 0.0, 1.0) for each in scaled))
