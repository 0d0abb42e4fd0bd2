"""`magistrate prevalence`: estimate the share of hallucinated outputs among unlabelled samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from magistrate.cli.options import json_option, store_option
from magistrate.cli.output import console, print_json

if TYPE_CHECKING:
    from magistrate.api.prevalence import Using

EXAMPLE = "Example: magistrate prevalence production --labelled checked-by-hand --judge faithfulness"


@click.command(short_help="Estimate the share hallucinated among unlabelled samples.", epilog=EXAMPLE)
@click.argument("run")
@click.option(
    "--labelled", metavar="RUN", help="The run whose labels measure the judge's errors (default: the same)."
)
@click.option("--judge", help="Which judge, if a run has several.")
@click.option(
    "--using",
    type=click.Choice(["label", "score"]),
    default="label",
    show_default=True,
    help="What the estimate is based on: labels or scores of the verdicts.",
)
@store_option
@json_option
def command(
    run: str, labelled: str | None, judge: str | None, using: Using, store: str | None, as_json: bool
) -> None:
    """Estimate the share of hallucinated outputs among the unlabelled samples of RUN.

    The judge's share is corrected for the errors that it made on labelled samples, by prediction-powered
    inference. For comparison you also see the share by the labels alone, the judge's own share, and Rogan
    and Gladen's estimate.
    """
    from magistrate.api.prevalence import prevalence
    from magistrate.report.calibration import render_prevalence

    found = prevalence(run, labelled, judge=judge, using=using, store=store)
    if as_json:
        print_json(found.to_dict())
    else:
        render_prevalence(found.estimates, found.head, found.facts, found.remarks, console())
