"""The metrics of a stored run: read from the store if the run has not changed since, else computed.

`Scores` collects each judge's scores by true label while outcomes are read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from math import fsum
from typing import TYPE_CHECKING, Any

from magistrate._version import __version__
from magistrate.datasets.fields import like_context
from magistrate.datasets.rows import unread_of
from magistrate.engines.base import DEFAULT
from magistrate.engines.prices import Price, price_of
from magistrate.errors import StoreError
from magistrate.metrics.distributions import numbered
from magistrate.report.summary import (
    Counts,
    against,
    baselines,
    finished,
    judge_report,
    measured_spans,
    summarize,
)
from magistrate.report.values import JudgeReport, Report, RunFacts
from magistrate.store import RunRecord, Snapshot, Store
from magistrate.store.columns import OTHER, OutcomeColumns
from magistrate.store.figures import SHARE, KeptFigures
from magistrate.store.runs import SPEC
from magistrate.types import FAITHFUL, HALLUCINATED, Outcome, Sample, Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from pydantic import TypeAdapter

    from magistrate.metrics.spans import SpanScores


KNOWN = (HALLUCINATED, FAITHFUL)


def is_right(said: str | None, gold: str | None) -> bool | None:
    """Return whether a label is the true one; None if one of them is neither faithful nor hallucinated."""
    return said == gold if said in KNOWN and gold in KNOWN else None


@dataclass(frozen=True, slots=True)
class JudgeScores:
    """Scores of one judge's faithful or hallucinated verdicts, float64 in [0, 1], by true label.

    `unlabelled` are the scores of samples with neither gold label.
    """

    hallucinated: NDArray[np.float64]
    faithful: NDArray[np.float64]
    unlabelled: NDArray[np.float64]

    @classmethod
    def of(cls, found: Mapping[str | None, Iterable[float]]) -> JudgeScores:
        """Create from scores by label, None for samples with neither label."""
        import numpy as np

        return cls(*(np.asarray(list(found.get(label, ())), dtype=np.float64) for label in (*KNOWN, None)))

    def to_bytes(self) -> bytes:
        """Serialize as three lengths in 64-bit integers, then the scores, all little-endian."""
        import numpy as np

        groups = (self.hallucinated, self.faithful, self.unlabelled)
        lengths = np.array([group.size for group in groups], dtype="<i8")
        return lengths.tobytes() + b"".join(group.astype("<f8").tobytes() for group in groups)

    @classmethod
    def from_bytes(cls, raw: bytes) -> JudgeScores:
        """Restore the scores that `to_bytes` wrote."""
        import numpy as np

        lengths = np.frombuffer(raw, dtype="<i8", count=3)
        scores = np.frombuffer(raw, dtype="<f8", offset=lengths.nbytes).astype(np.float64)
        return cls(*np.split(scores, np.cumsum(lengths)[:2]))

    @property
    def groups(self) -> dict[str, NDArray[np.float64]]:
        """The labelled scores by label, without empty groups."""
        pairs = zip(KNOWN, (self.hallucinated, self.faithful), strict=True)
        return {label: values for label, values in pairs if values.size}

    def measured(self, turned: bool) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Return which labelled samples are hallucinated, bool `[n]`, and their scores, float64 `[n]`, high
        for hallucinated.

        With `turned` (a low score means hallucinated), scores are 1 - score.
        """
        import numpy as np

        truth = np.concatenate([np.ones(self.hallucinated.size, bool), np.zeros(self.faithful.size, bool)])
        scores = np.concatenate([self.hallucinated, self.faithful])
        return truth, 1 - scores if turned else scores


class Scores:
    """Collects the scores of every judge of a run from its outcomes."""

    def __init__(self, samples: Mapping[str, Sample]) -> None:
        self._samples = samples
        self._found: dict[str, dict[str | None, list[float]]] = {}

    def collect(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """Yield the outcomes unchanged and record their scores."""
        for outcome in outcomes:
            if isinstance(outcome, Verdict) and outcome.label in KNOWN:
                gold = self._samples[outcome.sample_id].label
                labels = self._found.setdefault(outcome.judge, {})
                labels.setdefault(gold if gold in KNOWN else None, []).append(outcome.score)
            yield outcome

    def of(self, judge: str) -> JudgeScores:
        """Return the scores of a judge recorded so far."""
        return JudgeScores.of(self._found.get(judge, {}))


# --- metrics kept in the store --------------------------------------------------------------------


MADE_BY = f"{__version__}/6"
"""Version of the counting code; increased with every change of what is counted or how it is stored."""

MOST_READ = 50_000
"""Outcomes of a run that are read one by one for its report; those of a larger run are read as columns."""
SAMPLED = 10_000
"""Samples of a larger run that are read for the baselines and for spans."""

HEADING = ("balanced_accuracy", "accuracy")


def kept(judge: JudgeReport, place: int, scores: JudgeScores) -> KeptFigures:
    """Return the record to store of a judge's results, the judge at `place` in the run."""
    metric, value, low, high = _heading(judge)
    return KeptFigures(
        judge=judge.judge,
        place=place,
        made_by=MADE_BY,
        n_total=judge.n_total,
        n_ok=judge.n_ok,
        n_failures=sum(judge.failures.values()),
        n_abstentions=sum(judge.abstentions.values()),
        metric=metric,
        value=value,
        low=low,
        high=high,
        # Not pydantic's JSON, which cannot represent a lone surrogate.
        body=json.dumps(_adapter().dump_python(judge, mode="json")),
        scores=scores.to_bytes(),
    )


def report_from(figures: KeptFigures) -> JudgeReport:
    """Restore the stored report."""
    report: JudgeReport = _adapter().validate_python(json.loads(figures.body))
    return report


def scores_from(figures: KeptFigures) -> JudgeScores:
    """Restore the stored scores."""
    return JudgeScores.from_bytes(figures.scores)


def _heading(judge: JudgeReport) -> tuple[str | None, float | None, float | None, float | None]:
    """Return a judge's main metric: how well it judges, else the share that it calls hallucinated."""
    if judge.result is not None:
        for metric in HEADING:
            found = judge.result.metrics[metric]
            if found.value is not None:
                return metric, found.value, found.low, found.high
    if judge.hallucinated_share is not None:
        return SHARE, judge.hallucinated_share, None, None
    return None, None, None, None


@cache
def _adapter() -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(JudgeReport)


# --- counting a run -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The metrics of a run as it was at `revision`, and each judge's scores by true label."""

    revision: int
    report: Report
    scores: Mapping[str, JudgeScores]


def counted(store: Store, run_id: str, *, scores: bool = True) -> RunFigures:
    """Return the current metrics of a run. Those of a run that has stopped are stored for later calls.

    Without `scores`, those of a large run need not be read; the result may lack them.
    """
    with store.snapshot() as moment:
        record = store.seen(moment.record(run_id))
        known = stored_figures(moment, record, scores=scores)
        if known is not None and known.revision == record.revision:
            return known
        found = count(moment, record)
    if record.status != "running" and not found.report.run.damaged:
        places = enumerate(found.report.judges)
        figures = [kept(judge, place, found.scores[judge.judge]) for place, judge in places]
        with suppress(StoreError):  # a read-only store can still be read
            store.keep_figures(run_id, found.revision, figures)
    return found


def stored_figures(moment: Snapshot, record: RunRecord, *, scores: bool = True) -> RunFigures | None:
    """Return the stored metrics of a run, of any revision, or None without any. `scores` are optional."""
    revision, figures = moment.figures(record.id, MADE_BY, scores=scores)
    if not figures:
        return None
    try:
        report = Report(facts_of(record), tuple(report_from(each) for each in figures))
        found = {each.judge: scores_from(each) for each in figures} if scores else {}
        return RunFigures(revision, report, found)
    except (ValueError, TypeError, RecursionError):  # damaged: they can be computed again
        return None


def count(moment: Snapshot, record: RunRecord, flag: Collection[str] | None = None) -> RunFigures:
    """Compute a run's metrics, by `count_columns` if it has more than `MOST_READ` outcomes.

    With `flag`, a set of claim kinds, verdicts that were decided by their claims are decided again without
    asking a model. Records that are damaged in the store are not counted but named in the report.
    """
    damaged: list[str] = []
    if flag is None and record.n_outcomes > MOST_READ:
        found = count_columns(moment, record, damaged)
    else:
        samples, outcomes = moment.readable(record.id, damaged)
        found = count_outcomes(record, samples, outcomes, flag)
    report = found.report
    return replace(found, report=replace(report, run=replace(report.run, damaged=tuple(damaged))))


def count_outcomes(
    record: RunRecord,
    samples: Mapping[str, Sample],
    outcomes: Iterable[Outcome],
    flag: Collection[str] | None = None,
) -> RunFigures:
    """Compute metrics from outcomes that were read already, with the run's samples by id."""
    from magistrate.judges.rubric import by_claims, check_flag, reflagged

    facts = facts_of(record)
    recipes = {judge: replace(recipe, n=facts.n_total) for judge, recipe in record.recipes.items()}
    if flag is not None:
        check_flag(flag)
        outcomes = [reflagged(outcome, flag) for outcome in outcomes]
        for judge in {outcome.judge for outcome in outcomes if by_claims(outcome)} & recipes.keys():
            told = f"{recipes[judge].judge}, flagged by {'+'.join(sorted(flag))} instead"
            recipes[judge] = replace(recipes[judge], judge=told)
    scores = Scores(samples)
    report = summarize(facts, samples, scores.collect(outcomes), recipes, record.scoring)
    return RunFigures(record.revision, report, {each.judge: scores.of(each.judge) for each in report.judges})


def count_columns(moment: Snapshot, record: RunRecord, damaged: list[str]) -> RunFigures:
    """Compute metrics without reading the texts of every sample and outcome.

    All figures are those of `count_outcomes`, exactly. Only the baselines that read samples, and spans, are
    measured on at most `SAMPLED` labelled samples, drawn at random. Damaged records that are read are left
    out and named in `damaged`; others are not noticed.
    """
    import numpy as np

    facts = facts_of(record)
    contexts = moment.contexts(record.id)
    read = {judge: moment.outcome_columns(record.id, judge, damaged) for judge in record.judges}
    busy = fsum(float(columns.seconds.sum()) for columns in read.values())
    cost = None if facts.seconds is None or not busy else facts.seconds / busy
    found, scores = list[JudgeReport](), dict[str, JudgeScores]()
    for judge, columns in read.items():
        labelled = np.flatnonzero(columns.gold != OTHER)
        n_sampled = None
        if labelled.size > SAMPLED:
            n_sampled = SAMPLED
            labelled = np.sort(np.random.default_rng(0).choice(labelled, SAMPLED, replace=False))
        positions = columns.positions[labelled].tolist()
        drawn = moment.samples_at(record.id, positions, damaged)
        texts = [drawn[at] for at in positions if at in drawn]
        own = columns.gold[columns.gold != OTHER] == 1
        recipe = record.recipes.get(judge)
        report = judge_report(
            _counts(judge, columns, contexts[columns.positions]),
            facts.n_total,
            baselines(texts, own),
            _spans(moment, record.id, judge, drawn, damaged),
            None if recipe is None else replace(recipe, n=facts.n_total),
            cost,
            record.scoring.get(judge),
            n_sampled,
        )
        like: tuple[str, ...] = ()
        if "no_context" in report.abstentions:
            like = like_context(moment.samples(record.id, damaged))
        found.append(finished(report, facts, like, alone=len(read) == 1))
        known = columns.said != OTHER
        groups = (columns.scores[known & (columns.gold == label)] for label in (1, 0, OTHER))
        scores[judge] = JudgeScores(*groups)
    return RunFigures(record.revision, Report(facts, tuple(found)), scores)


def _counts(judge: str, columns: OutcomeColumns, contexts: NDArray[np.int64]) -> Counts:
    """Return the counts of a judge; `contexts` are those of the samples of its outcomes."""
    import numpy as np

    gold, verdicts = Counter[str](), Counter[str]()
    others: dict[str, Counter[str]] = {"failure": Counter(), "abstention": Counter()}
    for (kind, label, truth, code), n in columns.counts.items():
        if truth is not None:
            gold[truth] += n
        if kind == "verdict":
            verdicts[str(label)] += n
        else:
            others[kind][str(code)] += n
    known = columns.said != OTHER
    measured = known & (columns.gold != OTHER)
    every_group = _in_order(contexts[known])
    all_labelled = np.array_equal(measured, known)
    return Counts(
        judge=judge,
        n_judged=columns.positions.size,
        n_ok=verdicts.total(),
        gold=gold,
        verdicts=verdicts,
        failures=others["failure"],
        abstentions=others["abstention"],
        seconds=columns.seconds,
        usage=columns.usage,
        n_explained=columns.n_explained,
        flips=columns.flips,
        truth=columns.gold[measured] == 1,
        said=columns.said[measured] == 1,
        scores=columns.scores[measured],
        groups=every_group if all_labelled else _in_order(contexts[measured]),
        every_score=columns.scores[known],
        every_group=every_group,
    )


def _in_order(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number groups in the order in which they appear, as `groups_of` does."""
    import numpy as np

    members = numbered(groups)
    first = np.full(members.max(initial=-1) + 1, members.size)
    np.minimum.at(first, members, np.arange(members.size))
    numbers = np.empty(first.size, dtype=np.int64)
    numbers[np.argsort(first)] = np.arange(first.size)
    return numbers[members]


def _spans(
    moment: Snapshot, run_id: str, judge: str, drawn: Mapping[int, Sample], damaged: list[str]
) -> SpanScores | None:
    """Measure a judge's quotes on the samples drawn, by position; None if people marked nothing in them."""
    if not any(sample.spans for sample in drawn.values()):
        return None
    said = moment.outcomes_at(run_id, judge, list(drawn), damaged)
    judged = {at: each for at, each in said.items() if isinstance(each, Verdict) and each.label in KNOWN}
    quoted = {each.sample_id: against(each) for each in judged.values() if each.claims}
    return measured_spans([drawn[at] for at in drawn if at in judged], quoted)


def facts_of(record: RunRecord) -> RunFacts:
    """Return the facts about a run besides its outcomes."""
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


def price_of_run(record: RunRecord) -> Price | None:
    """Return the price of the run's tokens: as configured, or the known price of its model, else None."""
    told = record.settings.get(SPEC, {}).get("engines", {}).get(DEFAULT, {}).get("price")
    return price_of(record.model) if told is None else Price.parse(told)
