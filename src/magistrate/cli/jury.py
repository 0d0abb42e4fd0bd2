"""`magistrate jury`: how much better a jury is than its members."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from magistrate.cli.options import full_option, json_option, store_option
from magistrate.cli.output import console, print_json

if TYPE_CHECKING:
    from magistrate.metrics.jury import Pooling

EXAMPLE = (
    "Example: magistrate run labelled.jsonl --judge jury:members=novelty+detector; magistrate jury last; "
    "magistrate jury last --judge novelty --judge detector --judge faithfulness --aggregate logit"
)
LISTED = 5  # disputed samples
POOLINGS = ("mean", "median", "logit", "majority", "geometric_median")


@click.command(epilog=EXAMPLE)
@click.argument("run")
@click.option(
    "--judge",
    "judges",
    multiple=True,
    help="Which jury of the run; if repeated, judges to combine as a jury (default: all judges of the run).",
)
@click.option("--aggregate", type=click.Choice(POOLINGS), help="Combine the scores in another way.")
@click.option(
    "--list",
    "listed",
    type=click.IntRange(0),
    help="How many disputed samples to show, largest difference of scores first (default with --full: 5).",
)
@full_option
@store_option
@json_option
def command(
    run: str,
    judges: tuple[str, ...],
    aggregate: Pooling | None,
    listed: int | None,
    full: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Compare the jury of RUN with each of its members.

    RUN is a run of a jury, or of several judges, which are then treated as a jury. On its labelled samples
    you see: the jury, each member alone, the jury without each member, and how many independent votes they
    are worth. With --full or --list, also other ways to pool, how correlated errors are, and from the votes
    alone Dawid and Skene's estimate and the samples that members dispute most.
    """
    from magistrate.api.jury import jury
    from magistrate.report.jury import render_jury

    report = jury(run, judges, aggregate=aggregate, store=store)
    if as_json:
        print_json(report.to_dict())
    else:
        render_jury(report, console(), LISTED if listed is None else listed, full=full or listed is not None)
