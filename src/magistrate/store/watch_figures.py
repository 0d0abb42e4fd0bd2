"""What is shown of watching: rules, counts of decisions over time, lists of answers, and one trace.

Lists go on after the last row that was shown (keyset paging). What lies within a document (texts, labels) is
looked for row by row, so one question looks at `MOST_LOOKED` rows at most and says how far it came.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from json import dumps as as_json
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Text,
    and_,
    func,
    literal_column,
    or_,
    select,
    type_coerce,
)

from magistrate.store.codec import loads, sample_from
from magistrate.store.schema import decisions, outcomes, rules, run_samples, spans, targets, traces
from magistrate.store.traces import DUE, SUPERSEDED, Decision, decision_from
from magistrate.types import Sample

Bucket = Literal["hour", "day"]
PREFIX = {"hour": len("2026-11-21T12"), "day": len("2026-11-21")}
"""How much of a stored moment, which is text in UTC, names the hour or the day."""
KINDS = ("answer", "call")
LOOKED_AT_ONCE = 200
MOST_LOOKED = 2_000
JUDGES_LOOKED = 500
EXCERPT = 400  # characters of a text in a list


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRule:
    """The newest version of a rule; `since` is from when on it decides, `run_ids` are of all its versions."""

    name: str
    version: int
    since: datetime
    spec: Mapping[str, Any]
    run_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """What waits to be judged by a rule: how many answers, how many of them are being judged now, and when
    the oldest was decided, None where none waits."""

    n: int
    leased: int
    oldest: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCounts:
    """How many traces are stored, how many have spans that nobody has read, and since when the oldest."""

    n: int
    unread: int
    oldest: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFilter:
    """Which answers are wanted: those that meet every condition given.

    `states` are those of decisions; without any what is superseded is left out. `label` is what `judge` said,
    without one the last that spoke. `words` must be in the input or the output, upper case or lower.
    """

    rule: str | None = None
    states: tuple[str, ...] = ()
    label: str | None = None
    judge: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    words: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a row of the list stands; the next ones are older."""

    seen_at: datetime
    target: str
    rule: str
    version: int
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLine:
    """What a rule decided of an answer, as a list shows it; texts are cut after `EXCERPT` characters.

    `asked` is what each judge said; `input` and `output` are None where there are none.
    """

    trace_id: str
    target: str
    name: str
    seen_at: datetime
    rule: str
    version: int
    revision: int
    state: str
    reason: str
    asked: Sequence[Mapping[str, Any]]
    input: str | None
    output: str | None

    @property
    def place(self) -> Place:
        """Where it stands in the list."""
        return Place(
            seen_at=self.seen_at,
            target=self.target,
            rule=self.rule,
            version=self.version,
            revision=self.revision,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerList:
    """A part of the list. `older` is where it goes on, None at the end; `looked` rows were looked at."""

    lines: tuple[AnswerLine, ...]
    older: Place | None
    looked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadLine:
    """A trace with spans that nobody has read yet: since when, and how many spans it has in all."""

    trace_id: str
    since: datetime
    last_at: datetime
    n_spans: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceAnswer:
    """What a trace offers to be judged, as it is now; `gone` where later spans show another in its place.

    `sample` is None where something is `missing`, of which `why` tells. `taken` says of each part of the
    sample where it was taken from.
    """

    id: str
    span_id: str
    kind: str
    name: str
    revision: int
    gone: bool
    seen_at: datetime
    missing: str | None
    why: str
    sample: Sample | None
    taken: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomePlace:
    """Where an outcome is kept."""

    run_id: str
    sample_id: str
    judge: str


class WatchLists:
    """What is watched, at one moment; a part of `Snapshot`."""

    _connection: Connection

    # --- rules and counts -----------------------------------------------------------------------

    def watched_rules(self) -> list[WatchedRule]:
        """Every rule by name, in its newest version."""
        found: dict[str, WatchedRule] = {}
        run_ids: dict[str, list[str]] = {}
        for row in self._connection.execute(select(rules).order_by(rules.c.name, rules.c.version)):
            mine = run_ids.setdefault(row.name, [])
            if row.run_id is not None:
                mine.append(row.run_id)
            found[row.name] = WatchedRule(
                name=row.name,
                version=row.version,
                since=row.since,
                spec=loads(row.spec),
                run_ids=tuple(mine),
            )
        return list(found.values())

    def state_counts(
        self, since: datetime, until: datetime, bucket: Bucket
    ) -> dict[str, dict[str, dict[str, int]]]:
        """How many answers that were seen in a time are in which state, by rule and hour or day of UTC.

        A bucket is named by the beginning of its moments as text, such as `2026-11-21T12`.
        """
        end: ColumnElement[int] = literal_column(str(PREFIX[bucket]))
        at = func.substr(type_coerce(targets.c.seen_at, Text), literal_column("1"), end)
        asked = select(decisions.c.rule, at, decisions.c.state, func.count())
        asked = asked.join(targets, decisions.c.target == targets.c.id).where(*_seen(since, until))
        found: dict[str, dict[str, dict[str, int]]] = {}
        for rule, name, state, n in self._connection.execute(
            asked.group_by(decisions.c.rule, at, decisions.c.state)
        ):
            found.setdefault(rule, {}).setdefault(name, {})[state] = n
        return found

    def queue(self, rule: str, now: datetime) -> Queue:
        """What waits to be judged by a rule, whenever it was seen."""
        due = (decisions.c.rule == rule, decisions.c.state.in_(DUE))
        counted = select(func.count(), func.min(decisions.c.made_at)).where(*due)
        n, oldest = self._connection.execute(counted).one()
        leased = self._connection.scalar(select(func.count()).where(*due, decisions.c.lease_until > now))
        return Queue(n=n, leased=leased or 0, oldest=oldest)

    def trace_counts(self) -> TraceCounts:
        """How many traces there are, and how many were not read since their last change."""
        unread = select(func.count(), func.min(traces.c.since)).where(_UNREAD)
        n, oldest = self._connection.execute(unread).one()
        total = self._connection.scalar(select(func.count()).select_from(traces))
        return TraceCounts(n=total or 0, unread=n, oldest=oldest)

    def judges_asked(self, rule: str, since: datetime, until: datetime) -> list[str]:
        """The judges that spoke in the latest decisions of a time, the first asked first."""
        asked = select(decisions.c.asked).join(targets, decisions.c.target == targets.c.id)
        asked = asked.where(decisions.c.rule == rule, decisions.c.asked != "[]", *_seen(since, until))
        asked = asked.order_by(targets.c.seen_at.desc()).limit(JUDGES_LOOKED)
        said = sorted((loads(body) for body in self._connection.scalars(asked)), key=len, reverse=True)
        return list(dict.fromkeys(each["judge"] for one in said for each in one))

    # --- the list of answers --------------------------------------------------------------------

    def answers_where(self, wanted: AnswerFilter, *, beyond: Place | None = None, limit: int) -> AnswerList:
        """At most `limit` answers, newest first, that come after a place in the list."""
        found: list[AnswerLine] = []
        looked, place = 0, beyond
        while looked < MOST_LOOKED:
            rows = self._rows(wanted, place, LOOKED_AT_ONCE)
            for row in rows:
                looked += 1
                line = _line(row, wanted)
                place = _place(row)
                if line is not None:
                    found.append(line)
                    if len(found) == limit:
                        more = bool(self._rows(wanted, place, 1))
                        return AnswerList(lines=tuple(found), older=place if more else None, looked=looked)
            if len(rows) < LOOKED_AT_ONCE:
                return AnswerList(lines=tuple(found), older=None, looked=looked)
        return AnswerList(lines=tuple(found), older=place, looked=looked)

    def _rows(self, wanted: AnswerFilter, beyond: Place | None, most: int) -> Sequence[Row[Any]]:
        asked = select(*_LISTED).join(targets, decisions.c.target == targets.c.id)
        asked = asked.where(*_seen(wanted.since, wanted.until), *_meets(wanted))
        if beyond is not None:
            asked = asked.where(_beyond(beyond))
        order = [column.desc() for column in _ORDER]
        return self._connection.execute(asked.order_by(*order).limit(most)).all()

    def count_answers(self, wanted: AnswerFilter) -> int:
        """How many answers meet the conditions but `label` and `words`, which lie within documents."""
        asked = select(func.count()).join_from(decisions, targets, decisions.c.target == targets.c.id)
        asked = asked.where(*_seen(wanted.since, wanted.until), *_decided(wanted))
        return self._connection.scalar(asked) or 0

    def unread_traces(self, limit: int) -> list[UnreadLine]:
        """Traces with spans that nobody has read, those that wait the longest first."""
        n = select(func.count()).where(spans.c.trace_id == traces.c.id).scalar_subquery()
        asked = select(traces.c.id, traces.c.since, traces.c.last_at, n).where(_UNREAD)
        rows = self._connection.execute(asked.order_by(traces.c.since, traces.c.id).limit(limit))
        return [
            UnreadLine(trace_id=trace, since=since, last_at=last, n_spans=count)
            for trace, since, last, count in rows
        ]

    # --- one trace ------------------------------------------------------------------------------

    def trace_answers(self, trace_id: str) -> list[TraceAnswer]:
        """What a trace offers to be judged, those that are gone last."""
        asked = select(targets).where(targets.c.trace_id == trace_id)
        asked = asked.order_by(targets.c.gone, targets.c.seen_at, targets.c.id)
        return [_answer(row) for row in self._connection.execute(asked)]

    def trace_decisions(self, trace_id: str) -> list[Decision]:
        """What rules decided of the answers of a trace, by rule, what is superseded last."""
        asked = select(decisions).join(targets, decisions.c.target == targets.c.id)
        asked = asked.where(targets.c.trace_id == trace_id).order_by(
            decisions.c.rule, decisions.c.version.desc(), decisions.c.revision.desc(), decisions.c.target
        )
        found = [decision_from(row) for row in self._connection.execute(asked)]
        return sorted(found, key=lambda each: each.state == SUPERSEDED)

    def is_trace(self, trace_id: str) -> bool:
        """Whether anything came of a trace of this id."""
        return self._connection.scalar(select(traces.c.id).where(traces.c.id == trace_id)) is not None

    def outcome_places(self, ids: Iterable[int]) -> dict[int, OutcomePlace]:
        """Where outcomes are kept, by their ids; those that are gone are left out."""
        asked = select(outcomes.c.id, outcomes.c.run_id, run_samples.c.sample_id, outcomes.c.judge)
        asked = asked.select_from(outcomes).join(run_samples).where(outcomes.c.id.in_(list(ids)))
        return {
            number: OutcomePlace(run_id=run_id, sample_id=sample_id, judge=judge)
            for number, run_id, sample_id, judge in self._connection.execute(asked)
        }


# --- conditions ---------------------------------------------------------------------------------------

_UNREAD = traces.c.changed > traces.c.read
_ORDER = (
    targets.c.seen_at,
    decisions.c.target,
    decisions.c.rule,
    decisions.c.version,
    decisions.c.revision,
)
_LISTED = (
    *_ORDER,
    *(decisions.c[name] for name in ("state", "reason", "asked")),
    *(targets.c[name] for name in ("trace_id", "name", "body")),
)


def _seen(since: datetime | None, until: datetime | None) -> Iterator[ColumnElement[bool]]:
    """Answers seen from one moment until before another; the index of moments begins with the kind."""
    yield targets.c.kind.in_(KINDS)
    if since is not None:
        yield targets.c.seen_at >= since
    if until is not None:
        yield targets.c.seen_at < until


def _decided(wanted: AnswerFilter) -> Iterator[ColumnElement[bool]]:
    if wanted.rule is not None:
        yield decisions.c.rule == wanted.rule
    if wanted.states:
        yield decisions.c.state.in_(wanted.states)
    else:
        yield decisions.c.state != SUPERSEDED


def _meets(wanted: AnswerFilter) -> Iterator[ColumnElement[bool]]:
    yield from _decided(wanted)
    if wanted.label is not None:  # more than what is wanted, which `_line` sorts out
        yield decisions.c.asked.contains(f'"label":{as_json(wanted.label)}', autoescape=True)


def _beyond(place: Place) -> ColumnElement[bool]:
    """What comes after a place, all in falling order; the plain bound is what an index can begin at."""
    values = [getattr(place, column.key) for column in _ORDER]
    steps = [
        and_(
            *(column == value for column, value in zip(_ORDER[:at], values, strict=False)), last < values[at]
        )
        for at, last in enumerate(_ORDER)
    ]
    return and_(targets.c.seen_at <= place.seen_at, or_(*steps))


def _place(row: Row[Any]) -> Place:
    return Place(**{column.key: getattr(row, column.key) for column in _ORDER})


def _line(row: Row[Any], wanted: AnswerFilter) -> AnswerLine | None:
    """The row as a line; None where what lies within its documents is not as wanted."""
    asked = loads(row.asked)
    if wanted.label is not None and label_of(asked, wanted.judge) != wanted.label:
        return None
    held = loads(row.body)["sample"]
    sample = None if held is None else sample_from(*held)
    texts = (sample.input, sample.output) if sample is not None else (None, None)
    if wanted.words is not None:
        words = wanted.words.casefold()
        if not any(words in text.casefold() for text in texts if text is not None):
            return None
    given, output = (None if text is None else text[:EXCERPT] for text in texts)
    return AnswerLine(
        **{name: getattr(row, name) for name in ("trace_id", "target", "name", "seen_at", "rule")},
        **{name: getattr(row, name) for name in ("version", "revision", "state", "reason")},
        asked=asked,
        input=given,
        output=output,
    )


def label_of(asked: Sequence[Mapping[str, Any]], judge: str | None = None) -> str | None:
    """The label that a judge gave, or the last that spoke; None where it gave none."""
    mine = [each for each in asked if judge is None or each["judge"] == judge]
    return mine[-1].get("label") if mine else None


def _answer(row: Row[Any]) -> TraceAnswer:
    body = loads(row.body)
    return TraceAnswer(
        **{name: getattr(row, name) for name in ("id", "span_id", "kind", "name", "revision", "seen_at")},
        gone=bool(row.gone),
        missing=row.missing,
        why=body["why"],
        sample=None if body["sample"] is None else sample_from(*body["sample"]),
        taken=body["taken"],
    )
