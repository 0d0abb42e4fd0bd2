"""What was worked out for one page and will be asked for again: kept while there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar, cast

from fastapi import Request

from magistrate.server.answers import Answer, Answers, Refused
from magistrate.server.stores import Stores
from magistrate.store import Snapshot

ROOM = 64

T = TypeVar("T")


class Memory:
    """Values by keys that name everything they depend on; what nobody has asked for the longest goes first.

    All methods may be called from any thread.
    """

    def __init__(self, stores: Stores, answers: Answers, room: int = ROOM) -> None:
        self._stores = stores
        self._answers = answers
        self._room = room
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = Lock()

    def known(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` gave for this key before, or gives now; None is not kept."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return cast("T", self._kept[key])
        made = make()
        if made is None:
            return made
        with self._lock:
            self._kept[key] = made
            self._kept.move_to_end(key)
            while len(self._kept) > self._room:
                self._kept.popitem(last=False)
        return made

    def aside(self, key: Hashable, make: Callable[[Snapshot], T]) -> T | Refused | None:
        """What `make` gave of the store for this key, or why it gives nothing; None while it is at it."""

        def work() -> T:
            with self._stores.one() as store, store.snapshot() as moment:
                return make(moment)

        found = self._answers.ask(key, work)
        if isinstance(found, Answer):
            return found.value
        return found if isinstance(found, Refused) else None


def memory_of(request: Request) -> Memory:
    """The memory of the application that a request came to."""
    found: Memory = request.app.state.memory
    return found
