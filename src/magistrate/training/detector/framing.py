"""Statements about statements, "the text does not say whether …", made of rows that tell kinds apart."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

from magistrate.types import FAITHFUL, HALLUCINATED, Sample

ENTAILED = frozenset({"entailment", "supported"})
CONTRADICTED = frozenset({"contradiction", "refuted"})
NEUTRAL = frozenset({"neutral"})

SILENT = (
    "The document does not say whether {}.",
    "The text doesn't mention whether {}.",
    "Whether {} is not stated.",
    "It isn't stated whether {}.",
    "Nothing here tells us whether {}.",
    "There is no information on whether {}.",
    "The source gives no answer as to whether {}.",
    "From what is given one cannot tell whether {}.",
    "It remains open whether {}.",
    "It is unclear from the passage whether {}.",
    "I can't tell from this whether {}.",
    "No details are provided about whether {}.",
)
SAID = (
    "According to the text, {}.",
    "The document says that {}.",
    "The passage makes it clear that {}.",
    "Yes, {}.",
    "As the source puts it, {}.",
    "It follows that {}.",
    "We are told that {}.",
    "What we learn is that {}.",
)
DENIED = (
    "It is not true that {}.",
    "It is not the case that {}.",
    "The text rules out that {}.",
    "It is false that {}.",
    "According to the document, it is wrong that {}.",
    "No, it isn't so that {}.",
)
LONGEST = 200  # characters of a statement that is framed


def framed(every: Iterable[Sample], seed: int, share: float) -> Iterator[Sample]:
    """For a `share` of the rows a statement about theirs, with the label that follows.

    What a text is silent on it neither supports nor denies; what it contradicts it denies. Rows that do not
    tell these three apart, and questions, are passed over.
    """
    for sample in every:
        kind = str(sample.metadata.get("kind"))
        said = (sample.output or "").strip()
        order = random.Random(f"{seed}/framed/{sample.id}")
        if order.random() >= share or not said or said.endswith("?") or len(said) > LONGEST:
            continue
        if kind not in ENTAILED | CONTRADICTED | NEUTRAL:
            continue
        frames, right = order.choice(
            ((SILENT, NEUTRAL), (SILENT, NEUTRAL), (SAID, ENTAILED), (DENIED, CONTRADICTED))
        )
        if kind in right:
            told = "entailment"
        elif frames is SILENT or (kind not in NEUTRAL):
            told = "contradiction"
        else:
            told = "neutral"
        yield replace(
            sample,
            id=f"{sample.id}~framed",
            output=order.choice(frames).format(said.rstrip(". ")),
            label=FAITHFUL if kind in right else HALLUCINATED,
            spans=(),
            metadata={"kind": told, "of": sample.id},
        )
