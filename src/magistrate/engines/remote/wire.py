"""The one event loop, in a thread of its own, on which the kept clients of all servers work.

Connections belong to the event loop that opened them, and engines outlive loops (`asyncio.run` twice, a
notebook, a test): so all requests are made on one loop, whoever awaits them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import wait
from typing import Any, TypeVar

from magistrate import _fork

T = TypeVar("T")

SLICE = 0.2  # seconds until a Ctrl-C is noticed at the latest

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_left: list[Any] = []  # a parent's loop: in the child it is neither run nor closed


def _forget() -> None:
    """After a fork the loop's thread is gone: begin anew."""
    global _lock, _loop
    _left.append(_loop)
    _lock, _loop = threading.Lock(), None


_fork.in_child(_forget)


async def carried(work: Coroutine[Any, Any, T]) -> T:
    """What `work` answers, done on the clients' loop."""
    loop = _own_loop()
    if asyncio.get_running_loop() is loop:
        return await work
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


def awaited(work: Coroutine[Any, Any, T]) -> T:
    """As `carried`, for callers that cannot await."""
    future = asyncio.run_coroutine_threadsafe(work, _own_loop())
    try:
        # In slices: a signal that another thread has received does not wake one that waits for a lock.
        while not wait([future], timeout=SLICE).done:
            pass
    except KeyboardInterrupt:
        future.cancel()
        raise
    return future.result()


def _own_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="magistrate-wire", daemon=True).start()
        return _loop
