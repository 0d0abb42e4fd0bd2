"""Connections to one server: bounded in time, in size and in number, and closed with who holds them."""

from __future__ import annotations

import asyncio
import json
import os
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from magistrate import _fork, _logging
from magistrate.engines.remote.redaction import without_keys
from magistrate.engines.remote.refusals import AnsweredError, engine_error, error_in
from magistrate.engines.remote.wire import awaited
from magistrate.errors import EngineError, InvalidOutput, MagistrateError

T = TypeVar("T")

MOST_BYTES = 8 * 1024 * 1024  # of one answer
LAST_EVENT = b"data: [DONE]"  # says that nothing more comes
CONNECT = 10.0  # seconds until a connection is there


class Connections:
    """Connections for an official client, as `http`; `who` names the engine in errors.

    What is asked over them takes `timeout` seconds at most, and on the loop of `wire`. Nothing is redirected:
    what is asked goes to the address that was named and to no other. Keys, `key` among them, are hidden in
    all that comes back.
    """

    def __init__(self, who: str, timeout: float, key: str = "") -> None:
        import httpx2

        self._who, self._timeout, self._key = who, timeout, key
        self._process = os.getpid()
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
        _fork.check_process(self._process, f"the engine of {self._who}")
        if self._closing is None:
            self._closing = weakref.finalize(self, _close, self.http, asyncio.get_running_loop())
            self._closing.atexit = False
        try:
            async with asyncio.timeout(self._timeout):
                return await reader(await ask())
        except Exception as error:  # whatever a client, a socket or a foreign answer brings about
            raise _own(error) or engine_error(error, self._who) from None

    async def json_of(self, response: Any) -> Any:
        """What an answer says in JSON. Raises `ValueError` where it is none, `InvalidOutput` where it cannot
        be read, and `AnsweredError` where it says that the server failed."""
        text = response.content.decode("utf-8-sig")
        return self._checked(from_json(text), text, response)

    async def events_of(self, stream: Any) -> list[Any]:
        """All events of a streamed answer, in order. Raises as `json_of`."""
        async with stream:
            with _readable():
                events = [event async for event in stream]
        return [self._checked(event, json.dumps(event), stream.response) for event in events]

    def without_keys(self, text: str) -> str:
        """A text of this server's as it may be kept: one that was streamed may have its keys in pieces."""
        return _logging.without_keys(text, (self._key,))

    def _checked(self, body: Any, text: str, response: Any) -> Any:
        if (error := error_in(body)) is not None:
            raise AnsweredError(error, response.request)
        if self.without_keys(text) == text:
            return body
        return without_keys(body, (self._key,))

    def close(self) -> None:
        """Close them; who forgets that leaves it to the garbage collector."""
        if self._closing is not None and os.getpid() == self._process:
            self._closing.detach()
            awaited(self.http.aclose())


def from_json(text: str) -> Any:
    """What a server's JSON says. Raises `JSONDecodeError` where it is none, and `InvalidOutput` where it is
    nested too deeply, has a number of too many digits or says a thing twice."""
    with _readable():
        return json.loads(text, object_pairs_hook=_unique)


@contextmanager
def _readable() -> Iterator[None]:
    """Raise `InvalidOutput` for JSON that Python does not read."""
    try:
        yield
    except RecursionError:
        raise InvalidOutput("the server's answer is JSON nested too deeply to be read") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:  # Python's own limit of digits
        raise InvalidOutput("the server's answer has a number of too many digits to be read") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise InvalidOutput("the server's answer is JSON that has a name twice in one object")
    return members


def _is_open(end: bytes) -> bool:
    """Whether a stream of events that ends so lacks the blank line behind its last event.

    Such an event is dropped unread. The mark that nothing more comes may be without it.
    """
    lines = end.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return not (lines.endswith(b"\n\n") or lines.strip() in (b"", b":") or lines.strip().endswith(LAST_EVENT))


def _bounding(kind: type, who: str) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """A response hook that lets no more than `MOST_BYTES` of an answer into memory, and no part of an event
    be lost.

    `kind` is the class of streams of the HTTP library. What comes compressed, though it was not asked for, is
    not read at all: a few bytes could become any number.
    """

    class Bounded(kind):  # type: ignore[misc]
        def __init__(self, stream: Any, of_events: bool) -> None:
            self._stream, self._of_events = stream, of_events

        async def __aiter__(self) -> AsyncIterator[bytes]:
            taken, end = 0, b""
            async for chunk in self._stream:
                taken += len(chunk)
                if taken > MOST_BYTES:
                    raise EngineError(f"{who} answered more than {MOST_BYTES // 2**20} MiB; that is not read")
                end = (end + chunk)[-len(LAST_EVENT) - 4 :]
                yield chunk
            if self._of_events and _is_open(end):
                raise EngineError(f"{who}: the stream broke off in the middle of an event")

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def hook(response: Any) -> None:
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise EngineError(f"{who} answered compressed, which was not asked for; that is not read")
        of_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        response.stream = Bounded(response.stream, of_events)

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
