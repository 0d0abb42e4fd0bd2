"""Labels without probabilities of tokens: drawn many times, or named once in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from magistrate.engines.base import Attempt, Choice, Option, Sampling, UnusableAnswer
from magistrate.engines.remote.choosing import named
from magistrate.engines.remote.messages import asked_anew
from magistrate.engines.remote.reply import Reply
from magistrate.engines.remote.wording import told
from magistrate.errors import InvalidOutput
from magistrate.types import Prompt, Usage

ROOM = 16  # tokens of a reply that names an option
ONLY = "Reply with nothing but one of these: "

Ask = Callable[[tuple[Attempt, ...], int | None], Awaitable[Reply]]
"""Asks for a label after refused attempts: drawn with a seed, or the likeliest where that is None."""


def in_words(
    ask: Callable[[Prompt, Sampling], Awaitable[Reply]], prompt: Prompt, options: Sequence[Option]
) -> Ask:
    """Asks by `prompt`, and after a refused attempt says what the answers are."""
    offered = ONLY + ", ".join(option.surfaces[0].strip() for option in options)

    async def asked(attempts: tuple[Attempt, ...], seed: int | None) -> Reply:
        again = told(asked_anew(prompt, attempts), offered) if attempts else prompt
        if seed is None:
            return await ask(again, Sampling(max_tokens=ROOM))
        return await ask(again, Sampling(max_tokens=ROOM, temperature=1.0, seed=seed))

    return asked


async def named_by(ask: Ask, options: Sequence[Option], *, anew: int) -> Choice:
    """The label that the model replies with, asked at most `anew` times more where it names none.

    Raises `UnusableAnswer` where it never does: no label is made up.
    """
    attempts: list[Attempt] = []
    usage = Usage()
    while True:
        reply = await ask(tuple(attempts), None)
        usage += reply.usage
        try:
            best = _label(reply, options)
        except InvalidOutput as error:
            if len(attempts) >= anew:
                raise UnusableAnswer(str(error), reply.text, attempts, reply.thinking, usage) from None
            attempts.append(Attempt(reply.text, str(error)))
            continue
        return Choice(best, None, None, "label_only", usage, thinking=reply.thinking, notes=reply.notes)


async def drawn_by(ask: Ask, options: Sequence[Option], *, n: int) -> Choice:
    """Shares of the labels among `n` draws; what names none counts for none of them.

    `mass` is the share of the draws that named one. Raises `UnusableAnswer` where less than half of them did.
    """
    drawn: Counter[str] = Counter()
    usage, unnamed = Usage(), list[Attempt]()
    for seed in range(n):
        try:
            reply = await ask((), seed)
        except InvalidOutput as error:
            usage += getattr(error, "usage", Usage(calls=1))
            unnamed.append(Attempt(error.text, str(error)))
            continue
        usage += reply.usage
        try:
            drawn[_label(reply, options)] += 1
        except InvalidOutput as error:
            unnamed.append(Attempt(reply.text, str(error)))
    whole = drawn.total()
    if 2 * whole < n or not whole:
        last = unnamed[-1]
        told = f"only {whole} of {n} draws name an answer; the last of the others: {last.problem}"
        raise UnusableAnswer(told, last.text, unnamed[:-1], "", usage)
    shares = {option.label: drawn[option.label] / whole for option in options}
    best = max(shares, key=shares.__getitem__)
    return Choice(best, shares, whole / n, "sampled", usage)


def _label(reply: Reply, options: Sequence[Option]) -> str:
    if reply.finish == "length":
        raise InvalidOutput("the model's tokens ran out before it had named an answer", reply.text)
    return named(reply.text, options)
