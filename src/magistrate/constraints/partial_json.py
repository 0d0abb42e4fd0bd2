"""A parser of JSON text that may stop anywhere: strict RFC 8259, without recursion.

It decides whether a text is a document, can become one, or cannot, and returns the content so far: finished
parts as plain Python values, unfinished ones as the `Open` values below.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, Literal

LONGEST_NUMERAL = 4300  # digits, when values are built: Python's own limit; RFC 8259 §9 allows such limits

_SPACE = re.compile(r"[ \t\n\r]*+")
_SEPARATOR = re.compile(r"[ \t\n\r]*+([,\]}])[ \t\n\r]*+")
_PLAIN = r'[^"\\\x00-\x1f]*+'
_ESCAPE = r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})'
_STRING = re.compile(rf'"({_PLAIN}(?:{_ESCAPE}{_PLAIN})*+)"')
_STRING_SO_FAR = re.compile(rf'"({_PLAIN}(?:{_ESCAPE}{_PLAIN})*+)(?:\\(?:u[0-9a-fA-F]{{0,3}})?)?\Z')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?")
_NUMBER_SO_FAR = re.compile(
    r"-?(?:(?:0|[1-9][0-9]*+)(?:\.(?:[0-9]++(?:[eE](?:[+-]?[0-9]*+))?)?|[eE](?:[+-]?[0-9]*+))?)?\Z"
)
_LITERALS: dict[str, tuple[str, Any]] = {"t": ("true", True), "f": ("false", False), "n": ("null", None)}

State = Literal["complete", "open", "broken"]


class Open:
    """A value that is not finished yet. `types` are the JSON types that it can still become."""

    __slots__ = ()
    types: ClassVar[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class OpenNumber(Open):
    """A number that further digits may still change."""

    text: str
    types: ClassVar[frozenset[str]] = frozenset({"number", "integer"})


@dataclass(frozen=True, slots=True)
class OpenString(Open):
    """An unfinished string; a trailing high surrogate may still be completed to a pair."""

    text: str
    types: ClassVar[frozenset[str]] = frozenset({"string"})


@dataclass(frozen=True, slots=True, repr=False)
class OpenArray(Open):
    """An array without its closing bracket. Only the last item may be open itself."""

    items: list[Any]
    types: ClassVar[frozenset[str]] = frozenset({"array"})


@dataclass(frozen=True, slots=True, repr=False)
class OpenObject(Open):
    """An object without its closing brace. The value of the last member may be open. `key` is a finished
    name without a value so far, `partial` an unfinished name."""

    members: dict[str, Any]
    key: str | None = None
    partial: str | None = None
    types: ClassVar[frozenset[str]] = frozenset({"object"})


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of `read`. `value` is the document or the open value; `started` is False for blank text.

    `growing` is set for a complete document that is a bare number, which more digits may follow.
    """

    state: State
    value: Any = None
    started: bool = True
    growing: OpenNumber | None = None


BROKEN = Reading("broken")


def read(text: str, *, values: bool = True) -> Reading:
    """Parse `text` as far as it goes.

    With `values`, the value is built, names must be unique within an object (it is unclear which of two
    values is meant), an integer has at most `LONGEST_NUMERAL` digits and any other number fits a float.
    Without, only the grammar is checked.
    """
    try:
        return Reading("complete", _whole(text, values), growing=_growing(text))
    except (ValueError, RecursionError):  # not a document, or one that the fast path cannot parse
        return _Reader(text, values).read()


def _whole(text: str, values: bool) -> Any:
    """Parse a whole document with the standard library, restricted to RFC 8259: the fast path."""
    if text.startswith("\ufeff"):
        raise ValueError("a byte order mark is not JSON")
    return json.loads(
        text,
        parse_float=_finite if values else None,
        parse_constant=_refuse,
        object_pairs_hook=_unique if values else None,
    )


def _finite(numeral: str) -> float:
    """Return a number that fits a float. RFC 8259 §6 lets the parser limit the range of numbers."""
    if math.isinf(value := float(numeral)):
        raise ValueError(f"{numeral[:40]} is too large a number")
    return value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object has a duplicate key")
    return members


def _growing(text: str) -> OpenNumber | None:
    """Return an open number if the whole text is a number that ends with a digit."""
    tail = text.lstrip(" \t\n\r")
    return OpenNumber(tail) if tail[:1] in "-0123456789" and tail[-1:].isdigit() else None


def _number(text: str) -> int | float:
    if _digits(text):
        return int(text) if len(text) < 600 else int(Decimal(text))  # int() has a limit for long texts
    return float(text)


def _digits(numeral: str) -> int:
    """Return the length of an integer, or 0 for a number that becomes a float, which has no such limit."""
    return len(numeral) if numeral.lstrip("-").isdigit() else 0


def _readable(numeral: str) -> bool:
    """Return whether Python can represent the number."""
    return len(numeral) <= LONGEST_NUMERAL if _digits(numeral) else not math.isinf(float(numeral))


def _string(body: str) -> str:
    return str(json.loads(f'"{body}"')) if "\\" in body else body


class _Frame:
    """A container that is being parsed; `key` is the name whose value comes next."""

    __slots__ = ("items", "key", "members")

    def __init__(self, is_object: bool) -> None:
        self.members: dict[str, Any] | None = {} if is_object else None
        self.items: list[Any] = []
        self.key: str | None = None


class _Reader:
    """Parses a text in one pass with its own stack. Every step returns the next position, or a `Reading`."""

    def __init__(self, text: str, values: bool) -> None:
        self.text = text
        self.end = len(text)
        self.values = values
        self.number: Callable[[str], Any] = _number if values else len
        self.frames: list[_Frame] = []

    def read(self) -> Reading:
        place: int | Reading = _skip(self.text, 0)
        if place == self.end:
            return Reading("open", started=False)
        while not isinstance(place, Reading):
            place = self.value(place)
        return place

    def value(self, place: int) -> int | Reading:
        """Parse the value at `place` (after white space) and what follows, up to the next value."""
        text = self.text
        if place == self.end:
            return self.stop()
        first = text[place]
        if first == '"':
            match = _STRING.match(text, place)
            if match is None:
                return self.open_string(place)
            return self.after(_string(match[1]), match.end())
        if first in "{[":
            return self.container(first, place + 1)
        if first in _LITERALS:
            return self.literal(first, place)
        return self.numeral(place)

    def container(self, first: str, place: int) -> int | Reading:
        frame = _Frame(first == "{")
        place = _skip(self.text, place)
        if place < self.end and self.text[place] == ("}" if first == "{" else "]"):
            return self.after(frame.items if frame.members is None else frame.members, place + 1)
        self.frames.append(frame)
        return self.name(place) if first == "{" else place

    def literal(self, first: str, place: int) -> int | Reading:
        word, value = _LITERALS[first]
        if self.text.startswith(word, place):
            return self.after(value, place + len(word))
        if word.startswith(self.text[place:]):
            return self.stop(value, some=True)  # only one value is possible
        return BROKEN

    def numeral(self, place: int) -> int | Reading:
        match = _NUMBER.match(self.text, place)
        end = match.end() if match else place
        too_long = self.values and match is not None and not _readable(match[0])
        if end < self.end and match is not None and self.text[end] not in ".eE":
            return BROKEN if too_long else self.after(self.number(match[0]), end)
        if not _NUMBER_SO_FAR.match(self.text, place):
            return BROKEN
        number = OpenNumber(self.text[place:])
        if match is not None and end == self.end and not self.frames and not too_long:
            return Reading("complete", self.number(match[0]), growing=number)
        return self.stop(number, some=True)

    def open_string(self, place: int) -> Reading:
        match = _STRING_SO_FAR.match(self.text, place)
        return BROKEN if match is None else self.stop(OpenString(_string(match[1])), some=True)

    def name(self, place: int) -> int | Reading:
        """Parse a member's name and the colon; return the position of its value."""
        frame = self.frames[-1]
        assert frame.members is not None
        if place == self.end:
            return self.stop()
        match = _STRING.match(self.text, place)
        if match is None:
            partial = _STRING_SO_FAR.match(self.text, place)
            return BROKEN if partial is None else self.stop(partial=_string(partial[1]))
        frame.key = _string(match[1])
        if self.values and frame.key in frame.members:
            return BROKEN
        place = _skip(self.text, match.end())
        if place == self.end:
            return self.stop()
        return _skip(self.text, place + 1) if self.text[place] == ":" else BROKEN

    def after(self, value: Any, place: int) -> int | Reading:
        """Store a finished value in its container, close finished containers and find the next value."""
        text, frames = self.text, self.frames
        while frames:
            frame = frames[-1]
            _put(frame, value)
            match = _SEPARATOR.match(text, place)
            if match is None:
                return self.stop() if _skip(text, place) == self.end else BROKEN
            place = match.end()
            sign = match[1]
            if sign == ",":
                return place if frame.members is None else self.name(place)
            if sign != ("]" if frame.members is None else "}"):
                return BROKEN
            frames.pop()
            value = frame.items if frame.members is None else frame.members
        return Reading("complete", value) if _skip(text, place) == self.end else BROKEN

    def stop(self, tail: Any = None, *, some: bool = False, partial: str | None = None) -> Reading:
        """End the text here: fold the open containers into one open value, from the inside out."""
        for frame in reversed(self.frames):
            if some:
                _put(frame, tail)
            tail = (
                OpenArray(frame.items)
                if frame.members is None
                else OpenObject(frame.members, frame.key, partial)
            )
            some, partial = True, None
        return Reading("open", tail)


def _skip(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    assert match is not None  # the pattern matches empty white space too
    return match.end()


def _put(frame: _Frame, value: Any) -> None:
    if frame.members is None:
        frame.items.append(value)
    else:
        assert frame.key is not None
        frame.members[frame.key] = value
        frame.key = None
