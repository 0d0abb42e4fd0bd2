"""`magistrate datasets`: list public and stored sets; add, show, compare and delete stored ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from magistrate.cli.exit_codes import print_problems
from magistrate.cli.options import OneOrCommand, json_option, open_store, store_option, whole_reading_options
from magistrate.cli.output import print_json, print_table

if TYPE_CHECKING:
    from magistrate.datasets import Dataset
    from magistrate.datasets.dataset import Overview
    from magistrate.store import DatasetVersion, RunRecord, Store
    from magistrate.store.difference import Difference
    from magistrate.types import Sample

EXAMPLE = "Example: magistrate datasets; magistrate run halueval-qa --view article200"
LINES = 20
STORED = "in the store"


@click.group(
    cls=OneOrCommand,
    invoke_without_command=True,
    short_help="List public and stored sets; NAME shows one.",
    epilog=EXAMPLE,
)
@store_option
@json_option
@click.pass_context
def command(context: click.Context, store: str | None, as_json: bool) -> None:
    """List public and stored sets and where each one is; NAME shows one.

    $MAGISTRATE_DATA_DIR is searched first.
    """
    if context.invoked_subcommand is None:
        _list(store, as_json)


@command.command("list", epilog="Example: magistrate datasets list --json")
@store_option
@json_option
def listing(store: str | None, as_json: bool) -> None:
    """List the public and the stored sets."""
    _list(store, as_json)


@command.command(epilog="Example: magistrate datasets add answers.jsonl --name refunds --map context=docs")
@click.argument("data")
@click.option("--name", required=True, help="Name of the set; an existing name gets a new version.")
@click.option("--limit", type=click.IntRange(1), help="Only the first N samples.")
@click.option("--sample", type=click.IntRange(1), help="N random samples.")
@click.option(
    "--balance",
    metavar="FIELD",
    help="With --sample: equally many samples for each value of this field, such as label.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of --sample.")
@click.option("--view", help="A view of a public set, such as article200.")
@whole_reading_options
@store_option
@json_option
def add(
    data: str,
    name: str,
    limit: int | None,
    sample: int | None,
    balance: str | None,
    seed: int,
    view: str | None,
    mapping: tuple[tuple[str, str], ...],
    labels: dict[str, str],
    max_unread: float,
    store: str | None,
    as_json: bool,
) -> None:
    """Store DATA, anything that 'magistrate run' accepts, under a name. The same content adds no new version.

    Rows that cannot be read are refused unless --max-unread allows some. Rows that are not stored are
    missing from the counts of every run over the set.
    """
    from magistrate._paths import default_store
    from magistrate.datasets.files import looks_like_path
    from magistrate.store import Store
    from magistrate.store.datasets import checked_name

    name = checked_name(name)
    dataset = _opened(
        data,
        store,
        view=view,
        mapping=dict(mapping),
        labels=labels,
        max_unread=max_unread,
        limit=limit,
        sample=sample,
        balance=balance,
        seed=seed,
    )
    chosen = [f"{word}={value}" for word, value in dataset.selection.recipe().items()]
    chosen += [f"{field}={column}" for field, column in mapping]
    chosen += [f"{value}={meaning}" for value, meaning in labels.items()]
    read = data if looks_like_path(data) else dataset.name
    with Store.open(store or default_store()) as opened:
        added = opened.add_dataset(name, dataset, source=" ".join([read, *chosen]))
        newest = opened.find_dataset(name)
    if as_json:
        print_json({**as_data(added), "new": added.new, "problems": [str(each) for each in dataset.problems]})
    elif added.new:
        _say(f"stored {_counted(added.n_samples)} as {added.ref}")
    else:
        later = "" if newest == added else f"; the newest version is {newest.ref}"
        _say(f"{added.ref} already holds the same {_counted(added.n_samples)}{later}")
    print_problems(dataset.problems)


@command.command(
    short_help="Show what DATA contains, and which runs judged it.",
    epilog="Example: magistrate datasets show refunds@2",
)
@click.argument("data")
@store_option
@json_option
def show(data: str, store: str | None, as_json: bool) -> None:
    """Show what DATA (NAME, NAME@VERSION, or any other data) contains, and which runs judged it."""
    from magistrate.datasets.dataset import overview

    with _samples(data, store) as (version, samples, opened):
        found = overview(samples)
        runs = opened.dataset_runs(version.ref) if opened is not None and version is not None else []
    if as_json:
        print_json(_shown_data(data, version, found, runs))
        return
    _say(_headline(data, version, found))
    if version is not None:
        _say(f"added {version.created_at:%Y-%m-%d %H:%M} UTC from {version.source}; sha256 {version.digest}")
    labels = ", ".join(f"{label} {n:,}" for label, n in found.labels.items()) or "none"
    _say(f"labels: {labels}")
    if found.metadata:
        _say(f"metadata: {_some(list(found.metadata))}")
    click.echo()
    print_table(
        ["field", "samples", "median characters"],
        [
            [
                name,
                f"{facts.present:,}",
                "" if facts.median_characters is None else f"{facts.median_characters:,g}",
            ]
            for name, facts in found.fields.items()
        ],
    )
    click.echo()
    print_table(
        ["first", "input", "context", "output", "label"],
        [_line(each) for each in found.first],
        wrapped={"input": 12, "context": 20, "output": 20},
    )
    if version is not None:
        judged = [f"{run.id}{f' ({run.name})' if run.name else ''} {run.status}" for run in runs]
        _say(f"\njudged by: {_some(judged) or 'no run yet'}")


@command.command(
    short_help="Show how the samples of A changed in B.",
    epilog="Example: magistrate datasets diff refunds@1 refunds; magistrate datasets diff refunds new.jsonl",
)
@click.argument("a")
@click.argument("b")
@store_option
@json_option
def diff(a: str, b: str, store: str | None, as_json: bool) -> None:
    """Show how the samples of A changed in B; each is NAME, NAME@VERSION or a file.

    Samples are matched by their ids. Samples without ids of their own are matched by content, in any order.
    """
    from magistrate.store.difference import difference

    with _samples(a, store) as (_, before, _opened), _samples(b, store) as (_, after, _again):
        found = difference(before, after)
    if as_json:
        print_json({**asdict(found), "changed": {id: list(names) for id, names in found.changed.items()}})
        return
    _say(
        f"{len(found.added):,} added, {len(found.removed):,} removed, {len(found.changed):,} changed, "
        f"{found.n_same:,} the same"
    )
    lines = list(_lines(found))
    for line in lines[:LINES]:
        _say(line)
    if len(lines) > LINES:
        click.echo(f"… and {len(lines) - LINES:,} more; --json has all")


@command.command(
    short_help="Delete a stored set, or one version of it.",
    epilog="Example: magistrate datasets delete refunds@1 --yes",
)
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--force", is_flag=True, help="Delete it even if runs have judged it; the runs stay.")
@store_option
@json_option
def delete(name: str, yes: bool, force: bool, store: str | None, as_json: bool) -> None:
    """Delete a version (NAME@VERSION), or a stored set with all its versions (NAME)."""
    with open_store(store) as opened:
        if not yes and not _confirmed(opened.datasets_meant(name)):
            click.echo("nothing was deleted", err=True)
            return
        deleted = opened.delete_dataset(name, force=force)
    if as_json:
        print_json([as_data(each) for each in deleted])
    else:
        _say(f"deleted {', '.join(each.ref for each in deleted)}")


# --- finding data ----------------------------------------------------------------------------------


def _list(store: str | None, as_json: bool) -> None:
    from magistrate.datasets import describe

    listings, versions = describe(), list[Any]()
    if store is not None or _has_store(store):
        with open_store(store) as opened:
            versions = opened.dataset_versions()
    if as_json:
        empty = {"description": "", "task": "", "licence": "", "views": {}, "where": STORED}
        stored = [
            {**as_data(each), "name": each.ref, "rows": each.n_samples, "upstream": each.source, **empty}
            for each in versions
        ]
        print_json([*(asdict(each) for each in listings), *stored])
        return
    print_table(
        ["dataset", "rows", "views", "what it is", "licence", "where"],
        [
            *(
                [
                    each.name,
                    "?" if each.rows is None else f"{each.rows:,}",
                    ", ".join(each.views),
                    each.description,
                    each.licence,
                    each.where,
                ]
                for each in listings
            ),
            *([each.ref, f"{each.n_samples:,}", "", f"from {each.source}", "", STORED] for each in versions),
        ],
        wrapped={"what it is": 24, "views": 10, "licence": 18, "where": 20},
        spare=("licence", "where"),
    )


@contextmanager
def _samples(
    words: str, place: str | None
) -> Iterator[tuple[DatasetVersion | None, Iterator[Sample], Store | None]]:
    """Open the samples of a stored version, with its store, or of any other data."""
    if place is not None or _has_store(place):
        with open_store(place) as store:
            version = store.stored_dataset(words)
            if version is not None:
                yield version, store.dataset_samples(version.digest), store
                return
    dataset = _opened(words, place)
    yield None, iter(dataset), None
    print_problems(dataset.problems)


def _opened(
    words: str, place: str | None, *, view: str | None = None, mapping: Any = None, **options: Any
) -> Dataset:
    """Open a stored version or any other data, as a run would."""
    from magistrate.runs.prepare import open_data
    from magistrate.runs.spec import DataPart

    part = DataPart(source=words, view=view, map=dict(mapping or {}), **options)
    with open_store(place) if _has_store(place) else nullcontext() as store:
        return open_data(store, part)[0]


def _has_store(place: str | None) -> bool:
    from magistrate._paths import default_store

    if place is None:
        return default_store().exists()
    from magistrate.store.connection import exists

    return exists(place)


# --- output ----------------------------------------------------------------------------------------


def as_data(version: DatasetVersion) -> dict[str, Any]:
    """Return a stored version as plain values."""
    return {
        "name": version.name,
        "version": version.version,
        "ref": version.ref,
        "digest": version.digest,
        "n_samples": version.n_samples,
        "created_at": version.created_at.isoformat(),
        "source": version.source,
    }


def _shown_data(
    words: str, version: DatasetVersion | None, found: Overview, runs: Sequence[RunRecord]
) -> dict[str, Any]:
    facts = asdict(found)
    facts["first"] = [asdict(sample) for sample in found.first]
    named = {"source": words} if version is None else as_data(version)
    return {**named, **facts, "runs": [run.id for run in runs]}


def _headline(words: str, version: DatasetVersion | None, found: Overview) -> str:
    return f"{words if version is None else version.ref}: {_counted(found.n_samples)}"


def _line(sample: Sample) -> list[str]:
    from magistrate._text import shorten

    texts = (sample.input, " ".join(sample.sources), sample.output)
    return [sample.id, *(shorten(text or "", 80) for text in texts), sample.label or ""]


def _lines(found: Difference) -> Iterator[str]:
    yield from (f"+ {id}" for id in found.added)
    yield from (f"- {id}" for id in found.removed)
    yield from (f"~ {id}: {', '.join(names)}" for id, names in found.changed.items())


def _counted(n: int) -> str:
    return f"{n:,} sample{'' if n == 1 else 's'}"


def _some(words: Sequence[str]) -> str:
    return ", ".join([*words[:LINES], *(["…"] if len(words) > LINES else [])])


def _say(words: str) -> None:
    from magistrate.report.formatting import plain

    click.echo(plain(words))


def _confirmed(going: Sequence[DatasetVersion]) -> bool:
    """Ask for confirmation at a terminal. Raises `UsageError` if there is none."""
    named = ", ".join(each.ref for each in going)
    if not sys.stdin.isatty():
        raise click.UsageError(f"not a terminal, so nobody can confirm: to delete {named}, add --yes")
    return click.confirm(f"delete {named}?", err=True)
