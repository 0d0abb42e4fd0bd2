"""`label_queue`: label samples of a run from a program, like the web page of `magistrate label`."""

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
from magistrate.store.label_comments import Comment
from magistrate.store.labels import Answer, Label, Queue, Quote, checked_annotator
from magistrate.types import Span


@dataclass(frozen=True, slots=True)
class LabelQueue:
    """A queue in a store. Every access reads from the store."""

    name: str
    store: StorePlace = field(repr=False)  # it may hold a password

    @property
    def record(self) -> Queue:
        """The stored queue, with its policy and the number of samples it was drawn from."""
        with self._open() as (_, queue):
            return queue

    def next(self, annotator: str, *, but: Sequence[int] = ()) -> LabelTask | None:
        """Lease the next item to an annotator for 15 minutes; None if there is none now."""
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
        """Store an annotator's answer for an item: faithful, hallucinated, unsure or skip.

        `spans` are character offsets into its output. Raises `InputError` for an invalid answer. Raises
        `SpecError` if there is no such item, or if the annotator's newest answer is not `revision`.
        """
        answer = Answer(label=label, spans=tuple(spans), quote=quote, note=note, seconds=seconds)
        with self._open() as (store, queue):
            now = datetime.now(UTC)
            added = store.labels.add(queue.name, number - 1, annotator, answer, revision=revision, now=now)
            if added is None:
                newest = store.labels.newest(queue.name, number - 1, checked_annotator(annotator))
                seen = 0 if newest is None else newest.revision
                raise SpecError(
                    f"{annotator} has already labelled item {number}; to change the label: revision={seen}"
                )
            return added

    def progress(self, *, weighted: bool = True) -> Progress:
        """Return the progress and the hallucinated share. Refuses a share that would be biased."""
        with self._open() as (store, queue):
            found = findings(store, queue)
            return progress(queue, found, store.labels.samples(queue.name), weighted=weighted)

    def labels(self) -> list[Label]:
        """Return each annotator's current labels, by item."""
        with self._open() as (store, queue):
            return store.labels.labels(queue.name)

    def comment(self, number: int, author: str, text: str) -> Comment:
        """Append a comment to an item. On the page, it is shown to those who have labelled the item."""
        with self._open() as (store, queue):
            return store.comments.add(queue.name, number - 1, author, text, now=datetime.now(UTC))

    def comments(self) -> list[Comment]:
        """Return the comments on all items, by item, oldest first."""
        with self._open() as (store, queue):
            return store.comments.of(queue.name)

    def export(
        self,
        target: str | Path,
        *,
        gold: bool = False,
        comments: bool = False,
        replace: bool = False,
        form: Form | None = None,
    ) -> int:
        """Write the labels as .csv or .jsonl, or .json for the tool `form`. Returns the number of rows.

        With `gold` these are the items' final labels, with `comments` what people wrote on items.
        """
        with self._open() as (store, queue):
            target = Path(target)
            return export(store, queue, target, gold=gold, comments=comments, replace=replace, form=form)

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
    """Return all queues of a store, newest first."""
    place = store or default_store()
    if not exists(place):
        return []
    with Store.open(place) as opened:
        return [LabelQueue(each.name, place) for each in opened.labels.queues()]


def label_queue(
    name: str, *, of: RunRef | None = None, store: StorePlace | None = None, **options: Any
) -> LabelQueue:
    """Return the queue of this name; with `of` create one from samples of a run.

    `options` are those of `magistrate label`: policy, judge, by, reference, size, seed, double, width, kinds,
    instructions, and `blind=False` for its `--verdicts`. Raises `SpecError` if there is no such queue, or
    with `of` if there is one already.
    """
    if of is not None:
        record, place = record_of(of, store)
        with Store.open(place) as opened:
            made = queue_of_run(opened, record, name, QueueOptions(**options), datetime.now(UTC))
        return LabelQueue(made.name, place)
    if options:
        raise SpecError("options of a queue are set when it is created: use them with of=RUN")
    place = store or default_store()
    if not exists(place):
        raise SpecError(f"there is no store at {place}, and no queue {name!r} in it")
    with Store.open(place) as opened:
        return LabelQueue(opened.labels.find(name).name, place)
