"""Runs the application in uvicorn until it is told to end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from magistrate import _logging
from magistrate.errors import MagistrateError
from magistrate.server.connections import Connections
from magistrate.server.metrics import Measured
from magistrate.server.security import protect
from magistrate.server.settings import Settings
from magistrate.server.watching import Streams, Watched

GRACE_SECONDS = 5
PROXIES_VARIABLE = "FORWARDED_ALLOW_IPS"

_log = _logging.get("server")


def whole(app: FastAPI, settings: Settings) -> ASGIApp:
    """The application as it is served: protected, measured and watched. `app.state.metrics` counts."""
    return Watched(Measured(protect(app, settings), app.state.metrics))


def serve(
    app: FastAPI,
    settings: Settings,
    listener: socket.socket,
    *,
    started: Callable[[], None] = lambda: None,
    ending: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP.

    Then no new visitor comes in, streams of events end, and requests under way have `GRACE_SECONDS` to
    finish. `started` is called once visitors are answered, `ending` when the end begins. What a proxy says of
    the addresses of its visitors is believed of those in `$FORWARDED_ALLOW_IPS` only. Raises
    `MagistrateError` where the application cannot start.
    """
    server = server_of(app, settings, started=started, ending=ending)
    with _bridged(), _hung_up(server):
        try:
            server.run([listener])
        except SystemExit:
            pass  # how uvicorn says that the application did not start; its log said why
        finally:
            listener.close()
    if not server.started:
        raise MagistrateError("the server could not start")


def server_of(
    app: FastAPI,
    settings: Settings,
    *,
    started: Callable[[], None] = lambda: None,
    ending: Callable[[], None] = lambda: None,
) -> Server:
    """What `serve` runs."""
    proxies = os.environ.get(PROXIES_VARIABLE)
    streams = Streams(whole(app, settings))
    config = uvicorn.Config(
        streams,
        loop="asyncio",
        http=Connections(settings, proxies).protocol,  # type: ignore[arg-type]
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=proxies is not None,
        forwarded_allow_ips=proxies,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return Server(config, streams, started, ending)


class Server(uvicorn.Server):
    """Uvicorn, which also ends streams, says when it begins and ends, and takes a signal for no failure."""

    def __init__(
        self,
        config: uvicorn.Config,
        streams: Streams,
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
        """End; at once where somebody presses Ctrl-C again. The signal is not raised again afterwards."""
        self.force_exit = self.force_exit or (self.should_exit and sig == signal.SIGINT)
        self.should_exit = True


@contextmanager
def _hung_up(server: Server) -> Iterator[None]:
    """Ends the server also when its terminal is closed, unless it was started to outlive that."""
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
def _bridged() -> Iterator[None]:
    """What uvicorn says goes to our log, for those who read it, and not to standard error past it."""
    theirs = logging.getLogger("uvicorn.error")
    bridge, passed_on = _Bridge(), theirs.propagate
    theirs.addHandler(bridge)
    theirs.propagate = False
    try:
        yield
    finally:
        theirs.removeHandler(bridge)
        theirs.propagate = passed_on


class _Bridge(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # A warning of theirs is about one visitor's odd request; anybody could fill the log with such.
        say = _log.error if record.levelno >= logging.ERROR else _log.info
        error = record.exc_info[1] if record.exc_info else None
        more = {"error": f"{type(error).__name__}: {error}"} if error is not None else {}
        # Of a traceback in words the last line says what it was.
        say("server.uvicorn", said=record.getMessage().strip().rpartition("\n")[2], **more)
