"""`magistrate calibrate`: turn a judge's scores into probabilities, and choose a threshold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from magistrate.cli.options import folds_option, full_option, json_option, store_option
from magistrate.cli.output import console, print_json

if TYPE_CHECKING:
    from magistrate.metrics.calibration import Method
    from magistrate.metrics.reliability import Binning
    from magistrate.metrics.thresholds import Aim

EXAMPLE = (
    "Example: magistrate calibrate last --recall 0.9 --to faithfulness.json; "
    "magistrate run new.jsonl --calibration faithfulness.json"
)
SHARE = click.FloatRange(0, 1, min_open=True)


@click.command(short_help="Calibrate a judge's scores on the labelled samples of RUN.", epilog=EXAMPLE)
@click.argument("run")
@click.option("--judge", help="Which judge of the run, if it has several.")
@click.option(
    "--method",
    type=click.Choice(["platt", "isotonic", "temperature"]),
    default="platt",
    show_default=True,
    help="The method; isotonic needs the most labels.",
)
@click.option(
    "--maximize",
    type=click.Choice(["f1", "balanced_accuracy", "accuracy"]),
    help="Threshold: maximize this metric.",
)
@click.option("--precision", type=SHARE, help="Threshold: the highest recall with at least this precision.")
@click.option("--recall", type=SHARE, help="Threshold: the highest precision with at least this recall.")
@click.option(
    "--costs",
    metavar="MISS/FALSE_ALARM",
    help="Threshold: the lowest cost, if errors cost this much, such as 10/1.",
)
@click.option(
    "--base-rate",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="The share of hallucinated outputs where it will be used, if it differs from that of the labels.",
)
@folds_option
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of folds and intervals.")
@click.option(
    "--bins",
    "binning",
    type=click.Choice(["mass", "width"]),
    default="mass",
    show_default=True,
    help="Compute ECE over ten bins that hold equally many samples, or are equally wide.",
)
@click.option(
    "--to", "target", type=click.Path(path_type=Path), help="Write the calibration to this .json file."
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@full_option
@store_option
@json_option
def command(
    run: str,
    judge: str | None,
    method: Method,
    maximize: str | None,
    precision: float | None,
    recall: float | None,
    costs: str | None,
    base_rate: float | None,
    folds: int,
    seed: int,
    binning: Binning,
    target: Path | None,
    force: bool,
    full: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Calibrate the scores of a judge on the labelled samples of RUN.

    Shows how reliable its scores are before and after, on samples not used for the calibration, and writes
    a file that `run`, `judge` and `calibrated:of=JUDGE,file=FILE` use. If you name no aim, the more likely
    label is chosen.
    """
    from magistrate.api.calibrate import calibrate
    from magistrate.judges.calibration_file import check_free
    from magistrate.report.calibration import render_calibration

    aim = _aim(maximize, precision, recall, costs)
    if target is not None:
        check_free(target, replace=force)
    found = calibrate(
        run,
        judge,
        method=method,
        aim=aim,
        folds=folds,
        seed=seed,
        base_rate=base_rate,
        binning=binning,
        store=store,
    )
    if target is not None:
        found.save(target, replace=force)
    if as_json:
        print_json({**found.to_dict(), "file": None if target is None else str(target)})
        return
    render_calibration(found.fit, found.file, console(), full=full)
    if target is not None:
        click.echo(f"\nwritten to {target}; use it with: magistrate run DATA --calibration {target}")


def _aim(
    maximize: str | None, precision: float | None, recall: float | None, costs: str | None
) -> Aim | None:
    """Return the aim that was named, or None. Raises `UsageError` for more than one."""
    from magistrate.metrics.thresholds import Aim

    given = {"--maximize": maximize, "--precision": precision, "--recall": recall, "--costs": costs}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise click.UsageError(f"a threshold has one aim; give only one of {' and '.join(named)}")
    if maximize is not None:
        return Aim("maximize", metric=maximize)
    if precision is not None:
        return Aim("precision", least=precision)
    if recall is not None:
        return Aim("recall", least=recall)
    return None if costs is None else Aim.costs(costs)
