"""The pages of the site: which there are, in which section each stands, and where their links lead."""

from __future__ import annotations

import os
import posixpath
import re
import tomllib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SECTIONS = Path(__file__).with_name("sections.toml")
CHANGELOG, DESIGN = "changelog.md", "design.md"

_LINK = re.compile(r"(?<=\]\()(?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]+)?(?=\))")
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)


class SiteError(Exception):
    """The site cannot be built; the message names the page and what to do."""


def written() -> dict[str, str]:
    """The text of every page that people write, by its path below docs/."""
    found = {
        path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")
    }
    found[CHANGELOG] = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return dict(sorted(found.items()))


def design_page(pages: Mapping[str, str]) -> str:
    """The list of design notes."""
    notes = [f"- [{title(pages[name])}]({name})" for name in below(DESIGN, pages)]
    lead = "What was decided, why, what was rejected, and the test that guards it."
    return "\n".join(["# Design decisions", "", lead, "", *notes, ""])


def title(text: str) -> str:
    """The title of a page. Raises `SiteError` if it has none."""
    if (found := _TITLE.search(text)) is None:
        raise SiteError(f"a page has no title: {text[:60]!r}")
    return found[1]


# --- navigation -------------------------------------------------------------------------------------


def sections(
    pages: Mapping[str, str], lines: Mapping[str, Sequence[str]] | None = None
) -> dict[str, list[str]]:
    """The pages of each section in their order, by the `lines` of sections.toml.

    Raises `SiteError` if a page is named by no line, or a line names a page that does not exist.
    """
    lines = tomllib.loads(SECTIONS.read_text(encoding="utf-8")) if lines is None else lines
    named = [line for each in lines.values() for line in each if "*" not in line]
    if missing := [name for name in named if name not in pages]:
        raise SiteError(f"{SECTIONS.name} names pages that do not exist: {', '.join(missing)}")
    if twice := sorted({name for name in named if named.count(name) > 1}):
        raise SiteError(f"{SECTIONS.name} names pages twice: {', '.join(twice)}")
    placed: set[str] = set()
    found: dict[str, list[str]] = {}
    for section, each in lines.items():
        found[section] = []
        for line in each:
            matching = [name for name in sorted(pages) if _matches(name, line)]
            found[section] += [name for name in matching if name == line or name not in {*named, *placed}]
            placed.update(matching)
    nested = {child for name in placed for child in below(name, pages)}
    if lost := sorted(set(pages) - placed - nested - {"index.md"}):
        raise SiteError(f"no line of docs/site/{SECTIONS.name} names {', '.join(lost)}; add one to a section")
    return found


def _matches(name: str, line: str) -> bool:
    return fnmatchcase(name, line) and name.count("/") == line.count("/")  # `*` is within one folder


def below(name: str, pages: Mapping[str, str]) -> list[str]:
    """The pages that stand below a page: those of the folder that is named like it."""
    return sorted(each for each in pages if posixpath.dirname(each) == name.removesuffix(".md"))


def with_navigation(pages: Mapping[str, str]) -> dict[str, str]:
    """The pages with Sphinx's lists of what stands in each section, and below each page."""
    found = dict(pages)
    for section, names in sections(pages).items():
        if names:
            found["index.md"] += _toctree(names, "index.md", caption=section)
        for name in names:
            if children := below(name, pages):
                found[name] += _toctree(children, name)
    return found


def _toctree(names: Sequence[str], page: str, caption: str = "") -> str:
    options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
    places = [posixpath.relpath(name, posixpath.dirname(page) or ".") for name in names]
    return "\n".join(["", "```{toctree}", *options, "", *places, "```", ""])


# --- links ------------------------------------------------------------------------------------------


def with_links(pages: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The pages, to be read in `folder`, with links that lead where they led in the checkout.

    A link to a folder becomes one to the page that lists it. Other files are linked where they are.
    """
    return {name: _LINK.sub(partial(_link, name, pages, folder), text) for name, text in pages.items()}


def _link(page: str, pages: Mapping[str, str], folder: Path, found: re.Match[str]) -> str:
    home = ROOT if page == CHANGELOG else (DOCS / page).parent
    target = Path(os.path.normpath(home / found["path"]))
    name = target.relative_to(DOCS).as_posix() if target.is_relative_to(DOCS) else ""
    inside = next((each for each in (name, f"{name}.md", f"{name}/index.md") if each in pages), None)
    if inside is None and not target.exists():
        return found[0]  # code that looks like a link, or a lost link, of which Sphinx warns
    place = folder / inside if inside else target
    return Path(os.path.relpath(place, (folder / page).parent)).as_posix() + (found["anchor"] or "")
