"""The headers of every response: what a browser may do with it and who may keep it."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
    """Adds the headers that a response does not bring itself."""

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
                headers.setdefault("cache-control", _kept(scope, message["status"]))
            await send(message)

        await self._app(scope, receive, with_headers)


def _kept(scope: Scope, status: int) -> str:
    """How long a response may be kept: static files named with their hash for good, others not unasked."""
    if not scope["path"].startswith(STATIC) or status not in (200, 304):
        return "no-store"
    named = parse_qs(scope["query_string"].decode("latin-1")).get(HASH_NAME)
    return "public, max-age=31536000, immutable" if named else "no-cache"
