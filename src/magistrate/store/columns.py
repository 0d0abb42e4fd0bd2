"""The outcomes of a run as columns, read without texts: a report of a million needs no object for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, Select, bindparam, case, func, select

from magistrate.errors import StoreError
from magistrate.store.codec import loads, naming, sample_from
from magistrate.store.outcomes import SPENT, outcome_from
from magistrate.store.schema import outcomes, run_samples, samples
from magistrate.types import FAITHFUL, HALLUCINATED, Outcome, Sample, Usage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OTHER = -1  # a label that is neither faithful nor hallucinated, or none
_ROWS = 2_000  # rows in memory at a time
_AGREES = "explanation_agrees"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeColumns:
    """One judge's n outcomes in the order of the samples. All arrays are `[n]`.

    `positions` are those of the samples. `said` and `gold` are 1 for hallucinated, 0 for faithful, else
    `OTHER`; `said` is `OTHER` without a verdict, and `scores` are then 0. `counts` is the number of outcomes
    by kind, label, gold label and code.
    """

    positions: NDArray[np.int64]
    said: NDArray[np.int8]
    gold: NDArray[np.int8]
    scores: NDArray[np.float64]
    seconds: NDArray[np.float64]
    counts: Counter[tuple[str, str | None, str | None, str | None]]
    usage: Usage
    n_explained: int
    flips: int


class ColumnReads:
    """Columns of one run at one moment; a part of `Snapshot`."""

    _connection: Connection

    def outcome_columns(self, run_id: str, judge: str, damaged: list[str]) -> OutcomeColumns:
        """Return a judge's outcomes. Damaged ones are left out and named in `damaged`.

        A document is only read if it states whether an explanation agrees with the label.
        """
        import numpy as np

        mine = (outcomes.c.run_id == run_id, outcomes.c.judge == judge)
        told = case((outcomes.c.body.contains(f'"{_AGREES}":', autoescape=True), outcomes.c.body), else_=None)
        read = {
            "position": (outcomes.c.position, "i8"),
            "said": (_number(outcomes.c.label), "i1"),
            "gold": (_number(outcomes.c.gold), "i1"),
            "score": (func.coalesce(outcomes.c.score, 0.0), "f8"),
            "seconds": (outcomes.c.seconds, "f8"),
            **{column.key: (column, "i8") for column in SPENT},
            "body": (told, "O"),
        }
        asked = select(*(column for column, _ in read.values())).where(*mine)
        row_kind = np.dtype([(name, kind) for name, (_, kind) in read.items()])
        names = ("position", "said", "gold", "score", "seconds")
        parts: list[list[NDArray[Any]]] = [[np.empty(0, dtype=row_kind[name])] for name in names]
        broken, agreed, usage = list[int](), Counter[bool](), Usage()
        for rows in _parts(self._connection, asked, outcomes.c.position):
            part = np.fromiter(rows, dtype=row_kind, count=len(rows))
            lost = []
            for at, position, body in [(n, row[0], row[-1]) for n, row in enumerate(rows) if row[-1]]:
                found = self._agrees(run_id, judge, position, body, damaged)
                if found is None:
                    lost.append(at)
                    broken.append(position)
                else:
                    agreed.update(each for each in found if each is not None)
            part = np.delete(part, lost) if lost else part
            usage += Usage(*(int(part[column.key].sum()) for column in SPENT))
            for column, name in zip(parts, names, strict=True):
                column.append(part[name].copy())  # a view would keep the whole part
        positions, said, gold, scores, seconds = (np.concatenate(column) for column in parts)
        return OutcomeColumns(
            positions=positions,
            said=said,
            gold=gold,
            scores=scores,
            seconds=seconds,
            counts=self._counts(mine, broken),
            usage=usage,
            n_explained=agreed.total(),
            flips=agreed[False],
        )

    def _agrees(
        self, run_id: str, judge: str, position: int, body: str, damaged: list[str]
    ) -> tuple[bool | None] | None:
        """Return what a document states; None if it is damaged."""
        try:
            return (loads(body).get(_AGREES),)
        except (StoreError, AttributeError):
            mine = (run_samples.c.run_id == run_id, run_samples.c.position == position)
            sample_id = self._connection.scalar(select(run_samples.c.sample_id).where(*mine)) or ""
            try:
                with naming(f"what judge {judge!r} said of sample", sample_id):
                    loads(body)
                    raise ValueError("it is not a document of a verdict")
            except StoreError as error:
                damaged.append(str(error))
            return None

    def _counts(
        self, mine: Sequence[Any], broken: Sequence[int]
    ) -> Counter[tuple[str, str | None, str | None, str | None]]:
        """Count by kind, label, gold label and code. Verdicts have no code: an index has all of the rest."""
        key = (outcomes.c.kind, outcomes.c.label, outcomes.c.gold)
        coded = (*key, outcomes.c.code)
        counts = Counter[tuple[str, str | None, str | None, str | None]]()
        asked = select(*key, func.count()).where(*mine, outcomes.c.kind == "verdict").group_by(*key)
        for kind, label, gold, n in self._connection.execute(asked):
            counts[kind, label, gold, None] += n
        asked = select(*coded, func.count()).where(*mine, outcomes.c.kind != "verdict").group_by(*coded)
        for *cell, n in self._connection.execute(asked):
            counts[tuple(cell)] += n
        for position in broken:
            row = self._connection.execute(select(*coded).where(*mine, outcomes.c.position == position)).one()
            counts[tuple(row)] -= 1
        return +counts

    def contexts(self, run_id: str) -> NDArray[np.int64]:
        """Return a number `[n]` for each sample of the run, in order, the same for equal sources."""
        import numpy as np

        context = func.coalesce(run_samples.c.context, 0)
        asked = select(run_samples.c.position, context).where(run_samples.c.run_id == run_id)
        row_kind = np.dtype([("position", "i8"), ("context", "i8")])
        parts = [np.empty(0, dtype=row_kind)]
        for rows in _parts(self._connection, asked, run_samples.c.position):
            parts.append(np.fromiter(rows, dtype=row_kind, count=len(rows)))
        numbers = np.concatenate(parts)["context"]
        known, members = np.unique(numbers, return_inverse=True)
        alone = numbers == 0  # a sample without sources shares them with no other
        members[alone] = known.size + np.arange(int(alone.sum()))
        return np.asarray(members, dtype=np.int64)

    def samples_at(self, run_id: str, positions: Sequence[int], damaged: list[str]) -> dict[int, Sample]:
        """Return the samples at these positions. Damaged ones are left out and named in `damaged`."""
        asked = select(run_samples.c.position, run_samples.c.sample_id, samples.c.body)
        asked = asked.join_from(run_samples, samples).where(run_samples.c.run_id == run_id)
        found: dict[int, Sample] = {}
        for position, sample_id, body in self._at(asked, run_samples.c.position, positions):
            try:
                found[position] = sample_from(sample_id, body)
            except StoreError as error:
                damaged.append(str(error))
        return found

    def outcomes_at(
        self, run_id: str, judge: str, positions: Sequence[int], damaged: list[str]
    ) -> dict[int, Outcome]:
        """Return a judge's outcomes at these positions. Damaged ones are left out and named in `damaged`."""
        asked = select(outcomes, run_samples.c.sample_id).join(run_samples)
        asked = asked.where(outcomes.c.run_id == run_id, outcomes.c.judge == judge)
        found: dict[int, Outcome] = {}
        for row in self._at(asked, outcomes.c.position, positions):
            try:
                found[row.position] = outcome_from(row, None)
            except StoreError as error:
                damaged.append(str(error))
        return found

    def _at(self, asked: Select[Any], column: Any, positions: Sequence[int]) -> Iterator[Any]:
        for first in range(0, len(positions), 500):
            yield from self._connection.execute(asked.where(column.in_(positions[first : first + 500])))


def _number(label: Any) -> Any:
    return case((label == HALLUCINATED, 1), (label == FAITHFUL, 0), else_=OTHER)


def _parts(
    connection: Connection, asked: Select[Any], position: ColumnElement[int]
) -> Iterator[Sequence[Any]]:
    """Yield the rows in the order of `position`, their first column, in lists.

    They are the tuples of the driver, since to make a `Row` of each takes longer than to read it.
    """
    asked = asked.where(position > bindparam("last")).order_by(position).limit(_ROWS)
    last = -1
    while True:
        with connection.execute(asked, {"last": last}) as found:
            assert found.cursor is not None
            rows = found.cursor.fetchall()
        if rows:
            yield rows
        if len(rows) < _ROWS:
            return
        last = rows[-1][0]
