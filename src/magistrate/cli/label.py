"""`magistrate label`: create a queue of samples for people, or reopen one, and label on a page."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from magistrate.cli.options import reading_options

if TYPE_CHECKING:
    from magistrate.labels.queues import QueueOptions
    from magistrate.store import Store
    from magistrate.store.labels import Queue

EXAMPLE = (
    "Example: magistrate label last; magistrate label rows.jsonl --double 0.5 --no-open; "
    "magistrate label last --policy stratified --by metadata.topic --size 100 --name topics"
)
POLICIES = ("mixed", "uniform", "disagreement", "threshold", "stratified", "failures", "drift")
FIXED = (
    "policy",
    "judge",
    "by",
    "reference",
    "size",
    "double",
    "width",
    "seed",
    "kinds",
    "instructions",
    "verdicts",
)
"""Options that a queue has from the beginning, and for good."""


@click.command(short_help="Label samples of DATA or of a RUN, or go on with a QUEUE.", epilog=EXAMPLE)
@click.argument("source", metavar="DATA|RUN|QUEUE")
@click.option("--name", help="Name of the queue (default: the name of the data or the run).")
@click.option(
    "--policy",
    type=click.Choice(POLICIES),
    help="Which samples to draw. mixed: half at random, half where judges differ (the default if there are "
    "verdicts); uniform: at random (the default otherwise); disagreement: where judges differ; "
    "threshold: scores near the threshold; stratified: from all ranges of scores; failures: where a "
    "judge has no verdict; drift: half at random, half what differs most from a reference.",
)
@click.option("--judge", help="The judge whose scores threshold and stratified use (default: the first).")
@click.option("--by", metavar="FIELD", help="stratified: also split by label or metadata.NAME.")
@click.option(
    "--reference",
    metavar="RUN|TIME",
    help="drift: the run that this one is held against; of a rule's run also a time such as 7d, before which "
    "all was as it should be.",
)
@click.option(
    "--size",
    type=click.IntRange(1),
    help="How many samples to draw (default: half of them, at most 200; uniform and failures: all).",
)
@click.option(
    "--double",
    type=click.FloatRange(0, 1),
    default=0.2,
    show_default=True,
    help="The share of the items that two people label.",
)
@click.option(
    "--width",
    type=click.FloatRange(0, 0.5, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    help="Half width of the interval of the share that you want to reach.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the draw.")
@click.option(
    "--kinds",
    metavar="A,B,C",
    help="Kinds of errors to mark words with, 1 to 9 (default: those of RAGTruth).",
)
@click.option("--instructions", metavar="TEXT", help="Instructions that annotators see above every item.")
@click.option(
    "--verdicts", is_flag=True, help="Show judges' verdicts before the annotator labels; this biases labels."
)
@reading_options
@click.option(
    "--store",
    metavar="FILE|URL",
    help="Where labels are stored: a file, or postgresql://… (default: magistrate.db in $MAGISTRATE_HOME, "
    "created if missing).",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="The port to listen on (default: any free one)."
)
@click.option(
    "--open/--no-open", "opened", default=True, help="Open a browser at the first item.  [default: open]"
)
@click.pass_context
def command(
    context: click.Context,
    source: str,
    name: str | None,
    policy: Any,
    judge: str | None,
    by: str | None,
    reference: str | None,
    size: int | None,
    double: float,
    width: float,
    seed: int,
    kinds: str | None,
    instructions: str | None,
    verdicts: bool,
    mapping: tuple[tuple[str, str], ...],
    labels: dict[str, str],
    max_unread: float,
    store: str | None,
    port: int,
    opened: bool,
) -> int:
    """Label samples of DATA (anything that 'magistrate run' accepts) or of a RUN, or continue with a QUEUE.

    Each label is stored at once. Stop with Ctrl-C. For several people at once, use 'magistrate serve'.
    """
    from magistrate.cli.exit_codes import DONE
    from magistrate.cli.serve import checked_store, serve_pages
    from magistrate.errors import require_extra
    from magistrate.labels.queues import KINDS, QueueOptions
    from magistrate.report.formatting import plain
    from magistrate.store import Store

    require_extra("server", "fastapi", "uvicorn", "prometheus_client", "python_multipart")
    from magistrate.server.responses import segment
    from magistrate.server.settings import Settings

    options = QueueOptions(
        policy=policy,
        judge=judge,
        by=by,
        reference=reference,
        size=size,
        seed=seed,
        double=double,
        width=width,
        blind=not verdicts,
        kinds=KINDS if kinds is None else tuple(word.strip() for word in kinds.split(",")),
        instructions=instructions or "",
    )
    place = checked_store(store, may_be_new=True)
    reading = {"map": dict(mapping), "labels": labels, "max_unread": max_unread}
    with Store.open(place) as shelf:
        queue, new = _queue(shelf, source, name, options, reading)
    settings = [each for each in FIXED if context.get_parameter_source(each) is ParameterSource.COMMANDLINE]
    if not new and settings:
        given = ", ".join(f"--{each}" for each in settings)
        told = f"queue {queue.name} already exists and cannot be changed; ignored: {given}"
        click.echo(f"note: {plain(told)}", err=True)
    of = f"{queue.n_items:,} of {queue.population:,} samples of {queue.source}, {queue.policy}"
    click.echo(f"{'made' if new else 'opened'} queue {plain(queue.name)}: {plain(of)}", err=True)
    path = f"label/{segment(queue.name)}/next"
    serve_pages(Settings(store=place, port=port), path if opened else None)
    return DONE


def _queue(
    store: Store, words: str, name: str | None, options: QueueOptions, reading: dict[str, Any]
) -> tuple[Queue, bool]:
    """Find or create the queue, and return whether it is new."""
    from magistrate.datasets.files import looks_like_path
    from magistrate.errors import SpecError
    from magistrate.labels.queues import queue_name, queue_of_run, queue_of_samples
    from magistrate.runs.prepare import open_data
    from magistrate.runs.spec import DataPart

    known = {each.name: each for each in store.labels.queues()}
    if name is None and words in known:
        return known[words], False
    now, record = datetime.now(UTC), None
    if not looks_like_path(words) and store.stored_dataset(words) is None:
        with suppress(SpecError):  # it may be a public set instead of a run
            record = store.find_run(words)
    if record is not None:
        called = name or queue_name(record.name or record.id)
        if called in known:
            return _same(known[called], record.id, record.dataset_digest), False
        return queue_of_run(store, record, called, options, now), True
    dataset, version = open_data(store, DataPart(source=words, **reading))
    called = name or queue_name(version or dataset.name)
    if called in known:
        return _same(known[called], None, dataset.digest), False
    samples = list(dataset)
    _tell_problems(dataset.problems)
    return queue_of_samples(
        store, samples, called, version or dataset.name, dataset.digest, options, now
    ), True


def _same(queue: Queue, run_id: str | None, digest: str) -> Queue:
    from magistrate.errors import SpecError

    if (queue.run_id, queue.digest) != (run_id, digest):
        raise SpecError(
            f"queue {queue.name!r} already exists with other samples ({queue.source}, or an earlier state of "
            "it); choose another name with --name"
        )
    return queue


def _tell_problems(problems: Any) -> None:
    from magistrate.cli.exit_codes import print_problems

    print_problems(problems)
