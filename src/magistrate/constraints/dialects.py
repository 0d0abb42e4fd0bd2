"""A constraint for servers that have their own masks: what they are sent, and what is lost on the way."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, get_args

from magistrate.constraints import shape as of
from magistrate.constraints.constraint import Constraint
from magistrate.constraints.keywords import LARK, QUOTE
from magistrate.constraints.pointers import pointer_to, walk
from magistrate.errors import ConstraintError

Dialect = Literal["json_schema", "gbnf", "lark", "regex"]
MOST_WRITTEN = 100_000  # parts of one regular expression
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)


@dataclass(frozen=True, slots=True)
class Expressed:
    """`payload` as a server in that dialect takes it; `lost` is what it will not hold to, with the places.

    The payload is a JSON Schema as a dict for `json_schema` (what `response_format` holds), text otherwise:
    GBNF as llama.cpp reads it, Lark as llguidance reads it, one regular expression as Outlines reads it.
    Whatever is lost is still found out when the answer is parsed.
    """

    dialect: Dialect
    payload: Any
    lost: tuple[str, ...] = ()


def express(constraint: Constraint, dialect: Dialect) -> Expressed:
    """`constraint` in a server's dialect. Raises `ConstraintError` where it cannot be said there at all."""
    if dialect not in DIALECTS:
        raise ConstraintError(f"{dialect!r} is not a dialect; known: {', '.join(DIALECTS)}")
    constraint.require_bounds()
    if dialect == "lark":
        return Expressed(dialect, constraint.grammar)
    if dialect == "json_schema":
        return _json_schema(constraint)
    try:
        start, definitions, lost = _sketched(constraint)
        text = _gbnf(start, definitions) if dialect == "gbnf" else _Regex(definitions).text(start)
    except RecursionError:
        raise ConstraintError(
            f"{constraint.name!r} has too many parts inside each other to be sent"
        ) from None
    return Expressed(dialect, text, lost)


def _json_schema(constraint: Constraint) -> Expressed:
    if constraint.kind != "json":
        raise ConstraintError(
            f"{constraint.name!r} is written bare, not as JSON; put it into an object to ask a server for it"
        )
    lost: list[str] = []

    def plain(node: Any) -> Any:
        if isinstance(node, list):
            return [plain(child) for child in node]
        if not isinstance(node, dict):
            return node
        return {keyword: plain(value) for keyword, value in node.items() if keyword not in (QUOTE, LARK)}

    for node, path in walk(constraint.core):
        if QUOTE in node:
            lost.append(f"{pointer_to(*path)}: that it is a quote from {node[QUOTE]['of']!r}")
        if LARK in node:
            lost.append(f"{pointer_to(*path)}: its grammar")
    return Expressed("json_schema", plain(constraint.core), tuple(lost))


def _sketched(constraint: Constraint) -> tuple[of.Shape, dict[str, of.Shape], tuple[str, ...]]:
    if constraint.kind == "lark":
        raise ConstraintError("a Lark grammar can only be sent as Lark")
    schema = constraint.schema or {}
    if constraint.kind == "choice":
        return of.Either(tuple(of.Literal(choice) for choice in schema["enum"])), {}, ()
    if constraint.kind == "regex":
        return of.pattern_shape(schema["pattern"], json_string=False), {}, ()
    sketch = of.Sketch(constraint.core, constraint.texts)
    return sketch.start, sketch.definitions, tuple(sketch.lost)


def _times(node: of.Repeated) -> str:
    if (node.least, node.most) == (0, 1):
        return "?"
    return (
        f"{{{node.least}}}"
        if node.least == node.most
        else f"{{{node.least},{'' if node.most is None else node.most}}}"
    )


# --- GBNF ---------------------------------------------------------------------------------------


def _gbnf(start: of.Shape, definitions: dict[str, of.Shape]) -> str:
    names = {name: f"named-{index}" for index, name in enumerate(definitions)}
    lines = [f"root ::= {_gbnf_text(start, names)}"]
    lines += [f"{names[name]} ::= {_gbnf_text(node, names)}" for name, node in definitions.items()]
    return "\n".join(lines) + "\n"


def _gbnf_text(node: of.Shape, names: dict[str, str]) -> str:
    if isinstance(node, of.Literal):
        return json.dumps(node.text) if node.text.isascii() else f'"{_gbnf_escaped(node.text)}"'
    if isinstance(node, of.Characters):
        return "[" + "".join(_gbnf_range(*each) for each in node.ranges) + "]"
    if isinstance(node, of.Sequential):
        parts = [_gbnf_text(part, names) for part in node.parts if part != of.Literal("")]
        return " ".join(parts) or '""'
    if isinstance(node, of.Either):
        return "(" + " | ".join(_gbnf_text(branch, names) for branch in node.branches) + ")"
    if isinstance(node, of.Repeated):
        return f"({_gbnf_text(node.part, names)}){_times(node)}"
    return names[node.name]


def _gbnf_escaped(text: str) -> str:
    return "".join(json.dumps(letter)[1:-1] if letter.isascii() else letter for letter in text)


def _gbnf_range(low: int, high: int) -> str:
    return _gbnf_code(low) if low == high else f"{_gbnf_code(low)}-{_gbnf_code(high)}"


def _gbnf_code(code: int) -> str:
    character = chr(code)
    return character if character.isalnum() or code > 0x9F else f"\\x{code:02X}"


# --- regular expressions ------------------------------------------------------------------------


class _Regex:
    """Writes shapes as one regular expression that Python and Rust read alike."""

    def __init__(self, definitions: dict[str, of.Shape]) -> None:
        self.definitions = definitions
        self.inside: list[str] = []
        self.written = 0

    def text(self, node: of.Shape) -> str:
        """Definitions are written out where they are named, so that a small schema can make a huge text."""
        self.written += 1
        if self.written > MOST_WRITTEN:
            raise ConstraintError(
                f"one regular expression of it has more than {MOST_WRITTEN:,} parts; use a smaller schema"
            )
        if isinstance(node, of.Literal):
            return "".join(map(_regex_letter, node.text))
        if isinstance(node, of.Characters):
            return "[" + "".join(self.range(*each) for each in node.ranges) + "]"
        if isinstance(node, of.Sequential):
            return "".join(map(self.text, node.parts))
        if isinstance(node, of.Either):
            return "(?:" + "|".join(map(self.text, node.branches)) + ")"
        if isinstance(node, of.Repeated):
            return f"(?:{self.text(node.part)}){_times(node)}"
        if node.name in self.inside:
            raise ConstraintError(f"{node.name!r} holds itself, which no regular expression can say")
        self.inside.append(node.name)
        try:
            return f"(?:{self.text(self.definitions[node.name])})"
        finally:
            self.inside.pop()

    def range(self, low: int, high: int) -> str:
        return self.code(low) if low == high else f"{self.code(low)}-{self.code(high)}"

    def code(self, code: int) -> str:
        character = chr(code)
        if character.isascii():
            return character if character.isalnum() else f"\\x{code:02x}"
        return character


def _regex_letter(letter: str) -> str:
    if letter in r"\.^$|?*+()[]{}":
        return f"\\{letter}"
    return f"\\x{ord(letter):02x}" if ord(letter) < 0x20 else letter
