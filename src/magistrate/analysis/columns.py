"""One judge's verdicts and the gold labels as columns, with the reasons why samples are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magistrate.errors import InputError, SpecError
from magistrate.types import FAITHFUL, HALLUCINATED, Abstention, Failure, Outcome, Sample, Scoring, Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


READ = ("output", "context", "input", "messages", "expected", "alternatives")
"""What a judge may read of a sample besides its metadata."""


def unlike(first: Sample, second: Sample) -> str | None:
    """Return a text on what differs between two samples of one id; None if judges read the same."""
    if first is second:
        return None
    for name in READ:
        if getattr(first, name) != getattr(second, name):
            return f"another {name}"
    return None


def missing(outcome: Outcome | None) -> str:
    """Return why there is no verdict."""
    match outcome:
        case Failure():
            return "failed"
        case Abstention():
            return "abstained"
    return "not judged"


# --- columns --------------------------------------------------------------------------------------


KNOWN = (FAITHFUL, HALLUCINATED)
NOT_STORED = "the run does not record whether a high or a low score means hallucinated"
AGAIN = "It is from an older version; run it again (cached answers cost nothing)"


@dataclass(frozen=True, slots=True)
class Columns:
    """A judge's verdicts on n labelled samples, in the order of the samples.

    `truth` and `said` are bool `[n]`, True is hallucinated. `raw` float `[n]` in [0, 1] are the judge's own
    scores; `scoring` defines how to read them (None: not known). `groups` int `[n]` is the same number for
    samples of the same context. `left_out` counts the samples that are not included, by reason.
    """

    judge: str
    ids: tuple[str, ...]
    truth: NDArray[np.bool_]
    said: NDArray[np.bool_]
    raw: NDArray[np.float64]
    groups: NDArray[np.int64]
    left_out: Mapping[str, int]
    scoring: Scoring | None

    @property
    def turned(self) -> bool:
        """Whether a low score means hallucinated. Raises `InputError` if it is not known."""
        return known_scoring(self.scoring, self.judge).turned

    @property
    def scores(self) -> NDArray[np.float64]:
        """The scores `[n]` in [0, 1], higher is more hallucinated. Raises like `turned`."""
        return 1 - self.raw if self.turned else self.raw

    @property
    def n(self) -> int:
        """The number of samples."""
        return len(self.ids)

    @property
    def n_groups(self) -> int:
        """The number of different contexts."""
        return len(set(self.groups.tolist()))

    def take(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Columns:
        """Return the columns of a subset of the samples."""
        import numpy as np

        places = np.arange(self.n)[chosen]
        return Columns(
            self.judge,
            tuple(self.ids[at] for at in places),
            self.truth[places],
            self.said[places],
            self.raw[places],
            self.groups[places],
            self.left_out,
            self.scoring,
        )


def known_scoring(scoring: Scoring | None, judge: str) -> Scoring:
    """Return how a judge's scores are read. Raises `InputError` if the run has not stored it."""
    if scoring is None:
        raise InputError(f"judge {judge!r}: {NOT_STORED}, so its scores cannot be used. {AGAIN}")
    return scoring


def columns(
    samples: Mapping[str, Sample], outcomes: Iterable[Outcome], judge: str, scoring: Scoring | None
) -> Columns:
    """Return the verdicts of `judge` on samples (by id) that are labelled faithful or hallucinated.

    `scoring` defines how its scores are read, None if it is not known. Raises `InputError` for an outcome of
    an unknown sample and for a second outcome of the same sample.
    """
    import numpy as np

    own: dict[str, Outcome] = {}
    for outcome in outcomes:
        if outcome.judge != judge:
            continue
        if outcome.sample_id not in samples or outcome.sample_id in own:
            known = "has two outcomes" if outcome.sample_id in own else "is not one of the given samples"
            raise InputError(f"judge {judge!r}: sample {outcome.sample_id!r} {known}")
        own[outcome.sample_id] = outcome
    kept, left_out = list[tuple[Sample, Verdict]](), Counter[str]()
    for sample in samples.values():
        found = own.get(sample.id)
        reason = _left_out(sample, found)
        if reason is None and isinstance(found, Verdict):
            kept.append((sample, found))
        else:
            left_out[str(reason)] += 1
    return Columns(
        judge,
        tuple(sample.id for sample, _ in kept),
        np.array([sample.label == HALLUCINATED for sample, _ in kept], dtype=np.bool_),
        np.array([verdict.label == HALLUCINATED for _, verdict in kept], dtype=np.bool_),
        np.array([verdict.score for _, verdict in kept], dtype=np.float64),
        groups_of([sample for sample, _ in kept]),
        dict(left_out.most_common()),
        scoring,
    )


def _left_out(sample: Sample, outcome: Outcome | None) -> str | None:
    """Return why a sample cannot be counted, None if it can."""
    if not isinstance(outcome, Verdict):
        return missing(outcome)
    if outcome.label not in KNOWN:
        return "verdict with another label"
    if sample.label is None:
        return "no gold label"
    return None if sample.label in KNOWN else "another gold label"


def groups_of(samples: Iterable[Sample]) -> NDArray[np.int64]:
    """Return a group number `[n]` per sample, the same for samples with equal sources.

    A sample without any source is a group of its own. Samples of two runs may be passed together: without a
    source they share a group only if id, input and output are equal.
    """
    import numpy as np

    numbers: dict[tuple[str | None, ...], int] = {}
    keys = (_place(sample) for sample in samples)
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def _place(sample: Sample) -> tuple[str | None, ...]:
    """Return the key that samples of one group share. It starts with None if there is no source."""
    if any(text.strip() for text in sample.sources):
        return sample.sources
    return (None, sample.id, sample.input, sample.output)


def one_judge(judges: Iterable[str], named: str | None, of: str) -> str:
    """Return the judge named, or the only one. Raises `SpecError` with the available judges."""
    known = list(judges)
    if named in known and named is not None:
        return named
    listed = ", ".join(known) or "none"
    if named is not None:
        raise SpecError(f"{of} has no judge {named!r}; it has: {listed}")
    if len(known) != 1:
        raise SpecError(f"{of} has {len(known)} judges ({listed}); choose one: --judge NAME")
    return known[0]
