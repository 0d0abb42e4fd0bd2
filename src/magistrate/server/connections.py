"""Limits on connections: how many one address may have, and how long one may wait or stall.

Uvicorn waits for ever for the head of a request and limits only the number of all connections. One visitor,
without a token, could use up every file that the server may open, and nobody else would get in.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from ipaddress import ip_address, ip_network
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from magistrate.server.security.limits import network_of
from magistrate.server.settings import Settings

FILES = 1024  # open files at a time, if the system does not say
SHARE = 0.75  # of the open files, for connections
LEAST = 16

_REFUSAL = (
    b"HTTP/1.1 %s\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n"
    b"retry-after: 5\r\nconnection: close\r\n\r\n%s"
)
_TOO_MANY_OF_YOURS = b"too many connections from this address are open; close some or wait\n"
_TOO_MANY = b"too many connections are open; come again in a few seconds\n"
_TOO_SLOW = b"the head of the request did not come in time\n"


class ConnectionLimits:
    """Counts the open connections of a server and refuses those beyond a limit.

    One address may have `each`, where an IPv6 network of 64 bits counts as one; `proxies` (addresses and
    networks with commas between, or `*`) have no such limit. All together may have three quarters of the
    files that the process may open; beyond that the connection that has waited longest for the head of a
    request is closed.
    """

    def __init__(self, settings: Settings, proxies: str | None = None) -> None:
        self.head_seconds = settings.head_seconds
        self.write_seconds = settings.write_seconds
        self.most = max(LEAST, int(SHARE * open_files()))
        self.each = min(settings.connections_each, max(LEAST // 2, self.most // 2))
        self._proxies = [each.strip() for each in (proxies or "").split(",") if each.strip()]
        self._open = 0
        self._of: Counter[str] = Counter()
        self._waiting: OrderedDict[Protocol, None] = OrderedDict()  # for the head of a request, oldest first

    def admit(self, host: str) -> bytes | None:
        """Count a new connection of an address; a response if it is refused."""
        client = network_of(host)
        if self._of[client] >= self.each and not self._is_proxy(host):
            return _response(b"429 Too Many Requests", _TOO_MANY_OF_YOURS)
        if self._open >= self.most and not self._make_room():
            return _response(b"503 Service Unavailable", _TOO_MANY)
        self._open += 1
        self._of[client] += 1
        return None

    def release(self, protocol: Protocol, host: str) -> None:
        """A connection was closed."""
        client = network_of(host)
        self.head_received(protocol)
        self._open -= 1
        self._of[client] -= 1
        if not self._of[client]:
            del self._of[client]

    def wait_for_head(self, protocol: Protocol) -> None:
        """A connection begins to wait for the head of a request."""
        self._waiting[protocol] = None

    def head_received(self, protocol: Protocol) -> None:
        """The head of its request is there, or is not waited for any more."""
        self._waiting.pop(protocol, None)

    def _make_room(self) -> bool:
        if not self._waiting:
            return False
        oldest, _ = self._waiting.popitem(last=False)
        oldest.cut()
        return True

    def _is_proxy(self, host: str) -> bool:
        if "*" in self._proxies or host in self._proxies:
            return True
        try:
            address = ip_address(host)
            return any(address in ip_network(each, strict=False) for each in self._proxies)
        except ValueError:
            return False

    def protocol(self, *args: Any, **kwargs: Any) -> Protocol:
        """The protocol that uvicorn makes for each connection."""
        return Protocol(self, *args, **kwargs)


class Protocol(H11Protocol):
    """Uvicorn's protocol, with limits: it counts connections and closes stalled ones."""

    def __init__(self, limits: ConnectionLimits, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._host = ""
        self._refused = False
        self._counted = False
        self._head: asyncio.TimerHandle | None = None
        self._write: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("peername")
        self._host = str(peer[0]) if isinstance(peer, tuple) and peer else "unknown"
        if (refusal := self._limits.admit(self._host)) is not None:
            self._refused = True
            transport.write(refusal)
            transport.close()
            return
        self._counted = True
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        self._unset_write()
        if self._counted:
            self._counted = False
            self._limits.release(self, self._host)
        if not self._refused:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        before = self.cycle
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._head_is_there()
        elif self._head is None or self.cycle is not before:
            self._await_head()  # of the next request, or what is left of a body that nobody reads

    def eof_received(self) -> None:
        if not self._refused:
            super().eof_received()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unset_write()
        self._write = self.loop.call_later(self._limits.write_seconds, self.cut)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unset_write()

    def cut(self) -> None:
        """Close it now, and drop what is still to be sent."""
        self.transport.abort()

    def _await_head(self) -> None:
        self._head_is_there()
        if not self.transport.is_closing():
            self._head = self.loop.call_later(self._limits.head_seconds, self._too_slow)
            self._limits.wait_for_head(self)

    def _head_is_there(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None
        self._limits.head_received(self)

    def _too_slow(self) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is None:
            self.transport.write(_response(b"408 Request Timeout", _TOO_SLOW))
        self.transport.close()
        self._unset_write()
        self._write = self.loop.call_later(self._limits.write_seconds, self.cut)  # if it takes not even that

    def _unset_write(self) -> None:
        if self._write is not None:
            self._write.cancel()
            self._write = None


def open_files() -> int:
    """How many files this process may have open at a time."""
    try:
        import resource
    except ImportError:  # not on Windows
        return FILES
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES * 64 if soft == resource.RLIM_INFINITY else min(soft, FILES * 64)


def _response(status: bytes, text: bytes) -> bytes:
    return _REFUSAL % (status, len(text), text)
