"""Anthropic's models as an engine: `generate` and `choose`, and never a log-probability."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from magistrate.engines.anthropic.messages_api import (
    Counted,
    Form,
    Model,
    Models,
    Way,
    form_of,
    form_of_labels,
    read_events,
    read_message,
)
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
from magistrate.engines.remote.label_choice import AskLabel, label_only_choice, sampled_choice
from magistrate.engines.remote.messages import Chat, chat, with_instruction
from magistrate.engines.remote.options import Provider, is_local, warn_unlisted_model
from magistrate.engines.remote.replies import Reply, generate_validated, read
from magistrate.engines.remote.retry import CONNECTING, FIRST, TIMEOUT, RetryingCaller, with_retries
from magistrate.errors import CapabilityError, EngineError, EngineGone, EngineRefused, MagistrateError
from magistrate.types import Prompt

if TYPE_CHECKING:
    from magistrate.constraints import Constraint

OFFICIAL = "https://api.anthropic.com"
PROVIDER = Provider(
    owner="Anthropic's",
    word="anthropic",
    official=OFFICIAL,
    url_variable="ANTHROPIC_BASE_URL",
    key_variable="ANTHROPIC_API_KEY",
    example="http://HOST:PORT",
)
key_for = PROVIDER.key_for

CAN: frozenset[Capability] = frozenset({"generate", "choose", "constraints"})
WINDOW = 200_000  # tokens, if the server does not say
SPARE = 256  # tokens of a reply that names a label
UNSENT = "this API takes no {names}; the text was sampled as its server does"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the engine answers its verbs; given behind the model's name, as in `anthropic:MODEL,draws=10`.

    `choose` asks for a label, or makes `draws` and counts. `form` is how a constraint is sent: as a `schema`
    of the output, as the input of a forced `tool`, or in `words`; `best` is the schema if the model supports
    it. `thinking` is turned off if the model can do without; with it a text may take `thoughts` tokens more.
    `stream` reads texts as they are written. After an answer that cannot be used the model is asked again
    `anew` times.
    """

    choose: Literal["label_only", "sampled"] = "label_only"
    draws: int = 20
    form: Literal["best", "schema", "tool", "words"] = "best"
    thinking: Literal["off", "adaptive", "unsaid"] = "off"
    thoughts: int = 2048
    stream: bool = False
    anew: int = 2


def read_options(words: str) -> tuple[str, Options]:
    """The model's name and the options behind it. Raises `SpecError`.

    >>> read_options("claude-haiku-4-5,draws=5")[0]
    'claude-haiku-4-5'
    """
    return PROVIDER.read_options(words, Options, {"draws": 1})


def base_url(given: str | None) -> str:
    """As `Provider.address`, without a `/v1` at the end, because paths begin with it."""
    return PROVIDER.address(given).removesuffix("/v1").rstrip("/")


def open_engine(model: str, settings: EngineSettings) -> Engine:
    """The engine of `MODEL` or `MODEL,option=value,…`, connected, with retries and a concurrency limit.

    The address is that of the settings, else `$ANTHROPIC_BASE_URL`, else Anthropic's own; the key is
    `$ANTHROPIC_API_KEY`. Raises `MissingExtra`, `SpecError`, and `EngineError` if the server cannot be asked.
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
class _Asking:
    """How the model is asked, from what the server says of it.

    `way` is how constraints are sent, `most` the most tokens of an answer (0: not told), `thinking` what a
    request says of that, `thoughts` how many tokens thoughts may take beside the answer.
    """

    info: EngineInfo
    way: Way
    most: int
    thinking: Mapping[str, str]
    thoughts: int


class AnthropicEngine:
    """A model behind the Messages API at `base_url`. A request takes `timeout` seconds at most.

    `connect` asks the server what the model can do; the first call does if nobody did.
    """

    def __init__(
        self, model: str, *, base_url: str, key: str, timeout: float = TIMEOUT, options: Options | None = None
    ) -> None:
        self._model, self._options = model, options or Options()
        self._client = Client("anthropic", base_url, key, f"anthropic:{model} at {base_url}", timeout)
        self._connecting = asyncio.Lock()
        self._known: _Asking | None = None

    async def connect(self) -> None:
        """Ask the server once what the model can do. Raises what stands in the way of asking."""
        await on_io_loop(self._asking())

    @property
    def info(self) -> EngineInfo:
        """What the engine is and can do. Raises `EngineError` before it is connected."""
        if self._known is None:
            raise EngineError(f"{self._client.who} is not connected yet: await engine.connect()")
        return self._known.info

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    async def count(self, prompt: Prompt) -> int:
        """As the server counts, which costs nothing but a request."""

        async def counted() -> int:
            body = self._body(self._chat(prompt), await self._asking())
            answer = await self._client.post("v1/messages/count_tokens", body)
            return read(Counted, answer, "number of tokens").input_tokens

        return await on_io_loop(counted())

    async def generate(
        self, prompt: Prompt, constraint: Constraint | None = None, *, sampling: Sampling = GREEDY
    ) -> Generation:
        """A text that `constraint` accepts; the model is asked again a few times if one does not."""
        if sampling.trace:
            raise CapabilityError(f"{self._client.who} tells no probabilities of tokens, so nothing to trace")

        async def ask(attempts: tuple[Attempt, ...], enforced: Constraint | None) -> Reply:
            form = form_of(enforced, (await self._asking()).way)
            return await self._reply(prompt, attempts, form, sampling)

        return await on_io_loop(generate_validated(ask, constraint, retries=self._options.anew))

    async def choose(
        self, prompt: Prompt, options: Sequence[Option], *, capture: Capture | None = None
    ) -> Choice:
        """The label that the model names, or the shares of labels among draws; never a log-probability."""
        check_options(options)
        if capture is not None:
            raise CapabilityError(f"{self._client.who} shows nothing of the model's state")

        async def chosen() -> Choice:
            ask = self._label_asker(prompt, options, (await self._asking()).way)
            if self._options.choose == "sampled":
                return await sampled_choice(ask, options, draws=self._options.draws)
            return await label_only_choice(ask, options, retries=self._options.anew)

        return await on_io_loop(chosen())

    async def likelihood(self, prompt: Prompt, text: str, *, capture: Capture | None = None) -> Likelihood:
        """Not offered. Raises `CapabilityError`."""
        raise CapabilityError(
            f"{self._client.who} tells no log-probabilities, so it cannot say how probable a given text is; "
            "the embedded engine does, and servers that score prompts"
        )

    # --- connecting ------------------------------------------------------------------------------

    async def _asking(self) -> _Asking:
        """How the model is asked; runs on the loop of all requests."""
        if self._known is None:
            async with self._connecting:
                if self._known is None:
                    self._known = await self._connect()
        return self._known

    async def _connect(self) -> _Asking:
        client, model, options = self._client, self._model, self._options
        caller = RetryingCaller(client.who, replace(CONNECTING, timeout=client.timeout))
        described, _ = await caller.call(self._description)
        if described is None and (listed := await self._listed()) and model not in listed:
            warn_unlisted_model(client.base_url, model, listed)
        can = None if described is None else described.capabilities
        way: Way = options.form if options.form != "best" else "schema"
        if options.form == "best" and can is not None and not can.structured_outputs.supported:
            way = "tool"
        thinking = _thinking(options, described)
        thinks = thinking.get("type") != "disabled" and (can is None or can.thinking.supported)
        info = EngineInfo(
            "anthropic",
            model,
            hashlib.sha256(f"anthropic {client.base_url} {model}".encode()).hexdigest(),
            (described.max_input_tokens if described is not None else None) or WINDOW,
            CAN,
            _ways(way, options, described),
        )
        most = described.max_tokens if described is not None and described.max_tokens else 0
        return _Asking(info, way, most, thinking, options.thoughts if thinks else 0)

    async def _description(self) -> Model | None:
        """What the server says of the model, None if it is not Anthropic's own and does not say."""
        try:
            described = await self._client.get(f"v1/models/{quote(self._model, safe='')}")
        except (EngineGone, EngineRefused) as error:
            unknown = isinstance(error, EngineRefused) or error.status == 404
            if self._client.base_url != OFFICIAL and unknown:
                return None
            raise
        return read(Model, described, "description of a model")

    async def _listed(self) -> tuple[str, ...]:
        """The names of the models that the server lists; none if it has no list."""
        try:
            listed = read(Models, await self._client.get("v1/models"), "list of models")
        except MagistrateError:
            return ()
        return tuple(each.id for each in listed.data)

    # --- one request -----------------------------------------------------------------------------

    async def _reply(
        self, prompt: Prompt, attempts: tuple[Attempt, ...], form: Form, sampling: Sampling
    ) -> Reply:
        """A text of the model, in the constraint's own terms."""
        asking = await self._asking()
        made = self._chat(with_instruction(prompt, form.words) if form.words else prompt, attempts)
        most = sampling.max_tokens + asking.thoughts
        body = {**self._body(made, asking), **form.body, "max_tokens": min(most, asking.most or most)}
        if self._options.stream:
            events = await self._client.stream("v1/messages", {**body, "stream": True})
            reply = read_events(events, tool=form.tool)
        else:
            reply = read_message(await self._client.post("v1/messages", body), tool=form.tool)
        text, thinking = (
            self._client.without_keys(made.escaping.undo(each)) for each in (reply.text, reply.thinking)
        )
        notes = (*made.escaping.notes, *_unsent(sampling), *reply.notes)
        return Reply(form.undo(text), reply.finish, reply.usage, thinking, notes)

    def _chat(self, prompt: Prompt, attempts: tuple[Attempt, ...] = ()) -> Chat:
        return chat(prompt, attempts, continues=False)  # newer models refuse to continue a text of theirs

    def _body(self, made: Chat, asking: _Asking) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [each for each in made.as_dicts() if each["role"] != "system"],
        }
        if made.system:
            body["system"] = made.system
        if asking.thinking:
            body["thinking"] = dict(asking.thinking)
        return body

    def _label_asker(self, prompt: Prompt, options: Sequence[Option], way: Way) -> AskLabel:
        """Asks for one of the labels; the API takes no temperature and no seed."""
        form = form_of_labels([option.surfaces[0].strip() for option in options], way)

        async def ask(attempts: tuple[Attempt, ...], seed: int | None) -> Reply:
            return await self._reply(prompt, attempts, form, Sampling(max_tokens=SPARE))

        return ask


def _thinking(options: Options, described: Model | None) -> Mapping[str, str]:
    """What a request says of thinking: nothing if the server does not tell what the model accepts."""
    can = None if described is None else described.capabilities
    if options.thinking == "adaptive":
        return {"type": "adaptive"}
    if options.thinking == "off" and can is not None and can.thinking.types.disabled.supported:
        return {"type": "disabled"}
    return {}


def _ways(way: Way, options: Options, described: Model | None) -> dict[str, str]:
    """`EngineInfo.ways`: how the engine does what can be done in several ways, and what is not known."""
    forms = {"schema": "output_config json_schema", "tool": "a forced tool", "words": "words, then validated"}
    known = described is not None and described.capabilities is not None
    return {
        "constraints": forms[way]
        + ("" if known or options.form != "best" else " (assumed: the server does not say)"),
        "choose": f"{options.draws} draws" if options.choose == "sampled" else "label_only: no probability",
        "count": "asked of the server",
        "sampling": "the server's own: the API takes no temperature, top_p, min_p or seed",
        "context window": "as the server says"
        if described is not None and described.max_input_tokens
        else f"{WINDOW:,} tokens assumed: the server does not say",
    }


def _unsent(sampling: Sampling) -> tuple[str, ...]:
    """A note of what was asked for and cannot be sent."""
    asked = [
        name for name in ("temperature", "top_p", "min_p") if getattr(sampling, name) != getattr(GREEDY, name)
    ]
    return (UNSENT.format(names=" and no ".join(asked)),) if asked else ()
