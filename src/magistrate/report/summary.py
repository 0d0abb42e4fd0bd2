"""Summarize a run: for every judge its metrics, counts, costs, baselines and remarks.

Baselines are trivial rules to compare every judge with. `majority` gives the more common label to
everything (a tie goes to faithful). `always_hallucinated` always answers hallucinated. `length` uses only
the number of characters of the output, `ngram_overlap` only the share of its bigrams that are in no
context. These two use the threshold and the direction with the best balanced accuracy **on this very
data**, and their AUROC is direction-free, max(a, 1 - a): an upper bound of what the shortcut gives.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from shlex import quote
from statistics import fmean
from typing import TYPE_CHECKING

from magistrate._text import counted, p_of, percent, signed
from magistrate.analysis.columns import AGAIN, KNOWN, NOT_STORED, groups_of
from magistrate.datasets.fields import like_context
from magistrate.errors import InputError
from magistrate.features.signals import ngram_novelty, output_length
from magistrate.metrics.calibration import ScoreShift, score_shift
from magistrate.metrics.classification import Estimate, classification
from magistrate.metrics.distributions import roc_curve
from magistrate.metrics.reliability import reliability
from magistrate.metrics.spans import SpanScores, Stretch, span_scores
from magistrate.metrics.thresholds import threshold_gain
from magistrate.report.formatting import decimal, interval, tally
from magistrate.report.values import Baseline, JudgeReport, Report, RunFacts, name_of
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

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def baselines(samples: Iterable[Sample], labels: NDArray[np.bool_] | None = None) -> tuple[Baseline, ...]:
    """Return the four trivial rules, measured on the samples that are labelled faithful or hallucinated.

    Samples without one of these labels or without an output are skipped. Empty if none is left. With
    `labels`, True for hallucinated, the two rules that read no sample are measured on these.
    """
    import numpy as np

    kept = [s for s in samples if s.label in (FAITHFUL, HALLUCINATED) and s.output is not None]
    if not kept:
        return ()
    truth = np.array([s.label == HALLUCINATED for s in kept])
    every = truth if labels is None else labels
    return (
        _constant("majority", every, bool(2 * every.sum() > every.size)),
        _constant("always_hallucinated", every, True),
        _best_cut("length", truth, kept, output_length, "the output has {} or {} characters", "fewer"),
        _best_cut(
            "ngram_overlap",
            truth,
            kept,
            partial(ngram_novelty, n=2),
            "the share of new bigrams is {} or {}",
            "less",
        ),
    )


def _constant(name: str, truth: NDArray[np.bool_], answer: bool) -> Baseline:
    """Measure the rule that gives one label to everything."""
    import numpy as np

    rule = f"always {HALLUCINATED if answer else FAITHFUL}"
    return _measured(name, rule, truth, np.full(truth.shape, answer), np.full(truth.shape, float(answer)))


def _best_cut(
    name: str,
    truth: NDArray[np.bool_],
    samples: list[Sample],
    signal: Callable[[Sample], float],
    words: str,
    below: str,
) -> Baseline:
    """Measure the rule that cuts `signal` where balanced accuracy is best, in the better direction."""
    import numpy as np

    values = np.array([signal(s) for s in samples], dtype=np.float64)
    best, rule, said = 0.5, f"never {HALLUCINATED}: no threshold does better", np.zeros_like(truth)
    if truth.any() and not truth.all():
        for sign, side in ((1.0, "more"), (-1.0, below)):
            false_rate, true_rate, cuts = roc_curve(truth, sign * values)
            balanced = (true_rate + 1 - false_rate) / 2
            top = int(balanced.argmax())
            if balanced[top] > best:
                best, said = float(balanced[top]), sign * values >= cuts[top]
                rule = f"{HALLUCINATED} where " + words.format(f"{sign * cuts[top]:.4g}", side)
    spread = float(np.ptp(values))
    ranks = (values - values.min()) / spread if spread else np.zeros_like(values)
    return _measured(name, rule, truth, said, ranks)


def _measured(
    name: str,
    rule: str,
    truth: NDArray[np.bool_],
    said: NDArray[np.bool_],
    scores: NDArray[np.float64],
) -> Baseline:
    metrics = {key: e.value for key, e in classification(truth, said, scores).metrics.items()}
    if (area := metrics["auroc"]) is not None:
        metrics["auroc"] = max(area, 1 - area)
    return Baseline(name, rule, metrics)


# --- quotes and marked spans ----------------------------------------------------------------------


AGAINST = ("contradiction", "unsupported")
"""The kinds of claims that count against an output."""


def against(verdict: Verdict) -> list[Stretch]:
    """Return the stretches of the output that a verdict's claims call wrong."""
    return [
        (claim.output_quote.start, claim.output_quote.end)
        for claim in verdict.claims
        if claim.kind in AGAINST
    ]


def measured_spans(samples: Sequence[Sample], quoted: Mapping[str, Sequence[Stretch]]) -> SpanScores | None:
    """Measure how well quotes cover the spans marked by people, on labelled samples that have a verdict.

    `quoted` maps the id of a sample with claims to what was quoted as wrong in it. A faithful sample has no
    marks; a hallucinated one without marks is not counted. None if no sample is marked, or the judge makes
    no claims.
    """
    if not quoted or not any(sample.spans for sample in samples):
        return None
    counted = [sample for sample in samples if sample.spans or sample.label == FAITHFUL]
    return span_scores(
        [[(span.start, span.end) for span in sample.spans] for sample in counted],
        [quoted.get(sample.id, ()) for sample in counted],
        groups_of(counted),
        len(samples) - len(counted),
    )


# --- remarks --------------------------------------------------------------------------------------


def remarks(report: JudgeReport) -> tuple[str, ...]:
    """Return sentences about the limits of this judge's numbers, the most serious first."""
    return tuple(_remarks(report))


def _remarks(report: JudgeReport) -> Iterator[str]:
    if report.without_verdict is not None:
        yield f"{report.without_verdict[:1].upper()}{report.without_verdict[1:]}."
    yield from _unread(report)
    yield from _coverage(report)
    yield from _sampled(report)
    if report.n_ok > 1 and len(report.verdicts) == 1:
        (label,) = report.verdicts
        yield f"It gave every sample the same label: all {report.n_ok} verdicts are {label!r}."
    yield from _measured_on(report)
    if report.turned:
        yield (
            "A low score of this judge means hallucinated (its direction is maximize); AUROC, ECE, Brier "
            "score and log loss use 1 - score."
        )
    if report.scoring is None and any(label in report.verdicts for label in (FAITHFUL, HALLUCINATED)):
        yield f"There are no figures of its scores: {NOT_STORED}. {AGAIN}."
    yield from _calibration(report)
    if report.result is not None:
        yield from _ranking(report)
        yield from _threshold(report)
        yield from _beside_baselines(report)


def _unread(report: JudgeReport) -> Iterator[str]:
    """Yield remarks on the rows that could not be read, and on blank cells."""
    if report.unread is None:
        return
    if report.unread.n:
        yield f"{report.unread}. They are not in the figures, but they lower the coverage."
    for blank in report.unread.blanks:
        yield f"{str(blank)[:1].upper()}{str(blank)[1:]}."


def _coverage(report: JudgeReport) -> Iterator[str]:
    if report.n_ok == report.n_total:
        return
    parts = []
    if failed := sum(report.failures.values()):
        parts.append(f"{failed} failed ({tally(report.failures)})")
    if abstained := sum(report.abstentions.values()):
        parts.append(f"{abstained} abstained ({tally(report.abstentions)})")
    if waiting := report.n_total - report.n_judged:
        parts.append(f"{waiting} not judged")
    yield (
        f"{report.n_total - report.n_ok} of {counted(report.n_total, 'sample')} have no verdict (coverage "
        f"{percent(report.coverage)}): {', '.join(parts)}. They count for neither label."
    )


def _sampled(report: JudgeReport) -> Iterator[str]:
    """Yield which figures of a large run rest on some of its samples only."""
    if report.n_sampled is None or not report.baselines:
        return
    told = ["length", "n-gram overlap"] + (["spans"] if report.spans is not None else [])
    yield (
        f"The figures of {', '.join(told[:-1])} and {told[-1]} rest on {report.n_sampled:,} of "
        f"{report.n_labelled:,} labelled samples, drawn at random; all others on every outcome."
    )


def _measured_on(report: JudgeReport) -> Iterator[str]:
    """Yield which verdicts the metrics leave out, and why."""
    known = f"only {FAITHFUL!r} and {HALLUCINATED!r} are counted"
    if report.other_gold:
        yield f"Other gold labels: {report.other_gold}; {known}."
    if report.other_verdicts:
        yield f"Other verdict labels: {report.other_verdicts}; {known}."
    if not report.n_ok:
        return
    if not report.n_labelled:
        yield (
            f"No sample is labelled, so nothing can be measured; "
            f"{percent(report.hallucinated_share)} of the verdicts say {HALLUCINATED!r}."
        )
    elif unlabelled := report.n_judged - report.n_labelled - report.other_gold:
        yield f"Without a gold label: {unlabelled} of {report.n_judged} samples; metrics do not include them."


def _ranking(report: JudgeReport) -> Iterator[str]:
    assert report.result is not None
    area = report.result.metrics["auroc"]
    if area.low is None or area.high is None:
        return
    shown = f"AUROC {decimal(area.value)} {interval(area)}"
    if area.low <= 0.5 <= area.high:
        yield (
            f"On {counted(report.n_measured, 'sample')}, ranking is not shown to be better than chance: its "
            f"interval contains .5 ({shown})."
        )
    elif area.high < 0.5:
        yield f"It ranks in the wrong order, worse than chance ({shown})."


def _threshold(report: JudgeReport) -> Iterator[str]:
    """Yield a remark if scores rank well but labels do not, since then the threshold is the problem."""
    assert report.result is not None
    found, area, own = report.threshold_gain, report.result.metrics["auroc"], report.scoring
    chosen = own is not None and own.calibrated_on is not None and own.calibrated_on.aim is not None
    if found is None or not found.shown or area.low is None or area.low <= 0.5 or chosen:
        return
    at = "" if own is None or own.threshold is None else f" at its threshold {decimal(own.threshold)}"
    yield (
        f"The threshold is the problem, not the ranking: AUROC {decimal(area.value)}, but balanced accuracy "
        f"{decimal(found.own)}{at}. Thresholds chosen on other contexts of this data give "
        f"{decimal(found.held_out)}, {signed(found.gain)} [{signed(found.low)}, {signed(found.high)}]. To "
        f"choose one: {report.calibrate}; to use it, add --calibration with that file."
    )


def _calibration(report: JudgeReport) -> Iterator[str]:
    """Yield a remark if the scores differ from those of the data that the calibration was fitted to."""
    on = None if report.scoring is None else report.scoring.calibrated_on
    if on is None or not report.n_ok:
        return
    if on.scores is None:
        yield (
            f"It is unknown whether its calibration on {on.dataset} is valid here: its file is from an older "
            "version and lacks the scores that it was fitted to. Calibrate again."
        )
    elif report.shift is not None and report.shift.shown:
        found = report.shift
        yield (
            f"Its calibration was fitted to other data: the scores here differ from those of {on.dataset} by "
            f"up to {decimal(found.distance)} (Kolmogorov-Smirnov, p {p_of(found.p)}; {found.n} contexts "
            f"here, {found.n_before} there). Its probabilities and its threshold may be wrong here; label "
            f"some of these outputs and calibrate on them: {report.calibrate}"
        )


def _beside_baselines(report: JudgeReport) -> Iterator[str]:
    assert report.result is not None
    own = report.result.metrics["balanced_accuracy"].value
    scored = [(value, b) for b in report.baselines if (value := b.metrics["balanced_accuracy"]) is not None]
    if own is None or not scored:
        return
    value, best = max(scored, key=lambda pair: pair[0])
    if own <= value:
        yield (
            f"It does not beat the best trivial baseline on balanced accuracy: {decimal(own)} against "
            f"{decimal(value)} by {name_of(best.name)}."
        )


# --- summary --------------------------------------------------------------------------------------


def summarize(
    run: RunFacts,
    samples: Mapping[str, Sample],
    outcomes: Iterable[Outcome],
    recipes: Mapping[str, Recipe | str],
    scoring: Mapping[str, Scoring] | None = None,
) -> Report:
    """Count and measure every judge's outcomes over `samples` (by id), in any order.

    Judges are sorted by the order of `recipes`, then by name. A judge with a recipe but no outcome is
    reported too. The score of a verdict ranks samples for AUROC and is compared with the truth as a
    probability. It is inverted if a low score means hallucinated, by the judge's `scoring`. Scores of a
    judge that is not in `scoring` are not measured. All other metrics use the label. Intervals resample
    samples of the same context together. Raises `InputError` for an outcome of an unknown sample, a second
    one of the same judge and sample, or more outcomes than `run.n_total`.
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
            # In the order of `samples`, so that the result does not depend on the order of outcomes.
            cached[labelled] = baselines(s for i, s in samples.items() if i in labelled)
        cost = None if run.seconds is None or not busy else run.seconds / busy
        counts = tally.counts(samples)
        spans = measured_spans([samples[i] for i in counts.measured_ids], tally.quoted)
        known = (scoring or {}).get(judge)
        found = judge_report(counts, run.n_total, cached[labelled], spans, recipes.get(judge), cost, known)
        columns = like_context(samples.values()) if "no_context" in found.abstentions else ()
        reports.append(finished(found, run, columns, alone=len(tallies) == 1))
    return Report(run, tuple(reports))


def finished(found: JudgeReport, run: RunFacts, columns: tuple[str, ...], *, alone: bool) -> JudgeReport:
    """Return the report of a judge, `alone` in its run or not, with advice and remarks.

    `columns` look like a context.
    """
    found = replace(
        found,
        calibrate=calibrate_command(run.id, found.judge, alone=alone),
        unread=run.unread,
        like_context=() if found.n_ok else columns,
    )
    # While a run goes on, what it lacks yet is no remark about what it found.
    return found if run.status == "running" else replace(found, remarks=remarks(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What is counted of one judge's outcomes.

    `gold` and `verdicts` count labels, `seconds` float `[n_judged]` are the times of the outcomes. The
    measured samples are `truth` and `said` bool `[m]`, True is hallucinated, `scores` float `[m]`, the
    judge's own, and `groups` int `[m]`, the same for samples of one context. `every_score` and `every_group`
    are those of all faithful or hallucinated verdicts. `measured_ids` are the ids of the measured samples,
    empty if they are not known.
    """

    judge: str
    n_judged: int
    n_ok: int
    gold: Counter[str]
    verdicts: Counter[str]
    failures: Counter[str]
    abstentions: Counter[str]
    seconds: NDArray[np.float64]
    usage: Usage
    n_explained: int
    flips: int
    truth: NDArray[np.bool_]
    said: NDArray[np.bool_]
    scores: NDArray[np.float64]
    groups: NDArray[np.int64]
    every_score: NDArray[np.float64]
    every_group: NDArray[np.int64]
    measured_ids: Sequence[str] = ()


def judge_report(
    counts: Counts,
    n_total: int,
    beside: tuple[Baseline, ...],
    spans: SpanScores | None,
    recipe: Recipe | str | None,
    cost: float | None,
    scoring: Scoring | None,
    n_sampled: int | None = None,
) -> JudgeReport:
    """Return a judge's report. `cost` is the seconds of the run per second of an outcome, or None.

    `beside` and `spans` were measured on `n_sampled` samples, None for all.
    """
    import numpy as np

    truth, said, groups, gold = counts.truth, counts.said, counts.groups, counts.gold
    scores = result = gain = None
    if scoring is not None:
        scores = 1 - counts.scores if scoring.turned else counts.scores
    if truth.size:
        result = classification(truth, said, scores, groups)
        if scores is None:
            result = replace(result, metrics={**result.metrics, "auroc": Estimate.none(NOT_STORED)})
        else:
            gain = threshold_gain(truth, said, scores, groups)
    seconds = counts.seconds
    return JudgeReport(
        judge=counts.judge,
        n_total=n_total,
        n_judged=counts.n_judged,
        n_ok=counts.n_ok,
        n_labelled=sum(gold[label] for label in KNOWN),
        n_measured=truth.size,
        other_gold=gold.total() - sum(gold[label] for label in KNOWN),
        other_verdicts=counts.verdicts.total() - sum(counts.verdicts[label] for label in KNOWN),
        failures=_sorted(counts.failures),
        abstentions=_sorted(counts.abstentions),
        verdicts=_sorted(counts.verdicts),
        gold=_sorted(gold),
        result=result,
        baselines=beside,
        seconds_per_sample=fmean(seconds.tolist()) * cost if seconds.size and cost is not None else None,
        latency_median=float(np.median(seconds)) if seconds.any() else None,
        usage=counts.usage,
        n_explained=counts.n_explained,
        flips=counts.flips,
        recipe=recipe.line() if isinstance(recipe, Recipe) else recipe,
        calibration=reliability(truth, scores) if truth.size and scores is not None else None,
        scoring=scoring,
        n_contexts=int(np.unique(groups).size),
        spans=spans,
        threshold_gain=gain,
        shift=_shift(counts, scoring),
        n_sampled=n_sampled,
    )


def _shift(counts: Counts, scoring: Scoring | None) -> ScoreShift | None:
    """Compare all scores, labelled or not, with those that the judge was calibrated on."""
    before = scoring.calibrated_on.scores if scoring and scoring.calibrated_on else None
    if before is None or not counts.every_score.size:
        return None
    return score_shift(counts.every_score, counts.every_group, before)


@dataclass(slots=True)
class _Tally:
    """Running counts of one judge's outcomes, without their steps and texts."""

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
                f"{len(samples)} given samples; pass the samples of the same run"
            )
        if sample_id in self.judged:
            raise InputError(f"judge {self.judge!r} has two outcomes for sample {sample_id!r}; pass only one")
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

    def counts(self, samples: Mapping[str, Sample]) -> Counts:
        """Return the counts, and the measured samples in the order of their ids."""
        import numpy as np

        known = sorted(i for i, (label, _) in self.said.items() if label in KNOWN)
        measured = [i for i in known if samples[i].label in KNOWN]
        return Counts(
            judge=self.judge,
            n_judged=len(self.judged),
            n_ok=len(self.said),
            gold=Counter(label for i in self.judged if (label := samples[i].label) is not None),
            verdicts=Counter(label for label, _ in self.said.values()),
            failures=self.failures,
            abstentions=self.abstentions,
            seconds=np.array(self.seconds, dtype=np.float64),
            usage=self.usage,
            n_explained=self.n_explained,
            flips=self.flips,
            truth=np.array([samples[i].label == HALLUCINATED for i in measured], dtype=np.bool_),
            said=np.array([self.said[i][0] == HALLUCINATED for i in measured], dtype=np.bool_),
            scores=np.array([self.said[i][1] for i in measured], dtype=np.float64),
            groups=groups_of(samples[i] for i in measured),
            every_score=np.array([self.said[i][1] for i in known], dtype=np.float64),
            every_group=groups_of(samples[i] for i in known),
            measured_ids=measured,
        )


def calibrate_command(run_id: str, judge: str, *, alone: bool) -> str:
    """Return the command that calibrates a judge, `alone` in its run or not, and chooses its threshold."""
    named = "" if alone else f" --judge {quote(judge)}"
    file = re.sub(r"[^A-Za-z0-9._-]+", "_", judge).strip("._-") or "judge"
    return f"magistrate calibrate {quote(run_id)}{named} --maximize balanced_accuracy --to {file}.json"


def _sorted(counts: Counter[str]) -> dict[str, int]:
    """Sort by count, the largest first, then by name."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
