"""`magistrate resume`: go on with a run that was interrupted, killed or failed."""

from __future__ import annotations

from typing import Any

import click

from magistrate.cli.options import console, json_option, limit_options, open_store, price_option, store_option

EXAMPLE = "Example: magistrate resume last; magistrate resume last --max-tokens 200000"


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
    """Go on with RUN where it was left; what has an outcome is not judged again.

    Limits are those that the run had, but for those given here. Refused where the data, a judge, the model
    or a prompt has changed.
    """
    from magistrate import evaluation
    from magistrate.cli.ending import ended
    from magistrate.report.progress import ProgressBar
    from magistrate.resuming import description

    bar = ProgressBar(console(error=True), lines=True)
    with open_store(store) as opened:
        place, record = opened.place, opened.find_run(run)
    if record.status == "done":
        click.echo(f"run {record.id} is done; nothing was judged", err=True)
    spec = changed_limits(context, description(record))
    return ended(
        lambda: evaluation.resume(
            record.id, store=place, limits=spec.limits.limits(), price=price, watcher=bar
        ),
        bar,
        place,
        as_json,
        spec,
    )


def changed_limits(context: click.Context, spec: Any) -> Any:
    """The description with the limits that the words of the command say."""
    from magistrate.cli.run import IN_LIMITS

    said = {
        name: value
        for name, value in context.params.items()
        if name in IN_LIMITS and context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    }
    return spec.model_copy(update={"limits": spec.limits.model_copy(update=said)})
