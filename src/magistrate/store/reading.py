"""What a store is asked: which runs there are, and what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import magistrate.store.outcome_queries as outcome_queries
import magistrate.store.queries as queries
from magistrate.store.lookup import record_of, require_run, resolve
from magistrate.store.records import RunRecord
from magistrate.store.snapshot import Snapshot
from magistrate.store.transactions import Transactions
from magistrate.types import Outcome, Sample, Usage


class Reading(Transactions):
    """The questions; every answer is of one moment's state."""

    # --- runs as a whole ------------------------------------------------------------------------

    def find_run(self, ref: str) -> RunRecord:
        """The run of an id, of a name, of the beginning of an id, or the `last` one created.

        `SpecError` lists near ones where none is found, and all where several are.
        """
        with self._reading() as connection:
            return record_of(connection, resolve(connection, ref))

    def runs(
        self, limit: int | None = None, tag: str | None = None, dataset: str | None = None
    ) -> list[RunRecord]:
        """Runs, newest first: at most `limit`, with this tag, over the dataset of this name."""
        with self._reading() as connection:
            return queries.runs_where(connection, limit=limit, tag=tag, dataset=dataset)

    def unfinished(self, dataset_digest: str) -> list[RunRecord]:
        """Runs over the data of this digest that are not `done`, newest first."""
        with self._reading() as connection:
            return queries.runs_where(connection, unfinished_digest=dataset_digest)

    # --- what is in a run -----------------------------------------------------------------------

    def samples(self, run_id: str) -> Iterator[Sample]:
        """A run's samples in the order they were added, as a stream over one moment's state."""
        self._check_run(run_id)
        return self._stream(lambda connection: queries.samples_of(connection, run_id))

    def sample_ids(self, run_id: str) -> list[str]:
        """The ids of a run's samples, in the order they were added."""
        with self._reading() as connection:
            require_run(connection, run_id)
            return queries.sample_ids(connection, run_id)

    def samples_by_page(self, run_id: str) -> Iterator[Sample]:
        """A run's samples in their order, some at a time: nothing stays open while somebody works on them."""
        last = -1
        while True:
            with self._reading() as connection:
                require_run(connection, run_id)
                page = queries.samples_after(connection, run_id, last)
            if not page:
                return
            last = page[-1][0]
            yield from (sample for _, sample in page)

    def sample(self, run_id: str, sample_id: str) -> Sample:
        """One sample of a run; `SpecError` lists near ids where it has none of this id."""
        with self.snapshot() as moment:
            return moment.sample(run_id, sample_id)

    def outcomes(
        self,
        run_id: str,
        *,
        judge: str | None = None,
        sample_id: str | None = None,
        with_steps: bool = False,
    ) -> Iterator[Outcome]:
        """A run's outcomes in the order of its samples, then of judge names, as a stream.

        All are of one moment's state, whatever is written meanwhile. Without `with_steps` their `steps`
        are empty.
        """
        self._check_run(run_id)
        return self._stream(
            lambda connection: outcome_queries.outcomes_of(
                connection, run_id, judge=judge, sample_id=sample_id, with_steps=with_steps
            )
        )

    def judged(self, run_id: str) -> set[tuple[str, str]]:
        """The pairs of sample id and judge that have an outcome, of whatever kind."""
        return set(self._pairs(run_id))

    def failed(self, run_id: str) -> dict[tuple[str, str], str]:
        """The pairs of sample id and judge whose outcome is a failure, with its code."""
        return {pair: code for pair, (code, _) in self._pairs(run_id).items() if code is not None}

    def spent(self, run_id: str) -> Usage:
        """What all outcomes of a run have spent together."""
        with self._reading() as connection:
            require_run(connection, run_id)
            return outcome_queries.usage_of(connection, run_id)

    def dearest(self, run_id: str) -> Usage:
        """What the outcome of a run has spent that took the most tokens."""
        with self._reading() as connection:
            require_run(connection, run_id)
            return outcome_queries.dearest_of(connection, run_id)

    def attempts(self, run_id: str) -> dict[tuple[str, str], int]:
        """How often each pair of sample id and judge was tried, where it was more than once."""
        return {pair: attempt for pair, (_, attempt) in self._pairs(run_id).items() if attempt > 1}

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """The store at one moment, for answers that must agree with each other."""
        with self._reading() as connection:
            yield Snapshot(connection)

    def _pairs(self, run_id: str) -> dict[tuple[str, str], tuple[str | None, int]]:
        with self._reading() as connection:
            require_run(connection, run_id)
            return outcome_queries.pairs_of(connection, run_id)

    def _check_run(self, run_id: str) -> None:
        with self._reading() as connection:
            require_run(connection, run_id)
