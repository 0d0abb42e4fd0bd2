"""Limits per visitor: guesses of the token, request bodies, connections, and time."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from hmac import compare_digest
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Literal
from weakref import WeakValueDictionary

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from magistrate import _logging
from magistrate.errors import StoreError
from magistrate.server.responses import refusal
from magistrate.server.roles import WITH_TOKEN, FindUser, Visitor, visitor_as
from magistrate.server.settings import Settings
from magistrate.store.users import digest

# --- guesses of the token -------------------------------------------------------------------------


FREE = 5  # wrong tokens per address within WINDOW before it has to wait
WINDOW = 60.0
ALARM = 60  # wrong tokens of all addresses within WINDOW, from which on an address has no free one
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0
FORGOTTEN = 3600.0  # an address without wrong tokens for so long starts over
IN_LINE = 3  # waiting requests per address; more are refused
MOST_IN_LINE = 256  # waiting requests of all addresses
SEEN = 16  # wrong tokens remembered per address
MOST_ADDRESSES = 10_000  # addresses remembered
POLL = 0.25  # seconds

TokenCheck = Visitor | Literal["wrong", "later"]

_log = _logging.get("server")


@dataclass(slots=True)
class _Record:
    since: float
    last: float
    failures: int = 0  # within WINDOW, as long as there is no wait
    wait: float = 0.0
    in_line: int = 0
    line: asyncio.Lock = field(default_factory=asyncio.Lock)
    seen: deque[bytes] = field(default_factory=lambda: deque(maxlen=SEEN))


class TokenAttempts:
    """Finds whose tokens are, the server's or a user's, and slows down guessing.

    After `FREE` wrong tokens of an address within a minute, its further tokens, right or wrong, are checked
    one after another, each some time after the last wrong one: 1 second, then 2, 4, … up to half a minute.
    So an address cannot guess faster than that. Nobody is locked out, even behind the same address as an
    attacker: a right token waits in the same queue, and is refused only if the queue is full. Addresses
    without wrong tokens never wait, however many others guess. While many addresses guess, a single wrong
    token is enough to have to wait. Repeating the same wrong token does not count.

    Times are seconds of `clock`. At most `MOST_ADDRESSES` addresses are remembered, those with the latest
    failures.
    """

    def __init__(
        self, token: str | None, clock: Callable[[], float], find_user: FindUser | None = None
    ) -> None:
        self._token = None if token is None else digest(token.encode())
        self._find_user = find_user
        self._clock = clock
        self._records: OrderedDict[str, _Record] = OrderedDict()
        self._in_line = 0
        self._lately: deque[float] = deque(maxlen=ALARM)  # times of the last wrong tokens of all addresses
        self._looking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def visitor(self, token: bytes) -> Visitor | None:
        """Return who has the token with this digest, without counting. Raises `StoreError`."""
        if self._is_servers(token):
            return WITH_TOKEN
        user = None if self._find_user is None else await run_in_threadpool(self._find_user, token)
        return None if user is None else visitor_as(user)

    async def check(self, client: str, given: bytes) -> TokenCheck:
        """Check a token of this address when its turn comes; `later` if too many are waiting already.

        Raises `StoreError` if it may be a user's and the store cannot be read.
        """
        if not self._waits(client):
            if self._is_servers(digest(given)):
                return WITH_TOKEN
            # One look into the store after the other, so that each guess is counted before the next one.
            lock = self._looking.setdefault(client, asyncio.Lock())
            async with lock:
                if not self._waits(client):
                    return await self._compared(client, given)
        record = self._records[client]
        if digest(given) in record.seen:
            return "wrong"
        if record.in_line >= IN_LINE or self._in_line >= MOST_IN_LINE:
            return "later"
        record.in_line += 1
        self._in_line += 1
        try:
            async with record.line:
                while (left := record.last + record.wait - self._clock()) > 0:  # noqa: ASYNC110 - our clock
                    await asyncio.sleep(min(left, POLL))
                return await self._compared(client, given)
        finally:
            record.in_line -= 1
            self._in_line -= 1

    def wait(self, client: str) -> float:
        """Return the seconds until a token sent now from this address would be checked; 0 for at once."""
        record = self._record(client)
        if record is None or not record.wait:
            return 0.0
        return max(0.0, record.last + record.wait - self._clock()) + record.in_line * record.wait

    def _is_servers(self, token: bytes) -> bool:
        return self._token is not None and compare_digest(token, self._token)  # constant time

    def _waits(self, client: str) -> bool:
        record = self._record(client)
        return record is not None and record.wait > 0

    def _record(self, client: str) -> _Record | None:
        record = self._records.get(client)
        if record is not None and self._clock() - record.last > FORGOTTEN:
            del self._records[client]
            return None
        return record

    async def _compared(self, client: str, given: bytes) -> TokenCheck:
        try:
            visitor = await self.visitor(digest(given))
        except StoreError:
            # A guess counts also while users cannot be looked up, since it may be one at the server's token.
            self._note_wrong(client, given)
            raise
        if visitor is None:
            self._note_wrong(client, given)
        return visitor or "wrong"

    def _note_wrong(self, client: str, given: bytes) -> None:
        now = self._clock()
        record = self._records.pop(client, None) or _Record(now, now)
        self._records[client] = record
        while len(self._records) > MOST_ADDRESSES:
            self._records.popitem(last=False)
        if digest(given) not in record.seen:
            record.seen.append(digest(given))
            self._count(record, client, now)

    def _count(self, record: _Record, client: str, now: float) -> None:
        if now - record.since > WINDOW:
            record.since, record.failures = now, 0
        record.last = now
        record.failures += 1
        alarm = len(self._lately) == ALARM and now - self._lately[0] <= WINDOW
        self._lately.append(now)
        if record.wait:
            record.wait = min(2 * record.wait, LONGEST_WAIT)
        elif alarm or record.failures >= FREE:
            record.wait = FIRST_WAIT
            _log.warning("server.wrong_tokens", client=client, wait_seconds=record.wait)


def client_of(scope: Scope) -> str:
    """Return the client for which attempts are counted: an address, or for IPv6 the visitor's network."""
    client = scope.get("client")
    return network_of(client[0]) if client else "unknown"


def network_of(host: str) -> str:
    """Return what identifies a visitor: an IPv4 address, or the 64-bit network of an IPv6 address.

    >>> network_of("::ffff:192.0.2.7"), network_of("2001:db8:1:2:3:4:5:6")
    ('192.0.2.7', '2001:db8:1:2::')
    """
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(IPv6Address(int(address) >> 64 << 64))
    return str(address)


# --- request bodies -------------------------------------------------------------------------------

DRAIN_SECONDS = 2.0

_DISCONNECT: Message = {"type": "http.disconnect"}


class BodyLimits:
    """Rejects a body that is too long (413) or too slow (408).

    If the announced length is too long, the body is rejected before a byte is read. Without a length, bytes
    are counted. An application that is already reading sees a disconnect, and its response is dropped.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most_bytes = self._settings.most_bytes(scope["path"])
        if _announced(scope) > most_bytes:
            await self._turn_away(413, scope, receive, send)
            return
        body = _Body(most_bytes, self._settings.body_seconds, receive, send)
        try:
            await self._app(scope, body.receive, body.send)
        except Exception:
            if body.refused is None:
                raise
        if body.refused is not None and not body.answered:
            await self._turn_away(body.refused, scope, receive, send)

    async def _turn_away(self, status: int, scope: Scope, receive: Receive, send: Send) -> None:
        messages = {
            408: f"the body of the request did not arrive within {self._settings.body_seconds:g} seconds",
            413: f"the body of a request has more than {self._settings.most_bytes(scope['path']):,} bytes",
        }

        async def held_open(message: Message) -> None:
            await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

        answer = refusal(scope, status, messages[status], {"connection": "close"})
        await answer(scope, receive, held_open)
        if status == 413:
            await _drain(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Body:
    """One request's incoming body, and the outgoing response to it."""

    def __init__(self, most_bytes: int, seconds: float, receive: Receive, send: Send) -> None:
        self._most_bytes = most_bytes
        self._seconds = seconds
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
            self._ends = asyncio.get_running_loop().time() + self._seconds
        try:
            async with asyncio.timeout_at(self._ends):
                message = await self._receive()
        except TimeoutError:
            self.refused = 408
            return _DISCONNECT
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            if self._read > self._most_bytes:
                self.refused = 413
                return _DISCONNECT
        return message

    async def send(self, message: Message) -> None:
        if self.refused is not None and not self.answered:
            return
        self.answered = True
        await self._send(message)


async def _drain(receive: Receive) -> None:
    """Read on for a moment: a client that is cut off while sending may never see the response."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            more = True
            while more:
                message = await receive()
                more = message["type"] == "http.request" and message.get("more_body", False)


def _announced(scope: Scope) -> int:
    """Return the announced length in bytes. For an absurdly long number, the first digits are enough."""
    length = Headers(scope=scope).get("content-length", "0")
    return int(length[:20]) if length.isascii() and length.isdigit() else 0


# --- connections ----------------------------------------------------------------------------------
#
# Uvicorn waits forever for the head of a request and limits only the number of all connections. One visitor
# without a token could use up every file that the server may open, and lock out everybody else.


FILES = 1024  # default limit of open files
SHARE = 0.75  # share of open files used for connections
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

    One address may have `each`, where a 64-bit IPv6 network counts as one. `proxies` (addresses and
    networks separated by commas, or `*`) have no such limit. All together may use three quarters of the
    files that the process may open. Beyond that, the connection that has waited longest for the head of a
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
        self._waiting: OrderedDict[Protocol, None] = OrderedDict()  # for a request head, oldest first

    def admit(self, host: str) -> bytes | None:
        """Count a new connection of an address. Returns a response if it is refused."""
        client = network_of(host)
        if self._of[client] >= self.each and not self._is_proxy(host):
            return _response(b"429 Too Many Requests", _TOO_MANY_OF_YOURS)
        if self._open >= self.most and not self._make_room():
            return _response(b"503 Service Unavailable", _TOO_MANY)
        self._open += 1
        self._of[client] += 1
        return None

    def release(self, protocol: Protocol, host: str) -> None:
        """Record that a connection was closed."""
        client = network_of(host)
        self.head_received(protocol)
        self._open -= 1
        self._of[client] -= 1
        if not self._of[client]:
            del self._of[client]

    def wait_for_head(self, protocol: Protocol) -> None:
        """Record that a connection waits for the head of a request."""
        self._waiting[protocol] = None

    def head_received(self, protocol: Protocol) -> None:
        """Record that a connection received the head of its request, or does not wait for it any more."""
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
        """Create uvicorn's protocol for a connection."""
        return Protocol(self, *args, **kwargs)


class Protocol(H11Protocol):
    """Uvicorn's protocol with limits: it counts connections and closes stalled ones."""

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
            self._await_head()  # of the next request, or the rest of a body that is not read

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
        """Close the connection now, and drop unsent data."""
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
        self._write = self.loop.call_later(self._limits.write_seconds, self.cut)  # if it does not read this

    def _unset_write(self) -> None:
        if self._write is not None:
            self._write.cancel()
            self._write = None


def open_files() -> int:
    """Return how many files this process may have open."""
    try:
        import resource
    except ImportError:  # Windows
        return FILES
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES * 64 if soft == resource.RLIM_INFINITY else min(soft, FILES * 64)


def _response(status: bytes, text: bytes) -> bytes:
    return _REFUSAL % (status, len(text), text)
