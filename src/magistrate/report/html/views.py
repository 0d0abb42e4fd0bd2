"""What a page says of a run and of each judge, as plain values for the templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from magistrate.engines.prices import Price
from magistrate.metrics.classification import METRICS, Confusion, Estimate
from magistrate.report.charts import Chart
from magistrate.report.facts import NAMES, fact_lines
from magistrate.report.figures import decimal, duration, interval
from magistrate.report.values import JudgeReport, Report
from magistrate.store.runs import RunRecord
from magistrate.types import FAITHFUL, HALLUCINATED


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
        baselines=tuple(_named(each.name) for each in judge.baselines),
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
            ((value, _named(b.name)) for b in judge.baselines if (value := b.metrics["balanced_accuracy"])),
            default=None,
        )
        words += f"; the best trivial rule, {best[1]}, reaches {decimal(best[0])}." if best else "."
    return words


def comparison(report: Report) -> Iterator[tuple[str, ...]]:
    """One row a judge: its name, how many verdicts, three metrics and the time a sample."""
    for judge in report.judges:
        cells = (_cell(judge, metric) for metric in ("balanced_accuracy", "f1", "auroc"))
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


def _cell(judge: JudgeReport, metric: str) -> str:
    found = judge.result.metrics[metric] if judge.result else Estimate.none("")
    return f"{decimal(found.value)} {interval(found)}".rstrip()


def _named(name: str) -> str:
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
