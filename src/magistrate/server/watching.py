"""Around the application: what was asked in the log, errors in it, and streams ended when the server ends."""

from __future__ import annotations

import asyncio
import time
import traceback
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from magistrate import _logging
from magistrate.server.metrics import STREAM, route_of

_AROUND = ("watching.py", "metrics.py", "headers.py", "hosts.py", "bodies.py", "access.py")  # in every trace
_log = _logging.get("server")


class Watched:
    """Says of each request what became of it, and keeps errors of the application from the server below.

    The values of a query are left out: they may be anybody's words.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), None

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            _log.error("server.error", method=scope["method"], route=route_of(scope), **_told(error))
            if status is None:
                status = 500
                await _apologize(send, 500, b"Something went wrong in the server; its log says what.\n")
        finally:
            _log.info(
                "server.request",
                method=scope["method"],
                path=scope["path"] + _names(scope["query_string"]),
                status=status,
                seconds=round(time.perf_counter() - began, 4),
                client=scope["client"][0] if scope.get("client") else None,
            )


class Streams:
    """The application, whose streams of events can be ended: they end in good order, not cut off.

    A request that is given up because the server ends is answered with 503, if it has no answer yet.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open: set[asyncio.Task[Any]] = set()
        self._ending = False

    def end(self) -> None:
        """End all streams of events, those that begin later, too."""
        self._ending = True
        for task in self._open:
            task.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        task = asyncio.current_task()
        assert task is not None
        started = complete = False

        async def watched(message: Message) -> None:
            nonlocal started, complete
            if message["type"] == "http.response.start" and _is_stream(message):
                self._open.add(task)
                if self._ending:
                    task.cancel()
            started = True
            complete = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:
            if not self._ending or complete or (started and task not in self._open):
                raise
            task.uncancel()
            if started:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                await _apologize(send, 503, b"The server is ending; ask again later.\n")
        finally:
            self._open.discard(task)


def _is_stream(message: Message) -> bool:
    return any(name == b"content-type" and value.startswith(STREAM) for name, value in message["headers"])


def _names(query: bytes) -> str:
    """The names in a query, without their values."""
    names = [part.partition("=")[0] if "=" in part else "…" for part in query.decode("latin-1").split("&")]
    return f"?{'&'.join(names)}" if query else ""


def _told(error: Exception) -> dict[str, str]:
    """An error's kind and its place in our code, or else where it was raised.

    Not its message, which may quote what was being judged.
    """
    frames = [(Path(each.filename), each.lineno) for each in traceback.extract_tb(error.__traceback__)]
    ours = [each for each in frames if "magistrate" in each[0].parts and each[0].name not in _AROUND]
    file, line = (ours or frames)[-1]
    return {"error": type(error).__name__, "at": f"{file.name}:{line}"}


async def _apologize(send: Send, status: int, told: bytes) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(told))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": told})
