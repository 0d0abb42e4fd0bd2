"""The socket that a server listens on, and the address that people open."""

from __future__ import annotations

import errno
import os
import socket

from magistrate.errors import SpecError
from magistrate.server.settings import Settings, is_loopback

BACKLOG = 1024


def bind(settings: Settings) -> socket.socket:
    """A socket that listens where the settings say.

    Raises `SpecError`, which says what to do, where the port is taken or the address is not this machine's,
    or where a server without a token would be reached from other machines.
    """
    try:
        found = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise SpecError(f"the host {settings.host} is not known: {error.strerror}; check --host") from None
    # A name such as localhost has addresses of both kinds; the older one is reached by more programs.
    family, kind, protocol, _, address = sorted(found, key=lambda each: each[0] != socket.AF_INET)[0]
    if settings.token is None and not is_loopback(str(address[0])):
        raise SpecError(f"{settings.host} is {address[0]}, which other machines reach: give a token")
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere it would let two programs have one port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise SpecError(_advice(error, settings)) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a browser on this machine finds it, such as `http://127.0.0.1:8421/`."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # all addresses, which is none that can be opened
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _advice(error: OSError, settings: Settings) -> str:
    where = f"port {settings.port} on {settings.host}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is taken by another program; choose one with --port, or --port 0 for any free one"
    if error.errno == errno.EACCES:
        return f"{where} is not for everybody; choose a port above 1023 with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{settings.host} is no address of this machine; check --host"
    return f"{where} cannot be listened on: {error.strerror}"
