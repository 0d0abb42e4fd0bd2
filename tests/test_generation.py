"""Structured generation on its own: an object of the type that was asked for comes back."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

import magistrate
from magistrate import ScriptedEngine
from magistrate.errors import ConstraintError, InvalidOutput, SpecError
from magistrate.types import Prompt


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


@dataclass
class Point:
    x: Literal[1, 2, 3]
    y: bool


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


SHAPES: list[tuple[Any, str, Any]] = [
    (Person, '{"name":"Ada","age":36}', Person(name="Ada", age=36)),
    (Point, '{"x":2,"y":true}', Point(2, True)),
    (Colour, "red", Colour.RED),
    (Literal["yes", "no"], "no", "no"),
    (["one", "two"], "two", "two"),
    (re.compile("[a-z]{1,5}"), "abc", "abc"),
    ({"type": "boolean"}, "true", True),
    (None, "whatever it likes", "whatever it likes"),
]


@pytest.mark.parametrize(("shape", "text", "value"), SHAPES, ids=[str(each[0])[:30] for each in SHAPES])
def test_an_object_of_the_type_comes_back(shape: Any, text: str, value: Any) -> None:
    engine = ScriptedEngine([text])
    assert magistrate.generate("Invent one.", shape, model=engine) == value
    assert engine.prompts == [Prompt.of("Invent one.")]


def test_it_works_inside_a_running_loop() -> None:
    async def cell() -> Any:
        first = magistrate.generate("Say.", ["a", "b"], model=ScriptedEngine(["a"]))
        return first, await magistrate.agenerate("Say.", ["a", "b"], model=ScriptedEngine(["b"]))

    assert asyncio.run(cell()) == ("a", "b")


def test_what_does_not_parse_is_an_error_with_the_text() -> None:
    with pytest.raises(InvalidOutput) as raised:
        magistrate.generate("Invent one.", Person, model=ScriptedEngine(['{"name":"Ada"}']))
    assert raised.value.text == '{"name":"Ada"}'


def test_a_type_without_a_bound_is_refused_before_anything_is_spent() -> None:
    class Endless(BaseModel):
        text: str

    engine = ScriptedEngine(["{}"])
    with pytest.raises(ConstraintError, match="/properties/text"):
        magistrate.generate("Invent one.", Endless, model=engine)
    assert engine.prompts == []


@pytest.mark.parametrize("options", [{"max_tokens": 0}, {"temperature": -1}])
def test_sampling_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=next(iter(options))):
        magistrate.generate("Say.", model=ScriptedEngine(["a"]), **options)
