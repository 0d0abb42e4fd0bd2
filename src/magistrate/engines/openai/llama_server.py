"""llama.cpp's server, through its own API: prompts of tokens, grammars, exact probabilities.

Template and data are tokenized separately, as in the embedded engine. The server renders its template with
placeholders (`/apply-template`), so that it never sees the texts. The rendered template and the trusted
parts are tokenized with special tokens (`/tokenize`, `parse_special`), data without.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any, Literal, TypeVar

from magistrate.constraints import Constraint
from magistrate.engines.base import Attempt, Choice, Likelihood, Option, Sampling, exact_choice
from magistrate.engines.openai.constraints import SentConstraint
from magistrate.engines.openai.server_capabilities import LISTED, Options, ServerCapabilities
from magistrate.engines.remote.client import Requests
from magistrate.engines.remote.messages import in_words, with_attempts, with_instruction
from magistrate.engines.remote.replies import (
    Body,
    Count,
    Reply,
    TopTokenBody,
    label_asker,
    label_only_choice,
    read,
    sampled_choice,
    split_thinking,
    token_paths,
    top_k_choice,
)
from magistrate.errors import CapabilityError, EngineError, InvalidOutput, OverLength, SpecError
from magistrate.types import Prompt, Trusted, Usage

T = TypeVar("T")

FORCE = 1000.0  # added to a logit so that its token is drawn; the reported probability is the one before that
# A drawn token that is part of a character is not reported, so it is looked up among the most likely.
LONG_LISTS = (4096, 65536)
CLOSING = "</think>"
PLACEHOLDER = re.compile("\ue000([0-9]{1,9})\ue001")  # private-use characters around a part's number
OPEN_THOUGHT = re.compile(r"<think(?:ing)?>\s*\Z")
MAX_REMEMBERED = 512  # cached entries: rendered templates and tokenized pieces of them


class _Top(TopTokenBody):
    id: int
    token: str = ""


class _Drawn(_Top):
    top_logprobs: tuple[_Top, ...] = ()


class _Timings(Body):
    cache_n: int = 0


class _Completion(Body):
    content: str
    stop: bool = True
    stop_type: Literal["none", "eos", "limit", "word"] = "none"
    truncated: bool = False
    tokens_evaluated: Count = 0
    tokens_predicted: Count = 0
    timings: _Timings | None = None
    completion_probabilities: tuple[_Drawn, ...] = ()


class LlamaServer:
    """Implements the verbs with `/completion`; `window` is the context window in tokens, 0 if unknown."""

    def __init__(
        self, client: Requests, capabilities: ServerCapabilities, options: Options, window: int
    ) -> None:
        self._client, self._capabilities, self._options = client, capabilities, options
        self._window = window
        self._tokens = PromptTokens(client, capabilities)
        self._plain: list[int] = []  # a token that is a whole character

    async def count(self, prompt: Prompt) -> int:
        """Return the exact number of tokens, chat template included."""
        return len((await self._tokens.of(prompt))[0])

    async def ask(
        self,
        prompt: Prompt,
        attempts: tuple[Attempt, ...],
        constraint: Constraint | None,
        sent: SentConstraint | None,
        sampling: Sampling,
    ) -> Reply:
        """Request a text, with the constraint as `sent`, or as an instruction in words if `sent` is None."""
        if constraint is not None and sent is None:
            prompt = with_instruction(prompt, in_words(constraint))
        tokens, thinking, spent = await self._before_answer(with_attempts(prompt, attempts))
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
        completion = await self._completed(body, stream=self._options.stream)
        _check_ended(completion)
        text = self._client.without_keys(completion.content)
        if thinking is None:
            thinking, text = split_thinking(text)
        text = text if sent is None else sent.undo(text)
        finish: Literal["stop", "length"] = "length" if completion.stop_type == "limit" else "stop"
        return Reply(text, finish, spent + _usage(completion), thinking)

    async def choose(self, prompt: Prompt, options: Sequence[Option]) -> Choice:
        """Compute each option's exact probability, token by token, unless another method is selected."""
        ask = label_asker(self._reply, prompt, options)
        if self._options.choose == "sampled":
            return await sampled_choice(ask, options, draws=self._options.draws)
        if self._options.choose == "label_only":
            return await label_only_choice(ask, options, retries=self._options.anew)
        tokens, thinking, spent = await self._before_answer(prompt)
        by = self._by_first_token if self._options.choose == "top_k" else self._exactly
        choice = await by(tokens, options)
        return replace(choice, usage=spent + choice.usage, thinking=thinking or "")

    async def likelihood(self, prompt: Prompt, text: str) -> Likelihood:
        """Compute the probability of each token of `text`, with one call per token."""
        import numpy as np

        if self._options.likelihood != "forced":
            raise CapabilityError(
                "llama.cpp's server returns no log-probabilities of prompts; they can be requested token by "
                "token, one call each: add ,likelihood=forced to the model"
            )
        (tokens, opened), (answer, offsets) = await asyncio.gather(
            self._tokens.of(prompt), self._tokens.with_offsets(text)
        )
        if not answer:
            raise SpecError(f"the server's tokenizer returns no tokens for {text[:100]!r}")
        if opened:
            raise CapabilityError(
                "this model's template starts with a reasoning block, so a given text cannot be its answer"
            )
        self._check(len(tokens) + len(answer))
        logprobs, usage = [], Usage()
        for at, token in enumerate(answer):
            drawn, spent = await self._forced([*tokens, *answer[:at]], token)
            logprobs.append(drawn)
            usage += spent
        return Likelihood(text, answer, np.array(logprobs, np.float64), offsets, usage)

    # ------------------------------------------------------------------------------------------------

    async def _reply(self, prompt: Prompt, sampling: Sampling) -> Reply:
        return await self.ask(prompt, (), None, None, sampling)

    async def _before_answer(self, prompt: Prompt) -> tuple[list[int], str | None, Usage]:
        """Return the prompt's tokens up to the answer, the thoughts in them (None if the template does not
        begin a thought), and the usage of the thoughts."""
        tokens, opened = await self._tokens.of(prompt)
        if not opened:
            return tokens, None, Usage()
        budget = max(self._options.thoughts, 1)
        self._check(len(tokens) + budget)
        body = {"prompt": tokens, "n_predict": budget, "temperature": 0.0, "cache_prompt": True}
        completion = await self._completed({**body, "stop": [CLOSING]})
        _check_ended(completion)
        thought = completion.content.strip()
        end = await self._tokens.special(f"\n{CLOSING}\n\n")
        return [*tokens, *await self._tokens.data(thought), *end], thought, _usage(completion)

    async def _exactly(self, tokens: list[int], options: Sequence[Option]) -> Choice:
        surfaces = [surface for option in options for surface in option.surfaces]
        spelled = await asyncio.gather(*map(self._tokens.data, surfaces))
        paths = token_paths(
            options, dict(zip(surfaces, map(tuple, spelled), strict=True)), self._capabilities.end
        )
        self._check(len(tokens) + max(len(path) for path in chain(*paths)))
        wanted: dict[tuple[int, ...], set[int]] = {}
        for path in chain(*paths):
            for at, token in enumerate(path):
                wanted.setdefault(path[:at], set()).add(token)
        usage = Usage()
        known: dict[tuple[int, ...], float] = {}
        for start in sorted(wanted, key=len):
            logprobs, spent = await self._next([*tokens, *start], wanted[start])
            usage += spent
            known |= {(*start, token): logprob for token, logprob in logprobs.items()}
        totals = [
            [sum(known[path[: at + 1]] for at in range(len(path))) for path in group] for group in paths
        ]
        return exact_choice(options, totals, usage)

    async def _by_first_token(self, tokens: list[int], options: Sequence[Option]) -> Choice:
        likeliest, usage = await self._likeliest(tokens, LISTED)
        choice = top_k_choice(options, [each.value for each in likeliest], usage)
        if choice is None:
            raise InvalidOutput(f"none of the answers is among the {len(likeliest)} likeliest tokens")
        return choice

    async def _next(self, tokens: list[int], wanted: set[int]) -> tuple[dict[int, float], Usage]:
        """Return log-probabilities of the `wanted` next tokens: one call for the top, one for each other."""
        likeliest, usage = await self._likeliest(tokens, LISTED)
        known = {each.id: each.logprob for each in likeliest if each.id in wanted}
        for token in sorted(wanted - set(known)):
            known[token], spent = await self._forced(tokens, token)
            usage += spent
        return known, usage

    async def _forced(self, tokens: list[int], token: int) -> tuple[float, Usage]:
        """Return the model's own log-probability of `token` after `tokens`."""
        completion = await self._completed(_one_token(tokens, 1, token))
        usage = _usage(completion)
        drawn = next(iter(completion.completion_probabilities), None)
        if drawn is not None and drawn.id == token:
            return min(drawn.logprob, 0.0), usage
        for listed in LONG_LISTS:
            likeliest, spent = await self._likeliest(tokens, listed)
            usage += spent
            logprob = next((each.logprob for each in likeliest if each.id == token), None)
            if logprob is not None:
                return min(logprob, 0.0), usage
        raise InvalidOutput(f"the server does not return the probability of token {token}")

    async def _likeliest(self, tokens: list[int], listed: int) -> tuple[tuple[_Top, ...], Usage]:
        """Return the `listed` most likely tokens after `tokens`."""
        if not self._plain:
            self._plain = await self._tokens.data(".")
        completion = await self._completed(_one_token(tokens, listed, self._plain[-1]))
        drawn = next(iter(completion.completion_probabilities), None)
        if drawn is None or not drawn.top_logprobs:
            raise InvalidOutput("the server returns no list of likeliest tokens", completion.content)
        return drawn.top_logprobs, _usage(completion)

    async def _completed(self, body: dict[str, Any], *, stream: bool = False) -> _Completion:
        if stream:
            events = await self._client.stream("/completion", body)
            parts = [read(_Completion, event, "event of a completion") for event in events]
            if not parts or not parts[-1].stop:
                raise InvalidOutput("the server's stream broke off", "".join(part.content for part in parts))
            text = "".join(part.content for part in parts)
            if any(part.stop_type != "none" for part in parts[:-1]):
                raise InvalidOutput("the server's stream went on after its end", text)
            cut = any(part.truncated for part in parts)
            completion = parts[-1].model_copy(update={"content": text, "truncated": cut})
        else:
            completion = read(_Completion, await self._client.post("/completion", body), "completion")
        if completion.truncated:
            raise OverLength("the server cut the prompt to fit its context window")
        return completion

    def _check(self, tokens: int) -> None:
        if self._window and tokens > self._window:
            raise OverLength(
                f"this needs {tokens} tokens, including the space for the answer; the context window of "
                f"{self._client.who} is {self._window}"
            )


def _check_ended(completion: _Completion) -> None:
    """Raise `EngineError` unless the server reports that the text ended, and why."""
    if not completion.stop or completion.stop_type == "none":
        raise EngineError("the answer is incomplete: the server did not say why it ended (stop_type)")


def _one_token(tokens: list[int], listed: int, forced: int) -> dict[str, Any]:
    """Build a request for one token, `forced`, and for the model's own `listed` most likely tokens."""
    return {
        "prompt": tokens,
        "n_predict": 1,
        "n_probs": listed,
        "temperature": 0.0,
        "cache_prompt": True,
        "logit_bias": [[forced, FORCE]],
    }


def _usage(completion: _Completion) -> Usage:
    cached = completion.timings.cache_n if completion.timings is not None else 0
    return Usage(
        1,
        completion.tokens_evaluated,
        min(max(cached, 0), completion.tokens_evaluated),
        completion.tokens_predicted,
    )


# --- prompts as tokens ---------------------------------------------------------------------------


class _Rendered(Body):
    prompt: str


class _Pieces(Body):
    tokens: list[int]


class _Piece(Body):
    id: int
    piece: str | list[int]


class _Spelled(Body):
    tokens: list[_Piece]


class PromptTokens:
    """Tokenizes prompts and texts with the server's tokenizer."""

    def __init__(self, client: Requests, capabilities: ServerCapabilities) -> None:
        self._client = client
        self._capabilities = capabilities
        self._cache: OrderedDict[object, Any] = OrderedDict()  # the most recently used is last

    async def of(self, prompt: Prompt) -> tuple[list[int], bool]:
        """Return all tokens of the prompt up to the answer, and whether its template opens a thought."""
        rendered = await self._rendered(prompt)
        parts = [part for message in prompt.messages for part in message.parts]
        seen = [int(match[1]) for match in PLACEHOLDER.finditer(rendered)]
        if seen != list(range(len(parts))):
            raise SpecError(
                "the chat template of the server's model drops, repeats or reorders its input: of the parts "
                f"0 to {len(parts) - 1} it wrote {seen[:50]}"
            )
        pieces, trusted = [], ""
        for index, between in enumerate(PLACEHOLDER.split(rendered)):
            part = parts[int(between)] if index % 2 else Trusted(between)
            if isinstance(part, Trusted):
                trusted += part.text
            else:
                pieces += [self._template(trusted), self.data(part.text)]
                trusted = ""
        pieces.append(self._template(trusted))
        tokens = await asyncio.gather(*pieces)
        return [*self._capabilities.bos, *chain.from_iterable(tokens)], OPEN_THOUGHT.search(
            trusted
        ) is not None

    async def data(self, text: str) -> list[int]:
        """Tokenize untrusted text; the result has no special tokens, whatever the characters."""
        return await self._tokens(text, special=False)

    async def special(self, text: str) -> list[int]:
        """Tokenize template text, including special tokens."""
        return await self._tokens(text, special=True)

    async def with_offsets(self, text: str) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
        """Return the result of `data`, and the half-open character offsets of each token in the text."""
        clean = _encodable(text)
        lead = await self._lead()
        body = {"content": "\n" * bool(lead) + clean, "with_pieces": True, "parse_special": False}
        spelled = read(_Spelled, await self._client.post("/tokenize", body), "tokenization").tokens
        spelled = spelled[len(lead) :]
        written = [
            each.piece.encode() if isinstance(each.piece, str) else bytes(each.piece) for each in spelled
        ]
        if b"".join(written) != clean.encode():
            raise EngineError("the server's tokens do not add up to the text")
        place = list(chain.from_iterable([at] * len(char.encode()) for at, char in enumerate(clean)))
        offsets, start = [], 0
        for piece in written:
            end = start + len(piece)
            offsets.append((place[start], place[end - 1] + 1) if piece else (0, 0))
            start = end
        return tuple(each.id for each in spelled), tuple(offsets)

    # ------------------------------------------------------------------------------------------------

    async def _template(self, text: str) -> list[int]:
        return await self._remembered(text, lambda: self.special(text))

    async def _tokens(self, text: str, *, special: bool) -> list[int]:
        if not text:
            return []
        lead = await self._lead()
        body = {"content": "\n" * bool(lead) + _encodable(text), "parse_special": special}
        tokens = read(_Pieces, await self._client.post("/tokenize", body), "tokenization").tokens
        return tokens[len(lead) :]

    async def _lead(self) -> list[int]:
        """Return a line break's tokens, put before a text to absorb the space that some tokenizers add."""

        async def line_break() -> list[int]:
            answer = await self._client.post("/tokenize", {"content": "\n"})
            return read(_Pieces, answer, "tokenization").tokens

        return await self._remembered(None, line_break) if self._capabilities.spaced else []

    async def _rendered(self, prompt: Prompt) -> str:
        """Render the model's template with a numbered placeholder for every part of the messages."""
        if not prompt.messages:
            raise SpecError("a prompt needs at least one message")
        shape = tuple((message.role, len(message.parts)) for message in prompt.messages)

        async def template() -> str:
            number = count()
            messages = [
                {"role": role, "content": "".join(f"\ue000{next(number)}\ue001" for _ in range(parts))}
                for role, parts in shape
            ]
            begun = messages.pop()["content"] if shape[-1][0] == "assistant" else ""
            return await render(self._client, messages) + begun

        return await self._remembered(shape, template)

    async def _remembered(self, key: object, make: Callable[[], Awaitable[T]]) -> T:
        """Return the cached value for `key`, or call `make` and cache its result."""
        value: T = self._cache.pop(key) if key in self._cache else await make()
        self._cache[key] = value
        if len(self._cache) > MAX_REMEMBERED:
            self._cache.popitem(last=False)
        return value


async def render(client: Requests, messages: list[dict[str, str]]) -> str:
    """Return the server's chat template over `messages`, up to where the answer begins."""
    body = {"messages": messages, "chat_template_kwargs": {"enable_thinking": False}}
    return read(_Rendered, await client.post("/apply-template", body), "rendered template").prompt


def _encodable(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded as UTF-8; byte-level vocabularies need that."""
    return text.encode("utf-8", "replace").decode()
