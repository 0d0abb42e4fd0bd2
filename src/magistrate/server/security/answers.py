"""Short answers that the checks give in place of the application, in the form that the visitor reads."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Scope

from magistrate._text import seen


def refusal(scope: Scope, status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """`detail` as plain text for browsers, else as JSON `{"detail": …}`."""
    given = dict(headers or {})
    if reads_html(scope):
        return PlainTextResponse(f"{seen(detail)}\n", status, given)
    return JSONResponse({"detail": detail}, status, given)


def reads_html(scope: Scope) -> bool:
    """Is it a browser that shows what comes as a page?"""
    headers = Headers(scope=scope)
    return "text/html" in headers.get("accept", "").lower() and not from_script(scope)


def from_script(scope: Scope) -> bool:
    """Did htmx ask, which puts what comes into the page that is open?"""
    return Headers(scope=scope).get("hx-request") == "true"
