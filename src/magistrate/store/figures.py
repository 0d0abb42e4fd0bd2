"""Figures that were counted once and are read often, kept beside the runs until these change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, delete, insert, select

from magistrate.store.tables import figures, runs


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFigures:
    """What was counted of one judge's outcomes, the judge at `place` in its run.

    `metric` with its `value` in [0, 1] and 95 % interval heads it, None where nothing could be measured.
    `body` is a document and `scores` are bytes that only `made_by`, the code that counted, reads.
    """

    judge: str
    place: int
    made_by: str
    n_total: int
    n_ok: int
    n_failures: int
    n_abstentions: int
    metric: str | None
    value: float | None
    low: float | None
    high: float | None
    body: str
    scores: bytes


def figures_of(connection: Connection, run_id: str, made_by: str) -> tuple[int, list[KeptFigures]]:
    """What did this code count of the run's judges, in their order, and at which revision? -1 for never."""
    mine = (figures.c.run_id == run_id, figures.c.made_by == made_by)
    rows = connection.execute(select(figures).where(*mine).order_by(figures.c.place)).all()
    names = KeptFigures.__dataclass_fields__
    kept = [KeptFigures(**{name: getattr(row, name) for name in names}) for row in rows]
    return (rows[0].revision if rows else -1), kept


def keep_figures(connection: Connection, run_id: str, revision: int, kept: Sequence[KeptFigures]) -> bool:
    """Keep what was counted at a revision, nothing from before; False where the run changed or is gone."""
    current = select(runs.c.revision).where(runs.c.id == run_id).with_for_update(key_share=True)
    if connection.scalar(current) != revision:
        return False
    connection.execute(delete(figures).where(figures.c.run_id == run_id))
    rows = [{"run_id": run_id, "revision": revision, **asdict(each)} for each in kept]
    if rows:
        connection.execute(insert(figures), rows)
    return True
