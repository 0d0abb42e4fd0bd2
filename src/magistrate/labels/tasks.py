"""What somebody who labels by a program gets and gives: the next item of a queue, and an answer to it."""

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
    """An item that was given out to an annotator; what judges said of it is no part of it.

    `number` is its place in the queue, from 1, `revision` that of their newest answer, 0 for none. Spans of
    `sample.output` have one of `kinds`.
    """

    queue: str
    number: int
    sample: Sample
    revision: int
    kinds: tuple[str, ...]
    instructions: str


def lease_end(now: datetime) -> datetime:
    """When an item that is given out now is given to others, if nobody answers."""
    return now + timedelta(minutes=LEASE_MINUTES)


def next_task(
    store: Store, queue: Queue, annotator: str, now: datetime, but: Sequence[int] = ()
) -> LabelTask | None:
    """Give out the next item, numbers in `but` passed over; None where there is none at the moment.

    Raises `SpecError` for what is no name.
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
