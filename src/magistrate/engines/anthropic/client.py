"""The kept client of the Messages API: the official package, bounded in time and in size."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import quote

from magistrate.engines.anthropic.options import OFFICIAL
from magistrate.engines.anthropic.reading import Model, read
from magistrate.engines.remote.refusals import engine_error
from magistrate.engines.remote.wire import awaited, bounding, carried, own_error
from magistrate.errors import EngineGone, EngineRefused, InvalidOutput, MissingExtra

T = TypeVar("T")

CONNECT = 10.0  # seconds until a connection is there


class Client:
    """Requests to the server at `base_url`; `who` names the engine in errors.

    A request takes `timeout` seconds at most, and its answer is bounded. No request is repeated here, and
    none is redirected. Raises `MissingExtra` where the package `anthropic` is not installed.
    """

    def __init__(self, base_url: str, key: str, who: str, timeout: float) -> None:
        try:
            import httpx2
            from anthropic import AsyncAnthropic, AsyncStream
        except ImportError:
            raise MissingExtra("anthropic", "anthropic") from None
        self.base_url, self.who, self.timeout = base_url, who, timeout
        self._response, self._stream = httpx2.Response, AsyncStream[object]
        self._http = httpx2.AsyncClient(
            timeout=httpx2.Timeout(timeout, connect=min(CONNECT, timeout)),
            limits=httpx2.Limits(max_connections=1000, max_keepalive_connections=100),
            follow_redirects=False,
            headers={"Accept-Encoding": "identity"},
            event_hooks={"response": [bounding(httpx2.AsyncByteStream, who)]},
        )
        self._api = AsyncAnthropic(
            api_key=key,
            base_url=base_url,
            max_retries=0,
            timeout=timeout,
            http_client=self._http,
            open_telemetry=False,
        )

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON answer to `body`. Raises an `EngineError` or `OverLength`."""
        return await self._asked(
            lambda: self._api.post(f"/v1/{path}", cast_to=self._response, body=body), _json
        )

    async def streamed(self, body: dict[str, Any]) -> list[Any]:
        """The JSON events of a streamed message, in order."""

        async def collect(stream: Any) -> list[Any]:
            async with stream:
                return [event async for event in stream]

        return await self._asked(
            lambda: self._api.post(
                "/v1/messages", cast_to=object, body=body, stream=True, stream_cls=self._stream
            ),
            collect,
        )

    async def model(self, name: str) -> Model | None:
        """What the server says of a model, None where it is none of Anthropic's own and does not say."""
        try:
            said = await self._asked(
                lambda: self._api.get(f"/v1/models/{quote(name, safe='')}", cast_to=self._response), _json
            )
        except (EngineGone, EngineRefused) as error:
            unknown = isinstance(error, EngineRefused) or str(error).startswith(f"{self.who}: HTTP 404")
            if self.base_url != OFFICIAL and unknown:
                return None
            raise
        return read(Model, said, "description of a model")

    def close(self) -> None:
        """Close the connections."""
        awaited(self._api.close())

    async def _asked(self, ask: Callable[[], Awaitable[Any]], digest: Callable[[Any], Awaitable[T]]) -> T:
        async def work() -> T:
            async with asyncio.timeout(self.timeout):
                return await digest(await ask())

        try:
            return await carried(work())
        except Exception as error:  # whatever a client, a socket or a foreign answer brings about
            raise own_error(error) or engine_error(error, self.who) from None


async def _json(response: Any) -> Any:
    try:
        return json.loads(response.content)
    except RecursionError:
        raise InvalidOutput("the server's answer is JSON nested too deeply to be read") from None
