"""The client of one server: an official package, with bounded time, size and number of connections.

Connections belong to the event loop that opened them, and engines outlive loops (`asyncio.run` twice, a
notebook, a test). So all requests are made on one loop, in a thread of its own, whoever awaits them.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import wait
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

from magistrate import _fork, _logging
from magistrate.engines.remote.errors import ServerSaysError, engine_error
from magistrate.engines.remote.redaction import without_keys
from magistrate.errors import EngineError, InvalidOutput, MagistrateError, MissingExtra

T = TypeVar("T")

MOST_BYTES = 8 * 1024 * 1024  # of one answer
CONNECT = 10.0  # seconds until a connection is there
SLICE = 0.2  # seconds until Ctrl-C is noticed at the latest
LAST_EVENT = b"data: [DONE]"  # the end of a stream of events


class Requests(Protocol):
    """Something that sends requests to a server: a `Client`, or a wrapper around one."""

    base_url: str
    who: str

    async def post(self, path: str, body: dict[str, Any]) -> Any: ...

    async def get(self, path: str) -> Any: ...

    async def stream(self, path: str, body: dict[str, Any]) -> list[Any]: ...

    def without_keys(self, text: str) -> str: ...


class Client:
    """Sends requests to the server at `base_url` through `package`; `who` names the engine in errors.

    A call takes `timeout` seconds at most, and the size of an answer is bounded. Nothing is retried here (see
    `retry`). Redirects are not followed: a request goes to the given address and to no other. Keys, `key`
    among them, are hidden in everything that comes back.
    A `path` that begins with `/` is under the server's root, others are under `base_url`. Requests raise an
    `EngineError` or `OverLength`. Raises `MissingExtra` if `package` is not installed.
    """

    def __init__(
        self, package: Literal["openai", "anthropic"], base_url: str, key: str, who: str, timeout: float
    ) -> None:
        try:
            import httpx2

            official, self._stream = _official(package)
        except ImportError:
            raise MissingExtra(package, package) from None
        self.base_url = base_url.rstrip("/")
        self.root = self.base_url.removesuffix("/v1")
        self.who, self.timeout, self._key = who, timeout, key
        self.http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(timeout, connect=min(CONNECT, timeout)),
            limits=httpx2.Limits(max_connections=1000, max_keepalive_connections=100),
            follow_redirects=False,
            headers={"Accept-Encoding": "identity"},
            event_hooks={"response": [_bounding(httpx2.AsyncByteStream, who)]},
        )
        self._api = official(
            api_key=key, base_url=self.base_url, max_retries=0, timeout=timeout, http_client=self.http
        )
        self._response = httpx2.Response
        self._process = os.getpid()
        self._closing: weakref.finalize[Any, Any] | None = None

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON answer to `body`."""
        return await self._ask(
            lambda: self._api.post(self._url(path), cast_to=self._response, body=body), self._json_of
        )

    async def get(self, path: str) -> Any:
        """The JSON answer at `path`."""
        return await self._ask(lambda: self._api.get(self._url(path), cast_to=self._response), self._json_of)

    async def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The JSON events of a streamed answer, in order."""
        return await self._ask(
            lambda: self._api.post(
                self._url(path), cast_to=object, body=body, stream=True, stream_cls=self._stream
            ),
            self._events_of,
        )

    def without_keys(self, text: str) -> str:
        """`text` with keys hidden; a streamed text may have had one in pieces."""
        return _logging.without_keys(text, (self._key,))

    def close(self) -> None:
        """Close the connections; otherwise garbage collection does."""
        if self._closing is not None and os.getpid() == self._process:
            self._closing.detach()
            run_on_io_loop(self.http.aclose())

    # --- one request -----------------------------------------------------------------------------

    def _url(self, path: str) -> str:
        return f"{self.root}{path}" if path.startswith("/") else f"{self.base_url}/{path}"

    async def _ask(self, send: Callable[[], Awaitable[Any]], read: Callable[[Any], Awaitable[T]]) -> T:
        """What `read` makes of the response that `send` gets."""
        return await on_io_loop(self._bounded(send, read))

    async def _bounded(self, send: Callable[[], Awaitable[Any]], read: Callable[[Any], Awaitable[T]]) -> T:
        _fork.check_process(self._process, f"the engine of {self.who}")
        if self._closing is None:
            self._closing = weakref.finalize(self, _close, self.http, asyncio.get_running_loop())
            self._closing.atexit = False
        try:
            async with asyncio.timeout(self.timeout):
                return await read(await send())
        except Exception as error:  # whatever a package, a socket or a malformed answer raises
            raise _own_error(error) or engine_error(error, self.who) from None

    async def _json_of(self, response: Any) -> Any:
        """A response's JSON. Raises `ValueError` if it is none, `InvalidOutput` if it cannot be read, and
        `ServerSaysError` if it says that the server failed."""
        text = response.content.decode("utf-8-sig")
        return self._checked(from_json(text), text, response)

    async def _events_of(self, stream: Any) -> list[Any]:
        """All events of a streamed response, in order. Raises as `_json_of`."""
        async with stream:
            with _readable():
                events = [event async for event in stream]
        return [self._checked(event, json.dumps(event), stream.response) for event in events]

    def _checked(self, body: Any, text: str, response: Any) -> Any:
        if (error := error_in(body)) is not None:
            raise ServerSaysError(error, response.request)
        if self.without_keys(text) == text:
            return body
        return without_keys(body, (self._key,))


def _official(package: Literal["openai", "anthropic"]) -> tuple[Callable[..., Any], type]:
    """The package's client class, and its class of streams."""
    if package == "openai":
        import openai

        return openai.AsyncOpenAI, openai.AsyncStream[object]
    import anthropic

    return partial(anthropic.AsyncAnthropic, open_telemetry=False), anthropic.AsyncStream[object]


def _own_error(error: BaseException | None) -> MagistrateError | None:
    """The error of this package that a client's exception was raised from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, MagistrateError):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def _close(http: Any, loop: asyncio.AbstractEventLoop) -> None:
    asyncio.run_coroutine_threadsafe(http.aclose(), loop)


# --- reading bytes -------------------------------------------------------------------------------


def from_json(text: str) -> Any:
    """A server's JSON. Raises `JSONDecodeError` if it is none, and `InvalidOutput` if it is nested too
    deeply, has a number of too many digits or a name twice in one object."""
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


# Names of errors in answers with the status of success, and words of a status that is none.
ERRORS = ("errors", "error_code", "error_message", "error_msg")
NO_ERROR = (None, "", 0, "0")
UNSUCCESSFUL = ("failed", "failure", "error", "incomplete", "cancelled", "canceled", "expired")


def error_in(body: object) -> object:
    """The error that an answer names, itself or in a choice or message of it; None if it names none.

    Servers and gateways spell it `error`, `errors`, `error_message` and the like, `success: false` or a
    `status` other than success.
    """
    if not isinstance(body, Mapping):
        return None
    if body.get("object") == "error" or body.get("type") == "error":
        return body
    for part in _parts(body):
        if (error := part.get("error")) not in (None, "", False):
            return {"error": error}
        if error := next((part[name] for name in ERRORS if part.get(name) not in (*NO_ERROR, [], {})), None):
            return {"error": error}
        if part.get("success") is False or str(part.get("status")).lower() in UNSUCCESSFUL:
            return {"error": part.get("message") or f"status {part.get('status', 'of no success')}"}
    return None


def _parts(body: Mapping[Any, Any]) -> Iterator[Mapping[Any, Any]]:
    """An answer, its choices and their messages."""
    yield body
    choices = body.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        if isinstance(choice, Mapping):
            yield choice
            yield from (
                each for name in ("message", "delta") if isinstance(each := choice.get(name), Mapping)
            )


def _bounding(kind: type, who: str) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """A response hook that reads at most `MOST_BYTES` of an answer and refuses a stream cut within an event.

    `kind` is the class of streams of the HTTP library. Compressed answers, which were not asked for, are not
    read at all: a few bytes could become any number.
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


def _is_open(end: bytes) -> bool:
    """Whether a stream of events that ends with `end` lacks the blank line behind its last event.

    The packages drop such an event unread. The mark that ends the stream may be without a blank line.
    """
    lines = end.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return not (lines.endswith(b"\n\n") or lines.strip() in (b"", b":") or lines.strip().endswith(LAST_EVENT))


# --- the loop of all requests --------------------------------------------------------------------

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_left: list[Any] = []  # a parent's loop: in the child it is neither run nor closed


def _forget() -> None:
    """After a fork the loop's thread is gone: begin anew."""
    global _lock, _loop
    _left.append(_loop)
    _lock, _loop = threading.Lock(), None


_fork.in_child(_forget)


async def on_io_loop(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, run on the loop of all requests."""
    loop = _io_loop()
    if asyncio.get_running_loop() is loop:
        return await work
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


def run_on_io_loop(work: Coroutine[Any, Any, T]) -> T:
    """As `on_io_loop`, for callers that cannot await."""
    future = asyncio.run_coroutine_threadsafe(work, _io_loop())
    try:
        # In slices: a signal that another thread has received does not wake one that waits for a lock.
        while not wait([future], timeout=SLICE).done:
            pass
    except KeyboardInterrupt:
        future.cancel()
        raise
    return future.result()


def _io_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="magistrate-io", daemon=True).start()
        return _loop
