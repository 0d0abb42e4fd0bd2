"""Answers only requests that name this server, so that no other site's name can be bent towards it.

A page on `evil.example` may have that name point at 127.0.0.1 a moment later (DNS rebinding); the browser
then takes this server's answers for the page's own. Its name still stands in the `Host` header.
"""

from __future__ import annotations

import re
import socket

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from magistrate.errors import SpecError
from magistrate.server.security.answers import refusal
from magistrate.server.settings import Settings, host_name, is_address, is_loopback

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:@/\s]+)(:[0-9]{1,5})?")


class Hosts:
    """Lets requests through whose `Host` is a loopback name, the server's own or an allowed one.

    A server that is reached from other machines also answers to any address, which nobody can bend, and to
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
                told = "a request needs one Host header, with a name or an address"
                await refusal(scope, 400, told)(scope, receive, send)
            elif not self._is_ours(host):
                told = (
                    f"this server does not answer for {host}; start it with --allow-host {host} if it should"
                )
                await refusal(scope, 421, told)(scope, receive, send)
            else:
                await self._app(scope, receive, send)

    def _is_ours(self, host: str) -> bool:
        return host in self._names or is_loopback(host) or (self._any_address and is_address(host))


def _named(header: str) -> str | None:
    """The host in a `Host` header, without its port; None where there is none."""
    match = _HOST.fullmatch(header)
    if match is None:
        return None
    try:
        return host_name(match[1])
    except SpecError:
        return None
