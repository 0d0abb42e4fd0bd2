"""What the kept clients of servers share: one event loop in a thread, and answers of bounded size.

Connections belong to the event loop that opened them, and engines outlive loops (`asyncio.run` twice, a
notebook, a test): so all requests are made on one loop, whoever awaits them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import wait
from typing import Any, TypeVar

from magistrate.errors import EngineError, MagistrateError

T = TypeVar("T")

MOST_BYTES = 8 * 1024 * 1024  # of one answer
SLICE = 0.2  # seconds until a Ctrl-C is noticed at the latest

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


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


def bounding(kind: type, who: str) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """A response hook that lets no more than `MOST_BYTES` of an answer into memory.

    `kind` is the class of streams of the HTTP library. What comes compressed, though it was not asked for, is
    not read at all: a few bytes could become any number.
    """

    class Bounded(kind):  # type: ignore[misc]
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            taken = 0
            async for chunk in self._stream:
                taken += len(chunk)
                if taken > MOST_BYTES:
                    raise EngineError(f"{who} answered more than {MOST_BYTES // 2**20} MiB; that is not read")
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def hook(response: Any) -> None:
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise EngineError(f"{who} answered compressed, which was not asked for; that is not read")
        response.stream = Bounded(response.stream)

    return hook


def own_error(error: BaseException | None) -> MagistrateError | None:
    """The error of ours that an exception of a client was made of."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, MagistrateError):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def _own_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="magistrate-wire", daemon=True).start()
        return _loop
