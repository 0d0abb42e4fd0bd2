"""`magistrate arena`: rank applications or models against each other on questions or documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from magistrate.cli.options import Assignment, json_option, limit_options, run_option, store_option
from magistrate.cli.output import console, print_json
from magistrate.runs.options import LIMITS, MODEL, PRICE

EXAMPLE = (
    "Example: magistrate arena answers.csv --app ours --app theirs; "
    "magistrate arena documents.jsonl --examiner --answer a=ollama:llama3.2 --answer b=openai:gpt-4o-mini"
)


@click.command(short_help="Rank applications or models by battles over questions.", epilog=EXAMPLE)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--app",
    "apps",
    multiple=True,
    metavar="[NAME=]COLUMN",
    help="A column with a candidate's answers; repeatable.",
)
@click.option(
    "--answer",
    "models",
    multiple=True,
    type=Assignment(),
    metavar="NAME=MODEL",
    help="A candidate: a model that answers the questions; repeatable.",
)
@click.option(
    "--examiner", is_flag=True, help="The rows are documents; this model writes a question about each."
)
@click.option(
    "--judge", default="auto", show_default=True, help="The judge that says whether an answer is faithful."
)
@click.option(
    "--member",
    "members",
    multiple=True,
    metavar="MODEL",
    help="A model of the committee that decides battles; repeatable (default: --model as three personas).",
)
@click.option(
    "--criteria",
    metavar="TEXT",
    default="",
    help="The criterion that the committee decides by (default: faithfulness).",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    help="How many rounds of pairs (default: as many as needed).",
)
@click.option(
    "--cross-examine",
    type=click.IntRange(0, 5),
    default=0,
    metavar="ROUNDS",
    show_default=True,
    help="How often both sides of a battle may attack or question the other's answer before the vote.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of pairs, sides and intervals.")
@click.option("--name", help="Name of the arena and its runs (default: the file's name).")
@click.option(
    "--map", "mapping", multiple=True, type=Assignment(), help="Which column is which field; repeatable."
)
@run_option(MODEL)
@run_option(PRICE)
@limit_options
@store_option
@json_option
def command(
    file: Path,
    apps: tuple[str, ...],
    models: tuple[tuple[str, str], ...],
    members: tuple[str, ...],
    mapping: tuple[tuple[str, str], ...],
    name: str | None,
    store: str | None,
    as_json: bool,
    **how: Any,
) -> int:
    """Rank applications or models by battles over the questions in FILE, with the share of faithful answers.

    Answers are columns of FILE, or written by models. A committee votes on pairs of answers, discusses once
    if its members differ, and votes again. Pairs are chosen by Swiss rounds. Every call is stored in a run.
    Limits hold for all phases together. If a limit or an error ends it, run the same command again to
    continue. Exits with 3 if the arena is not finished, or if the battles do not connect all candidates.
    """
    from magistrate.api.arena import ArenaSpec, arena
    from magistrate.cli.exit_codes import DONE, ENGINE_GONE
    from magistrate.engines.base import EngineSettings
    from magistrate.judges.registry import engine
    from magistrate.report.arena import render_arena
    from magistrate.runs.limits import Limits
    from magistrate.runs.progress import ProgressBar

    limits = Limits(**{option.name: how.pop(option.name) for option in LIMITS})
    settings = EngineSettings(concurrency=limits.concurrency)
    columns = dict(_named(each) for each in apps)
    if len(columns) < len(apps) or len(dict(models)) < len(models):
        raise click.UsageError("two candidates have the same name; use --app NAME=COLUMN")
    spec = ArenaSpec(
        name=name or file.name.partition(".")[0],
        columns=columns,
        models={each: engine(words, settings) for each, words in models},
        members=[engine(words, settings) for words in members],
        **how,
    )
    report = arena(
        file,
        spec,
        mapping=dict(mapping),
        limits=limits,
        store=store,
        watcher=ProgressBar(console(error=True), lines=True),
    )
    if as_json:
        print_json(report.to_dict())
    else:
        render_arena(report, console())
    whole = report.stopped is None and report.ranking is not None and report.ranking.undefined is None
    return DONE if whole else ENGINE_GONE


def _named(words: str) -> tuple[str, str]:
    """Split the value of `--app` into name and column."""
    name, equals, column = words.partition("=")
    return (name, column) if equals else (words, words)
