"""A model on a server that speaks OpenAI's protocol, behind the three verbs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from magistrate.engines.base import (
    GREEDY,
    Attempt,
    Capability,
    Capture,
    Choice,
    EngineInfo,
    Generation,
    Likelihood,
    Option,
    Sampling,
    check_options,
    require,
)
from magistrate.engines.openai.chats import ChatServer
from magistrate.engines.openai.client import Client
from magistrate.engines.openai.constraining import Sent, sendings
from magistrate.engines.openai.findings import Findings, info_of
from magistrate.engines.openai.insisting import Insisting
from magistrate.engines.openai.llama import LlamaServer
from magistrate.engines.openai.options import Options
from magistrate.engines.openai.probes import Probe
from magistrate.engines.openai.serving import Serving, serving
from magistrate.engines.remote.asking import settled
from magistrate.engines.remote.naming import warn_misnamed
from magistrate.engines.remote.probing import recalled, remember
from magistrate.engines.remote.reply import Reply
from magistrate.engines.remote.wire import awaited, carried
from magistrate.errors import EngineRefused, SpecError
from magistrate.types import Prompt

if TYPE_CHECKING:
    from magistrate.constraints import Constraint


class OpenAIEngine:
    """A model on a server of OpenAI's kind, at `base_url`.

    What the server can do is looked at when the engine is made, by a few tiny calls, and kept in Magistrate's
    home until the server says that it is another; `info.can` and `info.ways` tell what was seen. A call takes
    `timeout` seconds at most (default 300). Raises `SpecError` for a model that the server does not have, and
    `EngineError` where the server cannot be asked.
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
        self._client = Client(base_url, key, f"openai:{model} at {base_url}", timeout)
        try:
            who, found = awaited(self._look(model))
        except BaseException:
            self._client.close()
            raise
        self.found = found
        address = self._client.base_url
        self.slots = who.slots
        self.info: EngineInfo = info_of(
            address, model, found, self.options, who.identity, slots=who.slots, named=who.named
        )
        window = self.options.window or found.window
        self._server = (
            LlamaServer(self._client, found, self.options, window)
            if found.native
            else ChatServer(self._client, model, found, self.options, window)
        )
        if who.named:
            warn_misnamed(address, model, who.named)

    async def count(self, prompt: Prompt) -> int:
        """How many tokens `prompt` has, template included; `info.ways` says whether that is estimated."""
        return await carried(self._server.count(prompt))

    async def generate(
        self, prompt: Prompt, constraint: Constraint | None = None, *, sampling: Sampling = GREEDY
    ) -> Generation:
        """Write an answer to `prompt`, held to `constraint` by the server if it can, always by us."""
        if constraint is not None:
            constraint.require_bounds()
        if sampling.trace:
            require(self.info, frozenset[Capability]({"trace"}), "a trace")
        return await carried(self._generated(prompt, constraint, sampling))

    async def choose(
        self, prompt: Prompt, options: Sequence[Option], *, capture: Capture | None = None
    ) -> Choice:
        """How probable each option is as the answer; `method` and `bound` say how well that is known."""
        check_options(options)
        self._refuse(capture)
        return await carried(self._server.choose(prompt, options))

    async def likelihood(self, prompt: Prompt, text: str, *, capture: Capture | None = None) -> Likelihood:
        """How probable each token of `text` is as the model's answer. Raises `CapabilityError` where the
        server does not tell, and `SpecError` for an empty text."""
        self._refuse(capture)
        if not text:
            raise SpecError("the likelihood of an empty text is not defined")
        return await carried(self._server.likelihood(prompt, text))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # ------------------------------------------------------------------------------------------------

    async def _look(self, model: str) -> tuple[Serving, Findings]:
        """What the server is, and what it can do: as it is kept, else seen now.

        What was seen is kept only where nothing broke meanwhile: what a failure hid is not known.
        """
        client = Insisting(self._client)
        who = await serving(client, model)
        address = self._client.base_url
        kept = recalled(address, model, who.identity) if self.options.probe == "kept" else None
        if kept is not None and (known := Findings.of(kept)) is not None:
            return who, known
        found = await Probe(client, model, self.options).found(who)
        if not who.window:  # Ollama tells it only once the model is loaded
            who = await serving(client, model)
            found = replace(found, window=who.window)
        found = replace(found, broken=client.broken)
        if not found.broken:
            remember(address, model, who.identity, found.kept())
        return who, found

    async def _generated(
        self, prompt: Prompt, constraint: Constraint | None, sampling: Sampling
    ) -> Generation:
        refused: list[str] = []
        sent: Sent | None = None

        async def ask(attempts: tuple[Attempt, ...], held: Constraint | None) -> Reply:
            nonlocal sent
            offered = iter([] if held is None else sendings(held, self.found.ways))
            while True:
                sent = next((each for each in offered if each.name not in refused), None)
                try:
                    return await self._server.ask(prompt, attempts, held, sent, sampling)
                except EngineRefused as error:
                    # It may not compile a constraint of this size or kind: then the next best is sent.
                    if sent is None or (error.status or 0) // 100 != 4:
                        raise
                    refused.append(sent.name)

        made = await settled(ask, constraint, most=self.options.anew)
        notes = [f"the server refused the constraint as {name}" for name in refused]
        if constraint is not None:
            how = "asked for in words" if sent is None else f"held by the server as {sent.name}"
            notes.append(f"constraint {how}, validated here")
        return replace(made, notes=(*made.notes, *notes))

    def _refuse(self, capture: Capture | None) -> None:
        if capture is not None:
            require(self.info, frozenset[Capability]({"capture"}), "a capture of the model's state")
