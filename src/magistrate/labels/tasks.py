"""Labelling by a program: hand out the next item of a queue to an annotator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from magistrate.labels.queues import KINDS, LEASE_MINUTES
from magistrate.store import Store
from magistrate.store.labels import Queue, checked_annotator
from magistrate.types import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTask:
    """An item handed out to an annotator, without any judge's verdict.

    `number` is its position in the queue, from 1. `revision` is that of the annotator's newest answer, 0
    for none. Each span of `sample.output` has one of `kinds`.
    """

    queue: str
    number: int
    sample: Sample
    revision: int
    kinds: tuple[str, ...]
    instructions: str


def lease_end(now: datetime) -> datetime:
    """Return when the lease of an item that is handed out at `now` ends."""
    return now + timedelta(minutes=LEASE_MINUTES)


def next_task(
    store: Store, queue: Queue, annotator: str, now: datetime, but: Sequence[int] = ()
) -> LabelTask | None:
    """Lease the next item, skipping the numbers in `but`. Returns None if none is available now.

    Raises `SpecError` for an invalid annotator name.
    """
    who = checked_annotator(annotator)
    passed = [number - 1 for number in but]
    position = store.labels.claim(queue.name, who, now=now, until=lease_end(now), but=passed)
    if position is None:
        return None
    _, sample = store.labels.item(queue.name, position)
    newest = store.labels.newest(queue.name, position, who)
    return LabelTask(
        queue=queue.name,
        number=position + 1,
        sample=sample,
        revision=0 if newest is None else newest.revision,
        kinds=tuple(queue.settings.get("kinds", KINDS)),
        instructions=str(queue.settings.get("instructions", "")),
    )
