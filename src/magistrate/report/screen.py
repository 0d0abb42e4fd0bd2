"""Print a run on one screen: a row of figures per judge, the gravest remark, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magistrate._text import counted
from magistrate.report.formatting import decimal, duration, estimated, first_remark, numbers, plain, tally
from magistrate.report.values import Baseline, JudgeReport, Report, name_of
from magistrate.types import FAITHFUL, HALLUCINATED

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

SHOWN = {"balanced_accuracy": "bal. acc. [95 %]", "auroc": "AUROC [95 %]"}
NARROW = 72  # width in columns below which intervals, times and counts are left to the full report


def render_screen(report: Report, console: Console) -> None:
    """Print the main figures of all judges in one table, one remark, and the next command."""
    from rich.text import Text

    print_head(report, console)
    console.print()
    print_figures(report, console)
    for judge in report.judges:
        if told := _without_verdict(judge):
            console.print(Text(f"{plain(judge.judge)}: {told}", "yellow"))
    print_remark(report, console)
    run = plain(report.run.id)
    console.print()
    # Commands stay whole, so that they can be copied.
    for line in (f"run {run}: magistrate show {run} --full", f"next: {next_command(report)}"):
        console.print(Text(line), soft_wrap=True)


def print_head(report: Report, console: Console) -> None:
    """Print the name of a run, and below it its data, status and time."""
    from rich.text import Text

    run = report.run
    unnamed = run.name == run.id
    console.print(Text.assemble((plain(run.name), "bold"), "" if unnamed else f"  {plain(run.id)}"))
    facts = [plain(run.dataset), counted(run.n_total, "sample"), plain(run.status)]
    if run.unread is not None and run.unread.n:
        facts.insert(2, run.unread.short)
    if run.seconds is not None:
        facts.append(duration(run.seconds))
    if run.reason is not None:
        facts.append(plain(run.reason))
    if run.damaged:
        facts.insert(2, f"{len(run.damaged)} damaged in the store")
    console.print(Text("  ·  ".join(facts)))


def print_figures(report: Report, console: Console) -> None:
    """Print one row per judge, and one for the best trivial rule where there is one."""
    console.print(_figures(report, console.width))


def print_remark(report: Report, console: Console, *, alone: bool = False) -> None:
    """Print the gravest remark, if there is one; unless `alone`, with the number of others."""
    if remark := first_remark(_remarks(report), alone=alone):
        console.print()
        console.print(remark)


def next_command(report: Report) -> str:
    """Return the command that most helps with this run as it is."""
    from magistrate.store.shares import PART  # only here: the store takes a quarter of a second to import

    run = plain(report.run.id)
    if report.judges and all(judge.without_verdict for judge in report.judges):
        return f"magistrate judges {plain(report.judges[0].judge)}"
    if any(judge.failures for judge in report.judges):
        return f"magistrate retry {run}"
    if (report.run.reason or "").startswith(PART):
        return "magistrate merge FILE… --to STORE"
    if report.run.status != "done":
        return f"magistrate resume {run}"
    if not any(judge.n_labelled for judge in report.judges):
        return f"magistrate label {run}"
    return f"magistrate export {run} --to report.html"


def _figures(report: Report, width: int) -> Table:
    from rich.text import Text

    measured = any(judge.result is not None for judge in report.judges)
    narrow = width < NARROW
    heads = ["judge", "ok"]
    if measured and narrow:
        heads += [head.partition(" [")[0] for head in SHOWN.values()]
    elif measured:
        heads += ["flagged", *SHOWN.values(), "time"]
    else:
        heads += ["verdicts"] if narrow else ["verdicts", "time"]
    table = numbers(*heads)
    for judge in report.judges:
        cells: list[str | Text] = [Text(plain(judge.judge)), f"{judge.n_ok}/{judge.n_total}"]
        if not measured:
            table.columns[2].no_wrap = False
            cells.append(Text(plain(tally(judge.verdicts)) or "none"))
        elif not narrow:
            binary = {FAITHFUL, HALLUCINATED} & set(judge.verdicts)
            cells.append(str(judge.verdicts.get(HALLUCINATED, 0)) if binary else "-")
        if measured:
            cells += [_figure(judge, metric, narrow) for metric in SHOWN]
        if not narrow:
            cells.append(duration(judge.seconds_per_sample))
        table.add_row(*cells)
    if measured and (rule := _best_rule(report)) is not None:
        name = name_of(rule.name)
        values = [decimal(rule.metrics[metric]) for metric in SHOWN]
        row = [f"rule: {name}", "", *values] if narrow else [f"rule: {name}", "", "", *values, ""]
        table.add_row(*row, style="dim")
    return table


def _figure(judge: JudgeReport, metric: str, narrow: bool) -> str | Text:
    if judge.result is None:
        return "-"
    found = judge.result.metrics[metric]
    return decimal(found.value) if narrow else estimated(found)


def _best_rule(report: Report) -> Baseline | None:
    """Return the trivial rule with the highest balanced accuracy, of the judge with the most samples."""
    judge = max(report.judges, key=lambda each: each.n_judged)
    known = [
        (value, -at, rule)
        for at, rule in enumerate(judge.baselines)
        if (value := rule.metrics["balanced_accuracy"]) is not None
    ]
    return max(known, key=lambda each: each[:2])[2] if known else None


def _without_verdict(judge: JudgeReport) -> str:
    """Return why samples have no verdict, in words; empty if all have one."""
    missing = judge.n_total - judge.n_ok
    if not missing:
        return ""
    codes = tally({**judge.failures, **judge.abstentions}) or "not judged"
    return f"no verdict on {missing} of {counted(judge.n_total, 'sample')}: {codes}"


def _remarks(report: Report) -> list[str]:
    """Return the remarks of all judges without repetitions, those of the judges with most missing first."""
    several = len(report.judges) > 1
    found: dict[str, list[str]] = {}
    for judge in sorted(report.judges, key=lambda each: each.n_ok):
        for remark in judge.remarks:
            found.setdefault(remark, []).append(judge.judge)
    every = len(report.judges)
    return [
        remark if not several or len(judges) == every else f"{', '.join(judges)}: {remark}"
        for remark, judges in found.items()
    ]
