"""The kept client of one server: the official package, bounded in time and in size."""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from magistrate.engines.remote.refusals import engine_error
from magistrate.engines.remote.wire import awaited, bounding, own_error
from magistrate.errors import InvalidOutput, MissingExtra

T = TypeVar("T")

TIMEOUT = 300.0  # seconds that a call may take where nothing was said
CONNECT = 10.0


class Client:
    """Requests to the server at `base_url`; `who` names the engine in errors.

    A call takes `timeout` seconds at most, and an answer has a bounded size. All calls are made on the loop
    of `wire`. No request is repeated here, and none is redirected: what is asked goes to the address that was
    named and to no other. Raises `MissingExtra` where the package `openai` is not installed.
    """

    def __init__(self, base_url: str, key: str, who: str, timeout: float | None = None) -> None:
        try:
            import httpx2
            from openai import AsyncOpenAI, AsyncStream
        except ImportError:
            raise MissingExtra("openai", "openai") from None
        self.base_url = base_url.rstrip("/")
        self.root = self.base_url.removesuffix("/v1")
        self.who = who
        self.timeout = timeout or TIMEOUT
        self._response, self._stream = httpx2.Response, AsyncStream[object]
        limits = httpx2.Limits(max_connections=1000, max_keepalive_connections=100)
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(self.timeout, connect=min(CONNECT, self.timeout)),
            limits=limits,
            follow_redirects=False,
            headers={"Accept-Encoding": "identity"},
            event_hooks={"response": [bounding(httpx2.AsyncByteStream, who)]},
        )
        self._api = AsyncOpenAI(
            api_key=key, base_url=self.base_url, max_retries=0, timeout=self.timeout, http_client=self._http
        )
        self._closing: weakref.finalize[Any, Any] | None = None

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON answer to `body`. A `path` that begins with `/` is under the server's root, others under
        the base URL. Raises an `EngineError` or `OverLength`."""
        return await self._asked(
            lambda: self._api.post(self._url(path), cast_to=self._response, body=body), _json
        )

    async def get(self, path: str) -> Any:
        """As `post`, for what is only read."""
        return await self._asked(lambda: self._api.get(self._url(path), cast_to=self._response), _json)

    async def streamed(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The JSON events of a streamed answer, in order."""

        async def collect(stream: Any) -> list[Any]:
            async with stream:
                return [event async for event in stream]

        return await self._asked(
            lambda: self._api.post(
                self._url(path), cast_to=object, body=body, stream=True, stream_cls=self._stream
            ),
            collect,
        )

    def close(self) -> None:
        """Close the connections; who forgets it leaves that to the garbage collector."""
        if self._closing is not None:
            self._closing.detach()
            awaited(self._http.aclose())

    # ------------------------------------------------------------------------------------------------

    def _url(self, path: str) -> str:
        return f"{self.root}{path}" if path.startswith("/") else f"{self.base_url}/{path}"

    async def _asked(
        self, ask: Callable[[], Coroutine[Any, Any, Any]], read: Callable[[Any], Coroutine[Any, Any, T]]
    ) -> T:
        if self._closing is None:
            self._closing = weakref.finalize(self, _close, self._http, asyncio.get_running_loop())
            self._closing.atexit = False
        try:
            async with asyncio.timeout(self.timeout):
                return await read(await ask())
        except Exception as error:  # whatever a client, a socket or a foreign answer brings about
            raise own_error(error) or engine_error(error, self.who) from None


async def _json(response: Any) -> Any:
    try:
        return json.loads(response.content)
    except RecursionError:
        raise InvalidOutput("the server's answer is JSON nested too deeply to be read") from None


def _close(http: Any, loop: asyncio.AbstractEventLoop) -> None:
    asyncio.run_coroutine_threadsafe(http.aclose(), loop)
