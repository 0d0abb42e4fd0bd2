"""The one place where synchronous callers meet the async core: a loop in a thread of its own.

It works under a running loop too, as in a notebook, because it never touches the caller's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

CLEAN_UP = 60.0  # seconds that cancelled work gets to put things in order

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and answer its result; Ctrl-C cancels it and waits until it has cleaned up."""
    loop = _background_loop()
    if threading.current_thread() is _thread:
        work.close()
        raise RuntimeError(
            "this is a synchronous call inside async work of Magistrate; await the async twin instead"
        )
    ended = threading.Event()

    async def tracked() -> T:
        try:
            return await work
        finally:
            ended.set()

    future = asyncio.run_coroutine_threadsafe(tracked(), loop)
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        ended.wait(CLEAN_UP)
        raise


def _background_loop() -> asyncio.AbstractEventLoop:
    global _loop, _thread
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            _thread = threading.Thread(target=_loop.run_forever, name="magistrate-loop", daemon=True)
            _thread.start()
        return _loop
