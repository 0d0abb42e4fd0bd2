"""The outcomes of a run as columns, read without texts: a report of a million needs no object for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Select, case, func, select

from magistrate.errors import StoreError
from magistrate.store.codec import loads, naming, sample_from
from magistrate.store.outcomes import SPENT, outcome_from
from magistrate.store.schema import outcomes, run_samples, samples
from magistrate.types import FAITHFUL, HALLUCINATED, Outcome, Sample, Usage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OTHER = -1  # a label that is neither faithful nor hallucinated, or none
_ROWS = 20_000  # rows in memory at a time
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
        asked = select(
            outcomes.c.position,
            _number(outcomes.c.label),
            _number(outcomes.c.gold),
            func.coalesce(outcomes.c.score, 0.0),
            outcomes.c.seconds,
            told,
        )
        kinds = ("i8", "i1", "i1", "f8", "f8")
        parts: list[list[NDArray[Any]]] = [[np.empty(0, dtype=kind)] for kind in kinds]
        broken, agreed = set[int](), Counter[bool]()
        for rows in _parts(self._connection, asked.where(*mine).order_by(outcomes.c.position)):
            *columns, bodies = zip(*rows, strict=True)
            for part, column, kind in zip(parts, columns, kinds, strict=True):
                part.append(np.array(column, dtype=kind))
            for position, body in zip(columns[0], bodies, strict=True):
                if body is not None and (found := self._agrees(run_id, judge, position, body, damaged)):
                    agreed.update(each for each in found if each is not None)
                elif body is not None:
                    broken.add(position)
        whole: list[NDArray[Any]] = [np.concatenate(part) for part in parts]
        kept = ~np.isin(whole[0], list(broken)) if broken else slice(None)
        positions, said, gold, scores, seconds = (column[kept] for column in whole)
        counts, usage = self._counts(mine, broken)
        return OutcomeColumns(
            positions=positions,
            said=said,
            gold=gold,
            scores=scores,
            seconds=seconds,
            counts=counts,
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
        self, mine: Sequence[Any], broken: set[int]
    ) -> tuple[Counter[tuple[str, str | None, str | None, str | None]], Usage]:
        key = (outcomes.c.kind, outcomes.c.label, outcomes.c.gold, outcomes.c.code)
        asked = select(*key, func.count(), *map(func.sum, SPENT)).where(*mine).group_by(*key)
        counts, usage = Counter[Any](), Usage()
        for row in self._connection.execute(asked):
            counts[tuple(row[:4])] += row[4]
            usage += Usage(*map(int, row[5:]))
        for position in broken:
            lost = select(*key, *SPENT).where(*mine, outcomes.c.position == position)
            row = self._connection.execute(lost).one()
            counts[tuple(row[:4])] -= 1
            spent = (have - int(less) for have, less in zip(astuple(usage), row[4:], strict=True))
            usage = Usage(*spent)
        return +counts, usage

    def contexts(self, run_id: str) -> NDArray[np.int64]:
        """Return a number `[n]` for each sample of the run, in order, the same for equal sources."""
        import numpy as np

        asked = select(func.coalesce(run_samples.c.context, 0)).where(run_samples.c.run_id == run_id)
        rows = _parts(self._connection, asked.order_by(run_samples.c.position))
        # Not the rows themselves, which numpy would ask one by one whether they are arrays.
        parts = [np.array([number for (number,) in part], dtype=np.int64) for part in rows]
        numbers = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
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


def _parts(connection: Connection, asked: Select[Any]) -> Iterator[Sequence[Any]]:
    with connection.execute(asked.execution_options(yield_per=_ROWS)) as rows:
        yield from rows.partitions()
