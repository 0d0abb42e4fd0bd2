"""`magistrate rank`: rank candidates by pairwise comparisons."""

from __future__ import annotations

import click

from magistrate.cli.options import json_option, store_option
from magistrate.cli.output import console, print_json

EXAMPLE = (
    "Example: magistrate run pairs.jsonl --judge pairwise; magistrate rank last; "
    "magistrate rank battles.csv --first model_a --second model_b --winner winner"
)


@click.command(short_help="Rank candidates by a run of `pairwise`, or by a file.", epilog=EXAMPLE)
@click.argument("source", metavar="FILE|RUN")
@click.option("--judge", help="Which judge of the run, if it has several.")
@click.option(
    "--first",
    metavar="FIELD",
    help="The field with the author of the output: metadata.NAME, or a column of FILE.",
)
@click.option(
    "--second",
    metavar="FIELD",
    help="The field with the author of the alternative: metadata.NAME, or a column of FILE.",
)
@click.option("--winner", metavar="COLUMN", help="The column of FILE that names the winner, or a tie.")
@click.option("--question", metavar="FIELD", help="The field that comparisons of the same question share.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the bootstrap.")
@store_option
@json_option
def command(
    source: str,
    judge: str | None,
    first: str | None,
    second: str | None,
    winner: str | None,
    question: str | None,
    seed: int,
    store: str | None,
    as_json: bool,
) -> int:
    """Rank candidates by a run of the judge `pairwise`, or by a file of comparisons.

    Prints each candidate's rating with its interval (Bradley-Terry model with ties), its possible ranks,
    and who beat whom how often. Exits with 3 if the comparisons do not connect all candidates.
    """
    from magistrate.api.rank import rank
    from magistrate.cli.exit_codes import DONE, ENGINE_GONE
    from magistrate.report.ranking import render_ranking

    fields = {"first": first, "second": second, "winner": winner, "question": question}
    given = {name: field for name, field in fields.items() if field is not None}
    report = rank(source, judge=judge, fields=given, store=store, seed=seed)
    if as_json:
        print_json(report.to_dict())
    else:
        render_ranking(report, console())
    return DONE if report.undefined is None else ENGINE_GONE
