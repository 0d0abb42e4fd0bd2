"""`magistrate runs`: list, rename, tag and delete stored runs; print their run files."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from magistrate.cli.options import json_option, open_store, store_option
from magistrate.cli.output import print_json, print_table

if TYPE_CHECKING:
    from magistrate.store import RunRecord

EXAMPLE = "Example: magistrate runs --limit 5; magistrate runs rename last nightly"


@click.group(invoke_without_command=True, epilog=EXAMPLE)
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="Show only the newest N runs."
)
@click.option("--tag", help="Only runs with this tag.")
@click.option("--dataset", help="Only runs over this dataset.")
@store_option
@json_option
@click.pass_context
def command(
    context: click.Context, limit: int, tag: str | None, dataset: str | None, store: str | None, as_json: bool
) -> None:
    """List runs, newest first. RUN is an id, the beginning of one, a name, or 'last'."""
    if context.invoked_subcommand is not None:
        return
    from magistrate._paths import default_store

    records: list[RunRecord] = []
    if store is not None or default_store().exists():
        with open_store(store) as opened:
            records = [opened.seen(each) for each in opened.runs(limit=limit, tag=tag, dataset=dataset)]
    if as_json:
        print_json([as_data(record) for record in records])
    elif not records:
        asked = tag is not None or dataset is not None
        click.echo("no matching runs" if asked else "no runs yet; start with: magistrate run quickstart")
    else:
        print_table(
            ["run", "name", "dataset", "judges", "outcomes", "status", "tags"],
            [_row(each) for each in records],
            wrapped={"name": 12, "judges": 14, "status": 11, "tags": 8},
            spare=("tags", "outcomes", "name"),
        )


@command.command(epilog="Example: magistrate runs rename last nightly")
@click.argument("run")
@click.argument("name")
@store_option
@json_option
def rename(run: str, name: str, store: str | None, as_json: bool) -> None:
    """Give RUN another NAME."""
    with open_store(store) as opened:
        record = opened.rename(run, name)
    _tell(record, f"{record.id} is now {record.name}", as_json)


@command.command(epilog="Example: magistrate runs tag last baseline --remove draft")
@click.argument("run")
@click.argument("tags", nargs=-1)
@click.option("--remove", multiple=True, help="A tag to remove; repeatable.")
@store_option
@json_option
def tag(run: str, tags: tuple[str, ...], remove: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Add TAGS to RUN."""
    with open_store(store) as opened:
        record = opened.tag(run, add=tags, remove=remove)
    _tell(record, f"{record.id}: {', '.join(record.tags) or 'no tags'}", as_json)


@command.command(epilog="Example: magistrate runs delete 20261121-143012-x7k2 --yes")
@click.argument("run")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@store_option
@json_option
def delete(run: str, yes: bool, store: str | None, as_json: bool) -> None:
    """Delete RUN with its outcomes."""
    with open_store(store) as opened:
        record = opened.find_run(run)
        if opened.held(record.id):
            raise click.UsageError(
                f"run {record.id} is being judged by another process; stop that process first"
            )
        if not yes and not _confirmed(record):
            click.echo("nothing was deleted", err=True)
            return
        opened.delete(record.id)
    _tell(record, f"deleted {record.id}", as_json)


@command.command(
    short_help="Print the run file that repeats RUN, with data pinned by digest.",
    epilog="Example: magistrate runs spec last",
)
@click.argument("run")
@store_option
@json_option
def spec(run: str, store: str | None, as_json: bool) -> None:
    """Print the run file that repeats RUN, with data pinned by digest and absolute paths."""
    from magistrate.runs.resume import spec_of

    with open_store(store) as opened:
        found = spec_of(opened.find_run(run))
    if as_json:
        print_json(found.plain())
    else:
        click.echo(found.yaml(), nl=False)


def _confirmed(record: RunRecord) -> bool:
    """Ask for confirmation at a terminal. Raises `UsageError` if there is none."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"not a terminal, so nobody can confirm: to delete {record.id}, add --yes")
    return click.confirm(f"delete {record.id} with {record.n_outcomes} outcomes?", err=True)


def _tell(record: RunRecord, words: str, as_json: bool) -> None:
    from magistrate.report.formatting import plain

    if as_json:
        print_json(as_data(record))
    else:
        click.echo(plain(words))


def as_data(record: RunRecord) -> dict[str, Any]:
    """Return a run as plain values."""
    n = max(record.n_total or 0, record.n_samples)
    return {
        "id": record.id,
        "name": record.name,
        "created_at": record.created_at.isoformat(),
        "finished_at": record.finished_at.isoformat() if record.finished_at else None,
        "status": record.status,
        "reason": record.reason,
        "seconds": record.seconds,
        "dataset": record.dataset,
        "dataset_digest": record.dataset_digest,
        "dataset_version": record.dataset_version,
        "model": record.model,
        "judges": list(record.judges),
        "tags": list(record.tags),
        "n_total": record.n_total,
        "n_samples": record.n_samples,
        "n_verdicts": record.n_verdicts,
        "n_failures": record.n_failures,
        "n_abstentions": record.n_abstentions,
        "recipes": {judge: replace(recipe, n=n).line() for judge, recipe in record.recipes.items()},
    }


def _row(record: RunRecord) -> list[str]:
    failed = f", {record.n_failures} failed" if record.n_failures else ""
    return [
        record.id,
        record.name or "",
        record.dataset,
        ", ".join(record.judges),
        str(record.n_outcomes),
        record.status + failed,
        ", ".join(record.tags),
    ]
