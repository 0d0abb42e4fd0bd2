"""`magistrate estimate`: hours, machines and dollars of a large job, from rates measured on some rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from magistrate.cli.options import json_option, model_options, run_option, whole_reading_options
from magistrate.cli.output import console, print_json
from magistrate.runs.options import CONCURRENT, JUDGES, VIEW

EXAMPLE = (
    "Example: magistrate estimate answers.jsonl --judge detector --judge novelty --rows 10000000 "
    "--machine machines.yaml"
)


@click.command(short_help="Estimate hours, machines and dollars of judging a data set.", epilog=EXAMPLE)
@click.argument("data")
@run_option(JUDGES, required=True)
@click.option(
    "--machine",
    "machines",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="YAML with `as_of` (a date), `machines` (name, price_per_hour, speed) and `tokens` (dollars per "
    "million by model: input, output, cached).",
)
@click.option("--rows", type=click.IntRange(1), help="How many rows the job has (default: those of DATA).")
@click.option(
    "--measure",
    type=click.IntRange(2),
    default=100,
    show_default=True,
    help="How many rows to judge, at most; their calls of models are paid for.",
)
@click.option(
    "--within",
    type=click.FloatRange(0, min_open=True),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="In which time the job must be done, for the number of machines.",
)
@run_option(VIEW)
@whole_reading_options
@run_option(CONCURRENT)
@model_options
@json_option
def command(
    data: str,
    judges: tuple[str, ...],
    machines: Path,
    rows: int | None,
    measure: int,
    within: float,
    view: str | None,
    mapping: tuple[tuple[str, str], ...],
    labels: dict[str, str],
    max_unread: float,
    concurrency: int,
    model: str | None,
    settings: Any,
    as_json: bool,
) -> int:
    """Estimate hours, machines and dollars of judging a large data set, by judge and kind of machine.

    Some evenly spaced rows of DATA are judged on this machine; what they take is extrapolated to --rows, with
    intervals. For calls and tokens without asking a model, use 'magistrate run --dry-run'. Exits with 3 if a
    judge gave no verdict.
    """
    from magistrate.api.scale import Prices, estimate_scale
    from magistrate.cli.exit_codes import DONE, ENGINE_GONE
    from magistrate.datasets import load
    from magistrate.report.formatting import plain
    from magistrate.report.scale import render, without_verdict

    prices = Prices.read(machines)
    dataset = load(data, view=view, mapping=dict(mapping), labels=labels, max_unread=max_unread)
    found = estimate_scale(
        dataset,
        judges,
        prices,
        model=model,
        settings=settings,
        rows=rows,
        measure=measure,
        within=within,
        concurrency=concurrency,
    )
    if as_json:
        print_json(found.to_dict())
    else:
        render(found, console())
    if told := without_verdict(found.judges):
        click.echo(plain(told), err=True)
        return ENGINE_GONE
    return DONE
