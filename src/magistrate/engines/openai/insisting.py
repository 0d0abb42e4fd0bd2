"""How a server is asked while one looks at it: once more where a failure may pass, and what broke is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from magistrate.engines.openai.client import Client
from magistrate.engines.remote.calling import LOOKING, Caller, worth_a_retry
from magistrate.errors import EngineBusy, EngineError, EngineTimeout

VAIN = 8  # requests that were asked twice in vain; after them the server is taken to break at all that is new
USUAL = frozenset({"model", "messages", "prompt", "content", "temperature", "max_tokens"})
USUAL |= {"max_completion_tokens"}


class Insisting:
    """A client's requests, each asked again where it met what may pass: a server's own error, too much at
    once, a time that ran out, a broken connection.

    `broken` are the requests that met such a failure to the end: they have shown nothing of the server.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.base_url, self.who = client.base_url, client.who
        self._seen: list[str] = []
        patience = replace(LOOKING, timeout=client.timeout)
        self._twice = Caller(client.who, patience)
        self._once = Caller(client.who, replace(patience, retries=0))

    @property
    def broken(self) -> tuple[str, ...]:
        """What broke, each once, such as `HTTP 500 at chat/completions with logprobs`."""
        return tuple(dict.fromkeys(self._seen))

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """As the client."""
        return await self._asked(lambda: self._client.post(path, body), path, body)

    async def get(self, path: str) -> Any:
        """As the client."""
        return await self._asked(lambda: self._client.get(path), path, {})

    async def _asked(self, ask: Callable[[], Awaitable[Any]], path: str, body: Mapping[str, Any]) -> Any:
        caller = self._twice if len(self._seen) < VAIN else self._once
        try:
            return (await caller.answered(ask))[0]
        except EngineError as error:
            # What came whole and is no JSON is a page for people: nothing will make another thing of it.
            if worth_a_retry(error) and error.status != 200:
                self._seen.append(_told(error, path, body))
            raise


def broke(error: EngineError) -> bool:
    """Whether the server broke at what it was asked, as some do at a parameter that they do not know."""
    return (error.status or 0) >= 500 and not isinstance(error, EngineBusy | EngineTimeout)


def _told(error: EngineError, path: str, body: Mapping[str, Any]) -> str:
    late = "no answer in time" if isinstance(error, EngineTimeout) else "no whole answer"
    met = late if error.status is None else f"HTTP {error.status}"
    beside = ", ".join(key for key in body if key not in USUAL)
    return f"{met} at {path}{beside and ' with '}{beside}"
