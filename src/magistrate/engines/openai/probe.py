"""Tries out by tiny calls what a server can do. What is not seen to work is not claimed.

Each constraint is tried on a request that no model would answer that way by itself, and counts only if the
answer keeps to it: many servers silently ignore parameters that they do not know.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
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
    CapabilityError,
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
TOPS = (20, 5)  # numbers of likeliest tokens to ask for, until the server accepts one
BEGUN, REST = "violet-7431-kan", "garoo-green"
GRAMMAR = 'start: "k7-" part\npart: %regex {"substring_words": "amber birch"}'


async def examine(client: Client, model: str, options: Options) -> tuple[ServerInfo, ServerCapabilities]:
    """What the server says of itself, and what it can do: as it is kept, or tried out now.

    Capabilities are kept only if no request failed meanwhile: what a failure hid is not known. Raises
    `SpecError` for a model that the server does not have, and what stands in the way of the plainest request.
    """
    probing = ProbeClient(client)
    server = await server_info(probing, model)
    if options.probe == "kept" and (known := recall(client.base_url, model, server.identity)) is not None:
        return server, known
    found = await Probe(probing, model, options).capabilities(server)
    if not server.window:  # Ollama tells it only once the model is loaded
        server = await server_info(probing, model)
        found = replace(found, window=server.window)
    found = replace(found, broken=probing.broken)
    if not found.broken:
        remember(client.base_url, model, server.identity, found)
    return server, found


@dataclass(frozen=True, slots=True)
class Probe:
    """Tries out one model on one server; `options` give the tokens that thoughts may take."""

    client: Requests
    model: str
    options: Options

    async def capabilities(self, who: ServerInfo) -> ServerCapabilities:
        """Everything that works. Raises what stands in the way of the plainest request."""
        found = ServerCapabilities(server=who.server, window=who.window, cuts=who.cuts)
        found, plain = await self._plain(found)
        if who.llama:
            found = await self._native(found)
        found = await self._probabilities(found)
        found = replace(found, ways=await self._ways(found), caches=_tells_cached(plain))
        found = replace(found, seeds=await self._seeds(found))
        if not found.native:
            found = await self._continued(found)
            found = await self._scoring(found)
        return found

    # ------------------------------------------------------------------------------------------------

    async def _plain(self, found: ServerCapabilities) -> tuple[ServerCapabilities, Any]:
        """The plainest request, with the parameters that this server has for a budget and a temperature."""
        last: MagistrateError | None = None
        for budget in ("max_tokens", "max_completion_tokens"):
            for samples in (True, False):
                tried = replace(found, budget=budget, samples=samples)
                try:
                    answer = await self._chat(tried, SUM, budget=PLAIN)
                    if read_chat(answer).finish == "length":
                        answer = await self._chat(tried, SUM, budget=THOUGHT)
                except EngineRefused as error:
                    last = last or error
                    continue
                return replace(tried, thinks=_thoughts(answer)), answer
        raise last or CapabilityError(f"{self.client.who} takes no chat completion")

    async def _native(self, found: ServerCapabilities) -> ServerCapabilities:
        """llama.cpp's own requests: templates, tokens, and completions of tokens with probabilities."""
        try:
            props = await self.client.get("/props")
            rendered = await render(self.client, [{"role": "user", "content": "\ue0000\ue001"}])
            bare, with_bos = await self._tokens("a"), await self._tokens("a", add_special=True)
            apart = await self._tokens("<|im_end|></s><|eot_id|>", parse_special=False)
            end = await self._tokens(str(props.get("eos_token") or ""), parse_special=True)
            spelled = await self.client.post("/tokenize", {"content": "x", "with_pieces": True})
            body = {"prompt": [*with_bos], "n_predict": 1, "n_probs": 2, "temperature": 0.0}
            probabilities = (await self.client.post("/completion", body))["completion_probabilities"]
            first = spelled["tokens"][0]["piece"]
        except (EngineRefused, EngineGone, InvalidOutput, KeyError, IndexError, TypeError, AttributeError):
            return found
        except EngineError as error:
            if broke(error):
                return found
            raise
        begins = len(with_bos) - len(bare)
        seen = "\ue0000\ue001" in rendered and probabilities and len(end) == 1 and len(apart) > 3
        if not seen or with_bos[begins:] != bare:
            return found
        return replace(
            found,
            native=True,
            bos=tuple(with_bos[:begins]),
            end=tuple(end),
            spaced=isinstance(first, str) and first.startswith(" "),
        )

    async def _tokens(self, text: str, **how: bool) -> list[int]:
        answer = await self.client.post("/tokenize", {"content": text, **how})
        return [int(token) for token in answer["tokens"]]

    async def _probabilities(self, found: ServerCapabilities) -> ServerCapabilities:
        """How many of the likeliest tokens are listed at the first place of an answer."""
        for top in TOPS:
            more = {"logprobs": True, "top_logprobs": top}
            answer = await self._try(found, "Say yes or no.", budget=1, more=more)
            if answer is not None:
                return replace(found, top=min(top, len(read_top_tokens(answer))))
        return found

    async def _ways(self, found: ServerCapabilities) -> tuple[str, ...]:
        """The constraints that the server enforces. Of one dialect the first is enough."""
        enforced: list[str] = []
        dialects: set[str] = set()
        for way in WAYS:
            if way.dialect in dialects or dialects & _NEEDLESS.get(way.dialect, frozenset()):
                continue
            if found.native and way.name not in NATIVE:
                continue
            if await self._enforces(found, way):
                enforced.append(way.name)
                dialects.add(way.dialect)
        return tuple(enforced)

    async def _enforces(self, found: ServerCapabilities, way: Way) -> bool:
        probe = _PROBES[way.dialect]
        sent = ways_to_send(probe, (way.name,))
        if not sent:
            return False
        answer = await self._try(found, POEM, budget=SHORT, more=dict(sent[0].body))
        if answer is None:
            return False
        try:
            probe.parse(sent[0].undo(read_chat(answer).text.strip()))
        except MagistrateError:
            return False
        return True

    async def _seeds(self, found: ServerCapabilities) -> bool:
        """Whether one seed draws the same twice, and three seeds not all the same."""
        if not found.samples or found.thinks:
            return False
        texts = []
        for seed in (7, 7, 8, 9):
            more = {"temperature": 1.0, "seed": seed}
            answer = await self._try(found, "Say any three words.", budget=8, more=more)
            if answer is None:
                return False
            texts.append(_text(answer))
        return texts[0] == texts[1] and len(set(texts)) > 1

    async def _continued(self, found: ServerCapabilities) -> ServerCapabilities:
        """Whether a begun answer is continued, and which parameters that needs."""
        turns = [
            {"role": "user", "content": f"Repeat exactly: {BEGUN}{REST}"},
            {"role": "assistant", "content": BEGUN},
        ]
        if found.thinks:
            return found
        for how, more in (
            ("as is", {}),
            ("continue_final_message", {"continue_final_message": True, "add_generation_prompt": False}),
        ):
            answer = await self._try(found, "", budget=12, more={"messages": turns, **more})
            if answer is not None and _text(answer).lstrip().startswith(REST[:5]):
                return replace(found, continues=how)  # type: ignore[arg-type]
        return found

    async def _scoring(self, found: ServerCapabilities) -> ServerCapabilities:
        """Whether chats become tokens, and whether prompts of tokens are scored."""
        prompt = Prompt.of("Say yes or no.")
        try:
            await ScoringServer(self.client, self.model, found, self.options, 0).count(prompt)
        except MagistrateError:
            return found
        found = replace(found, tokenizes=True)
        if found.thinks:
            return found
        for scores in ("prompt_logprobs", "echo"):
            tried = replace(found, scores=scores)
            try:
                options = (Option("yes", ("yes",)), Option("no", ("no",)))
                scorer = ScoringServer(self.client, self.model, tried, self.options, 0)
                choice = await scorer.choose_exactly(chat(prompt), options)
            except (EngineTimeout, EngineBusy):
                raise
            except MagistrateError:
                continue
            if choice.mass:
                return tried
        return found

    # ------------------------------------------------------------------------------------------------

    async def _chat(
        self, found: ServerCapabilities, question: str, *, budget: int, more: dict[str, Any] | None = None
    ) -> Any:
        body: dict[str, Any] = {"model": self.model, "messages": [{"role": "user", "content": question}]}
        body[found.budget] = budget + (self.options.thoughts if found.thinks else 0)
        if found.samples:
            body["temperature"] = 0.0
        return await self.client.post(PATH, {**body, **(more or {})})

    async def _try(
        self, found: ServerCapabilities, question: str, *, budget: int, more: dict[str, Any]
    ) -> Any:
        """The answer; None if the server refuses the request, or breaks at it. Other errors are raised."""
        try:
            answer = await self._chat(found, question, budget=budget, more=more)
            read_chat(answer)
        except (EngineRefused, InvalidOutput, OverLength):
            return None
        except EngineError as error:
            if broke(error):
                return None
            raise
        return answer


# A dialect that is not tried once one of these works: it would express less.
_NEEDLESS = {"strict_schema": frozenset({"json_schema"}), "regex": frozenset({"lark", "gbnf"})}
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


def _text(answer: Any) -> str:
    try:
        return read_chat(answer).text
    except MagistrateError:
        return ""


def _thoughts(answer: Any) -> Literal["", "apart", "tags", "closed"]:
    """Where the thoughts of a plain answer stand; thoughts that are only counted stand apart too."""
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

MAX_FAILED = 8  # requests that failed twice; after them, new ones are tried only once
USUAL = frozenset({"model", "messages", "prompt", "content", "temperature", "max_tokens"})
USUAL |= {"max_completion_tokens"}


class ProbeClient:
    """A client that repeats a request after a failure that may pass: a server error, overload, a timeout, a
    broken connection. `broken` are the requests that failed to the end: they show nothing of the server."""

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
        """Failed requests, each once, such as `HTTP 500 at chat/completions with logprobs`."""
        return tuple(dict.fromkeys(self._failed))

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """As the client."""
        return await self._ask(lambda: self._client.post(path, body), path, body)

    async def get(self, path: str) -> Any:
        """As the client."""
        return await self._ask(lambda: self._client.get(path), path, {})

    async def _ask(self, ask: Callable[[], Awaitable[Any]], path: str, body: Mapping[str, Any]) -> Any:
        caller = self._twice if len(self._failed) < MAX_FAILED else self._once
        try:
            return (await caller.call(ask))[0]
        except EngineError as error:
            # A complete answer that is no JSON is a page for people, and will be one again.
            if worth_a_retry(error) and error.status != 200:
                self._failed.append(_description(error, path, body))
            raise


def broke(error: EngineError) -> bool:
    """Whether the server failed at the request itself, as some do at unknown parameters."""
    return (error.status or 0) >= 500 and not isinstance(error, EngineBusy | EngineTimeout)


def _description(error: EngineError, path: str, body: Mapping[str, Any]) -> str:
    late = "no answer in time" if isinstance(error, EngineTimeout) else "no whole answer"
    met = late if error.status is None else f"HTTP {error.status}"
    beside = ", ".join(key for key in body if key not in USUAL)
    return f"{met} at {path}{beside and ' with '}{beside}"
