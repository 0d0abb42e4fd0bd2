"""The kept client of the Messages API: the official package, bounded in time and in size."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import quote

from magistrate.engines.anthropic.options import OFFICIAL
from magistrate.engines.anthropic.reading import Model, Models
from magistrate.engines.remote.connections import Connections
from magistrate.engines.remote.foreign import read
from magistrate.engines.remote.wire import carried
from magistrate.errors import EngineGone, EngineRefused, MagistrateError, MissingExtra

T = TypeVar("T")


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
        self._connections = Connections(who, timeout, key)
        self._api = AsyncAnthropic(
            api_key=key,
            base_url=base_url,
            max_retries=0,
            timeout=timeout,
            http_client=self._connections.http,
            open_telemetry=False,
        )

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON answer to `body`. Raises an `EngineError` or `OverLength`."""
        return await self._asked(
            lambda: self._api.post(f"/v1/{path}", cast_to=self._response, body=body),
            self._connections.json_of,
        )

    async def streamed(self, body: dict[str, Any]) -> list[Any]:
        """The JSON events of a streamed message, in order."""
        return await self._asked(
            lambda: self._api.post(
                "/v1/messages", cast_to=object, body=body, stream=True, stream_cls=self._stream
            ),
            self._connections.events_of,
        )

    async def model(self, name: str) -> Model | None:
        """What the server says of a model, None where it is none of Anthropic's own and does not say."""
        try:
            said = await self._asked(
                lambda: self._api.get(f"/v1/models/{quote(name, safe='')}", cast_to=self._response),
                self._connections.json_of,
            )
        except (EngineGone, EngineRefused) as error:
            unknown = isinstance(error, EngineRefused) or error.status == 404
            if self.base_url != OFFICIAL and unknown:
                return None
            raise
        return read(Model, said, "description of a model")

    async def listed(self) -> tuple[str, ...]:
        """The names of the models that the server lists; none where it lists none."""
        try:
            said = await self._asked(
                lambda: self._api.get("/v1/models", cast_to=self._response), self._connections.json_of
            )
            return tuple(each.id for each in read(Models, said, "list of models").data)
        except MagistrateError:
            return ()

    def without_keys(self, text: str) -> str:
        """A text of this server's as it may be kept."""
        return self._connections.without_keys(text)

    def close(self) -> None:
        """Close the connections; who forgets it leaves that to the garbage collector."""
        self._connections.close()

    async def _asked(self, ask: Callable[[], Awaitable[Any]], reader: Callable[[Any], Awaitable[T]]) -> T:
        return await carried(self._connections.answered(ask, reader))
