"""Reads what servers answer: typed bodies, thoughts and answers, and texts that fit their constraint."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magistrate.constraints import Constraint, repair
from magistrate.constraints.constraint import shorter
from magistrate.engines.base import Attempt, Generation, UnusableAnswer
from magistrate.errors import InvalidOutput
from magistrate.types import Usage

Count = Annotated[int, Field(ge=0, le=10**9)]
Kind = TypeVar("Kind", bound=BaseModel)


class Body(BaseModel):
    """Something a server wrote. Fields that are not declared are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def read(kind: type[Kind], body: Any, what: str) -> Kind:
    """`body` as a value of `kind`. Raises `InvalidOutput`, which says where it is something else."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(each) for each in first["loc"]) or "the answer"
        raise InvalidOutput(f"the server's answer is no {what}: {place}: {first['msg']}") from None


def is_number(value: float) -> float:
    """`value`, which may be infinite. Raises `ValueError` for NaN."""
    if math.isnan(value):
        raise ValueError("NaN is no number")
    return value


# --- thoughts ------------------------------------------------------------------------------------

OPENING = re.compile(r"\s*(?:<(think|thinking|thought|reasoning)>|\[(THINK)\])")


def split_thinking(text: str, *, opened: bool = False) -> tuple[str, str]:
    """Thoughts and answer of what a model wrote.

    Thoughts count only if the text begins with them; a tag further on is part of the answer, which may quote
    what is judged. `opened` says that the prompt has already begun the thoughts, so that the text only ends
    them. Thoughts that never end leave no answer.

    >>> split_thinking("<think>Rain is wet.</think> Yes")
    ('Rain is wet.', 'Yes')
    >>> split_thinking('{"quote": "<think>"}')
    ('', '{"quote": "<think>"}')
    """
    match = OPENING.match(text)
    if match is None and not opened:
        return "", text
    start = 0 if match is None else match.end()
    name = "think" if match is None else match[1] or match[2]
    closing = "[/THINK]" if name == "THINK" else f"</{name}>"
    thoughts, ended, answer = text[start:].partition(closing)
    if not ended and match is None:
        return "", text  # it was not begun after all: a template may leave thoughts out
    return thoughts.strip(), answer.lstrip()


# --- texts that fit their constraint -------------------------------------------------------------

SHOWN = 2000  # characters of a repaired text that a note repeats
SHORTENED = (
    "an answer did not end in time, so the next had half the room: texts and lists half as long at most"
)


@dataclass(frozen=True, slots=True)
class Reply:
    """A text that a server wrote, not yet validated; `thinking` came before it.

    `finish` is `length` if the token budget ended it. `notes` say what else a reader of the text must know.
    """

    text: str
    finish: Literal["stop", "length"]
    usage: Usage
    thinking: str = ""
    notes: tuple[str, ...] = ()


Ask = Callable[[tuple[Attempt, ...], Constraint | None], Awaitable[Reply]]
"""Asks for a text under a constraint, after these refused attempts."""


async def generate_validated(ask: Ask, constraint: Constraint | None, *, retries: int) -> Generation:
    """The first reply that `constraint` accepts; without a constraint, the first reply.

    `ask(attempts, constraint)` is given the refused attempts to show them to the model, and the constraint to
    enforce: after each answer that the token budget cut off, one with half the room. A reply that does not
    fit is repaired if only one reading is possible; otherwise the model is asked again, `retries` times at
    most. Raises `UnusableAnswer`, with everything that was written and spent.
    """
    attempts: list[Attempt] = []
    enforced = constraint
    usage = Usage()
    while True:
        reply = await ask(tuple(attempts), enforced)
        usage += reply.usage
        if constraint is None:
            text, value, notes = reply.text, reply.text, reply.notes
            break
        try:
            text, value, repaired = _validated(reply, constraint)
        except InvalidOutput as error:
            if len(attempts) >= retries:
                tried = f" (asked {len(attempts) + 1} times)" if attempts else ""
                raise UnusableAnswer(
                    f"{error}{tried}", reply.text, attempts, reply.thinking, usage
                ) from error
            attempts.append(Attempt(reply.text, str(error)))
            if enforced is not None and reply.finish == "length":
                enforced = shorter(enforced)
            continue
        notes = (*reply.notes, *repaired, *(() if enforced is constraint else (SHORTENED,)))
        break
    finish = reply.finish if constraint is None else "stop"
    return Generation(
        text, value, finish, usage=usage, thinking=reply.thinking, attempts=tuple(attempts), notes=notes
    )


def _validated(reply: Reply, constraint: Constraint) -> tuple[str, Any, tuple[str, ...]]:
    """A text that the constraint accepts, its value, and notes on what was repaired."""
    if reply.finish == "length":
        raise InvalidOutput("the answer was cut off where its tokens ran out; it must be shorter", reply.text)
    try:
        return reply.text, constraint.parse(reply.text), ()
    except InvalidOutput:
        plain = repair(reply.text, replace(constraint, build=None))
    text = json.dumps(plain, ensure_ascii=False) if constraint.kind == "json" else str(plain)
    note = f"the answer was put right; what was written: {reply.text[:SHOWN]}"
    return text, constraint.parse(text), (note,)
