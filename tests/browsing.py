"""What tests in a real browser share: the browser, a reader who notices everything, and texts that attack."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, Request, expect, sync_playwright

from magistrate.analysis.hostile import ATTACKS
from magistrate.server.app import create_app
from magistrate.server.serve import bind, make_server, url_of
from magistrate.server.settings import Settings
from served import running

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PATIENCE = 30_000  # milliseconds, for machines that are busy with something else
WIDE, NARROW = 1280, 400

# What a page would have to do to be seen doing it: a dialog, a request, an element, a line on the console.
PAYLOADS = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"><img src=x onerror='alert(1)'>",
    "' autofocus onfocus=alert(1) x='",
    '" onmouseover="alert(1)" style="position:fixed;inset:0',
    "<svg onload=alert(1)>",
    "</style><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</textarea></details></li></ol><iframe src=javascript:alert(1)>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<a href=javascript:alert(1)>x</a>",
    "<base href=https://evil.example/>",
    '<meta http-equiv="refresh" content="0;url=https://evil.example/">',
    "<link rel=stylesheet href=https://evil.example/x.css>",
    "<form action=https://evil.example/><input name=x></form>",
    "<object data=https://evil.example/></object>",
    "<style>*{display:none}</style>",
    "<!--",
    "-->",
    "<![CDATA[",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;alert(1)",
    "{{ 7*7 }}{% raw %}",
    "${7*7}`",
    "javascript:alert(1)",
    "\u202eevil\u2066\u2028\u2029\x00\x1b[2J\x07\x7f\ufeff",
    "\x85\x9b31m",
    "a" * 3000,
    "مرحبا <b>بالعالم</b> 'שלום'",
]
HOSTILE = [*PAYLOADS, *(attack.text for attack in ATTACKS)]

expect.set_options(timeout=PATIENCE)


@contextmanager
def a_browser() -> Iterator[Browser]:
    """The browser of this machine, or the one that playwright installed."""
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=SWITCHES)
        yield opened
        opened.close()


@contextmanager
def pages_of(store: Path | str, **more: Any) -> Iterator[str]:
    """The address, without a slash at its end, of what `magistrate serve` runs, in this process."""
    settings = Settings(store=str(store), port=0, **more)
    with bind(settings) as listener:
        settings = replace(settings, port=listener.getsockname()[1])
        with running(make_server(create_app(settings), settings), listener):
            yield url_of(listener).rstrip("/")


class Reader:
    """A page that is read: everything that it asks for, says or shows unasked is kept."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        context.set_default_timeout(PATIENCE)
        self.asked: list[str] = []
        self.said: list[str] = []
        self.page: Page = context.new_page()
        self.page.on("request", self._request)
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(dialog.message), dialog.dismiss()))
        self.page.goto(address)

    def _request(self, request: Request) -> None:
        self.asked.append(request.url)

    def shot(self, name: str) -> None:
        """Keep a picture where somebody asked for pictures."""
        if folder := os.environ.get("MAGISTRATE_SCREENSHOTS"):
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


class Visit(Reader):
    """A page of a server that is looked at; it may tell no status but those in `expected`."""

    def __init__(self, context: BrowserContext, site: str, path: str, expected: Sequence[int] = ()) -> None:
        self.site = site
        self._expected = tuple(expected)
        super().__init__(context, site + path)

    def go(self, path: str) -> Page:
        """The page at another address of the same site."""
        self.page.goto(self.site + path)
        return self.page

    @property
    def path(self) -> str:
        """Where the reader is, with its query and what stands behind `#`."""
        return self.page.url.removeprefix(self.site)

    @property
    def strange(self) -> list[str]:
        """What was said, shown or asked for elsewhere, that nobody expects of a page."""
        told = [f"server responded with a status of {status}" for status in self._expected]
        said = [each for each in self.said if not any(known in each for known in told)]
        return said + [each for each in self.asked if not each.startswith(f"{self.site}/")]


def fits(page: Page) -> bool:
    """Whether nothing sticks out of the window to the side."""
    wide, room = page.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
    return bool(wide <= room)


def is_whole(page: Page) -> bool:
    """Whether nothing in it is cut off at the edge, which is left to letters that cannot be broken."""
    wide, room = page.evaluate("(({ scrollWidth, clientWidth }) => [scrollWidth, clientWidth])(main)")
    return bool(wide <= room)


def settled(page: Page) -> Page:
    """The page once nothing of it is being worked out any more."""
    expect(page.locator("[data-again], [data-follow]")).to_have_count(0, timeout=30_000)
    return page


def luminance(colour: str) -> float:
    """Relative luminance of `rgb(…)` (WCAG 2.2)."""
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """How far two colours are apart, from 1 to 21 (WCAG 2.2)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
