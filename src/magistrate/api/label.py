"""`label_queue`: label samples of a run from a program, as `magistrate label` does on a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from magistrate._paths import default_store
from magistrate.api.stored import RunRef, StorePlace, record_of
from magistrate.errors import SpecError
from magistrate.labels.decisions import findings
from magistrate.labels.estimates import Progress, progress
from magistrate.labels.files import Imported, export, import_labels
from magistrate.labels.queues import QueueOptions, queue_of_run
from magistrate.labels.tasks import LabelTask, next_task
from magistrate.labels.tools import Counting, Form
from magistrate.store import Store
from magistrate.store.connection import exists
from magistrate.store.labels import Answer, Label, Queue, Quote, checked_annotator
from magistrate.types import Span


@dataclass(frozen=True, slots=True)
class LabelQueue:
    """A queue in a store. Everything is read from the store when it is asked for."""

    name: str
    store: StorePlace = field(repr=False)  # it may hold a password

    @property
    def record(self) -> Queue:
        """What the store says of the queue: its policy, how many samples it was drawn from."""
        with self._open() as (_, queue):
            return queue

    def next(self, annotator: str, *, but: Sequence[int] = ()) -> LabelTask | None:
        """Give out the next item to an annotator for 15 minutes; None where there is none at the moment."""
        with self._open() as (store, queue):
            return next_task(store, queue, annotator, datetime.now(UTC), but)

    def submit(
        self,
        number: int,
        annotator: str,
        label: str,
        *,
        spans: Iterable[Span] = (),
        quote: Quote | None = None,
        note: str = "",
        seconds: float | None = None,
        revision: int = 0,
    ) -> Label:
        """Store what an annotator says of an item: faithful, hallucinated, unsure or skip.

        `spans` are characters of its output. Raises `InputError` for what cannot be, `SpecError` where there
        is no such item, and where the annotator's newest answer is not the one of this `revision`.
        """
        answer = Answer(label=label, spans=tuple(spans), quote=quote, note=note, seconds=seconds)
        with self._open() as (store, queue):
            now = datetime.now(UTC)
            added = store.labels.add(queue.name, number - 1, annotator, answer, revision=revision, now=now)
            if added is None:
                newest = store.labels.newest(queue.name, number - 1, checked_annotator(annotator))
                seen = 0 if newest is None else newest.revision
                raise SpecError(
                    f"{annotator} has labelled item {number} already; to change it: revision={seen}"
                )
            return added

    def progress(self, *, weighted: bool = True) -> Progress:
        """How far it is and the share that is hallucinated; a share that would be biased is refused."""
        with self._open() as (store, queue):
            found = findings(store, queue)
            return progress(queue, found, store.labels.samples(queue.name), weighted=weighted)

    def labels(self) -> list[Label]:
        """What each annotator says, by item."""
        with self._open() as (store, queue):
            return store.labels.labels(queue.name)

    def export(
        self, target: str | Path, *, gold: bool = False, replace: bool = False, form: Form | None = None
    ) -> int:
        """Write the labels to a .csv or .jsonl file, or .json for the tool `form`; answers how many rows."""
        with self._open() as (store, queue):
            return export(store, queue, Path(target), gold=gold, replace=replace, form=form)

    def import_labels(
        self, source: str | Path, *, annotator: str | None = None, counting: Counting | None = None
    ) -> Imported:
        """Append the labels of a file, all of them or none."""
        with self._open() as (store, queue):
            now = datetime.now(UTC)
            return import_labels(store, queue, Path(source), now, annotator=annotator, counting=counting)

    @contextmanager
    def _open(self) -> Iterator[tuple[Store, Queue]]:
        with Store.open(self.store) as store:
            yield store, store.labels.find(self.name)


def label_queues(store: StorePlace | None = None) -> list[LabelQueue]:
    """All queues of a store, the newest first."""
    place = store or default_store()
    if not exists(place):
        return []
    with Store.open(place) as opened:
        return [LabelQueue(each.name, place) for each in opened.labels.queues()]


def label_queue(
    name: str, *, of: RunRef | None = None, store: StorePlace | None = None, **options: Any
) -> LabelQueue:
    """The queue of this name; with `of` a new one, of samples of a run.

    `options` are those of `magistrate label`: policy, judge, by, size, seed, double, width, kinds,
    instructions, and `blind=False` for its `--verdicts`. Raises `SpecError` where there is no such queue,
    and with `of` where there is one already.
    """
    if of is not None:
        record, place = record_of(of, store)
        with Store.open(place) as opened:
            made = queue_of_run(opened, record, name, QueueOptions(**options), datetime.now(UTC))
        return LabelQueue(made.name, place)
    if options:
        raise SpecError("a queue has its options from the beginning: they go with of=RUN")
    place = store or default_store()
    if not exists(place):
        raise SpecError(f"there is no store at {place}, and no queue {name!r} in it")
    with Store.open(place) as opened:
        return LabelQueue(opened.labels.find(name).name, place)
