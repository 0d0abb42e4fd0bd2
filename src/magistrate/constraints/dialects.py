"""Translate constraints into the dialects of servers that have their own masks.

`express` returns a JSON Schema, GBNF, Lark or one regular expression. GBNF and regular expressions are
generated from a `Shape`: literals, characters, sequences, alternatives, repetitions, names. Rules that a
shape cannot express are left out and listed as lost, so such a server may accept slightly too much. Every
answer is validated again.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from magistrate.constraints.constraint import Constraint
from magistrate.constraints.quote import as_texts, quote_of
from magistrate.constraints.regex import FORMATS, translate
from magistrate.constraints.schema import (
    ANNOTATIONS,
    DECIMALS,
    DIGITS,
    LARK,
    QUOTE,
    Path,
    closes_objects,
    listed,
    pointer_to,
    reference_path,
    resolve,
    walk,
)
from magistrate.errors import ConstraintError

MOST_LISTED = 1000  # the largest range of integers that is written out as alternatives

CodeRange = tuple[int, int]  # code points, both ends included


@dataclass(frozen=True, slots=True)
class Text:
    """A literal text."""

    text: str


@dataclass(frozen=True, slots=True)
class Characters:
    """One character from these ranges."""

    ranges: tuple[CodeRange, ...]


@dataclass(frozen=True, slots=True)
class Sequential:
    """Parts that follow one another."""

    parts: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """Alternatives: one of the branches."""

    branches: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    """A part repeated `least` to `most` times (None: no limit)."""

    part: Shape
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Named:
    """A reference to a definition by name."""

    name: str


_EMPTY = Text("")

Shape = Text | Characters | Sequential | Either | Repeated | Named

_LAST = 0x10FFFF
_ANY: tuple[CodeRange, ...] = ((0x20, 0xD7FF), (0xE000, _LAST))
_ESCAPES = {0x22: '\\"', 0x5C: "\\\\", 0x08: "\\b", 0x09: "\\t", 0x0A: "\\n", 0x0C: "\\f", 0x0D: "\\r"}
_DIGIT = Characters(((0x30, 0x39),))
_NATURAL_START = Characters(((0x31, 0x39),))


def sequence(*parts: Shape | str) -> Shape:
    """Return a sequence of parts; a string becomes a literal."""
    return Sequential(tuple(Text(part) if isinstance(part, str) else part for part in parts))


def repeated(part: Shape, least: int, most: int | None) -> Shape:
    """Return `part` repeated `least` to `most` times."""
    return _EMPTY if most == 0 else part if (least, most) == (1, 1) else Repeated(part, least, most)


class ShapeBuilder:
    """Builds the shape of a core schema and of its definitions, and lists the rules that were lost."""

    def __init__(self, root: Mapping[str, Any], texts: Mapping[str, Sequence[str]]) -> None:
        self.root = root
        self.texts = texts
        self.closes = closes_objects(root)
        self.definitions: dict[str, Shape] = {}
        self.lost: dict[str, None] = {}
        self.start = self.shape(root, ())

    def shape(self, node: Mapping[str, Any], path: Path) -> Shape:
        """Return the shape of `node`."""
        if "allOf" in node:
            raise ConstraintError(
                "allOf cannot be expressed in this dialect; merge the schemas", pointer_to(*path)
            )
        if "enum" in node or "const" in node:
            return Either(tuple(Text(_compact(value)) for value in listed(node, self.root) or ()))
        applied = [keyword for keyword in ("$ref", "anyOf", "oneOf") if keyword in node]
        if applied:
            if len(applied) > 1 or node.keys() - ANNOTATIONS - {*applied, "$defs", "definitions"}:
                raise ConstraintError(
                    "several schemas for the same value cannot be expressed in this dialect; merge them",
                    pointer_to(*path),
                )
            return self.applied(node, applied[0], path)
        types = node.get("type")
        if types is None:
            raise ConstraintError("this dialect needs a type here", pointer_to(*path))
        names = [types] if isinstance(types, str) else types
        branches = tuple(getattr(self, f"of_{name}")(node, path) for name in names)
        return branches[0] if len(branches) == 1 else Either(branches)

    def applied(self, node: Mapping[str, Any], keyword: str, path: Path) -> Shape:
        if keyword != "$ref":
            branches = enumerate(node[keyword])
            return Either(tuple(self.shape(branch, (*path, keyword, index)) for index, branch in branches))
        place = reference_path(node["$ref"])
        name = place[-1] if place else "root"
        if name not in self.definitions:
            self.definitions[name] = Named(name)  # the definition may refer to itself
            self.definitions[name] = self.shape(resolve(self.root, node["$ref"]), place)
        return Named(name)

    def lose(self, what: str, path: Path) -> None:
        self.lost[f"{pointer_to(*path)}: {what}"] = None

    # --- by type --------------------------------------------------------------------------------

    def of_null(self, node: Mapping[str, Any], path: Path) -> Shape:
        return Text("null")

    def of_boolean(self, node: Mapping[str, Any], path: Path) -> Shape:
        return Either((Text("true"), Text("false")))

    def of_integer(self, node: Mapping[str, Any], path: Path) -> Shape:
        low, high = node.get("minimum"), node.get("maximum")
        plain = not {"multipleOf", "exclusiveMinimum", "exclusiveMaximum"} & node.keys()
        if plain and low is not None and high is not None and high - low < MOST_LISTED:
            return Either(tuple(Text(str(n)) for n in range(int(-(-low // 1)), int(high // 1) + 1)))
        return self.numeral(node, path, decimals=0)

    def of_number(self, node: Mapping[str, Any], path: Path) -> Shape:
        return self.numeral(node, path, decimals=DECIMALS)

    def numeral(self, node: Mapping[str, Any], path: Path, decimals: int) -> Shape:
        for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
            if keyword in node:
                self.lose(keyword, path)
        low = node.get("minimum", node.get("exclusiveMinimum"))
        high = node.get("maximum", node.get("exclusiveMaximum"))
        largest = 10**DIGITS - 1 if low is None or high is None else max(abs(low), abs(high))
        natural = sequence(_NATURAL_START, repeated(_DIGIT, 0, len(str(int(largest))) - 1))
        parts: list[Shape] = [Either((Text("0"), natural))]
        if low is None or low < 0:
            parts.insert(0, repeated(Text("-"), 0, 1))
        if decimals:
            parts.append(repeated(sequence(".", repeated(_DIGIT, 1, decimals)), 0, 1))
        return Sequential(tuple(parts))

    def of_string(self, node: Mapping[str, Any], path: Path) -> Shape:
        least, most = int(node.get("minLength", 0)), node.get("maxLength")
        if (of := quote_of(node)) is not None:
            self.lose(f"that it is a quote from {of.source!r}", path)
            longest = max(map(len, as_texts(self.texts.get(of.source, ("",)))), default=0)
            least, most = max(least, 1), min(longest, most) if most is not None else longest
        if LARK in node:
            raise ConstraintError("a Lark grammar can only be sent as Lark", pointer_to(*path))
        if "pattern" in node or "format" in node:
            for keyword in ("minLength", "maxLength"):
                if keyword in node:
                    self.lose(keyword, path)
            pattern = node["pattern"] if "pattern" in node else f"^(?:{FORMATS[node['format']]})$"
            return sequence('"', pattern_shape(pattern, json_string=True), '"')
        return sequence('"', repeated(_written((*_ANY, (0x08, 0x0A), (0x0C, 0x0D))), least, most), '"')

    def of_array(self, node: Mapping[str, Any], path: Path) -> Shape:
        leading = [
            self.shape(child, (*path, "prefixItems", index))
            for index, child in enumerate(node.get("prefixItems", ()))
        ]
        least, most, rest = int(node.get("minItems", 0)), node.get("maxItems"), node.get("items")
        item = None if rest in (None, False) else self.shape(rest, (*path, "items"))
        if item is None:
            most = len(leading)
        elif node.get("uniqueItems"):
            self.lose("uniqueItems", path)
            most = len(listed(rest, self.root) or ()) if most is None else most
        room = None if most is None else max(int(most) - len(leading), 0)
        tail: Shape = _EMPTY
        if item is not None and room != 0:
            low = max(least - len(leading), 0)
            if leading:
                tail = repeated(sequence(",", item), low, room)
            else:
                more = repeated(sequence(",", item), max(low - 1, 0), None if room is None else room - 1)
                tail = sequence(item, more) if low else Repeated(sequence(item, more), 0, 1)
        for index in range(len(leading) - 1, -1, -1):
            tail = sequence(*([","] if index else []), leading[index], tail)
            tail = tail if index < least else repeated(tail, 0, 1)
        return sequence("[", tail, "]")

    def of_object(self, node: Mapping[str, Any], path: Path) -> Shape:
        if node.get("additionalProperties", not self.closes or "properties" not in node) is not False:
            self.lose("that further properties are allowed", path)
        required = node.get("required", ())
        after: Shape = _EMPTY
        first: Shape = _EMPTY
        members = [
            (name, sequence(_compact(name) + ":", self.shape(child, (*path, "properties", name))))
            for name, child in node.get("properties", {}).items()
        ]
        for name, member in reversed(members):
            begun = sequence(member, after)
            if name in required:
                after, first = sequence(",", member, after), begun
            else:
                after, first = sequence(repeated(sequence(",", member), 0, 1), after), Either((begun, first))
        return sequence("{", first, "}")


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _written(ranges: tuple[CodeRange, ...]) -> Shape:
    """Return `ranges` as written inside a JSON string, with exactly one spelling per character."""
    plain = ranges
    for code in (*range(0x20), 0x22, 0x5C):
        plain = _less(plain, (code, code))
    inside = [text for code, text in _ESCAPES.items() if any(low <= code <= high for low, high in ranges)]
    branches: list[Shape] = [Characters(plain)] if plain else []
    branches += map(Text, inside)
    return branches[0] if len(branches) == 1 else Either(tuple(branches))


def _less(ranges: tuple[CodeRange, ...], gone: CodeRange) -> tuple[CodeRange, ...]:
    found: list[CodeRange] = []
    for low, high in ranges:
        if low < gone[0]:
            found.append((low, min(high, gone[0] - 1)))
        if high > gone[1]:
            found.append((max(low, gone[1] + 1), high))
        if low >= gone[0] and high <= gone[1]:
            continue
    return tuple(dict.fromkeys(pair for pair in found if pair[0] <= pair[1]))


# --- regular expressions ------------------------------------------------------------------------

_CLASSES: Mapping[str, tuple[CodeRange, ...]] = {  # narrow: only characters that every dialect includes
    "CATEGORY_DIGIT": ((0x30, 0x39),),
    "CATEGORY_WORD": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
    "CATEGORY_SPACE": ((0x09, 0x0D), (0x20, 0x20)),
}


def pattern_shape(pattern: str, *, json_string: bool) -> Shape:
    """Return the shape of the texts that a Python regular expression matches in full.

    Inside a JSON string an unanchored pattern may match anywhere. Raises `ConstraintError` for constructs
    that masks cannot enforce."""
    checked = translate(pattern, ascii_words=json_string)
    tree = importlib.import_module("re._parser").parse(pattern)
    items = list(tree)
    items = items[1:] if checked.starts else items
    items = items[:-1] if checked.ends else items
    if "(?i:" in checked.rust or tree.state.flags & ~32:
        raise ConstraintError(f"the flags of {pattern!r} cannot be expressed in this dialect")
    inner = _items(items, json_string)
    if not json_string:
        return inner
    around = repeated(_written(_ANY), 0, None)
    return sequence(*([] if checked.starts else [around]), inner, *([] if checked.ends else [around]))


def _items(items: Any, json_string: bool) -> Shape:
    return Sequential(tuple(_item(str(op), value, json_string) for op, value in items))


def _item(op: str, value: Any, json_string: bool) -> Shape:
    if op == "LITERAL":
        return _one(((value, value),), json_string)
    if op == "NOT_LITERAL":
        return _one(_less(_ANY, (value, value)), json_string)
    if op == "ANY":
        return _one(_less(_ANY, (0x0A, 0x0A)), json_string)
    if op == "IN":
        return _one(_class(value), json_string)
    if op == "BRANCH":
        return Either(tuple(_items(branch, json_string) for branch in value[1]))
    if op == "SUBPATTERN":
        return _items(value[3], json_string)
    least, most, part = value  # `translate` accepts no other construct than MAX_REPEAT and MIN_REPEAT here
    return repeated(_items(part, json_string), least, None if str(most) == "MAXREPEAT" else int(most))


def _class(members: Any) -> tuple[CodeRange, ...]:
    negated = str(members[0][0]) == "NEGATE"
    ranges: tuple[CodeRange, ...] = ()
    for op, value in members[1:] if negated else members:
        if str(op) == "LITERAL":
            ranges += ((value, value),)
        elif str(op) == "RANGE":
            ranges += (tuple(value),)
        elif str(value).startswith("CATEGORY_NOT"):
            inside = _ANY
            for each in _CLASSES[str(value).replace("NOT_", "")]:
                inside = _less(inside, each)
            ranges += inside
        else:
            ranges += _CLASSES[str(value)]
    if not negated:
        return ranges
    left = _ANY
    for each in ranges:
        left = _less(left, each)
    return left


def _one(ranges: tuple[CodeRange, ...], json_string: bool) -> Shape:
    return _written(ranges) if json_string else Characters(ranges)


Dialect = Literal["json_schema", "gbnf", "lark", "regex"]
MOST_WRITTEN = 100_000  # the largest number of parts in one regular expression
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)


@dataclass(frozen=True, slots=True)
class Expressed:
    """A constraint as a server takes it (`payload`), and the rules that the server does not enforce (`lost`).

    For `json_schema` the payload is a JSON Schema as a dict (the content of `response_format`). Otherwise
    it is text: GBNF for llama.cpp, Lark for llguidance, one regular expression for Outlines. The lost rules
    are still checked when the answer is parsed.
    """

    dialect: Dialect
    payload: Any
    lost: tuple[str, ...] = ()


def express(constraint: Constraint, dialect: Dialect) -> Expressed:
    """Translate `constraint` into a dialect. Raises `ConstraintError` if the dialect cannot express it."""
    if dialect not in DIALECTS:
        raise ConstraintError(f"{dialect!r} is not a dialect; known: {', '.join(DIALECTS)}")
    constraint.require_bounds()
    if dialect == "lark":
        return Expressed(dialect, constraint.grammar)
    if dialect == "json_schema":
        return _json_schema(constraint)
    try:
        start, definitions, lost = _sketched(constraint)
        if dialect == "regex":
            return Expressed(dialect, _Regex(definitions).text(start), lost)
        gbnf = _Gbnf(definitions)
        rules = {"root": start} | {gbnf.names[name]: node for name, node in definitions.items()}
        text = "".join(f"{name} ::= {gbnf.text(node)}\n" for name, node in rules.items())
    except RecursionError:
        raise ConstraintError(f"{constraint.name!r} is nested too deeply to be sent") from None
    return Expressed(dialect, text, lost)


def _json_schema(constraint: Constraint) -> Expressed:
    if constraint.kind != "json":
        raise ConstraintError(
            f"{constraint.name!r} is plain text, not JSON; wrap it in an object to send it to a server"
        )
    lost: list[str] = []

    def plain(node: Any) -> Any:
        if isinstance(node, list):
            return [plain(child) for child in node]
        if not isinstance(node, dict):
            return node
        return {keyword: plain(value) for keyword, value in node.items() if keyword not in (QUOTE, LARK)}

    for node, path in walk(constraint.schema):
        if QUOTE in node:
            lost.append(f"{pointer_to(*path)}: that it is a quote from {node[QUOTE]['of']!r}")
        if LARK in node:
            lost.append(f"{pointer_to(*path)}: its grammar")
    return Expressed("json_schema", plain(constraint.schema), tuple(lost))


def _sketched(constraint: Constraint) -> tuple[Shape, dict[str, Shape], tuple[str, ...]]:
    if constraint.kind == "lark":
        raise ConstraintError("a Lark grammar can only be sent as Lark")
    schema = constraint.schema or {}
    if constraint.kind == "choice":
        return Either(tuple(Text(choice) for choice in schema["enum"])), {}, ()
    if constraint.kind == "regex":
        return pattern_shape(schema["pattern"], json_string=False), {}, ()
    sketch = ShapeBuilder(schema, constraint.texts)
    return sketch.start, sketch.definitions, tuple(sketch.lost)


class _Gbnf:
    """Writes shapes in GBNF, with one rule per definition."""

    def __init__(self, definitions: Mapping[str, Shape]) -> None:
        self.names = {name: f"named-{index}" for index, name in enumerate(definitions)}

    def text(self, node: Shape) -> str:
        """Return the expression for `node`."""
        if isinstance(node, Text):
            return f'"{"".join(json.dumps(each)[1:-1] if each.isascii() else each for each in node.text)}"'
        if isinstance(node, Characters):
            return _characters(node, "\\x{:02X}", range(0x80, 0xA0))
        if isinstance(node, Sequential):
            parts = [self.text(part) for part in node.parts if part != _EMPTY]
            return " ".join(parts) or '""'
        if isinstance(node, Either):
            return "(" + " | ".join(map(self.text, node.branches)) + ")"
        if isinstance(node, Repeated):
            return f"({self.text(node.part)}){_times(node)}"
        return self.names[node.name]


class _Regex:
    """Writes shapes as one regular expression that Python and Rust read the same way."""

    def __init__(self, definitions: Mapping[str, Shape]) -> None:
        self.definitions = definitions
        self.inside: list[str] = []
        self.written = 0

    def text(self, node: Shape) -> str:
        """Return the expression for `node`. Definitions are inlined: a small schema can make a huge text."""
        self.written += 1
        if self.written > MOST_WRITTEN:
            raise ConstraintError(
                f"one of its regular expressions has more than {MOST_WRITTEN:,} parts; use a smaller schema"
            )
        if isinstance(node, Text):
            return "".join(map(_regex_letter, node.text))
        if isinstance(node, Characters):
            return _characters(node, "\\x{:02x}", range(0))
        if isinstance(node, Sequential):
            return "".join(map(self.text, node.parts))
        if isinstance(node, Either):
            return "(?:" + "|".join(map(self.text, node.branches)) + ")"
        if isinstance(node, Repeated):
            return f"(?:{self.text(node.part)}){_times(node)}"
        if node.name in self.inside:
            raise ConstraintError(f"{node.name!r} is recursive, which a regular expression cannot express")
        self.inside.append(node.name)
        try:
            return f"(?:{self.text(self.definitions[node.name])})"
        finally:
            self.inside.pop()


def _regex_letter(letter: str) -> str:
    if letter in r"\.^$|?*+()[]{}":
        return f"\\{letter}"
    return f"\\x{ord(letter):02x}" if ord(letter) < 0x20 else letter


def _times(node: Repeated) -> str:
    if (node.least, node.most) == (0, 1):
        return "?"
    if node.least == node.most:
        return f"{{{node.least}}}"
    return f"{{{node.least},{'' if node.most is None else node.most}}}"


def _characters(node: Characters, escape: str, escaped: range) -> str:
    """Return a class `[…]`; ASCII other than letters and digits, and the codes in `escaped`, use `escape`."""

    def one(code: int) -> str:
        plain = chr(code).isalnum() if code < 0x80 else code not in escaped or chr(code).isalnum()
        return chr(code) if plain else escape.format(code)

    ranges = (one(low) if low == high else f"{one(low)}-{one(high)}" for low, high in node.ranges)
    return f"[{''.join(ranges)}]"
