"""What the store says about a run as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from magistrate.types import Recipe, Scoring

FinishedStatus = Literal["done", "interrupted", "failed"]
Status = Literal["running", "done", "interrupted", "failed", "killed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run: what judged what, how far it came, and how many outcomes of each kind it has.

    `number` counts the runs of a store in the order they were created. Times are in UTC;
    `finished_at` is None while `status` is `running`, which a killed run stays until it is `seen`;
    `reason` is why it stopped, where that is known. `seconds` is how long it was at work in all, None
    where nobody knows. `dataset_version` names the stored data set that was read, if one was. `n_total` is
    how many samples were planned, None where nobody knew; `n_samples` how many are stored. `judges` are
    the keys of `recipes`, then any other judge with an outcome, sorted. The counts are over all judges
    together. `scoring` says by judge how its scores are read; a judge is not among it where nobody knows, as
    in runs of a Magistrate that did not store it. `revision` goes up with everything that could change a
    figure of the run.
    """

    id: str
    number: int
    name: str | None
    created_at: datetime
    finished_at: datetime | None
    status: Status
    reason: str | None = None
    seconds: float | None = None
    dataset: str
    dataset_digest: str
    dataset_version: str | None = None
    model: str
    engine_fingerprint: str
    n_total: int | None
    package_version: str
    recipes: Mapping[str, Recipe]
    settings: Mapping[str, Any]
    tags: tuple[str, ...]
    judges: tuple[str, ...]
    n_samples: int
    n_verdicts: int
    n_failures: int
    n_abstentions: int
    revision: int = 0
    scoring: Mapping[str, Scoring] = field(default_factory=dict)

    @property
    def n_outcomes(self) -> int:
        """Verdicts, failures and abstentions together."""
        return self.n_verdicts + self.n_failures + self.n_abstentions
