"""Checks of the built site: every link leads to a place on a page, and nothing is fetched from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {"script": "src", "img": "src", "link": "href", "source": "src", "iframe": "src", "object": "data"}
_FETCHED = re.compile(r"(?:url\(|@import)\s*['\"]?((?:https?:)?//[^'\")\s]+)")


class _Reader(HTMLParser):
    """What a page names: places of its own, what it links, and what a browser loads with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.ids.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if (name := _LOADED.get(tag)) and name in given:
            self.loads.append(given[name])


def problems(site: Path) -> list[str]:
    """What is wrong with the built pages in a folder, one line for each problem."""
    pages = {path: _Reader(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        found += [f"{name} loads {each}" for each in page.loads if urlsplit(each).netloc]
        found += [f"{name} links {each}" for each in page.links + page.loads if _lost(each, path, pages)]
    return [*found, *_fetches(site)]


def _lost(link: str, page: Path, pages: dict[Path, _Reader]) -> bool:
    """Whether a link within the site leads nowhere."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return False
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.is_file():
        return True
    return bool(parts.fragment) and target in pages and unquote(parts.fragment) not in pages[target].ids


def _fetches(site: Path) -> Iterator[str]:
    for path in sorted(site.rglob("*.css")):
        for address in _FETCHED.findall(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site).as_posix()} loads {address}"
