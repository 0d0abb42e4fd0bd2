"""The server process: binds the socket and runs the application in uvicorn until it is stopped."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from magistrate import _logging
from magistrate.errors import MagistrateError, SpecError
from magistrate.server.limits import ConnectionLimits
from magistrate.server.monitoring import RequestMonitor, is_event_stream, send_text
from magistrate.server.security import protect
from magistrate.server.settings import Settings, is_loopback

BACKLOG = 1024
GRACE_SECONDS = 5
PROXIES_VARIABLE = "FORWARDED_ALLOW_IPS"

_log = _logging.get("server")


# --- the socket -----------------------------------------------------------------------------------


def bind(settings: Settings) -> socket.socket:
    """Return a socket that listens at the host and port of the settings.

    Raises `SpecError` with advice if the port is taken or the address does not belong to this machine, or
    if a server without a token could be reached from other machines.
    """
    try:
        found = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise SpecError(f"the host {settings.host} is unknown: {error.strerror}; check --host") from None
    # A name such as localhost has IPv4 and IPv6 addresses; more programs can reach IPv4.
    family, kind, protocol, _, address = sorted(found, key=lambda each: each[0] != socket.AF_INET)[0]
    if settings.token is None and not is_loopback(str(address[0])):
        raise SpecError(f"{settings.host} is {address[0]}, which other machines can reach: give a token")
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere it would let two programs share one port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise SpecError(_advice(error, settings)) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the address to open in a browser on this machine, such as `http://127.0.0.1:8421/`."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # all addresses, which cannot be opened as one
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _advice(error: OSError, settings: Settings) -> str:
    where = f"port {settings.port} on {settings.host}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is used by another program; choose one with --port, or --port 0 for any free one"
    if error.errno == errno.EACCES:
        return f"{where} needs special permission; choose a port above 1023 with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{settings.host} is not an address of this machine; check --host"
    return f"cannot listen on {where}: {error.strerror}"


# --- running --------------------------------------------------------------------------------------


def wrap_app(app: FastAPI, settings: Settings) -> ASGIApp:
    """Return the application as it is served: protected, and monitored with `app.state.metrics`."""
    return RequestMonitor(protect(app, settings, find_user=app.state.find_user), app.state.metrics)


def serve(
    app: FastAPI,
    settings: Settings,
    listener: socket.socket,
    *,
    started: Callable[[], None] = lambda: None,
    ending: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP.

    Then no new connection is accepted, streams of events end, and requests in progress have `GRACE_SECONDS`
    to finish. `started` is called once requests are answered, `ending` when the shutdown begins. Only
    proxies in `$FORWARDED_ALLOW_IPS` are trusted to report the addresses of visitors. Raises
    `MagistrateError` if the application cannot start.
    """
    server = make_server(app, settings, started=started, ending=ending)
    with _uvicorn_logged(), _ending_on_hangup(server):
        try:
            server.run([listener])
        except SystemExit:
            pass  # raised by uvicorn if the application did not start; its log has the reason
        finally:
            listener.close()
    if not server.started:
        raise MagistrateError("the server could not start")


def make_server(
    app: FastAPI,
    settings: Settings,
    *,
    started: Callable[[], None] = lambda: None,
    ending: Callable[[], None] = lambda: None,
) -> Server:
    """Return the uvicorn server that `serve` runs."""
    proxies = os.environ.get(PROXIES_VARIABLE)
    streams = StreamCloser(wrap_app(app, settings))
    config = uvicorn.Config(
        streams,
        loop="asyncio",
        http=ConnectionLimits(settings, proxies).protocol,  # type: ignore[arg-type]
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=proxies is not None,
        forwarded_allow_ips=proxies,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return Server(config, streams, started, ending)


class StreamCloser:
    """Wraps the application so that its event streams can be ended: each is completed, not cut off.

    A request that is cancelled because the server stops gets a 503, unless its response has begun.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open: set[asyncio.Task[Any]] = set()
        self._ending = False

    def end(self) -> None:
        """End all streams of events, including those that begin later."""
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
            if message["type"] == "http.response.start" and is_event_stream(message):
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
                await send_text(send, 503, b"The server is ending; ask again later.\n")
        finally:
            self._open.discard(task)


class Server(uvicorn.Server):
    """A uvicorn server that ends event streams, reports its start and end, and does not re-raise signals."""

    def __init__(
        self,
        config: uvicorn.Config,
        streams: StreamCloser,
        has_started: Callable[[], None],
        ending: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._streams = streams
        self._has_started = has_started
        self._ending = ending

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._has_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending()
        self._streams.end()
        await super().shutdown(sockets=sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Shut down; immediately if Ctrl-C is pressed again."""
        self.force_exit = self.force_exit or (self.should_exit and sig == signal.SIGINT)
        self.should_exit = True


@contextmanager
def _ending_on_hangup(server: Server) -> Iterator[None]:
    """Stop the server also when its terminal is closed, unless it was started with `nohup`."""
    number = getattr(signal, "SIGHUP", None)
    in_main = threading.current_thread() is threading.main_thread()
    if number is None or not in_main or signal.getsignal(number) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(number, server.handle_exit)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def _uvicorn_logged() -> Iterator[None]:
    """Redirect uvicorn's log to our log instead of standard error."""
    theirs = logging.getLogger("uvicorn.error")
    bridge, passed_on = _LogBridge(), theirs.propagate
    theirs.addHandler(bridge)
    theirs.propagate = False
    try:
        yield
    finally:
        theirs.removeHandler(bridge)
        theirs.propagate = passed_on


class _LogBridge(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # Its warnings are about malformed requests of visitors, who could fill the log with them.
        say = _log.error if record.levelno >= logging.ERROR else _log.info
        error = record.exc_info[1] if record.exc_info else None
        more = {"error": f"{type(error).__name__}: {error}"} if error is not None else {}
        # The last line of a formatted traceback is the error message.
        say("server.uvicorn", said=record.getMessage().strip().rpartition("\n")[2], **more)
