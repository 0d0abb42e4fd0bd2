"""Trivial rules and text signals under the same protocol, with thresholds from other sets or the dev part.

The direction of a rule is the one that ranks the labels better where it is chosen. A signal's direction is
known: higher is more suspicious. The fixed threshold comes from the dev parts of sets of other families,
where each set and each of its labels has the same weight.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.quality.protocol import Split
from magistrate.analysis.columns import groups_of
from magistrate.datasets.named import shared
from magistrate.features.signals import ngram_novelty, output_length
from magistrate.metrics.distributions import roc_auc_score
from magistrate.metrics.thresholds import Aim, best_cut
from magistrate.types import HALLUCINATED, Sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

AIM = Aim("maximize", metric="balanced_accuracy")
RULES: Mapping[str, Callable[[Sample], float]] = {
    "length": output_length,
    "new bigrams": partial(ngram_novelty, n=2),
}
SIGNAL = "signal:"  # before the name of a text signal
TIMED = 20  # samples that the time of a signal is measured on


@dataclass(frozen=True, slots=True)
class Part:
    """Truth bool `[n]` (True is hallucinated) and scores float `[n]` in [0, 1] of one part of a set.

    `groups` int `[n]` is the same number for samples of the same context.
    """

    truth: Flags
    scores: Floats
    groups: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ruled:
    """A rule's scores on both parts, for the samples that have one; higher means hallucinated.

    `said` holds its labels on the test part by the threshold `at`, fixed on the sets `fixed_on`. Both are
    None if there is no such set. `ms` is the time per sample, None if negligible.
    """

    name: str
    dev: Part
    test: Part
    said: Flags | None
    at: float | None = None
    fixed_on: tuple[str, ...] = ()
    ms: float | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """Every rule's scores of some samples `[n]`, NaN within this module if undefined."""

    truth: Flags
    groups: NDArray[np.int64]
    values: Mapping[str, Floats]


def ruled(split: Split, others: Sequence[Split] = ()) -> Iterator[Ruled]:
    """Yield always-hallucinated, two shortcuts and every text signal; `others` can fix thresholds."""
    import numpy as np

    dev, test = read(split.dev), read(split.test)
    apart = {each.name: read(each.dev) for each in others if not shared(split.family, [each.name])}
    yield Ruled(
        "always hallucinated",
        Part(dev.truth, np.ones(dev.truth.size), dev.groups),
        Part(test.truth, np.ones(test.truth.size), test.groups),
        np.ones(test.truth.size, dtype=np.bool_),
    )
    for name in test.values:
        yield _ruled(name, dev, test, apart, split)


def read(samples: Sequence[Sample]) -> Reading:
    """Compute all rules on some samples."""
    import numpy as np

    from magistrate.features.signals import SIGNALS, readings

    found: dict[str, list[float | None]] = {
        name: [float(rule(sample)) for sample in samples] for name, rule in RULES.items()
    }
    each = [readings(sample) for sample in samples]
    found |= {f"{SIGNAL}{name}": [one[name].value for one in each] for name in SIGNALS}
    return Reading(
        np.array([sample.label == HALLUCINATED for sample in samples], dtype=np.bool_),
        groups_of(samples),
        {name: np.array(values, dtype=np.float64) for name, values in found.items()},
    )


def _ruled(name: str, dev: Reading, test: Reading, apart: Mapping[str, Reading], split: Split) -> Ruled:
    known = name.startswith(SIGNAL)
    parts = [_part(part, part.values[name]) for part in (dev, test)]
    sign = 1.0 if known else _direction(parts[0].truth, parts[0].scores)
    scaled = [
        Part(each.truth, _scaled(sign * each.scores, sign * parts[0].scores), each.groups) for each in parts
    ]
    at, turned = _fixed([_part(each, each.values[name]) for each in apart.values()], known)
    said = None if at is None else turned * parts[1].scores >= at
    fixed_on = () if at is None else tuple(apart)
    return Ruled(name, scaled[0], scaled[1], said, at, fixed_on, _ms(name, split.test) if known else None)


def _part(reading: Reading, values: Floats) -> Part:
    """Return the samples that have a value."""
    import numpy as np

    kept = ~np.isnan(values)
    return Part(reading.truth[kept], values[kept], reading.groups[kept])


def _direction(truth: Flags, values: Floats, weights: Floats | None = None) -> float:

    both = 0 < truth.sum() < truth.size
    return -1.0 if both and roc_auc_score(truth, values, weights) < 0.5 else 1.0


def _scaled(values: Floats, by: Floats) -> Floats:
    """Scale values to [0, 1], with the lowest of `by` at 0 and the highest at 1."""
    import numpy as np

    spread = np.ptp(by) if by.size else 0.0
    return np.clip((values - by.min()) / spread, 0.0, 1.0) if spread else np.zeros_like(values)


def _fixed(parts: Sequence[Part], known: bool) -> tuple[float | None, float]:
    """Return a rule's threshold and direction from other sets; no threshold if none has both labels."""
    import numpy as np

    both = [each for each in parts if 0 < each.truth.sum() < each.truth.size]
    if not both:
        return None, 1.0
    truth, values = (np.concatenate([getattr(each, of) for each in both]) for of in ("truth", "scores"))
    weights = np.concatenate([_even(each.truth) for each in both])
    sign = 1.0 if known else _direction(truth, values, weights)
    moved = sign * values
    low, spread = moved.min(), np.ptp(moved)
    if not spread:
        return None, sign
    return float(low + spread * best_cut((moved - low) / spread, truth, AIM, weights)), sign


def _even(truth: Flags) -> Floats:
    """Return weights that give each label half of a set, with sum 1."""
    import numpy as np

    weights: Floats = np.where(truth, 0.5 / truth.sum(), 0.5 / (~truth).sum())
    return weights


def _ms(name: str, samples: Sequence[Sample]) -> float:
    """Return the milliseconds per sample that one signal alone takes."""
    from magistrate.features.signals import readings

    few = samples[:TIMED]
    start = time.perf_counter()
    for sample in few:
        readings(sample, names=[name.removeprefix(SIGNAL)])
    return 1000 * (time.perf_counter() - start) / len(few)
