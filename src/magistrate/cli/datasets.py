"""`magistrate datasets`: the named sets."""

from __future__ import annotations

from dataclasses import asdict

import click

from magistrate.cli.options import json_option, print_json, print_table

EXAMPLE = "Example: MAGISTRATE_DATA_DIR=~/data magistrate run halueval-qa --view article200"


@click.group(invoke_without_command=True, epilog=EXAMPLE)
@json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List the named sets, their views, and where each was found."""
    if context.invoked_subcommand is not None:
        return
    from magistrate.datasets import describe

    listings = describe()
    if as_json:
        print_json([asdict(each) for each in listings])
        return
    print_table(
        ["dataset", "rows", "what it is", "views", "licence", "where"],
        [
            [
                each.name,
                "?" if each.rows is None else f"{each.rows:,}",
                each.description,
                ", ".join(each.views),
                each.licence,
                each.where,
            ]
            for each in listings
        ],
    )
