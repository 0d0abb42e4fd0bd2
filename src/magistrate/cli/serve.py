"""`magistrate serve`: serve the web pages and the JSON API."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from magistrate.server.settings import Settings

EXAMPLE = (
    "Example: magistrate serve --open; magistrate serve --store runs.db --host 0.0.0.0 --port 80; "
    "magistrate serve --watch rules.yaml"
)


@click.command(short_help="Show runs on a web page, and serve the JSON API.", epilog=EXAMPLE)
@click.option(
    "--store",
    metavar="FILE|URL",
    help="Where runs are stored: a file, or postgresql://… (default: magistrate.db in $MAGISTRATE_HOME, "
    "created if missing; with --watch, a given file is created too).",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; 0.0.0.0 for all addresses of this machine.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8421,
    show_default=True,
    help="The port to listen on; 0 for any free port.",
)
@click.option(
    "--token",
    metavar="TOKEN",
    help="The token that visitors must give, who may then do everything; for others see 'magistrate users' "
    "(default: $MAGISTRATE_TOKEN, which other users of this machine cannot see; without it, none is needed "
    "on a local --host, and a new token is printed for any other --host).",
)
@click.option(
    "--open",
    "opened",
    is_flag=False,
    flag_value="",
    metavar="[RUN]",
    help="Open a browser, optionally at a run: an id, a name or last.",
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Another host name under which visitors reach this machine; repeatable.",
)
@click.option(
    "--watch",
    "rules",
    metavar="FILE",
    help="Receive spans of applications over OTLP at /v1/traces and /v1/logs, and judge them by the rules in "
    "this file.",
)
@click.option(
    "--grpc-port",
    type=click.IntRange(0, 65535),
    help="With --watch: also receive spans over gRPC, on this port of the same host; 0 for any free one.",
)
@click.option(
    "--guard",
    "guard_judge",
    metavar="JUDGE",
    help="The judge of POST /api/guard; callers cannot choose another one (default: auto).",
)
@click.option(
    "--guard-model",
    metavar="MODEL",
    help="The model for the judge of POST /api/guard, written as in --model.",
)
@click.option(
    "--run-model",
    "run_models",
    multiple=True,
    metavar="MODEL",
    help="A model, as --model elsewhere, that runs started from the page may ask besides the installed ones; "
    "repeatable.",
)
def command(
    store: str | None,
    host: str,
    port: int,
    token: str | None,
    opened: str | None,
    allowed_hosts: tuple[str, ...],
    rules: str | None,
    grpc_port: int | None,
    guard_judge: str | None,
    guard_model: str | None,
    run_models: tuple[str, ...],
) -> int:
    """Show the store's runs on a web page, and serve the JSON API at /api, until Ctrl-C.

    The page's address is printed on a line of its own once the server is ready. It can be reached only from
    this machine unless you set --host.
    """
    from magistrate.cli.exit_codes import DONE
    from magistrate.errors import require_extra

    require_extra("server", "fastapi", "uvicorn", "prometheus_client", "python_multipart")
    from magistrate.judges.registry import DEFAULT_JUDGE
    from magistrate.server.guard import Doorkeeper
    from magistrate.server.settings import Settings
    from magistrate.watch.rules import read_rule_file

    if grpc_port is not None and rules is None:
        raise click.UsageError("--grpc-port needs --watch FILE")
    watched = None if rules is None else read_rule_file(Path(rules))
    token, is_made = _token(token, host)
    place = checked_store(store, may_be_new=store is None or watched is not None)
    path = _path(place, opened) if opened else ""
    settings = Settings(
        store=place,
        host=host,
        port=port,
        token=token,
        allowed_hosts=allowed_hosts,
        watch=watched is not None,
        rules=() if watched is None else tuple(watched.rules),
        rule_file=watched,
        grpc_port=grpc_port,
        guard=guard_judge or DEFAULT_JUDGE,
        guard_model=guard_model,
        run_models=run_models,
    )
    if token is None and _has_users(place):
        click.echo("note: without --token everybody on this machine may do everything", err=True)
    if guard_judge is not None:
        Doorkeeper(settings.guard, settings.guard_model).check()
    serve_pages(settings, path if opened is not None else None, token=token if is_made else None)
    return DONE


def serve_pages(settings: Settings, path: str | None, *, token: str | None = None) -> None:
    """Serve until Ctrl-C, and open a browser at this path of the server, or none if it is None.

    `token` is printed first, if it was just generated.
    """
    from magistrate.server.app import create_app
    from magistrate.server.serve import bind, serve, url_of

    listener = bind(settings)
    url = url_of(listener)
    settings = replace(settings, port=listener.getsockname()[1])
    if token is not None:
        click.echo(f"token: {token}", err=True)

    def started() -> None:
        click.echo(url)
        if path is not None:
            _open(f"{url}{path}")

    with listener:
        serve(create_app(settings), settings, listener, started=started, ending=_end_soon)


def checked_store(named: str | None, *, may_be_new: bool) -> str:
    """Return the place of a store after opening it, or creating it if allowed."""
    from magistrate._paths import default_store
    from magistrate.cli.options import open_store
    from magistrate.store import Store
    from magistrate.store.connection import place_of

    place = str(default_store()) if named is None else named
    place_of(place)
    with Store.open(place) if may_be_new else open_store(place):
        pass  # fail now, not at the first request
    return place if "://" in place else str(Path(place).expanduser().absolute())


def _has_users(place: str) -> bool:
    from magistrate.store import Store

    with Store.open(place) as store:
        return bool(store.users.all())


def _path(place: str, run: str) -> str:
    """Return the path of a run's page on the server."""
    from magistrate.server.responses import segment
    from magistrate.store import Store

    with Store.open(place) as store:
        return f"runs/{segment(store.find_run(run).id)}"


def _token(given: str | None, host: str) -> tuple[str | None, bool]:
    """Return the token that visitors need, if any, and whether it was just generated."""
    from secrets import token_urlsafe

    from magistrate.server.settings import TOKEN_VARIABLE, host_name, is_loopback

    token = os.environ.get(TOKEN_VARIABLE) if given is None else given
    if token is not None or is_loopback(host_name(host)):
        return token, False
    return token_urlsafe(32), True


def _open(url: str) -> None:
    """Open the page in a browser, without waiting for it."""
    from threading import Thread
    from webbrowser import open as browse

    def opened() -> None:
        if not browse(url):
            click.echo("note: no browser found; open the address above", err=True)

    Thread(target=opened, daemon=True).start()


def _end_soon() -> None:
    """Force the program to exit after a grace period, even if a request's thread ignores the shutdown."""
    from threading import Timer

    from magistrate.cli.exit_codes import DONE
    from magistrate.server.serve import GRACE_SECONDS

    last = Timer(GRACE_SECONDS + 1, os._exit, [DONE])
    last.daemon = True
    last.start()
