"""HTTP responses: pages from Jinja templates, static files, JSON values, and errors in each format.

It also builds the addresses of pages.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from jinja2 import ChoiceLoader, Environment, FunctionLoader, PackageLoader, PrefixLoader
from markupsafe import Markup, escape
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Scope

from magistrate._text import counted, seen
from magistrate._version import __version__
from magistrate.errors import MagistrateError, SpecError, StoreError
from magistrate.report.export import json_values
from magistrate.report.formatting import duration, template_environment
from magistrate.report.html.page import text_of
from magistrate.report.values import matrix, name_of
from magistrate.server.roles import visitor_of
from magistrate.watch import otlp
from magistrate.watch.otlp import PATHS, OtlpError

router = APIRouter()

# Ids that fit into a path unchanged. Browsers and proxies may change dots, double slashes, backslashes and
# doubly escaped characters, so every other id goes into the query.
_PLAIN = re.compile(r"[\w~:@+=,-][\w.~:@+=, -]*(/[\w~:@+=,-][\w.~:@+=, -]*)*")
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")

KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
YEAR = 31_536_000


# --- static files ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A static file. `version` is a hash of its content."""

    body: bytes
    kind: str
    version: str


@cache
def static_files() -> dict[str, StaticFile]:
    """Return every static file by name. `style.css` is that of reports followed by those of the pages."""
    folder = files("magistrate.server").joinpath("static")
    found = {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}
    vendored = folder.joinpath("vendor")
    found |= {each.name: each.read_bytes() for each in vendored.iterdir()}
    sheets = [found.pop(name) for name in sorted(found) if name.endswith(".css")]
    found["style.css"] = b"\n".join([text_of("style.css").encode(), *sheets])
    return {
        name: StaticFile(body, KINDS[name.rpartition(".")[2]], hashlib.sha256(body).hexdigest()[:16])
        for name, body in found.items()
        if name.rpartition(".")[2] in KINDS
    }


def asset_address(name: str) -> str:
    """Return the address of a static file."""
    return f"/static/{name}?v={static_files()[name].version}"


@router.get("/static/{name}", include_in_schema=False)
async def static_file(name: str, request: Request) -> Response:
    """Serve a static file. Browsers cache it for a year if they asked for this version."""
    found = static_files().get(name)
    if found is None:
        return Response("there is no such file", 404, media_type="text/plain")
    current = request.query_params.get("v") == found.version
    caching = f"public, max-age={YEAR}, immutable" if current else "no-cache"
    return Response(found.body, media_type=found.kind, headers={"Cache-Control": caching})


# --- addresses ------------------------------------------------------------------------------------


def run_address(run_id: str, **query: Any) -> str:
    """Return the address of a run's page."""
    return link(f"/runs/{segment(run_id)}", **query)


def sample_address(run_id: str, sample_id: str, *, start: str = "", **query: Any) -> str:
    """Return the address of a sample's page, or of its JSON if `start` is `/api`.

    >>> sample_address("r", "qs-007"), sample_address("r", "..", judge="rubric")
    ('/runs/r/samples/qs-007', '/runs/r/sample?id=..&judge=rubric')
    """
    run = start + run_address(run_id)
    if _PLAIN.fullmatch(sample_id):
        return link(f"{run}/samples/{quote(sample_id, safe='/')}", **query)
    named = urlencode({"id": sample_id}, errors="surrogatepass")
    return link(f"{run}/sample?{named}", **query)


def link(path: str, **query: Any) -> str:
    """Return the address of `path` with the non-empty fields of the query."""
    given = {name: value for name, value in query.items() if value not in (None, "", (), [])}
    if not given:
        return path
    return f"{path}{'&' if '?' in path else '?'}{urlencode(given, doseq=True, errors='surrogatepass')}"


def segment(text: str) -> str:
    """Encode any text as one segment of a path."""
    return quote(text, safe="", errors="surrogatepass")


def query_of(request: Request) -> dict[str, list[str]]:
    """Return the fields of the query with all their values, including lone surrogates.

    Raises `HTTPException`, 422, if it cannot be parsed.
    """
    text = request.scope["query_string"].decode("latin-1")
    try:
        return parse_qs(text, keep_blank_values=True, errors="surrogatepass", max_num_fields=50)
    except ValueError:
        raise HTTPException(422, "the address has invalid characters or too many fields") from None


# --- templates ------------------------------------------------------------------------------------


def page(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Render a template as a response.

    Templates have access to the request, its `path` and its `visitor`.
    """
    filled = _environment().get_template(template)
    given = {"request": request, "path": request.url.path, "visitor": visitor_of(request), **values}
    return HTMLResponse(filled.render(given), status)


def compile_templates() -> None:
    """Compile every template in advance, so that no page has to wait for it."""
    made = _environment()
    for name in PackageLoader("magistrate.server").list_templates():
        made.get_template(name)


@cache
def _environment() -> Environment:
    loaders = [PackageLoader("magistrate.server"), PrefixLoader({"report": FunctionLoader(text_of)})]
    made = template_environment(ChoiceLoader(loaders))
    made.globals |= {
        "asset": asset_address,
        "duration": duration,
        "link": link,
        "matrix": matrix,
        "metric_name": name_of,
        "version": __version__,
    }
    made.filters |= {"ago": ago, "counted": counted, "moment": moment, "number": number}
    made.filters |= {"segment": segment, "sent": sent}
    return made


def sent(text: str) -> Markup:
    """Render a form's value so that it is sent back unchanged, including invisible characters.

    Only lone surrogates are replaced, since a page cannot contain them.
    """
    return Markup(escape(_LONE_SURROGATES.sub("\ufffd", text)).replace("\r", Markup("&#13;")))


def number(value: int) -> str:
    """Format a count with thousands separators."""
    return f"{value:,}"


def moment(value: datetime) -> str:
    """Format a time in UTC, to the minute."""
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M}"


def ago(value: datetime, now: datetime | None = None) -> str:
    """Format how long ago a time was; its date if that is more than a week.

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


# --- JSON and errors ------------------------------------------------------------------------------


class Refusal(BaseModel):
    """Why the request failed, in words."""

    detail: str


NOT_FOUND = "there is nothing at this address"
_WHY = {
    400: "The body is not UTF-8 text",
    404: "There is nothing with this name",
    409: "It is being judged now",
    422: "The request is invalid or cannot be fulfilled",
    503: "The store cannot be read or written now",
}


def error_responses(*codes: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entries of an operation for these error statuses."""
    return {code: {"model": Refusal, "description": _WHY[code]} for code in codes}


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response in ASCII, so that lone surrogates survive; NaN and infinities become text."""
    text = json.dumps(json_values(value), allow_nan=False)
    return Response(text, status, dict(headers or {}), media_type="application/json")


async def error_response(request: Request, error: Exception) -> Response:
    """Return the response for an error: JSON below `/api/`, OTLP's format for its clients, else a page.

    Messages contain no secrets.
    """
    status, message = status_of(error), _message(error)
    if request.url.path.startswith("/api/"):
        response: Response = JSONResponse({"detail": message}, status)
    elif request.url.path in PATHS:
        response = otlp_refusal(request.scope, status, message)
    else:
        response = page(request, "error.html", status=status, message=message, code=status)
    response.headers.update(getattr(error, "headers", None) or {})
    return response


def status_of(error: Exception) -> int:
    """Return the HTTP status for an error."""
    if isinstance(error, SpecError):
        return 404
    if isinstance(error, StoreError):
        return 503
    if isinstance(error, OtlpError):
        return error.status
    if isinstance(error, RequestValidationError | MagistrateError):
        return 422
    return getattr(error, "status_code", 500)


def _message(error: Exception) -> str:
    if isinstance(error, RequestValidationError):
        found = error.errors()
        return "; ".join(f"{_field(each['loc'])}: {each['msg']}" for each in found[:5])
    if isinstance(error, HTTPException):
        return NOT_FOUND if (error.status_code, error.detail) == (404, "Not Found") else str(error.detail)
    return str(error) if isinstance(error, MagistrateError) else "the server failed; see its log"


def _field(where: Sequence[str | int]) -> str:
    """Return the name of the invalid field of a request."""
    return ".".join(map(str, where[1:])) or f"the {where[0]}"


@contextmanager
def answering_with(kind: type[MagistrateError], status: int) -> Iterator[None]:
    """Convert errors of this type into responses with this status; the message is kept."""
    try:
        yield
    except kind as error:
        raise HTTPException(status, str(error)) from error


# --- short refusals -------------------------------------------------------------------------------


def refusal(scope: Scope, status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return `detail` as plain text for browsers, in OTLP's format for its clients, else as JSON."""
    given = dict(headers or {})
    if scope["path"] in PATHS:
        return otlp_refusal(scope, status, detail, given)
    if reads_html(scope):
        return PlainTextResponse(f"{seen(detail)}\n", status, given)
    return JSONResponse({"detail": detail}, status, given)


def otlp_refusal(
    scope: Scope, status: int, detail: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return `detail` as a `google.rpc.Status` in the encoding of the request."""
    said = otlp.refusal(status, detail, Headers(scope=scope).get("content-type", ""))
    return Response(said.body, said.status, {**said.headers, **(headers or {})})


def reads_html(scope: Scope) -> bool:
    """Return whether a browser shows the response as a page."""
    headers = Headers(scope=scope)
    return "text/html" in headers.get("accept", "").lower() and not from_script(scope)


def from_script(scope: Scope) -> bool:
    """Return whether the request comes from htmx, which inserts the response into the open page."""
    return Headers(scope=scope).get("hx-request") == "true"
