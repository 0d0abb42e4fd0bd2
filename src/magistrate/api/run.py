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

    from magistrate.engines.prices import Price
    from magistrate.report import Report
    from magistrate.store import RunRecord, Store

INDEX = "index"  # the setting that holds the index of the frame that was judged


@dataclass(frozen=True, slots=True)
class Run:
    """A stored run. Everything is read from the store when it is asked for."""

    id: str
    store: str | os.PathLike[str] = field(repr=False)  # it may hold a password

    @property
    def record(self) -> RunRecord:
        """What the store says of the run as a whole."""
        with self._open() as store:
            return store.find_run(self.id)

    def samples(self) -> list[Sample]:
        """The samples that were judged, in their order."""
        with self._open() as store:
            return list(store.samples(self.id))

    def outcomes(self, *, with_steps: bool = False) -> list[Outcome]:
        """Every outcome; steps only if asked for, they are most of the bytes."""
        with self._open() as store:
            return list(store.outcomes(self.id, with_steps=with_steps))

    def table(self) -> list[dict[str, Any]]:
        """One plain mapping an outcome."""
        from magistrate.report import table

        samples = {sample.id: sample for sample in self.samples()}
        return table(samples, self.outcomes(), self.record.scoring)

    def to_pandas(self, *, wide: bool = False) -> pandas.DataFrame:
        """One row an outcome, or with `wide` one row a sample with a column of each judge beside the other's.

        A run over a pandas frame has that frame's index, so `frame.join(run.to_pandas(wide=True))` puts
        verdicts beside the rows they are of. Needs the extra `pandas`.
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
        """Write the run to a file by its ending, and answer how many outcomes are in it.

        `.html` is a report of its own, in which at most `rows` outcomes are listed and the figures are over
        all; `.jsonl`, `.csv` (also `.gz`) and `.parquet` have one row an outcome. With `judge`, that one's
        alone.
        """
        with self._open() as store:
            return export_run(store, self.id, Path(target), judge=judge, rows=rows, replace=replace)

    def summary(self, *, flag: Collection[str] | None = None) -> Report:
        """Figures with intervals, baselines, counts and remarks; `print` shows it, `to_dict()` is data.

        `flag` decides the verdicts of a rubric anew, by these kinds of claims, without asking a model.
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
            raise StoreError(f"the store {self.store} is not there any more, and run {self.id} with it")
        return Store.open(self.store)


def report_of(store: Store, run_id: str, flag: Collection[str] | None = None) -> Report:
    """The report of a stored run, finished or not.

    With `flag`, kinds of claims, verdicts that their claims had decided are decided anew; no model is asked.
    """
    from magistrate.report.counts import count, counted

    if flag is None:
        return counted(store, run_id).report
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
    """Write a stored run to a file, as `Run.export` does; what is in the file is of one moment.

    Raises `StoreError` once the file is written where it lacks what is damaged in the store.
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
        from magistrate.report.counts import count
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
    """Raise `StoreError` after a file was written, where something that is damaged is not in it."""
    if damaged:
        more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
        raise StoreError(f"{target} is written without what is damaged: {damaged[0]}{more}")


def price_of_run(record: RunRecord) -> Price | None:
    """What the run's tokens cost: as it was told, or as is known of its model; None where nobody knows."""
    from magistrate.engines.prices import Price, price_of
    from magistrate.runs.resume import SPEC
    from magistrate.runs.spec import DEFAULT

    told = record.settings.get(SPEC, {}).get("engines", {}).get(DEFAULT, {}).get("price")
    return price_of(record.model) if told is None else Price.parse(told)
