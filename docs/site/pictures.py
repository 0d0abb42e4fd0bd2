"""Pictures of the real program, made while the site is built: what commands print, and what its pages show.

A page asks for one by the line `<!-- picture: NAME -->`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

COLUMNS = 96
SETTINGS = ("MAGISTRATE_", "NO_COLOR")  # variables that would change what is seen
SIZE = {"width": 1200, "height": 780}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SCHEMES = ("light", "dark")
# Colours that can be read on the background of `.terminal` in style.css.
THEME = TerminalTheme(
    (24, 26, 31),
    (240, 242, 246),
    [
        *((24, 26, 31), (255, 121, 121), (126, 211, 133), (229, 192, 123)),
        *((110, 178, 255), (214, 148, 255), (102, 204, 214), (216, 219, 226)),
    ],
)
# Of a background these colours are too bright to read on.
BACKGROUNDS = {"#ff7979": "#8c2f2f", "#e5c07b": "#6e5a22", "#7ed385": "#2f6b3a"}
_MARK = re.compile(r"^<!-- picture: ([\w-]+) -->$", re.MULTILINE)


class PictureError(Exception):
    """A picture that cannot be made though everything that it needs is there."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """What a command prints, after another one was executed."""

    command: str
    before: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """What a page of `magistrate serve` shows. `{run}` in the path is the id of the newest run."""

    path: str
    shows: str


TWO_JUDGES = "magistrate run quickstart --judge detector --judge novelty --name detectors"

# In this order, in one new store: what a command stores, later ones and the pages find.
PICTURES: dict[str, Terminal | Page] = {
    "demo": Terminal("magistrate demo"),
    "sample": Terminal("magistrate show last --sample qs-043"),
    "judge": Terminal(
        "magistrate judge --judge novelty --context 'The museum closes at five.' "
        "--output 'It closes at six on Sundays.'"
    ),
    "compare": Terminal("magistrate compare last", before=TWO_JUDGES),
    "page-runs": Page("/", "the list of runs"),
    "page-run": Page("/runs/{run}", "the page of a run: figures of its judges and their outcomes"),
    "page-sample": Page(
        "/runs/{run}/samples/qs-043", "the page of a sample: its texts and what the judges said"
    ),
}


def asked(pages: Mapping[str, str]) -> set[str]:
    """The pictures that pages ask for. Raises `PictureError` for one that is not known."""
    names = {name for text in pages.values() for name in _MARK.findall(text)}
    if unknown := sorted(names - PICTURES.keys()):
        raise PictureError(f"no picture is named {', '.join(unknown)}; known: {', '.join(PICTURES)}")
    return names


def placed(text: str, drawn: Mapping[str, str]) -> str:
    """A page with its pictures in the place of their marks. One that could not be made leaves nothing."""
    return _MARK.sub(lambda found: drawn.get(found[1], ""), text)


def draw(names: set[str], folder: Path) -> tuple[dict[str, str], str]:
    """The named pictures as Markdown, their files in `folder`, and why some are missing ("" if none is).

    Raises `PictureError` if the program fails.
    """
    drawn = {}
    with tempfile.TemporaryDirectory() as home:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
        environment = {**kept, "MAGISTRATE_HOME": home, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1"}
        for name, picture in PICTURES.items():  # all commands: a picture may show what an earlier one stored
            if isinstance(picture, Terminal):
                if picture.before:
                    _printed(picture.before, environment)
                drawn[name] = _figure(picture.command, _printed(picture.command, environment))
        pages = {name: each for name, each in PICTURES.items() if isinstance(each, Page) and name in names}
        missing = _shots(pages, folder, environment) if pages else ""
    for name, page in pages.items():
        if not missing:
            drawn[name] = "\n".join(_image(name, page, scheme) for scheme in SCHEMES)
    return drawn, missing


# --- terminals --------------------------------------------------------------------------------------


def _printed(command: str, environment: Mapping[str, str]) -> str:
    """What a command prints, with the codes of its colours."""
    words = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(words, env=environment, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        raise PictureError(f"`{command}` ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def _figure(command: str, printed: str) -> str:
    """A terminal as HTML, in which colours are styles and text can be selected."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text(f"$ {command}", style="bold"), soft_wrap=True)
    console.print(Text.from_ansi(printed.rstrip()), soft_wrap=True)
    code = console.export_html(theme=THEME, inline_styles=True, code_format="{code}")
    for bright, dark in BACKGROUNDS.items():
        code = code.replace(f"background-color: {bright}", f"background-color: {dark}")
    lines = "\n".join(line.rstrip() for line in code.rstrip().splitlines())
    return f'``````{{raw}} html\n<pre class="terminal" tabindex="0">{lines}</pre>\n``````'


# --- pages ------------------------------------------------------------------------------------------


def _image(name: str, page: Page, scheme: str) -> str:
    options = f":alt: {page.shows}\n:class: picture only-{scheme}"
    return f"```{{image}} /pictures/{name}-{scheme}.png\n{options}\n```\n"


def _shots(pages: Mapping[str, Page], folder: Path, environment: Mapping[str, str]) -> str:
    """Take the pictures of pages. Returns why that is not possible on this machine, or "" """
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    try:
        from playwright.sync_api import Error, sync_playwright
    except ModuleNotFoundError:
        return "playwright is not installed"
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(
                executable_path=program, args=["--no-sandbox", "--disable-gpu"]
            )
        except Error as error:
            return f"Chromium does not start: {str(error).splitlines()[0]}"
        folder.mkdir(parents=True, exist_ok=True)
        with _served(environment) as address:
            run = _newest(environment)
            for scheme in SCHEMES:
                page = browser.new_page(viewport=SIZE, color_scheme=scheme, reduced_motion="reduce")
                for name, each in pages.items():
                    answer = page.goto(address + each.path.replace("{run}", run))
                    if answer is None or not answer.ok:
                        raise PictureError(f"the page {each.path} answers {answer and answer.status}")
                    page.screenshot(path=folder / f"{name}-{scheme}.png")
        browser.close()
    return ""


def _newest(environment: Mapping[str, str]) -> str:
    from magistrate.store import Store

    with Store.open(Path(environment["MAGISTRATE_HOME"]) / "magistrate.db") as store:
        return store.find_run("last").id


@contextmanager
def _served(environment: Mapping[str, str]) -> Iterator[str]:
    """The address of `magistrate serve` over the store of the pictures."""
    command = [sys.executable, "-m", "magistrate", "serve", "--port", "0"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip().rstrip("/")
            if not address.startswith("http"):
                raise PictureError("`magistrate serve` did not start")
            yield address
        finally:
            server.terminate()
