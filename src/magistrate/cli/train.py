"""`magistrate train`: train a judge on labels, with one module per kind of judge."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import click

from magistrate.cli.options import add_verbose

KINDS = ("detector", "stack", "judge", "probe")
EXAMPLE = "Example: magistrate train stack --data labelled.csv --of novelty --of faithfulness --to my-stack"


class Kinds(click.Group):
    """Imports a training module only when it is used, because the libraries behind it are large."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [name for name in KINDS if find_spec(_module(name)) is not None]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(context):
            return None
        found: click.Command = import_module(_module(name)).command
        add_verbose(found)
        if context.resilient_parsing:  # as while a shell completes
            from magistrate.cli.completion import add_completion

            add_completion(found)
        return found

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from magistrate.judges.registry import unknown

        known = self.list_commands(context)
        if args[0] not in known and not args[0].startswith("-") and not context.resilient_parsing:
            raise click.UsageError(unknown("kind of judge", args[0], known, see="train --help"), context)
        return super().resolve_command(context, args)


def _module(name: str) -> str:
    return f"magistrate.cli.train_{name}"


@click.group(cls=Kinds, epilog=EXAMPLE)
def command() -> None:
    """Train a judge on labelled data. Pass the folder it writes to --judge."""
