"""Open stores for requests and background jobs, each used by one of them at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, LifoQueue
from typing import Annotated

from fastapi import Depends, Request

from magistrate.store import Store

BUSY_SECONDS = 5.0  # how long a page waits for another program's write before it says so


class StorePool:
    """Open stores at one place; one that nobody uses waits for the next request."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._waiting: LifoQueue[Store] = LifoQueue()

    @contextmanager
    def one(self) -> Iterator[Store]:
        """An open store for the duration of the block. Raises `StoreError` if it cannot be opened."""
        try:
            store = self._waiting.get_nowait()
        except Empty:
            store = Store.open(self._place, busy_seconds=BUSY_SECONDS)
        try:
            yield store
        finally:
            self._waiting.put(store)

    def close(self) -> None:
        """Close the stores that nobody uses."""
        while True:
            try:
                self._waiting.get_nowait().close()
            except Empty:
                return


def stores_of(request: Request) -> StorePool:
    """The stores of the application that a request came to."""
    found: StorePool = request.app.state.stores
    return found


def _request_store(request: Request) -> Iterator[Store]:
    with stores_of(request).one() as store:
        yield store


RequestStore = Annotated[Store, Depends(_request_store)]
"""An endpoint's own open store, for as long as the request lasts."""
