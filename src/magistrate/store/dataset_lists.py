"""Lists of the data that a store knows: what runs judged, by the digest of the data, and stored sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from pydantic_core import from_json
from sqlalchemy import Connection, Select, case, func, or_, select

from magistrate.store.codec import loads
from magistrate.store.datasets import DatasetVersion, require_version, versions_where
from magistrate.store.runs import streamed
from magistrate.store.schema import dataset_samples, run_samples, runs, samples


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedData:
    """Data that runs judged, by its digest. `number` is that of its newest run, which gives name and version.

    `n_samples` are planned in that run, or stored with it so far; `revision` is that of this run. `n_done` of
    its `n_runs` runs are done.
    """

    digest: str
    name: str
    version: str | None
    number: int
    n_runs: int
    n_done: int
    n_samples: int
    last_run: str
    last_at: datetime
    revision: int


class DatasetLists:
    """Lists of data at one moment; a part of `Snapshot`."""

    _connection: Connection

    def judged_data(
        self,
        words: Iterable[str] = (),
        *,
        digest: str | None = None,
        before: int | None = None,
        limit: int,
    ) -> list[JudgedData]:
        """Return what runs judged, the data of the newest run first; with all words in its name or version.

        The next ones are those whose newest run has a number less than `before`.
        """
        newest = func.max(runs.c.number)
        grouped = select(
            newest.label("newest"),
            func.count().label("n_runs"),
            func.sum(case((runs.c.status == "done", 1), else_=0)).label("n_done"),
        ).group_by(runs.c.dataset_digest)
        for word in words:
            named = (
                runs.c.dataset.icontains(word, autoescape=True),
                runs.c.dataset_version.icontains(word, autoescape=True),
            )
            grouped = grouped.where(or_(*named))
        if digest is not None:
            grouped = grouped.where(runs.c.dataset_digest == digest)
        if before is not None:
            grouped = grouped.having(newest < before)
        found = grouped.order_by(newest.desc()).limit(limit).subquery()
        stored = select(func.count()).select_from(run_samples).where(run_samples.c.run_id == runs.c.id)
        asked = select(runs, found.c.n_runs, found.c.n_done, stored.scalar_subquery().label("n_stored"))
        asked = asked.join(found, found.c.newest == runs.c.number).order_by(runs.c.number.desc())
        return [
            JudgedData(
                digest=row.dataset_digest,
                name=row.dataset,
                version=row.dataset_version,
                number=row.number,
                n_runs=row.n_runs,
                n_done=int(row.n_done),
                n_samples=row.n_stored if row.n_total is None else row.n_total,
                last_run=row.id,
                last_at=row.created_at,
                revision=row.revision,
            )
            for row in self._connection.execute(asked)
        ]

    def run_labels(self, run_id: str) -> dict[str | None, int]:
        """Return the number of a run's samples by gold label, None for no label, the most frequent first."""
        asked = select(run_samples.c.label, func.count()).where(run_samples.c.run_id == run_id)
        rows = self._connection.execute(asked.group_by(run_samples.c.label))
        return _ranked({row.label: row[1] for row in rows})

    def stored_sets(self) -> list[DatasetVersion]:
        """Return every version of every stored data set, by name and number."""
        return versions_where(self._connection)

    def stored_set(self, ref: str) -> DatasetVersion:
        """Return the version `NAME@2`, or the newest for `NAME`. `SpecError` lists similar names."""
        return require_version(self._connection, ref)

    def set_labels(self, digest: str) -> dict[str | None, int]:
        """Return the number of a stored content's samples by label. Reads all samples."""
        asked: Select[tuple[str]] = select(samples.c.body).join_from(dataset_samples, samples)
        found: Counter[str | None] = Counter()
        for (body,) in streamed(self._connection, asked.where(dataset_samples.c.digest == digest)):
            try:
                found[from_json(body.encode("ascii")).get("label")] += 1
            except ValueError:  # also for lone surrogates, which only the slower parser accepts
                found[loads(body).get("label")] += 1
        return _ranked(found)


def _ranked(counts: dict[str | None, int]) -> dict[str | None, int]:
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0] or "")))
