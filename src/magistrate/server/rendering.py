"""From values to pages: templates that escape everything and make control characters visible."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import ChoiceLoader, Environment, FunctionLoader, PackageLoader, PrefixLoader, StrictUndefined
from markupsafe import Markup, escape

from magistrate._text import decimal, seen
from magistrate._version import __version__
from magistrate.report.formatting import duration
from magistrate.report.html.page import text_of
from magistrate.report.views import NAMES, matrix
from magistrate.server.assets import address

_HALVES = re.compile("[\ud800-\udfff]")
LABELS = ("faithful", "hallucinated", "failed", "abstained")  # what the style sheet knows


def page(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A template of this package, filled in; `path` is where the reader is."""
    filled = _environment().get_template(template)
    return HTMLResponse(filled.render(request=request, path=request.url.path, **values), status)


def compile_all() -> None:
    """Compile every template, which is done once and takes a while."""
    made = _environment()
    for name in PackageLoader("magistrate.server").list_templates():
        made.get_template(name)


def link(path: str, **query: Any) -> str:
    """An address within the page: `path` as it is, and what of `query` says something."""
    told = {name: value for name, value in query.items() if value not in (None, "", ())}
    return f"{path}?{urlencode(told, doseq=True, errors='surrogatepass')}" if told else path


def segment(text: str) -> str:
    """Outside text as one segment of a path."""
    return quote(text, safe="", errors="surrogatepass")


@cache
def _environment() -> Environment:
    made = Environment(
        loader=ChoiceLoader(
            [
                PackageLoader("magistrate.server"),
                PrefixLoader({"report": FunctionLoader(text_of)}),
            ]
        ),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {
        "asset": address,
        "css": look,
        "decimal": decimal,
        "duration": duration,
        "link": link,
        "matrix": matrix,
        "metric_name": metric_name,
        "version": __version__,
    }
    made.filters |= {"ago": ago, "drawn": Markup, "moment": moment, "number": number}
    made.filters |= {"segment": segment, "sent": sent}
    return made


def _visible(value: Any) -> Any:
    """What every expression of a template goes through before it is escaped."""
    return seen(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def sent(text: str) -> Markup:
    """A form's value, which comes back as it is, also what people cannot see of it.

    Only halves of surrogate pairs do not: no page can hold them.
    """
    return Markup(escape(_HALVES.sub("\ufffd", text)).replace("\r", Markup("&#13;")))


def look(label: str | None) -> str:
    """The class of a label: a word of ours, never one of somebody else's."""
    return label if label in LABELS else "other"


def metric_name(name: str) -> str:
    """A metric as people call it."""
    return NAMES.get(name, name).replace("_", " ")


def number(value: int) -> str:
    """A count with its thousands apart."""
    return f"{value:,}"


def moment(value: datetime) -> str:
    """A time in UTC, to the minute."""
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M}"


def ago(value: datetime, now: datetime | None = None) -> str:
    """How long ago a moment was, in words; its date where that is more than a week.

    >>> from datetime import timedelta
    >>> noon = datetime(2026, 1, 2, 12, tzinfo=UTC)
    >>> ago(noon - timedelta(minutes=3), noon), ago(noon - timedelta(days=40), noon)
    ('3 min ago', '2025-11-23')
    """
    seconds = ((now or datetime.now(UTC)) - value).total_seconds()
    if seconds < 60:
        return "just now"
    for size, name, most in ((60, "min", 60), (3600, "h", 24), (86400, "days", 7)):
        if seconds < size * most:
            count = int(seconds // size)
            return f"{count} {name[:-1] if name == 'days' and count == 1 else name} ago"
    return f"{value.astimezone(UTC):%Y-%m-%d}"
