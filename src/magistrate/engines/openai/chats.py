"""Servers that are asked by chat completions: what they all have, and what each was seen to have beside."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from magistrate.constraints import Constraint
from magistrate.engines.base import Attempt, Choice, Likelihood, Option, Sampling
from magistrate.engines.openai.client import Client
from magistrate.engines.openai.constraining import Sent
from magistrate.engines.openai.findings import Findings, chooses
from magistrate.engines.openai.options import Options
from magistrate.engines.openai.reading import read_chat, read_events, read_first_token, usage_of_chat
from magistrate.engines.openai.scoring import Scorer
from magistrate.engines.remote.choosing import from_listed
from magistrate.engines.remote.label_fallback import drawn_by, in_words, named_by
from magistrate.engines.remote.messages import Chat, chat
from magistrate.engines.remote.reply import Reply
from magistrate.engines.remote.wording import described, told
from magistrate.errors import CapabilityError, OverLength
from magistrate.types import Prompt, Usage

PATH = "chat/completions"
LEAST_MASS = 0.01  # the model that gives all answers together less than this wants to say something else
UNLISTED = "hardly any answer was among the likeliest tokens, so it was asked for in words"
# Four ASCII letters are a token, white space is one, any other character is one, or two if not ASCII.
RUNS = re.compile(r"[A-Za-z]+|\s+|[\x21-\x7e]|.", re.DOTALL)


class ChatServer:
    """The verbs over `/chat/completions`, and over prompts of tokens where the server scores those."""

    def __init__(self, client: Client, model: str, found: Findings, options: Options, window: int) -> None:
        self._client, self._model, self._found, self._options = client, model, found, options
        self._window = window if found.cuts else 0  # others refuse what does not fit, by an exact count
        self._scorer = Scorer(client, model, found)

    async def count(self, prompt: Prompt) -> int:
        """Exactly where the server tokenizes chats, else an estimate that is rather too high."""
        if self._found.tokenizes:
            return len(await self._scorer.tokens(self._chat(prompt)))
        return _estimated(self._chat(prompt))

    async def ask(
        self,
        prompt: Prompt,
        attempts: tuple[Attempt, ...],
        constraint: Constraint | None,
        sent: Sent | None,
        sampling: Sampling,
    ) -> Reply:
        """One text, under what is `sent` of the constraint; where nothing is, it is told in words."""
        if constraint is not None and sent is None:
            prompt = told(prompt, described(constraint))
        made = self._chat(prompt, attempts)
        body = {**self._body(made, sampling), **({} if sent is None else sent.body)}
        opened = self._found.thinks == "closed"
        if self._options.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            reply = read_events(await self._client.streamed(PATH, body), opened=opened)
        else:
            reply = read_chat(await self._client.post(PATH, body), opened=opened)
        text = self._client.without_keys(made.escaping.undone(reply.text))
        notes = (*made.escaping.notes, *self._unsent(sampling))
        return Reply(
            text if sent is None else sent.undo(text),
            reply.finish,
            reply.usage,
            self._client.without_keys(made.escaping.undone(reply.thinking)),
            notes,
        )

    async def choose(self, prompt: Prompt, options: Sequence[Option]) -> Choice:
        """The best that the server offers of exact, by the likeliest first tokens, drawn, or only named."""
        method = chooses(self._found, self._options)
        if method == "exact":
            return await self._scorer.choose(self._chat(prompt), options)
        if method == "top_k":
            found, usage = await self._by_first_token(prompt, options)
            if found is not None:
                return found
            named = await named_by(in_words(self._reply, prompt, options), options, anew=self._options.anew)
            return replace(named, usage=usage + named.usage, notes=(*named.notes, UNLISTED))
        if method == "sampled":
            return await drawn_by(in_words(self._reply, prompt, options), options, n=self._options.draws)
        return await named_by(in_words(self._reply, prompt, options), options, anew=self._options.anew)

    async def likelihood(self, prompt: Prompt, text: str) -> Likelihood:
        """How probable each token of `text` is, where the server scores prompts."""
        if not self._found.scores:
            raise CapabilityError(
                f"{self._client.who} tells no log-probabilities of prompts, so it cannot say how probable a "
                "given text is; vLLM does, and the embedded engine"
            )
        return await self._scorer.likelihood(prompt, text, self._chat)

    # ------------------------------------------------------------------------------------------------

    def _chat(self, prompt: Prompt, attempts: tuple[Attempt, ...] = ()) -> Chat:
        return chat(prompt, attempts, continues=bool(self._found.continues))

    def _body(self, made: Chat, sampling: Sampling) -> dict[str, Any]:
        """The request for a text; a model that thinks gets room for its thoughts beside it."""
        found, most = self._found, sampling.max_tokens
        if self._window and (needed := _estimated(made) + most) > self._window:
            raise OverLength(
                f"this takes about {needed} tokens with the room kept for the answer, and {found.server} "
                f"cuts what does not fit its window of {self._window} without a word"
            )
        body: dict[str, Any] = {"model": self._model, "messages": made.as_dicts()}
        body[found.budget] = most + (self._options.thoughts if found.thinks else 0)
        if found.samples:
            body |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
            if sampling.temperature > 0:
                body["seed"] = sampling.seed
        if made.begun and found.continues == "continue_final_message":
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        return body

    def _unsent(self, sampling: Sampling) -> tuple[str, ...]:
        notes = []
        if sampling.min_p:
            notes.append("min_p was not sent: it is no parameter of chat completions")
        if not self._found.samples and sampling.temperature != 1:
            notes.append("the server takes no temperature; it sampled in its own way")
        return tuple(notes)

    async def _by_first_token(self, prompt: Prompt, options: Sequence[Option]) -> tuple[Choice | None, Usage]:
        """Shares by the first token, None where the options are hardly among the likeliest; and the cost."""
        # At temperature 1: some servers tell the probabilities after the temperature was applied.
        made = self._chat(prompt)
        body = {**self._body(made, Sampling(temperature=1.0, max_tokens=1)), "logprobs": True}
        body["top_logprobs"] = self._found.top
        body.pop("seed", None)
        answer = await self._client.post(PATH, body)
        read_chat(answer)  # what a filter held back, or has no choices, has no first token that counts
        usage, notes = usage_of_chat(answer), made.escaping.notes
        weights = from_listed(options, read_first_token(answer))
        if weights is None or weights.mass < LEAST_MASS:
            return None, usage
        shares = {option.label: share for option, share in zip(options, weights.shares, strict=True)}
        best = max(shares, key=shares.__getitem__)
        return Choice(best, shares, weights.mass, "top_k", usage, bound=weights.bound, notes=notes), usage

    async def _reply(self, prompt: Prompt, sampling: Sampling) -> Reply:
        return await self.ask(prompt, (), None, None, sampling)


def _estimated(made: Chat) -> int:
    return sum(4 + estimated(turn.text) for turn in made.turns)


def estimated(text: str) -> int:
    """About how many tokens a text has, rather too many: no tokenizer is known to need more for prose."""
    count = 0
    for match in RUNS.finditer(text):
        run = match[0]
        count += -(-len(run) // 4) if run[0].isalpha() and run.isascii() else 1 + (not run.isascii())
    return count
