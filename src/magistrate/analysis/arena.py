"""What an arena found: who is better, and how often each is faithful."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magistrate.analysis.ranking import Ranking
from magistrate.metrics.classification import Estimate, fields_of, proportion
from magistrate.types import FAITHFUL, HALLUCINATED, Abstention, Failure, Outcome, Sample, Usage, Verdict

APPLICATION = "application"


@dataclass(frozen=True, slots=True)
class Standing:
    """How many questions a candidate answered, and which share of its judged answers is faithful.

    `faithful` is over the answers with a verdict; failures and abstentions of the judge are counted and are
    no verdict of either kind.
    """

    name: str
    n_questions: int
    n_answers: int
    n_verdicts: int
    failures: int
    abstentions: int
    faithful: Estimate

    @classmethod
    def unknown(cls, name: str) -> Standing:
        """The standing of a candidate of whom nothing was judged."""
        return cls(name, 0, 0, 0, 0, 0, Estimate.none("nothing was judged"))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return fields_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaReport:
    """Ranks and shares of an arena's candidates, and the runs that they rest on, by phase.

    `ranking` is None where there was no battle; `stopped` says which limit ended the arena before its time.
    """

    name: str
    n_questions: int
    ranking: Ranking | None
    standings: tuple[Standing, ...]
    runs: Mapping[str, str]
    spent: Usage
    stopped: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return fields_of(self)


def standings(
    samples: Iterable[Sample], outcomes: Mapping[str, Outcome], names: Sequence[str], n_questions: int
) -> list[Standing]:
    """The standing of each candidate, by the judgements of its answers; metadata name the `application`."""
    said: dict[str, list[Outcome | None]] = {name: [] for name in names}
    for sample in samples:
        said[str(sample.metadata[APPLICATION])].append(outcomes.get(sample.id))
    found = []
    for name, own in said.items():
        labels = [
            each.label for each in own if isinstance(each, Verdict) and each.label in (FAITHFUL, HALLUCINATED)
        ]
        share = proportion(labels.count(FAITHFUL), len(labels), "no answer has a verdict")
        failures = sum(isinstance(each, Failure) for each in own)
        abstentions = sum(isinstance(each, Abstention) for each in own)
        found.append(Standing(name, n_questions, len(own), len(labels), failures, abstentions, share))
    return found
