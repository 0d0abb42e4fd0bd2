"""`magistrate compare`: which judge is better, and whether that can be told."""

from __future__ import annotations

import click

from magistrate.cli.options import console, json_option, print_json, store_option

EXAMPLE = (
    "Example: magistrate compare last; magistrate compare small large --metric balanced_accuracy; "
    "magistrate compare nightly:faithfulness nightly:hallucination"
)


@click.command(epilog=EXAMPLE)
@click.argument("runs", nargs=-1, required=True)
@click.option("--judge", "judges", multiple=True, help="Compare these judges of the runs; repeatable.")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="What you ask about, named beforehand (default: balanced_accuracy); repeatable, and then corrected "
    "together. The other metrics are shown as exploratory.",
)
@click.option(
    "--list",
    "listed",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="How many flips of a pair to show, those with the scores furthest apart first.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the bootstrap.")
@store_option
@json_option
def command(
    runs: tuple[str, ...],
    judges: tuple[str, ...],
    metrics: tuple[str, ...],
    listed: int,
    seed: int,
    store: str | None,
    as_json: bool,
) -> None:
    """Compare judges on the samples that all of them have judged.

    RUNS are runs, or RUN:JUDGE; of one run alone its judges are compared. Says for each pair by how much
    they differ in what you ask about, within which interval, whether that is more than chance, and what this
    many samples could have shown.
    """
    from magistrate.api.compare import compare
    from magistrate.report.comparison import render_comparison

    found = compare(*runs, judges=judges, metrics=metrics, store=store, seed=seed)
    if as_json:
        print_json(found.to_dict())
    else:
        render_comparison(found, console(), listed)
