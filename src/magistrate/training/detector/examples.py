"""Training examples of a detector: windows with the labels of their sentences and tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from magistrate.detectors.windows import Reader, Window
from magistrate.types import FAITHFUL, HALLUCINATED, Sample

# The label of a sentence. The first three are classes of the network, in its order.
SUPPORTED, CONTRADICTED, ABSENT, WRONG, UNKNOWN = range(5)
KINDS = 3
UNKNOWN_TOKEN = -1

Reading = Literal[
    "windows", "pairs"
]  # a part of the output in its whole context, or a sentence and a passage

CONTRADICTIONS = frozenset(
    (
        *("contradiction", "refuted", "refute", "negated_claim", "negation_flip", "negation_inserted"),
        *("negation_removed", "antonym", "number", "date", "unit", "quantifier", "duration", "role"),
        *("attribution", "negation", "modality", "condition", "order", "comparison", "place", "inference"),
        *("abstention", "answer", "entity", "roles_exchanged", "conflict"),
    )
)
ABSENCES = frozenset(
    (
        *("neutral", "unsupported", "irrelevant", "extrinsic", "relation_deleted", "not_enough_information"),
        *("clause_inserted", "generic_claim", "sentence_elsewhere", "support_removed", "sentence_removed"),
        *("baseless", "cause"),
    )
)


@dataclass(frozen=True, slots=True)
class Example:
    """One window: `ids` uint16 `[tokens]`, the places where its parts begin, and its labels.

    `second` is where the second text begins. `bounds` are the beginnings of the output's sentences in the
    window, and the end of the last one. `truths` has the label of each. `tokens` int8 `[output tokens]` is 1
    for wrong, 0 for right, -1 for unknown. `hallucinated` is the label of the whole window.
    """

    ids: np.ndarray
    second: int
    bounds: tuple[int, ...]
    truths: tuple[int, ...]
    tokens: np.ndarray
    hallucinated: bool

    @property
    def length(self) -> int:
        """The number of tokens."""
        return len(self.ids)


def examples(
    samples: Iterable[Sample], reader: Reader, readings: Sequence[Reading] = ("windows",)
) -> Iterator[Example]:
    """Yield the windows of labelled samples, for each of `readings`.

    Every sentence of a faithful output is supported. A hallucinated output is wrong where its spans are.
    Without spans at least one sentence is wrong; such an output is skipped if it has several windows, because
    it is unknown which of them is wrong. `metadata["kind"]` distinguishes contradictions from unsupported
    text.
    """
    for sample in samples:
        if sample.label not in (FAITHFUL, HALLUCINATED):
            continue
        for reading in readings:
            windows = reader.windows(sample) if reading == "windows" else reader.pairs(sample)
            if sample.label == HALLUCINATED and not sample.spans and len(windows) > 1:
                continue
            for window in windows:
                yield _example(sample, window)


def _example(sample: Sample, window: Window) -> Example:
    wrong = sample.label == HALLUCINATED
    places = [(span.start, span.end) for span in sample.spans] if wrong else []
    name = str(sample.metadata.get("kind", ""))
    kind = CONTRADICTED if name in CONTRADICTIONS else ABSENT if name in ABSENCES else WRONG
    if not wrong:
        truths = [SUPPORTED] * len(window.sentences)
        tokens = [0] * len(window.places)
    elif places:
        truths = [kind if _touches(places, each.start, each.stop) else SUPPORTED for each in window.sentences]
        tokens = [int(_touches(places, start, end)) for start, end in window.places]
    else:
        truths = [kind if len(window.sentences) == 1 else UNKNOWN] * len(window.sentences)
        tokens = [UNKNOWN_TOKEN] * len(window.places)
    return Example(
        ids=np.array(window.ids, np.uint16),
        second=window.second,
        bounds=(*(each.begin for each in window.sentences), window.end),
        truths=tuple(truths),
        tokens=np.array(tokens, np.int8),
        hallucinated=any(each != SUPPORTED for each in truths),
    )


def _touches(places: Sequence[tuple[int, int]], start: int, end: int) -> bool:
    return any(first < end and start < last for first, last in places)
