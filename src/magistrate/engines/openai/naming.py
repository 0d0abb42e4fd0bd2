"""Labels without probabilities of tokens: drawn many times, or named once in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from magistrate.engines.base import Attempt, Choice, Option, Sampling
from magistrate.engines.remote.choosing import named
from magistrate.engines.remote.messages import asked_anew
from magistrate.engines.remote.reply import Reply
from magistrate.engines.remote.wording import told
from magistrate.errors import InvalidOutput
from magistrate.types import Prompt, Usage

ROOM = 16  # tokens of a reply that names an option
ONLY = "Reply with nothing but one of these: "

Ask = Callable[[Prompt, Sampling], Awaitable[Reply]]


async def drawn_by(ask: Ask, prompt: Prompt, options: Sequence[Option], n: int) -> Choice:
    """Shares of the labels among `n` draws at temperature 1; what names none counts for none of them.

    `mass` is the share of the draws that named one. Raises `InvalidOutput` where none did.
    """
    drawn: Counter[str] = Counter()
    usage, last = Usage(), ""
    for seed in range(n):
        reply = await ask(prompt, Sampling(max_tokens=ROOM, temperature=1.0, seed=seed))
        usage, last = usage + reply.usage, reply.text
        try:
            drawn[named(reply.text, options)] += 1
        except InvalidOutput:
            continue
    whole = drawn.total()
    if not whole:
        raise InvalidOutput(f"none of {n} draws names an answer; the last says: {last[:200]!r}", last)
    shares = {option.label: drawn[option.label] / whole for option in options}
    return Choice(max(shares, key=shares.__getitem__), shares, whole / n, "sampled", usage)


async def named_by(ask: Ask, prompt: Prompt, options: Sequence[Option], anew: int) -> Choice:
    """The label that the model replies with, asked at most `anew` times more where it names none or several.

    Raises `InvalidOutput` where it never does: no label is made up.
    """
    attempts: list[Attempt] = []
    usage = Usage()
    offered = ONLY + ", ".join(option.surfaces[0].strip() for option in options)
    while True:
        again = told(asked_anew(prompt, attempts), offered) if attempts else prompt
        reply = await ask(again, Sampling(max_tokens=ROOM))
        usage += reply.usage
        try:
            best = named(reply.text, options)
        except InvalidOutput as error:
            if len(attempts) >= anew:
                raise
            attempts.append(Attempt(reply.text, str(error)))
            continue
        return Choice(best, None, None, "label_only", usage, thinking=reply.thinking, notes=reply.notes)
