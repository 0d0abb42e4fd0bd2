"""The kept client of one server: the official package, bounded in time and in size."""

from __future__ import annotations

from typing import Any, Protocol

from magistrate.engines.remote.connections import Connections
from magistrate.errors import MissingExtra

TIMEOUT = 300.0  # seconds that a call may take where nothing was said


class Requests(Protocol):
    """What a server can be asked through: a `Client`, or what asks again around one."""

    base_url: str
    who: str

    async def post(self, path: str, body: dict[str, Any]) -> Any: ...

    async def get(self, path: str) -> Any: ...


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
        self._connections = Connections(who, self.timeout, key)
        self._api = AsyncOpenAI(
            api_key=key,
            base_url=self.base_url,
            max_retries=0,
            timeout=self.timeout,
            http_client=self._connections.http,
        )

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON answer to `body`. A `path` that begins with `/` is under the server's root, others under
        the base URL. Raises an `EngineError` or `OverLength`."""
        return await self._connections.answered(
            lambda: self._api.post(self._url(path), cast_to=self._response, body=body),
            self._connections.json_of,
        )

    async def get(self, path: str) -> Any:
        """As `post`, for what is only read."""
        return await self._connections.answered(
            lambda: self._api.get(self._url(path), cast_to=self._response), self._connections.json_of
        )

    async def streamed(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The JSON events of a streamed answer, in order."""
        return await self._connections.answered(
            lambda: self._api.post(
                self._url(path), cast_to=object, body=body, stream=True, stream_cls=self._stream
            ),
            self._connections.events_of,
        )

    def without_keys(self, text: str) -> str:
        """A text of this server's as it may be kept."""
        return self._connections.without_keys(text)

    def close(self) -> None:
        """Close the connections; who forgets it leaves that to the garbage collector."""
        self._connections.close()

    # ------------------------------------------------------------------------------------------------

    def _url(self, path: str) -> str:
        return f"{self.root}{path}" if path.startswith("/") else f"{self.base_url}/{path}"
