"""`magistrate export`: a run's outcomes as a file."""

from __future__ import annotations

from pathlib import Path

import click

from magistrate.cli.options import json_option, open_store, print_json, store_option

EXAMPLE = "Example: magistrate export last --to verdicts.csv"


@click.command(epilog=EXAMPLE)
@click.argument("run")
@click.option(
    "--to", "target", required=True, type=click.Path(path_type=Path), help="A .jsonl or .csv file (also .gz)."
)
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@store_option
@json_option
def command(run: str, target: Path, force: bool, store: str | None, as_json: bool) -> None:
    """Write every outcome of RUN with its sample, one row each."""
    from magistrate.report.export import export

    with open_store(store) as opened:
        record = opened.find_run(run)
        samples = {sample.id: sample for sample in opened.samples(record.id)}
        written = export(samples, opened.outcomes(record.id), target, replace=force)
    if as_json:
        print_json({"run": record.id, "file": str(target), "rows": written})
    else:
        click.echo(f"{written} rows in {target}")
