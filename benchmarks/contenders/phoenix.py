"""Phoenix's evaluators over HTTP, against xllamacpp's server in this process, with the Q8_0 GGUF.

The client is the one that Phoenix makes for a server of OpenAI's kind. The server has 16 places, so of 64 in
flight 48 wait in its queue. The work `mask` is left out: the server tells nothing of its grammars.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any, TypeVar

from benchmarks.contenders import workload
from benchmarks.contenders.base import Item, Measured, Weights
from benchmarks.contenders.workload import answered
from magistrate.errors import EngineError

T = TypeVar("T")

PACKAGES = ("arize-phoenix-evals", "openai", "xllamacpp")
WORKS = ("verdict_only", "verdict_with_reasons", "unconstrained", "prefill", "decode")
PLACES = 16
CELLS_A_PLACE = 512  # the longest prompt and answer of the workload are some 370 tokens together
MODEL = "local"
# Phoenix holds requests back to 5 a second at first, which is meant for services that count them.
NO_LIMIT = 1e6
QUIET = {
    "PHOENIX_TELEMETRY_ENABLED": "false",
    "OTEL_SDK_DISABLED": "true",
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
}


class PhoenixXllamacpp:
    """Phoenix's classification evaluator and text generation, greedy."""

    name = "phoenix-xllamacpp"
    works = frozenset(WORKS)

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._server: Any = None

    def version(self) -> str:
        """Return the packages involved. Raises `ModuleNotFoundError` for a missing one."""
        return ", ".join(f"{name} {version(name)}" for name in PACKAGES)

    def load(self, weights: Weights, threads: int) -> None:
        """Start the server on loopback, with a key, and create Phoenix's client for it."""
        if weights.gguf is None:
            raise EngineError("needs the weights as a GGUF")
        os.environ.update(QUIET)
        key = secrets.token_hex()
        params: Any = (xllamacpp := import_module("xllamacpp")).CommonParams()
        params.model.path = str(weights.gguf)
        params.n_gpu_layers = 0
        params.n_parallel = PLACES
        params.n_ctx = PLACES * CELLS_A_PLACE
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.hostnames, params.port = ["127.0.0.1"], 0
        params.api_keys = [key]
        params.ui = params.endpoint_slots = False
        params.endpoint_metrics = True
        params.verbosity = -1
        self._server = xllamacpp.Server(params)
        url = f"{self._server.listening_address}/v1"
        self._phoenix: Any = import_module("phoenix.evals")
        self._llm = self._model(url, key)
        self._client = import_module("openai").AsyncOpenAI(
            base_url=url, api_key=key, max_retries=0, timeout=None
        )

    def verdict_only(self, items: Sequence[Item], in_flight: int) -> Measured:
        """Classification without an explanation."""
        return self._classified(items, in_flight, list(workload.OPTIONS), explained=False)

    def verdict_with_reasons(self, items: Sequence[Item], in_flight: int) -> Measured:
        """Classification with an explanation, bounded in length as for all contenders."""
        labels = workload.SCHEMA["properties"]["label"]["enum"]
        return self._classified(items, in_flight, labels, explained=True)

    def unconstrained(self, items: Sequence[Item], in_flight: int) -> Measured:
        """Generate the requested number of tokens by Phoenix's model, whatever they are."""

        async def written(item: Item) -> str:
            return str(
                await self._llm.async_generate_text(
                    item.user,
                    max_tokens=workload.ANSWER_TOKENS,
                    temperature=0,
                    extra_body={"ignore_eos": True},
                )
            )

        seconds, texts = self._all(items, in_flight, written)
        tokens = len(texts) * workload.ANSWER_TOKENS
        return Measured(len(texts), tokens, seconds, sum(map(bool, texts)))

    def prefill(self, items: Sequence[Item]) -> Measured:
        """Request one token for each prompt."""
        seconds, _ = self._all(items, len(items), lambda item: self._completed(item, 1, cache_prompt=False))
        return Measured(len(items), sum(len(item.tokens) for item in items), seconds, len(items))

    def decode(self, items: Sequence[Item], in_flight: int) -> Measured:
        """Every prompt is read into a place of the server's first, and written on from there by the clock:
        all of it but the last token is found in the place's cache."""
        seconds, tokens, width = 0.0, 0, min(in_flight, PLACES)
        for at in range(0, len(items), width):
            group = list(enumerate(items[at : at + width]))
            self._all(group, width, lambda pair: self._completed(pair[1], 1, id_slot=pair[0]))
            taken, answers = self._all(
                group, width, lambda pair: self._completed(pair[1], workload.DECODE_TOKENS, id_slot=pair[0])
            )
            seconds += taken
            tokens += sum(answer.usage.completion_tokens for answer in answers)
        return Measured(len(items), tokens, seconds, len(items))

    def close(self) -> None:
        """Stop the server."""
        self._server = None
        self._runner.close()

    # ------------------------------------------------------------------------------------------------

    def _model(self, url: str, key: str) -> Any:
        """Phoenix's model, which asks for the shared schema where an explanation is wanted: Phoenix's own
        bounds no explanation, and a small model writes on to the limit."""
        model: Any = self._phoenix.LLM

        class Bounded(model):  # type: ignore[misc]
            async def async_generate_classification(
                self, prompt: Any, labels: Any, include_explanation: bool = True, **options: Any
            ) -> dict[str, Any]:
                if not include_explanation:
                    answer = await super().async_generate_classification(
                        prompt, labels, include_explanation, **options
                    )
                    return dict(answer)
                answer = await self.async_generate_object(prompt, workload.SCHEMA, **options)
                return {"label": answer["label"], "explanation": answer["reason"]}

        return Bounded(
            provider="openai",
            model=MODEL,
            initial_per_second_request_rate=NO_LIMIT,
            base_url=url,
            api_key=key,
            timeout=None,
        )

    def _classified(
        self, items: Sequence[Item], in_flight: int, labels: Sequence[str], *, explained: bool
    ) -> Measured:
        evaluator = self._phoenix.ClassificationEvaluator(
            name="supported",
            llm=self._llm,
            prompt_template="{user}",
            choices=list(labels),
            include_explanation=explained,
            temperature=0,
            max_tokens=workload.MOST_TOKENS,
        )

        async def label(item: Item) -> str | None:
            try:
                return str((await evaluator.async_evaluate({"user": item.user}))[0].label)
            except ValueError:  # the server's output was cut off or is not JSON
                return None

        before = self._tokens()
        seconds, found = self._all(items, in_flight, label)
        return Measured(len(found), self._tokens() - before, seconds, sum(each in labels for each in found))

    def _tokens(self) -> int:
        """Return the number of tokens that the server has written so far."""
        told = re.search(
            r"^llamacpp:tokens_predicted_total (\d+)", self._server.handle_metrics(), re.MULTILINE
        )
        assert told is not None
        return int(told[1])

    async def _completed(self, item: Item, most: int, **options: Any) -> Any:
        return await self._client.completions.create(
            model=MODEL,
            prompt=list(item.tokens),
            max_tokens=most,
            temperature=0,
            extra_body={"ignore_eos": True, **options},
        )

    def _all(
        self, items: Sequence[T], in_flight: int, answer: Callable[[T], Awaitable[Any]]
    ) -> tuple[float, list[Any]]:
        return self._runner.run(answered(items, in_flight, answer))
