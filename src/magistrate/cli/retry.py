"""`magistrate retry`: judge again what failed in a run."""

from __future__ import annotations

from typing import Any

import click

from magistrate.cli.options import console, json_option, limit_options, open_store, price_option, store_option

EXAMPLE = "Example: magistrate retry last"


@click.command(epilog=EXAMPLE)
@click.argument("run")
@limit_options
@price_option
@store_option
@json_option
@click.pass_context
def command(
    context: click.Context, /, run: str, price: str | None, store: str | None, as_json: bool, **_: Any
) -> int:
    """Judge again what failed in RUN, and nothing else; a new outcome replaces the failure."""
    from magistrate import evaluation
    from magistrate.cli.ending import ended
    from magistrate.cli.resume import changed_limits
    from magistrate.report.progress import ProgressBar
    from magistrate.resuming import description

    bar = ProgressBar(console(error=True), lines=True)
    with open_store(store) as opened:
        place, record = opened.place, opened.find_run(run)
    if not record.n_failures:
        click.echo(f"nothing failed in run {record.id}; nothing was judged", err=True)
    spec = changed_limits(context, description(record))
    return ended(
        lambda: evaluation.retry(
            record.id, store=place, limits=spec.limits.limits(), price=price, watcher=bar
        ),
        bar,
        place,
        as_json,
        spec,
        again="retry",
    )
