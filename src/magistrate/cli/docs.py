"""`magistrate docs`: open the documentation."""

from __future__ import annotations

from pathlib import Path

import click

from magistrate._version import __version__

PACKAGE = Path(__file__).parents[1]


@click.command(epilog="Example: magistrate docs; magistrate docs --path")
@click.option(
    "--path", "only_path", is_flag=True, help="Print where its first page is instead of opening it."
)
def command(only_path: bool) -> None:
    """Open the documentation of this version in a browser. It consists of files and needs no network."""
    from webbrowser import open as browse

    from magistrate.errors import InputError

    page = first_page()
    if page is None:
        raise InputError(
            "this installation has no built documentation; "
            f"in a checkout of Magistrate {__version__}, 'make docs' builds it"
        )
    click.echo(str(page))
    if not only_path and not browse(page.as_uri()):
        click.echo("note: no browser found; open the file above", err=True)


def first_page() -> Path | None:
    """Return the first page of the built documentation, which a wheel carries and a checkout may have."""
    pages = (
        folder / "index.html"
        for folder in (PACKAGE / "site", PACKAGE.parents[1] / "build" / "site" / __version__)
    )
    return next((page for page in pages if page.is_file()), None)
