"""Columns that no field took: which of them look like the context."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from statistics import median
from typing import Any

from magistrate.types import Sample

LOOKED_AT = 50  # samples
LONG = 120  # characters, from which on a text may be a context whatever its column is called
WORDS = (
    *("context", "doc", "source", "passage", "article", "knowledge", "evidence", "background", "retriev"),
    *("chunk", "snippet", "reference", "paragraph", "excerpt", "material", "transcript"),
)


def like_context(samples: Iterable[Sample]) -> tuple[str, ...]:
    """Columns, or dotted paths, that look like a context: by name, else by long texts; the best first."""
    lengths: dict[str, list[int]] = {}
    outputs = [1]
    looked_at = list(islice(samples, LOOKED_AT))
    for sample in looked_at:
        outputs.append(len(sample.output or ""))
        for path, text in _texts(sample.metadata):
            lengths.setdefault(path, []).append(len(text))
    long = max(LONG, 1.5 * median(outputs))
    found = []
    for path, each in lengths.items():
        named = any(word in path.lower() for word in WORDS)
        typical = median(each)
        if 2 * len(each) >= len(looked_at) and ((named and typical > 1) or typical >= long):
            found.append((not named, -typical, path))
    return tuple(path for _, _, path in sorted(found))


def _texts(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        path = f"{before}{name}"
        if isinstance(value, Mapping) and not before:
            yield from _texts(value, f"{path}.")
        elif isinstance(value, list) and value and all(isinstance(each, str) for each in value):
            yield path, " ".join(value)
        elif isinstance(value, str) and value.strip():
            yield path, value
