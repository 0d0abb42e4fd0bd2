"""Connections to one server: bounded in time, in size and in number, and closed with who holds them."""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from magistrate.engines.remote.refusals import engine_error
from magistrate.engines.remote.wire import awaited
from magistrate.errors import EngineError, InvalidOutput, MagistrateError

T = TypeVar("T")

MOST_BYTES = 8 * 1024 * 1024  # of one answer
CONNECT = 10.0  # seconds until a connection is there


class Connections:
    """Connections for an official client, as `http`; `who` names the engine in errors.

    What is asked over them takes `timeout` seconds at most, and on the loop of `wire`. Nothing is redirected:
    what is asked goes to the address that was named and to no other.
    """

    def __init__(self, who: str, timeout: float) -> None:
        import httpx2

        self._who, self._timeout = who, timeout
        self.http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(timeout, connect=min(CONNECT, timeout)),
            limits=httpx2.Limits(max_connections=1000, max_keepalive_connections=100),
            follow_redirects=False,
            headers={"Accept-Encoding": "identity"},
            event_hooks={"response": [_bounding(httpx2.AsyncByteStream, who)]},
        )
        self._closing: weakref.finalize[Any, Any] | None = None

    async def answered(self, ask: Callable[[], Awaitable[Any]], reader: Callable[[Any], Awaitable[T]]) -> T:
        """What `reader` makes of the answer to `ask`. Raises an `EngineError` or `OverLength`."""
        if self._closing is None:
            self._closing = weakref.finalize(self, _close, self.http, asyncio.get_running_loop())
            self._closing.atexit = False
        try:
            async with asyncio.timeout(self._timeout):
                return await reader(await ask())
        except Exception as error:  # whatever a client, a socket or a foreign answer brings about
            raise _own(error) or engine_error(error, self._who) from None

    def close(self) -> None:
        """Close them; who forgets that leaves it to the garbage collector."""
        if self._closing is not None:
            self._closing.detach()
            awaited(self.http.aclose())


async def json_of(response: Any) -> Any:
    """What an answer says in JSON. Raises `ValueError` where it is none, `InvalidOutput` where it is nested
    too deeply."""
    try:
        return json.loads(response.content)
    except RecursionError:
        raise InvalidOutput("the server's answer is JSON nested too deeply to be read") from None


async def events_of(stream: Any) -> list[Any]:
    """All events of a streamed answer, in order."""
    async with stream:
        return [event async for event in stream]


def _bounding(kind: type, who: str) -> Callable[[Any], Coroutine[Any, Any, None]]:
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


def _own(error: BaseException | None) -> MagistrateError | None:
    """The error of ours that an exception of a client was made of."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, MagistrateError):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def _close(http: Any, loop: asyncio.AbstractEventLoop) -> None:
    asyncio.run_coroutine_threadsafe(http.aclose(), loop)
