"""`magistrate run`: a dataset through judges, every outcome stored, and the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from magistrate.cli.options import Assignment, console, json_option, model_options, print_json, store_option

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
    from magistrate import background, evaluation
    from magistrate.cli import DONE, ENGINE_GONE, GATE_FAILED, INTERRUPTED
    from magistrate.datasets import load
    from magistrate.home import default_store
    from magistrate.report import render
    from magistrate.report.gates import Gate
    from magistrate.report.progress import ProgressBar

    checks = [Gate.parse(gate) for gate in gates]
    dataset = load(
        data, mapping=dict(mapping), view=view, limit=limit, sample=sample, balance=balance, seed=seed
    )
    bar = ProgressBar(console(error=True))
    place = Path(store) if store else default_store()
    interrupted = False
    try:
        run = background.run(
            evaluation.aevaluate(
                dataset,
                list(judges),
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
        )
    except KeyboardInterrupt:
        if bar.run_id is None:
            raise
        interrupted = True
        run = evaluation.Run(bar.run_id, place)
    report = run.summary()
    problems = dataset.problems
    if as_json:
        print_json({**report.to_dict(), "problems": [str(problem) for problem in problems]})
    else:
        render(report, console())
        click.echo(f"\nrun {run.id}: see 'magistrate show {run.id}'")
    _tell_problems(problems)
    if interrupted:
        click.echo(f"interrupted; what was judged is kept in run {run.id}", err=True)
        return INTERRUPTED
    failed = sum(sum(judge.failures.values()) for judge in report.judges)
    total = sum(judge.n_judged for judge in report.judges)
    if total and failed / total > max_failures:
        click.echo(
            f"{failed} of {total} judgements failed, more than --max-failures {max_failures:g}", err=True
        )
        return ENGINE_GONE
    broken = [reason for gate in checks for reason in gate.broken(report)]
    for reason in broken:
        click.echo(f"gate failed: {reason}", err=True)
    return GATE_FAILED if broken else DONE


def _tell_problems(problems: Sequence[object]) -> None:
    from magistrate.report.plain import plain

    for problem in problems[:10]:
        click.echo(f"left out {plain(str(problem))}", err=True)
    if len(problems) > 10:
        click.echo(f"… and {len(problems) - 10} more rows that cannot be read", err=True)
