"""Combines the labels of an item into a state: open, decided, unsure, in conflict or adjudicated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from magistrate.labels.sampling import share
from magistrate.metrics.spans import characters, overlap
from magistrate.store import Store
from magistrate.store.labels import DECIDED, SKIP, UNSURE, Gold, Item, Label, Queue
from magistrate.types import HALLUCINATED, Span

LEAST_OVERLAP = 0.5  # two people's spans whose F1 is below this are a conflict

State = Literal["open", "decided", "unsure", "conflict", "adjudicated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The state of one item and the labels behind it.

    `label` is faithful or hallucinated, None if undecided. `waits` is true while another label is wanted.
    `conflict` explains why the labels contradict each other. It stays set after `gold` has decided.
    """

    item: Item
    state: State
    label: str | None
    labels: tuple[Label, ...]
    gold: Gold | None
    conflict: str | None
    waits: bool

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans in force: the adjudicator's, else those of the first annotator with the decided label."""
        if self.gold is not None:
            return self.gold.spans
        return next((each.spans for each in self.labels if each.label == self.label), ())

    @property
    def said(self) -> tuple[Label, ...]:
        """The labels that are faithful or hallucinated, without unsure and skip."""
        return tuple(each for each in self.labels if each.label in DECIDED)


def span_f1(one: Iterable[Span], other: Iterable[Span]) -> float:
    """Return the character-level F1 of two people's spans, from 0 to 1; 1 if neither marks any.

    >>> span_f1([Span(0, 10)], [Span(5, 10)])
    0.6666666666666666
    """
    first, second = [(each.start, each.end) for each in one], [(each.start, each.end) for each in other]
    size = sum(end - start for spans in (first, second) for start, end in characters(spans))
    return 2 * overlap(first, second) / size if size else 1.0


def conflict_of(labels: Sequence[Label]) -> str | None:
    """Return why the labels of one item contradict each other, None if they do not.

    Spans are compared only between hallucinated labels that mark some: a label without spans makes no claim
    about places.
    """
    said = [each for each in labels if each.label in DECIDED]
    if len({each.label for each in said}) > 1:
        return "the labels differ"
    marked = [each for each in said if each.label == HALLUCINATED and each.spans]
    shares = [span_f1(one.spans, other.spans) for one, other in combinations(marked, 2)]
    return "the marked words differ" if shares and min(shares) < LEAST_OVERLAP else None


def finding(item: Item, labels: Sequence[Label], gold: Gold | None) -> Finding:
    """Combine an item's newest labels and newest decision into a `Finding`."""
    conflict = conflict_of(labels)
    said = [each.label for each in labels if each.label in DECIDED]
    waits = sum(each.label != SKIP for each in labels) < item.wanted
    state: State = "open"
    label: str | None = None
    if gold is not None:
        state, label = "adjudicated", gold.label
    elif conflict is not None:
        state = "conflict"
    elif said:
        state, label = "decided", said[0]
    elif any(each.label == UNSURE for each in labels):
        state = "unsure"
    return Finding(
        item=item,
        state=state,
        label=label,
        labels=tuple(labels),
        gold=gold,
        conflict=conflict,
        waits=waits and gold is None,
    )


def findings(store: Store, queue: Queue) -> list[Finding]:
    """Return the finding of every item of a queue, in queue order."""
    by_item: dict[int, list[Label]] = {}
    for label in store.labels.labels(queue.name):
        by_item.setdefault(label.position, []).append(label)
    gold: Mapping[int, Gold] = {each.position: each for each in store.labels.gold(queue.name)}
    return [
        finding(item, by_item.get(item.position, []), gold.get(item.position))
        for item in store.labels.items(queue.name)
    ]


def anonymous(queue: Queue, found: Finding) -> list[tuple[str, Label]]:
    """Return the labels of an item under letters, in an order that does not reveal the annotators."""
    labels = sorted(
        found.labels, key=lambda each: share(0, f"side:{queue.name}:{found.item.position}", each.annotator)
    )
    return [(chr(ord("A") + at) if at < 26 else str(at + 1), each) for at, each in enumerate(labels)]
