"""`Run`: a stored run, with its report, tables, samples, outcomes and exports."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from magistrate.errors import SpecError, StoreError
from magistrate.types import Outcome, Sample

if TYPE_CHECKING:
    import pandas

    from magistrate.report import Report
    from magistrate.store import RunRecord, Store

INDEX = "index"  # setting under which the index of the judged frame is kept


@dataclass(frozen=True, slots=True)
class Run:
    """A stored run. Everything is read from the store on access."""

    id: str
    store: str | os.PathLike[str] = field(repr=False)  # may contain a password

    @property
    def record(self) -> RunRecord:
        """The store's record of the run."""
        with self._open() as store:
            return store.find_run(self.id)

    def samples(self) -> list[Sample]:
        """Return the samples of the run, in order."""
        with self._open() as store:
            return list(store.samples(self.id))

    def outcomes(self, *, with_steps: bool = False) -> list[Outcome]:
        """Return every outcome. Steps are included only on request, since they are most of the bytes."""
        with self._open() as store:
            return list(store.outcomes(self.id, with_steps=with_steps))

    def table(self) -> list[dict[str, Any]]:
        """Return one plain mapping per outcome."""
        from magistrate.report import table

        samples = {sample.id: sample for sample in self.samples()}
        return table(samples, self.outcomes(), self.record.scoring)

    def to_pandas(self, *, wide: bool = False) -> pandas.DataFrame:
        """Return a data frame with one row per outcome, or with `wide` one row per sample and columns per
        judge.

        A run over a pandas frame has that frame's index, so `frame.join(run.to_pandas(wide=True))` adds the
        verdicts to its rows. Needs the extra `pandas`.
        """
        from magistrate.datasets.frames import FrameIndex
        from magistrate.report import to_pandas

        record = self.record
        kept = record.settings.get(INDEX)
        index = None if kept is None else FrameIndex.from_plain(kept)
        samples = {sample.id: sample for sample in self.samples()}
        return to_pandas(samples, self.outcomes(), index=index, wide=wide, scoring=record.scoring)

    def export(
        self,
        target: str | os.PathLike[str],
        *,
        judge: str | None = None,
        rows: int = 2_000,
        replace: bool = False,
    ) -> int:
        """Write the run to a file in the format of its suffix, and return the number of outcomes in it.

        `.html` is a report that lists at most `rows` outcomes and has the metrics of all. `.jsonl`, `.csv`
        (also `.gz`) and `.parquet` have one row per outcome. With `judge`, only that judge is included.
        """
        with self._open() as store:
            return export_run(store, self.id, Path(target), judge=judge, rows=rows, replace=replace)

    def summary(self, *, flag: Collection[str] | None = None) -> Report:
        """Return metrics with intervals, baselines, counts and remarks. `print` shows it, `to_dict()` is
        data.

        `flag` decides the verdicts of a rubric again, by these kinds of claims, without calling a model.
        """
        with self._open() as store:
            return report_of(store, self.id, flag)

    def __str__(self) -> str:
        return str(self.summary())

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def _open(self) -> Store:
        from magistrate.store import Store
        from magistrate.store.connection import exists

        if not exists(self.store):
            raise StoreError(f"the store {self.store} with run {self.id} no longer exists")
        return Store.open(self.store)


def report_of(store: Store, run_id: str, flag: Collection[str] | None = None) -> Report:
    """Return the report of a stored run, finished or not.

    With `flag`, a set of claim kinds, verdicts that were decided by their claims are decided again without
    a model.
    """
    from magistrate.report.counts import count, counted

    if flag is None:
        return counted(store, run_id, scores=False).report
    with store.snapshot() as moment:
        return count(moment, store.seen(moment.record(run_id)), flag).report


def export_run(
    store: Store,
    run_id: str,
    target: Path,
    *,
    judge: str | None = None,
    rows: int = 2_000,
    replace: bool = False,
) -> int:
    """Write a stored run to a file, as `Run.export` does, from one consistent snapshot.

    If records are damaged in the store, the file is written without them and `StoreError` is raised.
    """
    from magistrate.report.export import export, format_of, write_whole

    kind = format_of(target, replace=replace)
    with store.snapshot() as moment:
        record = store.seen(moment.record(run_id))
        if judge is not None and judge not in record.judges:
            raise SpecError(
                f"run {run_id} has no judge {judge!r}; it has: {', '.join(record.judges) or 'none'}"
            )
        damaged: list[str] = []
        samples, outcomes = moment.readable(run_id, damaged, judge=judge)
        if kind != "html":
            written = export(samples, outcomes, target, replace=replace, scoring=record.scoring)
            refuse_damaged(damaged, target)
            return written
        from magistrate.report.counts import count, price_of_run
        from magistrate.report.html import page

        report = count(moment, record).report
        if judge is not None:
            report = replace_fields(report, judges=tuple(j for j in report.judges if j.judge == judge))
        pieces = page(report, record, samples, outcomes, rows=rows, price=price_of_run(record))

        def write(raw: IO[bytes]) -> int:
            for piece in pieces:
                raw.write(piece.encode())
            return sum(each.n_judged for each in report.judges)

        written = write_whole(target, write)
        refuse_damaged(damaged, target)
        return written


def refuse_damaged(damaged: Sequence[str], target: Path) -> None:
    """Raise `StoreError` after a file was written, if damaged records are missing from it."""
    if damaged:
        more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
        raise StoreError(f"{target} is written without damaged entries: {damaged[0]}{more}")
