"""Find a stored run and one of its judges, and read the judge's outcomes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from magistrate._paths import default_store
from magistrate.analysis.columns import one_judge
from magistrate.api.run import Run
from magistrate.errors import SpecError
from magistrate.store import RunRecord, Snapshot, Store
from magistrate.store.connection import exists
from magistrate.types import Outcome, Sample, Scoring

StorePlace = str | os.PathLike[str]
RunRef = Run | str
"""A run, or what names one in a store: `last`, an id, the beginning of one, or a name."""


@dataclass(frozen=True, slots=True)
class Judged:
    """All outcomes of one judge in one run, by sample id."""

    record: RunRecord
    judge: str
    samples: Mapping[str, Sample]
    outcomes: Mapping[str, Outcome]

    @property
    def name(self) -> str:
        """The run's name, else its id."""
        return self.record.name or self.record.id

    @property
    def scoring(self) -> Scoring | None:
        """How the judge's scores are read; None if the run does not state it."""
        return self.record.scoring.get(self.judge)

    @property
    def n_total(self) -> int:
        """The number of samples to judge."""
        return max(self.record.n_total or 0, len(self.samples))


def record_of(run: RunRef, store: StorePlace | None = None) -> tuple[RunRecord, StorePlace]:
    """Return the record of a run and its store. Raises `SpecError` if there is none."""
    if isinstance(run, Run):
        return run.record, run.store
    place = store or default_store()
    if not exists(place):
        raise SpecError(f"there is no store of runs at {place}; create one with: magistrate run quickstart")
    with Store.open(place) as opened:
        return opened.find_run(run), place


def judged(run: RunRef, judge: str | None = None, store: StorePlace | None = None) -> Judged:
    """Return a judge's outcomes in a run; by default those of the only judge.

    Raises `SpecError` if there is no such run or judge, or if there are several judges and none is named.
    """
    record, place = record_of(run, store)
    chosen = one_judge(record.judges, judge, f"run {record.name or record.id}")
    with Store.open(place) as opened, opened.snapshot() as moment:
        samples = {sample.id: sample for sample in moment.samples(record.id)}
        outcomes = {each.sample_id: each for each in moment.outcomes(record.id, judge=chosen)}
    return Judged(record, chosen, samples, outcomes)


def judged_at(
    moment: Snapshot, chosen: Iterable[tuple[RunRecord, str]], contents: dict[str, Sample] | None = None
) -> list[Judged]:
    """Return outcomes of several judges, with labels, scores and codes only. A shared sample is read once.

    `contents` maps keys to samples that were read before; newly read ones are added.
    """
    contents = {} if contents is None else contents
    samples: dict[str, dict[str, Sample]] = {}
    found = []
    for record, judge in chosen:
        if record.id not in samples:
            samples[record.id] = {each.id: each for each in moment.samples_with(record.id, contents)}
        outcomes = {each.sample_id: each for each in moment.bare_outcomes(record.id, judge)}
        found.append(Judged(record, judge, samples[record.id], outcomes))
    return found
