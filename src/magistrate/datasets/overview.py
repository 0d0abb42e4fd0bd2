"""What a data set holds, in numbers: labels, fields, lengths, and the first samples."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from magistrate.types import Sample

FIRST = 3
FIELDS = ("input", "context", "messages", "output", "expected", "alternatives", "label", "spans", "metadata")


@dataclass(frozen=True, slots=True)
class FieldFacts:
    """In how many samples a field is, and how long it is there in the median.

    Characters count over all parts of a field; None for fields that are no texts.
    """

    present: int
    median_characters: float | None


@dataclass(frozen=True, slots=True)
class Overview:
    """`labels` counts every label, `metadata` every name in it; `fields` has those that any sample has."""

    n_samples: int
    labels: Mapping[str, int]
    fields: Mapping[str, FieldFacts]
    metadata: Mapping[str, int]
    first: tuple[Sample, ...]


def overview(samples: Iterable[Sample], *, first: int = FIRST) -> Overview:
    """Go through the samples once; eight bytes are held for every text."""
    present, labels, names = Counter[str](), Counter[str](), Counter[str]()
    lengths = {name: array("q") for name in FIELDS}
    shown: list[Sample] = []
    number = 0
    for number, sample in enumerate(samples, 1):
        if number <= first:
            shown.append(sample)
        if sample.label is not None:
            labels[sample.label] += 1
        names.update(str(name) for name in sample.metadata)
        for name in FIELDS:
            value = getattr(sample, name)
            if value is None or (not value and not isinstance(value, str)):
                continue
            present[name] += 1
            if (length := _characters(name, sample)) is not None:
                lengths[name].append(length)
    facts = {
        name: FieldFacts(present[name], float(median(lengths[name])) if lengths[name] else None)
        for name in FIELDS
        if present[name]
    }
    return Overview(number, dict(labels.most_common()), facts, dict(names.most_common()), tuple(shown))


def _characters(name: str, sample: Sample) -> int | None:
    match name:
        case "input" | "output" | "expected":
            return len(getattr(sample, name))
        case "context" | "alternatives":
            return sum(map(len, getattr(sample, name)))
        case "messages":
            return sum(len(turn.text) for turn in sample.messages)
        case _:
            return None
