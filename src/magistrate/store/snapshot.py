"""A store as it is at one moment: what reports and pages read, so that all they show agrees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from magistrate.errors import SpecError
from magistrate.store import figures, outcome_lists, outcome_queries, queries, run_lists
from magistrate.store.figures import KeptFigures
from magistrate.store.lookup import WORDS_COMPARED, near, record_of, require_run, shown
from magistrate.store.outcome_lists import Cell, Direction, Elsewhere, OutcomeLine, Scored
from magistrate.store.records import RunRecord
from magistrate.store.run_lists import Point, RunFilter, RunLine
from magistrate.types import Outcome, Sample

EVERYTHING = RunFilter()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A store as it is at one moment, whatever is written meanwhile; ends with the `with` that gave it.

    Methods that take a run's id raise `SpecError` where there is no run of exactly this id.
    """

    _connection: Connection

    # --- a run ----------------------------------------------------------------------------------

    def record(self, run_id: str) -> RunRecord:
        """What is known of the run as a whole."""
        require_run(self._connection, run_id)
        return record_of(self._connection, run_id)

    def samples(self, run_id: str, damaged: list[str] | None = None) -> Iterator[Sample]:
        """A run's samples in the order they were added.

        One that is damaged is left out and named in `damaged`; without that list it raises `StoreError`.
        """
        require_run(self._connection, run_id)
        return queries.samples_of(self._connection, run_id, damaged)

    def samples_with(self, run_id: str, known: dict[str, Sample]) -> list[Sample]:
        """The same, but contents that are `known` by their keys are not read anew; the others are added."""
        require_run(self._connection, run_id)
        return queries.samples_with(self._connection, run_id, known)

    def outcomes(
        self,
        run_id: str,
        *,
        judge: str | None = None,
        sample_id: str | None = None,
        with_steps: bool = False,
        damaged: list[str] | None = None,
    ) -> Iterator[Outcome]:
        """A run's outcomes by sample, then by judge; without `with_steps` their `steps` are empty.

        One that is damaged is left out and named in `damaged`; without that list it raises `StoreError`.
        """
        require_run(self._connection, run_id)
        return outcome_queries.outcomes_of(
            self._connection,
            run_id,
            judge=judge,
            sample_id=sample_id,
            with_steps=with_steps,
            damaged=damaged,
        )

    def readable(
        self, run_id: str, damaged: list[str], *, judge: str | None = None, with_steps: bool = False
    ) -> tuple[dict[str, Sample], Iterator[Outcome]]:
        """A run's samples by id, and the outcomes of these; `damaged` names what is left out for being so.

        It is whole once the outcomes are read to their end.
        """
        found = {sample.id: sample for sample in self.samples(run_id, damaged)}
        said = self.outcomes(run_id, judge=judge, with_steps=with_steps, damaged=damaged)
        return found, (outcome for outcome in said if outcome.sample_id in found)

    def bare_outcomes(self, run_id: str, judge: str) -> Iterator[Outcome]:
        """A judge's outcomes by sample, with their labels, scores and codes and nothing else."""
        require_run(self._connection, run_id)
        return outcome_queries.bare_outcomes_of(self._connection, run_id, judge)

    def figures(self, run_id: str, made_by: str) -> tuple[int, list[KeptFigures]]:
        """What the code `made_by` counted of the run's judges, and at which revision; -1 where never."""
        return figures.figures_of(self._connection, run_id, made_by)

    def progress(self, run_id: str) -> dict[str, int]:
        """How many outcomes the run has by now, by `verdict`, `failure` and `abstention`."""
        return run_lists.progress_of(self._connection, run_id)

    # --- lists of runs --------------------------------------------------------------------------

    def runs(
        self,
        wanted: RunFilter = EVERYTHING,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int,
    ) -> list[RunLine]:
        """At most `limit` runs, newest first: the next older than number `before`, or newer than `after`."""
        return run_lists.run_lines(self._connection, wanted, before=before, after=after, limit=limit)

    def count_runs(self, wanted: RunFilter = EVERYTHING) -> int:
        """How many runs are wanted."""
        return run_lists.count_runs(self._connection, wanted)

    def run_choices(self) -> dict[str, list[str]]:
        """Every `dataset`, `model`, `tag` and `judge` there is to choose from, sorted."""
        return run_lists.run_choices(self._connection)

    def trends(self, datasets: Iterable[str], most: int) -> dict[tuple[str, str], list[Point]]:
        """What headed the newest `most` runs, oldest first, by dataset and judge."""
        return run_lists.trends(self._connection, datasets, most)

    def pulse(self, run_id: str | None = None) -> tuple[int, ...]:
        """What differs whenever this run, or any run, begins, goes on, ends, is counted or goes."""
        return run_lists.pulse(self._connection, run_id)

    def uncounted(self, made_by: str, limit: int) -> list[str]:
        """Ids of runs that have stopped and that `made_by` has not counted as they are now, newest first."""
        return run_lists.uncounted_runs(self._connection, made_by, limit)

    # --- lists of outcomes, and one sample ------------------------------------------------------

    def cells(self, run_id: str, judge: str) -> dict[Cell, int]:
        """How many outcomes of the judge are in which cell."""
        return outcome_lists.cells_of(self._connection, run_id, judge)

    def failure_codes(self, run_id: str, judge: str, most: int = 50) -> dict[tuple[str, str], int]:
        """How many failures and abstentions have which code, by kind and code, the most frequent first."""
        return outcome_lists.failure_codes(self._connection, run_id, judge, most)

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
        """Outcomes of these cells, of all where that is None, in the order of the samples.

        Those that come next `after` or `before` position `beyond`.
        """
        return outcome_lists.lines_in_cells(
            self._connection,
            run_id,
            judge,
            cells,
            code=code,
            beyond=beyond,
            direction=direction,
            limit=limit,
        )

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
        """Verdicts in these ranges, highest score first, next `after` or `before` a score and position."""
        return outcome_lists.lines_by_score(
            self._connection, run_id, judge, ranges, beyond=beyond, direction=direction, limit=limit
        )

    def count_scored(self, run_id: str, judge: str, ranges: Iterable[Scored]) -> int:
        """How many verdicts are in these ranges."""
        return outcome_lists.count_scored(self._connection, run_id, judge, ranges)

    def count_coded(self, run_id: str, judge: str, cells: Iterable[Cell], code: str) -> int:
        """How many outcomes of these cells have this code."""
        return outcome_lists.count_coded(self._connection, run_id, judge, cells, code)

    def lines_at(self, run_id: str, judge: str, positions: Sequence[int]) -> list[OutcomeLine]:
        """The judge's outcomes at these positions, in the order of the samples."""
        return outcome_lists.lines_at(self._connection, run_id, judge, positions)

    def sample(self, run_id: str, sample_id: str) -> Sample:
        """One sample of a run; `SpecError` lists near ids where it has none of this id."""
        require_run(self._connection, run_id)
        found = queries.sample_of(self._connection, run_id, sample_id)
        if found is None:
            known = queries.sample_ids(self._connection, run_id, WORDS_COMPARED)
            raise SpecError(f"run {run_id} has no sample {shown(sample_id)}; {near(sample_id, known)}")
        return found

    def outputs(self, run_id: str, sample_ids: Iterable[str]) -> dict[str, str | None]:
        """The texts on trial of these samples of the run by id; ids that it lacks are left out."""
        return outcome_lists.outputs_of(self._connection, run_id, sample_ids)

    def position(self, run_id: str, sample_id: str) -> int | None:
        """Where in the run the sample of this id is, counted from 0; None where it is not."""
        return outcome_lists.position_of(self._connection, run_id, sample_id)

    def beside(self, run_id: str, position: int) -> tuple[str | None, str | None]:
        """The ids of the samples just before and just after a position of the run."""
        return outcome_lists.beside(self._connection, run_id, position)

    def elsewhere(self, run_id: str, sample_id: str, limit: int = 20) -> list[Elsewhere]:
        """What was said of the very same sample, whatever its id, in other runs; newest run first."""
        return outcome_lists.elsewhere(self._connection, run_id, sample_id, limit)
