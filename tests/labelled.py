"""A queue of texts that offsets are hard in, labelled with everything that can be said."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from magistrate.labels.queues import QueueOptions, queue_of_samples
from magistrate.store import Store
from magistrate.store.labels import Answer, Queue
from magistrate.types import Sample, Span

NOW = datetime(2026, 1, 2, tzinfo=UTC)
OUTPUTS = (
    "😀 opens at nine",
    "Cafe\u0301 👩‍👩‍👧 is shut",
    "a lone \ud83d half\r\nand more",
    "قهوة 😀 مغلقة",
    "plain",
)
KIND = "evident_conflict"


def queue_of(store: Store, name: str) -> Queue:
    samples = [
        Sample(f"käse/{at}", text, ("It opens at ten.", "Second 😀."), input="When?" if at else None)
        for at, text in enumerate(OUTPUTS)
    ]
    options = QueueOptions(policy="uniform", double=1.0)
    return queue_of_samples(store, samples, name, "rows", "digest", options, NOW)


def label(store: Store, queue: Queue) -> None:
    """Everything that can be said: spans at the end of every text, notes, unsure, skip, two people."""
    for item, sample in zip(store.labels.items(queue.name), store.labels.samples(queue.name), strict=True):
        text = sample.output or ""
        spans = (Span(0, 2, KIND), Span(len(text) - 3, len(text), KIND))
        answer = Answer(label="hallucinated", spans=spans, note="über 😀\nzwei")
        store.labels.add(queue.name, item.position, "Ana 😀", answer, revision=0, now=NOW)
        other = ("faithful", "unsure", "skip")[item.position % 3]
        store.labels.add(queue.name, item.position, "ben", Answer(label=other), revision=0, now=NOW)


def said(store: Store, queue: Queue) -> list[Any]:
    """What everybody says of every sample, with spans and notes."""
    ids = {each.position: each.sample_id for each in store.labels.items(queue.name)}
    return sorted(
        (ids[each.position], each.annotator, each.label, each.spans, each.note)
        for each in store.labels.labels(queue.name)
    )
