"""Gates: limits that a run's metrics must meet, for scripts and CI."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from magistrate.datasets.fields import near
from magistrate.errors import SpecError
from magistrate.metrics.classification import METRICS, Estimate, PlainFields
from magistrate.metrics.reliability import LOSSES
from magistrate.report.values import JudgeReport, Report

Sign = Literal[">=", "<="]
End = Literal["lower", "upper"]

PATTERN = re.compile(
    r"(?:(?P<judge>.+)\.)?(?:(?P<end>lower|upper)\((?P<inner>[a-z0-9_]+)\)|(?P<metric>[a-z0-9_]+))"
    r"\s*(?P<sign>[<>]=)\s*(?P<bound>[0-9.]+)"
)
COUNTED = ("coverage", "failures", "abstentions")
"""Shares of all samples of the run; they are counted, so that they have no interval."""
FLAGGED = "flagged"
"""The share of the verdicts that say hallucinated; it needs no gold labels, and has no interval."""
FIGURES = (*METRICS, FLAGGED, *COUNTED, *LOSSES)
UNBOUNDED = ("log_loss",)

LEAST_COVERAGE = 0.9  # minimum share of the run that a metric must be measured on


@dataclass(frozen=True, slots=True)
class GateResult(PlainFields):
    """A gate's result for one judge: whether it `passed`, and why, with the value, its interval and n."""

    gate: str
    judge: str
    passed: bool
    reason: str
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Gate:
    """A limit `FIGURE>=VALUE` or `FIGURE<=VALUE` for every judge, or `JUDGE.FIGURE>=VALUE` for one.

    A figure is one of `FIGURES`, or `lower(METRIC)` or `upper(METRIC)`, the ends of the 95 % interval of
    one of `METRICS`. A figure that could not be measured fails its gate. So does a figure of a judge with
    verdicts faithful or hallucinated on less than `LEAST_COVERAGE` of the samples, or of the labelled ones.
    Unreadable rows count as samples without a verdict.
    """

    metric: str
    bound: float
    sign: Sign = ">="
    end: End | None = None
    judge: str | None = None

    @classmethod
    def parse(cls, text: str, judges: Sequence[str]) -> Gate:
        """Parse a gate on these judges. Raises `SpecError` with the known names."""
        match = PATTERN.fullmatch(text.strip())
        metric = match and (match["inner"] or match["metric"])
        if match is None or metric not in FIGURES:
            raise SpecError(
                "write a gate as METRIC>=VALUE or METRIC<=VALUE, such as f1>=0.7 or lower(f1)>=0.6; got "
                f"{text!r}{near(metric or '', FIGURES)}; known: {', '.join(FIGURES)}"
            )
        if match["end"] and metric not in METRICS:
            raise SpecError(
                f"{metric} in the gate {text!r} has no interval; metrics with one: {', '.join(METRICS)}"
            )
        try:
            bound = float(match["bound"])
        except ValueError:
            raise SpecError(f"{match['bound']!r} in the gate {text!r} is not a number") from None
        if match["sign"] == ">=" and bound > 1 and metric not in UNBOUNDED:
            raise SpecError(f"figures are in [0, 1], so the gate {text!r} can never be passed")
        if match["judge"] not in (None, *judges):
            raise SpecError(f"the gate {text!r} matches no judge of this run; it has: {', '.join(judges)}")
        sign: Sign = ">=" if match["sign"] == ">=" else "<="
        end: End | None = None if match["end"] is None else "lower" if match["end"] == "lower" else "upper"
        return cls(metric, bound, sign, end, match["judge"])

    def __str__(self) -> str:
        return f"{self.figure}{self.sign}{self.bound:g}"

    @property
    def figure(self) -> str:
        """The figure's name, such as `lower(f1)`."""
        return f"{self.end}({self.metric})" if self.end else self.metric

    def results(self, report: Report) -> Iterator[GateResult]:
        """Yield the gate's result for every judge that it applies to. It fails if the run is not done."""
        status = report.run.status
        for judge in report.judges:
            if self.judge not in (None, judge.judge):
                continue
            if status != "done":
                reason = f"the run is {status}, so its figures are incomplete"
                yield GateResult(str(self), judge.judge, False, reason)
            else:
                yield self._result(judge)

    def _result(self, judge: JudgeReport) -> GateResult:
        """Return the result of the gate for one judge of a run that is done."""

        def result(passed: bool, reason: str, value: float | None = None) -> GateResult:
            return GateResult(str(self), judge.judge, passed, reason, value)

        if self.metric not in COUNTED and (short := _too_few(judge)):
            return result(False, f"{self.metric} is based on {short}, less than {LEAST_COVERAGE:.0%}")
        estimate, n = self._measured(judge)
        if estimate.value is None:
            because = f": {estimate.undefined}" if estimate.undefined else ""
            return result(False, f"{self.metric} could not be measured{because}")
        value = estimate.value
        if self.end is not None:
            reached = estimate.low if self.end == "lower" else estimate.high
            if reached is None:
                return result(
                    False, f"{self.metric} is {value:.3f} without an interval: {estimate.undefined}"
                )
            value = reached
        passed = value >= self.bound if self.sign == ">=" else value <= self.bound
        wanted = f"at {'least' if self.sign == '>=' else 'most'} {self.bound:g}"
        around = "" if estimate.low is None else f", 95 % interval [{estimate.low:.3f}, {estimate.high:.3f}]"
        told = f"{self.figure} is {value:.3f}, {'' if passed else 'not '}{wanted}"
        of = f"{self.metric} {estimate.value:.3f}{around}, n={n}" if self.end else f"n={n}{around}"
        of += _unread(judge)
        return result(passed, f"{told} ({of})", value)

    def _measured(self, judge: JudgeReport) -> tuple[Estimate, int]:
        """Return the value and the number of samples that it is measured on."""
        if self.metric in COUNTED:
            counts = {
                "failures": sum(judge.failures.values()),
                "abstentions": sum(judge.abstentions.values()),
            }
            if not judge.n_total:
                return Estimate.none("there are no samples"), 0
            if self.metric == "coverage":
                return Estimate(judge.coverage, None, None), judge.n_total
            return Estimate(counts[self.metric] / judge.n_total, None, None), judge.n_total
        if self.metric == FLAGGED:
            share = judge.hallucinated_share
            known = Estimate.none("there are no verdicts") if share is None else Estimate(share, None, None)
            return known, judge.n_ok
        if judge.result is None:
            return Estimate.none("no judged sample has a gold label"), 0
        if self.metric in METRICS:
            return judge.result.metrics[self.metric], judge.n_measured
        calibration = judge.calibration
        if calibration is None:
            return Estimate.none("there are no labelled samples with scores"), 0
        return Estimate(getattr(calibration, self.metric), None, None), calibration.n


def _too_few(judge: JudgeReport) -> str | None:
    """Return the share that a metric is measured on, in words, if it is below the minimum, else None."""
    parts = (
        ("the samples", judge.n_ok - judge.other_verdicts, judge.n_total),
        ("the labelled samples", judge.n_measured, judge.n_labelled),
    )
    for what, n, of in parts:
        if of and (share := n / of * judge.read_share) < LEAST_COVERAGE:
            return f"{share:.1%} of {what} ({n} of {of}{_unread(judge)})"
    return None


def _unread(judge: JudgeReport) -> str:
    """Return the number of unreadable rows, in words, for the reason of a gate."""
    return f"; {judge.unread.short}" if judge.unread is not None and judge.unread.n else ""


def results(gates: Iterable[str], report: Report) -> list[GateResult]:
    """Return the result of every gate for every judge that it applies to, in order. A run without judges
    fails them.

    Raises `SpecError` for a gate that cannot be parsed.
    """
    names = [judge.judge for judge in report.judges]
    found: list[GateResult] = []
    for text in gates:
        gate = Gate.parse(text, names)
        nobody = GateResult(str(gate), "no judge", False, "this run has no judgements")
        found += list(gate.results(report)) or [nobody]
    return found
