"""`magistrate agree`: agreement of a judge with people, or with another judge."""

from __future__ import annotations

import click

from magistrate.cli.options import full_option, json_option, reading_options, store_option
from magistrate.cli.output import console, print_json

EXAMPLE = (
    "Example: magistrate agree last; magistrate agree last --with labels.csv --by metadata.domain; "
    "magistrate agree last --judge faithfulness --with-judge hallucination"
)

LISTED = 10  # disagreements


@click.command(short_help="Measure how well a judge agrees with people, or another judge.", epilog=EXAMPLE)
@click.argument("run")
@click.option("--judge", help="Which judge of the run, if it has several.")
@click.option(
    "--with",
    "reference",
    metavar="FILE|RUN",
    help="A file of labels by sample id, from one or more people, or another run (default: the gold labels).",
)
@click.option("--with-judge", help="The judge of the other run, or another judge of this run.")
@click.option("--by", metavar="FIELD", help="Also show figures for each value of label or metadata.NAME.")
@click.option(
    "--order",
    metavar="A,B,C",
    help="All possible labels from least to most, for weighted kappa (not needed if labels are numbers).",
)
@reading_options
@click.option(
    "--list",
    "listed",
    type=click.IntRange(0),
    help="How many disagreements to show, those where the judge is surest first (default with --full: 10).",
)
@full_option
@store_option
@json_option
def command(
    run: str,
    judge: str | None,
    reference: str | None,
    with_judge: str | None,
    by: str | None,
    order: str | None,
    mapping: tuple[tuple[str, str], ...],
    labels: dict[str, str],
    max_unread: float,
    listed: int | None,
    full: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Measure how well a judge of RUN agrees with people, or with another judge.

    Besides the share of equal labels, it prints Cohen's kappa (weighted if labels are ordered),
    Krippendorff's alpha and Gwet's AC1, with intervals. With --full or --list, also the samples on which
    the two differ.
    """
    from magistrate.api.agree import agree
    from magistrate.cli.exit_codes import print_problems
    from magistrate.report.agreement import render_agreement

    report = agree(
        run,
        reference,
        judge=judge,
        reference_judge=with_judge,
        by=by,
        order=[word.strip() for word in order.split(",")] if order is not None else None,
        mapping=dict(mapping),
        labels=labels,
        max_unread=max_unread,
        store=store,
    )
    if as_json:
        print_json(report.to_dict())
    else:
        render_agreement(
            report, console(), LISTED if listed is None else listed, full=full or listed is not None
        )
    print_problems(report.problems)
