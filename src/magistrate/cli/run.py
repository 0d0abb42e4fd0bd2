"""`magistrate run`: a dataset through judges, every outcome stored, and the report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from magistrate.cli.options import (
    Assignment,
    console,
    hush,
    json_option,
    model_options,
    print_json,
    store_option,
)

if TYPE_CHECKING:
    from magistrate.datasets import Problem
    from magistrate.report import Report
    from magistrate.report.gates import Gate

PROBLEMS_TOLD = 10
EXAMPLE = "Example: magistrate run answers.jsonl --judge hallucination --map context=docs --limit 100"


@click.command(epilog=EXAMPLE)
@click.argument("data")
@click.option(
    "--judge", "judges", multiple=True, default=["faithfulness"], show_default=True, help="Who judges."
)
@click.option("--limit", type=click.IntRange(1), help="The first N samples only.")
@click.option("--sample", type=click.IntRange(1), help="N samples at random.")
@click.option("--balance", metavar="FIELD", help="With --sample: as many of each value, such as label.")
@click.option("--seed", type=int, default=0, show_default=True, help="For --sample.")
@click.option("--view", help="A view of a named set, such as article200.")
@click.option(
    "--map", "mapping", multiple=True, type=Assignment(), help="Which column is which field; repeatable."
)
@click.option("--name", help="A name for the run.")
@click.option("--tag", "tags", multiple=True, help="A tag for the run; repeatable.")
@click.option(
    "--concurrency", type=click.IntRange(1), default=16, show_default=True, help="Samples under way at once."
)
@click.option(
    "--deadline", type=click.FloatRange(0, min_open=True), default=300.0, help="Seconds for one verdict."
)
@click.option("--gate", "gates", multiple=True, metavar="METRIC>=X", help="Exit with 1 if a figure is worse.")
@click.option(
    "--max-failures",
    type=click.FloatRange(0, 1),
    default=0.1,
    show_default=True,
    help="Exit with 3 if a greater share of the outcomes failed.",
)
@model_options
@store_option
@json_option
def command(
    data: str,
    judges: tuple[str, ...],
    limit: int | None,
    sample: int | None,
    balance: str | None,
    seed: int,
    view: str | None,
    mapping: tuple[tuple[str, str], ...],
    name: str | None,
    tags: tuple[str, ...],
    concurrency: int,
    deadline: float,
    gates: tuple[str, ...],
    max_failures: float,
    model: str | None,
    device: str | None,
    threads: int | None,
    store: str | None,
    as_json: bool,
) -> int:
    """Judge DATA: a named set, a .jsonl or .csv file (also .gz), or - for JSONL on standard input."""
    from magistrate import evaluation, resolve
    from magistrate.cli import INTERRUPTED
    from magistrate.datasets import load
    from magistrate.home import default_store
    from magistrate.report.gates import Gate
    from magistrate.report.progress import ProgressBar

    asked = resolve.judges(judges)
    checks = [Gate.parse(gate, [judge.info.name for judge in asked]) for gate in gates]
    dataset = load(
        data, mapping=dict(mapping), view=view, limit=limit, sample=sample, balance=balance, seed=seed
    )
    bar = ProgressBar(console(error=True), lines=True)
    place = Path(store) if store else default_store()
    interrupted = False
    try:
        run = evaluation.evaluate(
            dataset,
            asked,
            model=model,
            device=device,
            threads=threads,
            name=name,
            tags=tags,
            seed=seed,
            store=place,
            concurrency=concurrency,
            deadline=deadline,
            watcher=bar,
        )
    except KeyboardInterrupt:
        if bar.run_id is None:
            raise
        interrupted = True
        run = evaluation.Run(bar.run_id, place)
    report = run.summary()
    _print(report, dataset.problems, as_json)
    if interrupted:
        click.echo(f"interrupted; what was judged is kept in run {run.id}", err=True)
        return INTERRUPTED
    return _code(report, checks, max_failures)


def _print(report: Report, problems: Sequence[Problem], as_json: bool) -> None:
    """The report and the rows that were left out; whoever has stopped reading misses it, no more."""
    from magistrate.report import render
    from magistrate.report.plain import plain

    try:
        if as_json:
            print_json({**report.to_dict(), "problems": [str(problem) for problem in problems]})
        else:
            render(report, console())
            click.echo(f"\nrun {report.run.id}: see 'magistrate show {report.run.id}'")
        sys.stdout.flush()
    except BrokenPipeError:
        hush()
    for problem in problems[:PROBLEMS_TOLD]:
        click.echo(f"left out {plain(str(problem))}", err=True)
    if len(problems) > PROBLEMS_TOLD:
        click.echo(f"… and {len(problems) - PROBLEMS_TOLD} more rows that cannot be read", err=True)


def _code(report: Report, checks: Sequence[Gate], max_failures: float) -> int:
    """What a script should see of the figures; why it is not 0 is said on standard error."""
    from magistrate.cli import DONE, ENGINE_GONE, GATE_FAILED

    failed = sum(sum(judge.failures.values()) for judge in report.judges)
    total = sum(judge.n_judged for judge in report.judges)
    if total and failed / total > max_failures:
        click.echo(
            f"{failed} of {total} judgements failed, more than --max-failures {max_failures:g}", err=True
        )
        return ENGINE_GONE
    broken = [reason for check in checks for reason in check.broken(report)]
    for reason in broken:
        click.echo(f"gate failed: {reason}", err=True)
    return GATE_FAILED if broken else DONE
