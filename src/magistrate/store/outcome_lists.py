"""Lists of one judge's outcomes as shown on pages, and the neighbours of one sample.

Every query reads one range of an index: a cell of the confusion matrix in the order of the samples, or
verdicts in the order of their scores, after the last row shown (keyset paging).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import from_json
from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from magistrate.store.codec import loads, recipes_from
from magistrate.store.schema import of_row, outcomes, run_samples, runs, samples

Direction = Literal["after", "before"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A group of outcomes: their kind, the judged label and the gold label, each None if missing."""

    kind: str
    label: str | None
    gold: str | None


@dataclass(frozen=True, slots=True)
class Scored:
    """Verdicts with `label` on samples with the gold label `gold` (None for none), with a score in [`low`,
    `high`).
    """

    label: str
    gold: str | None
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeLine:
    """An outcome as shown in a list. `output` is the judged text, `position` that of its sample."""

    position: int
    sample_id: str
    kind: str
    label: str | None
    gold: str | None
    score: float | None
    probability: float | None
    code: str | None
    output: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """A judge's outcome for the identical sample in another run. `model` is the one that the judge calls."""

    run_id: str
    name: str | None
    sample_id: str
    model: str
    judge: str
    kind: str
    label: str | None
    score: float | None
    probability: float | None
    code: str | None


_LINE = [
    run_samples.c.sample_id if name == "sample_id" else outcomes.c[name]
    for name in OutcomeLine.__dataclass_fields__
    if name != "output"
]


def _inside(cell: Cell) -> tuple[ColumnElement[bool], ...]:
    same = (_same(outcomes.c.label, cell.label), _same(outcomes.c.gold, cell.gold))
    return (outcomes.c.kind == cell.kind, *same)


def _within(scored: Scored) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of a range. Only verdicts have a label, so `kind`, which the index lacks, is
    omitted.
    """
    same = (outcomes.c.label == scored.label, _same(outcomes.c.gold, scored.gold))
    return (*same, outcomes.c.score >= scored.low, outcomes.c.score < scored.high)


def _same(column: ColumnElement[Any], value: str | None) -> ColumnElement[bool]:
    return column.is_(None) if value is None else column == value


def _lines(connection: Connection, run_id: str, judge: str, places: Sequence[int]) -> list[OutcomeLine]:
    asked = (
        select(*_LINE, samples.c.body)
        .select_from(outcomes)
        .join(run_samples)
        .join(samples, samples.c.key == run_samples.c.sample_key)
        .where(outcomes.c.run_id == run_id, outcomes.c.judge == judge, outcomes.c.position.in_(places))
        .order_by(outcomes.c.position)
    )
    return [of_row(OutcomeLine, row, output=_output(row.body)) for row in connection.execute(asked)]


def _output(body: str) -> str | None:
    """Return only the output of a possibly long document; it cannot contain a tag of `codec`."""
    try:
        fields = from_json(body.encode("ascii"))
    except ValueError:  # also for lone surrogates, which only the slower parser accepts
        fields = loads(body)
    found: str | None = fields.get("output")
    return found


class OutcomeLists:
    """Lists of outcomes and the neighbours of one sample, at one moment; a part of `Snapshot`."""

    _connection: Connection

    def cells(self, run_id: str, judge: str) -> dict[Cell, int]:
        """Return the number of the judge's outcomes in each cell."""
        groups = (outcomes.c.kind, outcomes.c.label, outcomes.c.gold)
        mine = (outcomes.c.run_id == run_id, outcomes.c.judge == judge)
        asked = select(*groups, func.count()).where(*mine).group_by(*groups)
        return {
            Cell(kind, label, gold): number for kind, label, gold, number in self._connection.execute(asked)
        }

    def failure_codes(self, run_id: str, judge: str, most: int = 50) -> dict[tuple[str, str], int]:
        """Return the number of failures and abstentions by kind and code, the most frequent first."""
        number = func.count()
        mine = (outcomes.c.run_id == run_id, outcomes.c.judge == judge, outcomes.c.kind != "verdict")
        asked = select(outcomes.c.kind, outcomes.c.code, number).where(*mine)
        asked = asked.group_by(outcomes.c.kind, outcomes.c.code).order_by(number.desc(), outcomes.c.code)
        return {(kind, code): count for kind, code, count in self._connection.execute(asked.limit(most))}

    def in_cells(
        self,
        run_id: str,
        judge: str,
        cells: Iterable[Cell] | None,
        *,
        code: str | None = None,
        beyond: int | None = None,
        direction: Direction = "after",
        limit: int,
    ) -> list[OutcomeLine]:
        """Return outcomes in these cells, or in all for None, in the order of the samples.

        The page starts `after` or `before` position `beyond`.
        """
        back = direction == "before"
        place = outcomes.c.position
        mine = select(place).where(outcomes.c.run_id == run_id, outcomes.c.judge == judge)
        found: list[int] = []
        for conditions in [()] if cells is None else map(_inside, cells):
            asked = mine.where(*conditions)
            if code is not None:
                asked = asked.where(outcomes.c.code == code)
            if beyond is not None:
                asked = asked.where(place < beyond if back else place > beyond)
            found += self._connection.scalars(
                asked.order_by(place.desc() if back else place.asc()).limit(limit)
            )
        return _lines(self._connection, run_id, judge, sorted(found, reverse=back)[:limit])

    def by_score(
        self,
        run_id: str,
        judge: str,
        ranges: Iterable[Scored],
        *,
        beyond: tuple[float, int] | None = None,
        direction: Direction = "after",
        limit: int,
    ) -> list[OutcomeLine]:
        """Return verdicts in these ranges, highest score first, `after` or `before` a score and position."""
        back = direction == "before"
        score, place = outcomes.c.score, outcomes.c.position
        found: list[tuple[float, int]] = []
        for each in ranges:
            asked = select(score, place).where(
                outcomes.c.run_id == run_id,
                outcomes.c.judge == judge,
                *_within(each),
            )
            if beyond is not None:
                edge, at = beyond
                same = and_(score == edge, place < at if back else place > at)
                # The simple bound lets the index seek; the rest handles equal scores.
                asked = asked.where(score >= edge if back else score <= edge)
                asked = asked.where(or_(score > edge if back else score < edge, same))
            order = (score.asc(), place.desc()) if back else (score.desc(), place.asc())
            found += [
                (row.score, row.position)
                for row in self._connection.execute(asked.order_by(*order).limit(limit))
            ]
        found.sort(key=lambda pair: (-pair[0], pair[1]), reverse=back)
        kept = sorted(found[:limit], key=lambda pair: (-pair[0], pair[1]))
        lines = {
            line.position: line for line in _lines(self._connection, run_id, judge, [at for _, at in kept])
        }
        return [lines[at] for _, at in kept]

    def count_scored(self, run_id: str, judge: str, ranges: Iterable[Scored]) -> int:
        """Return the number of verdicts in these ranges."""
        mine = (outcomes.c.run_id == run_id, outcomes.c.judge == judge)
        return sum(
            self._connection.scalar(select(func.count()).where(*mine, *_within(each))) or 0 for each in ranges
        )

    def count_coded(self, run_id: str, judge: str, cells: Iterable[Cell], code: str) -> int:
        """Return the number of outcomes in these cells with this code."""
        mine = (outcomes.c.run_id == run_id, outcomes.c.judge == judge, outcomes.c.code == code)
        return sum(
            self._connection.scalar(select(func.count()).where(*mine, *_inside(cell))) or 0 for cell in cells
        )

    def lines_at(self, run_id: str, judge: str, positions: Sequence[int]) -> list[OutcomeLine]:
        """Return the judge's outcomes at these positions, in the order of the samples."""
        return _lines(self._connection, run_id, judge, positions)

    def outputs(self, run_id: str, sample_ids: Iterable[str]) -> dict[str, str | None]:
        """Return the outputs of these samples of the run by id. Missing ids are skipped."""
        asked = select(run_samples.c.sample_id, samples.c.body).join_from(run_samples, samples)
        asked = asked.where(run_samples.c.run_id == run_id, run_samples.c.sample_id.in_(list(sample_ids)))
        return {sample_id: _output(body) for sample_id, body in self._connection.execute(asked)}

    def position(self, run_id: str, sample_id: str) -> int | None:
        """Return the position in the run of the sample of this id, from 0, or None."""
        mine = (run_samples.c.run_id == run_id, run_samples.c.sample_id == sample_id)
        return self._connection.scalar(select(run_samples.c.position).where(*mine))

    def positions(self, run_id: str) -> dict[str, int]:
        """Return each sample's position in the run, by id. Deleted samples leave gaps in the numbers."""
        asked = select(run_samples.c.sample_id, run_samples.c.position)
        rows = self._connection.execute(asked.where(run_samples.c.run_id == run_id))
        return {row.sample_id: row.position for row in rows}

    def beside(self, run_id: str, position: int) -> tuple[str | None, str | None]:
        """Return the ids of the samples just before and just after a position of the run."""
        place = run_samples.c.position
        mine = select(run_samples.c.sample_id).where(run_samples.c.run_id == run_id).limit(1)
        earlier = mine.where(place < position).order_by(place.desc())
        later = mine.where(place > position).order_by(place.asc())
        return self._connection.scalar(earlier), self._connection.scalar(later)

    def elsewhere(self, run_id: str, sample_id: str, limit: int = 20) -> list[Elsewhere]:
        """Return outcomes for the identical sample, under any id, in other runs; newest run first."""
        key = (
            select(run_samples.c.sample_key)
            .where(run_samples.c.run_id == run_id, run_samples.c.sample_id == sample_id)
            .scalar_subquery()
        )
        others = (
            select(run_samples.c.run_id, run_samples.c.position, run_samples.c.sample_id)
            .add_columns(runs.c.number, runs.c.name, runs.c.model, runs.c.recipes)
            .join(runs, runs.c.id == run_samples.c.run_id)
            .where(run_samples.c.sample_key == key, run_samples.c.run_id != run_id)
            .order_by(runs.c.number.desc())
            .limit(limit)
            .subquery()
        )
        said = [outcomes.c[name] for name in Elsewhere.__dataclass_fields__ if name not in others.c]
        about = [others.c[name] for name in Elsewhere.__dataclass_fields__ if name in others.c]
        asked = (
            select(*about, *said, others.c.recipes)
            .join(
                outcomes, and_(outcomes.c.run_id == others.c.run_id, outcomes.c.position == others.c.position)
            )
            .order_by(others.c.number.desc(), outcomes.c.judge)
            .limit(limit)
        )
        found = []
        for row in self._connection.execute(asked):
            values = dict(row._mapping)
            recipe = recipes_from(values.pop("recipes")).get(values["judge"])
            # A judge of code calls no model, even if another judge of its run does.
            found.append(Elsewhere(**values | ({} if recipe is None else {"model": recipe.model})))
        return found
