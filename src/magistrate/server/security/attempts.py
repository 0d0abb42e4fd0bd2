"""How often a visitor may show a wrong token."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from starlette.types import Scope

FREE = 5  # wrong tokens within WINDOW
WINDOW = 60.0
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 3600.0
FORGOTTEN = 2 * LONGEST_PAUSE  # without a wrong token, an address begins anew
MOST = 10_000  # addresses remembered


@dataclass(slots=True)
class _Record:
    since: float
    last: float
    failures: int = 0
    pauses: int = 0
    until: float = 0.0


class Attempts:
    """Counts wrong tokens by address: after five in a minute comes a pause of a minute, then of two, four, …

    Times are seconds of `clock`. What is tried during a pause does not lengthen it. At most `MOST`
    addresses are remembered, those that failed last.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._records: OrderedDict[str, _Record] = OrderedDict()

    def pause(self, client: str) -> float:
        """Seconds until a wrong token of this address is looked at again; 0 for at once."""
        record = self._records.get(client)
        return max(0.0, record.until - self._clock()) if record else 0.0

    def failed(self, client: str) -> float:
        """Note a wrong token; the pause that begins with it, in seconds, or 0."""
        now = self._clock()
        record = self._records.pop(client, None)
        if record is None or now - record.last > FORGOTTEN:
            record = _Record(now, now)
        if now - record.since > WINDOW:
            record.since, record.failures = now, 0
        record.last = now
        record.failures += 1
        pause = 0.0
        if record.failures >= FREE:
            # The exponent is bounded, so that years of failures do not overflow.
            pause = min(FIRST_PAUSE * 2 ** min(record.pauses, 30), LONGEST_PAUSE)
            record.until, record.since, record.failures = now + pause, now + pause, 0
            record.pauses += 1
        self._records[client] = record
        while len(self._records) > MOST:
            self._records.popitem(last=False)
        return pause


def client_of(scope: Scope) -> str:
    """Whom attempts are counted for: an address; of IPv6 a network, which one visitor has whole."""
    client = scope.get("client")
    if not client:
        return "unknown"
    try:
        address = ip_address(client[0])
    except ValueError:
        return str(client[0])
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(IPv6Address(int(address) >> 64 << 64))
    return str(address)
