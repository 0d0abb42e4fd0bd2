"""Results of an arena: the ranking, and how often each candidate is faithful."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from magistrate.analysis.ranking import Ranking
from magistrate.metrics.classification import Estimate, fields_of, proportion
from magistrate.types import FAITHFUL, HALLUCINATED, Abstention, Failure, Outcome, Sample, Usage, Verdict

APPLICATION = "application"


@dataclass(frozen=True, slots=True)
class Standing:
    """How many questions a candidate answered, and the faithful share of its judged answers.

    `faithful` is the share of the answers with a verdict. Failures and abstentions of the judge are counted
    separately.
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
        """Return the standing of a candidate without any judged answer."""
        return cls(name, 0, 0, 0, 0, 0, Estimate.none("nothing was judged"))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return fields_of(self)


@dataclass(frozen=True, slots=True)
class Unplayed:
    """What a limit left over in a phase: `left` of `total` items, None where that is not drawn yet.

    `pairs` counts the battles left over by the names of the two candidates.
    """

    phase: str
    left: int | None = None
    total: int | None = None
    pairs: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return fields_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaReport:
    """Ranks and faithful shares of an arena's candidates, with the underlying run of each phase.

    `ranking` is None if there was no battle. `stopped` names the limit that ended the arena early, and
    `unplayed` what it left over. `examined` counts the reasons why cross-examinations ended.
    """

    name: str
    n_questions: int
    ranking: Ranking | None
    standings: tuple[Standing, ...]
    runs: Mapping[str, str]
    spent: Usage
    stopped: str | None = None
    unplayed: tuple[Unplayed, ...] = ()
    examined: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return fields_of(self)


def standings(
    samples: Iterable[Sample], outcomes: Mapping[str, Outcome], names: Sequence[str], n_questions: int
) -> list[Standing]:
    """Return the standing of each candidate. The metadata key `application` names a sample's candidate."""
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
