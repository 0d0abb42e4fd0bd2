"""Which outcomes a page lists where there are more than it can hold: those that somebody should see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from magistrate.types import FAITHFUL, HALLUCINATED, Failure, Outcome, Sample, Verdict

KNOWN = (FAITHFUL, HALLUCINATED)
KINDS = ("wrong", "failed", "abstained", HALLUCINATED, "other")
TOLD = {
    "wrong": "wrong verdicts",
    "failed": "failures",
    "abstained": "abstentions",
    HALLUCINATED: "other verdicts that say hallucinated",
    "other": "other verdicts",
}


@dataclass(frozen=True, slots=True)
class Listed:
    """The outcomes that are listed, in the order they came, and of each kind in `KINDS` how many there are
    and how many are left out.
    """

    outcomes: tuple[Outcome, ...]
    n: int
    left_out: Mapping[str, int]

    @property
    def words(self) -> str | None:
        """What is left out, None where nothing is."""
        missing = [f"{n:,} {TOLD[kind]}" for kind, n in self.left_out.items() if n]
        if not missing:
            return None
        return (
            f"{len(self.outcomes):,} of {self.n:,} outcomes are listed, wrong ones, failures and abstentions "
            f"first; left out: {', '.join(missing)}. The figures above are over all of them."
        )


def listed(samples: Mapping[str, Sample], outcomes: Iterable[Outcome], most: int) -> Listed:
    """At most `most` of the outcomes: by the order of `KINDS`, within a kind the first ones."""
    kept: dict[str, list[tuple[int, Outcome]]] = {kind: [] for kind in KINDS}
    counts = dict.fromkeys(KINDS, 0)
    for at, outcome in enumerate(outcomes):
        kind = _kind(samples[outcome.sample_id], outcome)
        counts[kind] += 1
        if len(kept[kind]) < most:
            kept[kind].append((at, outcome))
    chosen = [pair for kind in KINDS for pair in kept[kind]][:most]
    shown = dict.fromkeys(KINDS, 0)
    for _, outcome in chosen:
        shown[_kind(samples[outcome.sample_id], outcome)] += 1
    chosen.sort(key=lambda pair: pair[0])
    left_out = {kind: counts[kind] - shown[kind] for kind in KINDS}
    return Listed(tuple(outcome for _, outcome in chosen), sum(counts.values()), left_out)


def is_right(sample: Sample, outcome: Outcome) -> bool | None:
    """Whether a verdict says what a person said; None where one of them said neither word."""
    if not isinstance(outcome, Verdict) or outcome.label not in KNOWN or sample.label not in KNOWN:
        return None
    return outcome.label == sample.label


def _kind(sample: Sample, outcome: Outcome) -> str:
    if not isinstance(outcome, Verdict):
        return "failed" if isinstance(outcome, Failure) else "abstained"
    if is_right(sample, outcome) is False:
        return "wrong"
    return HALLUCINATED if outcome.label == HALLUCINATED else "other"
