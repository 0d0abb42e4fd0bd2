"""`magistrate resume`: go on with a run that was interrupted, killed or failed."""

from __future__ import annotations

from typing import Any, Literal

import click

from magistrate.cli.options import (
    console,
    json_option,
    junit_option,
    limit_options,
    open_store,
    price_option,
    store_option,
)

EXAMPLE = "Example: magistrate resume last; magistrate resume last --max-tokens 200000"


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
    """Go on with RUN where it was left; what has an outcome is not judged again.

    Limits are those that the run had, but for those given here. Refused where the data, a judge, the model
    or a prompt has changed. Exits as run does: with 3 where a limit cuts it off again.
    """
    return gone_on("resume", context, run, price, store, as_json)


def gone_on(
    again: Literal["resume", "retry"],
    context: click.Context,
    run: str,
    price: str | None,
    store: str | None,
    as_json: bool,
) -> int:
    """Judge what is left of a stored run, or what failed in it, and end as a run does."""
    from magistrate.api import evaluate as evaluation
    from magistrate.cli.ending import ended
    from magistrate.cli.run import IN_LIMITS
    from magistrate.report.junit import fresh
    from magistrate.runs.progress import ProgressBar
    from magistrate.runs.resume import description

    fresh(context.params["junit"])
    bar = ProgressBar(console(error=True), lines=True)
    with open_store(store) as opened:
        place, record = opened.place, opened.find_run(run)
    if again == "resume" and record.status == "done":
        click.echo(f"run {record.id} is done; nothing was judged", err=True)
    if again == "retry" and not record.n_failures:
        click.echo(f"nothing failed in run {record.id}; nothing was judged", err=True)
    said = {
        name: value
        for name, value in context.params.items()
        if name in IN_LIMITS and context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    }
    spec = description(record)
    spec = spec.model_copy(update={"limits": spec.limits.model_copy(update=said)})
    judged = evaluation.resume if again == "resume" else evaluation.retry
    return ended(
        lambda: judged(record.id, store=place, limits=spec.limits.limits(), price=price, watcher=bar),
        bar,
        place,
        as_json,
        spec,
        again=again,
        junit=context.params["junit"],
    )
