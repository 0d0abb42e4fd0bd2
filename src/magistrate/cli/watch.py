"""`magistrate watch`: judge what an application does in production, from its traces."""

from __future__ import annotations

import click

from magistrate.cli.watch_alerts import test_alert
from magistrate.cli.watch_delete import delete
from magistrate.cli.watch_explain import explain
from magistrate.cli.watch_pull import pull
from magistrate.cli.watch_run import run
from magistrate.cli.watch_status import status

EXAMPLE = "Example: magistrate watch run --rules rules.yaml --from spans.jsonl --once"


@click.group(short_help="Judge what an application does in production, by rules.", epilog=EXAMPLE)
def command() -> None:
    """Judge what an application does in production, by rules applied to its traces."""


command.add_command(delete)
command.add_command(explain)
command.add_command(pull)
command.add_command(run)
command.add_command(status)
command.add_command(test_alert)
