"""The workload of all contenders: the same prompts, the same schema, the same lengths.

The constants are plain values, so that a contender's process needs no packages to read them. The parent
creates the prompts with the model's own tokenizer, each only once, so that only the shared prefix can be
found in a cache.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.contenders.base import Item
from magistrate.errors import ModelError

# Two answers of one token each in the vocabularies of the catalogue's models.
OPTIONS = ("yes", "no")
# A reason of some 50 characters before the label: about 21 tokens.
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "reason": {"type": "string", "minLength": 30, "maxLength": 50},
        "label": {"enum": ["supported", "unsupported"]},
    },
    "required": ["reason", "label"],
    "additionalProperties": False,
}
ANSWER_TOKENS = 21  # of an unconstrained answer, as many as a verdict with reasons takes
MOST_TOKENS = 96  # room for an answer under the schema, which bounds itself
DECODE_TOKENS = 64

_CLAIM = {
    "type": "object",
    "properties": {
        "reasoning": {"type": "string", "maxLength": 300},
        "kind": {"enum": ["contradiction", "unsupported", "agreement"]},
        "output_quote": {"type": "string", "maxLength": 400},
        "context_quote": {"type": "string", "maxLength": 400},
    },
    "required": ["reasoning", "kind", "output_quote", "context_quote"],
    "additionalProperties": False,
}
# The output of a judge that quotes its evidence.
RUBRIC: Mapping[str, Any] = {
    "type": "object",
    "properties": {"claims": {"type": "array", "items": _CLAIM, "maxItems": 8}},
    "required": ["claims"],
    "additionalProperties": False,
}
RUBRIC_ANSWER = (
    '{"claims":[{"reasoning":"The brochure gives nine as the hour of opening, and the answer says ten.",'
    '"kind":"contradiction","output_quote":"opens at ten","context_quote":"The doors open at nine"},'
    '{"reasoning":"Nothing is said about dogs.","kind":"unsupported","output_quote":"dogs may come in",'
    '"context_quote":""}]}'
)

SHARED_TOKENS = 250
SUFFIX_TOKENS = 18
DISTINCT_TOKENS = SHARED_TOKENS + SUFFIX_TOKENS + 2

_INSTRUCTIONS = (
    "You check whether a statement is supported by the text below. It is supported only if the text says "
    "so; what you know from elsewhere does not count. Answer yes or no."
)
_CONTEXT = (
    "The clock museum stands in a former spinning mill beside the canal. The doors open at nine and close "
    "at five, on Fridays at eight in the evening; on Mondays the house is closed. Adults pay eleven, "
    "students six, and children under twelve come in free. The first floor shows tower clocks, among them "
    "an iron movement of 1583 that still strikes the hours. On the second floor there are pocket watches, "
    "marine chronometers and a workshop in which a watchmaker repairs pieces brought by visitors every "
    "Saturday afternoon. The café on the ground floor serves soup, bread and cake until four. Bags larger "
    "than a sheet of paper go into the lockers at the entrance, which take a coin and give it back. A tour "
    "in plain language starts at two on Sundays and lasts fifty minutes; no booking is needed for groups "
    "of fewer than ten. Photographs are welcome without flash. The lift reaches every floor but the tower, "
    "whose ninety steps are steep. In winter the tower is closed when there is ice on the stairs. The shop "
    "sells spare keys, oil and books on the history of time, and the library upstairs lends them to "
    "members, who pay thirty a year and bring a guest without charge. Trams two and nine stop at the "
    "bridge, three minutes away on foot; parking is found behind the old dye works. "
)
_NOUNS = (
    "adults anchor autumn bakery bridge brass canal candle carpet cellar chapel cheese circus clock "
    "copper corner cotton dealer desert doctor dragon engine evening factory farmer feather fiddle "
    "finger forest garden gesture glacier guitar hammer harbour harvest hotel island jacket journal "
    "journey kettle kitchen ladder lantern letter library lighthouse market meadow melody mirror "
    "morning mountain museum needle neighbour orchard palace paper parade pencil pepper piano pigeon "
    "planet pocket potato prairie quarter rabbit railway ribbon river rocket saddle salmon school "
    "season shadow silver soldier spider spring station summer sugar table teacher temple theatre "
    "thunder ticket timber tower train valley velvet village violin visitor wagon walnut water weather "
    "willow window winter wizard worker yellow"
)
_WORDS = _NOUNS.split()


class Workload:
    """Prompts for one model, given as its folder; the same calls give the same prompts, in every run.

    Raises `ModelError` where the model's tokenizer cannot be made to give the lengths.
    """

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        from magistrate.engines.embedded.chat_tokenizer import ChatTokenizer
        from magistrate.engines.models import describe

        card = describe(folder)
        self.model = card.name
        self._chat = ChatTokenizer(folder, card)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._random = random.Random(0)
        self._serial = count(1)
        for option in OPTIONS:
            if len(self._chat.encode(option).tokens) != 1:
                raise ModelError(
                    f"{self.model} writes {option!r} in several tokens, so verdicts would not compare"
                )
        self._frame = self._sized_frame()

    def shared(self, n: int) -> list[Item]:
        """Prompts of one prefix of about 250 tokens and a suffix of 18 that no other prompt has."""
        users = [self._statement() for _ in range(n)]
        rendered = [self._tokens(user) for user in users]
        head = self._head
        if not all(tokens[: len(head)] == head for tokens in rendered):
            raise ModelError(f"the tokenizer of {self.model} does not keep the prefix of two prompts alike")
        text = len(self._text(head))
        return [
            Item(user, self._text(tokens), tuple(tokens), len(head), text)
            for user, tokens in zip(users, rendered, strict=True)
        ]

    def distinct(self, n: int) -> list[Item]:
        """Return prompts of 270 tokens that share only the beginning of the chat template."""
        return [self._item(self._filled(DISTINCT_TOKENS, self._noise)) for _ in range(n)]

    def stories(self, n: int) -> list[Item]:
        """Return short prompts whose answers are longer than what is measured."""
        return [self._item(f"Write a long story about {self._some(3)}. Begin at once.") for _ in range(n)]

    def questions(self, n: int) -> list[Item]:
        """Return short prompts with a short shared prefix, for many requests in little time."""
        return [self._item(f"Is this the name of a thing, yes or no? {self._some(3)}") for _ in range(n)]

    # ------------------------------------------------------------------------------------------------

    def _sized_frame(self) -> str:
        """Return instructions and enough context for a shared prefix of 250 tokens."""
        words = _CONTEXT.split()

        def frame(n: int) -> str:
            return f"{_INSTRUCTIONS}\n\nText: {' '.join(words[:n])}\n\nStatement:"

        lengths = {n: len(self._common(frame(n))) for n in range(len(words) // 3, len(words) + 1)}
        best = min(lengths, key=lambda n: abs(lengths[n] - SHARED_TOKENS))
        if abs(lengths[best] - SHARED_TOKENS) > SHARED_TOKENS // 20:
            raise ModelError(f"{self.model} reads the shared prefix as {lengths[best]} tokens, not 250")
        self._head = self._common(frame(best))
        return frame(best)

    def _common(self, frame: str) -> list[int]:
        one, other = self._tokens(f"{frame} Adults a"), self._tokens(f"{frame} bridge b")
        same = next(at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
        return one[:same]

    def _statement(self) -> str:
        """Return a prompt whose suffix has 18 tokens and is unique by its number."""
        target = len(self._head) + SUFFIX_TOKENS
        number = next(self._serial)
        subject = self._random.choice(_WORDS)
        return self._filled(target, lambda n: f"{self._frame} {subject} {number} {self._some(n)}.")

    def _noise(self, n: int) -> str:
        return f"{self._some(1)} {next(self._serial)} {self._some(n)}"

    def _filled(self, target: int, written: Callable[[int], str]) -> str:
        """Return `written(words)` with as many words as give it `target` tokens."""
        n = 1
        for _ in range(1000):
            text = written(n)
            length = len(self._tokens(text))
            if length == target:
                return text
            n = (
                max(n + (target - length) // 2, 0)
                if abs(target - length) > 3
                else self._near(n, length, target)
            )
        raise ModelError(f"no prompt of {target} tokens could be written for the tokenizer of {self.model}")

    def _near(self, n: int, length: int, target: int) -> int:
        return max(n + (1 if length < target else -1) * self._random.randint(0, 1), 0)

    def _some(self, n: int) -> str:
        return " ".join(self._random.choices(_WORDS, k=n))

    def _item(self, user: str) -> Item:
        tokens = self._tokens(user)
        return Item(user, self._text(tokens), tuple(tokens))

    def _tokens(self, user: str) -> list[int]:
        from magistrate.types import Prompt

        return self._chat.tokens(Prompt.of(user))

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))


Asked = TypeVar("Asked")
Answered = TypeVar("Answered")


async def answered(
    items: Sequence[Asked], in_flight: int, answer: Callable[[Asked], Awaitable[Answered]]
) -> tuple[float, list[Answered]]:
    """Answer every item, `in_flight` at once; returns the seconds and the answers in order."""
    places = asyncio.Semaphore(in_flight)

    async def one(item: Asked) -> Answered:
        async with places:
            return await answer(item)

    start = time.perf_counter()
    answers = await asyncio.gather(*map(one, items))
    return time.perf_counter() - start, answers
