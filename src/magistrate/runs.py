"""Stored runs as people use them: figures, tables, samples and outcomes."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from magistrate.errors import StoreError
from magistrate.types import Outcome, Sample

if TYPE_CHECKING:
    import pandas

    from magistrate.report import Report
    from magistrate.store import RunRecord, Snapshot, Store


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

        return table({sample.id: sample for sample in self.samples()}, self.outcomes())

    def to_pandas(self) -> pandas.DataFrame:
        """One row an outcome; needs the extra `pandas`."""
        from magistrate.report import to_pandas

        return to_pandas({sample.id: sample for sample in self.samples()}, self.outcomes())

    def summary(self, *, flag: Collection[str] | None = None) -> Report:
        """Figures with intervals, baselines, counts and remarks; `print` shows it, `to_dict()` is data.

        `flag` decides the verdicts of a rubric anew, by these kinds of claims, without asking a model.
        """
        with self._open() as store:
            return report_of(store, self.id, flag)

    def __str__(self) -> str:
        return str(self.summary())

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"

    def _open(self) -> Store:
        from magistrate.store import Store
        from magistrate.store.connect import exists

        if not exists(self.store):
            raise StoreError(f"the store {self.store} is not there any more, and run {self.id} with it")
        return Store.open(self.store)


def report_of(store: Store, run_id: str, flag: Collection[str] | None = None) -> Report:
    """The report of a stored run, finished or not.

    With `flag`, kinds of claims, verdicts that their claims had decided are decided anew; no model is asked.
    """
    with store.snapshot() as moment:
        return _report(moment, store.seen(moment.record(run_id)), flag)


def _report(moment: Snapshot, record: RunRecord, flag: Collection[str] | None) -> Report:
    from magistrate.judges.flagging import by_claims, check_flag, reflagged
    from magistrate.report import RunFacts, summarize

    samples = {sample.id: sample for sample in moment.samples(record.id)}
    n_total = max(record.n_total or 0, len(samples))
    facts = RunFacts(
        id=record.id,
        name=record.name or record.id,
        dataset=record.dataset,
        status=record.status,
        n_total=n_total,
        seconds=record.seconds,
        reason=record.reason,
    )
    recipes = {judge: replace(recipe, n=n_total) for judge, recipe in record.recipes.items()}
    outcomes: Iterable[Outcome] = moment.outcomes(record.id)
    if flag is not None:
        check_flag(flag)
        outcomes = [reflagged(outcome, flag) for outcome in outcomes]
        for judge in {outcome.judge for outcome in outcomes if by_claims(outcome)} & recipes.keys():
            told = f"{recipes[judge].judge}, flagged anew by {'+'.join(sorted(flag))}"
            recipes[judge] = replace(recipes[judge], judge=told)
    return summarize(facts, samples, outcomes, recipes)
