"""Data for the pages on watching: rules, counts of decisions over time, lists of answers, and single
traces.

Lists use keyset paging. Values inside documents (texts, labels) are matched row by row, so one query
examines at most `MOST_LOOKED` rows and returns how far it came.
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
from magistrate.store.decisions import DUE, SUPERSEDED, Decision, decision_from
from magistrate.store.schema import decisions, of_row, outcomes, rules, run_samples, spans, targets, traces
from magistrate.types import Sample

Bucket = Literal["hour", "day"]
PREFIX = {"hour": len("2026-11-21T12"), "day": len("2026-11-21")}
"""Length of the part of a stored time (text in UTC) that gives the hour or the day."""
KINDS = ("answer", "call")
LOOKED_AT_ONCE = 200
MOST_LOOKED = 2_000
JUDGES_LOOKED = 500
EXCERPT = 400  # characters of a text in a list


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRule:
    """The newest version of a rule. It decides from `since` on; `run_ids` are those of all its versions."""

    name: str
    version: int
    since: datetime
    spec: Mapping[str, Any]
    run_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The answers waiting to be judged by a rule: their number, the number being judged now, and when the
    oldest was decided, or None.
    """

    n: int
    leased: int
    oldest: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCounts:
    """The number of stored traces, the number with unread spans, and since when the oldest waits."""

    n: int
    unread: int
    oldest: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFilter:
    """Conditions that answers must all meet.

    `states` are states of decisions; without any, superseded ones are excluded. `label` is that of `judge`,
    or else of the last judge. `words` must occur in the input or the output; case is ignored.
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
    """The position of a row in the list; the following rows are older."""

    seen_at: datetime
    target: str
    rule: str
    version: int
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLine:
    """A rule's decision on an answer, as shown in a list. Texts are cut after `EXCERPT` characters.

    `asked` has the result of each judge. `input` and `output` are None if they are missing.
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
        """The position of the row in the list."""
        return Place(
            seen_at=self.seen_at,
            target=self.target,
            rule=self.rule,
            version=self.version,
            revision=self.revision,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerList:
    """A part of the list. `older` is where it continues, None at the end; `looked` rows were examined."""

    lines: tuple[AnswerLine, ...]
    older: Place | None
    looked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadLine:
    """A trace with unread spans: since when, and its total number of spans."""

    trace_id: str
    since: datetime
    last_at: datetime
    n_spans: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceAnswer:
    """A target of a trace, as it is now. `gone` if later spans show another in its place.

    `sample` is None if something is `missing`; `why` explains it. `taken` has the origin of each part of
    the sample.
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
    """Where an outcome is stored."""

    run_id: str
    sample_id: str
    judge: str


class WatchLists:
    """Data on what is watched, at one moment; a part of `Snapshot`."""

    _connection: Connection

    # --- rules and counts -----------------------------------------------------------------------

    def watched_rules(self) -> list[WatchedRule]:
        """Return every rule by name, in its newest version."""
        found: dict[str, WatchedRule] = {}
        run_ids: dict[str, list[str]] = {}
        for row in self._connection.execute(select(rules).order_by(rules.c.name, rules.c.version)):
            mine = run_ids.setdefault(row.name, [])
            if row.run_id is not None:
                mine.append(row.run_id)
            found[row.name] = of_row(WatchedRule, row, spec=loads(row.spec), run_ids=tuple(mine))
        return list(found.values())

    def state_counts(
        self, since: datetime, until: datetime, bucket: Bucket
    ) -> dict[str, dict[str, dict[str, int]]]:
        """Return the number of answers seen in a period by rule, by hour or day (UTC), and by state.

        A bucket is named by the beginning of its times as text, such as `2026-11-21T12`.
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
        """Return the answers waiting to be judged by a rule, of any time."""
        due = (decisions.c.rule == rule, decisions.c.state.in_(DUE))
        counted = select(func.count(), func.min(decisions.c.made_at)).where(*due)
        n, oldest = self._connection.execute(counted).one()
        leased = self._connection.scalar(select(func.count()).where(*due, decisions.c.lease_until > now))
        return Queue(n=n, leased=leased or 0, oldest=oldest)

    def trace_counts(self) -> TraceCounts:
        """Return the number of traces, and the number not read since their last change."""
        unread = select(func.count(), func.min(traces.c.since)).where(_UNREAD)
        n, oldest = self._connection.execute(unread).one()
        total = self._connection.scalar(select(func.count()).select_from(traces))
        return TraceCounts(n=total or 0, unread=n, oldest=oldest)

    def judges_asked(self, rule: str, since: datetime, until: datetime) -> list[str]:
        """Return the judges in the latest decisions of a period, in the order of their calls."""
        asked = select(decisions.c.asked).join(targets, decisions.c.target == targets.c.id)
        asked = asked.where(decisions.c.rule == rule, decisions.c.asked != "[]", *_seen(since, until))
        asked = asked.order_by(targets.c.seen_at.desc()).limit(JUDGES_LOOKED)
        said = sorted((loads(body) for body in self._connection.scalars(asked)), key=len, reverse=True)
        return list(dict.fromkeys(each["judge"] for one in said for each in one))

    # --- the list of answers --------------------------------------------------------------------

    def answers_where(self, wanted: AnswerFilter, *, beyond: Place | None = None, limit: int) -> AnswerList:
        """Return at most `limit` answers, newest first, after a position in the list."""
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
        """Count answers that meet the conditions, except `label` and `words`, which are inside documents."""
        asked = select(func.count()).join_from(decisions, targets, decisions.c.target == targets.c.id)
        asked = asked.where(*_seen(wanted.since, wanted.until), *_decided(wanted))
        return self._connection.scalar(asked) or 0

    def unread_traces(self, limit: int) -> list[UnreadLine]:
        """Return traces with unread spans, those that wait longest first."""
        n = select(func.count()).where(spans.c.trace_id == traces.c.id).scalar_subquery()
        asked = select(traces.c.id, traces.c.since, traces.c.last_at, n).where(_UNREAD)
        rows = self._connection.execute(asked.order_by(traces.c.since, traces.c.id).limit(limit))
        return [
            UnreadLine(trace_id=trace, since=since, last_at=last, n_spans=count)
            for trace, since, last, count in rows
        ]

    # --- one trace ------------------------------------------------------------------------------

    def trace_answers(self, trace_id: str) -> list[TraceAnswer]:
        """Return the targets of a trace, those that are gone last."""
        asked = select(targets).where(targets.c.trace_id == trace_id)
        asked = asked.order_by(targets.c.gone, targets.c.seen_at, targets.c.id)
        return [_answer(row) for row in self._connection.execute(asked)]

    def trace_decisions(self, trace_id: str) -> list[Decision]:
        """Return the decisions of rules on the answers of a trace, by rule, superseded ones last."""
        asked = select(decisions).join(targets, decisions.c.target == targets.c.id)
        asked = asked.where(targets.c.trace_id == trace_id).order_by(
            decisions.c.rule, decisions.c.version.desc(), decisions.c.revision.desc(), decisions.c.target
        )
        found = [decision_from(row) for row in self._connection.execute(asked)]
        return sorted(found, key=lambda each: each.state == SUPERSEDED)

    def is_trace(self, trace_id: str) -> bool:
        """Return whether any span of this trace was received."""
        return self._connection.scalar(select(traces.c.id).where(traces.c.id == trace_id)) is not None

    def outcome_places(self, ids: Iterable[int]) -> dict[int, OutcomePlace]:
        """Return where outcomes are stored, by id. Deleted ones are skipped."""
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
    """Yield conditions for answers seen in [since, until). The index of times begins with the kind."""
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
    if wanted.label is not None:  # may match too much; `_line` checks exactly
        yield decisions.c.asked.contains(f'"label":{as_json(wanted.label)}', autoescape=True)


def _beyond(place: Place) -> ColumnElement[bool]:
    """Return the condition for rows after a place, in descending order. The simple bound is for the index."""
    values = [getattr(place, column.key) for column in _ORDER]
    steps = [
        and_(
            *(column == value for column, value in zip(_ORDER[:at], values, strict=False)), last < values[at]
        )
        for at, last in enumerate(_ORDER)
    ]
    return and_(targets.c.seen_at <= place.seen_at, or_(*steps))


def _place(row: Row[Any]) -> Place:
    return of_row(Place, row)


def _line(row: Row[Any], wanted: AnswerFilter) -> AnswerLine | None:
    """Return the row as a line, or None if the content of its documents does not match."""
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
    return of_row(AnswerLine, row, asked=asked, input=given, output=output)


def label_of(asked: Sequence[Mapping[str, Any]], judge: str | None = None) -> str | None:
    """Return the label of a judge, or of the last judge; None if it gave none."""
    mine = [each for each in asked if judge is None or each["judge"] == judge]
    return mine[-1].get("label") if mine else None


def _answer(row: Row[Any]) -> TraceAnswer:
    body = loads(row.body)
    return of_row(
        TraceAnswer,
        row,
        gone=bool(row.gone),
        why=body["why"],
        sample=None if body["sample"] is None else sample_from(*body["sample"]),
        taken=body["taken"],
    )
