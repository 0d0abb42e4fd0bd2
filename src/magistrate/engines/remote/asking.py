"""Until an answer can be used: validated, put right where that is mechanical, else asked for anew."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from magistrate.constraints import Constraint, repair
from magistrate.constraints.constraint import shorter
from magistrate.engines.base import Attempt, Generation, UnusableAnswer
from magistrate.engines.remote.reply import Reply
from magistrate.errors import InvalidOutput
from magistrate.types import Usage

SHOWN = 2000  # characters of what was written that a note repeats
SHORTENED = (
    "an answer did not end in time, so the next had half the room: texts and lists half as long at most"
)

Ask = Callable[[tuple[Attempt, ...], Constraint | None], Awaitable[Reply]]


async def settled(ask: Ask, constraint: Constraint | None, *, most: int) -> Generation:
    """The first reply that `constraint` accepts; without one, the first reply.

    `ask(attempts, held)` is to add each refused text as an assistant's turn and its problem as a user's, and
    to hold the model to `held`: the constraint, with half the room after each answer that did not end in
    time. What is not as it should be is repaired where only one reading is possible, else asked for anew, at
    most `most` times. Raises `UnusableAnswer`, with all that was written and spent.
    """
    attempts: list[Attempt] = []
    held = constraint
    usage = Usage()
    while True:
        reply = await ask(tuple(attempts), held)
        usage += reply.usage
        if constraint is None:
            text, value, notes = reply.text, reply.text, reply.notes
            break
        try:
            text, value, told = _read(reply, constraint)
        except InvalidOutput as error:
            if len(attempts) >= most:
                tried = f" (asked {len(attempts) + 1} times)" if attempts else ""
                raise UnusableAnswer(
                    f"{error}{tried}", reply.text, attempts, reply.thinking, usage
                ) from error
            attempts.append(Attempt(reply.text, str(error)))
            if held is not None and reply.finish == "length":
                held = shorter(held)
            continue
        notes = (*reply.notes, *told, *(() if held is constraint else (SHORTENED,)))
        break
    finish = reply.finish if constraint is None else "stop"
    return Generation(
        text, value, finish, usage=usage, thinking=reply.thinking, attempts=tuple(attempts), notes=notes
    )


def _read(reply: Reply, constraint: Constraint) -> tuple[str, Any, tuple[str, ...]]:
    """A text that the constraint accepts, what it stands for, and what was done to it."""
    if reply.finish == "length":
        raise InvalidOutput("the answer was cut off where its tokens ran out; it must be shorter", reply.text)
    try:
        return reply.text, constraint.parse(reply.text), ()
    except InvalidOutput:
        plain = repair(reply.text, replace(constraint, build=None))
    text = json.dumps(plain, ensure_ascii=False) if constraint.kind == "json" else str(plain)
    told = f"the answer was put right; what was written: {reply.text[:SHOWN]}"
    return text, constraint.parse(text), (told,)
