"""`magistrate labels`: list labelling queues; show, export, import or delete one."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from magistrate.cli.options import json_option, open_store, store_option
from magistrate.cli.output import print_json, print_table

if TYPE_CHECKING:
    from magistrate.labels.estimates import People, Progress
    from magistrate.store import Store
    from magistrate.store.labels import Queue

EXAMPLE = "Example: magistrate labels; magistrate labels export bridges --to labels.csv"


@click.group(invoke_without_command=True, short_help="List labelling queues, newest first.", epilog=EXAMPLE)
@store_option
@json_option
@click.pass_context
def command(context: click.Context, store: str | None, as_json: bool) -> None:
    """List labelling queues, newest first; 'magistrate label' creates one."""
    if context.invoked_subcommand is not None:
        return
    from magistrate._paths import default_store

    rows: list[tuple[Queue, Progress]] = []
    if store is not None or default_store().exists():
        with open_store(store) as opened:
            rows = [(each, _progress(opened, each)) for each in opened.labels.queues()]
    if as_json:
        print_json([_data(queue, done) for queue, done in rows])
    elif not rows:
        click.echo("no queues yet; create one with: magistrate label DATA")
    else:
        print_table(
            ["queue", "of", "policy", "items", "labels", "decided", "conflicts", "hallucinated"],
            [
                [
                    queue.name,
                    queue.source,
                    queue.policy,
                    f"{done.n_items:,}",
                    f"{done.n_labels:,}",
                    f"{done.n_decided:,}",
                    f"{done.n_conflicts:,}",
                    str(done.share),
                ]
                for queue, done in rows
            ],
            wrapped={"queue": 12, "of": 12},
            spare=("of", "policy", "labels"),
        )


@command.command(
    short_help="Show progress, the share hallucinated, and how people agree.",
    epilog="Example: magistrate labels show bridges",
)
@click.argument("queue")
@click.option("--unweighted", is_flag=True, help="The plain share; refused if the policy makes it biased.")
@store_option
@json_option
def show(queue: str, unweighted: bool, store: str | None, as_json: bool) -> None:
    """Show the progress of QUEUE, the share of hallucinated samples, and how well people agree."""
    from magistrate.labels.decisions import findings
    from magistrate.labels.estimates import people, progress
    from magistrate.report.formatting import plain

    with open_store(store) as opened:
        found = opened.labels.find(queue)
        known, samples = findings(opened, found), opened.labels.samples(found.name)
    done = progress(found, known, samples, weighted=not unweighted)
    among = people(found, known, samples)
    if as_json:
        print_json({**_data(found, done), "people": _people(among)})
        return
    click.echo(plain(f"{found.name}: {found.n_items:,} of {found.population:,} samples of {found.source}"))
    click.echo(f"policy {found.policy}; {done.words}")
    click.echo(
        f"{done.n_decided:,} decided, {done.n_conflicts:,} in conflict, {done.n_unsure:,} unsure, "
        f"{done.n_open:,} open; {done.n_waiting:,} need another label"
    )
    for name, counts in done.annotators.items():
        click.echo(plain(f"{name}: {', '.join(f'{count:,} {label}' for label, count in counts.items())}"))
    for line in people_lines(among):
        click.echo(line)


@command.command(epilog="Example: magistrate labels export bridges --to labels.csv")
@click.argument("queue")
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="A .csv file for 'magistrate agree --with', a .jsonl file with spans in RAGTruth's format, or a "
    ".json file for another tool.",
)
@click.option(
    "--for", "form", type=click.Choice(["label-studio", "argilla"]), help="Which tool the .json file is for."
)
@click.option(
    "--gold", is_flag=True, help="Only the final label of each item instead of every annotator's label."
)
@click.option("--comments", is_flag=True, help="What people wrote on items, instead of labels.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@store_option
@json_option
def export(
    queue: str,
    target: Path,
    form: Any,
    gold: bool,
    comments: bool,
    force: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Write the labels of QUEUE, or the comments, to a file."""
    from magistrate.labels.files import export as write

    with open_store(store) as opened:
        found = opened.labels.find(queue)
        n = write(opened, found, target, gold=gold, comments=comments, replace=force, form=form)
    if as_json:
        print_json({"queue": found.name, "file": str(target), "rows": n})
    else:
        click.echo(f"{n:,} rows in {target}")


@command.command(
    "import",
    short_help="Append the labels in FILE to those of QUEUE, all or none.",
    epilog="Example: magistrate labels import bridges labels.jsonl --annotator ana",
)
@click.argument("queue")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--annotator", metavar="NAME", help="The annotator of labels whose row names none.")
@click.option(
    "--counting",
    type=click.Choice(["code-points", "utf-16"]),
    help="The unit of offsets in a tool's .json file, if it cannot be detected.",
)
@store_option
@json_option
def import_file(
    queue: str, file: Path, annotator: str | None, counting: Any, store: str | None, as_json: bool
) -> None:
    """Append the labels in FILE to those of QUEUE, matched by sample id; all of them or none.

    FILE is a .csv or .jsonl as written by export, or .json as written by Label Studio or Argilla.
    """
    from magistrate.labels.files import import_labels
    from magistrate.report.formatting import plain

    with open_store(store) as opened:
        found = opened.labels.find(queue)
        done = import_labels(opened, found, file, datetime.now(UTC), annotator=annotator, counting=counting)
    if as_json:
        print_json(
            {"queue": found.name, "new": done.n_new, "known": done.n_known, "unknown": list(done.unknown)}
        )
        return
    click.echo(f"{done.n_new:,} labels are new, {done.n_known:,} were already stored")
    if done.unknown:
        some = ", ".join(repr(each) for each in done.unknown[:3])
        click.echo(
            plain(f"skipped: {len(done.unknown):,} that match no item of this queue ({some})"), err=True
        )


@command.command(epilog="Example: magistrate labels delete bridges --yes")
@click.argument("queue")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@store_option
@json_option
def delete(queue: str, yes: bool, store: str | None, as_json: bool) -> None:
    """Delete QUEUE with all its labels and decisions."""
    from magistrate.report.formatting import plain

    with open_store(store) as opened:
        found = opened.labels.find(queue)
        n = len(opened.labels.labels(found.name))
        if not yes and not sys.stdin.isatty():
            raise click.UsageError(
                f"not a terminal, so nobody can confirm: to delete {found.name}, add --yes"
            )
        if not yes and not click.confirm(f"delete {plain(found.name)} with {n:,} labels?", err=True):
            click.echo("nothing was deleted", err=True)
            return
        opened.labels.delete(found.name)
    if as_json:
        print_json({"queue": found.name, "labels": n})
    else:
        click.echo(plain(f"deleted {found.name}"))


def people_lines(among: People) -> list[str]:
    """Return lines that describe how well people agree."""
    if among.raters is None:
        return ["agreement: no item has the labels of two people yet"]
    figures = ", ".join(f"{name} {each}" for name, each in among.raters.people.items())
    told = [f"agreement of {among.raters.n_raters} people on {among.n:,} items: {figures}"]
    if among.spans is not None:
        told.append(f"agreement on marked words, on {among.spans.n:,} pairs: F1 {among.spans.metrics['f1']}")
    return [*told, *([among.remark] if among.remark else [])]


def _progress(store: Store, queue: Queue) -> Progress:
    from magistrate.labels.decisions import findings
    from magistrate.labels.estimates import progress

    return progress(queue, findings(store, queue), store.labels.samples(queue.name))


def _data(queue: Queue, done: Progress) -> dict[str, Any]:
    return {
        "queue": queue.name,
        "created_at": queue.created_at.isoformat(),
        "source": queue.source,
        "run": queue.run_id,
        "policy": queue.policy,
        "population": queue.population,
        "covered": queue.covered,
        "settings": dict(queue.settings),
        **done.to_dict(),
    }


def _people(among: People) -> dict[str, Any]:
    return {
        "n": among.n,
        "agreement": None if among.raters is None else among.raters.to_dict(),
        "spans": None if among.spans is None else among.spans.to_dict(),
        "remark": among.remark,
    }
