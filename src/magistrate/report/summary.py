"""Outcomes become numbers: for every judge its metrics, counts, costs, baselines and caveats."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from shlex import quote
from statistics import fmean, median

from magistrate.analysis.columns import NOT_STORED, groups_of
from magistrate.analysis.quoting import against, measured_spans
from magistrate.datasets.fields import like_context
from magistrate.errors import InputError
from magistrate.metrics.classification import Estimate, classification
from magistrate.metrics.reliability import reliability
from magistrate.metrics.shift import ScoreShift, score_shift
from magistrate.metrics.spans import Stretch
from magistrate.metrics.thresholds import threshold_gain
from magistrate.report.baselines import Baseline, baselines
from magistrate.report.remarks import remarks
from magistrate.report.values import JudgeReport, Report, RunFacts
from magistrate.types import (
    FAITHFUL,
    HALLUCINATED,
    Abstention,
    Failure,
    Outcome,
    Recipe,
    Sample,
    Scoring,
    Usage,
    Verdict,
)

KNOWN = (FAITHFUL, HALLUCINATED)


def summarize(
    run: RunFacts,
    samples: Mapping[str, Sample],
    outcomes: Iterable[Outcome],
    recipes: Mapping[str, Recipe | str],
    scoring: Mapping[str, Scoring] | None = None,
) -> Report:
    """Count and measure every judge's outcomes over `samples` (by id), in any order.

    Judges come in the order of `recipes`, then by name; one with a recipe but no outcome is reported
    too. The score of a verdict ranks samples for AUROC and stands beside the truth as a probability,
    turned round where by `scoring`, of the judge, a low one means hallucinated; of a judge that is not in
    `scoring` nothing of scores is measured. The label decides everything else. Intervals take
    samples of the same context together. Raises `InputError` for an outcome of an unknown sample, a
    second one of the same judge and sample, or more outcomes than `run.n_total`.
    """
    if run.seconds is not None and not isfinite(run.seconds):
        raise InputError(f"a run's seconds must be a finite number, got {run.seconds}")
    tallies = {judge: _Tally(judge) for judge in recipes}
    late: dict[str, _Tally] = {}
    for outcome in outcomes:
        tally = tallies.get(outcome.judge) or late.setdefault(outcome.judge, _Tally(outcome.judge))
        tally.add(outcome, samples)
    tallies |= dict(sorted(late.items()))
    cached: dict[frozenset[str], tuple[Baseline, ...]] = {}
    reports = []
    busy = sum(sum(tally.seconds) for tally in tallies.values())
    for judge, tally in tallies.items():
        if len(tally.judged) > run.n_total:
            raise InputError(
                f"judge {judge!r} has {len(tally.judged)} outcomes in a run of {run.n_total} samples"
            )
        labelled = frozenset(i for i in tally.judged if samples[i].label in KNOWN)
        if labelled not in cached:
            # In the order of `samples`, so that the order in which outcomes came changes nothing.
            cached[labelled] = baselines(s for i, s in samples.items() if i in labelled)
        cost = None if run.seconds is None or not busy else run.seconds / busy
        known = (scoring or {}).get(judge)
        found = tally.report(run.n_total, samples, cached[labelled], recipes.get(judge), cost, known)
        columns = like_context(samples.values()) if "no_context" in found.abstentions else ()
        found = replace(
            found,
            calibrate=calibrate_command(run.id, judge, alone=len(tallies) == 1),
            unread=run.unread,
            like_context=() if found.n_ok else columns,
        )
        reports.append(replace(found, remarks=remarks(found)))
    return Report(run, tuple(reports))


@dataclass(slots=True)
class _Tally:
    """What is kept of one judge's outcomes while they pass by; steps and texts are not."""

    judge: str
    judged: set[str] = field(default_factory=set)
    said: dict[str, tuple[str, float]] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    abstentions: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    n_explained: int = 0
    flips: int = 0
    quoted: dict[str, list[Stretch]] = field(default_factory=dict)

    def add(self, outcome: Outcome, samples: Mapping[str, Sample]) -> None:
        sample_id = outcome.sample_id
        if sample_id not in samples:
            raise InputError(
                f"judge {self.judge!r} has an outcome for sample {sample_id!r}, which is not among the "
                f"{len(samples)} samples given; pass the samples of the same run"
            )
        if sample_id in self.judged:
            raise InputError(f"judge {self.judge!r} has two outcomes for sample {sample_id!r}; pass one")
        if not isfinite(outcome.seconds):
            raise InputError(f"judge {self.judge!r}, sample {sample_id!r}: seconds are {outcome.seconds}")
        self.judged.add(sample_id)
        self.seconds.append(outcome.seconds)
        self.usage += outcome.usage
        match outcome:
            case Verdict():
                self.said[sample_id] = (outcome.label, outcome.score)
                self.n_explained += outcome.explanation_agrees is not None
                self.flips += outcome.explanation_agrees is False
                if outcome.claims and samples[sample_id].label in KNOWN:
                    self.quoted[sample_id] = against(outcome)
            case Failure():
                self.failures[outcome.code] += 1
            case Abstention():
                self.abstentions[outcome.reason] += 1

    def report(
        self,
        n_total: int,
        samples: Mapping[str, Sample],
        beside: tuple[Baseline, ...],
        recipe: Recipe | str | None,
        cost: float | None,
        scoring: Scoring | None,
    ) -> JudgeReport:
        """`cost` is how many seconds of the run stand for one second of an outcome, None if not known."""
        gold = Counter(label for i in self.judged if (label := samples[i].label) is not None)
        verdicts = Counter(label for label, _ in self.said.values())
        measured = sorted(
            i for i, (label, _) in self.said.items() if label in KNOWN and samples[i].label in KNOWN
        )
        truth = [samples[i].label == HALLUCINATED for i in measured]
        scores: list[float] | None = None
        if scoring is not None:
            scores = [1 - self.said[i][1] if scoring.turned else self.said[i][1] for i in measured]
        called = [self.said[i][0] == HALLUCINATED for i in measured]
        groups = groups_of(samples[i] for i in measured)
        result = classification(truth, called, scores, groups)
        if scores is None:
            result = replace(result, metrics={**result.metrics, "auroc": Estimate.none(NOT_STORED)})
        return JudgeReport(
            judge=self.judge,
            n_total=n_total,
            n_judged=len(self.judged),
            n_ok=len(self.said),
            n_labelled=sum(gold[label] for label in KNOWN),
            n_measured=len(measured),
            other_gold=gold.total() - sum(gold[label] for label in KNOWN),
            other_verdicts=verdicts.total() - sum(verdicts[label] for label in KNOWN),
            failures=_sorted(self.failures),
            abstentions=_sorted(self.abstentions),
            verdicts=_sorted(verdicts),
            gold=_sorted(gold),
            result=result if measured else None,
            baselines=beside,
            seconds_per_sample=fmean(self.seconds) * cost if self.seconds and cost is not None else None,
            latency_median=median(self.seconds) if self.seconds else None,
            usage=self.usage,
            n_explained=self.n_explained,
            flips=self.flips,
            recipe=recipe.line() if isinstance(recipe, Recipe) else recipe,
            calibration=reliability(truth, scores) if measured and scores is not None else None,
            scoring=scoring,
            n_contexts=len(set(groups.tolist())),
            spans=measured_spans([samples[i] for i in measured], self.quoted),
            threshold_gain=None if scores is None else threshold_gain(truth, called, scores, groups),
            shift=self._shift(samples, scoring),
        )

    def _shift(self, samples: Mapping[str, Sample], scoring: Scoring | None) -> ScoreShift | None:
        """How far the scores, labelled or not, are from those that the judge was calibrated on."""
        before = scoring.calibrated_on.scores if scoring and scoring.calibrated_on else None
        known = sorted(i for i, (label, _) in self.said.items() if label in KNOWN)
        if before is None or not known:
            return None
        return score_shift([self.said[i][1] for i in known], groups_of(samples[i] for i in known), before)


def calibrate_command(run_id: str, judge: str, *, alone: bool) -> str:
    """The command that calibrates a judge, `alone` in its run or not, and chooses its threshold."""
    named = "" if alone else f" --judge {quote(judge)}"
    file = re.sub(r"[^A-Za-z0-9._-]+", "_", judge).strip("._-") or "judge"
    return f"magistrate calibrate {quote(run_id)}{named} --maximize balanced_accuracy --to {file}.json"


def _sorted(counts: Counter[str]) -> dict[str, int]:
    """Most frequent first, then by name."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
