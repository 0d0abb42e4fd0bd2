"""`magistrate merge`: join the stores of shares into one run."""

from __future__ import annotations

from pathlib import Path

import click

from magistrate.cli.options import full_option, json_option, junit_option

EXAMPLE = "Example: magistrate merge share-1.db share-2.db --to runs.db"


@click.command(short_help="Join the shares of a run (run --shard) from several stores.", epilog=EXAMPLE)
@click.argument("stores", nargs=-1, required=True, metavar="STORE…")
@click.option("--to", required=True, metavar="FILE|URL", help="The store of the joined run.")
@junit_option
@full_option
@json_option
def command(stores: tuple[str, ...], to: str, junit: Path | None, full: bool, as_json: bool) -> int:
    """Join the newest run in shares (run --shard) of each STORE into one run, and print its report.

    Refused if data, judges or the number of shares differ. Merging a store again adds nothing, and an outcome
    that the run has already is kept. Exits with 0 if all shares are judged, 4 if some are missing, and else
    as run does.
    """
    from magistrate.api.merge import merge
    from magistrate.cli.exit_codes import code_of_part, code_of_report, gates_of, show, write_gates
    from magistrate.report.export import fresh
    from magistrate.runs.resume import stored_spec

    fresh(junit)
    merged = merge(stores, to)
    spec, report = stored_spec(merged.run.record), merged.run.summary()
    checked = gates_of(report, spec)
    write_gates(junit, report, checked, spec)
    show(report, (), as_json, checked, full=full)
    n = f"{len(stores)} stores" if len(stores) > 1 else "1 store"
    click.echo(f"merged {n}: {merged.added:,} new outcomes in run {merged.run.id}", err=True)
    if not merged.shares.whole:
        return code_of_part(report, spec, merged.shares)
    return code_of_report(report, spec, checked)
