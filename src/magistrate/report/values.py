"""The values of a run's report, which become JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magistrate.datasets.rows import Unread
from magistrate.metrics.classification import Classification
from magistrate.metrics.reliability import Reliability
from magistrate.metrics.shift import ScoreShift
from magistrate.metrics.spans import SpanScores
from magistrate.metrics.thresholds import ThresholdGain
from magistrate.report.formatting import as_text, tally
from magistrate.types import HALLUCINATED, Scoring, Usage

FOOTNOTE = (
    "Length and n-gram overlap are given the threshold and direction that are best on this very data, "
    "and an AUROC free of direction, max(a, 1 - a): an upper bound of what the shortcut gives."
)


@dataclass(frozen=True, slots=True)
class Baseline:
    """A trivial rule in words and its metrics: a number in [0, 1], or None where undefined."""

    name: str
    rule: str
    metrics: Mapping[str, float | None]

    def to_dict(self) -> dict[str, float | str | None]:
        """Every metric by name, and the rule."""
        return {**self.metrics, "rule": self.rule}


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a run besides its outcomes.

    `n_total` is how many samples each judge was to judge; `seconds` how long the run was at work in
    all, None while it is unknown; `reason` why it stopped before its time, if it did and that is known.
    `unread` says how many rows of the data could not be read; None where that was not counted. `damaged`
    names what the store cannot give back: no figure counts it.
    """

    id: str
    name: str
    dataset: str
    status: str
    n_total: int
    seconds: float | None = None
    reason: str | None = None
    unread: Unread | None = None
    damaged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JudgeReport:
    """One judge's part in a run.

    `n_total` samples were to be judged, `n_judged` have an outcome, `n_ok` a verdict. Of the judged,
    `n_labelled` carry a gold label `faithful` or `hallucinated`; `n_measured` of these also have a
    verdict with such a label, and `result` (None if there are none) rests on them alone. `other_gold`
    and `other_verdicts` count labels of other names, which no metric counts. `verdicts` and `gold`
    count labels of verdicts and of judged samples. `baselines` are over all labelled samples judged.
    `seconds_per_sample` is what an outcome cost: the run's wall clock, with loading and with what a task
    took, shared among the judges by the time that each one's outcomes took, and divided by their number;
    None where the run's seconds are not known. `latency_median` is the median of the seconds from the
    beginning of a judgement to its end, waiting for others under way included; None without any.
    `flips` of `n_explained` explanations led to another label than the verdict's. `spans` says how well what
    was quoted as wrong covers what people marked; None where nobody marked anything or nothing was quoted.
    `calibration` says how far the scores of the measured samples are probabilities; None without any.
    `scoring` says how its scores are read, as the run stored it; None if it is not known, and then nothing of
    scores is measured. Where a low score means hallucinated (`turned`), 1 - score was. The measured samples
    are of `n_contexts` contexts. `threshold_gain` is what another threshold would change, None where too few
    samples are measured or labels are not the judge's own; `shift` how far the scores are from those that the
    judge's calibration was fitted to, None where there are none. `calibrate` is the command that chooses a
    threshold. `unread` is that of the run: rows that are no samples. `like_context` are columns that look
    like the context that every sample lacks.
    """

    judge: str
    n_total: int
    n_judged: int
    n_ok: int
    n_labelled: int
    n_measured: int
    other_gold: int
    other_verdicts: int
    failures: Mapping[str, int]
    abstentions: Mapping[str, int]
    verdicts: Mapping[str, int]
    gold: Mapping[str, int]
    result: Classification | None
    baselines: tuple[Baseline, ...]
    seconds_per_sample: float | None
    latency_median: float | None
    usage: Usage
    n_explained: int
    flips: int
    recipe: str | None
    remarks: tuple[str, ...] = ()
    spans: SpanScores | None = None
    calibration: Reliability | None = None
    scoring: Scoring | None = None
    n_contexts: int = 0
    threshold_gain: ThresholdGain | None = None
    shift: ScoreShift | None = None
    calibrate: str | None = None
    unread: Unread | None = None
    like_context: tuple[str, ...] = ()

    @property
    def turned(self) -> bool:
        """Whether a low score of this judge is known to mean hallucinated."""
        return self.scoring is not None and self.scoring.turned

    @property
    def n_unread(self) -> int:
        """How many rows of the run's data could not be read."""
        return 0 if self.unread is None else self.unread.n

    @property
    def read_share(self) -> float:
        """Share of the rows of the run's data that could be read, in [0, 1]."""
        return 1.0 if self.unread is None else 1 - self.unread.share

    @property
    def coverage(self) -> float | None:
        """Share of the rows that have a verdict, in [0, 1]; None for a run of no samples.

        It is `n_ok / n_total` times the share of rows that could be read.
        """
        return self.n_ok / self.n_total * self.read_share if self.n_total else None

    @property
    def without_verdict(self) -> str | None:
        """That no sample has a verdict, and what to do, in words; None where that is not so."""
        if self.n_ok or not self.abstentions:
            return None
        told = f"{sum(self.abstentions.values())} abstained ({tally(self.abstentions)})"
        if self.failures:
            told += f", {sum(self.failures.values())} failed ({tally(self.failures)})"
        advice = context_advice(self.like_context) if "no_context" in self.abstentions else ""
        return f"no verdict on any of {self.n_judged} samples: {told}{advice}"

    @property
    def hallucinated_share(self) -> float | None:
        """Share of the verdicts that say hallucinated, in [0, 1]; None without a verdict."""
        return self.verdicts.get(HALLUCINATED, 0) / self.n_ok if self.n_ok else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `metrics` and `confusion` are empty where nothing could be measured."""
        result = self.result
        return {
            "n_ok": self.n_ok,
            "n_total": self.n_total,
            "n_judged": self.n_judged,
            "n_labelled": self.n_labelled,
            "n_measured": self.n_measured,
            "n_contexts": self.n_contexts,
            "n_unread": self.n_unread,
            "coverage": self.coverage,
            "metrics": {name: e.to_dict() for name, e in result.metrics.items()} if result else {},
            "confusion": result.confusion.to_dict() if result else {},
            "baselines": {b.name: b.to_dict() for b in self.baselines},
            "seconds_per_sample": self.seconds_per_sample,
            "latency_median": self.latency_median,
            "tokens": {
                "calls": self.usage.calls,
                "prompt": self.usage.prompt,
                "cached": self.usage.cached,
                "generated": self.usage.generated,
                "forced": self.usage.forced,
                "reused": self.usage.reused,
            },
            "failures": dict(self.failures),
            "abstentions": dict(self.abstentions),
            "verdicts": dict(self.verdicts),
            "hallucinated_share": self.hallucinated_share,
            "gold": dict(self.gold),
            "other_labels": {"gold": self.other_gold, "verdicts": self.other_verdicts},
            "explanations": {"total": self.n_explained, "flips": self.flips},
            "direction": self.scoring.direction if self.scoring else None,
            "threshold": self.scoring.threshold if self.scoring else None,
            "labels": list(self.scoring.labels) if self.scoring else None,
            "threshold_gain": self.threshold_gain.to_dict() if self.threshold_gain else None,
            "score_shift": self.shift.to_dict() if self.shift else None,
            "recipe": self.recipe,
            "remarks": list(self.remarks),
            "like_context": list(self.like_context),
            "calibration": self.calibration.to_dict() if self.calibration else None,
            "spans": self.spans.to_dict() if self.spans else None,
        }


def context_advice(columns: Sequence[str]) -> str:
    """What to do where no sample has a context; `columns` are those that look like one."""
    if not columns:
        return "; no column looks like a context: name one with --map context=COLUMN"
    return f"; columns that look like a context: {', '.join(columns)}; map one: --map context={columns[0]}"


@dataclass(frozen=True, slots=True)
class Report:
    """A run and what each judge made of it."""

    run: RunFacts
    judges: tuple[JudgeReport, ...]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON values, without NaN or infinity."""
        run = self.run
        return {
            "run": {
                "id": run.id,
                "name": run.name,
                "status": run.status,
                "n_total": run.n_total,
                "seconds": run.seconds,
                "reason": run.reason,
                "unread": None if run.unread is None else run.unread.to_dict(),
                "damaged": list(run.damaged),
            },
            "dataset": run.dataset,
            "judges": {judge.judge: judge.to_dict() for judge in self.judges},
        }

    def _repr_html_(self) -> str:
        """The report in a notebook."""
        from magistrate.report.html.page import report_html

        return report_html(self)

    def __str__(self) -> str:
        """What `render` prints, without colour and 80 columns wide."""
        from magistrate.report.terminal import render

        return as_text(lambda console: render(self, console))
