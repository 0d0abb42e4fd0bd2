"""An application on a real server in this process, and the clock that tests set."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

TOKEN = "a-token-of-visible-ASCII-0123456789"


class Clock:
    """Seconds, which pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """The address of a server that answers with `app`, without a slash at its end."""
    config = uvicorn.Config(app, loop="asyncio", http="h11", ws="none", log_config=None, access_log=False)
    with socket.create_server(("127.0.0.1", 0)) as listener, running(uvicorn.Server(config), listener):
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def running(server: uvicorn.Server, listener: socket.socket) -> Iterator[None]:
    """A server that runs in a thread for as long as the block lasts."""
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    end = time.monotonic() + 20
    try:
        while not server.started:
            assert thread.is_alive() and time.monotonic() < end, "the server did not start"
            time.sleep(0.01)
        yield
    finally:  # also one that starts too late: its socket is closed after this
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the server did not end"


def exchange(address: str, sent: bytes) -> bytes:
    """What a server answers to these bytes, until it closes the connection or says no more for a second."""
    host, _, port = address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(sent)
        parts = []
        try:
            while part := connection.recv(65536):
                parts.append(part)
                connection.settimeout(1.0)
        except TimeoutError:
            pass
        return b"".join(parts)
