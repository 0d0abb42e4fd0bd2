"""`magistrate resume` and `magistrate retry`: continue a run, or judge its failures again."""

from __future__ import annotations

from typing import Any, Literal

import click

from magistrate.cli.options import (
    json_option,
    junit_option,
    limit_options,
    price_option,
    require_store,
    run_option,
    store_option,
)
from magistrate.cli.output import console
from magistrate.runs.options import WORKERS

EXAMPLE = "Example: magistrate resume last; magistrate resume last --max-tokens 200000"


@click.command(epilog=EXAMPLE)
@click.argument("run")
@limit_options
@run_option(WORKERS)
@price_option
@junit_option
@store_option
@json_option
@click.pass_context
def command(
    context: click.Context, /, run: str, price: str | None, store: str | None, as_json: bool, **_: Any
) -> int:
    """Continue RUN where it stopped. Judgements that have an outcome are not repeated.

    The limits of the run apply unless you give new ones here. Refused if the data, a judge, the model or a
    prompt has changed. The exit codes are those of run: 3 if a limit cuts it off again.
    """
    return _continue("resume", context, run, price, store, as_json)


@click.command(
    "retry", short_help="Judge only the failures of RUN again.", epilog="Example: magistrate retry last"
)
@click.argument("run")
@limit_options
@run_option(WORKERS)
@price_option
@junit_option
@store_option
@json_option
@click.pass_context
def retry(
    context: click.Context, /, run: str, price: str | None, store: str | None, as_json: bool, **_: Any
) -> int:
    """Judge only the failures of RUN again; a new outcome replaces the failure.

    The exit codes are those of run: 3 if a limit cuts it off, or if RUN itself is not finished.
    """
    return _continue("retry", context, run, price, store, as_json)


def _continue(
    again: Literal["resume", "retry"],
    context: click.Context,
    run: str,
    price: str | None,
    store: str | None,
    as_json: bool,
) -> int:
    """Judge the rest of a stored run, or its failures, and finish as a run does."""
    from magistrate import _async
    from magistrate.api.evaluate import RunSession
    from magistrate.cli.exit_codes import finish_run
    from magistrate.cli.run import IN_LIMITS
    from magistrate.report.export import fresh
    from magistrate.runs.progress import ProgressBar
    from magistrate.runs.resume import stored_spec

    fresh(context.params["junit"])
    require_store(store)
    bar = ProgressBar(console(error=True), lines=True)
    with RunSession(store) as session:
        record = session.find(run)
        if again == "resume" and record.status == "done":
            click.echo(f"run {record.id} is done; nothing was judged", err=True)
        if again == "retry" and not record.n_failures:
            click.echo(f"nothing failed in run {record.id}; nothing was judged", err=True)
        given = {
            name: value
            for name, value in context.params.items()
            if name in IN_LIMITS
            and context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
        }
        spec = stored_spec(record)
        spec = spec.model_copy(update={"limits": spec.limits.model_copy(update=given)})
        execute = session.resume_stored if again == "resume" else session.retry
        return finish_run(
            lambda: _async.run(
                execute(
                    record.id,
                    bar,
                    limits=spec.limits.limits(),
                    price=price,
                    workers=context.params["workers"],
                )
            ),
            bar,
            session,
            spec,
            as_json,
            again=again,
            junit=context.params["junit"],
        )
