"""`magistrate watch test-alert`: send a test message to the sinks of alerts."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from magistrate.cli.options import json_option
from magistrate.cli.output import print_json

EXAMPLE = "Example: magistrate watch test-alert --rules rules.yaml"


@click.command("test-alert", epilog=EXAMPLE)
@click.option("--rules", "file", required=True, metavar="FILE", help="The rules file (YAML).")
@json_option
def test_alert(file: str, as_json: bool) -> int:
    """Send a test message to each sink of a rules file.

    Exits with 3 if a message could not be sent.
    """
    from magistrate.cli.exit_codes import DONE, ENGINE_GONE
    from magistrate.errors import SpecError
    from magistrate.report.formatting import plain
    from magistrate.watch.alerts import send_tests
    from magistrate.watch.rules import read_rule_file

    sinks = read_rule_file(Path(file)).sinks
    if not sinks:
        raise SpecError(f"{file} has no sinks: add them under 'sinks:'")
    found = send_tests(sinks, datetime.now(UTC))
    if as_json:
        print_json({"sinks": [{"sink": name, "sent": not why, "why": why} for name, why in found.items()]})
    else:
        for name, why in found.items():
            click.echo(f"{plain(name)}: {plain(why) or 'sent'}", err=bool(why))
    return ENGINE_GONE if any(found.values()) else DONE
