"""No request's body may fill the memory or keep a connection for ever."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from magistrate.server.security.answers import refusal
from magistrate.server.settings import Settings

DRAIN_SECONDS = 2.0

_DISCONNECT: Message = {"type": "http.disconnect"}


class Bodies:
    """Refuses a body that is too long (413) or too slow (408).

    A length that is announced is refused before a byte is read; what comes without one is counted. The
    application, if it is already reading, sees that the visitor left, and its own answer is dropped.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _announced(scope) > self._settings.body_bytes:
            await self._turn_away(413, scope, receive, send)
            return
        body = _Body(self._settings, receive, send)
        try:
            await self._app(scope, body.receive, body.send)
        except Exception:
            if body.refused is None:
                raise
        if body.refused is not None and not body.answered:
            await self._turn_away(body.refused, scope, receive, send)

    async def _turn_away(self, status: int, scope: Scope, receive: Receive, send: Send) -> None:
        told = {
            408: f"the body of the request did not come within {self._settings.body_seconds:g} seconds",
            413: f"the body of a request has at most {self._settings.body_bytes:,} bytes",
        }

        async def held_open(message: Message) -> None:
            await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

        answer = refusal(scope, status, told[status], {"connection": "close"})
        await answer(scope, receive, held_open)
        if status == 413:
            await _drain(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Body:
    """One request's body on its way in, and the answer to it on its way out."""

    def __init__(self, settings: Settings, receive: Receive, send: Send) -> None:
        self._settings = settings
        self._receive = receive
        self._send = send
        self._read = 0
        self._complete = False
        self._ends: float | None = None
        self.refused: int | None = None
        self.answered = False

    async def receive(self) -> Message:
        if self.refused is not None:
            return _DISCONNECT
        if self._complete:
            return await self._receive()
        if self._ends is None:
            self._ends = asyncio.get_running_loop().time() + self._settings.body_seconds
        try:
            async with asyncio.timeout_at(self._ends):
                message = await self._receive()
        except TimeoutError:
            self.refused = 408
            return _DISCONNECT
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            if self._read > self._settings.body_bytes:
                self.refused = 413
                return _DISCONNECT
        return message

    async def send(self, message: Message) -> None:
        if self.refused is not None and not self.answered:
            return
        self.answered = True
        await self._send(message)


async def _drain(receive: Receive) -> None:
    """Read and forget for a moment: whoever is cut off while still sending may never see the answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            more = True
            while more:
                message = await receive()
                more = message["type"] == "http.request" and message.get("more_body", False)


def _announced(scope: Scope) -> int:
    """How many bytes are to come, as far as that is said; a number of absurd length is large enough."""
    length = Headers(scope=scope).get("content-length", "0")
    return int(length[:20]) if length.isascii() and length.isdigit() else 0
