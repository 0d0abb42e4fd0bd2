"""Anthropic's models as an engine: `generate` and `choose`, and never a log-probability."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from magistrate.engines.anthropic.client import Client
from magistrate.engines.anthropic.forms import Form, Way, form_of, form_of_labels
from magistrate.engines.anthropic.options import Options
from magistrate.engines.anthropic.reading import Counted, Model, read_events, read_message
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
)
from magistrate.engines.remote.asking import settled
from magistrate.engines.remote.foreign import read
from magistrate.engines.remote.label_fallback import Ask, drawn_by, named_by
from magistrate.engines.remote.messages import Chat, chat
from magistrate.engines.remote.reply import Reply
from magistrate.engines.remote.wording import told
from magistrate.errors import CapabilityError
from magistrate.types import Prompt

if TYPE_CHECKING:
    from magistrate.constraints import Constraint

CAN: frozenset[Capability] = frozenset({"generate", "choose", "constraints"})
WINDOW = 200_000  # tokens, where the server does not say
SPARE = 256  # tokens of a reply that names a label
UNSENT = "this API takes no {names}; the text was sampled as its server does"


class AnthropicEngine:
    """The verbs over `/v1/messages`; `said` is what the server says of the model, None where it does not."""

    def __init__(self, client: Client, model: str, options: Options, said: Model | None) -> None:
        self._client, self._model, self._options = client, model, options
        can = None if said is None else said.capabilities
        self._way: Way = options.form if options.form != "best" else "schema"
        if options.form == "best" and can is not None and not can.structured_outputs.supported:
            self._way = "tool"
        self._most = said.max_tokens if said is not None and said.max_tokens else 0
        self._thinking = _thinking(options, said)
        thinks = self._thinking.get("type") != "disabled" and (can is None or can.thinking.supported)
        self._thoughts = options.thoughts if thinks else 0
        self.info = EngineInfo(
            "anthropic",
            model,
            hashlib.sha256(f"anthropic {client.base_url} {model}".encode()).hexdigest(),
            (said.max_input_tokens if said is not None else None) or WINDOW,
            CAN,
            _ways(self._way, options, said),
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    async def count(self, prompt: Prompt) -> int:
        """As the server counts, which costs nothing but a request."""
        counted = await self._client.post("messages/count_tokens", self._body(self._chat(prompt)))
        return read(Counted, counted, "number of tokens").input_tokens

    async def generate(
        self, prompt: Prompt, constraint: Constraint | None = None, *, sampling: Sampling = GREEDY
    ) -> Generation:
        """A text that `constraint` accepts, asked for anew a few times where it does not."""
        if sampling.trace:
            raise CapabilityError(f"{self._client.who} tells no probabilities of tokens, so nothing to trace")

        async def ask(attempts: tuple[Attempt, ...], held: Constraint | None) -> Reply:
            return await self._asked(prompt, attempts, form_of(held, self._way), sampling)

        return await settled(ask, constraint, most=self._options.anew)

    async def choose(
        self, prompt: Prompt, options: Sequence[Option], *, capture: Capture | None = None
    ) -> Choice:
        """The label that the model names, or the shares of labels among draws; never a log-probability."""
        check_options(options)
        if capture is not None:
            raise CapabilityError(f"{self._client.who} shows nothing of the model's state")
        if self._options.choose == "sampled":
            return await drawn_by(self._naming(prompt, options), options, n=self._options.draws)
        return await named_by(self._naming(prompt, options), options, anew=self._options.anew)

    async def likelihood(self, prompt: Prompt, text: str, *, capture: Capture | None = None) -> Likelihood:
        """Not offered. Raises `CapabilityError`."""
        raise CapabilityError(
            f"{self._client.who} tells no log-probabilities, so it cannot say how probable a given text is; "
            "the embedded engine does, and servers that score prompts"
        )

    # --- one request -----------------------------------------------------------------------------

    async def _asked(
        self, prompt: Prompt, attempts: tuple[Attempt, ...], form: Form, sampling: Sampling
    ) -> Reply:
        """What the model wrote, in the constraint's own terms."""
        made = self._chat(told(prompt, form.words) if form.words else prompt, attempts)
        room = sampling.max_tokens + self._thoughts
        body = {**self._body(made), **form.body, "max_tokens": min(room, self._most or room)}
        if self._options.stream:
            reply = read_events(await self._client.streamed({**body, "stream": True}), tool=form.tool)
        else:
            reply = read_message(await self._client.post("messages", body), tool=form.tool)
        text, thinking = (
            self._client.without_keys(made.escaping.undone(each)) for each in (reply.text, reply.thinking)
        )
        notes = (*made.escaping.notes, *_unsent(sampling), *reply.notes)
        return Reply(form.undo(text), reply.finish, reply.usage, thinking, notes)

    def _chat(self, prompt: Prompt, attempts: tuple[Attempt, ...] = ()) -> Chat:
        return chat(prompt, attempts, continues=False)  # newer models refuse to continue a text of theirs

    def _body(self, made: Chat) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [each for each in made.as_dicts() if each["role"] != "system"],
        }
        if made.system:
            body["system"] = made.system
        if self._thinking:
            body["thinking"] = dict(self._thinking)
        return body

    def _naming(self, prompt: Prompt, options: Sequence[Option]) -> Ask:
        """Asks for one of the labels; the API takes no temperature and no seed."""
        form = form_of_labels([option.surfaces[0].strip() for option in options], self._way)

        async def asked(attempts: tuple[Attempt, ...], seed: int | None) -> Reply:
            return await self._asked(prompt, attempts, form, Sampling(max_tokens=SPARE))

        return asked


def _thinking(options: Options, said: Model | None) -> Mapping[str, str]:
    """What the request says of thinking: nothing where the server does not say what the model takes."""
    can = None if said is None else said.capabilities
    if options.thinking == "adaptive":
        return {"type": "adaptive"}
    if options.thinking == "off" and can is not None and can.thinking.types.disabled.supported:
        return {"type": "disabled"}
    return {}


def _ways(way: Way, options: Options, said: Model | None) -> dict[str, str]:
    """In words, what can be done in several ways, and what is not known."""
    forms = {"schema": "output_config json_schema", "tool": "a forced tool", "words": "words, then validated"}
    known = said is not None and said.capabilities is not None
    return {
        "constraints": forms[way]
        + ("" if known or options.form != "best" else " (assumed: the server does not say)"),
        "choose": f"{options.draws} draws" if options.choose == "sampled" else "label_only: no probability",
        "count": "asked of the server",
        "sampling": "the server's own: the API takes no temperature, top_p, min_p or seed",
        "context window": "as the server says"
        if said is not None and said.max_input_tokens
        else f"{WINDOW:,} tokens assumed: the server does not say",
    }


def _unsent(sampling: Sampling) -> tuple[str, ...]:
    """A note of what was asked for and cannot be sent."""
    asked = [
        name for name in ("temperature", "top_p", "min_p") if getattr(sampling, name) != getattr(GREEDY, name)
    ]
    return (UNSENT.format(names=" and no ".join(asked)),) if asked else ()
