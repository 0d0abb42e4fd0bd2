"""A report as a fragment of HTML for notebooks, in the colours of the notebook around it."""

from __future__ import annotations

from collections.abc import Iterator

from magistrate._text import NEUTRAL, card, safe, table
from magistrate.metrics.classification import METRICS
from magistrate.report.facts import NAMES, fact_lines
from magistrate.report.figures import decimal, duration, interval
from magistrate.report.values import JudgeReport, Report
from magistrate.types import FAITHFUL, HALLUCINATED


def report_html(report: Report) -> str:
    """The run, a comparison where there are several judges, and each judge's figures, matrix and remarks."""
    run = report.run
    facts = [("data", run.dataset), ("samples", f"{run.n_total:,}"), ("status", run.status)]
    if run.unread is not None and run.unread.n:
        facts.append(("unread", str(run.unread)))
    if run.seconds is not None:
        facts.append(("time", duration(run.seconds)))
    if run.name != run.id:
        facts.append(("run", run.id))
    parts = [card(run.name, NEUTRAL, facts, run.reason)]
    if len(report.judges) > 1:
        metrics = ("balanced_accuracy", "f1", "auroc")
        rows = (
            (j.judge, f"{j.n_ok:,}/{j.n_total:,}", *(_figure(j, metric) for metric in metrics))
            for j in report.judges
        )
        parts.append(table(("judge", "verdicts", *map(_name, metrics)), rows))
    for judge in report.judges:
        parts += _judge(judge)
    return f'<div style="max-width:60em">{"".join(parts)}</div>'


def _judge(judge: JudgeReport) -> Iterator[str]:
    name = safe(judge.judge)
    yield f'<h4 style="margin:1.2em 0 .2em;font-family:system-ui,sans-serif">{name}</h4>'
    if judge.result is not None:
        yield table(
            ("figure", "judge", *(_name(each.name) for each in judge.baselines)),
            (
                (
                    _name(metric),
                    _figure(judge, metric),
                    *(decimal(b.metrics[metric]) for b in judge.baselines),
                )
                for metric in METRICS
            ),
        )
        c = judge.result.confusion
        yield table(
            ("truth \\ judged", HALLUCINATED, FAITHFUL),
            (
                (HALLUCINATED, f"{c.true_positive:,}", f"{c.false_negative:,}"),
                (FAITHFUL, f"{c.false_positive:,}", f"{c.true_negative:,}"),
            ),
        )
    remarks = [("remark", remark) for remark in judge.remarks]
    yield table(("", ""), [*remarks, *fact_lines(judge)], left=2)


def _figure(judge: JudgeReport, metric: str) -> str:
    """`.62 [.55, .69]`, or a dash."""
    if judge.result is None or judge.result.metrics[metric].value is None:
        return "-"
    found = judge.result.metrics[metric]
    return f"{decimal(found.value)} {interval(found)}"


def _name(metric: str) -> str:
    return NAMES.get(metric, metric).replace("\n", " ")
