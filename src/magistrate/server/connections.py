"""No visitor may keep more connections, or keep one for longer, than it takes to ask something.

Uvicorn waits for ever for the head of a request and counts connections for all together only. Without a token
one visitor could hold every file that the server may open, and nobody else would get in.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from ipaddress import ip_address, ip_network
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from magistrate.server.security.attempts import network_of
from magistrate.server.settings import Settings

FILES = 1024  # that may be open where the system does not say
SHARE = 0.75  # of them for connections
LEAST = 16

_REFUSAL = (
    b"HTTP/1.1 %s\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n"
    b"retry-after: 5\r\nconnection: close\r\n\r\n%s"
)
_TOO_MANY_OF_YOURS = b"too many connections from this address are open; close some or wait\n"
_TOO_MANY = b"too many connections are open; come again in a few seconds\n"
_TOO_SLOW = b"the head of the request did not come in time\n"


class Connections:
    """The connections of a server: how many there may be, and which are open.

    `each` is how many one address may have, an IPv6 network of 64 bits counting as one; those of `proxies`
    (addresses and networks with commas between, or `*`) have no limit of their own. All together have three
    quarters of the files that the process may open: beyond that the one that has waited longest for the head
    of a request makes room.
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

    def come(self, host: str) -> bytes | None:
        """Count a connection of an address; else what is said to it."""
        client = network_of(host)
        if self._of[client] >= self.each and not self._is_proxy(host):
            return _said(b"429 Too Many Requests", _TOO_MANY_OF_YOURS)
        if self._open >= self.most and not self._made_room():
            return _said(b"503 Service Unavailable", _TOO_MANY)
        self._open += 1
        self._of[client] += 1
        return None

    def gone(self, protocol: Protocol, host: str) -> None:
        """One that had come is closed."""
        client = network_of(host)
        self.heard(protocol)
        self._open -= 1
        self._of[client] -= 1
        if not self._of[client]:
            del self._of[client]

    def waits(self, protocol: Protocol) -> None:
        """It has to say what it wants."""
        self._waiting[protocol] = None

    def heard(self, protocol: Protocol) -> None:
        """It has said so."""
        self._waiting.pop(protocol, None)

    def _made_room(self) -> bool:
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
        """What uvicorn makes for each connection."""
        return Protocol(self, *args, **kwargs)


class Protocol(H11Protocol):
    """Uvicorn's, which counts connections and closes those that say or take nothing for too long."""

    def __init__(self, all_of_them: Connections, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._all = all_of_them
        self._host = ""
        self._refused = False
        self._counted = False
        self._head: asyncio.TimerHandle | None = None
        self._write: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("peername")
        self._host = str(peer[0]) if isinstance(peer, tuple) and peer else "unknown"
        if (told := self._all.come(self._host)) is not None:
            self._refused = True
            transport.write(told)
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
            self._all.gone(self, self._host)
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
        self._write = self.loop.call_later(self._all.write_seconds, self.cut)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unset_write()

    def cut(self) -> None:
        """Close it now, whatever is still to be sent."""
        self.transport.abort()

    def _await_head(self) -> None:
        self._head_is_there()
        if not self.transport.is_closing():
            self._head = self.loop.call_later(self._all.head_seconds, self._too_slow)
            self._all.waits(self)

    def _head_is_there(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None
        self._all.heard(self)

    def _too_slow(self) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is None:
            self.transport.write(_said(b"408 Request Timeout", _TOO_SLOW))
        self.transport.close()
        self._unset_write()
        self._write = self.loop.call_later(self._all.write_seconds, self.cut)  # if it takes not even that

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


def _said(status: bytes, told: bytes) -> bytes:
    return _REFUSAL % (status, len(told), told)
