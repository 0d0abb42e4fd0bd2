"""`magistrate compare`: which judge is better; `magistrate power`: how many samples a comparison needs."""

from __future__ import annotations

import click

from magistrate.cli.options import full_option, json_option, store_option
from magistrate.cli.output import console, print_json

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
    help="The metric that you chose before seeing results (default: balanced_accuracy). Repeatable; p-values "
    "are then corrected together. Other metrics are shown as exploratory.",
)
@click.option(
    "--list",
    "listed",
    type=click.IntRange(0),
    help="How many samples with different labels to show for each pair, largest difference of scores first "
    "(default with --full: 10).",
)
@full_option
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the bootstrap.")
@store_option
@json_option
def command(
    runs: tuple[str, ...],
    judges: tuple[str, ...],
    metrics: tuple[str, ...],
    listed: int | None,
    full: bool,
    seed: int,
    store: str | None,
    as_json: bool,
) -> None:
    """Compare judges on the samples that all of them have judged.

    RUNS are runs, or RUN:JUDGE. For a single run, its judges are compared. For each pair you see the
    difference in the chosen metrics with its interval, whether it is more than chance, and how small a
    difference this many samples could have shown. With --full or --list, also all metrics of each pair,
    and the samples to which they give different labels.
    """
    from magistrate.api.compare import compare
    from magistrate.report.comparison import render_comparison

    found = compare(*runs, judges=judges, metrics=metrics, store=store, seed=seed)
    if as_json:
        print_json(found.to_dict())
    else:
        wanted = {} if listed is None else {"listed": listed}
        render_comparison(found, console(), full=full or listed is not None, **wanted)


POWER_EXAMPLE = (
    "Example: magistrate power --metric f1 --difference 0.03; "
    "magistrate power --metric balanced_accuracy --difference 0.05 --pilot small large"
)


@click.command(
    "power", short_help="Compute how many labelled samples a comparison needs.", epilog=POWER_EXAMPLE
)
@click.option("--metric", required=True, help="The metric to compare: accuracy, f1, auroc, …")
@click.option(
    "--difference", required=True, type=float, help="The smallest difference that should be detected."
)
@click.option("--value", type=float, help="The metric of the worse judge (default: 0.7).")
@click.option("--base-rate", type=float, help="The share of hallucinated samples (default: 0.5).")
@click.option(
    "--agreement",
    type=float,
    help="How often both judges give the same label (default: as if their errors were independent).",
)
@click.option("--correlation", type=float, help="Correlation of the two AUROCs (default: 0.5).")
@click.option(
    "--power",
    type=float,
    default=0.8,
    show_default=True,
    help="The probability of detecting a true difference.",
)
@click.option(
    "--alpha",
    type=float,
    default=0.05,
    show_default=True,
    help="The probability of a false alarm that you accept.",
)
@click.option(
    "--comparisons",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="How many metrics and pairs are compared at once; divides --alpha.",
)
@click.option(
    "--pilot",
    nargs=2,
    metavar="RUN_A RUN_B",
    help="Measure the assumptions on two runs (or RUN:JUDGE) instead.",
)
@store_option
@json_option
def power_command(
    metric: str,
    difference: float,
    value: float | None,
    base_rate: float | None,
    agreement: float | None,
    correlation: float | None,
    power: float,
    alpha: float,
    comparisons: int,
    pilot: tuple[str, str] | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Compute how many labelled samples a comparison of two judges needs.

    Both judges judge every sample, as in 'magistrate compare'. The number depends on assumptions, which are
    printed with it, or on a pilot.
    """
    from magistrate.api.compare import samples_needed
    from magistrate.report.comparison import render_plan

    found = samples_needed(
        metric,
        difference,
        value=value,
        base_rate=base_rate,
        agreement=agreement,
        correlation=correlation,
        power=power,
        alpha=alpha,
        comparisons=comparisons,
        pilot=pilot or (),
        store=store,
    )
    if as_json:
        print_json(found.to_dict())
    else:
        render_plan(found, console())
