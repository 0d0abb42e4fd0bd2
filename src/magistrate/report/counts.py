"""A stored run counted: read from what the store kept where the run has not changed since, else anew."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from magistrate.datasets.rows import unread_of
from magistrate.errors import StoreError
from magistrate.report.kept import MADE_BY, kept, report_from, scores_from
from magistrate.report.scores import JudgeScores, Scores
from magistrate.report.summary import summarize
from magistrate.report.values import Report, RunFacts
from magistrate.store import RunRecord, Snapshot, Store
from magistrate.types import Outcome, Sample


@dataclass(frozen=True, slots=True)
class Counted:
    """The figures of a run as it was at `revision`, and each judge's scores by true label."""

    revision: int
    report: Report
    scores: Mapping[str, JudgeScores]


def counted(store: Store, run_id: str) -> Counted:
    """The figures of a run as it is now; those of a run that has stopped are kept for the next who asks."""
    with store.snapshot() as moment:
        record = store.seen(moment.record(run_id))
        known = counted_before(moment, record)
        if known is not None and known.revision == record.revision:
            return known
        found = count(moment, record)
    if record.status != "running" and not found.report.run.damaged:
        places = enumerate(found.report.judges)
        figures = [kept(judge, place, found.scores[judge.judge]) for place, judge in places]
        with suppress(StoreError):  # a store that cannot be written to is read all the same
            store.keep_figures(run_id, found.revision, figures)
    return found


def counted_before(moment: Snapshot, record: RunRecord) -> Counted | None:
    """What was counted of a run, of whatever revision; None where nothing was."""
    revision, figures = moment.figures(record.id, MADE_BY)
    if not figures:
        return None
    try:
        report = Report(facts_of(record), tuple(report_from(each) for each in figures))
        return Counted(revision, report, {each.judge: scores_from(each) for each in figures})
    except (ValueError, TypeError, RecursionError):  # damaged: they can be counted anew
        return None


def count(moment: Snapshot, record: RunRecord, flag: Collection[str] | None = None) -> Counted:
    """Count a run's outcomes, all of them.

    With `flag`, kinds of claims, verdicts that their claims had decided are decided anew; no model is asked.
    What is damaged in the store is in no figure, and named in the report.
    """
    damaged: list[str] = []
    samples, outcomes = moment.readable(record.id, damaged)
    found = count_these(record, samples, outcomes, flag)
    report = found.report
    return replace(found, report=replace(report, run=replace(report.run, damaged=tuple(damaged))))


def count_these(
    record: RunRecord,
    samples: Mapping[str, Sample],
    outcomes: Iterable[Outcome],
    flag: Collection[str] | None = None,
) -> Counted:
    """The same for whoever has read the run's samples, by id, and its outcomes."""
    from magistrate.judges.decision import by_claims, check_flag, reflagged

    facts = facts_of(record)
    recipes = {judge: replace(recipe, n=facts.n_total) for judge, recipe in record.recipes.items()}
    if flag is not None:
        check_flag(flag)
        outcomes = [reflagged(outcome, flag) for outcome in outcomes]
        for judge in {outcome.judge for outcome in outcomes if by_claims(outcome)} & recipes.keys():
            told = f"{recipes[judge].judge}, flagged anew by {'+'.join(sorted(flag))}"
            recipes[judge] = replace(recipes[judge], judge=told)
    scores = Scores(samples)
    report = summarize(facts, samples, scores.noting(outcomes), recipes, record.scoring)
    return Counted(record.revision, report, {each.judge: scores.of(each.judge) for each in report.judges})


def facts_of(record: RunRecord) -> RunFacts:
    """What is known of a run besides its outcomes."""
    return RunFacts(
        id=record.id,
        name=record.name or record.id,
        dataset=record.dataset,
        status=record.status,
        n_total=max(record.n_total or 0, record.n_samples),
        seconds=record.seconds,
        reason=record.reason,
        unread=unread_of(record.settings),
    )
