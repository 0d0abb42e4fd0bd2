"""The engine for Anthropic's models, `anthropic:MODEL`, over the Messages API.

The API has no log-probabilities. This module contains the engine, then the encoding of constraints, then
the parsing of answers.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from magistrate.constraints import express
from magistrate.constraints.partial_json import read as read_json
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
)
from magistrate.engines.remote.client import Client, on_io_loop, run_on_io_loop
from magistrate.engines.remote.errors import shown
from magistrate.engines.remote.messages import (
    Chat,
    chat,
    in_words,
    inside,
    one_of,
    schema_around,
    schema_of_text,
    text_inside,
    with_instruction,
)
from magistrate.engines.remote.options import Provider, is_local, warn_unlisted_model
from magistrate.engines.remote.replies import (
    AskLabel,
    Body,
    Count,
    Reply,
    generate_validated,
    label_only_choice,
    read,
    sampled_choice,
)
from magistrate.engines.remote.retry import CONNECTING, FIRST, TIMEOUT, RetryingCaller, with_retries
from magistrate.errors import (
    CapabilityError,
    ConstraintError,
    EngineError,
    EngineGone,
    EngineRefused,
    InvalidOutput,
    MagistrateError,
)
from magistrate.types import Prompt, Usage

if TYPE_CHECKING:
    from magistrate.constraints import Constraint

OFFICIAL = "https://api.anthropic.com"
PROVIDER = Provider(
    owner="Anthropic's",
    prefix="anthropic",
    official=OFFICIAL,
    url_variable="ANTHROPIC_BASE_URL",
    key_variable="ANTHROPIC_API_KEY",
    example="http://HOST:PORT",
)
key_for = PROVIDER.key_for

Form = Literal["schema", "tool", "words"]  # how a constraint is sent

CAN: frozenset[Capability] = frozenset({"generate", "choose", "constraints"})
WINDOW = 200_000  # tokens, if the server does not report it
LABEL_TOKENS = 256  # for a reply that names a label


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the engine, given after the model's name, as in `anthropic:MODEL,draws=10`.

    `choose` asks for a label, or makes `draws` and counts. `form` is how a constraint is sent: as a
    `schema` of the output, as the input of a forced `tool`, or in `words`. `best` is the schema if the
    model supports it. `thinking` is turned off if the model allows that; with it a text may take `thoughts`
    more tokens. `stream` reads texts as they are generated. After an unusable answer the model is asked
    again up to `anew` times.
    """

    choose: Literal["label_only", "sampled"] = "label_only"
    draws: int = 20
    form: Literal["best", "schema", "tool", "words"] = "best"
    thinking: Literal["off", "adaptive", "unsaid"] = "off"
    thoughts: int = 2048
    stream: bool = False
    anew: int = 2


def read_options(words: str) -> tuple[str, Options]:
    """Parse the model's name and the options after it. Raises `SpecError`.

    >>> read_options("claude-haiku-4-5,draws=5")[0]
    'claude-haiku-4-5'
    """
    return PROVIDER.read_options(words, Options, {"draws": 1})


def base_url(given: str | None) -> str:
    """Return `Provider.address` without a final `/v1`, because request paths begin with it."""
    return PROVIDER.address(given).removesuffix("/v1").rstrip("/")


def open_engine(model: str, settings: EngineSettings) -> Engine:
    """Open the engine for `MODEL` or `MODEL,option=value,…`, connected, with retries and a concurrency limit.

    The address comes from the settings, else `$ANTHROPIC_BASE_URL`, else it is Anthropic's own. The key is
    `$ANTHROPIC_API_KEY`. Raises `MissingExtra`, `SpecError`, and `EngineError` if the server cannot be
    reached.
    """
    settings.refuse("an engine on a server", "device", "threads", "hidden_states")
    name, options = read_options(model)
    url = base_url(settings.base_url)
    timeout = TIMEOUT if settings.timeout is None else settings.timeout
    engine = AnthropicEngine(name, base_url=url, key=key_for(url), timeout=timeout, options=options)
    try:
        run_on_io_loop(engine.connect())
    except BaseException:
        engine.close()
        raise
    first = FIRST if is_local(url) else None
    return with_retries(engine, concurrency=settings.concurrency, first=first, timeout=timeout)


@dataclass(frozen=True, slots=True)
class _Connected:
    """How requests are made, based on the server's description of the model.

    `form` is how constraints are sent. `max_tokens` is the most tokens of an answer (0: unknown).
    `thinking` is the `thinking` field of a request. `thoughts` is how many tokens thoughts may take in
    addition to the answer.
    """

    info: EngineInfo
    form: Form
    max_tokens: int
    thinking: Mapping[str, str]
    thoughts: int


class AnthropicEngine:
    """A model behind the Messages API at `base_url`. A request takes at most `timeout` seconds.

    `connect` asks the server what the model can do; otherwise the first call does so.
    """

    def __init__(
        self, model: str, *, base_url: str, key: str, timeout: float = TIMEOUT, options: Options | None = None
    ) -> None:
        self._model, self._options = model, options or Options()
        self._client = Client("anthropic", base_url, key, f"anthropic:{model} at {base_url}", timeout)
        self._connecting = asyncio.Lock()
        self._connected: _Connected | None = None

    @on_io_loop
    async def connect(self) -> None:
        """Ask the server once what the model can do. Raises `EngineError` if it cannot be reached."""
        await self._connection()

    @property
    def info(self) -> EngineInfo:
        """The engine's description and capabilities. Raises `EngineError` before it is connected."""
        if self._connected is None:
            raise EngineError(f"{self._client.who} is not connected yet: await engine.connect()")
        return self._connected.info

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @on_io_loop
    async def count(self, prompt: Prompt) -> int:
        """Return the number of tokens as counted by the server, which costs only a request."""
        body = self._body(self._chat(prompt), await self._connection())
        answer = await self._client.post("v1/messages/count_tokens", body)
        return read(_Counted, answer, "number of tokens").input_tokens

    @on_io_loop
    async def generate(
        self, prompt: Prompt, constraint: Constraint | None = None, *, sampling: Sampling = GREEDY
    ) -> Generation:
        """Return a text that `constraint` accepts; if one does not, the model is asked again a few times."""
        if sampling.trace:
            raise CapabilityError(
                f"{self._client.who} returns no token probabilities, so there is nothing to trace"
            )

        async def ask(attempts: tuple[Attempt, ...], enforced: Constraint | None) -> Reply:
            sent = sent_constraint(enforced, (await self._connection()).form)
            return await self._reply(prompt, attempts, sent, sampling)

        return await generate_validated(ask, constraint, retries=self._options.anew)

    @on_io_loop
    async def choose(
        self, prompt: Prompt, options: Sequence[Option], *, capture: Capture | None = None
    ) -> Choice:
        """Return the label that the model names, or label frequencies over draws; never a log-probability."""
        check_options(options)
        if capture is not None:
            raise CapabilityError(f"{self._client.who} does not expose the model's state")
        ask = self._label_asker(prompt, options, (await self._connection()).form)
        if self._options.choose == "sampled":
            return await sampled_choice(ask, options, draws=self._options.draws)
        return await label_only_choice(ask, options, retries=self._options.anew)

    async def likelihood(self, prompt: Prompt, text: str, *, capture: Capture | None = None) -> Likelihood:
        """Not supported. Raises `CapabilityError`."""
        raise CapabilityError(
            f"{self._client.who} returns no log-probabilities, so it cannot score a given text; use the "
            "embedded engine, or a server that scores prompts"
        )

    # --- connecting ------------------------------------------------------------------------------

    async def _connection(self) -> _Connected:
        """Return how the model is asked; connects on first use. Runs on the loop of all requests."""
        async with self._connecting:
            if self._connected is None:
                self._connected = await self._connect()
        return self._connected

    async def _connect(self) -> _Connected:
        client, model, options = self._client, self._model, self._options
        caller = RetryingCaller(client.who, replace(CONNECTING, timeout=client.timeout))
        described, _ = await caller.call(self._description)
        if described is None and (listed := await self._listed()) and model not in listed:
            warn_unlisted_model(client.base_url, model, listed)
        described = described or _Model(id=model)
        can = described.capabilities
        form: Form = "schema" if options.form == "best" else options.form
        if options.form == "best" and can is not None and not _supports(can, "structured_outputs"):
            form = "tool"
        thinking = _thinking(options, can)
        thinks = thinking.get("type") != "disabled" and (can is None or _supports(can, "thinking"))
        fingerprint = hashlib.sha256(f"anthropic {client.base_url} {model}".encode()).hexdigest()
        window = described.max_input_tokens or WINDOW
        info = EngineInfo("anthropic", model, fingerprint, window, CAN, _ways(form, options, described))
        thoughts = options.thoughts if thinks else 0
        return _Connected(info, form, described.max_tokens or 0, thinking, thoughts)

    async def _description(self) -> _Model | None:
        """Return the server's description of the model; None if a server other than Anthropic's has none."""
        try:
            described = await self._client.get(f"v1/models/{quote(self._model, safe='')}")
        except (EngineGone, EngineRefused) as error:
            unknown = isinstance(error, EngineRefused) or error.status == 404
            if self._client.base_url != OFFICIAL and unknown:
                return None
            raise
        return read(_Model, described, "description of a model")

    async def _listed(self) -> tuple[str, ...]:
        """Return the names of the models that the server lists; empty if it has no list."""
        try:
            listed = read(_Models, await self._client.get("v1/models"), "list of models")
        except MagistrateError:
            return ()
        return tuple(each.id for each in listed.data)

    # --- one request -----------------------------------------------------------------------------

    async def _reply(
        self, prompt: Prompt, attempts: tuple[Attempt, ...], sent: SentConstraint, sampling: Sampling
    ) -> Reply:
        """Send a request and return the model's text in the constraint's own format."""
        connected = await self._connection()
        conversation = self._chat(with_instruction(prompt, sent.words) if sent.words else prompt, attempts)
        most = sampling.max_tokens + connected.thoughts
        body = {
            **self._body(conversation, connected),
            **sent.body,
            "max_tokens": min(most, connected.max_tokens or most),
        }
        if self._options.stream:
            reply = read_events(await self._client.stream("v1/messages", body), tool=sent.is_tool)
        else:
            reply = read_message(await self._client.post("v1/messages", body), tool=sent.is_tool)
        text, thinking = (
            self._client.without_keys(conversation.escaping.undo(each))
            for each in (reply.text, reply.thinking)
        )
        notes = (*conversation.escaping.notes, *_unsent(sampling), *reply.notes)
        return Reply(sent.undo(text), reply.finish, reply.usage, thinking, notes)

    def _chat(self, prompt: Prompt, attempts: tuple[Attempt, ...] = ()) -> Chat:
        return chat(prompt, attempts, continues=False)  # newer models refuse to continue a text of their own

    def _body(self, conversation: Chat, connected: _Connected) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [each for each in conversation.as_dicts() if each["role"] != "system"],
        }
        if conversation.system:
            body["system"] = conversation.system
        if connected.thinking:
            body["thinking"] = dict(connected.thinking)
        return body

    def _label_asker(self, prompt: Prompt, options: Sequence[Option], form: Form) -> AskLabel:
        """Return a function that asks for one of the labels; the API takes no temperature and no seed."""
        labels = [option.surfaces[0].strip() for option in options]
        if form == "words":
            sent = SentConstraint(words=one_of(labels))
        else:
            sent = _sent(schema_around({"type": "string", "enum": labels}), form, text_inside)

        async def ask(attempts: tuple[Attempt, ...], seed: int | None) -> Reply:
            return await self._reply(prompt, attempts, sent, Sampling(max_tokens=LABEL_TOKENS))

        return ask


def _supports(can: Any, *path: str) -> bool:
    """Return whether a model's capabilities list the one at `path` as supported."""
    for name in (*path, "supported"):
        can = can.get(name) if isinstance(can, Mapping) else None
    return can is True


def _thinking(options: Options, can: Mapping[str, Any] | None) -> Mapping[str, str]:
    """Return the `thinking` field of a request; empty if the server does not report what is accepted."""
    if options.thinking == "adaptive":
        return {"type": "adaptive"}
    if options.thinking == "off" and can is not None and _supports(can, "thinking", "types", "disabled"):
        return {"type": "disabled"}
    return {}


def _ways(form: Form, options: Options, described: _Model) -> dict[str, str]:
    """Return `EngineInfo.ways`: how the engine does what can be done in several ways, and what is unknown."""
    forms = {
        "schema": "output_config json_schema",
        "tool": "a forced tool",
        "words": "prompt, then validated",
    }
    assumed = described.capabilities is None and options.form == "best"
    return {
        "constraints": forms[form] + (" (assumed: the server does not report it)" if assumed else ""),
        "choose": f"{options.draws} draws" if options.choose == "sampled" else "label_only: no probability",
        "count": "asked of the server",
        "sampling": "set by the server: the API has no temperature, top_p, min_p or seed",
        "context window": "as reported by the server"
        if described.max_input_tokens
        else f"{WINDOW:,} tokens (assumed: the server does not report it)",
    }


def _unsent(sampling: Sampling) -> tuple[str, ...]:
    """Return a note about the sampling options that the API cannot take, if any were requested."""
    asked = [
        name for name in ("temperature", "top_p", "min_p") if getattr(sampling, name) != getattr(GREEDY, name)
    ]
    taken = " and no ".join(asked)
    return (f"this API does not support {taken}; the server's own sampling was used",) if asked else ()


# --- constraints ---------------------------------------------------------------------------------

TOOL = "answer"


@dataclass(frozen=True, slots=True)
class SentConstraint:
    """A constraint as a request states it: `body` is merged into the request, `words` follow the question.

    `undo` converts the answer to a text that the constraint can parse.
    """

    body: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""
    undo: Callable[[str], str] = str

    @property
    def is_tool(self) -> bool:
        """Whether the answer is the input of a tool."""
        return "tools" in self.body


def sent_constraint(constraint: Constraint | None, form: Form) -> SentConstraint:
    """Return how `constraint` is sent: in `form`, or in words if no schema can express it (as for grammars).

    Rules that the server does not enforce are checked when the answer is validated. Raises
    `ConstraintError` if the constraint has no bound or lacks its texts.
    """
    if constraint is None:
        return SentConstraint()
    constraint.require_bounds()
    if form != "words" and constraint.kind != "lark":
        schema, undo = _object_schema(constraint)
        try:
            return _sent(schema, form, undo)
        except ValueError:  # the package raises this for a schema that it cannot express
            pass
    return SentConstraint(words=in_words(constraint))


def _sent(schema: Mapping[str, Any], form: Form, undo: Callable[[str], str]) -> SentConstraint:
    from anthropic import transform_schema

    sent = transform_schema(dict(schema))
    if form == "schema":
        return SentConstraint(
            {"output_config": {"format": {"type": "json_schema", "schema": sent}}}, undo=undo
        )
    tool = {"name": TOOL, "description": "Gives the answer.", "input_schema": sent}
    choice = {"type": "tool", "name": TOOL, "disable_parallel_tool_use": True}
    return SentConstraint({"tools": [tool], "tool_choice": choice}, undo=undo)


def _object_schema(constraint: Constraint) -> tuple[Mapping[str, Any], Callable[[str], str]]:
    """Return the schema of an object that wraps the constraint's value, and the function that extracts it."""
    if constraint.kind != "json":
        return schema_of_text(constraint), text_inside
    schema: Mapping[str, Any] = express(constraint, "json_schema").payload
    if schema.get("type") == "object":
        return schema, str
    if "$defs" in schema or "$ref" in schema or "definitions" in schema:
        raise ConstraintError(
            f"{constraint.name!r} has definitions but is not an object at its root, as Anthropic requires; "
            "wrap it in an object"
        )
    return schema_around(schema), _json_inside


def _json_inside(text: str) -> str:
    value = inside(text)
    return text if value is None else json.dumps(value, ensure_ascii=False)


# --- parsing answers -----------------------------------------------------------------------------

CUT = ("max_tokens", "model_context_window_exceeded")
ENDED = ("end_turn", "stop_sequence")
BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use")
NO_ORDER = "the answer is incomplete: the events of its stream are not in order"
HIDDEN_THOUGHTS = "the server does not return a part of the model's reasoning"


class _Usage(Body):
    input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    output_tokens: Count | None = None

    def updated(self, later: _Usage | None) -> _Usage:
        """Return these counts, replaced by those of `later`: counts of a stream are cumulative."""
        return self if later is None else self.model_copy(update=later.model_dump(exclude_none=True))

    @property
    def spent(self) -> Usage:
        cached = self.cache_read_input_tokens or 0
        read = (self.input_tokens or 0) + (self.cache_creation_input_tokens or 0) + cached
        return Usage(1, read, cached, self.output_tokens or 0)


class _Block(Body):
    type: str
    name: str = ""
    text: str = ""
    thinking: str = ""
    input: Any = None


class _Details(Body):
    category: str | None = None
    explanation: str | None = None


class _Message(Body):
    role: Literal["assistant"] = "assistant"
    content: list[_Block]
    stop_reason: str | None = None
    stop_details: _Details | None = None
    usage: _Usage


class _Delta(Body):
    type: str = ""
    text: str = ""
    thinking: str = ""
    partial_json: str = ""
    stop_reason: str | None = None
    stop_details: _Details | None = None


class _Event(Body):
    type: str
    message: _Message | None = None
    index: Count = 0
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None


class _Model(Body):
    """A server's description of a model: its token limits and its capabilities; None if not reported."""

    id: str
    max_input_tokens: Count | None = None
    max_tokens: Count | None = None
    capabilities: dict[str, Any] | None = None


class _Listed(Body):
    id: str


class _Models(Body):
    """The list of models of a server."""

    data: tuple[_Listed, ...] = ()


class _Counted(Body):
    """The number of tokens of a prompt."""

    input_tokens: Count


def read_message(body: Any, *, tool: bool) -> Reply:
    """Return a message's text, or the input of its tool as JSON, with thoughts split off.

    Raises `EngineRefused` if the model or a filter refused, `InvalidOutput` if there is no text, and
    `EngineError` if the answer broke off.
    """
    return _reply(read(_Message, body, "message"), tool)


def read_events(events: Sequence[Any], *, tool: bool) -> Reply:
    """Return the same as `read_message`, from the events of a stream."""
    blocks: dict[int, _Block] = {}
    inputs: dict[int, str] = {}
    message: _Message | None = None
    ended = False
    for each in (read(_Event, event, "event of a message") for event in events):
        if each.type == "message_start":
            if message is not None or each.message is None or each.message.content:
                raise EngineError(NO_ORDER)
            message = each.message
        elif each.type == "content_block_start" and each.content_block is not None:
            if each.index in blocks:
                raise EngineError(NO_ORDER)
            blocks[each.index] = each.content_block
        elif each.type == "content_block_delta" and each.delta is not None:
            if each.index not in blocks:
                raise EngineError(NO_ORDER)
            block, delta = blocks[each.index], each.delta
            more = {"text": block.text + delta.text, "thinking": block.thinking + delta.thinking}
            blocks[each.index] = block.model_copy(update=more)
            inputs[each.index] = inputs.get(each.index, "") + delta.partial_json
        elif each.type == "message_delta" and each.delta is not None and message is not None:
            if message.stop_reason not in (None, each.delta.stop_reason):
                raise EngineError(NO_ORDER)
            change = {"stop_reason": each.delta.stop_reason, "stop_details": each.delta.stop_details}
            message = message.model_copy(update={**change, "usage": message.usage.updated(each.usage)})
        ended = ended or each.type == "message_stop"
    if message is None or not ended:
        raise EngineError("the answer is incomplete: its stream has no beginning or no end")
    whole = [_with_input(blocks[index], inputs.get(index, "")) for index in sorted(blocks)]
    return _reply(message.model_copy(update={"content": whole}), tool)


def _with_input(block: _Block, pieces: str) -> _Block:
    """Return a tool call with its input joined from a stream's JSON fragments; as text if invalid JSON."""
    if block.type != "tool_use" or not pieces:
        return block
    reading = read_json(pieces)
    given = reading.value if reading.state == "complete" else pieces
    return block.model_copy(update={"input": given})


def _reply(message: _Message, tool: bool) -> Reply:
    usage, reason = message.usage.spent, message.stop_reason
    if reason == "refusal":
        details = message.stop_details or _Details()
        reason_given = shown(" ".join(each for each in (details.category, details.explanation) if each))
        raise EngineRefused(f"the model refuses to answer{reason_given and ': '}{reason_given}")
    if unread := [each.type for each in message.content if each.type not in BLOCKS]:
        raise InvalidOutput(f"the answer has a part that is not text: {shown(unread[0])!r}")
    texts = [each.text for each in message.content if each.type == "text"]
    calls = [each for each in message.content if each.type == "tool_use"]
    thinking = "\n\n".join(each.thinking for each in message.content if each.thinking).strip()
    notes = (HIDDEN_THOUGHTS,) if any(e.type == "redacted_thinking" for e in message.content) else ()
    answered = tool and [each.name for each in calls] == [TOOL] and not "".join(texts).strip()
    if answered and reason in ("tool_use", *ENDED, *CUT):
        given = calls[0].input
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    elif calls or reason == "tool_use":
        problem = "the model called a different tool, or added text to its call"
        raise InvalidOutput(problem, "".join(texts))
    elif reason not in (*ENDED, *CUT):
        raise EngineError(
            f"the answer is incomplete: it ended with {shown(reason) or 'no reason'} (stop_reason)"
        )
    else:
        text = "".join(texts)
        if not texts and not thinking and reason not in CUT:
            raise InvalidOutput("the server's answer has no text")
    return Reply(text, "length" if reason in CUT else "stop", usage, thinking, notes)
