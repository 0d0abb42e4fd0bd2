"""How well judges judge labelled sets, by a fixed protocol: `python -m benchmarks.quality`."""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.machine import machine
from benchmarks.quality import rows as journal
from benchmarks.quality import tables
from benchmarks.quality.measure import FAMILY, faithfulness_judges, let_go, refused, session
from benchmarks.quality.protocol import SETS, TEST_SAMPLES, QualitySet, data_in, here, named
from benchmarks.quality.rows import QualityRow
from benchmarks.quality.tables import HEAD, PAIR, PAIR_HEAD, READING, pairs, sections
from magistrate._paths import home
from magistrate.cli import main
from magistrate.cli.options import json_option
from magistrate.cli.output import console, print_json, print_table
from magistrate.datasets.named import shared
from magistrate.engines.base import Engine
from magistrate.engines.embedded.cores import available_cores
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.errors import DatasetError, SpecError
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.report.formatting import plain
from magistrate.runs.progress import ProgressBar

EXAMPLE = "Example: python -m benchmarks.quality --judge faithfulness --judge rubric --samples 100"


@click.command(epilog=EXAMPLE)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="The folder of labelled sets (default: $MAGISTRATE_DATA_DIR).",
)
@click.option(
    "--set", "sets", multiple=True, metavar="NAME", help="A set; repeatable (default: all that are here)."
)
@click.option(
    "--model", "models", multiple=True, help="A model; repeatable (default: the small built-in one)."
)
@click.option(
    "--judge",
    "judges",
    multiple=True,
    help="A judge; repeatable (default: all that say faithful or hallucinated). {family} in its words stands "
    "for the family of the set.",
)
@click.option(
    "--samples",
    type=click.IntRange(0),
    help="How many of a set are measured, half as many are for choosing thresholds; 0 takes all "
    "(default: 300).",
)
@click.option(
    "--seen", is_flag=True, help="Measure judges also on sets of a family that they were trained on."
)
@click.option("--again", is_flag=True, help="Measure anew what has been measured with the same recipe.")
@click.option(
    "--append",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="JSONL file that every row is added to (default: bench/quality.jsonl in $MAGISTRATE_HOME).",
)
@click.option(
    "--page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Markdown page that the tables of all rows of the file are written into, between its marks.",
)
@click.option("--tables-only", is_flag=True, help="Measure nothing; show the rows that are in the file.")
@json_option
def command(
    data: Path | None,
    sets: tuple[str, ...],
    models: tuple[str, ...],
    judges: tuple[str, ...],
    samples: int | None,
    seen: bool,
    again: bool,
    file: Path | None,
    page: Path | None,
    tables_only: bool,
    as_json: bool,
) -> int:
    """Judge labelled sets, and compare judges with the labels, trivial rules and published results.

    Nothing is tuned on the measured data: a judge has its own threshold, a rule's threshold comes from sets
    of other families, and a tuned one from another part of the same set. Runs are kept: an interrupted one
    is resumed, and one with the same recipe is not repeated.
    """
    from magistrate.cli.exit_codes import DONE
    from magistrate.engines.models import default

    folder = home() / "bench"
    file = file or folder / "quality.jsonl"
    found: list[QualityRow] = []
    if page is not None:
        tables.around(page)
    if tables_only:
        found = journal.read(file)
        if not found:
            raise click.UsageError(f"there are no rows in {file} yet; measure some without --tables-only")
    else:
        asked = list(dict.fromkeys(judges)) or faithfulness_judges(_print_line)
        wanted = list(dict.fromkeys(models)) or [default().name]
        registry.judges([words for words in asked if FAMILY not in words])  # fail early on a wrong name
        with data_in(data):
            chosen = _sets(sets)
            # Report impossible combinations before anything is spent.
            made = _judges(chosen, asked, refuse=bool(judges) and not seen)
            for model in [] if registry.asks_none(made) else wanted:
                let_go(open_model(model))
            journal.append(file, [])
            for row in session(
                chosen,
                wanted,
                asked,
                TEST_SAMPLES if samples is None else samples,
                file=file,
                store=folder / "quality.db",
                opened=open_model,
                machine=machine(available_cores()),
                again=again,
                seen=seen,
                tell=_print_line,
                watching=lambda: ProgressBar(console(error=True), lines=True),
            ):
                found.append(row)
    found = journal.newest(found)
    if page is not None:
        tables.write(page, journal.newest(journal.read(file)))
    if as_json:
        print_json({"rows": [row.model_dump() for row in found]})
    else:
        _print(found)
        click.echo(f"\n{len(found)} rows; all that were ever measured are in {file}")
    return DONE


def _print_line(text: str) -> None:

    click.echo(plain(text), err=True)


def _sets(names: tuple[str, ...]) -> list[QualitySet]:
    """Return the named sets, or all available ones. Prints to standard error which are left out."""

    if names:
        return named(names)
    found = [each for each in SETS if here(each)]
    missing = [each.name for each in SETS if each not in found]
    if not found:
        raise DatasetError(
            f"none of the protocol's sets is here ({', '.join(missing)}); name a folder that has their files "
            "with --data, or download one with --set NAME"
        )
    if missing:
        click.echo(f"not here, left out: {', '.join(missing)}; --set NAME fetches one", err=True)
    return found


def _judges(sets: list[QualitySet], asked: list[str], *, refuse: bool) -> list[Judge]:
    """Return the judges for each set. Raises `SpecError`, with `refuse` also if one was trained on it."""

    found = []
    for each in sets:
        for words in asked:
            judge = registry.judge(words.replace(FAMILY, each.family))
            if refuse and (learnt_from := shared(each.family, judge.info.trained_on)):
                raise SpecError(refused(words, each, learnt_from))
            found.append(judge)
    return found


def open_model(model: str) -> Engine:
    """Return a new model for each measurement, so that none profits from another's cache."""

    return LocalEngine(model)


def _print(rows: list[QualityRow]) -> None:
    from rich.text import Text

    terminal = console()
    for section in sections(rows):
        terminal.print(Text(section.name, style="bold"))
        terminal.print(Text(section.facts))
        spare = ("precision", "recall", "tuned", "ECE (by chance)", "n", "F1", "coverage")
        print_table(HEAD, section.lines, wrapped={"judge": 24}, spare=spare)
        terminal.print()
    if {row.set for row in rows} & set(PAIR):
        print_table(PAIR_HEAD, pairs(rows), wrapped={"method": 20})
        terminal.print()
    terminal.print(Text(READING.replace("*", ""), style="dim"))


if __name__ == "__main__":
    main(command, "python -m benchmarks.quality")
