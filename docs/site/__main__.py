"""Builds the site: `python -m docs.site`. Every warning, lost link and page outside the navigation fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click

from docs.site import built, pages, pictures, reference
from magistrate._version import __version__

SETTINGS = Path(__file__).parent
START = """<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url=latest/index.html">
<title>Magistrate</title>
<a href="latest/index.html">Magistrate</a>
"""


@click.command()
@click.option(
    "--to", type=click.Path(path_type=Path), default=pages.ROOT / "build" / "site", help="The folder."
)
@click.option(
    "--strict", is_flag=True, help="Fail if pictures of pages cannot be made, for want of Chromium."
)
def command(to: Path, strict: bool) -> None:
    """Build the documentation of this version into TO/VERSION, and again into TO/latest."""
    work = to.with_name(f"{to.name}-work")
    source, html, site = work / "source", work / "html", to / __version__
    shutil.rmtree(work, ignore_errors=True)
    try:
        missing = stage(source)
        if missing and strict:
            raise pictures.PictureError(f"pictures of pages cannot be made: {missing}")
    except (pages.SiteError, pictures.PictureError) as error:
        raise click.ClickException(str(error)) from None
    options = ["-b", "html", "-qW", "-c", str(SETTINGS), "-d", str(work / "doctrees")]  # W: warnings fail
    if subprocess.run([sys.executable, "-m", "sphinx", *options, source, html], check=False).returncode:
        raise click.ClickException("Sphinx did not accept the pages, see above")
    for name in (".buildinfo", "objects.inv"):
        (html / name).unlink(missing_ok=True)
    if wrong := built.problems(html):
        raise click.ClickException("\n".join(["the built pages are not whole:", *wrong]))
    # Only now, so that an earlier site stays where a build fails. `latest` has the same files, not copies.
    for folder in (site, to / "latest"):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(html, folder, copy_function=os.link)
    (to / "index.html").write_text(START, encoding="utf-8")
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    click.echo(f"wrote {site}: {len(list(site.rglob('*.html')))} pages, {size / 1e6:.1f} MB")
    if missing:
        click.echo(f"WARNING: pictures of pages are LEFT OUT: {missing}", err=True)


def stage(folder: Path) -> str:
    """Write what Sphinx reads to a folder. Returns why pictures of pages are missing ("" if none is)."""
    texts = pages.with_links(pages.with_navigation(all_pages()), folder)
    drawn, missing = pictures.draw(pictures.asked(texts), folder / "pictures")
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(pictures.placed(text, drawn), encoding="utf-8")
    return missing


def all_pages() -> dict[str, str]:
    """Every page of the site, written or generated, by its path."""
    written = pages.written()
    return {**written, **reference.pages(written), pages.DESIGN: pages.design_page(written)}


if __name__ == "__main__":
    command()
