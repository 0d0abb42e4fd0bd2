"""`magistrate datasets`: the named sets."""

from __future__ import annotations

from dataclasses import asdict

import click

from magistrate.cli.options import json_option, print_json
from magistrate.cli.tables import print_table

EXAMPLE = "Example: magistrate datasets; magistrate run halueval-qa --view article200"


@click.command(epilog=EXAMPLE)
@json_option
def command(as_json: bool) -> None:
    """List the named sets, their views, and where each was found. $MAGISTRATE_DATA_DIR is looked at first."""
    from magistrate.datasets import describe

    listings = describe()
    if as_json:
        print_json([asdict(each) for each in listings])
        return
    print_table(
        ["dataset", "rows", "views", "what it is", "licence", "where"],
        [
            [
                each.name,
                "?" if each.rows is None else f"{each.rows:,}",
                ", ".join(each.views),
                each.description,
                each.licence,
                each.where,
            ]
            for each in listings
        ],
        wrapped={"what it is": 24, "views": 10, "licence": 18, "where": 20},
        spare=("licence", "where"),
    )
