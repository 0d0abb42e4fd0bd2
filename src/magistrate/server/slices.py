"""Metrics of one judge by the values of a metadata field: how good it is on each slice of the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from magistrate.analysis.columns import columns
from magistrate.datasets.selection import value_at
from magistrate.metrics.classification import Estimate, classification
from magistrate.store import Snapshot
from magistrate.types import Scoring

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SAMPLES_READ = 50  # to find the fields of metadata
FEW_VALUES = 20  # per field among those samples
MOST_KEYS = 30
LONGEST_KEY = 100
MOST_SLICES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The samples with one value of a field: `n` have a gold label and a verdict.

    `n_hallucinated` of them are hallucinated, `n_called` are judged so. The interval of `balanced_accuracy`
    resamples samples of the same context together.
    """

    value: str
    n: int
    n_hallucinated: int
    n_called: int
    balanced_accuracy: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicesView:
    """The slices by the field `by`, the largest first.

    `n_without` labelled samples lack the field. `n_more` values, with `n_rest` samples, are left out.
    """

    by: str
    slices: tuple[Slice, ...]
    n_without: int
    n_more: int
    n_rest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sliced:
    """Labelled samples with a verdict, in the order of the run, with the value of each.

    All arrays are `[n]`: `place` is the index in `values`, -1 for none; `truth` and `said` are True for
    hallucinated; `scores` are the judge's own, to be read by `scoring`; `groups` are equal for samples of
    the same context.
    """

    by: str
    values: tuple[str, ...]
    place: NDArray[np.int64]
    truth: NDArray[np.bool_]
    said: NDArray[np.bool_]
    scores: NDArray[np.float64]
    groups: NDArray[np.int64]
    scoring: Scoring | None


def keys_of(moment: Snapshot, run_id: str) -> tuple[str, ...]:
    """Return the metadata fields that have few values among the run's first samples."""
    found: dict[str, set[str]] = {}
    samples = list(islice(moment.samples(run_id), SAMPLES_READ))
    for sample in samples:
        for key, value in sample.metadata.items():
            if isinstance(value, str | int | bool) and len(key) <= LONGEST_KEY:
                found.setdefault(key, set()).add(str(value))
    few = [key for key, values in found.items() if len(values) <= min(FEW_VALUES, max(len(samples) // 2, 1))]
    return tuple(sorted(few)[:MOST_KEYS])


def sliced(moment: Snapshot, run_id: str, judge: str, by: str) -> Sliced:
    """Return the labelled samples of a run with one judge's verdicts, by a field of their metadata."""
    import numpy as np

    samples = {sample.id: sample for sample in moment.samples(run_id)}
    outcomes = list(moment.bare_outcomes(run_id, judge))
    found = columns(samples, outcomes, judge, moment.record(run_id).scoring.get(judge))
    named = [value_at(samples[sample_id], f"metadata.{by}") for sample_id in found.ids]
    ranked = _ranked(named)
    places = {value: at for at, value in enumerate(ranked)}
    return Sliced(
        by=by,
        values=ranked,
        place=np.array([-1 if value is None else places[value] for value in named], dtype=np.int64),
        truth=found.truth,
        said=found.said,
        scores=found.raw,
        groups=found.groups,
        scoring=found.scoring,
    )


def slices_view(found: Sliced, threshold: float | None) -> SlicesView:
    """Return the metrics for each value, as judged or at a threshold of the judge's own scores."""
    said = found.said
    if threshold is not None and found.scoring is not None:
        said = (found.scores >= threshold) != found.scoring.turned
    slices = []
    for at, value in enumerate(found.values[:MOST_SLICES]):
        inside = found.place == at
        truth, called = found.truth[inside], said[inside]
        measured = classification(truth, called, groups=found.groups[inside])
        slices.append(
            Slice(
                value=value,
                n=int(inside.sum()),
                n_hallucinated=int(truth.sum()),
                n_called=int(called.sum()),
                balanced_accuracy=measured.metrics["balanced_accuracy"],
            )
        )
    return SlicesView(
        by=found.by,
        slices=tuple(slices),
        n_without=int((found.place < 0).sum()),
        n_more=max(len(found.values) - MOST_SLICES, 0),
        n_rest=int((found.place >= MOST_SLICES).sum()),
    )


def _ranked(values: Iterable[str | None]) -> tuple[str, ...]:
    """Return the distinct values, the most frequent first."""
    counts = Counter(value for value in values if value is not None)
    return tuple(sorted(counts, key=lambda value: (-counts[value], value)))
