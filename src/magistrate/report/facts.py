"""What is known of a judge's part in a run besides its metrics: one name and one line of words a fact."""

from __future__ import annotations

from collections.abc import Iterator

from magistrate._text import percent
from magistrate.metrics.classification import METRICS, Classification
from magistrate.metrics.spans import SpanScores
from magistrate.report.figures import decimal, duration, tally
from magistrate.report.values import JudgeReport
from magistrate.types import FAITHFUL, HALLUCINATED, Scoring

NAMES = {
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "auroc": "AUROC",
    "always_hallucinated": "always\nhallucinated",
    "ngram_overlap": "n-gram\noverlap",
    "length": "length\nonly",
}


def fact_lines(judge: JudgeReport) -> Iterator[tuple[str, str]]:
    """The name and the words of each fact, in the order of reading; nothing in them is escaped."""
    unread = f"; {judge.unread.short}" if judge.unread is not None and judge.unread.n else ""
    yield "ok", f"{judge.n_ok}/{judge.n_total} ({percent(judge.coverage)}{unread})"
    if judge.failures:
        yield "failures", tally(judge.failures)
    if judge.abstentions:
        yield "abstentions", tally(judge.abstentions)
    if judge.verdicts:
        yield "verdicts", tally(judge.verdicts)
    if judge.result is not None:
        c = judge.result.confusion
        yield (
            "measured on",
            f"{judge.n_measured} samples{_contexts(judge)}: {c.positives} {HALLUCINATED}, {c.negatives} "
            f"{FAITHFUL} in truth",
        )
        yield from _undefined(judge.result)
    if (found := judge.calibration) is not None:
        losses = map(decimal, (found.ece, found.ece_by_chance, found.brier, found.log_loss))
        yield "calibration", "ECE {} ({} by chance), Brier {}, log loss {}".format(*losses)
    if judge.verdicts:
        yield "scores", _scoring(judge.scoring)
    if judge.spans is not None:
        yield "spans", _spans(judge.spans)
    if judge.latency_median is not None:
        known = judge.seconds_per_sample is not None
        cost = (
            f"{duration(judge.seconds_per_sample)} of the run" if known else "not known, the run has no end"
        )
        yield "time a sample", f"{cost}; answered after {duration(judge.latency_median)} (median)"
    usage = judge.usage
    yield (
        "tokens",
        f"{usage.prompt:,} read ({usage.cached:,} from cache), {usage.generated:,} written "
        f"({usage.forced:,} forced), {usage.calls:,} calls",
    )
    if usage.reused:
        yield (
            "reused",
            f"{usage.reused:,} of {usage.reused + usage.calls:,} calls were answered from the cache of "
            "earlier ones: tokens and times are not all that the answers once took",
        )
    if judge.n_explained:
        yield "explanations", f"{judge.flips} of {judge.n_explained} lead to another label"
    for baseline in judge.baselines[2:]:
        yield NAMES.get(baseline.name, baseline.name).replace("\n", " "), baseline.rule
    yield "recipe", judge.recipe or "not recorded"


def _scoring(scoring: Scoring | None) -> str:
    """How scores are read, as the run stored it."""
    if scoring is None:
        return "not known which way they run: the run was stored before runs said so"
    if {FAITHFUL, HALLUCINATED} <= set(scoring.labels):
        told = f"a {'low' if scoring.turned else 'high'} one means {HALLUCINATED}"
    else:
        told = f"a {'high' if scoring.turned else 'low'} one is good"
    if scoring.threshold is None:
        return f"{told}; no threshold is declared"
    return f"{told}; threshold {decimal(scoring.threshold)}"


def _contexts(judge: JudgeReport) -> str:
    """Of how many contexts the measured samples are, where that is fewer."""
    if judge.n_contexts == judge.n_measured:
        return ""
    return f" of {judge.n_contexts} {'context' if judge.n_contexts == 1 else 'contexts'}"


def _undefined(result: Classification) -> Iterator[tuple[str, str]]:
    """Why a metric has no value, and why it has no interval, one line a reason."""
    bare: dict[str, list[str]] = {}
    for metric in METRICS:
        estimate, name = result.metrics[metric], NAMES.get(metric, metric)
        if estimate.undefined and estimate.value is None:
            yield "undefined", f"{name}: {estimate.undefined}"
        elif estimate.undefined:
            bare.setdefault(estimate.undefined, []).append(name)
    for reason, names in bare.items():
        yield "intervals", f"{', '.join(names)}: {reason}"


def _spans(spans: SpanScores) -> str:
    """Characters quoted as wrong against those that people marked."""
    names = {"precision": "precision", "recall": "recall", "f1": "F1", "iou": "overlap over union"}
    figures = [
        f"{names[name]} {estimate}" if estimate.value is not None else f"{names[name]}: {estimate.undefined}"
        for name, estimate in spans.metrics.items()
    ]
    lacking = f"; {spans.not_counted} hallucinated without a mark not counted" if spans.not_counted else ""
    return f"{', '.join(figures)}, in characters of {spans.n} samples{lacking}"
