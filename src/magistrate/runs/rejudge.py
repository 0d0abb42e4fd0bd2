"""The samples of an earlier run as data of a new one: they come from the store, and no file is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from magistrate.datasets import Dataset, Selection
from magistrate.datasets.rows import Problem, Row, unread_of
from magistrate.datasets.samples import to_row
from magistrate.errors import SpecError
from magistrate.runs.resume import objects_of
from magistrate.store import RunRecord, Store
from magistrate.store.figures import RunFilter

RUNS_TRIED = 20  # newest finished runs of the same data among which one with usable samples is looked for


@dataclass(frozen=True, slots=True)
class RunSamples:
    """The samples of a finished run as rows. `place` opens the store, and may contain a password.

    Rows that could not be read when that run was made are reported again, so that the coverage of both runs
    means the same.
    """

    place: str = field(repr=False)
    record: RunRecord

    @property
    def n_unread(self) -> int:
        """The number of rows that could not be read then."""
        unread = unread_of(self.record.settings)
        return 0 if unread is None else unread.n

    def rows(self) -> Iterator[Row | Problem]:
        with Store.open(self.place) as store:
            for sample in store.samples_by_page(self.record.id):
                yield Row(self.record.dataset, None, sample.id, to_row(sample))
        reason = f"could not be read when run {self.record.id} was made"
        yield from (Problem(self.record.dataset, None, reason) for _ in range(self.n_unread))

    def digest(self) -> str:
        return self.record.dataset_digest

    def count(self) -> int | None:
        return self.record.n_samples + self.n_unread


def run_with_data(store: Store, digest: str) -> RunRecord:
    """Return the newest finished run over the data of this digest whose samples are those of the data.

    Raises `SpecError` if there is none: outputs that a program made during a run belong to that run alone.
    """
    with store.snapshot() as moment:
        lines = moment.runs(RunFilter(digest=digest, status="done"), limit=RUNS_TRIED)
        for line in lines:
            record = moment.record(line.id)
            if "task" not in objects_of(record) and record.n_samples == record.n_total:
                return record
    made = " but runs whose outputs a program made" if lines else ""
    raise SpecError(
        f"no finished run has the samples of the data {digest[:12]!r}{made}; judge it on the command line"
    )


def data_of_run(store: Store, record: RunRecord, limit: int | None = None) -> Dataset:
    """Return the samples of a finished run as a data set of the same name: all, or the first `limit`.

    All of them have the digest of the run's data, since they are the same data.
    """
    whole = limit is None or limit >= record.n_samples
    return Dataset(
        record.dataset,
        RunSamples(store.place, record),
        selection=Selection() if whole else Selection(limit),
        _digest=record.dataset_digest if whole else None,
    )
