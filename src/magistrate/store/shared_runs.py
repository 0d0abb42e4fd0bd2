"""Runs that many processes write to at once: each adds the samples and outcomes that the run lacks.

Every change locks the run's row first, so that a check and the insert that depends on it are one step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from sqlalchemy import Connection, select

import magistrate.store.outcomes as outcomes
import magistrate.store.runs as runs
from magistrate.store.codec import (
    recipes_body,
    recipes_from,
    scoring_body,
    scoring_from,
)
from magistrate.store.schema import StorePart, run_samples
from magistrate.store.schema import outcomes as outcome_table
from magistrate.store.schema import runs as run_table
from magistrate.types import Outcome, Recipe, Sample, Scoring

Pair = tuple[str, str]  # a sample's id and a judge's name
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class SharedRuns(StorePart):
    """Runs that several processes judge together, available as `store.shared_runs`."""

    def join(
        self,
        run_id: str,
        recipes: Mapping[str, Recipe],
        scoring: Mapping[str, Scoring],
        model: str,
        fingerprint: str,
    ) -> Mapping[str, Recipe]:
        """Add the judges that the run lacks, and return the recipes that it then has of these judges.

        The recipe of a judge that it had before is never changed. The first model that is no empty text is
        noted as the run's.
        """
        with self._writing() as connection:
            runs.require_run(connection, run_id)
            runs.lock_run(connection, run_id)
            columns = (run_table.c.recipes, run_table.c.scoring, run_table.c.engine_fingerprint)
            row = connection.execute(select(*columns).where(run_table.c.id == run_id)).one()
            known = recipes_from(row.recipes)
            if new := {name: recipe for name, recipe in recipes.items() if name not in known}:
                ours = {name: scoring[name] for name in new}
                named = {} if row.engine_fingerprint else {"model": model, "engine_fingerprint": fingerprint}
                runs.change_run(
                    connection,
                    run_id,
                    recipes=recipes_body({**known, **new}),
                    scoring=scoring_body({**scoring_from(row.scoring), **ours}),
                    **named,
                )
            return {name: {**new, **known}[name] for name in recipes}

    def place(self, run_id: str, samples: Sequence[Sample]) -> list[str]:
        """Add the samples that the run lacks, and return the id that each has in it.

        A sample whose id the run has already given to another content is added under `ID~KEY`, where KEY is
        the beginning of the sha256 of its content.
        """
        rows = [runs.SampleRow.of(sample) for sample in samples]
        placed: list[str] = []
        with self._writing() as connection:
            runs.require_run(connection, run_id)
            runs.lock_run(connection, run_id)
            kept = _keys(connection, run_id, [sample.id for sample in samples])
            added: list[runs.SampleRow] = []
            for row in rows:
                mine, key = row.sample_id, row.sample_key
                while kept.get(mine, key) != key:
                    mine = other_id(mine, key)
                    if mine not in kept:
                        kept |= _keys(connection, run_id, [mine])
                if mine not in kept:
                    kept[mine] = key
                    added.append(replace(row, sample_id=mine))
                placed.append(mine)
            for chunk in _chunks(added):
                runs.append_samples(connection, run_id, chunk)
        return placed

    def outcomes(self, run_id: str, sample_ids: Sequence[str], judges: Sequence[str]) -> list[Outcome]:
        """Return the outcomes that the run has of these samples and judges, without their steps."""
        found: list[Outcome] = []
        with self._reading() as connection:
            runs.require_run(connection, run_id)
            for ids in _chunks(sample_ids):
                asked = select(outcome_table, run_samples.c.sample_id).join(run_samples)
                asked = asked.where(
                    outcome_table.c.run_id == run_id,
                    run_samples.c.sample_id.in_(ids),
                    outcome_table.c.judge.in_(judges),
                )
                found.extend(outcomes.outcome_from(row, None) for row in connection.execute(asked))
        return found

    def add(self, run_id: str, given: Sequence[Outcome], *, replace_failures: bool = False) -> set[Pair]:
        """Store outcomes in one transaction, and return the pairs that another process has stored before.

        What is stored stays; with `replace_failures` an outcome replaces a failure and counts as one more
        attempt. Raises `InputError` if a value cannot be stored.
        """
        rows = {(outcome.sample_id, outcome.judge): outcomes.prepared(outcome) for outcome in given}
        with self._writing() as connection:
            runs.require_run(connection, run_id)
            runs.lock_run(connection, run_id)
            taken: set[Pair] = set()
            for ids in _chunks(sorted({sample_id for sample_id, _ in rows})):
                asked = select(run_samples.c.sample_id, outcome_table.c.judge, outcome_table.c.kind)
                asked = asked.select_from(outcome_table).join(run_samples)
                asked = asked.where(outcome_table.c.run_id == run_id, run_samples.c.sample_id.in_(ids))
                for sample_id, judge, kind in connection.execute(asked):
                    if not (replace_failures and kind == "failure"):
                        taken.add((sample_id, judge))
            new = [row for pair, row in rows.items() if pair not in taken]
            if replace_failures:
                outcomes.replace_failures(connection, run_id, new)
            if new:
                outcomes.insert_outcomes(connection, run_id, new)
        return taken & rows.keys()


def other_id(sample_id: str, key: str) -> str:
    """Return the id of a sample whose own id belongs to another content."""
    return f"{sample_id}~{key[:12]}"


def _keys(connection: Connection, run_id: str, ids: Sequence[str]) -> dict[str, str]:
    """Return the content keys of the run's samples of these ids."""
    found: dict[str, str] = {}
    for chunk in _chunks(ids):
        asked = select(run_samples.c.sample_id, run_samples.c.sample_key)
        asked = asked.where(run_samples.c.run_id == run_id, run_samples.c.sample_id.in_(chunk))
        found.update((sample_id, key) for sample_id, key in connection.execute(asked))
    return found


def _chunks(items: Sequence[Item]) -> Iterator[list[Item]]:
    coming = iter(items)
    while chunk := list(islice(coming, runs.ROWS_AT_ONCE)):
        yield chunk
