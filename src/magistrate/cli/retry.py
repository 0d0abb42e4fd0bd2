"""`magistrate retry`: judge again what failed in a run."""

from __future__ import annotations

from typing import Any

import click

from magistrate.cli.options import json_option, junit_option, limit_options, price_option, store_option
from magistrate.cli.resume import gone_on

EXAMPLE = "Example: magistrate retry last"


@click.command(epilog=EXAMPLE)
@click.argument("run")
@limit_options
@price_option
@junit_option
@store_option
@json_option
@click.pass_context
def command(
    context: click.Context, /, run: str, price: str | None, store: str | None, as_json: bool, **_: Any
) -> int:
    """Judge again what failed in RUN, and nothing else; a new outcome replaces the failure.

    Exits as run does: with 3 where a limit cuts it off, and where RUN itself is not finished.
    """
    return gone_on("retry", context, run, price, store, as_json)
