"""The store as requests have it: one open store for each of those that are under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, LifoQueue
from typing import Annotated

from fastapi import Depends, Request

from magistrate.store import Store

BUSY_SECONDS = 5.0  # a page that waits longer for a write of another program's says so


class Stores:
    """Open stores at one place, used by one request at a time; what nobody uses waits for the next."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._waiting: LifoQueue[Store] = LifoQueue()

    @contextmanager
    def one(self) -> Iterator[Store]:
        """An open store of one's own for a while. Raises `StoreError` where it cannot be opened."""
        try:
            store = self._waiting.get_nowait()
        except Empty:
            store = Store.open(self._place, busy_seconds=BUSY_SECONDS)
        try:
            yield store
        finally:
            self._waiting.put(store)

    def close(self) -> None:
        """Close what nobody uses."""
        while True:
            try:
                self._waiting.get_nowait().close()
            except Empty:
                return


def stores_of(request: Request) -> Stores:
    """The stores of the application that a request came to."""
    found: Stores = request.app.state.stores
    return found


def _a_store(request: Request) -> Iterator[Store]:
    with stores_of(request).one() as store:
        yield store


AStore = Annotated[Store, Depends(_a_store)]
"""An endpoint's own open store, for as long as the request lasts."""
