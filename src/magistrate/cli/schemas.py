"""`magistrate schemas`: the JSON Schemas of the YAML files, for editors."""

from __future__ import annotations

import click

from magistrate._yaml import SCHEMAS, schema_path
from magistrate.cli.options import json_option
from magistrate.cli.output import print_json, print_table


@click.command(
    "schemas",
    short_help="List the JSON Schemas of the YAML files, for editors.",
    epilog="Example: magistrate schemas; magistrate schemas run",
)
@click.argument("kind", required=False, type=click.Choice(list(SCHEMAS)))
@json_option
def command(kind: str | None, as_json: bool) -> None:
    """List the JSON Schemas with which an editor completes and checks YAML files; KIND prints one."""
    if kind is not None:
        click.echo(schema_path(kind).read_text(encoding="utf-8"), nl=False)
        return
    from magistrate.report.formatting import plain

    found = [{"kind": name, "of": what, "path": str(schema_path(name))} for name, what in SCHEMAS.items()]
    if as_json:
        print_json(found)
        return
    rows = [[name, what, schema_path(name).name] for name, what in SCHEMAS.items()]
    print_table(["kind", "of", "file"], rows, wrapped={"of": 30})
    click.echo(f"in {plain(str(schema_path('run').parent))}")
