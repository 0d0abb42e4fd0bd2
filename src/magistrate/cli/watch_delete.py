"""`magistrate watch delete`: delete a trace and everything derived from it."""

from __future__ import annotations

import click

from magistrate.cli.options import json_option, open_store, store_option
from magistrate.cli.output import print_json

EXAMPLE = "Example: magistrate watch delete 4bf92f3577b34da6a3ce929d0e0e4736"
SHOWN = 5


@click.command(short_help="Delete TRACE, with its spans, verdicts and samples.", epilog=EXAMPLE)
@click.argument("trace")
@store_option
@json_option
def delete(trace: str, store: str | None, as_json: bool) -> int:
    """Delete TRACE (a whole trace id) with its spans, decisions, verdicts and samples.

    Samples that another run or a data set uses stay. What was spent stays counted.
    """
    from magistrate.cli.exit_codes import DONE
    from magistrate.errors import SpecError
    from magistrate.store.runs import shown

    with open_store(store) as opened:
        done = opened.trace_deletion.delete(trace)
        near = [] if done.traces else opened.trace_deletion.known(trace, SHOWN)
    if not done.traces:
        told = f"; ids that start like this: {', '.join(map(shown, near))}" if near else ""
        raise SpecError(f"there is no trace {shown(trace)}{told}")
    if as_json:
        print_json({"traces": done.traces, "targets": done.targets, "samples": done.samples})
    else:
        click.echo(
            f"deleted {done.traces:,} trace, {done.targets:,} targets, {done.samples:,} judged samples"
        )
    return DONE
