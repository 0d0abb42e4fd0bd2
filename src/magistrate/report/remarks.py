"""What a reader of the numbers must not miss, in words."""

from __future__ import annotations

from collections.abc import Iterator

from magistrate._text import percent, signed
from magistrate.analysis.columns import AGAIN, NOT_STORED
from magistrate.analysis.saying import p_of
from magistrate.report.figures import decimal, interval, tally
from magistrate.report.values import JudgeReport
from magistrate.types import FAITHFUL, HALLUCINATED


def remarks(report: JudgeReport) -> tuple[str, ...]:
    """Sentences about what limits this judge's numbers, the gravest first."""
    return tuple(_remarks(report))


def _remarks(report: JudgeReport) -> Iterator[str]:
    if report.without_verdict is not None:
        yield f"{report.without_verdict[:1].upper()}{report.without_verdict[1:]}."
    yield from _unread(report)
    yield from _coverage(report)
    if report.n_ok > 1 and len(report.verdicts) == 1:
        (label,) = report.verdicts
        yield f"It gave one label to everything: all {report.n_ok} verdicts are {label!r}."
    yield from _measured_on(report)
    if report.turned:
        yield (
            "A low score of this judge means hallucinated (its direction is maximize); AUROC, ECE, Brier "
            "score and log loss are of 1 - score."
        )
    if report.scoring is None and any(label in report.verdicts for label in (FAITHFUL, HALLUCINATED)):
        yield f"Nothing is said of its scores: {NOT_STORED}. {AGAIN}."
    yield from _calibration(report)
    if report.result is not None:
        yield from _ranking(report)
        yield from _threshold(report)
        yield from _beside_baselines(report)


def _unread(report: JudgeReport) -> Iterator[str]:
    """What of the data is in no figure because it could not be read, and what was read as blank."""
    if report.unread is None:
        return
    if report.unread.n:
        yield f"{report.unread}. No figure counts them, and they lower the coverage."
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
        f"{report.n_total - report.n_ok} of {report.n_total} samples have no verdict "
        f"(coverage {percent(report.coverage)}): {', '.join(parts)}. They count as no label."
    )


def _measured_on(report: JudgeReport) -> Iterator[str]:
    """Which verdicts the metrics leave out, and why."""
    known = f"only {FAITHFUL!r} and {HALLUCINATED!r} are counted"
    if report.other_gold:
        yield f"Gold labels of other names: {report.other_gold}; {known}."
    if report.other_verdicts:
        yield f"Verdict labels of other names: {report.other_verdicts}; {known}."
    if not report.n_ok:
        return
    if not report.n_labelled:
        yield (
            f"No sample is labelled, so nothing can be measured; "
            f"{percent(report.hallucinated_share)} of the verdicts say {HALLUCINATED!r}."
        )
    elif unlabelled := report.n_judged - report.n_labelled - report.other_gold:
        yield f"Without a gold label: {unlabelled} of {report.n_judged} samples; the metrics leave them out."


def _ranking(report: JudgeReport) -> Iterator[str]:
    assert report.result is not None
    area = report.result.metrics["auroc"]
    if area.low is None or area.high is None:
        return
    shown = f"AUROC {decimal(area.value)} {interval(area)}"
    if area.low <= 0.5 <= area.high:
        yield (
            f"As far as {report.n_measured} samples can tell, no better than chance at ranking: "
            f"its interval contains .5 ({shown})."
        )
    elif area.high < 0.5:
        yield f"It ranks the wrong way round, worse than chance ({shown})."


def _threshold(report: JudgeReport) -> Iterator[str]:
    """Where scores rank well and labels do not follow, the threshold is the problem."""
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
        f"choose one: {report.calibrate}; to judge with it, add --calibration and that file."
    )


def _calibration(report: JudgeReport) -> Iterator[str]:
    """Whether a calibration holds here: whether the scores are those of the data that it was fitted to."""
    on = None if report.scoring is None else report.scoring.calibrated_on
    if on is None or not report.n_ok:
        return
    if on.scores is None:
        yield (
            f"Whether its calibration on {on.dataset} holds here cannot be told: its file is of an older "
            "Magistrate and does not hold the scores that it was fitted to. Calibrate again."
        )
    elif report.shift is not None and report.shift.shown:
        found = report.shift
        yield (
            f"Its calibration was made for other data: the scores here differ from those of {on.dataset} by "
            f"up to {decimal(found.distance)} (Kolmogorov-Smirnov, p {p_of(found.p)}; {found.n} contexts "
            f"here, {found.n_before} there). Its probabilities and its threshold may not hold; label some of "
            f"these outputs and calibrate on them: {report.calibrate}"
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
            f"{decimal(value)} by {best.name.replace('_', ' ')}."
        )
