"""Outcomes as text: one line for a terminal, an HTML fragment for notebooks.

Pure functions of an outcome's fields. All outside text is escaped. Characters that would move a cursor or
reorder text are replaced one for one, so that offsets stay valid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import isfinite
from typing import Any, Protocol

from magistrate.errors import InputError

MARK = {"hallucinated": "#c8553d", "faithful": "#2f8f6b"}  # visible on white and on black
NEUTRAL = "#808080"
HOT = "200,85,61"  # the colour of hallucinated; text on it is readable in light and dark mode
PLACE = re.compile(r"[0-9]{1,9}")  # an index into a list, in a path or a pointer
LEVELS = 5  # levels of heat; FAINTEST is the opacity of the first
FAINTEST = 0.15
QUOTE = "background:rgba(214,158,46,.25);color:inherit;border-bottom:2px solid rgba(214,158,46,.9)"

_VISIBLE = (
    {code: 0x2400 + code for code in range(32) if code not in (9, 10)}  # control pictures
    | {9: " ", 127: 0x2421}
    | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)  # C1 controls
    | dict.fromkeys((0x061C, 0x200E, 0x200F, 0x2028, 0x2029), 0xFFFD)
    | dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)  # text direction
)
_SEEN = {
    chr(code): shown if isinstance(shown, str) else chr(shown)
    for code, shown in (_VISIBLE | dict.fromkeys(range(0xD800, 0xE000), 0xFFFD)).items()
}
# Most texts contain few of these, and searching for them is much faster than translating every character.
_UNSEEN = re.compile(f"[{''.join(map(re.escape, _SEEN))}]")


class Marked(Protocol):
    """Anything with half-open character offsets into a text."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


def percent(value: float | None) -> str:
    """Format a share in [0, 1] as `93.1%`; a dash for None.

    >>> percent(0.931), percent(None)
    ('93.1%', '–')
    """
    return "–" if value is None else f"{100 * value:.1f}%"


def decimal(value: float | None) -> str:
    """Format a number with two decimals and no leading zero; a dash for None.

    >>> decimal(0.617), decimal(1.0), decimal(-0.024), decimal(None)
    ('.62', '1.00', '-.02', '-')
    """
    if value is None:
        return "-"
    digits = f"{abs(value):.2f}"
    return f"{'-' if value < 0 and float(digits) else ''}{digits.removeprefix('0')}"


def counted(n: int, noun: str) -> str:
    """Format a number of things.

    >>> counted(1, "sample"), counted(2500, "sample")
    ('1 sample', '2,500 samples')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def signed(value: float | None) -> str:
    """Format a difference, always with its sign: `+.06`, `-.02`."""
    shown = decimal(value)
    return shown if value is None or shown.startswith("-") else f"+{shown}"


def p_of(p: float | None) -> str:
    """Format a p value.

    >>> p_of(0.0004), p_of(0.03), p_of(None)
    ('<.001', '.030', '-')
    """
    if p is None:
        return "-"
    return "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


def shorten(text: str, width: int = 100) -> str:
    """Return one line of at most `width` characters, with an ellipsis if text was cut off."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"


def shorten_inside(text: str, width: int = 400) -> str:
    """Return one line of at most `width` characters, shortened in the middle.

    The end is kept because a message says there what to do.
    """
    line = " ".join(text.split())
    if len(line) <= width:
        return line
    end = width * 3 // 5
    return f"{line[: width - end - 3].rstrip()} … {line[-end:].lstrip()}"


def plain(text: str) -> str:
    """Return `text` with every control character made visible, one for one; line ends stay.

    >>> plain("a\\x1b[2Jb")
    'a␛[2Jb'
    """
    return text.translate(_VISIBLE)


def seen(text: str) -> str:
    """Return `text` with control characters made visible and lone surrogates replaced, one for one."""
    return _UNSEEN.sub(lambda found: _SEEN[found[0]], text)


def safe(text: str) -> str:
    """Return `text` escaped for HTML."""
    return escape(seen(text))


def card(
    title: str,
    colour: str,
    facts: Sequence[tuple[str, str]],
    body: str | None,
    quotes: Sequence[tuple[str, str, str | None]] = (),
    below: str = "",
) -> str:
    """Return a bordered HTML card: `title`, a row of name–value facts, a paragraph and quotes, all escaped.

    It uses the colours of the surrounding page, light or dark. A quote is its kind, the words of the
    output, and those of the context (None if there are none). `below` is trusted HTML.
    """
    cells = "".join(
        f'<span style="margin-right:1.2em"><span style="opacity:.65">{safe(name)}</span> '
        f"<b>{safe(value)}</b></span>"
        for name, value in facts
    )
    text = f'<p style="margin:.5em 0 0;white-space:pre-wrap">{safe(body)}</p>' if body else ""
    return (
        f'<div style="border-left:4px solid {colour};padding:.4em .9em;font-family:system-ui,sans-serif">'
        f'<div style="font-weight:600;font-size:1.1em">{safe(title)}</div>'
        f'<div style="margin-top:.3em">{cells}</div>{text}{below}{_quotes(quotes)}</div>'
    )


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None, left: int = 1
) -> str:
    """Return an HTML table with escaped text, in the colours of the surrounding page.

    The first `left` columns are aligned left, for words; the others right, for numbers.
    """

    def cell(tag: str, at: int, text: str) -> str:
        side = "left" if at < left else "right"
        rule = "border-bottom:1px solid rgba(128,128,128,.5);" if tag == "th" else ""
        style = f"text-align:{side};padding:.2em .9em .2em 0;{rule}background:none;vertical-align:top"
        return f'<{tag} style="{style}">{safe(text)}</{tag}>'

    def line(tag: str, texts: Sequence[str]) -> str:
        cells = "".join(cell(tag, at, text) for at, text in enumerate(texts))
        return f'<tr style="background:none">{cells}</tr>'

    top = f'<caption style="text-align:left;opacity:.65">{safe(title)}</caption>' if title else ""
    body = "".join(line("td", row) for row in rows)
    look = "border-collapse:collapse;border:0;margin:.5em 0;font-family:system-ui,sans-serif"
    return f'<table style="{look}">{top}<thead>{line("th", head)}</thead><tbody>{body}</tbody></table>'


def _quotes(quotes: Sequence[tuple[str, str, str | None]]) -> str:
    """Return a table of quotes from output and context, one row per claim."""
    if not quotes:
        return ""
    look = "text-align:left;vertical-align:top;padding:.3em 1.2em .3em 0;background:none"

    def cell(tag: str, inner: str, more: str = "") -> str:
        return f'<{tag} style="{look}{more}">{inner}</{tag}>'

    def quoted(text: str | None) -> str:
        if text is None:
            return '<span style="opacity:.65">nothing quoted</span>'
        return f'<mark style="{QUOTE}">“{safe(text)}”</mark>'

    def line(kind: str, output: str, context: str | None) -> str:
        cells = cell("td", safe(kind), ";opacity:.65") + cell("td", quoted(output))
        return f'<tr style="background:none">{cells}{cell("td", quoted(context))}</tr>'

    names = "".join(
        cell("th", name, ";font-weight:normal;opacity:.65") for name in ("claim", "output", "context")
    )
    return (
        f'<table style="border-collapse:collapse;border:0;margin-top:.5em"><thead><tr>{names}</tr></thead>'
        f"<tbody>{''.join(line(*quote) for quote in quotes)}</tbody></table>"
    )


@dataclass(frozen=True, slots=True)
class Heat:
    """A heat map of a text, from `low` (not suspicious) to `high`.

    `pieces` are half-open character offsets with a value in `unit`, which is empty for shares.
    """

    name: str
    unit: str
    low: float
    high: float
    pieces: tuple[tuple[int, int, float], ...]

    @classmethod
    def read(cls, given: Any) -> Heat:
        """Parse a judge's `details["heat"]`. Raises `InputError` if it is no heat map."""
        try:
            heat = cls(
                str(given["name"]),
                str(given["unit"]),
                float(given["low"]),
                float(given["high"]),
                tuple((int(start), int(end), float(value)) for start, end, value in given["pieces"]),
            )
        except (TypeError, KeyError, ValueError, OverflowError):
            raise InputError(
                "a heat map needs name, unit, low, high and pieces of [start, end, value]"
            ) from None
        numbers = (heat.low, heat.high, *(value for _, _, value in heat.pieces))
        if not all(map(isfinite, numbers)) or heat.low >= heat.high:
            raise InputError("a heat map needs numbers as values, and low below high")
        return heat

    def level(self, value: float) -> int:
        """Return the nearest level, 0 at `low` and `LEVELS` at `high`; values beyond the scale are clipped.

        >>> [Heat("x", "nats", 0, 3, ()).level(value) for value in (-1, 0, 0.1, 1.5, 3, 9)]
        [0, 0, 0, 3, 5, 5]
        """
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return int(share * LEVELS + 0.5)

    def runs(self, text: str) -> list[tuple[int, int, float | None]]:
        """Split all of `text` where the value changes, in order; None is no value.

        Where pieces overlap, the highest value counts.
        """
        painted: list[float | None] = [None] * len(text)
        for start, end, value in sorted(self.pieces, key=lambda piece: piece[2]):
            start, end = max(start, 0), min(end, len(text))
            if start < end:
                painted[start:end] = [value] * (end - start)
        edges = {min(max(at, 0), len(text)) for start, end, _ in self.pieces for at in (start, end)}
        found: list[tuple[int, int, float | None]] = []
        for start, end in pairwise(sorted({0, len(text), *edges})):
            if found and found[-1][2] == painted[start]:
                found[-1] = (found[-1][0], end, painted[start])
            else:
                found.append((start, end, painted[start]))
        return found

    def hottest(self, text: str, most: int) -> list[tuple[int, int, float]]:
        """Return the runs with the highest values above level 0, at most `most`, the highest first."""
        hot = [
            (start, end, value)
            for start, end, value in self.runs(text)
            if value is not None and self.level(value) and text[start:end].strip()
        ]
        return sorted(hot, key=lambda run: (-run[2], run[0]))[:most]

    def figure(self, value: float) -> str:
        """Format a value, with `≥` at the end of the scale, unless it is a share.

        >>> Heat("x", "nats", 0, 3, ()).figure(3), Heat("x", "", 0, 1, ()).figure(1)
        ('≥3.00', '1.00')
        """
        return f"{'≥' if value >= self.high and self.unit else ''}{min(value, self.high):.2f}"

    @property
    def legend(self) -> str:
        """The legend of the colours."""
        return f"{self.name}, from {self.low:g} to {self.high:g} {self.unit}".rstrip()

    def told(self, text: str, most: int = 5) -> str:
        """Return the hottest parts as text, for readers who do not see colours."""
        found = [
            f"“{shorten(text[start:end], 40)}” {self.figure(value)}"
            for start, end, value in self.hottest(text, most)
        ]
        return f"highest: {', '.join(found)}" if found else "no value is above the lowest"


def heat(given: Mapping[str, Any]) -> str:
    """Return a heat map with its own `text` as an escaped HTML paragraph; empty if it has no text.

    It uses the colours of the surrounding page, light or dark.
    """
    text = given.get("text")
    if not isinstance(text, str):
        return ""
    try:
        known = Heat.read(given)
    except InputError as error:
        return f'<p style="opacity:.65">{safe(str(error))}</p>'

    def run(start: int, end: int, value: float | None) -> str:
        words = safe(text[start:end])
        level = 0 if value is None else known.level(value)
        if value is None or not level:
            return words
        look = f"background:rgba({HOT},{level * FAINTEST:.2f});color:inherit;border-radius:2px"
        title = f"{known.figure(value)} {safe(known.unit)}".rstrip()
        return f'<span style="{look}" title="{title}">{words}</span>'

    body = "".join(run(*each) for each in known.runs(text))
    swatches = "".join(
        f'<span style="background:rgba({HOT},{level * FAINTEST:.2f});padding:0 .6em">&nbsp;</span>'
        for level in range(1, LEVELS + 1)
    )
    small = "font-size:.85em;margin:.3em 0 0"
    return (
        f'<p style="margin:.6em 0 0;white-space:pre-wrap;line-height:1.7" dir="auto">{body}</p>'
        f'<p style="{small}">{swatches} <span style="opacity:.8">{safe(known.legend)}; '
        f"{safe(known.told(text))}</span></p>"
    )


def address(url: str) -> str:
    """Return a URL without the user name and password.

    >>> address("http://me:secret@mirror.example/x")
    'http://mirror.example/x'
    """
    scheme, mark, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}" if mark else url
