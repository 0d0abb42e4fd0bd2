"""`magistrate export`: a run as a file, a report to read or rows for other tools."""

from __future__ import annotations

from pathlib import Path

import click

from magistrate.cli.options import json_option, open_store, print_json, store_option

EXAMPLE = "Example: magistrate export last --to report.html; magistrate export last --to verdicts.csv"


@click.command(epilog=EXAMPLE)
@click.argument("run")
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Path(path_type=Path),
    help="A .html report, or rows in a .jsonl, .csv (also .gz) or .parquet file.",
)
@click.option("--judge", metavar="NAME", help="Only what this judge said.")
@click.option(
    "--rows",
    type=click.IntRange(0),
    default=2000,
    show_default=True,
    help="Outcomes listed in a .html report: wrong ones, failures and abstentions first.",
)
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@store_option
@json_option
def command(
    run: str, target: Path, judge: str | None, rows: int, force: bool, store: str | None, as_json: bool
) -> None:
    """Write RUN as one HTML file to read, or every outcome with its sample as one row.

    The report stands alone: no network, no other file. Its figures are over all outcomes, listed or not.
    """
    from magistrate.runs import export_run

    with open_store(store) as opened:
        record = opened.find_run(run)
        written = export_run(opened, record.id, target, judge=judge, rows=rows, replace=force)
    is_report = target.name.lower().endswith(".html")
    listed = min(rows, written)
    if as_json:
        more = {"listed": listed} if is_report else {}
        print_json({"run": record.id, "file": str(target), "rows": written, **more})
    elif is_report:
        left = f", {listed:,} of them listed (--rows)" if listed < written else ""
        click.echo(f"a report of {written:,} outcomes{left} in {target}")
    else:
        click.echo(f"{written} rows in {target}")
