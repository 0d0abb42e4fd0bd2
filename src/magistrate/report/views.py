"""What every rendering says of a run and of each judge: names, words and figures as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magistrate._text import percent
from magistrate.metrics.classification import METRICS, Classification, Confusion, Estimate
from magistrate.metrics.spans import SpanScores
from magistrate.report.charts import Chart
from magistrate.report.formatting import decimal, duration, interval, tally
from magistrate.report.values import JudgeReport, Report
from magistrate.types import FAITHFUL, HALLUCINATED, Scoring

if TYPE_CHECKING:
    from magistrate.engines.prices import Price
    from magistrate.store.runs import RunRecord

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


# --- values for pages -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Strip:
    """An interval on a line from 0 to 100, with the best trivial rule beside it; None where not known."""

    low: float | None
    value: float
    high: float | None
    best: float | None


@dataclass(frozen=True, slots=True)
class Metric:
    """A row of the table of figures; `baselines` are figures of the trivial rules."""

    name: str
    value: str
    interval: str
    strip: Strip | None
    undefined: str | None
    baselines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JudgeView:
    """One judge's section; `anchor` is its id in the page."""

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
    """What heads the page: names and words."""
    run = report.run
    facts = [("Data", f"{run.dataset}, {run.n_total:,} {'sample' if run.n_total == 1 else 'samples'}")]
    if run.unread is not None and run.unread.n:
        facts += [("Unread", str(run.unread))]
    if run.damaged:
        facts += [("Damaged", f"{len(run.damaged)} in the store, which no figure counts: {run.damaged[0]}")]
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
    """The section of one judge, the `number`th of the page; `price` is what its tokens cost, if known."""
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
    """The section in a sentence or two."""
    if judge.result is None:
        if not judge.n_ok:
            return "There is no verdict, so nothing can be said of this judge."
        share = judge.verdicts.get(HALLUCINATED, 0)
        return f"{share:,} of {judge.n_ok:,} verdicts say {HALLUCINATED}; none stands beside a gold label."
    found = judge.result
    right = found.confusion.true_positive + found.confusion.true_negative
    words = f"Right on {right:,} of {found.confusion.n:,} labelled samples."
    own = found.metrics["balanced_accuracy"]
    if own.value is not None:
        words += f" Balanced accuracy is {decimal(own.value)} {interval(own)}"
        best = max(
            ((value, name_of(b.name)) for b in judge.baselines if (value := b.metrics["balanced_accuracy"])),
            default=None,
        )
        words += f"; the best trivial rule, {best[1]}, reaches {decimal(best[0])}." if best else "."
    return words


def comparison(report: Report) -> Iterator[tuple[str, ...]]:
    """One row a judge: its name, how many verdicts, three metrics and the time a sample."""
    for judge in report.judges:
        cells = (figure(judge, metric) for metric in ("balanced_accuracy", "f1", "auroc"))
        ok = f"{judge.n_ok:,}/{judge.n_total:,}"
        yield (judge.judge, ok, *cells, duration(judge.seconds_per_sample))


def matrix(confusion: Confusion) -> list[tuple[str, list[tuple[int, str, bool]]]]:
    """Truth down, what was said across: each count, its share of the row, and whether it is right."""
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
    """A metric with its interval, `.62 [.55, .69]`, or a dash."""
    found = judge.result.metrics[metric] if judge.result else Estimate.none("")
    return f"{decimal(found.value)} {interval(found)}".rstrip()


def name_of(name: str) -> str:
    """The name of a metric or baseline on one line."""
    return NAMES.get(name, name).replace("\n", " ")


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
