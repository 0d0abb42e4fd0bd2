"""`magistrate docs`: open the documentation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path


@click.command(epilog="Example: magistrate docs; magistrate docs --path")
@click.option(
    "--path", "only_path", is_flag=True, help="Print where its first page is instead of opening it."
)
def command(only_path: bool) -> None:
    """Open the documentation of this version in a browser. It consists of files and needs no network."""
    from webbrowser import open as browse

    from magistrate._version import __version__
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
    from pathlib import Path

    import magistrate
    from magistrate._version import __version__

    package = Path(magistrate.__file__).parent
    for folder in (package / "site", package.parents[1] / "build" / "site" / __version__):
        if (folder / "index.html").is_file():
            return folder / "index.html"
    return None
