"""`magistrate import verdicts`: import another tool's verdicts as a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from magistrate.cli.options import (
    Assignment,
    json_option,
    run_option,
    store_option,
    whole_reading_options,
)
from magistrate.runs.options import FAILURES, NAME, TAGS

EXAMPLE = (
    "Example: magistrate import verdicts ragas.csv --judge ragas --score faithfulness --higher better "
    "--threshold 0.5"
)


@click.group("import", epilog=EXAMPLE)
def command() -> None:
    """Import the results of other tools."""


class Scale(click.ParamType[tuple[float, float]]):
    """Two numbers: `LOW,HIGH`."""

    name = "LOW,HIGH"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[float, float]:
        if isinstance(value, tuple):
            return value
        try:
            low, high = map(float, str(value).split(","))
        except ValueError:
            self.fail(f"expected two numbers, such as 1,5, got {value!r}", parameter, context)
        return low, high


@command.command(short_help="Make a run from verdicts in a file of another tool.", epilog=EXAMPLE)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--judge", required=True, help="Name of the judge in the run, such as ragas.")
@click.option("--score", metavar="COLUMN", help="The column, or dotted path, of the scores.")
@click.option(
    "--label",
    metavar="COLUMN",
    help="The column of the labels; if given, labels are taken from it and not from scores.",
)
@click.option("--reason", metavar="COLUMN", help="The column of the explanations.")
@click.option("--error", metavar="COLUMN", help="The column with the reason why there is no verdict.")
@click.option(
    "--higher", type=click.Choice(["better", "worse"]), help="What a higher score means; it is never guessed."
)
@click.option("--threshold", type=float, help="The score from which on it counts as high.")
@click.option(
    "--scale",
    type=Scale(),
    default="0,1",
    show_default=True,
    help="The lowest and the highest possible score.",
)
@click.option(
    "--only",
    type=Assignment(),
    metavar="COLUMN=VALUE",
    help="Import only rows in which this column has this value.",
)
@click.option(
    "--samples", metavar="DATA", help="The samples that were judged, if the file has no texts or labels."
)
@click.option("--into", metavar="RUN", help="Add the judge to a run over the same samples.")
@click.option("--asked", metavar="MODEL", help="Which model gave the verdicts; stored as information only.")
@whole_reading_options
@run_option(NAME)
@run_option(TAGS)
@run_option(FAILURES)
@store_option
@json_option
def verdicts(
    file: Path,
    judge: str,
    samples: str | None,
    into: str | None,
    asked: str | None,
    mapping: tuple[tuple[str, str], ...],
    labels: dict[str, str],
    max_unread: float,
    name: str | None,
    tags: tuple[str, ...],
    max_failures: float,
    store: str | None,
    as_json: bool,
    **columns: Any,
) -> int:
    """Make a run from the verdicts in FILE: .csv, .jsonl, .json, .parquet, .eval, a test run of DeepEval.

    No judge and no model is called. A verdict that is missing or failed in FILE becomes a failure with the
    reason. Importing the same file again gives the same run. Exits with 2 if a setting is missing or
    unknown, and with 3 if there is no verdict, or more failures than --max-failures.
    """
    from magistrate.api.import_verdicts import import_verdicts
    from magistrate.cli.exit_codes import DONE, ENGINE_GONE, show
    from magistrate.datasets.verdicts import VerdictColumns
    from magistrate.report.formatting import plain

    done = import_verdicts(
        file,
        judge,
        VerdictColumns(**columns),
        samples=samples,
        into=into,
        mapping=dict(mapping),
        labels=labels,
        max_unread=max_unread,
        model=asked,
        name=name,
        tags=tags,
        store=store,
    )
    if not done.new:
        click.echo(f"run {done.run.id} already holds these verdicts; nothing was imported", err=True)
    if done.strangers:
        told = (
            f"skipped: {len(done.strangers):,} rows that match no sample of the run; the first is "
            f"{done.strangers[0]}"
        )
        click.echo(plain(told), err=True)
    report = done.run.summary()
    show(report, done.problems, as_json)
    problem = report.without_verdict or report.too_many_failures(max_failures)
    if problem:
        click.echo(plain(problem), err=True)
    return ENGINE_GONE if problem else DONE
