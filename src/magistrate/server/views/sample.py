"""One sample of a run: what is on trial, what every judge made of it, and where to go from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from magistrate.errors import SpecError
from magistrate.report.html.outcomes import is_right
from magistrate.server.views.run_list import ListFilter, neighbours
from magistrate.store import Store
from magistrate.store.outcome_lists import Elsewhere
from magistrate.types import Abstention, Outcome, Sample, Verdict

Kind = Literal["verdict", "failure", "abstention"]
EVERY = ListFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a judge made of the sample; `right` is None where it or the truth is neither known label."""

    judge: str
    kind: Kind
    right: bool | None
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleView:
    """A sample with its outcomes.

    `position` is its place in the run, from 0, of `n_samples`. `judges` are all of the run; of those without
    an outcome for this sample there is none in `outcomes`. `judge` is the one that is looked at, None in a
    run without judges. `previous` and `next` are ids. `elsewhere` is what was said of the very same sample in
    other runs, newest first.
    """

    run_id: str
    run_name: str | None
    dataset: str
    model: str
    position: int
    n_samples: int
    sample: Sample
    judges: tuple[str, ...]
    judge: str | None
    outcomes: tuple[Judged, ...]
    previous: str | None
    next: str | None
    elsewhere: tuple[Elsewhere, ...]

    @property
    def judged(self) -> Judged | None:
        """What the judge that is looked at made of the sample; None where it has not come to it."""
        return next((each for each in self.outcomes if each.judge == self.judge), None)


def sample_view(
    store: Store,
    run_id: str,
    sample_id: str,
    judge: str | None = None,
    *,
    wanted: ListFilter = EVERY,
    all_steps: bool = False,
) -> SampleView:
    """The sample, with the steps of `judge`, of the run's first one unless it is given, or of all judges.

    The samples before and after it are those of the list that `wanted` makes, by default of the run.
    Raises `SpecError` where there is no such run, sample or judge.
    """
    with store.snapshot() as moment:
        record = moment.record(run_id)
        sample = moment.sample(run_id, sample_id)
        if judge is not None and judge not in record.judges:
            known = ", ".join(map(repr, record.judges[:20])) or "none"
            raise SpecError(f"run {run_id} has no judge {judge[:100]!r}; it has: {known}")
        chosen = judge or next(iter(record.judges), None)
        all_steps = all_steps or len(record.judges) == 1
        outcomes = moment.outcomes(run_id, sample_id=sample_id, with_steps=all_steps)
        found = {each.judge: each for each in outcomes}
        if chosen in found and not all_steps:
            (found[chosen],) = moment.outcomes(run_id, judge=chosen, sample_id=sample_id, with_steps=True)
        position = moment.position(run_id, sample_id)
        assert position is not None, "the sample was found"
        if wanted.query and chosen is not None:
            before, after = neighbours(moment, run_id, chosen, wanted, position)
        else:
            before, after = moment.beside(run_id, position)
        return SampleView(
            run_id=run_id,
            run_name=record.name,
            dataset=record.dataset,
            model=record.model,
            position=position,
            n_samples=record.n_samples,
            sample=sample,
            judges=record.judges,
            judge=chosen,
            outcomes=tuple(_judged(sample, found[name]) for name in record.judges if name in found),
            previous=before,
            next=after,
            elsewhere=tuple(moment.elsewhere(run_id, sample_id)),
        )


def _judged(sample: Sample, outcome: Outcome) -> Judged:
    kind: Kind = (
        "verdict"
        if isinstance(outcome, Verdict)
        else "abstention"
        if isinstance(outcome, Abstention)
        else "failure"
    )
    return Judged(judge=outcome.judge, kind=kind, right=is_right(sample, outcome), outcome=outcome)
