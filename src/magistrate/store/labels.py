"""Stores labelling data: queues, items, leases, labels and adjudicated decisions.

An item is leased to an annotator before it is shown to them. So no two people label the same item unless it
wants two labels. A lease is a stored row with an end time, not a lock: if nobody answers, it expires and
the item goes to somebody else. Labels and decisions are only ever appended: the newest revision counts and
earlier ones are kept. The caller passes the current time to every method, and in `by` who makes a change,
for the audit log.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    Subquery,
    and_,
    case,
    delete,
    exists,
    func,
    insert,
    select,
)

from magistrate.errors import InputError, SpecError
from magistrate.store.audit import log_change
from magistrate.store.codec import dumps, loads, sample_body, sample_from, sample_key
from magistrate.store.runs import ROWS_AT_ONCE, keep_samples, near, shown
from magistrate.store.schema import (
    StorePart,
    Transaction,
    dataset_samples,
    insert_or,
    label_gold,
    label_items,
    label_leases,
    label_queues,
    labels,
    of_row,
    run_samples,
    samples,
    stop_writers,
)
from magistrate.types import FAITHFUL, HALLUCINATED, Sample, Span

UNSURE, SKIP = "unsure", "skip"
ANSWERS = (FAITHFUL, HALLUCINATED, UNSURE, SKIP)
"""The answers that an annotator can give."""
DECIDED = (FAITHFUL, HALLUCINATED)
UNDONE = "undone"
"""The label of a revision that withdraws an earlier label."""

LONGEST_NAME, LONGEST_NOTE, LONGEST_ANNOTATOR, MOST_SPANS = 100, 10_000, 80, 500
_FORBIDDEN = "/\\?#%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A label queue: items drawn by a policy from `population` samples.

    Of these, the policy could draw `covered`. `run_id` is the run that the samples come from, None for a
    data set. `source` describes the origin, and `digest` identifies it.
    """

    name: str
    created_at: datetime
    source: str
    run_id: str | None
    digest: str
    policy: str
    population: int
    covered: int
    settings: Mapping[str, Any]
    n_items: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewItem:
    """A sample to label, as drawn by a policy; see `Item`."""

    sample: Sample
    policy: str
    priority: float
    inclusion: float
    reason: str
    wanted: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One sample of a queue. Items are offered in the order of `position`, from 0.

    `priority` in [0, 1] is the weight that the policy gave it, and `reason` the cause. `inclusion` is the
    probability with which it was drawn. `wanted` is the number of people who should label it.
    """

    position: int
    sample_id: str
    policy: str
    priority: float
    inclusion: float
    reason: str
    wanted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemCounts:
    """Numbers of items in a queue.

    `mine` are those that the annotator has answered, `waiting` want another label, and `labelled` are those
    that somebody has called faithful or hallucinated.
    """

    n_items: int
    mine: int
    waiting: int
    labelled: int


@dataclass(frozen=True, slots=True)
class Quote:
    """A passage of the context: half-open character offsets into `Sample.sources[source]`."""

    source: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An annotator's answer for an item. `spans` are character offsets into the output.

    `quote` is the passage of the context that proves it. `seconds` is the time it took, None if unknown.
    """

    label: str
    spans: tuple[Span, ...] = ()
    quote: Quote | None = None
    note: str = ""
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Label(Answer):
    """A stored revision of an annotator's answer, from 1.

    `shown`: they had seen the judge's verdict, or comments of others, which may repeat it.
    """

    id: int
    position: int
    annotator: str
    revision: int
    shown: bool
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Gold:
    """An adjudicator's decision on an item, its reason, and the ids of the labels they looked at."""

    position: int
    revision: int
    label: str
    spans: tuple[Span, ...]
    reason: str
    adjudicator: str
    labels: tuple[int, ...]
    at: datetime


# --- what is given ----------------------------------------------------------------------------------


def checked_queue_name(name: str) -> str:
    """Return a queue name in Unicode normal form NFC. Raises `SpecError` if it is invalid."""
    name = unicodedata.normalize("NFC", name)
    if not name.strip() or name != name.strip() or not name.isprintable() or len(name) > LONGEST_NAME:
        why = f"names must have 1 to {LONGEST_NAME} visible characters, without spaces at the ends"
    elif any(sign in name for sign in _FORBIDDEN) or name[0] in "-.":
        why = f"names must not contain any of {' '.join(_FORBIDDEN)} or start with - or ."
    else:
        return name
    raise SpecError(f"a queue cannot be named {shown(name)}: {why}")


def checked_annotator(name: str) -> str:
    """Return an annotator's name without surrounding blanks. Raises `SpecError` if it is invalid."""
    name = unicodedata.normalize("NFC", name).strip()
    if not name or not name.isprintable() or len(name) > LONGEST_ANNOTATOR:
        raise SpecError(f"an annotator's name must have 1 to {LONGEST_ANNOTATOR} visible characters")
    return name


def checked_answer(answer: Answer, sample: Sample) -> Answer:
    """Return the answer with sorted spans. Raises `InputError` if it is inconsistent or out of range."""
    if answer.label not in ANSWERS:
        raise InputError(f"a label must be one of {', '.join(ANSWERS)}; got {shown(answer.label)}")
    length = len(sample.output or "")
    for span in answer.spans:
        if not 0 <= span.start < span.end <= length:
            raise InputError(
                f"a span is [{span.start}, {span.end}), outside the output's {length} characters"
            )
        if not span.kind.strip() or len(span.kind) > LONGEST_NAME:
            raise InputError(f"the kind of a span must have 1 to {LONGEST_NAME} characters")
    if answer.spans and answer.label == FAITHFUL:
        raise InputError(
            "a faithful output has no wrong words: delete the marked spans or choose hallucinated"
        )
    if len(answer.spans) > MOST_SPANS:
        raise InputError(f"at most {MOST_SPANS} spans; got {len(answer.spans)}")
    if len(answer.note) > LONGEST_NOTE:
        raise InputError(f"a note has at most {LONGEST_NOTE:,} characters; got {len(answer.note):,}")
    quote, sources = answer.quote, sample.sources
    if quote is not None and not (
        0 <= quote.source < len(sources) and 0 <= quote.start < quote.end <= len(sources[quote.source])
    ):
        raise InputError("the quote is not a place in the context")
    ordered = tuple(sorted(set(answer.spans), key=lambda each: (each.start, each.end, each.kind)))
    return Answer(
        label=answer.label, spans=ordered, quote=quote, note=answer.note.strip(), seconds=answer.seconds
    )


# --- the shelf --------------------------------------------------------------------------------------

_later = labels.alias("later")
_LAST_WORD = ~exists(
    select(_later.c.id).where(
        _later.c.queue == labels.c.queue,
        _later.c.position == labels.c.position,
        _later.c.annotator == labels.c.annotator,
        _later.c.revision > labels.c.revision,
    )
)


@dataclass(frozen=True, slots=True)
class Labels(StorePart):
    """Queues, items, labels and decisions of a store. Methods raise `SpecError` for unknown ones."""

    _writing_for_good: Transaction

    # --- queues ---------------------------------------------------------------------------------

    def create(self, queue: Queue, items: Iterable[NewItem]) -> Queue:
        """Store a queue with all its items, in this order. Raises `SpecError` if the name is taken."""
        name = checked_queue_name(queue.name)
        values = {
            "name": name,
            "created_at": queue.created_at,
            "source": queue.source,
            "run_id": queue.run_id,
            "digest": queue.digest,
            "policy": queue.policy,
            "population": queue.population,
            "covered": queue.covered,
            "settings": dumps(dict(queue.settings)),
        }
        with self._writing() as connection:
            stop_writers(connection, label_queues)
            if connection.scalar(select(exists().where(label_queues.c.name == name))):
                raise SpecError(f"queue {shown(name)} already exists; choose another name")
            connection.execute(insert(label_queues), [values])
            n, left = 0, iter(items)
            while chunk := list(islice(left, ROWS_AT_ONCE)):
                rows, bodies = [], {}
                for position, each in enumerate(chunk, n):
                    body = sample_body(each.sample)
                    key = sample_key(body)
                    bodies[key] = body
                    rows.append(
                        {
                            "queue": name,
                            "position": position,
                            "sample_id": each.sample.id,
                            "sample_key": key,
                            "policy": each.policy,
                            "priority": each.priority,
                            "inclusion": each.inclusion,
                            "reason": each.reason,
                            "wanted": each.wanted,
                        }
                    )
                keep_samples(connection, bodies)
                connection.execute(insert(label_items), rows)
                n += len(rows)
            if not n:
                raise InputError(f"there is nothing to label in {shown(queue.source)}")
            return require_queue(connection, name)

    def queues(self) -> list[Queue]:
        """Return all queues, newest first."""
        with self._reading() as connection:
            asked = _queues().order_by(label_queues.c.created_at.desc(), label_queues.c.name)
            return [_queue_from(row) for row in connection.execute(asked)]

    def find(self, name: str) -> Queue:
        """Return the queue of this name. Raises `SpecError` that suggests similar names."""
        with self._reading() as connection:
            return require_queue(connection, name)

    def delete(self, name: str) -> Queue:
        """Delete a queue with its labels and decisions, and return it."""
        with self._writing() as connection:
            found = require_queue(connection, name)
            stop_writers(connection, samples)
            mine = select(label_items.c.sample_key).where(label_items.c.queue == found.name)
            kept = (
                exists().where(run_samples.c.sample_key == samples.c.key),
                exists().where(dataset_samples.c.sample_key == samples.c.key),
                exists().where(label_items.c.sample_key == samples.c.key, label_items.c.queue != found.name),
            )
            going = (samples.c.key.in_(mine), *(~each for each in kept))
            connection.execute(delete(samples).where(*going))
            connection.execute(delete(label_queues).where(label_queues.c.name == found.name))
            return found

    # --- items ----------------------------------------------------------------------------------

    def items(self, queue: str) -> list[Item]:
        """Return all items of a queue in order."""
        with self._reading() as connection:
            require_queue(connection, queue)
            asked = _items().where(label_items.c.queue == _name(queue)).order_by(label_items.c.position)
            return [_item(row) for row in connection.execute(asked)]

    def item(self, queue: str, position: int) -> tuple[Item, Sample]:
        """Return one item and its sample."""
        with self._reading() as connection:
            return require_item(connection, queue, position)

    def samples(self, queue: str) -> list[Sample]:
        """Return the samples of all items, in item order."""
        with self._reading() as connection:
            require_queue(connection, queue)
            asked = select(label_items.c.sample_id, samples.c.body).join_from(label_items, samples)
            asked = asked.where(label_items.c.queue == _name(queue)).order_by(label_items.c.position)
            return [sample_from(sample_id, body) for sample_id, body in connection.execute(asked)]

    def claim(
        self, queue: str, annotator: str, *, now: datetime, until: datetime, but: Sequence[int] = ()
    ) -> int | None:
        """Lease the next item for this annotator and return its position, None if none is available now.

        An item is available if the annotator has not answered it, and others hold fewer labels and leases
        of it than it wants. Positions in `but` are passed over. An item that the annotator skipped is not
        offered to them again, but still to others.
        """
        name, at = _name(queue), label_items.c.position
        mine = exists().where(*_beside(labels), labels.c.annotator == annotator, _LAST_WORD, _SAID)
        others = select(func.count()).where(
            *_beside(labels), labels.c.annotator != annotator, _LAST_WORD, _SAID, labels.c.label != SKIP
        )
        answered = exists().where(
            labels.c.queue == label_leases.c.queue,
            labels.c.position == label_leases.c.position,
            labels.c.annotator == label_leases.c.annotator,
            _LAST_WORD,
            _SAID,
        )
        held = select(func.count()).where(
            *_beside(label_leases),
            label_leases.c.annotator != annotator,
            label_leases.c.expires > now,
            ~answered,
        )
        free = others.scalar_subquery() + held.scalar_subquery() < label_items.c.wanted
        asked = select(at).where(label_items.c.queue == name, ~mine, free, at.not_in(list(but)))
        with self._writing() as connection:
            require_queue(connection, queue)
            # Two annotators who ask at once must not get the same item.
            stop_writers(connection, label_leases)
            position = connection.scalar(asked.order_by(at).limit(1))
            if position is not None:
                _lease(connection, name, position, annotator, until)
            return position

    def counts(self, queue: str, annotator: str) -> ItemCounts:
        """Count the items of a queue, and those of this annotator."""
        name, at = _name(queue), label_items.c.position
        said = _said_by_item(name, annotator)
        gold = select(label_gold.c.position).where(label_gold.c.queue == name).distinct().subquery()
        every = label_items.outerjoin(said, said.c.position == at).outerjoin(gold, gold.c.position == at)
        n_said = (
            func.coalesce(said.c.others, 0) + func.coalesce(said.c.mine, 0) - func.coalesce(said.c.skip, 0)
        )
        open_now = gold.c.position.is_(None) & (n_said < label_items.c.wanted)
        labelled = gold.c.position.is_not(None) | (func.coalesce(said.c.decided, 0) > 0)
        asked = select(
            func.count().label("n_items"),
            func.coalesce(func.sum(said.c.mine), 0).label("mine"),
            _sum_if(open_now).label("waiting"),
            _sum_if(labelled).label("labelled"),
        )
        with self._reading() as connection:
            require_queue(connection, queue)
            row = connection.execute(asked.select_from(every).where(label_items.c.queue == name)).one()
        return ItemCounts(**{name: int(value or 0) for name, value in row._mapping.items()})

    def lease(
        self, queue: str, position: int, annotator: str, until: datetime, *, shown: bool = False
    ) -> None:
        """Lease this item to the annotator until `until`; `shown`: they now see verdicts or comments."""
        with self._writing() as connection:
            require_item(connection, queue, position)
            stop_writers(connection, label_leases)
            _lease(connection, _name(queue), position, annotator, until, shown=shown)

    # --- labels ---------------------------------------------------------------------------------

    def add(
        self,
        queue: str,
        position: int,
        annotator: str,
        answer: Answer,
        *,
        revision: int,
        now: datetime,
        by: str | None = None,
    ) -> Label | None:
        """Append an answer. `revision` is the annotator's newest that the client knows, 0 for none.

        Returns None on a conflict: a newer revision with another answer exists, for example from another
        window. Sending the same answer twice stores it once.
        """
        annotator, name = checked_annotator(annotator), _name(queue)
        with self._writing_for_good() as connection:
            _, sample = require_item(connection, queue, position)
            answer = checked_answer(answer, sample)
            stop_writers(connection, labels)
            newest = _newest(connection, name, position, annotator)
            if newest is not None and newest.revision != revision:
                same = (newest.label, newest.spans, newest.quote, newest.note)
                given = (answer.label, answer.spans, answer.quote, answer.note)
                return newest if newest.revision == revision + 1 and same == given else None
            seen = _was_shown(connection, name, position, annotator)
            _append(connection, name, position, annotator, answer, revision=revision + 1, seen=seen, now=now)
            details = f"{answer.label}, revision {revision + 1}{_under(annotator, by)}"
            log_change(connection, by, "label", item_place(name, position), now, details)
            return _newest(connection, name, position, annotator)

    def add_all(
        self,
        queue: str,
        answers: Mapping[tuple[int, str], Answer],
        now: datetime,
        *,
        unmarked: Container[tuple[int, str]] = (),
    ) -> int:
        """Append answers by (position, annotator), all or none. Returns the number of new ones.

        Answers equal to the current one are not stored. The answers in `unmarked` carry no spans: existing
        spans of the same label are kept.
        """
        name, n = _name(queue), 0
        with self._writing_for_good() as connection:
            stop_writers(connection, labels)
            for (position, annotator), given in answers.items():
                _, sample = require_item(connection, queue, position)
                answer, who = checked_answer(given, sample), checked_annotator(annotator)
                newest = _newest(connection, name, position, who)
                if newest is not None and newest.label == answer.label:
                    if (position, annotator) in unmarked:
                        answer = replace(answer, spans=newest.spans)
                    if (newest.spans, newest.note) == (answer.spans, answer.note):
                        continue
                revision = 1 if newest is None else newest.revision + 1
                seen = _was_shown(connection, name, position, who)
                _append(connection, name, position, who, answer, revision=revision, seen=seen, now=now)
                n += 1
        return n

    def undo(self, queue: str, annotator: str, now: datetime, *, by: str | None = None) -> int | None:
        """Take back the annotator's last answer. Returns its item's position, None if there is none."""
        name = _name(queue)
        with self._writing_for_good() as connection:
            require_queue(connection, queue)
            stop_writers(connection, labels)
            mine = (labels.c.queue == name, labels.c.annotator == annotator, _LAST_WORD, _SAID)
            last = select(labels.c.position, labels.c.revision).where(*mine)
            row = connection.execute(last.order_by(labels.c.id.desc()).limit(1)).one_or_none()
            if row is None:
                return None
            seen = _was_shown(connection, name, row.position, annotator)
            answer = Answer(label=UNDONE)
            _append(
                connection,
                name,
                row.position,
                annotator,
                answer,
                revision=row.revision + 1,
                seen=seen,
                now=now,
            )
            details = f"revision {row.revision + 1}{_under(annotator, by)}"
            log_change(connection, by, "take back label", item_place(name, row.position), now, details)
            return int(row.position)

    def newest(self, queue: str, position: int, annotator: str) -> Label | None:
        """Return the newest revision of an annotator's answer, even if it was taken back."""
        with self._reading() as connection:
            return _newest(connection, _name(queue), position, annotator)

    def labels(self, queue: str, *, history: bool = False) -> list[Label]:
        """Return each annotator's current labels, by item and time; with `history` all revisions."""
        with self._reading() as connection:
            require_queue(connection, queue)
            asked = select(labels).where(labels.c.queue == _name(queue))
            asked = asked if history else asked.where(_LAST_WORD, _SAID)
            rows = connection.execute(asked.order_by(labels.c.position, labels.c.id))
            return [_label(row) for row in rows]

    # --- decisions ------------------------------------------------------------------------------

    def decide(
        self,
        queue: str,
        position: int,
        answer: Answer,
        *,
        reason: str,
        adjudicator: str,
        revision: int,
        now: datetime,
        by: str | None = None,
    ) -> Gold | None:
        """Append a decision (faithful or hallucinated) with its reason. `revision` and None: see `add`."""
        adjudicator, name, reason = checked_annotator(adjudicator), _name(queue), reason.strip()
        if answer.label not in DECIDED:
            raise InputError(f"a decision must be {' or '.join(DECIDED)}; got {shown(answer.label)}")
        if not reason or len(reason) > LONGEST_NOTE:
            raise InputError(f"a decision needs a reason of 1 to {LONGEST_NOTE:,} characters")
        with self._writing_for_good() as connection:
            _, sample = require_item(connection, queue, position)
            answer = checked_answer(answer, sample)
            stop_writers(connection, label_gold)
            here = (label_gold.c.queue == name, label_gold.c.position == position)
            newest = connection.scalar(select(func.max(label_gold.c.revision)).where(*here)) or 0
            if newest != revision:
                return None
            said = select(labels.c.id).where(labels.c.queue == name, labels.c.position == position)
            ids = connection.scalars(said.where(_LAST_WORD, _SAID).order_by(labels.c.id)).all()
            row = {
                "queue": name,
                "position": position,
                "revision": newest + 1,
                "label": answer.label,
                "spans": _spans_body(answer.spans),
                "reason": reason,
                "adjudicator": adjudicator,
                "labels": dumps(list(ids)),
                "at": now,
            }
            connection.execute(insert(label_gold), [row])
            details = f"{answer.label}, revision {newest + 1}{_under(adjudicator, by)}"
            log_change(connection, by, "decide", item_place(name, position), now, details)
            asked = select(label_gold).where(*here, label_gold.c.revision == newest + 1)
            return _gold(connection.execute(asked).one())

    def gold(self, queue: str, *, history: bool = False) -> list[Gold]:
        """Return the current decisions by item; with `history` all revisions."""
        with self._reading() as connection:
            require_queue(connection, queue)
            asked = select(label_gold).where(label_gold.c.queue == _name(queue))
            asked = asked.order_by(label_gold.c.position, label_gold.c.revision)
            found = [_gold(row) for row in connection.execute(asked)]
        return found if history else list({each.position: each for each in found}.values())


# --- rows -------------------------------------------------------------------------------------------

_SAID: ColumnElement[bool] = labels.c.label != UNDONE


def _name(queue: str) -> str:
    return unicodedata.normalize("NFC", queue)


def item_place(queue: str, position: int) -> str:
    """Name an item in the audit log."""
    return f"{queue}, item {position + 1}"


def _under(annotator: str, by: str | None) -> str:
    """Say under which name somebody labelled, if it is not their own."""
    return "" if annotator == by else f", as {annotator}"


def _beside(table: Any) -> tuple[ColumnElement[bool], ...]:
    """Conditions that join a row of `table` to the item of the outer query."""
    return table.c.queue == label_items.c.queue, table.c.position == label_items.c.position


def _sum_if(condition: ColumnElement[bool]) -> ColumnElement[Any]:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


def _said_by_item(queue: str, annotator: str) -> Subquery:
    """Count the current labels of each item that has some.

    `mine` is 1 if one is the annotator's, and `skip` if that is a skip; `others` are those of others that
    are no skip, `decided` all that are faithful or hallucinated.
    """
    own, skip = labels.c.annotator == annotator, labels.c.label == SKIP
    counted = select(
        labels.c.position,
        _sum_if(own).label("mine"),
        _sum_if(own & skip).label("skip"),
        _sum_if(~own & ~skip).label("others"),
        _sum_if(labels.c.label.in_(DECIDED)).label("decided"),
    )
    return counted.where(labels.c.queue == queue, _LAST_WORD, _SAID).group_by(labels.c.position).subquery()


def _queues() -> Select[Any]:
    counted = select(func.count()).where(label_items.c.queue == label_queues.c.name).scalar_subquery()
    return select(label_queues, counted.label("n_items"))


def require_queue(connection: Connection, name: str) -> Queue:
    """Return the queue of this name. Raises `SpecError` that suggests similar names."""
    row = connection.execute(_queues().where(label_queues.c.name == _name(name))).one_or_none()
    if row is None:
        known = list(connection.scalars(select(label_queues.c.name).order_by(label_queues.c.name)))
        raise SpecError(f"unknown label queue {shown(name)}; {near(name, known)}; see 'magistrate labels'")
    return _queue_from(row)


def _queue_from(row: Row[Any]) -> Queue:
    return of_row(Queue, row, settings=loads(row.settings))


def _items() -> Select[Any]:
    return select(*(label_items.c[name] for name in Item.__dataclass_fields__))


def _item(row: Row[Any]) -> Item:
    return of_row(Item, row)


def require_item(connection: Connection, queue: str, position: int) -> tuple[Item, Sample]:
    """Return an item and its sample. Raises `SpecError` if there is none at this position."""
    here = and_(label_items.c.queue == _name(queue), label_items.c.position == position)
    asked = _items().add_columns(samples.c.body).join_from(label_items, samples).where(here)
    row = connection.execute(asked).one_or_none()
    if row is None:
        found = require_queue(connection, queue)
        raise SpecError(f"queue {shown(found.name)} has items 1 to {found.n_items}, but no {position + 1}")
    return _item(row), sample_from(row.sample_id, row.body)


def _lease(
    connection: Connection,
    queue: str,
    position: int,
    annotator: str,
    until: datetime,
    *,
    shown: bool = False,
) -> None:
    row = {"queue": queue, "position": position, "annotator": annotator, "expires": until}
    made = insert_or(connection, label_leases).values(row | {"shown": int(shown)})
    changes = {"expires": made.excluded.expires} | ({"shown": 1} if shown else {})
    keys = ["queue", "position", "annotator"]
    connection.execute(made.on_conflict_do_update(index_elements=keys, set_=changes))


def _was_shown(connection: Connection, queue: str, position: int, annotator: str) -> bool:
    asked = select(label_leases.c.shown).where(
        label_leases.c.queue == queue,
        label_leases.c.position == position,
        label_leases.c.annotator == annotator,
    )
    return bool(connection.scalar(asked))


def _newest(connection: Connection, queue: str, position: int, annotator: str) -> Label | None:
    mine = (labels.c.queue == queue, labels.c.position == position, labels.c.annotator == annotator)
    asked = select(labels).where(*mine).order_by(labels.c.revision.desc()).limit(1)
    row = connection.execute(asked).one_or_none()
    return None if row is None else _label(row)


def _append(
    connection: Connection,
    queue: str,
    position: int,
    annotator: str,
    answer: Answer,
    *,
    revision: int,
    seen: bool,
    now: datetime,
) -> None:
    quote = answer.quote
    row = {
        "queue": queue,
        "position": position,
        "annotator": annotator,
        "revision": revision,
        "label": answer.label,
        "spans": _spans_body(answer.spans),
        "quote": None if quote is None else dumps([quote.source, quote.start, quote.end]),
        "note": answer.note,
        "seconds": answer.seconds,
        "shown": int(seen),
        "at": now,
    }
    connection.execute(insert(labels), [row])


def _label(row: Row[Any]) -> Label:
    quote = None if row.quote is None else Quote(*loads(row.quote))
    return of_row(Label, row, spans=_spans(row.spans), quote=quote, shown=bool(row.shown))


def _gold(row: Row[Any]) -> Gold:
    return of_row(Gold, row, spans=_spans(row.spans), labels=tuple(loads(row.labels)))


def _spans_body(spans: Sequence[Span]) -> str:
    return dumps([[span.start, span.end, span.kind] for span in spans])


def _spans(body: str) -> tuple[Span, ...]:
    return tuple(Span(*each) for each in loads(body))
