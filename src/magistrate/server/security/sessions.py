"""Who is signed in: random ids in memory, gone when the server ends."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from hmac import compare_digest

MOST = 1_000


class Sessions:
    """Sessions that last `seconds` of `clock`; at most `MOST` at a time, the newest ones.

    Only hashes of ids are kept, so how long looking one up takes says nothing of other ids.
    """

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self.seconds = seconds
        self._clock = clock
        self._ends: OrderedDict[bytes, float] = OrderedDict()

    def begin(self) -> str:
        """The id of a new session."""
        while self._ends and (len(self._ends) >= MOST or next(iter(self._ends.values())) <= self._clock()):
            self._ends.popitem(last=False)
        made = secrets.token_urlsafe(32)
        self._ends[_kept(made)] = self._clock() + self.seconds
        return made

    def held(self, given: str) -> bool:
        """Is it the id of a session that has not ended?"""
        return self._ends.get(_kept(given), float("-inf")) > self._clock()

    def end(self, given: str) -> None:
        """End that session, if it is one."""
        self._ends.pop(_kept(given), None)


def same(given: bytes, token: str) -> bool:
    """Are they equal? How long it takes says nothing of how much of them is."""
    return compare_digest(hashed(given), hashed(token.encode()))


def hashed(given: bytes) -> bytes:
    """What is kept of a secret, or of what somebody took for one."""
    return sha256(given).digest()


def _kept(given: str) -> bytes:
    return hashed(given.encode("utf-8", "surrogatepass"))
