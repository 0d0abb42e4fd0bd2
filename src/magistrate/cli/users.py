"""`magistrate users`: the users of a server, their tokens and roles, and the log of what they changed."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from magistrate.cli.options import json_option, open_store, store_option
from magistrate.cli.output import print_json, print_table

if TYPE_CHECKING:
    from magistrate.store.users import Role

EXAMPLE = "Example: magistrate users add ana --role label; magistrate users log --user ana --since 2026-01-02"


@click.group(
    invoke_without_command=True,
    short_help="Users of 'magistrate serve': each has a token and a role.",
    epilog=EXAMPLE,
)
@store_option
@json_option
@click.pass_context
def command(context: click.Context, store: str | None, as_json: bool) -> None:
    """Users of 'magistrate serve': each has a token of their own and a role. Without a command: list them.

    Roles: ingest sends spans and nothing else; view reads; label reads, labels, decides conflicts and asks
    judges; admin does everything.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_users, store=store, as_json=as_json)


@command.command(
    short_help="Add the user NAME and print their token.",
    epilog="Example: magistrate users add ana --role label",
)
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["ingest", "view", "label", "admin"]),
    required=True,
    help="What the user may do.",
)
@store_option
@json_option
def add(name: str, role: Role, store: str | None, as_json: bool) -> None:
    """Add the user NAME and print their token, which is stored only as a hash: this is the only time."""
    from magistrate.cli.serve import checked_store
    from magistrate.store import Store

    with Store.open(checked_store(store, may_be_new=store is None)) as opened:
        token = opened.users.add(name, role, by=terminal_user(), now=datetime.now(UTC))
    _print_token(name, token, as_json)


@command.command("list", epilog="Example: magistrate users list --json")
@store_option
@json_option
def list_users(store: str | None, as_json: bool) -> None:
    """List the users with their roles."""
    from magistrate._paths import default_store

    found = []
    if store is not None or default_store().exists():
        with open_store(store) as opened:
            found = opened.users.all()
    if as_json:
        print_json(
            [
                {
                    "name": each.name,
                    "role": each.role,
                    "created_at": each.created_at.isoformat(),
                    "token_at": each.token_at.isoformat(),
                }
                for each in found
            ]
        )
    elif not found:
        click.echo("no users yet; add one with: magistrate users add NAME --role label")
    else:
        rows = [[each.name, each.role, _moment(each.created_at), _moment(each.token_at)] for each in found]
        print_table(["user", "role", "since", "token of"], rows, wrapped={"user": 12})


@command.command(epilog="Example: magistrate users rotate ana")
@click.argument("name")
@store_option
@json_option
def rotate(name: str, store: str | None, as_json: bool) -> None:
    """Give NAME a new token and print it. The old one, and who is signed in with it, is refused at once."""
    with open_store(store) as opened:
        token = opened.users.rotate(name, by=terminal_user(), now=datetime.now(UTC))
    _print_token(name, token, as_json)


@command.command(epilog="Example: magistrate users remove ana")
@click.argument("name")
@store_option
@json_option
def remove(name: str, store: str | None, as_json: bool) -> None:
    """Remove NAME, whose token is refused at once. Their labels stay."""
    from magistrate.report.formatting import plain

    with open_store(store) as opened:
        opened.users.remove(name, by=terminal_user(), now=datetime.now(UTC))
    if as_json:
        print_json({"name": name})
    else:
        click.echo(plain(f"removed {name}"))


@command.command(
    short_help="Print the audit log, newest first: who changed what.",
    epilog="Example: magistrate users log --user ana --since 2026-01-02",
)
@click.option("--user", metavar="NAME", help="Only what this user did.")
@click.option("--since", metavar="TIME", help="Only from this date or time (UTC) on.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="The newest N entries.")
@store_option
@json_option
def log(user: str | None, since: str | None, limit: int, store: str | None, as_json: bool) -> None:
    """Print the audit log, newest first: who changed what on the server, and every change of users."""
    from dataclasses import asdict

    from magistrate.store.audit import parse_moment

    moment = None if since is None else parse_moment(since)
    with open_store(store) as opened:
        found = opened.audit.entries(limit=limit, who=user, since=moment)
    if as_json:
        print_json([{**asdict(each), "at": each.at.isoformat()} for each in found])
    elif not found:
        click.echo("nothing was changed" if user is None and since is None else "nothing fits this")
    else:
        print_table(
            ["when", "who", "what", "of what", "details"],
            [[_moment(each.at), each.who, each.action, each.object, each.details] for each in found],
            wrapped={"who": 8, "of what": 12, "details": 12},
            spare=("details",),
        )


def terminal_user() -> str:
    """Return the name of this terminal's user in the audit log, which no user of the server can have."""
    try:
        return f"(terminal) {getpass.getuser()}"
    except (OSError, KeyError, ImportError):
        return "(terminal)"


def _moment(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}"


def _print_token(name: str, token: str, as_json: bool) -> None:
    from magistrate.report.formatting import plain

    if as_json:
        told: dict[str, Any] = {"name": name, "token": token}
        print_json(told)
        return
    click.echo(token)
    click.echo(plain(f"this is the token of {name}; it is not shown again"), err=True)
