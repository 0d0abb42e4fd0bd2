"""llama.cpp's server by its own requests: prompts of tokens, grammars, and exact probabilities of answers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from magistrate.constraints import Constraint
from magistrate.engines.base import Attempt, Choice, Likelihood, Option, Sampling
from magistrate.engines.openai.client import Client
from magistrate.engines.openai.constraining import Sent
from magistrate.engines.openai.findings import LISTED, Findings
from magistrate.engines.openai.options import Options
from magistrate.engines.openai.reading import Logprob
from magistrate.engines.openai.tokens import PromptTokens
from magistrate.engines.remote.choosing import Listed, Token, from_listed
from magistrate.engines.remote.foreign import Count, Foreign, read
from magistrate.engines.remote.label_fallback import drawn_by, in_words, named_by
from magistrate.engines.remote.messages import asked_anew
from magistrate.engines.remote.reply import Reply
from magistrate.engines.remote.thinking import split_thinking
from magistrate.engines.remote.wording import described, told
from magistrate.errors import CapabilityError, EngineError, InvalidOutput, OverLength, SpecError
from magistrate.types import Prompt, Usage

FORCE = 1000.0  # added to a logit so that its token is drawn; what is told of it is from before
# Nothing is told of a drawn token that is part of a character, so such are looked for among the likeliest.
LONG_LISTS = (4096, 65536)
CLOSING = "</think>"


class _Top(Foreign):
    id: int
    logprob: Logprob
    token: str = ""
    bytes: list[Annotated[int, Field(ge=0, le=255)]] | None = None


class _Drawn(_Top):
    top_logprobs: tuple[_Top, ...] = ()


class _Timings(Foreign):
    cache_n: int = 0


class _Completion(Foreign):
    content: str
    stop: bool = True
    stop_type: Literal["none", "eos", "limit", "word"] = "none"
    truncated: bool = False
    tokens_evaluated: Count = 0
    tokens_predicted: Count = 0
    timings: _Timings | None = None
    completion_probabilities: tuple[_Drawn, ...] = ()


class LlamaServer:
    """The verbs over `/completion`; `window` is the context window in tokens, 0 where it is not told."""

    def __init__(self, client: Client, found: Findings, options: Options, window: int) -> None:
        self._client, self._found, self._options, self._window = client, found, options, window
        self._tokens = PromptTokens(client, found)
        self._plain: list[int] = []  # a whole character

    async def count(self, prompt: Prompt) -> int:
        """Exactly, chat template included."""
        return len((await self._tokens.of(prompt))[0])

    async def ask(
        self,
        prompt: Prompt,
        attempts: tuple[Attempt, ...],
        constraint: Constraint | None,
        sent: Sent | None,
        sampling: Sampling,
    ) -> Reply:
        """One text, under what is `sent` of the constraint."""
        if constraint is not None and sent is None:
            prompt = told(prompt, described(constraint))
        tokens, opened = await self._tokens.of(asked_anew(prompt, attempts))
        thinking, spent = "", Usage()
        if opened:
            thinking, tokens, spent = await self._thought(tokens)
        body = {
            "prompt": tokens,
            "n_predict": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_k": 0,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "seed": sampling.seed,
            "cache_prompt": True,
            **({} if sent is None else sent.body),
        }
        self._check(len(tokens) + sampling.max_tokens)
        found = await self._completed(body, stream=self._options.stream)
        _check_ended(found)
        text = self._client.without_keys(found.content)
        if not opened:
            thinking, text = split_thinking(text)
        text = text if sent is None else sent.undo(text)
        finish: Literal["stop", "length"] = "length" if found.stop_type == "limit" else "stop"
        return Reply(text, finish, spent + _usage(found), thinking)

    async def choose(self, prompt: Prompt, options: Sequence[Option]) -> Choice:
        """How probable each option is: exactly, token by token, unless a lesser way was asked for."""
        if self._options.choose == "sampled":
            return await drawn_by(in_words(self._reply, prompt, options), options, n=self._options.draws)
        if self._options.choose == "label_only":
            return await named_by(in_words(self._reply, prompt, options), options, anew=self._options.anew)
        tokens, opened = await self._tokens.of(prompt)
        thinking, spent = "", Usage()
        if opened:
            thinking, tokens, spent = await self._thought(tokens)
        if self._options.choose == "top_k":
            choice = await self._by_first_token(tokens, options)
        else:
            choice = await self._exactly(tokens, options)
        return Choice(
            choice.best,
            choice.probabilities,
            choice.mass,
            choice.method,
            spent + choice.usage,
            bound=choice.bound,
            thinking=thinking,
        )

    async def likelihood(self, prompt: Prompt, text: str) -> Likelihood:
        """How probable each token of `text` is, by one call for each of them."""
        import numpy as np

        if self._options.likelihood != "forced":
            raise CapabilityError(
                "llama.cpp's server tells no log-probabilities of prompts; they can be asked for token by "
                "token, one call each: name the model with ,likelihood=forced behind it"
            )
        (tokens, opened), encoded = await asyncio.gather(self._tokens.of(prompt), self._tokens.encoded(text))
        if not encoded.tokens:
            raise SpecError(f"the server's tokenizer reads {text[:100]!r} as nothing at all")
        if opened:
            raise CapabilityError("this model's template opens a thought, so a text cannot be its answer")
        self._check(len(tokens) + len(encoded.tokens))
        logprobs, usage = [], Usage()
        for at, token in enumerate(encoded.tokens):
            drawn, spent = await self._forced([*tokens, *encoded.tokens[:at]], token)
            logprobs.append(drawn)
            usage += spent
        return Likelihood(text, encoded.tokens, np.array(logprobs, np.float64), encoded.offsets, usage)

    # ------------------------------------------------------------------------------------------------

    async def _reply(self, prompt: Prompt, sampling: Sampling) -> Reply:
        return await self.ask(prompt, (), None, None, sampling)

    async def _thought(self, tokens: list[int]) -> tuple[str, list[int], Usage]:
        """What the model thinks, where its template has begun that, and the prompt with it closed."""
        room = max(self._options.thoughts, 1)
        body = {
            "prompt": tokens,
            "n_predict": room,
            "temperature": 0.0,
            "stop": [CLOSING],
            "cache_prompt": True,
        }
        self._check(len(tokens) + room)
        found = await self._completed(body)
        _check_ended(found)
        thought = found.content.strip()
        closed = [*await self._tokens.data(thought), *await self._tokens.special(f"\n{CLOSING}\n\n")]
        return thought, [*tokens, *closed], _usage(found)

    async def _exactly(self, tokens: list[int], options: Sequence[Option]) -> Choice:
        paths = await self._paths(options)
        self._check(len(tokens) + max(len(path) for group in paths for path in group))
        wanted: dict[tuple[int, ...], set[int]] = {}
        for path in (path for group in paths for path in group):
            for at, token in enumerate(path):
                wanted.setdefault(path[:at], set()).add(token)
        usage = Usage()
        known: dict[tuple[int, ...], float] = {}
        for start in sorted(wanted, key=len):
            found, spent = await self._next([*tokens, *start], wanted[start])
            usage += spent
            known |= {(*start, token): logprob for token, logprob in found.items()}
        totals = [
            [sum(known[path[: at + 1]] for at in range(len(path))) for path in group] for group in paths
        ]
        # Relative to the likeliest path, so that options of vanishing mass can still be compared.
        likeliest = max(max(group) for group in totals)
        weights = [sum(math.exp(total - likeliest) for total in group) for group in totals]
        shares = {
            option.label: weight / sum(weights) for option, weight in zip(options, weights, strict=True)
        }
        mass = min(sum(weights) * math.exp(likeliest), 1.0)
        best = max(shares, key=shares.__getitem__)
        return Choice(best, shares, mass, "exact", usage, bound=0.0)

    async def _by_first_token(self, tokens: list[int], options: Sequence[Option]) -> Choice:
        likeliest, usage = await self._likeliest(tokens, LISTED)
        listed = Listed(
            tuple(Token(bytes(each.bytes or each.token.encode()), each.logprob) for each in likeliest)
        )
        weights = from_listed(options, listed)
        if weights is None:
            raise InvalidOutput(f"none of the answers is among the {len(likeliest)} likeliest tokens")
        shares = {option.label: share for option, share in zip(options, weights.shares, strict=True)}
        best = max(shares, key=shares.__getitem__)
        return Choice(best, shares, weights.mass, "top_k", usage, bound=weights.bound)

    async def _next(self, tokens: list[int], wanted: set[int]) -> tuple[dict[int, float], Usage]:
        """Log-probabilities of the tokens wanted next: of the likeliest at once, of each other by itself."""
        likeliest, usage = await self._likeliest(tokens, LISTED)
        known = {each.id: each.logprob for each in likeliest if each.id in wanted}
        for token in sorted(wanted - set(known)):
            known[token], spent = await self._forced(tokens, token)
            usage += spent
        return known, usage

    async def _forced(self, tokens: list[int], token: int) -> tuple[float, Usage]:
        """The model's own log-probability of `token` after `tokens`."""
        found = await self._completed(_one_token(tokens, 1, token))
        usage = _usage(found)
        if found.completion_probabilities and found.completion_probabilities[0].id == token:
            return min(found.completion_probabilities[0].logprob, 0.0), usage
        for listed in LONG_LISTS:
            likeliest, spent = await self._likeliest(tokens, listed)
            usage += spent
            logprob = next((each.logprob for each in likeliest if each.id == token), None)
            if logprob is not None:
                return min(logprob, 0.0), usage
        raise InvalidOutput(f"the server does not tell how probable token {token} is")

    async def _likeliest(self, tokens: list[int], listed: int) -> tuple[tuple[_Top, ...], Usage]:
        """So many likeliest tokens after `tokens`."""
        if not self._plain:
            self._plain = await self._tokens.data(".")
        found = await self._completed(_one_token(tokens, listed, self._plain[-1]))
        if not found.completion_probabilities or not found.completion_probabilities[0].top_logprobs:
            raise InvalidOutput("the server lists no likeliest tokens", found.content)
        return found.completion_probabilities[0].top_logprobs, _usage(found)

    async def _paths(self, options: Sequence[Option]) -> list[list[tuple[int, ...]]]:
        """Token paths of every option's surfaces, ended where one is another's beginning."""
        surfaces = [surface for option in options for surface in option.surfaces]
        spelled = dict(zip(surfaces, await asyncio.gather(*map(self._tokens.data, surfaces)), strict=True))
        owner: dict[tuple[int, ...], str] = {}
        for option in options:
            for surface in option.surfaces:
                path = tuple(spelled[surface])
                if not path or owner.setdefault(path, option.label) != option.label:
                    raise SpecError(
                        f"the surface {surface!r} of option {option.label!r} is nothing to this model's "
                        "tokenizer, or the same as another option's; spell one differently"
                    )

        def closed(path: tuple[int, ...]) -> tuple[int, ...]:
            longer = any(other != path and other[: len(path)] == path for other in owner)
            return (*path, *self._found.end) if longer else path

        return [[closed(path) for path in owner if owner[path] == option.label] for option in options]

    async def _completed(self, body: dict[str, Any], *, stream: bool = False) -> _Completion:
        if stream:
            events = await self._client.streamed("/completion", {**body, "stream": True})
            parts = [read(_Completion, event, "event of a completion") for event in events]
            if not parts or not parts[-1].stop:
                raise InvalidOutput("the server's stream broke off", "".join(part.content for part in parts))
            text = "".join(part.content for part in parts)
            return parts[-1].model_copy(update={"content": text})
        found = read(_Completion, await self._client.post("/completion", body), "completion")
        if found.truncated:
            raise OverLength("the server cut the prompt to fit its context window")
        return found

    def _check(self, tokens: int) -> None:
        if self._window and tokens > self._window:
            raise OverLength(
                f"this takes {tokens} tokens with the room kept for the answer; the context window of "
                f"{self._client.who} is {self._window}"
            )


def _check_ended(found: _Completion) -> None:
    """Refuse a text of which the server does not say that, and why, it ended."""
    if not found.stop or found.stop_type == "none":
        raise EngineError("the answer broke off: the server did not say why it ended (stop_type)")


def _one_token(tokens: list[int], listed: int, forced: int) -> dict[str, Any]:
    """One token more, `forced`, and the likeliest ones with it, as the model has them before any of that."""
    return {
        "prompt": tokens,
        "n_predict": 1,
        "n_probs": listed,
        "temperature": 0.0,
        "cache_prompt": True,
        "logit_bias": [[forced, FORCE]],
    }


def _usage(found: _Completion) -> Usage:
    cached = found.timings.cache_n if found.timings is not None else 0
    return Usage(
        1, found.tokens_evaluated, min(max(cached, 0), found.tokens_evaluated), found.tokens_predicted
    )
