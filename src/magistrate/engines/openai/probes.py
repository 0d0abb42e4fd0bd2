"""Tiny calls that show what a server does. What it does not show is not claimed.

Each constraint is tried on a request that nobody would answer so of their own accord, and counts only where
the answer keeps to it: many servers take parameters that they do not know as if nothing had been said.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from magistrate.constraints import Lark, constraint
from magistrate.engines.base import Option
from magistrate.engines.openai.chats import PATH
from magistrate.engines.openai.client import Requests
from magistrate.engines.openai.constraining import NATIVE, WAYS, Way, sendings
from magistrate.engines.openai.findings import Findings
from magistrate.engines.openai.insisting import broke
from magistrate.engines.openai.options import Options
from magistrate.engines.openai.reading import read_chat, read_first_token
from magistrate.engines.openai.scoring import Scorer
from magistrate.engines.openai.serving import Serving
from magistrate.engines.openai.tokens import render
from magistrate.engines.remote.foreign import Foreign, read
from magistrate.engines.remote.messages import chat
from magistrate.engines.remote.thinking import OPENING
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
PLAIN, THOUGHT = 96, 512  # tokens of the first answer, and of one that may be cut off within a thought
SHORT = 48  # tokens of an answer that must hold a constraint
TOPS = (20, 5)  # numbers of likeliest tokens that are asked for, until the server takes one
BEGUN, REST = "violet-7431-kan", "garoo-green"
GRAMMAR = 'start: "k7-" part\npart: %regex {"substring_words": "amber birch"}'


class _Cached(Foreign):
    cached_tokens: int | None = None


class _Reasoned(Foreign):
    reasoning_tokens: int | None = None


class _Spent(Foreign):
    completion_tokens_details: _Reasoned | None = None
    prompt_tokens_details: _Cached | None = None


class _Answer(Foreign):
    usage: _Spent | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """Asks one server about one model; `options` give the room that thoughts may take."""

    client: Requests
    model: str
    options: Options

    async def found(self, who: Serving) -> Findings:
        """All that could be seen. Raises what stands in the way of the plainest request."""
        found = Findings(server=who.server, window=who.window, cuts=who.cuts)
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

    async def _plain(self, found: Findings) -> tuple[Findings, Any]:
        """The plainest request, with the words that this server has for a budget and a temperature."""
        last: MagistrateError | None = None
        for budget in ("max_tokens", "max_completion_tokens"):
            for samples in (True, False):
                tried = replace(found, budget=budget, samples=samples)
                try:
                    answer = await self._chat(tried, SUM, room=PLAIN)
                    if read_chat(answer).finish == "length":
                        answer = await self._chat(tried, SUM, room=THOUGHT)
                except EngineRefused as error:
                    last = last or error
                    continue
                return replace(tried, thinks=_thoughts(answer)), answer
        raise last or CapabilityError(f"{self.client.who} takes no chat completion")

    async def _native(self, found: Findings) -> Findings:
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

    async def _probabilities(self, found: Findings) -> Findings:
        """How many of the likeliest tokens are listed at the first place of an answer."""
        for top in TOPS:
            more = {"logprobs": True, "top_logprobs": top}
            answer = await self._tried(found, "Say yes or no.", room=1, more=more)
            if answer is not None:
                listed = read_first_token(answer)
                return replace(found, top=min(top, len(listed.tokens)))
        return found

    async def _ways(self, found: Findings) -> tuple[str, ...]:
        """The constraints that held. Of one dialect the first is enough."""
        held: list[str] = []
        dialects: set[str] = set()
        for way in WAYS:
            if way.dialect in dialects or dialects & _NEEDLESS.get(way.dialect, frozenset()):
                continue
            if found.native and way.name not in NATIVE:
                continue
            if await self._holds(found, way):
                held.append(way.name)
                dialects.add(way.dialect)
        return tuple(held)

    async def _holds(self, found: Findings, way: Way) -> bool:
        probe = _PROBES[way.dialect]
        sent = sendings(probe, (way.name,))
        if not sent:
            return False
        answer = await self._tried(found, POEM, room=SHORT, more=dict(sent[0].body))
        if answer is None:
            return False
        try:
            probe.parse(sent[0].undo(read_chat(answer).text.strip()))
        except MagistrateError:
            return False
        return True

    async def _seeds(self, found: Findings) -> bool:
        """Whether one seed draws the same twice, and three seeds not all the same."""
        if not found.samples or found.thinks:
            return False
        texts = []
        for seed in (7, 7, 8, 9):
            more = {"temperature": 1.0, "seed": seed}
            answer = await self._tried(found, "Say any three words.", room=8, more=more)
            if answer is None:
                return False
            texts.append(_text(answer))
        return texts[0] == texts[1] and len(set(texts)) > 1

    async def _continued(self, found: Findings) -> Findings:
        """Whether a begun answer is gone on with, and what has to be said for that."""
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
            answer = await self._tried(found, "", room=12, more={"messages": turns, **more})
            if answer is not None and _text(answer).lstrip().startswith(REST[:5]):
                return replace(found, continues=how)  # type: ignore[arg-type]
        return found

    async def _scoring(self, found: Findings) -> Findings:
        """Whether chats become tokens, and whether prompts of tokens are scored."""
        scorer = Scorer(self.client, self.model, found)
        made = chat(Prompt.of("Say yes or no."))
        try:
            await scorer.tokens(made)
        except MagistrateError:
            return found
        found = replace(found, tokenizes=True)
        if found.thinks:
            return found
        for scores in ("prompt_logprobs", "echo"):
            tried = replace(found, scores=scores)
            try:
                options = (Option("yes", ("yes",)), Option("no", ("no",)))
                choice = await Scorer(self.client, self.model, tried).choose(made, options)
            except (EngineTimeout, EngineBusy):
                raise
            except MagistrateError:
                continue
            if choice.mass:
                return tried
        return found

    # ------------------------------------------------------------------------------------------------

    async def _chat(
        self, found: Findings, said: str, *, room: int, more: dict[str, Any] | None = None
    ) -> Any:
        body: dict[str, Any] = {"model": self.model, "messages": [{"role": "user", "content": said}]}
        body[found.budget] = room + (self.options.thoughts if found.thinks else 0)
        if found.samples:
            body["temperature"] = 0.0
        return await self.client.post(PATH, {**body, **(more or {})})

    async def _tried(self, found: Findings, said: str, *, room: int, more: dict[str, Any]) -> Any:
        """The answer; None where the server does not take the request, or breaks at it. Other errors are
        errors here too."""
        try:
            answer = await self._chat(found, said, room=room, more=more)
            read_chat(answer)
        except (EngineRefused, InvalidOutput, OverLength):
            return None
        except EngineError as error:
            if broke(error):
                return None
            raise
        return answer


# Where one of these held, the other would say less.
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
    """Where the thoughts of a plain answer stand; those that are only counted stand apart too."""
    usage = read(_Answer, answer, "chat completion").usage
    details = usage.completion_tokens_details if usage is not None else None
    if details is not None and details.reasoning_tokens:
        return "apart"
    if OPENING.match(raw := _raw(answer)):
        return "tags"
    if "</think>" in raw:
        return "closed"
    return "apart" if read_chat(answer).thinking else ""


def _raw(answer: Any) -> str:
    content = answer["choices"][0]["message"].get("content")
    return content if isinstance(content, str) else ""


def _tells_cached(answer: Any) -> bool:
    usage = read(_Answer, answer, "chat completion").usage
    details = usage.prompt_tokens_details if usage is not None else None
    return details is not None and details.cached_tokens is not None
