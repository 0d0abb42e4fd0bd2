"""`magistrate improve`: use the labels of a run to find an improvement of its judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from magistrate.cli.options import folds_option, json_option, store_option
from magistrate.cli.output import console, print_json

EXAMPLE = (
    "Example: magistrate improve last --to better; "
    "magistrate improve last --judge novelty --labels bridges --try threshold --try calibration"
)


@click.command(short_help="Try to improve a judge with the labels of RUN.", epilog=EXAMPLE)
@click.argument("run")
@click.option("--judge", help="The judge to improve (default: the first of the run).")
@click.option(
    "--labels",
    metavar="QUEUE|data",
    help="Labels to use: those of a labelling queue, or of the data (default: the only queue with labels, "
    "else the data).",
)
@click.option(
    "--try",
    "ways",
    multiple=True,
    type=click.Choice(["threshold", "calibration", "stack", "detector"]),
    help="What to try; repeatable (default: everything that is possible).",
)
@click.option(
    "--maximize",
    "metric",
    type=click.Choice(["f1", "balanced_accuracy", "accuracy"]),
    default="balanced_accuracy",
    show_default=True,
    help="The metric that judges are compared by, and that the threshold maximizes.",
)
@folds_option
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of folds, intervals and trainings."
)
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    help="Maximum total time for training detectors (default: no limit).",
)
@click.option(
    "--to",
    "target",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write improvements that were shown to be better to this new folder.",
)
@store_option
@json_option
def command(
    run: str,
    judge: str | None,
    labels: str | None,
    ways: tuple[Any, ...],
    metric: str,
    folds: int,
    seed: int,
    minutes: float | None,
    target: Path | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Try to improve a judge with the labels of RUN, and keep what is shown to be better.

    It tries a threshold, a calibration, a stack of the run's judges and, with the extra train, a detector
    trained on the labels. Each is compared with the current judge on contexts not used for training.
    """
    from magistrate.analysis.improvement import WAYS
    from magistrate.api.improve import improve
    from magistrate.report.improvement import render_improvement

    with console(error=True).status("reading") as status:
        found = improve(
            run,
            judge,
            labels=labels,
            ways=ways or WAYS,
            metric=metric,
            folds=folds,
            seed=seed,
            minutes=minutes,
            to=target,
            store=store,
            tell=status.update,
        )
    if as_json:
        print_json(found.to_dict())
        return
    render_improvement(found, console())
    if found.best is None:
        click.echo("\nnothing was shown to be better: keep the judge as it is, or label more samples")
    elif target is None:
        click.echo("\nto write the improvements to a folder, run the same command with --to FOLDER")
    else:
        click.echo(f"\nwritten to {target}; use it with:")
        for line in found.commands:
            click.echo(f"  {line}")
