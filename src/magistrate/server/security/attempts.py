"""How often a visitor may show a wrong token."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Literal

from starlette.types import Scope

from magistrate import _logging
from magistrate.server.security.sessions import hashed, same

FREE = 5  # wrong tokens of an address within WINDOW until it has to wait
WINDOW = 60.0
ALARM = 60  # wrong tokens of all addresses within WINDOW: from then on the first of an address is not free
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0
FORGOTTEN = 3600.0  # without a wrong token, an address begins anew
IN_LINE = 3  # requests of an address that wait; more are not looked at
MOST_IN_LINE = 256  # of all addresses
SEEN = 16  # wrong tokens of an address that are known again
MOST = 10_000  # addresses remembered
POLL = 0.25  # seconds

Answer = Literal["right", "wrong", "later"]

_log = _logging.get("server")


@dataclass(slots=True)
class _Record:
    since: float
    last: float
    failures: int = 0  # within WINDOW, while there is no wait
    wait: float = 0.0
    in_line: int = 0
    line: asyncio.Lock = field(default_factory=asyncio.Lock)
    seen: deque[bytes] = field(default_factory=lambda: deque(maxlen=SEEN))


class Attempts:
    """Compares tokens with the right one, and makes guessing slow.

    After `FREE` wrong tokens of an address within a minute each further token of it, right or wrong, is
    looked at one after the other, and a while after the last wrong one: 1 second, then 2, 4, … up to half a
    minute. So an address cannot guess faster than that, and still nobody is locked out, not even behind one
    address with somebody who guesses: a right token has to wait in the same line, and only where the line is
    full is it sent away. Addresses that showed no wrong token wait for nobody, however much others guess;
    while many guess, the first wrong one is enough. The same wrong token again teaches nothing and does not
    count.

    Times are seconds of `clock`. At most `MOST` addresses are remembered, those that failed last.
    """

    def __init__(self, token: str | None, clock: Callable[[], float]) -> None:
        self._token = token
        self._clock = clock
        self._records: OrderedDict[str, _Record] = OrderedDict()
        self._in_line = 0
        self._lately: deque[float] = deque(maxlen=ALARM)  # when the last wrong tokens of all addresses came

    async def check(self, client: str, given: bytes) -> Answer:
        """What a token of this address is, once it may be looked at; `later` where too many wait already."""
        if self._token is None:
            return "wrong"
        record = self._record(client)
        if record is None or not record.wait:
            return self._looked_at(client, given)
        if hashed(given) in record.seen:
            return "wrong"
        if record.in_line >= IN_LINE or self._in_line >= MOST_IN_LINE:
            return "later"
        record.in_line += 1
        self._in_line += 1
        try:
            async with record.line:
                while (left := record.last + record.wait - self._clock()) > 0:  # noqa: ASYNC110 - our clock
                    await asyncio.sleep(min(left, POLL))
                return self._looked_at(client, given)
        finally:
            record.in_line -= 1
            self._in_line -= 1

    def wait(self, client: str) -> float:
        """Seconds until a token of this address that comes now would be looked at; 0 for at once."""
        record = self._record(client)
        if record is None or not record.wait:
            return 0.0
        return max(0.0, record.last + record.wait - self._clock()) + record.in_line * record.wait

    def _record(self, client: str) -> _Record | None:
        record = self._records.get(client)
        if record is not None and self._clock() - record.last > FORGOTTEN:
            del self._records[client]
            return None
        return record

    def _looked_at(self, client: str, given: bytes) -> Answer:
        assert self._token is not None
        if same(given, self._token):
            return "right"
        now = self._clock()
        record = self._records.pop(client, None) or _Record(now, now)
        self._records[client] = record
        while len(self._records) > MOST:
            self._records.popitem(last=False)
        if hashed(given) not in record.seen:
            record.seen.append(hashed(given))
            self._count(record, client, now)
        return "wrong"

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
    """Whom attempts are counted for: an address; of IPv6 a network, which one visitor has whole."""
    client = scope.get("client")
    return network_of(client[0]) if client else "unknown"


def network_of(host: str) -> str:
    """An address as visitors are told apart by it; of IPv6 its network of 64 bits.

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
