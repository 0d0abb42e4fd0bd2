"""What changes a store: runs as they go, their samples and outcomes, names and tags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, get_args

from sqlalchemy.exc import IntegrityError

import magistrate.store.outcome_queries as outcome_queries
import magistrate.store.queries as queries
from magistrate._version import __version__
from magistrate.errors import InputError, SpecError, StoreError
from magistrate.store.codec import dumps, recipes_body, sample_body, scoring_body
from magistrate.store.connect import explained
from magistrate.store.figures import KeptFigures, keep_figures
from magistrate.store.lookup import LAST, record_of, require_run, resolve, shown
from magistrate.store.records import FinishedStatus, RunRecord
from magistrate.store.transactions import Transactions
from magistrate.types import Outcome, Recipe, Sample, Scoring

_ID_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"
_IDS_TRIED = 100


class Writing(Transactions):
    """The changes; each is committed when its method returns."""

    # --- a run as it goes -----------------------------------------------------------------------

    def create_run(
        self,
        *,
        dataset: str,
        dataset_digest: str,
        model: str,
        engine_fingerprint: str,
        recipes: Mapping[str, Recipe],
        scoring: Mapping[str, Scoring] | None = None,
        settings: Mapping[str, Any] | None = None,
        name: str | None = None,
        n_total: int | None = None,
        tags: Iterable[str] = (),
        dataset_version: str | None = None,
        package_version: str = __version__,
    ) -> str:
        """A new run, `running`; the answer is its id, such as `20261121-143012-x7k2` (UTC).

        `recipes` are by judge, under the name that the judge's outcomes bear, and so is `scoring`: how its
        scores are read, without which nothing that ranks by them can be reported; `settings` plain values;
        `dataset_version` says which stored data set was read, such as `refunds@2`. Names may repeat, but
        not be empty or `last`.
        """
        now = self._now()
        row = {
            "name": _checked_name(name),
            "created_at": now,
            "status": "running",
            "dataset": dataset,
            "dataset_digest": dataset_digest,
            "dataset_version": dataset_version,
            "model": model,
            "engine_fingerprint": engine_fingerprint,
            "n_total": n_total,
            "package_version": package_version,
            "recipes": recipes_body(recipes),
            "scoring": scoring_body(scoring or {}),
            "settings": dumps(dict(settings or {})),
        }
        tags = _checked_tags(tags)
        for _ in range(_IDS_TRIED):
            run_id = f"{now:%Y%m%d-%H%M%S}-{''.join(self._randomness.choices(_ID_LETTERS, k=4))}"
            with self._writing() as connection:
                if not queries.run_exists(connection, run_id):
                    queries.insert_run(connection, {**row, "id": run_id}, tags)
                    return run_id
        raise StoreError(f"no free run id was found in {_IDS_TRIED} draws; the randomness repeats itself")

    def add_samples(self, run_id: str, samples: Iterable[Sample]) -> int:
        """Append samples to a run, 500 a transaction; the answer is how many.

        `InputError` where an id repeats within the run or a value cannot be stored; chunks before that
        one stay.
        """
        added, remaining = 0, iter(samples)
        while chunk := [
            (sample.id, sample.label, _sample_body(sample))
            for sample in islice(remaining, queries.ROWS_AT_ONCE)
        ]:
            with explained(self.shown):
                try:
                    with self._writer.begin():
                        queries.append_samples(self._writer, run_id, chunk)
                except IntegrityError as error:
                    raise self._why_no_samples(run_id, [sample_id for sample_id, _, _ in chunk]) from error
            added += len(chunk)
        return added

    def add_outcome(self, run_id: str, outcome: Outcome, *, replace_failure: bool = False) -> None:
        """Store one outcome with its steps in one transaction, committed when this returns.

        With `replace_failure`, an earlier failure of this judge for this sample gives way, and the
        outcome counts as one attempt more. `StoreError` where there is an outcome otherwise; `InputError`
        where a value is not finite or not plain.
        """
        self._add_outcomes(run_id, [outcome], replace_failure)

    def add_outcomes(self, run_id: str, outcomes: Iterable[Outcome]) -> int:
        """Store many outcomes, 500 a transaction; the answer is how many.

        Errors are those of `add_outcome`; chunks before that one stay.
        """
        added, remaining = 0, iter(outcomes)
        while chunk := list(islice(remaining, queries.ROWS_AT_ONCE)):
            self._add_outcomes(run_id, chunk)
            added += len(chunk)
        return added

    def finish_run(
        self,
        run_id: str,
        status: FinishedStatus,
        *,
        n_total: int | None = None,
        reason: str | None = None,
    ) -> None:
        """The run is over, now, for this `reason` if any.

        `n_total` replaces the planned number of samples where given.
        """
        if status not in get_args(FinishedStatus):
            known = ", ".join(get_args(FinishedStatus))
            raise SpecError(f"a run cannot finish as {status!r}; known: {known}")
        now = self._now()
        with self._writing() as connection:
            require_run(connection, run_id)
            queries.finish_run(connection, run_id, status, now, n_total, reason)

    def reopen_run(self, run_id: str) -> None:
        """The run goes on: it is `running`, has not finished, and no reason is kept why it stopped."""
        with self._writing() as connection:
            require_run(connection, run_id)
            queries.finish_run(connection, run_id, "running", None, None, None)

    def expect(self, run_id: str, n_total: int) -> None:
        """The run has so many samples to judge."""
        with self._writing() as connection:
            require_run(connection, run_id)
            queries.expect(connection, run_id, n_total)

    def add_seconds(self, run_id: str, seconds: float) -> None:
        """The run has been at work for so many more seconds."""
        with self._writing() as connection:
            require_run(connection, run_id)
            queries.add_seconds(connection, run_id, seconds)

    def replace_sample(self, run_id: str, sample: Sample) -> None:
        """A sample of the run holds something else now, as when its output was made anew."""
        body = _sample_body(sample)
        with self._writing() as connection:
            require_run(connection, run_id)
            if not queries.replace_sample(connection, run_id, sample.id, sample.label, body):
                raise SpecError(f"run {run_id} has no sample {shown(sample.id)}; add it first")

    def keep_figures(self, run_id: str, revision: int, kept: Sequence[KeptFigures]) -> bool:
        """Keep what was counted of the run at a revision; False where it has changed since, or is gone."""
        with self._writing() as connection:
            return keep_figures(connection, run_id, revision, kept)

    # --- names, tags, the end -------------------------------------------------------------------

    def rename(self, ref: str, name: str | None) -> RunRecord:
        """Give a run another name, or none."""
        name = _checked_name(name)
        with self._writing() as connection:
            run_id = resolve(connection, ref)
            queries.rename_run(connection, run_id, name)
            return record_of(connection, run_id)

    def tag(self, ref: str, add: Iterable[str] = (), remove: Iterable[str] = ()) -> RunRecord:
        """Add tags to a run and remove others; those it has, or has not, change nothing."""
        add, remove = _checked_tags(add), _checked_tags(remove)
        with self._writing() as connection:
            run_id = resolve(connection, ref)
            queries.change_tags(connection, run_id, add, remove)
            return record_of(connection, run_id)

    def delete(self, ref: str) -> RunRecord:
        """Delete a run, its outcomes and the samples that nothing else uses; the answer is what it was."""
        with self._writing() as connection:
            record = record_of(connection, resolve(connection, ref))
            queries.delete_run(connection, record.id)
            return record

    # --- how it is done, and why it was refused --------------------------------------------------

    def _add_outcomes(self, run_id: str, chunk: Sequence[Outcome], replace_failure: bool = False) -> None:
        with explained(self.shown):
            try:
                rows = [outcome_queries.prepared(outcome) for outcome in chunk]
                with self._writer.begin():
                    if replace_failure:
                        outcome_queries.replace_failures(self._writer, run_id, rows)
                    outcome_queries.insert_outcomes(self._writer, run_id, rows)
            except IntegrityError as error:
                raise self._why_no_outcome(run_id, chunk) from error

    def _why_no_samples(self, run_id: str, sample_ids: Sequence[str]) -> InputError:
        with self._writer.begin():
            require_run(self._writer, run_id)
            taken = set()
            for sample_id in sample_ids:
                if sample_id in taken or queries.has_sample(self._writer, run_id, sample_id):
                    return InputError(
                        f"sample id {shown(sample_id)} is there twice; ids must differ within a run"
                    )
                taken.add(sample_id)
        return InputError("the samples were refused by the store; run again")

    def _why_no_outcome(self, run_id: str, chunk: Sequence[Outcome]) -> Exception:
        with self._writer.begin():
            require_run(self._writer, run_id)
            taken = set()
            for outcome in chunk:
                sample_id, pair = outcome.sample_id, (outcome.sample_id, outcome.judge)
                if not queries.has_sample(self._writer, run_id, sample_id):
                    return SpecError(
                        f"run {run_id} has no sample {shown(sample_id)}; add samples before their outcomes"
                    )
                if pair in taken or outcome_queries.has_outcome(self._writer, run_id, *pair):
                    return StoreError(
                        f"run {run_id} has an outcome of judge {outcome.judge!r} "
                        f"for sample {shown(sample_id)} already"
                    )
                taken.add(pair)
        return StoreError("the outcomes were refused; run again, what was committed is kept")


def _sample_body(sample: Sample) -> str:
    try:
        return sample_body(sample)
    except InputError as error:
        raise InputError(f"sample {shown(sample.id)}: {error}") from error


def _checked_name(name: str | None) -> str | None:
    if name is not None and (not name.strip() or name == LAST):
        raise SpecError(
            f"a run cannot be named {name!r}: names hold a visible character and are not {LAST!r}"
        )
    return name


def _checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    checked = (tags,) if isinstance(tags, str) else tuple(tags)
    if not all(tag.strip() for tag in checked):
        raise SpecError(f"tags hold a visible character, got {list(checked)}")
    return checked
