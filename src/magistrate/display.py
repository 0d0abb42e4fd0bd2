"""How one outcome reads to a person: a line of text, and a fragment of HTML for notebooks.

Pure functions of an outcome's fields. Everything that comes from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Protocol

MARK = {"hallucinated": "#c8553d", "faithful": "#2f8f6b"}  # seen on white and on black
NEUTRAL = "#808080"
QUOTE = "background:rgba(214,158,46,.25);color:inherit;border-bottom:2px solid rgba(214,158,46,.9)"


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


def decimal(value: float | None) -> str:
    """A number with two decimals and no leading zero; a dash where there is none.

    >>> decimal(0.617), decimal(1.0), decimal(-0.024), decimal(None)
    ('.62', '1.00', '-.02', '-')
    """
    if value is None:
        return "-"
    digits = f"{abs(value):.2f}"
    return f"{'-' if value < 0 and float(digits) else ''}{digits.removeprefix('0')}"


def signed(value: float | None) -> str:
    """A difference, always with its sign: `+.06`, `-.02`."""
    shown = decimal(value)
    return shown if value is None or shown.startswith("-") else f"+{shown}"


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

    It takes the colours of the page around it, light or dark.

    A quote is its kind, the words of the output, and the context's beside them, None where there are none.
    """
    cells = "".join(
        f'<span style="margin-right:1.2em"><span style="opacity:.65">{escape(name)}</span> '
        f"<b>{escape(value)}</b></span>"
        for name, value in facts
    )
    text = f'<p style="margin:.5em 0 0;white-space:pre-wrap">{escape(body)}</p>' if body else ""
    return (
        f'<div style="border-left:4px solid {colour};padding:.4em .9em;font-family:system-ui,sans-serif">'
        f'<div style="font-weight:600;font-size:1.1em">{escape(title)}</div>'
        f'<div style="margin-top:.3em">{cells}</div>{text}{_quotes(quotes)}</div>'
    )


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None, left: int = 1
) -> str:
    """An HTML table, all of it escaped, in the colours of the page around it.

    The first `left` columns are set to the left, as words are; the others to the right, as numbers are.
    """

    def cell(tag: str, at: int, text: str) -> str:
        side = "left" if at < left else "right"
        rule = "border-bottom:1px solid rgba(128,128,128,.5);" if tag == "th" else ""
        style = f"text-align:{side};padding:.2em .9em .2em 0;{rule}background:none;vertical-align:top"
        return f'<{tag} style="{style}">{escape(text)}</{tag}>'

    def line(tag: str, texts: Sequence[str]) -> str:
        cells = "".join(cell(tag, at, text) for at, text in enumerate(texts))
        return f'<tr style="background:none">{cells}</tr>'

    top = f'<caption style="text-align:left;opacity:.65">{escape(title)}</caption>' if title else ""
    body = "".join(line("td", row) for row in rows)
    look = "border-collapse:collapse;border:0;margin:.5em 0;font-family:system-ui,sans-serif"
    return f'<table style="{look}">{top}<thead>{line("th", head)}</thead><tbody>{body}</tbody></table>'


def _quotes(quotes: Sequence[tuple[str, str, str | None]]) -> str:
    """What was quoted of the output beside what was quoted of the context, a row a claim."""
    if not quotes:
        return ""
    look = "text-align:left;vertical-align:top;padding:.3em 1.2em .3em 0;background:none"

    def cell(tag: str, inner: str, more: str = "") -> str:
        return f'<{tag} style="{look}{more}">{inner}</{tag}>'

    def quoted(text: str | None) -> str:
        if text is None:
            return '<span style="opacity:.65">nothing quoted</span>'
        return f'<mark style="{QUOTE}">“{escape(text)}”</mark>'

    def line(kind: str, output: str, context: str | None) -> str:
        cells = cell("td", escape(kind), ";opacity:.65") + cell("td", quoted(output))
        return f'<tr style="background:none">{cells}{cell("td", quoted(context))}</tr>'

    names = "".join(
        cell("th", name, ";font-weight:normal;opacity:.65") for name in ("claim", "output", "context")
    )
    return (
        f'<table style="border-collapse:collapse;border:0;margin-top:.5em"><thead><tr>{names}</tr></thead>'
        f"<tbody>{''.join(line(*quote) for quote in quotes)}</tbody></table>"
    )


def address(url: str) -> str:
    """A URL for people: without the name and the password that may stand before its host.

    >>> address("http://me:secret@mirror.example/x")
    'http://mirror.example/x'
    """
    scheme, mark, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}" if mark else url
