"""Security headers of every response, the check of the `Host` header, and short refusals."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from magistrate._text import seen
from magistrate.errors import SpecError
from magistrate.server.settings import Settings, host_name, is_address, is_loopback
from magistrate.watch import otlp


def refusal(scope: Scope, status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """`detail` as plain text for browsers, as OTLP wants it for its clients, else as JSON `{"detail": …}`."""
    given = dict(headers or {})
    if scope["path"] in otlp.PATHS:
        return otlp_refusal(scope, status, detail, given)
    if reads_html(scope):
        return PlainTextResponse(f"{seen(detail)}\n", status, given)
    return JSONResponse({"detail": detail}, status, given)


def otlp_refusal(
    scope: Scope, status: int, detail: str, headers: Mapping[str, str] | None = None
) -> Response:
    """`detail` as a `google.rpc.Status` in the encoding of the request."""
    said = otlp.refusal(status, detail, Headers(scope=scope).get("content-type", ""))
    return Response(said.body, said.status, {**said.headers, **(headers or {})})


def reads_html(scope: Scope) -> bool:
    """Whether a browser shows the response as a page."""
    headers = Headers(scope=scope)
    return "text/html" in headers.get("accept", "").lower() and not from_script(scope)


def from_script(scope: Scope) -> bool:
    """Whether htmx asks, which puts the response into the open page."""
    return Headers(scope=scope).get("hx-request") == "true"


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
STATIC = "/static/"
HASH_NAME = "v"  # the name in the query of a static file's URL that stands for its contents

_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    # Not `no-referrer`: forms would then send `Origin: null`, and where there is no HTTPS a browser sends
    # nothing else by which its own forms could be told from another site's. No other site learns more.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
}


class SecurityHeaders:
    """Adds to every response the security headers that it does not have yet."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", _caching(scope, message["status"]))
            await send(message)

        await self._app(scope, receive, with_headers)


def _caching(scope: Scope, status: int) -> str:
    """`Cache-Control`: a year for static files with their hash in the address; pages are not stored."""
    if not scope["path"].startswith(STATIC) or status not in (200, 304):
        return "no-store"
    named = parse_qs(scope["query_string"].decode("latin-1")).get(HASH_NAME)
    return "public, max-age=31536000, immutable" if named else "no-cache"


_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:@/\s]+)(:[0-9]{1,5})?")


class HostCheck:
    """Lets requests through whose `Host` is a loopback name, the server's own name or an allowed one.

    A page on `evil.example` may have that name point at 127.0.0.1 a moment later (DNS rebinding); the browser
    then takes this server's responses for the page's own. The `Host` header still holds that name. A server
    that is reached from other machines also answers to any address, since addresses cannot be rebound, and to
    this machine's name.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._any_address = not is_loopback(settings.host)
        names = {"localhost", settings.host, *settings.allowed_hosts}
        if self._any_address:
            names.add(socket.gethostname().lower())
        self._names = frozenset(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # there are none
        else:
            given = Headers(scope=scope).getlist("host")
            host = _named(given[0]) if len(given) == 1 else None
            if host is None:
                message = "a request needs one Host header, with a name or an address"
                await refusal(scope, 400, message)(scope, receive, send)
            elif not self._is_ours(host):
                message = (
                    f"this server does not answer for {host}; start it with --allow-host {host} if it should"
                )
                await refusal(scope, 421, message)(scope, receive, send)
            else:
                await self._app(scope, receive, send)

    def _is_ours(self, host: str) -> bool:
        return host in self._names or is_loopback(host) or (self._any_address and is_address(host))


def _named(header: str) -> str | None:
    """The host in a `Host` header, without its port; None if it is malformed."""
    match = _HOST.fullmatch(header)
    if match is None:
        return None
    try:
        return host_name(match[1])
    except SpecError:
        return None
