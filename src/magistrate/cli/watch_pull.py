"""`magistrate watch pull`: copy spans from Phoenix or MLflow into the store, to be judged by rules."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import click

from magistrate.cli.options import json_option, store_option
from magistrate.cli.output import print_json

if TYPE_CHECKING:
    from magistrate.store import Store
    from magistrate.watch.pull import Pulled, Source

EXAMPLE = (
    "Example: magistrate watch pull phoenix http://127.0.0.1:6006 --project shop; "
    "magistrate watch pull mlflow http://127.0.0.1:5000 --experiment 1 --every 1m"
)
PROBLEMS_TOLD = 5


@click.command(short_help="Store the spans that a server has collected since last time.", epilog=EXAMPLE)
@click.argument("kind", type=click.Choice(["phoenix", "mlflow"]))
@click.argument("address", metavar="URL")
@click.option("--project", default="default", show_default=True, help="Phoenix: the project, by name or id.")
@click.option("--experiment", default="0", show_default=True, metavar="ID", help="MLflow: the experiment.")
@click.option(
    "--overlap",
    default="10m",
    show_default=True,
    metavar="TIME",
    help="MLflow: the longest duration of a trace; traces that started within this time are read again.",
)
@click.option(
    "--header-env",
    "headers",
    multiple=True,
    metavar="NAME=VARIABLE",
    help="A header and the environment variable with its value, such as Authorization=PHOENIX_AUTHORIZATION; "
    "repeatable.",
)
@click.option("--since", metavar="TIME", help="Only traces that are not older than this, such as 7d.")
@click.option("--every", metavar="TIME", help="Pull again at this interval, such as 1m, until Ctrl-C.")
@store_option
@json_option
def pull(
    kind: Literal["phoenix", "mlflow"],
    address: str,
    project: str,
    experiment: str,
    overlap: str,
    headers: tuple[str, ...],
    since: str | None,
    every: str | None,
    store: str | None,
    as_json: bool,
) -> int:
    """Store the spans that a project or experiment on a server has collected since the last pull.

    The rules of `magistrate watch run`, or of `magistrate serve --watch` on the same store, judge them. A
    span that is read twice is stored once. With --every, a server that does not answer is reported and
    tried again.
    """
    from magistrate._paths import default_store
    from magistrate.cli.exit_codes import DONE
    from magistrate.store import Store
    from magistrate.watch.outputs import read_headers
    from magistrate.watch.parts import duration
    from magistrate.watch.pull import Mlflow, Phoenix, Reader

    named = dict(_header(each) for each in headers)
    wait = None if every is None else duration(every).total_seconds()
    begin = None if since is None else datetime.now(UTC) - duration(since)
    reader = Reader("Phoenix" if kind == "phoenix" else "MLflow", address, read_headers(named))
    source = Phoenix(reader, project) if kind == "phoenix" else Mlflow(reader, experiment, duration(overlap))
    with Store.open(store or str(default_store())) as opened:
        _pull(opened, source, begin, wait, as_json)
    return DONE


def _pull(store: Store, source: Source, begin: datetime | None, wait: float | None, as_json: bool) -> None:
    """Pull once, or repeatedly forever."""
    from time import sleep

    from magistrate import _async
    from magistrate.errors import EngineError
    from magistrate.watch.pull import pull

    while True:
        try:
            found = _async.run(pull(store, source, clock=lambda: datetime.now(UTC), since=begin))
        except EngineError as error:
            if wait is None:
                raise
            click.echo(f"{error}; next attempt in {wait:g} seconds", err=True)
        else:
            _print(source.name, found, as_json)
        if wait is None:
            return
        sleep(wait)


def _header(words: str) -> tuple[str, str]:
    """Split `--header-env` into the names of the header and the variable."""
    name, equals, variable = words.partition("=")
    if not equals or not name or not variable.isidentifier():  # it may be the key itself, so it is not shown
        raise click.UsageError(
            "--header-env must be NAME=VARIABLE, such as Authorization=PHOENIX_AUTHORIZATION"
        )
    return name, variable


def _print(name: str, found: Pulled, as_json: bool) -> None:
    from magistrate.report.formatting import plain

    if as_json:
        told = {"source": name, "spans": found.spans, "changed": found.changed, "unread": found.unread}
        print_json(told)
        return
    click.echo(f"{plain(name)}: {found.spans:,} spans read, {found.changed:,} of them new or changed")
    for each in found.unread[:PROBLEMS_TOLD]:
        click.echo(f"left out: {plain(each)}", err=True)
    if len(found.unread) > PROBLEMS_TOLD:
        click.echo(f"skipped: {len(found.unread) - PROBLEMS_TOLD:,} more", err=True)
