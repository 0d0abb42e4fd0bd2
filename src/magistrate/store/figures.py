"""Cached metrics of runs, and the lists of runs that show them.

Metrics are stored beside a run until it changes. Lists use keyset paging: a page continues after the last
row shown, so a page far down costs as much as the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    not_,
    or_,
    select,
)

from magistrate.datasets.rows import Unread, unread_of
from magistrate.store.codec import loads, recipes_from
from magistrate.store.schema import figures, of_row, outcomes, run_tags, runs


@dataclass(frozen=True, slots=True, kw_only=True)
class MainMetric:
    """The main metric of a judge in a run.

    `value` and the ends of its 95 % interval are in [0, 1], None if undefined; `metric` is None if nothing
    could be measured.
    """

    judge: str
    made_by: str
    n_total: int
    n_ok: int
    n_failures: int
    n_abstentions: int
    metric: str | None
    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFigures(MainMetric):
    """The cached metrics of one judge's outcomes, the judge at `place` in its run.

    `body` is a document and `scores` are bytes that only the code version `made_by` can read.
    """

    place: int
    body: str
    scores: bytes


def keep_figures(connection: Connection, run_id: str, revision: int, kept: Sequence[KeptFigures]) -> bool:
    """Store metrics computed at a revision, replacing earlier ones. False if the run changed or is gone."""
    current = select(runs.c.revision).where(runs.c.id == run_id).with_for_update(key_share=True)
    if connection.scalar(current) != revision:
        return False
    connection.execute(delete(figures).where(figures.c.run_id == run_id))
    rows = [{"run_id": run_id, "revision": revision, **asdict(each)} for each in kept]
    if rows:
        connection.execute(insert(figures), rows)
    return True


# --- lists of runs ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Conditions that runs must all meet.

    Each of `words` must occur in a run's name, id, data, model, judges or tags. `digest` is that of the data,
    `version` the stored set that was read, such as `refunds@2`.
    """

    words: tuple[str, ...] = ()
    tag: str | None = None
    dataset: str | None = None
    judge: str | None = None
    model: str | None = None
    status: str | None = None
    digest: str | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head(MainMetric):
    """The main metric of a judge in a run, as computed at `revision`."""

    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """A run as shown in a list.

    `heads` may be of an earlier revision, and lack judges whose metrics are not computed yet. `judges` are
    the judge names of the outcomes. Times are in UTC; `seconds` is the working time. `unread` reports the
    unreadable rows, None if they were not counted.
    """

    id: str
    number: int
    name: str | None
    created_at: datetime
    finished_at: datetime | None
    status: str
    reason: str | None
    dataset: str
    model: str
    n_total: int | None
    seconds: float | None
    revision: int
    unread: Unread | None
    judges: tuple[str, ...]
    tags: tuple[str, ...]
    heads: tuple[Head, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The main metric of one run of a data set and a judge."""

    run_id: str
    number: int
    metric: str
    value: float


_HEAD = [figures.c[name] for name in Head.__dataclass_fields__]
_LINE = [runs.c[name] for name in RunLine.__dataclass_fields__ if name in runs.c]


def _conditions(wanted: RunFilter) -> Iterator[ColumnElement[bool]]:
    for column in ("dataset", "model", "status"):
        if (value := getattr(wanted, column)) is not None:
            yield runs.c[column] == value
    if wanted.digest is not None:
        yield runs.c.dataset_digest == wanted.digest
    if wanted.version is not None:
        yield runs.c.dataset_version == wanted.version
    if wanted.tag is not None:
        yield exists().where(run_tags.c.run_id == runs.c.id, run_tags.c.tag == wanted.tag)
    if wanted.judge is not None:
        yield exists().where(outcomes.c.run_id == runs.c.id, outcomes.c.judge == wanted.judge)
    for word in wanted.words:
        own = [runs.c[name].icontains(word, autoescape=True) for name in ("name", "id", "dataset", "model")]
        tagged = run_tags.c.tag.icontains(word, autoescape=True)
        judged = figures.c.judge.icontains(word, autoescape=True)
        yield or_(
            *own,
            exists().where(run_tags.c.run_id == runs.c.id, tagged),
            exists().where(figures.c.run_id == runs.c.id, judged),
        )


EVERY_RUN = RunFilter()

RunOrder = Literal["newest", "oldest", "best", "worst", "longest", "largest", "name"]
SHARE = "hallucinated_share"
"""The metric that says how much was called hallucinated, and not how well that was judged."""
LAST = -1e300  # where runs without a value stand


def _order(order: RunOrder, wanted: RunFilter) -> tuple[ColumnElement[Any], bool]:
    """Return what runs are sorted by, and whether the greatest comes first. Of `best` and `worst` it is the
    main metric of the wanted judge, else that of the run's best or worst one.
    """
    mine = [figures.c.run_id == runs.c.id, figures.c.metric != SHARE]
    if wanted.judge is not None:
        mine.append(figures.c.judge == wanted.judge)
    match order:
        case "best":
            best = select(func.max(figures.c.value)).where(*mine).scalar_subquery()
            return func.coalesce(best, LAST), True
        case "worst":
            worst = select(func.min(figures.c.value)).where(*mine).scalar_subquery()
            return func.coalesce(worst, -LAST), False
        case "longest":
            return func.coalesce(runs.c.seconds, LAST), True
        case "largest":
            return func.coalesce(runs.c.n_total, -1), True
        case "name":
            return func.lower(func.coalesce(runs.c.name, runs.c.id)), False
        case _:
            return runs.c.number, order == "newest"


class RunLists:
    """Lists of runs and their metrics at one moment; a part of `Snapshot`."""

    _connection: Connection

    def figures(self, run_id: str, made_by: str, *, scores: bool = True) -> tuple[int, list[KeptFigures]]:
        """Return the revision and metrics of the run's judges computed by `made_by`; -1 if there are none.

        `scores`, which may be many megabytes, are empty if they are not asked for.
        """
        mine = (figures.c.run_id == run_id, figures.c.made_by == made_by)
        columns: list[ColumnElement[Any]] = [each for each in figures.c if each.key != "scores"]
        columns.append(figures.c.scores if scores else literal(b"").label("scores"))
        rows = self._connection.execute(select(*columns).where(*mine).order_by(figures.c.place)).all()
        return (rows[0].revision if rows else -1), [of_row(KeptFigures, row) for row in rows]

    def progress(self, run_id: str) -> dict[str, int]:
        """Return the current number of outcomes by kind: `verdict`, `failure` and `abstention`."""
        asked = select(outcomes.c.kind, func.count()).where(outcomes.c.run_id == run_id)
        rows = self._connection.execute(asked.group_by(outcomes.c.kind)).all()
        return {row.kind: row[1] for row in rows}

    def runs(
        self,
        wanted: RunFilter = EVERY_RUN,
        *,
        order: RunOrder = "newest",
        before: int | None = None,
        after: int | None = None,
        limit: int,
    ) -> list[RunLine]:
        """Return at most `limit` runs in this order: those that come next after the run numbered `before`, or
        those that come before the one numbered `after`. Of equal ones the newer comes first.

        From the beginning, if the run of that number is gone and the order is not by age.
        """
        asked = select(*_LINE, runs.c.recipes, runs.c.settings).where(*_conditions(wanted))
        key, greatest_first = _order(order, wanted)
        back = after is not None
        number, down = runs.c.number, greatest_first != back
        if (at := after if back else before) is not None:
            edge = at if key is number else self._connection.scalar(select(key).where(number == at))
            if edge is not None:
                equal = and_(key == edge, number > at if back else number < at)
                asked = asked.where(or_(key < edge if down else key > edge, equal))
        asked = asked.order_by(key.desc() if down else key.asc(), number.asc() if back else number.desc())
        rows = list(self._connection.execute(asked.limit(limit)).all())
        if back:
            rows.reverse()
        ids = [row.id for row in rows]
        tags: dict[str, list[str]] = {}
        for run_id, tag in self._connection.execute(select(run_tags).where(run_tags.c.run_id.in_(ids))):
            tags.setdefault(run_id, []).append(tag)
        heads: dict[str, list[Head]] = {}
        counted = select(figures.c.run_id, *_HEAD).where(figures.c.run_id.in_(ids)).order_by(figures.c.place)
        for row in self._connection.execute(counted):
            heads.setdefault(row.run_id, []).append(of_row(Head, row))
        return [
            of_row(
                RunLine,
                row,
                unread=unread_of(loads(row.settings)),
                judges=tuple(
                    dict.fromkeys(
                        [*recipes_from(row.recipes), *(head.judge for head in heads.get(row.id, ()))]
                    )
                ),
                tags=tuple(sorted(tags.get(row.id, ()))),
                heads=tuple(heads.get(row.id, ())),
            )
            for row in rows
        ]

    def count_runs(self, wanted: RunFilter = EVERY_RUN) -> int:
        """Return the number of runs that meet the conditions."""
        return (
            self._connection.scalar(select(func.count()).select_from(runs).where(*_conditions(wanted))) or 0
        )

    def run_choices(self) -> dict[str, list[str]]:
        """Return every `dataset`, `model`, `tag` and `judge` in the store, sorted."""
        asked = {
            "dataset": select(runs.c.dataset).distinct(),
            "model": select(runs.c.model).distinct(),
            "tag": select(run_tags.c.tag).distinct(),
            "judge": select(figures.c.judge).distinct(),
        }
        return {name: sorted(self._connection.scalars(each)) for name, each in asked.items()}

    def trends(self, datasets: Iterable[str], most: int) -> dict[tuple[str, str], list[Point]]:
        """Return the main metrics of the newest `most` runs, oldest first, by data set and judge."""
        rank = func.row_number().over(
            partition_by=(runs.c.dataset, figures.c.judge), order_by=runs.c.number.desc()
        )
        columns = (
            runs.c.dataset,
            figures.c.judge,
            runs.c.id,
            runs.c.number,
            figures.c.metric,
            figures.c.value,
        )
        ranked = (
            select(*columns, rank.label("rank"))
            .join(figures, figures.c.run_id == runs.c.id)
            .where(runs.c.dataset.in_(set(datasets)), figures.c.value.is_not(None))
            .subquery()
        )
        found: dict[tuple[str, str], list[Point]] = {}
        for row in self._connection.execute(
            select(ranked).where(ranked.c.rank <= most).order_by(ranked.c.number)
        ):
            point = Point(run_id=row.id, number=row.number, metric=row.metric, value=row.value)
            found.setdefault((row.dataset, row.judge), []).append(point)
        return found

    def pulse(self, run_id: str | None = None) -> tuple[int, ...]:
        """Return values that change whenever this run, or any, begins, changes, ends, is counted or
        deleted.
        """
        unfinished = case((runs.c.status == "running", 1), else_=0)
        counts = (func.max(runs.c.number), func.sum(runs.c.revision), func.sum(unfinished))
        asked = select(func.count(), *(func.coalesce(each, 0) for each in counts)).select_from(runs)
        counted = select(func.count(), func.coalesce(func.sum(figures.c.revision), 0)).select_from(figures)
        if run_id is not None:
            asked = asked.where(runs.c.id == run_id)
            counted = counted.where(figures.c.run_id == run_id)
        return tuple(
            int(each) for query in (asked, counted) for each in self._connection.execute(query).one()
        )

    def uncounted(self, made_by: str, limit: int) -> list[str]:
        """Return ids of stopped runs without current metrics by `made_by`, newest first."""
        current = exists().where(
            figures.c.run_id == runs.c.id,
            figures.c.revision == runs.c.revision,
            figures.c.made_by == made_by,
        )
        any_outcome = exists().where(outcomes.c.run_id == runs.c.id)
        asked = select(runs.c.id).where(runs.c.status != "running", any_outcome, not_(current))
        return list(self._connection.scalars(asked.order_by(runs.c.number.desc()).limit(limit)))
