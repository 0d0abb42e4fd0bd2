"""How one outcome reads to a person: a line of text, and a fragment of HTML for notebooks.

Pure functions of an outcome's fields. Everything that comes from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Protocol

MARK = {"hallucinated": "#b3261e", "faithful": "#1b7f4b"}
NEUTRAL = "#6b6b6b"


class Marked(Protocol):
    """Anything with half-open character offsets into a text."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


def percent(value: float | None) -> str:
    """A share in [0, 1] as `93.1%`; a dash where there is none.

    >>> percent(0.931), percent(None)
    ('93.1%', '–')
    """
    return "–" if value is None else f"{100 * value:.1f}%"


def shorten(text: str, width: int = 100) -> str:
    """One line of at most `width` characters, with an ellipsis where something was left out."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"


def card(
    title: str,
    colour: str,
    facts: Sequence[tuple[str, str]],
    body: str | None,
    quotes: Sequence[tuple[str, str, str | None]] = (),
) -> str:
    """A bordered HTML card: `title`, a row of name–value facts, a paragraph and quotes, all escaped.

    A quote is its kind, the words of the output, and the context's beside them, None where there are none.
    """
    cells = "".join(
        f'<span style="margin-right:1.2em"><span style="opacity:.65">{escape(name)}</span> '
        f"<b>{escape(value)}</b></span>"
        for name, value in facts
    )
    text = f'<p style="margin:.5em 0 0">{escape(body)}</p>' if body else ""
    text += "".join(_quote(*quote) for quote in quotes)
    return (
        f'<div style="border-left:4px solid {colour};padding:.4em .9em;font-family:system-ui,sans-serif">'
        f'<div style="font-weight:600;color:{colour};font-size:1.1em">{escape(title)}</div>'
        f'<div style="margin-top:.3em">{cells}</div>{text}</div>'
    )


def _quote(kind: str, output: str, context: str | None) -> str:
    beside = f"“{escape(context)}”" if context is not None else "nothing in the context"
    return (
        f'<p style="margin:.5em 0 0"><span style="opacity:.65">{escape(kind)}</span> '
        f'<mark>“{escape(output)}”</mark> <span style="opacity:.65">beside</span> {beside}</p>'
    )


def address(url: str) -> str:
    """A URL for people: without the name and the password that may stand before its host.

    >>> address("http://me:secret@mirror.example/x")
    'http://mirror.example/x'
    """
    scheme, mark, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}" if mark else url
