"""Select samples from a stream: the first N, N at random, or equally many of each value.

A random selection gives every sample a key from the seeded generator and keeps those with the smallest
keys. It takes one pass and memory for the selected samples only, however long the stream is. The selected
samples keep the order of the source.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from magistrate.errors import DatasetError, SpecError
from magistrate.types import Sample

Reread = Callable[[], Iterator[Sample]]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which samples of a data set to take; by default all.

    `limit` takes the first so many. `sample` takes so many at random, by `seed`. `balance` takes equally
    many of each value of `label` or of `metadata.NAME`; samples without such a value are skipped.
    """

    limit: int | None = None
    sample: int | None = None
    balance: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("limit", "sample"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise SpecError(f"{name} must be a whole number of at least 1, got {value!r}")
        if self.limit is not None and (self.sample is not None or self.balance is not None):
            raise SpecError(
                "limit takes the first rows, but sample and balance take random ones; give only one of them"
            )
        if self.balance is not None and self.balance != "label" and not self.balance.startswith("metadata."):
            raise SpecError(
                f"balance must be label or metadata.NAME, got {self.balance!r}"
                f" (did you mean 'metadata.{self.balance}'?)"
            )

    @property
    def at_most(self) -> int | None:
        """The maximum number of samples, or None if it is not bounded."""
        return self.limit if self.limit is not None else self.sample

    def recipe(self) -> dict[str, Any]:
        """Return the settings that determine the selection, for a digest; the seed only if it is used."""
        chosen = {"limit": self.limit, "sample": self.sample, "balance": self.balance}
        said = {name: value for name, value in chosen.items() if value is not None}
        return {**said, "seed": self.seed} if self.sample or self.balance else said

    def apply(self, read: Reread) -> Iterator[Sample]:
        """Return the selected samples. `read` starts a new pass. Raises DatasetError if there are too few."""
        if self.limit is not None:
            return itertools.islice(read(), self.limit)
        if self.balance is not None:
            return iter(_balanced(self, self.balance, read))
        if self.sample is not None:
            return iter(_sampled(self.sample, self.seed, read))
        return read()


class _Reservoir:
    """Keeps the `room` entries with the smallest keys."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._heap: list[tuple[float, int, Sample]] = []

    def offer(self, key: float, place: int, sample: Sample) -> None:
        heapq.heappush(self._heap, (-key, place, sample))
        self.shrink(self.room)

    def shrink(self, room: int) -> None:
        self.room = room
        while len(self._heap) > room:
            heapq.heappop(self._heap)

    def entries(self) -> list[tuple[int, Sample]]:
        return [(place, sample) for _, place, sample in self._heap]


def _in_order(reservoirs: list[_Reservoir]) -> list[Sample]:
    entries = [entry for reservoir in reservoirs for entry in reservoir.entries()]
    return [sample for _, sample in sorted(entries, key=lambda entry: entry[0])]


def _sampled(wanted: int, seed: int, read: Reread) -> list[Sample]:
    draw, kept, seen = random.Random(seed), _Reservoir(wanted), 0
    for seen, sample in enumerate(read(), 1):
        kept.offer(draw.random(), seen, sample)
    if seen < wanted:
        raise DatasetError(f"cannot take {wanted} random samples: there are {seen}")
    return _in_order([kept])


def _balanced(selection: Selection, path: str, read: Reread) -> list[Sample]:
    counts: Counter[str] = Counter()
    room = selection.sample
    if room is None:
        counts = Counter(value for sample in read() if (value := value_at(sample, path)) is not None)
        room = min(counts.values(), default=0) * len(counts)
    draw, kept = random.Random(selection.seed), dict[str, _Reservoir]()
    counts = Counter()
    for place, sample in enumerate(read()):
        key, value = draw.random(), value_at(sample, path)
        if value is None:
            continue
        counts[value] += 1
        if value not in kept:
            kept[value] = _Reservoir(room)
            for reservoir in kept.values():
                reservoir.shrink(room // len(kept))
        kept[value].offer(key, place, sample)
    _check_balance(path, selection.sample, counts)
    return _in_order(list(kept.values()))


def _check_balance(path: str, wanted: int | None, counts: Mapping[str, int]) -> None:
    if not counts:
        raise DatasetError(f"cannot balance by {path}: no sample has it")
    shown = ", ".join(f"{value} {n}" for value, n in sorted(counts.items())[:10])
    shown += ", …" if len(counts) > 10 else ""
    if wanted is None:
        return
    each, over = divmod(wanted, len(counts))
    if over or not each:
        near = [n for n in (each * len(counts), (each + 1) * len(counts)) if n]
        raise DatasetError(
            f"cannot take {wanted} equally from {len(counts)} values of {path} ({shown}); "
            f"take {' or '.join(map(str, near))}"
        )
    if min(counts.values()) < each:
        most = min(counts.values()) * len(counts)
        raise DatasetError(f"cannot take {each} of each {path}: there are {shown}; take at most {most}")


def value_at(sample: Sample, path: str) -> str | None:
    """Return the value of a sample at `label` or `metadata.NAME` as text, or None if it has none."""
    if path == "label":
        return sample.label
    value: Any = sample.metadata
    name = path.removeprefix("metadata.")
    if name in sample.metadata:
        value = sample.metadata[name]
    else:
        for step in name.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
    return None if value is None else str(value)
