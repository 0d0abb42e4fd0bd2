"""Cross-examination of two answers: each side attacks or asks about the other's words, quoted verbatim.

A part of the judge `committee`, which reads the whole exchange before it votes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, get_args

from magistrate.constraints import Constraint, constraint
from magistrate.constraints.quote import Quote, quote_schema, quoted
from magistrate.constraints.schema import closed_object, short_text
from magistrate.engines.base import Capability, Engine, Generation, Sampling, in_role, require
from magistrate.errors import InvalidOutput, SpecError
from magistrate.judges.base import READS, Call, unfit
from magistrate.judges.composite import gather_or_cancel
from magistrate.judges.template import builtin_prompt, fields_of
from magistrate.types import Prompt, Sample

AUTHORS = {"A": "model_a", "B": "model_b"}  # keys of a sample's metadata: who wrote the two answers
MOST_ROUNDS = 5
TEXT = 200  # characters of a challenge, and of a reply
CHALLENGE_TOKENS, REPLY_TOKENS = 160, 112  # beyond that the engine steers the text to its end
HEAD_TOKENS = 24  # for the template's words around a challenge or reply
ROUND_TOKENS = 2 * (CHALLENGE_TOKENS + REPLY_TOKENS + 2 * HEAD_TOKENS)
NEEDS: frozenset[Capability] = frozenset({"generate", "constraints"})

Side = Literal["A", "B"]
SIDES: tuple[Side, ...] = get_args(Side)
Move = Literal["attack", "ask"]
Ending = Literal["last round", "nothing new", "window"]
MOVES: Mapping[Move, str] = {"attack": "attacked", "ask": "asked about"}
NAMES: Mapping[Side, tuple[str, str]] = {"A": ("Side A", "answer A"), "B": ("Side B", "answer B")}
SWAPPED: Mapping[Side, tuple[str, str]] = {"A": NAMES["B"], "B": NAMES["A"]}  # with the output as answer B


@dataclass(frozen=True, slots=True)
class Challenge:
    """An attack on words of the other answer, or a question about them, with the other side's reply."""

    side: Side
    move: Move
    words: Quote
    text: str
    reply: str = ""


@dataclass
class Exchange:
    """The rounds of challenges, why they ended, and which texts were steered to their end."""

    rounds: list[tuple[Challenge, ...]] = field(default_factory=list)
    ended: Ending = "last round"
    steered: list[str] = field(default_factory=list)

    def is_new(self, challenge: Challenge) -> bool:
        """Return whether a challenge quotes words that its side has not quoted before."""
        return not any(
            challenge.side == each.side
            and each.words.start <= challenge.words.start
            and challenge.words.end <= each.words.end
            for challenges in self.rounds
            for each in challenges
        )

    def lines(
        self, names: Mapping[Side, tuple[str, str]], *, swapped: bool
    ) -> Iterator[tuple[str, str | None]]:
        """Yield the exchange as lines: our own words, then a side's words or None.

        `names` is what the sides and their answers are called. `swapped` puts side B first in every round.
        """
        for challenges in self.rounds:
            for each in sorted(challenges, key=lambda each: each.side, reverse=swapped):
                who, (asked, answer) = names[each.side][0], names[other(each.side)]
                yield f"{who} {MOVES[each.move]} these words of {answer}: ", str(each.words)
                yield f"{who} said: ", each.text
                yield (f"{asked} replied: ", each.reply) if each.reply else (f"{asked} did not reply.", None)

    def recorded(self) -> dict[str, Any]:
        """Return the exchange as plain values, for the verdict's details."""
        rounds = [
            [
                {
                    "side": each.side,
                    "move": each.move,
                    "quote": str(each.words),
                    "at": [each.words.start, each.words.end],
                    "text": each.text,
                    "reply": each.reply or None,
                }
                for each in challenges
            ]
            for challenges in self.rounds
        ]
        return {"rounds": rounds, "ended": self.ended, "steered": self.steered}


def other(side: Side) -> Side:
    """Return the opposite side."""
    return "B" if side == "A" else "A"


def record_of(lines: Sequence[tuple[str, str | None]]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return lines for a template: our own words with the place of a text, and the texts, which are data."""
    texts = tuple(text for _, text in lines if text is not None)
    places = iter(range(len(texts)))
    return [{"head": head, "at": None if text is None else next(places)} for head, text in lines], texts


@dataclass(frozen=True)
class CrossExamination:
    """Lets both sides challenge each other's answer for up to `rounds` rounds.

    In each round both sides, at the same time, attack words of the other answer, ask about them, or rest.
    The words are quoted verbatim by constraint. Then each challenged side replies. A challenge whose words
    its side has quoted before counts as rest. It ends when a round has no challenge left, or when the next
    round, or what the committee is asked after it, would not fit a model's window. `speakers` maps the
    authors of answers to the models that speak for them; without one, or where it is None, the run's model
    speaks. If one call fails, the whole judgement fails, so that no side gains by the other's failure.
    """

    rounds: int = 1
    speakers: Mapping[str, Engine | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.rounds <= MOST_ROUNDS:
            raise SpecError(f"a cross-examination has 1 to {MOST_ROUNDS} rounds, got {self.rounds}")
        for name, engine in self.speakers.items():
            if engine is not None:
                require(engine.info, NEEDS, f"{name!r}, to be cross-examined")

    def __str__(self) -> str:
        return f"{self.rounds} rounds"

    @property
    def asks_the_run(self) -> bool:
        """Whether the run's model speaks for a side."""
        return not self.speakers or None in self.speakers.values()

    @property
    def pinned(self) -> str:
        """Everything that an exchange depends on."""
        speakers = {
            name: None if engine is None else engine.info.fingerprint
            for name, engine in sorted(self.speakers.items())
        }
        return repr((builtin_prompt("cross_examination").digest, self.rounds, speakers))

    def plan(self, sample: Sample, criteria: str) -> list[Call]:
        """Return the calls of both sides. All are optional: a round that does not fit is not begun."""
        said = self.rounds * ROUND_TOKENS
        return [
            Call(prompt, tokens, said, self._own(sample, side), self.rounds, optional=True)
            for side in SIDES
            for prompt, tokens in (
                (self._challenging(sample, criteria, Exchange(), side), CHALLENGE_TOKENS),
                (self._replying(sample, criteria, Exchange(), side, None), REPLY_TOKENS),
            )
        ]

    async def held(
        self,
        sample: Sample,
        criteria: str,
        engine: Engine,
        following: Callable[[Exchange], Sequence[Call]],
    ) -> Exchange:
        """Execute the rounds. `following` returns the calls that must fit after an exchange."""
        exchange = Exchange()
        for _ in range(self.rounds):
            if await self._full(sample, criteria, exchange, engine, following):
                exchange.ended = "window"
                return exchange
            said = await gather_or_cancel(
                self._challenged(sample, criteria, exchange, side, engine) for side in SIDES
            )
            new = [each for each in said if each is not None and exchange.is_new(each)]
            if not new:
                exchange.ended = "nothing new"
                return exchange
            replies = await gather_or_cancel(
                self._replied(sample, criteria, exchange, each, engine) for each in new
            )
            pairs = zip(new, replies, strict=True)
            exchange.rounds.append(tuple(replace(each, reply=reply) for each, reply in pairs))
        return exchange

    async def _full(
        self,
        sample: Sample,
        criteria: str,
        exchange: Exchange,
        engine: Engine,
        following: Callable[[Exchange], Sequence[Call]],
    ) -> bool:
        """Return whether another round, or what follows it, may not fit a model's window."""
        calls = [
            Call(
                self._challenging(sample, criteria, exchange, side),
                CHALLENGE_TOKENS + REPLY_TOKENS,
                CHALLENGE_TOKENS + HEAD_TOKENS,
                self._own(sample, side),
            )
            for side in SIDES
        ]
        calls += [replace(each, extra=each.extra + ROUND_TOKENS) for each in following(exchange)]
        return any([await unfit(each, engine) for each in calls])

    async def _challenged(
        self, sample: Sample, criteria: str, exchange: Exchange, side: Side, engine: Engine
    ) -> Challenge | None:
        """Return a side's challenge, None if it rests."""
        theirs = _answer(sample, other(side))
        prompt = self._challenging(sample, criteria, exchange, side)
        shape = _challenge(quote_schema("answer", "words", (theirs,))).over(answer=(theirs,))
        written = await self._written(sample, side, prompt, shape, CHALLENGE_TOKENS, engine)
        _note_steered(exchange, written, f"side {side}, challenge {len(exchange.rounds) + 1}")
        found = written.value["challenge"]
        if found["move"] == "rest":
            return None
        words = quoted(found["quote"], "answer", "words", (theirs,))
        return Challenge(side, found["move"], words, found["text"].strip())

    async def _replied(
        self, sample: Sample, criteria: str, exchange: Exchange, challenge: Challenge, engine: Engine
    ) -> str:
        side = other(challenge.side)
        prompt = self._replying(sample, criteria, exchange, side, challenge)
        written = await self._written(sample, side, prompt, _reply(), REPLY_TOKENS, engine)
        _note_steered(exchange, written, f"side {side}, reply {len(exchange.rounds) + 1}")
        return str(written.value["reply"]).strip()

    async def _written(
        self, sample: Sample, side: Side, prompt: Prompt, shape: Constraint, tokens: int, engine: Engine
    ) -> Generation:
        asked = in_role(engine, self._own(sample, side))
        written = await asked.generate(prompt, shape, sampling=Sampling(max_tokens=tokens))
        if written.finish == "length":
            raise InvalidOutput(f"side {side} was cut off where its tokens ran out", written.text)
        return written

    def _own(self, sample: Sample, side: Side) -> Engine | None:
        return self.speakers.get(str(sample.metadata.get(AUTHORS[side])))

    # --- prompts ----------------------------------------------------------------------------------

    def _challenging(self, sample: Sample, criteria: str, exchange: Exchange, side: Side) -> Prompt:
        return self._prompt(sample, criteria, exchange, side, "challenge")

    def _replying(
        self, sample: Sample, criteria: str, exchange: Exchange, side: Side, challenge: Challenge | None
    ) -> Prompt:
        """Return the prompt for a reply; None stands for a challenge that is not written yet."""
        if challenge is None:
            return self._prompt(sample, criteria, exchange, side, MOVES["attack"], quote="…", text="…")
        said = {"quote": str(challenge.words), "text": challenge.text}
        return self._prompt(sample, criteria, exchange, side, MOVES[challenge.move], **said)

    def _prompt(
        self, sample: Sample, criteria: str, exchange: Exchange, side: Side, stage: str, **said: str
    ) -> Prompt:
        names: dict[Side, tuple[str, str]] = {
            side: ("You", "your answer"),
            other(side): ("The other side", "the other answer"),
        }
        record, texts = record_of(list(exchange.lines(names, swapped=side == "B")))
        answers = {"mine": _answer(sample, side), "theirs": _answer(sample, other(side))}
        fields = {**fields_of(sample, READS), **answers, "quote": "", "text": "", **said, "said": texts}
        words = {"criteria": criteria, "stage": stage, "record": record}
        return builtin_prompt("cross_examination").prompt(fields, words)


def _answer(sample: Sample, side: Side) -> str:
    return (sample.output or "") if side == "A" else sample.alternatives[0]


def _note_steered(exchange: Exchange, written: Generation, what: str) -> None:
    if written.steered:
        exchange.steered.append(what)


def _challenge(quote: Mapping[str, Any]) -> Constraint:
    """Return the shape of a challenge; `quote` is the schema of its quote."""
    spoken = {"move": {"enum": list(MOVES)}, "quote": quote, "text": short_text(TEXT)}
    choices = [closed_object({"move": {"enum": ["rest"]}}), closed_object(spoken)]
    return constraint(closed_object({"challenge": {"anyOf": choices}}))


@lru_cache(maxsize=1)
def _reply() -> Constraint:
    return constraint(closed_object({"reply": short_text(TEXT)}))
