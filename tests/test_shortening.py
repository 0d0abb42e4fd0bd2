"""Constraints with less room: a subset of what was allowed, never empty, and in the end no shorter."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from magistrate.constraints import Constraint, Lark, Quote, compile_check, constraint
from magistrate.constraints.constraint import shorter
from magistrate.constraints.lark import follow

FromContext = Quote["context"]


class Found(BaseModel):
    """One of several findings."""

    kind: Literal["contradiction", "unsupported by anything at all"]
    quote: Annotated[FromContext, Field(max_length=60)] | None  # type: ignore[valid-type]
    reason: str = Field(max_length=80)
    code: str = Field(pattern="[A-Z]{3}", max_length=3)


class Findings(BaseModel):
    """What a judge writes."""

    found: list[Found] = Field(min_length=1, max_length=8)
    said: str = Field(min_length=30, max_length=40)


def findings() -> Constraint:
    return constraint(Findings).over(context="The bridge was opened in 1932 and is still in use.")


def written(found: int, reason: int, said: int) -> str:
    one = {"kind": "contradiction", "quote": "The bridge", "reason": "r" * reason, "code": "ABC"}
    return json.dumps({"found": [one] * found, "said": "s" * said}, separators=(",", ":"))


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (written(4, 40, 30), True),
        (written(5, 40, 30), False),
        (written(4, 41, 30), False),
        (written(4, 40, 31), False),  # at least 30 stay possible, and no more
    ],
)
def test_texts_and_lists_are_half_as_long(text: str, fits: bool) -> None:
    whole = findings()
    whole.parse(text)
    assert (follow(shorter(whole).grammar, text) == "valid") is fits


def test_what_has_a_form_keeps_it() -> None:
    least = findings()
    while (less := shorter(least)) is not least:
        compile_check(less)
        least = less
    text = written(1, 1, 30)
    assert follow(least.grammar, text) == "valid"
    findings().parse(text)


@pytest.mark.parametrize(
    "said",
    [
        ["yes", "no"],
        Lark('start: "yes" | "no"'),
        {"enum": ["a long answer", "another"]},
        {"type": "object", "properties": {}, "additionalProperties": False},
    ],
)
def test_what_cannot_be_shorter_stays_itself(said: Any) -> None:
    made = constraint(said)
    assert shorter(made) is made
