"""The client of one server: an official package, with limits on time, size and number of connections.

Connections belong to the event loop that opened them, and engines outlive loops (`asyncio.run` twice, a
notebook, a test). So all requests run on one loop in a separate thread: engine methods that send requests
are decorated with `on_io_loop`.
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
from functools import partial, wraps
from typing import Any, Literal, ParamSpec, Protocol, TypeVar

from magistrate import _fork, _logging
from magistrate.engines.remote.errors import ServerSaysError, engine_error
from magistrate.errors import EngineError, InvalidOutput, MissingExtra

T = TypeVar("T")
P = ParamSpec("P")

MAX_BYTES = 8 * 1024 * 1024  # of one answer
CONNECT_TIMEOUT = 10.0  # seconds to open a connection
POLL = 0.2  # the longest delay, in seconds, until Ctrl-C is noticed
LAST_EVENT = b"data: [DONE]"  # the end of a stream of events


class Requests(Protocol):
    """The interface for sending requests to a server: a `Client`, or a wrapper around one."""

    base_url: str
    who: str

    async def post(self, path: str, body: dict[str, Any]) -> Any: ...

    async def get(self, path: str) -> Any: ...

    async def stream(self, path: str, body: dict[str, Any]) -> list[Any]: ...

    def without_keys(self, text: str) -> str: ...


class Client:
    """Sends requests to the server at `base_url` through `package`; `who` names the engine in errors.

    A request takes at most `timeout` seconds, and the size of an answer is limited. Nothing is retried here
    (see `retry`). Redirects are not followed: a request goes to the given address only. `key` and the keys
    in the environment are hidden in all answers.

    A `path` that begins with `/` is under the server's root, others are under `base_url`. Requests raise an
    `EngineError` or `OverLength`. Raises `MissingExtra` if `package` is not installed.
    """

    def __init__(
        self, package: Literal["openai", "anthropic"], base_url: str, key: str, who: str, timeout: float
    ) -> None:
        try:
            import httpx2

            official, self._stream_class = _official(package)
        except ImportError:
            raise MissingExtra(package, package) from None
        self.base_url = base_url.rstrip("/")
        self.who, self.timeout, self._keys = who, timeout, _logging.keys_pattern((key,))
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(timeout, connect=min(CONNECT_TIMEOUT, timeout)),
            limits=httpx2.Limits(max_connections=1000, max_keepalive_connections=100),
            follow_redirects=False,
            headers={"Accept-Encoding": "identity"},
            event_hooks={"response": [_bounded_reading(httpx2.AsyncByteStream, who)]},
        )
        self._api = official(
            api_key=key, base_url=self.base_url, max_retries=0, timeout=timeout, http_client=self._http
        )
        self._response_class = httpx2.Response
        self._process = os.getpid()
        self._closing: weakref.finalize[Any, Any] | None = None

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the JSON answer to `body`."""
        return await self._request(self._json, path, body, cast_to=self._response_class)

    async def get(self, path: str) -> Any:
        """Return the JSON answer at `path`."""
        return await self._request(self._json, path, cast_to=self._response_class)

    async def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """Return the JSON events of a streamed answer, in order."""
        how = {"cast_to": object, "stream": True, "stream_cls": self._stream_class}
        return await self._request(self._events, path, {**body, "stream": True}, **how)

    def without_keys(self, text: str) -> str:
        """Return `text` with keys hidden, also one that came in several pieces of a stream."""
        return self._keys.sub(_logging.HIDDEN, text)

    def close(self) -> None:
        """Close the connections; otherwise garbage collection does."""
        if self._closing is not None and os.getpid() == self._process:
            self._closing.detach()
            run_on_io_loop(self._http.aclose())

    # --- one request -----------------------------------------------------------------------------

    async def _request(
        self,
        read: Callable[[Any], Awaitable[T]],
        path: str,
        body: dict[str, Any] | None = None,
        **how: Any,
    ) -> T:
        """Send a GET (without `body`) or a POST, and return the result of `read` on the response."""
        if os.getpid() != self._process:
            raise _fork.made_before_fork(f"the engine of {self.who}")
        if self._closing is None:
            self._closing = weakref.finalize(self, _close, self._http, asyncio.get_running_loop())
            self._closing.atexit = False
        send = self._api.get if body is None else partial(self._api.post, body=body)
        url = self.base_url.removesuffix("/v1") + path if path.startswith("/") else f"{self.base_url}/{path}"
        try:
            async with asyncio.timeout(self.timeout):
                return await read(await send(url, **how))
        except Exception as error:  # a package, a socket or a malformed answer may raise anything
            raise engine_error(error, self.who) from None

    async def _json(self, response: Any) -> Any:
        """Parse a response's JSON. Raises `ValueError` if it is not JSON, `InvalidOutput` if Python cannot
        read it, and `ServerSaysError` if it reports a failure of the server."""
        text = response.content.decode("utf-8-sig")
        with _readable_json():
            body = json.loads(text, object_pairs_hook=_unique)
        return self._checked(body, text, response)

    async def _events(self, stream: Any) -> list[Any]:
        """Return all events of a streamed response, in order. Raises as `_json` does."""
        async with stream:
            with _readable_json():
                events = [event async for event in stream]
        return [self._checked(event, json.dumps(event), stream.response) for event in events]

    def _checked(self, body: Any, text: str, response: Any) -> Any:
        """Return `body`, which was parsed from `text`, without keys. Raises `ServerSaysError`."""
        if (error := error_in(body)) is not None:
            raise ServerSaysError(error, response.request)
        return body if self._keys.search(text) is None else self._redacted(body)

    def _redacted(self, body: Any) -> Any:
        if isinstance(body, str):
            return self.without_keys(body)
        if isinstance(body, list):
            return [self._redacted(each) for each in body]
        if isinstance(body, dict):
            return {self.without_keys(name): self._redacted(value) for name, value in body.items()}
        return body


def _official(package: Literal["openai", "anthropic"]) -> tuple[Callable[..., Any], type]:
    """Return the package's client class and its stream class."""
    if package == "openai":
        import openai

        return openai.AsyncOpenAI, openai.AsyncStream[object]
    import anthropic

    return partial(anthropic.AsyncAnthropic, open_telemetry=False), anthropic.AsyncStream[object]


def _close(http: Any, loop: asyncio.AbstractEventLoop) -> None:
    asyncio.run_coroutine_threadsafe(http.aclose(), loop)


# --- parsing answers -----------------------------------------------------------------------------


@contextmanager
def _readable_json() -> Iterator[None]:
    """Raise `InvalidOutput` for JSON that Python cannot read: nested too deeply, or too many digits."""
    try:
        yield
    except RecursionError:
        raise InvalidOutput("the server's answer is JSON that is nested too deeply") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError:  # Python's limit on digits
        raise InvalidOutput("the server's answer has a number with too many digits") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise InvalidOutput("the server's answer is JSON with a duplicate key")
    return members


# Fields besides `error` in which servers and gateways report an error with a success status.
ERRORS = ("errors", "error_code", "error_message", "error_msg")
NO_ERROR: tuple[object, ...] = (None, "", 0, "0", False, [], {})
FAILED_STATUS = ("failed", "failure", "error", "incomplete", "cancelled", "canceled", "expired")


def error_in(body: object) -> object:
    """Return the error that an answer, or a choice or message in it, reports; None if there is none."""
    if not isinstance(body, Mapping):
        return None
    if body.get("object") == "error" or body.get("type") == "error":
        return body
    for part in _with_choices(body):
        if (error := part.get("error")) not in (None, "", False):
            return {"error": error}
        if error := next((part[name] for name in ERRORS if part.get(name) not in NO_ERROR), None):
            return {"error": error}
        if part.get("success") is False or str(part.get("status")).lower() in FAILED_STATUS:
            return {"error": part.get("message") or f"status {part.get('status', 'of no success')}"}
    return None


def _with_choices(body: Mapping[Any, Any]) -> Iterator[Mapping[Any, Any]]:
    """Yield an answer, its choices and their messages."""
    choices = body.get("choices")
    for part in (body, *(choices if isinstance(choices, list) else ())):
        if isinstance(part, Mapping):
            yield part
            yield from (each for name in ("message", "delta") if isinstance(each := part.get(name), Mapping))


def _bounded_reading(stream_class: type, who: str) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """Return a response hook that reads at most `MAX_BYTES` and rejects a stream cut within an event.

    `stream_class` is the HTTP library's. Compressed answers, which were not requested, are rejected: a few
    bytes could expand to any number.
    """

    class Bounded(stream_class):  # type: ignore[misc]
        def __init__(self, stream: Any, has_events: bool) -> None:
            self._stream, self._has_events = stream, has_events

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size, end = 0, b""
            async for chunk in self._stream:
                size += len(chunk)
                if size > MAX_BYTES:
                    raise EngineError(
                        f"{who} answered more than {MAX_BYTES // 2**20} MiB, which is the limit"
                    )
                end = (end + chunk)[-len(LAST_EVENT) - 4 :]
                yield chunk
            if self._has_events and _is_open(end):
                raise EngineError(f"{who}: the stream broke off in the middle of an event")

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def hook(response: Any) -> None:
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise EngineError(f"{who} sent a compressed answer, which was not requested")
        has_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        response.stream = Bounded(response.stream, has_events)

    return hook


def _is_open(end: bytes) -> bool:
    """Return whether a stream of events that ends with `end` lacks the blank line after its last event.

    The packages drop such an event unread. The mark that ends the stream may lack the blank line.
    """
    lines = end.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return not (lines.endswith(b"\n\n") or lines.strip() in (b"", b":") or lines.strip().endswith(LAST_EVENT))


# --- the loop of all requests --------------------------------------------------------------------

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_parents: list[Any] = []  # the loop of a parent process; in the child it is neither run nor closed


def _forget() -> None:
    """Create a new loop after a fork, where the old loop's thread no longer exists."""
    global _lock, _loop
    _parents.append(_loop)
    _lock, _loop = threading.Lock(), None


_fork.in_child(_forget)


def on_io_loop(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return `method`, which then runs on the loop of all requests whatever loop awaits it."""

    @wraps(method)
    async def on_loop(*args: P.args, **named: P.kwargs) -> T:
        loop = _io_loop()
        if asyncio.get_running_loop() is loop:
            return await method(*args, **named)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(method(*args, **named), loop))

    return on_loop


def run_on_io_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on the loop of all requests and return its result; for callers that cannot await."""
    future = asyncio.run_coroutine_threadsafe(work, _io_loop())
    try:
        # Polls, because a signal received by another thread does not wake one that waits for a lock.
        while not wait([future], timeout=POLL).done:
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
