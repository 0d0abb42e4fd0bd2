"""The engine for a model on a server with OpenAI's protocol, and its options."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from magistrate.engines.base import (
    GREEDY,
    Attempt,
    Capability,
    Capture,
    Choice,
    Engine,
    EngineInfo,
    EngineSettings,
    Generation,
    Likelihood,
    Option,
    Sampling,
    check_options,
    require,
)
from magistrate.engines.openai.chat_completions import ChatServer, ScoringServer
from magistrate.engines.openai.constraints import SentConstraint, ways_to_send
from magistrate.engines.openai.llama_server import LlamaServer
from magistrate.engines.openai.probe import examine
from magistrate.engines.openai.server_capabilities import (
    OFFICIAL,
    Options,
    ServerCapabilities,
    engine_info,
)
from magistrate.engines.remote.client import Client, on_io_loop, run_on_io_loop
from magistrate.engines.remote.options import Provider, is_local, warn_unlisted_model
from magistrate.engines.remote.replies import Reply, generate_validated
from magistrate.engines.remote.retry import FIRST, with_retries
from magistrate.errors import EngineError, EngineRefused, SpecError
from magistrate.types import Prompt

if TYPE_CHECKING:
    from magistrate.constraints import Constraint

TIMEOUT = 300.0  # seconds of a request, unless a timeout is given
PROVIDER = Provider(
    owner="OpenAI's",
    prefix="openai",
    official=OFFICIAL,
    url_variable="OPENAI_BASE_URL",
    key_variable="OPENAI_API_KEY",
    example="http://127.0.0.1:8080/v1",
)
key_for = PROVIDER.key_for


def read_options(words: str) -> tuple[str, Options]:
    """Parse the model's name and the options after it. Raises `SpecError`.

    >>> read_options("qwen2.5:0.5b,draws=5")[0]
    'qwen2.5:0.5b'
    """
    return PROVIDER.read_options(words, Options, {"draws": 1, "window": 1})


def base_url(given: str | None) -> str:
    """Return `Provider.address`, with `/v1` appended if it has no path."""
    url = PROVIDER.address(given)
    return url if urlsplit(url).path.strip("/") else f"{url}/v1"


def open_engine(model: str, settings: EngineSettings) -> Engine:
    """Open the engine for `MODEL` or `MODEL,option=value,…`, connected, with retries and a concurrency limit.

    The address comes from the settings, else `$OPENAI_BASE_URL`, else it is OpenAI's own. The key is
    `$OPENAI_API_KEY`. Raises `MissingExtra`, `SpecError` for unknown options and models, and `EngineError`
    if the server cannot be reached.
    """
    settings.refuse("an OpenAI-compatible engine", "device", "threads", "hidden_states")
    name, options = read_options(model)
    url = base_url(settings.base_url)
    engine = OpenAIEngine(name, base_url=url, key=key_for(url), timeout=settings.timeout, options=options)
    try:
        run_on_io_loop(engine.connect())
    except BaseException:
        engine.close()
        raise
    first = engine.slots or (FIRST if is_local(url) else None)
    return with_retries(engine, concurrency=settings.concurrency, first=first, timeout=settings.timeout)


@dataclass(frozen=True, slots=True)
class _Connected:
    """The result of connecting: the server client and what the server can do."""

    server: ChatServer | LlamaServer
    info: EngineInfo
    capabilities: ServerCapabilities
    slots: int


class OpenAIEngine:
    """A model on an OpenAI-compatible server at `base_url`.

    `connect` probes with a few tiny calls what the server can do, and stores the result in Magistrate's
    home until the server's description of itself changes; otherwise the first call connects. `info.can` and
    `info.ways` report the result. A request takes at most `timeout` seconds (default 300).
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str,
        key: str,
        timeout: float | None = None,
        options: Options | None = None,
    ) -> None:
        self.options = options or Options()
        self._model = model
        who = f"openai:{model} at {base_url}"
        self._client = Client("openai", base_url, key, who, timeout or TIMEOUT)
        self._connecting = asyncio.Lock()
        self._known: _Connected | None = None

    @on_io_loop
    async def connect(self) -> None:
        """Find out once what the server is and can do.

        Raises `SpecError` for a model that the server does not have, and `EngineError` if it cannot be
        reached.
        """
        await self._server()

    @property
    def info(self) -> EngineInfo:
        """The engine's description and capabilities. Raises `EngineError` before it is connected."""
        return self._connected.info

    @property
    def capabilities(self) -> ServerCapabilities:
        """The server's capabilities. Raises `EngineError` before the engine is connected."""
        return self._connected.capabilities

    @property
    def slots(self) -> int:
        """How many requests the server answers at once, 0 if unknown. Raises as `info` does."""
        return self._connected.slots

    @on_io_loop
    async def count(self, prompt: Prompt) -> int:
        """Return the number of tokens of `prompt`, template included; `info.ways` tells if estimated."""
        return await (await self._server()).count(prompt)

    @on_io_loop
    async def generate(
        self, prompt: Prompt, constraint: Constraint | None = None, *, sampling: Sampling = GREEDY
    ) -> Generation:
        """Generate an answer. The server enforces `constraint` if it can; it is always validated here."""
        if constraint is not None:
            constraint.require_bounds()
        server = await self._server()
        if sampling.trace:
            require(self.info, frozenset[Capability]({"trace"}), "a trace")
        refused: list[str] = []
        sent: SentConstraint | None = None

        async def ask(attempts: tuple[Attempt, ...], enforced: Constraint | None) -> Reply:
            nonlocal sent
            possible = iter([] if enforced is None else ways_to_send(enforced, self.capabilities.ways))
            while True:
                sent = next((each for each in possible if each.name not in refused), None)
                try:
                    return await server.ask(prompt, attempts, enforced, sent, sampling)
                except EngineRefused as error:
                    # If the server cannot compile a constraint of this size or kind, the next best is sent.
                    if sent is None or (error.status or 0) // 100 != 4:
                        raise
                    refused.append(sent.name)

        answer = await generate_validated(ask, constraint, retries=self.options.anew)
        notes = [f"the server rejected the constraint as {name}" for name in refused]
        if constraint is not None:
            how = "requested in the prompt" if sent is None else f"enforced by the server as {sent.name}"
            notes.append(f"constraint {how}, validated locally")
        return replace(answer, notes=(*answer.notes, *notes))

    @on_io_loop
    async def choose(
        self, prompt: Prompt, options: Sequence[Option], *, capture: Capture | None = None
    ) -> Choice:
        """Compute the probability of each option as the answer; `method` and `bound` state the accuracy."""
        check_options(options)
        server = await self._server()
        self._refuse(capture)
        return await server.choose(prompt, options)

    @on_io_loop
    async def likelihood(self, prompt: Prompt, text: str, *, capture: Capture | None = None) -> Likelihood:
        """Compute the probability of each token of `text` as the model's answer. Raises `CapabilityError`
        if the server does not report it, and `SpecError` for an empty text."""
        if not text:
            raise SpecError("the likelihood of an empty text is not defined")
        server = await self._server()
        self._refuse(capture)
        return await server.likelihood(prompt, text)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # ------------------------------------------------------------------------------------------------

    @property
    def _connected(self) -> _Connected:
        if self._known is None:
            raise EngineError(f"{self._client.who} is not connected yet: await engine.connect()")
        return self._known

    async def _server(self) -> ChatServer | LlamaServer:
        """Return the server client; connects on first use. Runs on the loop of all requests."""
        async with self._connecting:
            if self._known is None:
                self._known = await self._connect()
        return self._known.server

    async def _connect(self) -> _Connected:
        client, model, options = self._client, self._model, self.options
        server_info, found = await examine(client, model, options)
        if server_info.named:
            warn_unlisted_model(client.base_url, model, server_info.named)
        window = options.window or found.window
        server: ChatServer | LlamaServer
        if found.native:
            server = LlamaServer(client, found, options, window)
        else:
            kind = ScoringServer if found.tokenizes else ChatServer
            server = kind(client, model, found, options, window)
        info = engine_info(client.base_url, model, server_info, found, options)
        return _Connected(server, info, found, server_info.slots)

    def _refuse(self, capture: Capture | None) -> None:
        if capture is not None:
            require(self.info, frozenset[Capability]({"capture"}), "a capture of the model's state")
