"""`magistrate check`: is this text valid so far?"""

from __future__ import annotations

from pathlib import Path

import click

from magistrate.cli.options import TextOrFile, json_option, print_json

EXAMPLE = (
    "Example: magistrate check '[1, 2, 3'; magistrate check --schema person.json @answer.json --exit-code"
)


@click.command(epilog=EXAMPLE)
@click.argument("text", type=TextOrFile())
@click.option(
    "--schema", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A JSON Schema file."
)
@click.option("--exit-code", is_flag=True, help="Exit with 1 unless the text is valid.")
@json_option
def command(text: str, schema: Path | None, exit_code: bool, as_json: bool) -> int:
    """Say of TEXT (or @FILE): valid, incomplete (it can still be continued) or invalid."""
    from magistrate.cli import DONE, GATE_FAILED
    from magistrate.cli.generate import read_schema
    from magistrate.constraints import check

    answer = check(text) if schema is None else check(text, read_schema(schema))
    if as_json:
        print_json({"check": answer})
    else:
        click.echo(answer)
    return GATE_FAILED if exit_code and answer != "valid" else DONE
