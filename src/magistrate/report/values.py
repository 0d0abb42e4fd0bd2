"""The metrics of a run, as JSON values and as the words that every rendering shows.

`Report` and `JudgeReport` contain the metrics. `JudgeView` and the functions after it give the plain values
that the terminal, the HTML file and the server's pages show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from magistrate._text import counted, percent
from magistrate.datasets.rows import Unread
from magistrate.metrics.calibration import ScoreShift
from magistrate.metrics.classification import METRICS, Classification, Confusion, Estimate
from magistrate.metrics.reliability import Reliability
from magistrate.metrics.spans import SpanScores
from magistrate.metrics.thresholds import ThresholdGain
from magistrate.report.charts import Chart
from magistrate.report.formatting import as_text, decimal, duration, interval, tally, with_interval
from magistrate.types import FAITHFUL, HALLUCINATED, Scoring, Usage

if TYPE_CHECKING:
    from magistrate.engines.prices import Price
    from magistrate.store.runs import RunRecord


FOOTNOTE = (
    "For length and n-gram overlap, the threshold and direction are the best ones on this data, and AUROC is "
    "max(a, 1 - a): an upper bound for these shortcuts."
)


@dataclass(frozen=True, slots=True)
class Baseline:
    """A trivial rule in words and its metrics, each in [0, 1], or None if undefined."""

    name: str
    rule: str
    metrics: Mapping[str, float | None]

    def to_dict(self) -> dict[str, float | str | None]:
        """Return every metric by name, and the rule."""
        return {**self.metrics, "rule": self.rule}


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts about a run besides its outcomes.

    `n_total` is the number of samples for each judge. `seconds` is the run's total working time, None if
    unknown. `reason` is why it stopped early, if it did and that is known. `unread` reports the unreadable
    rows of the data; None if they were not counted. `damaged` names the records that the store cannot read;
    no metric counts them.
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
    """The results of one judge in a run.

    Of `n_total` samples, `n_judged` have an outcome and `n_ok` a verdict. Of the judged, `n_labelled` have
    a gold label `faithful` or `hallucinated`. Of these, `n_measured` also have a verdict with such a label;
    `result` is computed on them alone and is None if there are none. `other_gold` and `other_verdicts`
    count other labels, which no metric counts. `verdicts` and `gold` count the labels of verdicts and of
    judged samples. `baselines` are computed on all labelled samples judged. `seconds_per_sample` is the
    cost of an outcome: the run's wall clock time, including loading and tasks, shared among the judges in
    proportion to the time of their outcomes, divided by their number. It is None if the run's seconds are
    unknown. `latency_median` is the median of seconds from the start to the end of a judgement, including
    waiting for others; None without any. `flips` of `n_explained` explanations led to another label than
    the verdict's. `spans` measures how well the quotes marked as wrong cover the spans marked by people;
    None if there are no marks or no quotes. `calibration` measures how far the scores of the measured
    samples are probabilities; None without any. `scoring` states how scores are read, as stored with the
    run. If it is None, nothing about scores is measured. If a low score means hallucinated (`turned`), 1 -
    score is measured. The measured samples have `n_contexts` contexts. `threshold_gain` is the effect of
    another threshold; None if too few samples are measured or labels are not the judge's own. `shift`
    compares the scores with those that the judge's calibration was fitted to; None without one. `calibrate`
    is the command that chooses a threshold. `unread` is that of the run. `like_context` are columns that
    look like a context, if every sample lacks one. In a run of many outcomes the baselines that read samples
    and `spans` are measured on `n_sampled` labelled samples drawn at random; it is None if they are measured
    on all.
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
    n_sampled: int | None = None

    @property
    def turned(self) -> bool:
        """Whether a low score of this judge is known to mean hallucinated."""
        return self.scoring is not None and self.scoring.turned

    @property
    def n_unread(self) -> int:
        """The number of unreadable rows in the run's data."""
        return 0 if self.unread is None else self.unread.n

    @property
    def read_share(self) -> float:
        """The share of the rows of the run's data that could be read, in [0, 1]."""
        return 1.0 if self.unread is None else 1 - self.unread.share

    @property
    def coverage(self) -> float | None:
        """The share of the rows that have a verdict, in [0, 1]; None for a run without samples.

        It is `n_ok / n_total` times the share of rows that could be read.
        """
        return self.n_ok / self.n_total * self.read_share if self.n_total else None

    @property
    def without_verdict(self) -> str | None:
        """A text that no sample has a verdict, with advice; None if some sample has one."""
        if self.n_ok or not self.n_judged:
            return None
        told = [
            f"{sum(counts.values())} {what} ({tally(counts)})"
            for what, counts in (("abstained", self.abstentions), ("failed", self.failures))
            if counts
        ]
        advice = context_advice(self.like_context) if "no_context" in self.abstentions else ""
        return f"no verdict on any of {counted(self.n_judged, 'sample')}: {', '.join(told)}{advice}"

    @property
    def hallucinated_share(self) -> float | None:
        """The share of the verdicts that are hallucinated, in [0, 1]; None without a verdict."""
        return self.verdicts.get(HALLUCINATED, 0) / self.n_ok if self.n_ok else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values. `metrics` and `confusion` are empty if nothing could be measured."""
        result = self.result
        return {
            "n_ok": self.n_ok,
            "n_total": self.n_total,
            "n_judged": self.n_judged,
            "n_labelled": self.n_labelled,
            "n_measured": self.n_measured,
            "n_contexts": self.n_contexts,
            "n_sampled": self.n_sampled,
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
    """Return advice for samples without a context. `columns` are those that look like one."""
    if not columns:
        return "; no column looks like a context: give one with --map context=COLUMN"
    return f"; columns that look like a context: {', '.join(columns)}; map one: --map context={columns[0]}"


@dataclass(frozen=True, slots=True)
class Report:
    """A run and the results of each judge."""

    run: RunFacts
    judges: tuple[JudgeReport, ...]

    @property
    def without_verdict(self) -> str | None:
        """A text on the judges without a single verdict, None if there is no such judge."""
        told = [f"{each.judge}: {why}" for each in self.judges if (why := each.without_verdict) is not None]
        return ". ".join(told) or None

    def too_many_failures(self, most: float) -> str | None:
        """Return a sentence on the judges whose share of failed outcomes exceeds `most`, or None.

        The share is computed per judge, so that others do not hide one that broke.
        """
        told = []
        for judge in self.judges:
            failed = sum(judge.failures.values())
            if judge.n_judged and failed / judge.n_judged > most:
                of = "judgements" if len(self.judges) == 1 else f"judgements of {judge.judge}"
                told.append(f"{failed} of {judge.n_judged} {of} failed")
        return f"{' and '.join(told)}, more than --max-failures {most:g}" if told else None

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values, without NaN or infinity."""
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
        """Return the report as HTML for a notebook."""
        from magistrate.report.html.page import report_html

        return report_html(self)

    def __str__(self) -> str:
        """Return what `render` prints, without colour and 80 columns wide."""
        from magistrate.report.terminal import render

        return as_text(lambda console: render(self, console))


# --- in words --------------------------------------------------------------------------------------


NAMES = {
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "auroc": "AUROC",
    "always_hallucinated": "always\nhallucinated",
    "ngram_overlap": "n-gram\noverlap",
    "length": "length\nonly",
}


def fact_lines(judge: JudgeReport) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each fact, in reading order. The texts are not escaped."""
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
            f"{counted(judge.n_measured, 'sample')}{_contexts(judge)}: {c.positives} {HALLUCINATED}, "
            f"{c.negatives} {FAITHFUL} in truth",
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
        cost = f"{duration(judge.seconds_per_sample)} of the run" if known else "unknown, the run has no end"
        yield "time a sample", f"{cost}; answered after {duration(judge.latency_median)} (median)"
    usage = judge.usage
    yield (
        "tokens",
        f"{usage.prompt:,} read ({usage.cached:,} from cache), {usage.generated:,} generated "
        f"({usage.forced:,} forced), {usage.calls:,} calls",
    )
    if usage.reused:
        yield (
            "reused",
            f"{usage.reused:,} of {usage.reused + usage.calls:,} calls were answered from the cache: their "
            "original tokens and times are not included",
        )
    if judge.n_explained:
        yield "explanations", f"{judge.flips} of {judge.n_explained} contradict the label"
    for baseline in judge.baselines[2:]:
        yield name_of(baseline.name), baseline.rule
    yield "recipe", judge.recipe or "not recorded"


def _scoring(scoring: Scoring | None) -> str:
    """Return how scores are read, as stored with the run, in words."""
    if scoring is None:
        return "direction unknown: the run is from an older version"
    if {FAITHFUL, HALLUCINATED} <= set(scoring.labels):
        told = f"a {'low' if scoring.turned else 'high'} score means {HALLUCINATED}"
    else:
        told = f"a {'high' if scoring.turned else 'low'} score is good"
    if scoring.threshold is None:
        return f"{told}; no threshold is declared"
    return f"{told}; threshold {decimal(scoring.threshold)}"


def _contexts(judge: JudgeReport) -> str:
    """Return the number of contexts of the measured samples, if it is smaller than that of samples."""
    if judge.n_contexts == judge.n_measured:
        return ""
    return f" of {judge.n_contexts} {'context' if judge.n_contexts == 1 else 'contexts'}"


def _undefined(result: Classification) -> Iterator[tuple[str, str]]:
    """Yield why a metric has no value, and why it has no interval, one line per reason."""
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
    """Compare the characters quoted as wrong with those that people marked."""
    names = {"precision": "precision", "recall": "recall", "f1": "F1", "iou": "overlap over union"}
    figures = [
        f"{names[name]} {estimate}" if estimate.value is not None else f"{names[name]}: {estimate.undefined}"
        for name, estimate in spans.metrics.items()
    ]
    lacking = f"; {spans.not_counted} hallucinated without a mark not counted" if spans.not_counted else ""
    return f"{', '.join(figures)}, in characters of {spans.n} samples{lacking}"


# --- values for pages -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Strip:
    """An interval on a line from 0 to 100, with the best trivial rule beside it; None for unknown values."""

    low: float | None
    value: float
    high: float | None
    best: float | None


@dataclass(frozen=True, slots=True)
class Metric:
    """A row of the table of metrics. `baselines` are the values of the trivial rules."""

    name: str
    value: str
    interval: str
    strip: Strip | None
    undefined: str | None
    baselines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JudgeView:
    """The section of one judge. `anchor` is its id in the page."""

    name: str
    anchor: str
    headline: str
    metrics: tuple[Metric, ...]
    baselines: tuple[str, ...]
    confusion: Confusion | None
    facts: tuple[tuple[str, str], ...]
    recipe: str
    remarks: tuple[str, ...]
    charts: tuple[Chart, ...]


def run_facts(report: Report, record: RunRecord) -> list[tuple[str, str]]:
    """Return the facts in the page header, as pairs of name and text."""
    run = report.run
    facts = [("Data", f"{run.dataset}, {run.n_total:,} {'sample' if run.n_total == 1 else 'samples'}")]
    if run.unread is not None and run.unread.n:
        facts += [("Unread", str(run.unread))]
    if run.damaged:
        facts += [("Damaged", f"{len(run.damaged)} in the store, not included in figures: {run.damaged[0]}")]
    facts += [("Model", record.model), ("Status", run.status + (f": {run.reason}" if run.reason else ""))]
    facts += [("Begun", f"{record.created_at:%Y-%m-%d %H:%M} UTC")]
    if run.seconds is not None:
        facts += [("Time", duration(run.seconds))]
    if record.tags:
        facts += [("Tags", ", ".join(record.tags))]
    if run.name != run.id:
        facts += [("Run", run.id)]
    return [*facts, ("Data digest", record.dataset_digest[:12])]


def judge_view(judge: JudgeReport, number: int, charts: tuple[Chart, ...], price: Price | None) -> JudgeView:
    """Return the section of one judge, the `number`th of the page. `price` is that of tokens, if known."""
    facts = [(name, words) for name, words in fact_lines(judge) if name not in ("recipe", "undefined")]
    if price is not None:
        after = next(at for at, (name, _) in enumerate(facts, 1) if name == "tokens")
        facts.insert(after, ("cost", f"${price.cost(judge.usage):,.4f} at {price}"))
    return JudgeView(
        name=judge.judge,
        anchor=f"judge-{number}",
        headline=headline(judge),
        metrics=tuple(_metrics(judge)),
        baselines=tuple(name_of(each.name) for each in judge.baselines),
        confusion=judge.result.confusion if judge.result else None,
        facts=tuple(facts),
        recipe=judge.recipe or "not recorded",
        remarks=judge.remarks,
        charts=charts,
    )


def headline(judge: JudgeReport) -> str:
    """Summarize the section in a sentence or two."""
    if judge.result is None:
        if not judge.n_ok:
            return "There is no verdict, so this judge cannot be measured."
        share = judge.verdicts.get(HALLUCINATED, 0)
        return f"{share:,} of {judge.n_ok:,} verdicts say {HALLUCINATED}; none has a gold label."
    found = judge.result
    right = found.confusion.true_positive + found.confusion.true_negative
    words = f"Right on {right:,} of {found.confusion.n:,} labelled samples."
    own = found.metrics["balanced_accuracy"]
    if own.value is not None:
        words += f" Balanced accuracy is {decimal(own.value)} {interval(own)}".rstrip()
        best = max(
            ((value, name_of(b.name)) for b in judge.baselines if (value := b.metrics["balanced_accuracy"])),
            default=None,
        )
        words += f"; the best trivial rule, {best[1]}, reaches {decimal(best[0])}." if best else "."
    return words


def comparison(report: Report) -> Iterator[tuple[str, ...]]:
    """Yield one row per judge: its name, the number of verdicts, three metrics and the time per sample."""
    for judge in report.judges:
        cells = (figure(judge, metric) for metric in ("balanced_accuracy", "f1", "auroc"))
        ok = f"{judge.n_ok:,}/{judge.n_total:,}"
        yield (judge.judge, ok, *cells, duration(judge.seconds_per_sample))


def matrix(confusion: Confusion) -> list[tuple[str, list[tuple[int, str, bool]]]]:
    """Return the confusion matrix, true labels in rows: each count, its share of the row, and if it is
    right.
    """
    c = confusion
    rows: Mapping[str, tuple[int, int]] = {
        HALLUCINATED: (c.true_positive, c.false_negative),
        FAITHFUL: (c.false_positive, c.true_negative),
    }
    return [
        (
            truth,
            [
                (n, f"{n / sum(counts):.0%}" if sum(counts) else "", at == right)
                for at, n in enumerate(counts)
            ],
        )
        for right, (truth, counts) in enumerate(rows.items())
    ]


def figure(judge: JudgeReport, metric: str) -> str:
    """Format a metric with its interval, `.62 [.55, .69]`, or a dash."""
    return with_interval(judge.result.metrics[metric]) if judge.result else decimal(None)


def name_of(name: str) -> str:
    """Return the name of a metric or baseline on one line."""
    return NAMES.get(name, name).replace("\n", " ").replace("_", " ")


def _metrics(judge: JudgeReport) -> Iterator[Metric]:
    if judge.result is None:
        return
    for name in METRICS:
        found = judge.result.metrics[name]
        others = [baseline.metrics[name] for baseline in judge.baselines]
        best = max((value for value in others if value is not None), default=None)
        yield Metric(
            name=NAMES.get(name, name),
            value=decimal(found.value),
            interval=interval(found),
            strip=_strip(found, best),
            undefined=found.undefined if found.value is None else None,
            baselines=tuple(decimal(value) for value in others),
        )


def _strip(found: Estimate, best: float | None) -> Strip | None:
    if found.value is None:
        return None
    low, high, at = (None if v is None else round(100 * v, 1) for v in (found.low, found.high, best))
    return Strip(low, round(100 * found.value, 1), high, at)
