"""A constraint as plain text patterns: literals, characters, sequences, alternatives, repetitions, names.

It is what GBNF and regular expressions can both say. What they cannot say is left out and noted, so that a
server without our masks may write a little more than it should; what it wrote is validated either way.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magistrate.constraints.bounds import closes_objects
from magistrate.constraints.formats import FORMATS
from magistrate.constraints.keywords import LARK
from magistrate.constraints.nodes import listed
from magistrate.constraints.numbers import DECIMALS, DIGITS
from magistrate.constraints.pointers import Path, pointer_to, reference_path, resolve
from magistrate.constraints.quote import quote_of, several
from magistrate.constraints.regex import translate
from magistrate.constraints.schema import ANNOTATIONS
from magistrate.errors import ConstraintError

MOST_LISTED = 1000  # integers of a range that are written out

Range = tuple[int, int]  # code points, both ends included


@dataclass(frozen=True, slots=True)
class Literal:
    """This text."""

    text: str


@dataclass(frozen=True, slots=True)
class Characters:
    """One character of these ranges."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Sequential:
    """One part after the other."""

    parts: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """One of the branches."""

    branches: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    """A part between `least` and `most` times (None: any number)."""

    part: Shape
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Named:
    """What stands in the definitions under that name."""

    name: str


_EMPTY = Literal("")

Shape = Literal | Characters | Sequential | Either | Repeated | Named

_LAST = 0x10FFFF
_ANY: tuple[Range, ...] = ((0x20, 0xD7FF), (0xE000, _LAST))
_ESCAPES = {0x22: '\\"', 0x5C: "\\\\", 0x08: "\\b", 0x09: "\\t", 0x0A: "\\n", 0x0C: "\\f", 0x0D: "\\r"}
_DIGIT = Characters(((0x30, 0x39),))
_NATURAL_START = Characters(((0x31, 0x39),))


def sequence(*parts: Shape | str) -> Shape:
    """Parts one after the other; text stands for itself."""
    return Sequential(tuple(Literal(part) if isinstance(part, str) else part for part in parts))


def repeated(part: Shape, least: int, most: int | None) -> Shape:
    """`part` between `least` and `most` times."""
    return _EMPTY if most == 0 else part if (least, most) == (1, 1) else Repeated(part, least, most)


class Sketch:
    """The shape of a core schema, the definitions that it names, and what it had to leave out."""

    def __init__(self, root: Mapping[str, Any], texts: Mapping[str, Sequence[str]]) -> None:
        self.root = root
        self.texts = texts
        self.closes = closes_objects(root)
        self.definitions: dict[str, Shape] = {}
        self.lost: dict[str, None] = {}
        self.start = self.shape(root, ())

    def shape(self, node: Mapping[str, Any], path: Path) -> Shape:
        """The shape of `node`."""
        if "allOf" in node:
            raise ConstraintError(
                "allOf cannot be written in this form; merge the schemas", pointer_to(*path)
            )
        if "enum" in node or "const" in node:
            return Either(tuple(Literal(_compact(value)) for value in listed(node, self.root) or ()))
        applied = [keyword for keyword in ("$ref", "anyOf", "oneOf") if keyword in node]
        if applied:
            if len(applied) > 1 or node.keys() - ANNOTATIONS - {*applied, "$defs", "definitions"}:
                raise ConstraintError(
                    "several schemas that hold at once cannot be written in this form; merge them",
                    pointer_to(*path),
                )
            return self.applied(node, applied[0], path)
        types = node.get("type")
        if types is None:
            raise ConstraintError("a type is needed here to write it in this form", pointer_to(*path))
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
            self.definitions[name] = Named(name)  # while it is made, it may name itself
            self.definitions[name] = self.shape(resolve(self.root, node["$ref"]), place)
        return Named(name)

    def lose(self, what: str, path: Path) -> None:
        self.lost[f"{pointer_to(*path)}: {what}"] = None

    # --- by type --------------------------------------------------------------------------------

    def of_null(self, node: Mapping[str, Any], path: Path) -> Shape:
        return Literal("null")

    def of_boolean(self, node: Mapping[str, Any], path: Path) -> Shape:
        return Either((Literal("true"), Literal("false")))

    def of_integer(self, node: Mapping[str, Any], path: Path) -> Shape:
        low, high = node.get("minimum"), node.get("maximum")
        plain = not {"multipleOf", "exclusiveMinimum", "exclusiveMaximum"} & node.keys()
        if plain and low is not None and high is not None and high - low < MOST_LISTED:
            return Either(tuple(Literal(str(n)) for n in range(int(-(-low // 1)), int(high // 1) + 1)))
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
        parts: list[Shape] = [Either((Literal("0"), natural))]
        if low is None or low < 0:
            parts.insert(0, repeated(Literal("-"), 0, 1))
        if decimals:
            parts.append(repeated(sequence(".", repeated(_DIGIT, 1, decimals)), 0, 1))
        return Sequential(tuple(parts))

    def of_string(self, node: Mapping[str, Any], path: Path) -> Shape:
        least, most = int(node.get("minLength", 0)), node.get("maxLength")
        if (of := quote_of(node)) is not None:
            self.lose(f"that it is a quote from {of.source!r}", path)
            longest = max(map(len, several(self.texts.get(of.source, ("",)))), default=0)
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


def _written(ranges: tuple[Range, ...]) -> Shape:
    """Characters of `ranges` as they are written inside a JSON string, each in one way."""
    plain = ranges
    for code in (*range(0x20), 0x22, 0x5C):
        plain = _less(plain, (code, code))
    inside = [text for code, text in _ESCAPES.items() if any(low <= code <= high for low, high in ranges)]
    branches: list[Shape] = [Characters(plain)] if plain else []
    branches += map(Literal, inside)
    return branches[0] if len(branches) == 1 else Either(tuple(branches))


def _less(ranges: tuple[Range, ...], gone: Range) -> tuple[Range, ...]:
    found: list[Range] = []
    for low, high in ranges:
        if low < gone[0]:
            found.append((low, min(high, gone[0] - 1)))
        if high > gone[1]:
            found.append((max(low, gone[1] + 1), high))
        if low >= gone[0] and high <= gone[1]:
            continue
    return tuple(dict.fromkeys(pair for pair in found if pair[0] <= pair[1]))


# --- regular expressions ------------------------------------------------------------------------

_CLASSES: Mapping[str, tuple[Range, ...]] = {  # narrow: what every dialect takes for one
    "CATEGORY_DIGIT": ((0x30, 0x39),),
    "CATEGORY_WORD": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
    "CATEGORY_SPACE": ((0x09, 0x0D), (0x20, 0x20)),
}


def pattern_shape(pattern: str, *, json_string: bool) -> Shape:
    """The shape of what `pattern`, a Python regular expression, matches as a whole; inside a JSON string it
    may match anywhere unless it is anchored. Raises `ConstraintError` for what masks could not hold to."""
    checked = translate(pattern, ascii_words=json_string)
    tree = importlib.import_module("re._parser").parse(pattern)
    items = list(tree)
    items = items[1:] if checked.starts else items
    items = items[:-1] if checked.ends else items
    if "(?i:" in checked.rust or tree.state.flags & ~32:
        raise ConstraintError(f"the flags of {pattern!r} cannot be written in this form")
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
    least, most, part = value  # MAX_REPEAT and MIN_REPEAT are what is left of what translates
    return repeated(_items(part, json_string), least, None if str(most) == "MAXREPEAT" else int(most))


def _class(members: Any) -> tuple[Range, ...]:
    negated = str(members[0][0]) == "NEGATE"
    ranges: tuple[Range, ...] = ()
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


def _one(ranges: tuple[Range, ...], json_string: bool) -> Shape:
    return _written(ranges) if json_string else Characters(ranges)
