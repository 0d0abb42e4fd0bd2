"""Probes of a server: tiny calls that test what it can do. Only what was seen to work is claimed.

Each constraint is tested with a request that no model would answer that way on its own, and counts only if
the answer obeys it, because many servers silently ignore unknown parameters.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, Literal

from magistrate.constraints import Lark, constraint
from magistrate.engines.base import Option
from magistrate.engines.openai.chat_completions import (
    PATH,
    ScoringServer,
    UsageBody,
    read_chat,
    read_top_tokens,
)
from magistrate.engines.openai.constraints import NATIVE, WAYS, Way, ways_to_send
from magistrate.engines.openai.llama_server import render
from magistrate.engines.openai.server_capabilities import (
    Options,
    ServerCapabilities,
    ServerInfo,
    recall,
    remember,
    server_info,
)
from magistrate.engines.remote.client import Client, Requests
from magistrate.engines.remote.messages import chat
from magistrate.engines.remote.replies import OPENING
from magistrate.engines.remote.retry import CONNECTING, RetryingCaller, worth_a_retry
from magistrate.errors import (
    EngineBusy,
    EngineError,
    EngineGone,
    EngineRefused,
    EngineTimeout,
    InvalidOutput,
    MagistrateError,
    OverLength,
)
from magistrate.types import Prompt

SUM = "What is 2 + 3? Reply with the number."
POEM = "Write a short poem about rain."
PLAIN, THOUGHT = 96, 512  # tokens of the first answer, and of its repetition if it was cut off in a thought
SHORT = 48  # tokens of an answer that must fit a constraint
TOPS = (20, 5)  # numbers of most likely tokens to request, until the server accepts one
BEGUN, REST = "violet-7431-kan", "garoo-green"
GRAMMAR = 'start: "k7-" part\npart: %regex {"substring_words": "amber birch"}'


async def examine(client: Client, model: str, options: Options) -> tuple[ServerInfo, ServerCapabilities]:
    """Return the server's description and its capabilities: stored ones, or the result of a new probe.

    Capabilities are stored only if no request failed during the probe, because a failure may hide a
    capability. Raises `SpecError` for a model that the server does not have, and the error of the simplest
    request.
    """
    probing = ProbeClient(client)
    server = await server_info(probing, model)
    if options.probe == "kept" and (known := recall(client.base_url, model, server.identity)) is not None:
        return server, known
    probe = Probe(probing, model, options, server)
    await probe.run()
    found = probe.found
    if not server.window:  # Ollama reports it only when the model is loaded
        server = await server_info(probing, model)
        found = replace(found, window=server.window)
    found = replace(found, broken=probing.broken)
    if not found.broken:
        remember(client.base_url, model, server.identity, found)
    return server, found


class Probe:
    """Tests `model` on one server; `options` give the number of tokens for thoughts.

    `found` is the result so far. Later requests depend on it.
    """

    def __init__(self, client: Requests, model: str, options: Options, server: ServerInfo) -> None:
        self._client, self._model, self._options, self._llama = client, model, options, server.llama
        self.found = ServerCapabilities(server=server.server, window=server.window, cuts=server.cuts)

    async def run(self) -> None:
        """Test all capabilities. Raises the error of the simplest request if that fails."""
        await self._plain()
        if self._llama:
            await self._native()
        await self._probabilities()
        self._add(ways=await self._ways())
        self._add(seeds=await self._seeds())
        if not self.found.native:
            await self._continued()
            await self._scoring()

    def _add(self, **found: Any) -> None:
        self.found = replace(self.found, **found)

    # ------------------------------------------------------------------------------------------------

    async def _plain(self) -> None:
        """Send the simplest request, to find this server's parameters for a budget and a temperature."""
        refusal: EngineRefused | None = None
        for budget, samples in product(("max_tokens", "max_completion_tokens"), (True, False)):
            self._add(budget=budget, samples=samples)
            try:
                answer = await self._chat(SUM, budget=PLAIN)
                if read_chat(answer).finish == "length":
                    answer = await self._chat(SUM, budget=THOUGHT)
            except EngineRefused as error:
                refusal = refusal or error
                continue
            self._add(thinks=_thoughts(answer), caches=_tells_cached(answer))
            return
        assert refusal is not None
        raise refusal

    async def _native(self) -> None:
        """Test llama.cpp's own API: templates, tokens, and completions of tokens with probabilities."""
        placeholder = "\ue0000\ue001"
        try:
            props = await self._client.get("/props")
            rendered = await render(self._client, [{"role": "user", "content": placeholder}])
            bare, with_bos = await self._tokens("a"), await self._tokens("a", add_special=True)
            apart = await self._tokens("<|im_end|></s><|eot_id|>", parse_special=False)
            end = await self._tokens(str(props.get("eos_token") or ""), parse_special=True)
            spelled = await self._client.post("/tokenize", {"content": "x", "with_pieces": True})
            body = {"prompt": [*with_bos], "n_predict": 1, "n_probs": 2, "temperature": 0.0}
            probabilities = (await self._client.post("/completion", body))["completion_probabilities"]
            first = spelled["tokens"][0]["piece"]
        except (EngineGone, KeyError, IndexError, TypeError, AttributeError):
            return
        except MagistrateError as error:
            if not _is_unsupported(error):
                raise
            return
        begins = len(with_bos) - len(bare)
        works = placeholder in rendered and probabilities and len(end) == 1 and len(apart) > 3
        if works and with_bos[begins:] == bare:
            spaced = isinstance(first, str) and first.startswith(" ")
            self._add(native=True, bos=tuple(with_bos[:begins]), end=tuple(end), spaced=spaced)

    async def _tokens(self, text: str, **how: bool) -> list[int]:
        answer = await self._client.post("/tokenize", {"content": text, **how})
        return [int(token) for token in answer["tokens"]]

    async def _probabilities(self) -> None:
        """Find how many of the most likely tokens are listed at the first position of an answer."""
        for top in TOPS:
            answer = await self._try("Say yes or no.", budget=1, logprobs=True, top_logprobs=top)
            if answer is not None:
                self._add(top=min(top, len(read_top_tokens(answer))))
                return

    async def _ways(self) -> tuple[str, ...]:
        """Return the ways in which the server enforces constraints. One per dialect is enough."""
        enforced: dict[str, str] = {}  # by dialect
        for way in WAYS:
            if way.dialect in enforced or enforced.keys() & _NEEDLESS.get(way.dialect, set()):
                continue
            if (way.name in NATIVE or not self.found.native) and await self._enforces(way):
                enforced[way.dialect] = way.name
        return tuple(enforced.values())

    async def _enforces(self, way: Way) -> bool:
        tried = _PROBES[way.dialect]
        for sent in ways_to_send(tried, (way.name,)):
            answer = await self._try(POEM, budget=SHORT, **sent.body)
            if answer is None:
                return False
            try:
                tried.parse(sent.undo(read_chat(answer).text.strip()))
            except MagistrateError:
                return False
            return True
        return False

    async def _seeds(self) -> bool:
        """Return whether one seed gives the same draw twice, and three seeds give different ones."""
        if not self.found.samples or self.found.thinks:
            return False
        texts = []
        for seed in (7, 7, 8, 9):
            answer = await self._try("Say any three words.", budget=8, temperature=1.0, seed=seed)
            if answer is None:
                return False
            texts.append(read_chat(answer).text)
        return texts[0] == texts[1] and len(set(texts)) > 1

    async def _continued(self) -> None:
        """Test whether a partial answer is continued, and which parameters that needs."""
        turns = [
            {"role": "user", "content": f"Repeat exactly: {BEGUN}{REST}"},
            {"role": "assistant", "content": BEGUN},
        ]
        parameters = {"continue_final_message": True, "add_generation_prompt": False}
        for how, more in (("as is", {}), ("continue_final_message", parameters)):
            if self.found.continues or self.found.thinks:
                return
            answer = await self._try("", budget=12, messages=turns, **more)
            if answer is not None and read_chat(answer).text.lstrip().startswith(REST[:5]):
                self._add(continues=how)

    async def _scoring(self) -> None:
        """Test whether the server tokenizes chats, and whether it scores prompts of tokens."""
        prompt = Prompt.of("Say yes or no.")
        try:
            await self._scorer("").count(prompt)
        except MagistrateError:
            return
        self._add(tokenizes=True)
        options = (Option("yes", ("yes",)), Option("no", ("no",)))
        for scores in ("prompt_logprobs", "echo"):
            if self.found.scores or self.found.thinks:
                return
            try:
                if (await self._scorer(scores).choose_exactly(chat(prompt), options)).mass:
                    self._add(scores=scores)
            except (EngineTimeout, EngineBusy):
                raise
            except MagistrateError:
                continue

    def _scorer(self, scores: str) -> ScoringServer:
        """Return a server client that scores prompts in the way `scores`."""
        tried = replace(self.found, scores=scores)  # type: ignore[arg-type]
        return ScoringServer(self._client, self._model, tried, self._options, 0)

    # ------------------------------------------------------------------------------------------------

    async def _chat(self, question: str, *, budget: int, **more: Any) -> Any:
        body: dict[str, Any] = {"model": self._model, "messages": [{"role": "user", "content": question}]}
        body[self.found.budget] = budget + (self._options.thoughts if self.found.thinks else 0)
        if self.found.samples:
            body["temperature"] = 0.0
        return await self._client.post(PATH, {**body, **more})

    async def _try(self, question: str, *, budget: int, **more: Any) -> Any:
        """Return the answer, or None if the server rejects the request or fails. Raises other errors."""
        try:
            answer = await self._chat(question, budget=budget, **more)
            read_chat(answer)
        except MagistrateError as error:
            if not _is_unsupported(error):
                raise
            return None
        return answer


def _is_unsupported(error: MagistrateError) -> bool:
    """Return whether the server rejected the request or failed on it, as some do for unknown parameters."""
    if isinstance(error, EngineRefused | InvalidOutput | OverLength):
        return True
    failed = isinstance(error, EngineError) and (error.status or 0) >= 500
    return failed and not isinstance(error, EngineBusy | EngineTimeout)


# If one of these works, the dialect is not tested, because it would express less.
_NEEDLESS = {"strict_schema": {"json_schema"}, "regex": {"lark", "gbnf"}}
_WORD = {"type": "string", "enum": ["k7-amber"]}
_OBJECT: dict[str, Any] = {
    "type": "object",
    "properties": {"code": _WORD, "note": {"type": "string", "maxLength": 3}},
    "required": ["code"],
    "additionalProperties": False,
}
_CLOSED = {**_OBJECT, "properties": {"code": _WORD}}
_PROBES = {
    "lark": constraint(Lark(GRAMMAR)),
    "gbnf": constraint(["k7-amber", "k7-birch"]),
    "regex": constraint(["k7-amber", "k7-birch"]),
    "json_schema": constraint(_OBJECT),
    "strict_schema": constraint(_CLOSED),
}


def _thoughts(answer: Any) -> Literal["", "apart", "tags", "closed"]:
    """Return where the thoughts of a plain answer are; if they are only counted, that is "apart" too."""
    details = _usage(answer).completion_tokens_details
    if details is not None and details.reasoning_tokens:
        return "apart"
    content = answer["choices"][0]["message"].get("content")
    text = content if isinstance(content, str) else ""
    if OPENING.match(text):
        return "tags"
    if "</think>" in text:
        return "closed"
    return "apart" if read_chat(answer).thinking else ""


def _tells_cached(answer: Any) -> bool:
    details = _usage(answer).prompt_tokens_details
    return details is not None and details.cached_tokens is not None


def _usage(answer: Any) -> UsageBody:
    return UsageBody.model_validate(answer.get("usage") or {})


# --- requests while probing ----------------------------------------------------------------------

MAX_FAILED = 8  # requests that failed twice; after that many, new ones are tried only once
USUAL = frozenset({"model", "messages", "prompt", "content", "temperature", "max_tokens"})
USUAL |= {"max_completion_tokens"}


class ProbeClient:
    """A client that repeats a request after a temporary failure: a server error, overload, a timeout, a
    broken connection. `broken` are the requests that failed for good; they reveal nothing about the server.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.base_url, self.who = client.base_url, client.who
        self.stream, self.without_keys = client.stream, client.without_keys  # not used by probes
        self._failed: list[str] = []
        policy = replace(CONNECTING, timeout=client.timeout)
        self._twice = RetryingCaller(client.who, policy)
        self._once = RetryingCaller(client.who, replace(policy, retries=0))

    @property
    def broken(self) -> tuple[str, ...]:
        """Failed requests without duplicates, such as `HTTP 500 at chat/completions with logprobs`."""
        return tuple(dict.fromkeys(self._failed))

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Post as the client does, with retries."""
        return await self._ask(lambda: self._client.post(path, body), path, body)

    async def get(self, path: str) -> Any:
        """Get as the client does, with retries."""
        return await self._ask(lambda: self._client.get(path), path, {})

    async def _ask(self, ask: Callable[[], Awaitable[Any]], path: str, body: Mapping[str, Any]) -> Any:
        caller = self._twice if len(self._failed) < MAX_FAILED else self._once
        try:
            return (await caller.call(ask))[0]
        except EngineError as error:
            # A complete answer that is not JSON is a web page, and will stay one.
            if worth_a_retry(error) and error.status != 200:
                self._failed.append(_description(error, path, body))
            raise


def _description(error: EngineError, path: str, body: Mapping[str, Any]) -> str:
    late = "no answer in time" if isinstance(error, EngineTimeout) else "no complete answer"
    met = late if error.status is None else f"HTTP {error.status}"
    beside = ", ".join(key for key in body if key not in USUAL)
    return f"{met} at {path}{beside and ' with '}{beside}"
