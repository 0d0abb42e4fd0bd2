"""JSON Schema as data: known keywords, nested schemas, references, bounds, properties of a node."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any
from urllib.parse import unquote

from magistrate._text import PLACE
from magistrate.constraints.regex import translate
from magistrate.errors import ConstraintError

QUOTE = "x-quote"  # our own keyword: {"type": "string", "x-quote": {"of": "context", "unit": "words"}}
LARK = "x-lark"  # our own keyword: {"type": "string", "x-lark": "start: ..."}

MAPS = ("properties", "$defs", "definitions")  # keywords that contain named schemas
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")  # keywords that contain a list of schemas
IN_PLACE = ("$ref", "anyOf", "oneOf", "allOf")  # keywords whose schemas apply to the same value

ANNOTATIONS = frozenset(
    (
        *("title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly"),
        *("$schema", "$id", "discriminator"),
    )
)
NUMERIC = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
COUNTS = ("minLength", "maxLength", "minItems", "maxItems")
ASSERTIONS = frozenset(
    (
        *("type", "enum", "const", "pattern", "format", "properties", "required", "additionalProperties"),
        *("items", "prefixItems", "uniqueItems", *NUMERIC, *COUNTS),
    )
)
ENFORCED = ASSERTIONS | {*IN_PLACE, "$defs", "definitions"}

_PAIRS = (
    ("minimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("exclusiveMinimum", "maximum"),
    ("minimum", "exclusiveMaximum"),
    ("exclusiveMinimum", "exclusiveMaximum"),
)
MOST_VALUES = 1000  # the largest range of integers that is listed value by value

Node = Mapping[str, Any]
Path = tuple[str | int, ...]


def pointer_to(*tokens: str | int) -> str:
    """Return the JSON pointer of a place in a schema as a URI fragment: `#/properties/name`."""
    return "#" + "".join("/" + str(token).replace("~", "~0").replace("/", "~1") for token in tokens)


def reference_path(reference: str) -> tuple[str, ...]:
    """Return the tokens of a local reference, unescaped: `#/$defs/a~1b` gives `("$defs", "a/b")`."""
    tokens = reference[2:].split("/") if len(reference) > 2 else []
    return tuple(unquote(token).replace("~1", "/").replace("~0", "~") for token in tokens)


def resolve(root: Node, reference: str) -> Any:
    """Return the schema that a local `$ref` points to. Raises `KeyError` if there is none."""
    if reference != "#" and not reference.startswith("#/"):
        raise KeyError(reference)
    node: Any = root
    for name in reference_path(reference):
        node = node[int(name)] if isinstance(node, list) and PLACE.fullmatch(name) else node[name]
    return node


def subschemas(node: Any) -> Iterator[tuple[Path, Any]]:
    """Yield every schema directly inside `node` with the path to it; malformed values are skipped."""
    if not isinstance(node, Mapping):  # true or false
        return
    for keyword in MAPS:
        if isinstance(value := node.get(keyword), Mapping):
            yield from (((keyword, name), child) for name, child in value.items())
    for keyword in LISTS:
        if isinstance(value := node.get(keyword), list):
            yield from (((keyword, index), child) for index, child in enumerate(value))
    if "items" in node and node["items"] is not False:
        yield ("items",), node["items"]


def walk(schema: Any) -> Iterator[tuple[Any, Path]]:
    """Yield `schema` and every schema inside it with the path to it; each comes before its parts."""
    pending: list[tuple[Any, Path]] = [(schema, ())]
    while pending:
        node, path = pending.pop()
        yield node, path
        pending += reversed([(child, path + step) for step, child in subschemas(node)])


def types_of(node: Node) -> list[str] | None:
    """Return the value of `type` as a list, or None if it is missing."""
    value = node.get("type")
    return [value] if isinstance(value, str) else value


def closes_objects(schema: Node) -> bool:
    """Return whether objects without `additionalProperties` may be limited to their declared properties.

    That narrows a schema to texts that are still valid, unless objects are merged: then a property that one
    part declares is an additional one for the other.
    """
    for node, _ in walk(schema):
        applied = [keyword for keyword in IN_PLACE if keyword in node]
        if "allOf" in applied or len(applied) > 1 or (applied and ASSERTIONS & node.keys()):
            return False
    return True


def empty_bounds(node: Node) -> tuple[str, str] | None:
    """Return a lower and an upper bound of `node` that exclude every value, or None."""
    for low, high in _PAIRS:
        if low in node and high in node:
            strict = low.startswith("exclusive") or high.startswith("exclusive")
            if node[low] > node[high] or (strict and node[low] == node[high]):
                return low, high
    return None


def listed(node: Any, root: Node) -> list[Any] | None:
    """Return all values that `node` allows if it lists them itself and they are few; otherwise None."""
    for _ in range(50):
        if not isinstance(node, Mapping) or "$ref" not in node:
            break
        node = resolve(root, node["$ref"])
    if not isinstance(node, Mapping) or node.keys() & set(IN_PLACE):
        return None
    if "enum" in node or "const" in node:
        values = node.get("enum", [node.get("const")])
    elif (values := _listed_by_type(node)) is None:
        return None
    from magistrate.constraints.validation import plain_validator

    others = {keyword: value for keyword, value in node.items() if keyword != "enum"}
    valid = plain_validator(root, others).is_valid
    return [value for value in values if valid(value)]


def _listed_by_type(node: Node) -> list[Any] | None:
    found: list[Any] = []
    for name in types_of(node) or ["string"]:
        if name == "boolean":
            found += [True, False]
        elif name == "null":
            found.append(None)
        elif name == "integer" and {"minimum", "maximum"} <= node.keys():
            first, last = node["minimum"], node["maximum"]
            if last - first > MOST_VALUES:
                return None
            found += range(int(-(-first // 1)), int(last // 1) + 1)
        else:
            return None
    return found


# --- bounds ---------------------------------------------------------------------------------------
#
# Under a schema without bounds a model writes until its budget is spent. So `endless` finds the first
# unbounded string, list, number or object, and any recursion, in advance. `on_grid` gives numbers a
# step, which limits their digits.

Problem = tuple[str, str]  # what is unbounded and what to write instead; the JSON pointer


def endless(schema: Mapping[str, Any]) -> Problem | None:
    """Return the first part of `schema` that has no upper bound, or None."""
    try:
        return _Bounds(schema).problem(schema, (), None)
    except _Recursion as found:
        return found.args


class _Recursion(Exception):
    """A definition refers to itself. Carries the message and the place; no outer schema can fix it."""

    args: Problem


class _Bounds:
    """Searches a schema for unbounded parts by following its references."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.closes = closes_objects(root)
        self.following: list[str] = []
        self.known: dict[tuple[str, tuple[str, ...]], Problem | None] = {}

    def problem(self, node: Mapping[str, Any], path: Path, inherited: list[str] | None) -> Problem | None:
        """Return the unbounded part of `node`, or None; `inherited` are the types that a parent allows."""
        own = node.get("type", inherited)
        types = [own] if isinstance(own, str) else own
        parts = self.applied(node, path, types)  # even if the node is bounded: recursion is always an error
        if "const" in node or "enum" in node:
            return None
        mine = self.own_problem(node, path, types)
        if mine is None or any(part is None for part in parts):
            return None
        return mine if "type" in node or not parts else next(part for part in parts if part is not None)

    def applied(self, node: Mapping[str, Any], path: Path, types: list[str] | None) -> list[Problem | None]:
        """Return one result per schema that also applies to the same value."""
        answers = []
        if "$ref" in node:
            answers.append(self.reference(node["$ref"], path, types))
        for index, branch in enumerate(node.get("allOf", ())):
            answers.append(self.problem(branch, (*path, "allOf", index), types))
        for keyword in ("anyOf", "oneOf"):
            if keyword in node:
                branches = enumerate(node[keyword])
                found = [self.problem(branch, (*path, keyword, index), types) for index, branch in branches]
                answers.append(next((problem for problem in found if problem is not None), None))
        return answers

    def reference(self, reference: str, path: Path, types: list[str] | None) -> Problem | None:
        if reference in self.following:
            raise _Recursion(
                f"{reference!r} refers to itself, so it has no maximum depth; use constraint(…, depth=3)",
                pointer_to(*path, "$ref"),
            )
        key = (reference, tuple(types or ()))
        if key not in self.known:
            self.following.append(reference)
            target = resolve(self.root, reference)
            self.known[key] = self.problem(target, reference_path(reference), types)
            self.following.pop()
        return self.known[key]

    def own_problem(self, node: Mapping[str, Any], path: Path, types: list[str] | None) -> Problem | None:
        if not types:
            return "this allows values of any type; add a type", pointer_to(*path)
        problems = {
            "string": self.string,
            "array": self.array,
            "object": self.object,
            "integer": self.number,
            "number": self.number,
        }
        for name in types:
            problem = problems[name](node, path) if name in problems else None
            if problem is not None:
                return problem
        return None

    def string(self, node: Mapping[str, Any], path: Path) -> Problem | None:
        if "maxLength" in node or "format" in node or QUOTE in node or LARK in node:
            return None
        if "pattern" in node:
            pattern = translate(node["pattern"], ascii_words=True)
            if pattern.starts and pattern.ends and pattern.bounded:
                return None
            return (
                "the pattern has no maximum length; add maxLength (Field(max_length=…)), or use ^…$ with "
                "{m,n} instead of *, + and {n,}",
                pointer_to(*path, "pattern"),
            )
        return "a string without a bound; add maxLength, or Field(max_length=…)", pointer_to(*path)

    def number(self, node: Mapping[str, Any], path: Path) -> Problem | None:
        low = "minimum" in node or "exclusiveMinimum" in node
        high = "maximum" in node or "exclusiveMaximum" in node
        if low and high:
            return None
        missing = "minimum and maximum" if not low and not high else "minimum" if high else "maximum"
        return f"a number without a bound; add {missing}, or Field(ge=…, le=…)", pointer_to(*path)

    def array(self, node: Mapping[str, Any], path: Path) -> Problem | None:
        leading = node.get("prefixItems", [])
        rest = node.get("items")
        most = len(leading) if rest is False else node.get("maxItems")
        if most is None and node.get("uniqueItems"):
            return None  # every listed value occurs at most once
        if most is None:
            return "a list without a bound; add maxItems, or Field(max_length=…)", pointer_to(*path)
        for index, child in enumerate(leading):
            if (problem := self.problem(child, (*path, "prefixItems", index), None)) is not None:
                return problem
        if most <= len(leading):
            return None
        if rest is None:
            return "a list of anything; describe its items with items", pointer_to(*path)
        return self.problem(rest, (*path, "items"), None)

    def object(self, node: Mapping[str, Any], path: Path) -> Problem | None:
        if "additionalProperties" not in node and not (self.closes and "properties" in node):
            return (
                "an object that allows any other property; list its properties and add additionalProperties: "
                "false",
                pointer_to(*path),
            )
        for name, child in node.get("properties", {}).items():
            if (problem := self.problem(child, (*path, "properties", name), None)) is not None:
                return problem
        return None


DECIMALS = 6  # of a number whose schema has no multipleOf
DIGITS = 15  # decimal digits that the compiler's doubles represent exactly


def on_grid(node: Mapping[str, Any], at: str) -> dict[str, int | float]:
    """Return the numeric keywords of `node` as inclusive bounds on multiples of a step; {} if it has none.

    The step is `multipleOf` if given, else 1 for integers and six decimals for numbers (fewer if the bounds
    leave less than fifteen digits for them). The compiler gets no exclusive bounds, because it accepts 0
    for `exclusiveMinimum: 0` if the maximum has more decimals than the step. Raises `ConstraintError` with
    the pointer `at` if no number is left, or if bounds and step together need more than fifteen digits.
    """
    types = node.get("type", ())
    types = {types} if isinstance(types, str) else set(types)
    if not ("number" in types or any(keyword in node for keyword in NUMERIC)):
        return {}
    bounds = [abs(node[keyword]) for keyword in NUMERIC[:4] if keyword in node]
    if "multipleOf" in node:
        step = _exact(node["multipleOf"])
    elif "integer" in types and "number" not in types:
        step = Fraction(1)
    else:
        room = DIGITS - len(str(math.ceil(max(bounds, default=0))))
        step = Fraction(1, 10 ** max(0, min(DECIMALS, room)))
    if bounds and _exact(max(bounds)) / min(step, Fraction(1)) > 10**DIGITS:
        raise ConstraintError("the bounds and the last decimal together take more than 15 digits", at)
    low, high = _lowest(node, step), _highest(node, step)
    if low is not None and high is not None and low > high:
        raise ConstraintError(f"no multiple of {float(step)} lies between the bounds", at)
    found = {"minimum": low, "maximum": high, "multipleOf": step}
    if step == 1:
        del found["multipleOf"]
        if "number" in types:
            found["multipleOf"] = step
    return {keyword: _plain(value) for keyword, value in found.items() if value is not None}


def _lowest(node: Mapping[str, Any], step: Fraction) -> Fraction | None:
    candidates = []
    if "minimum" in node:
        candidates.append(math.ceil(_exact(node["minimum"]) / step))
    if "exclusiveMinimum" in node:
        candidates.append(math.floor(_exact(node["exclusiveMinimum"]) / step) + 1)
    return max(candidates) * step if candidates else None


def _highest(node: Mapping[str, Any], step: Fraction) -> Fraction | None:
    candidates = []
    if "maximum" in node:
        candidates.append(math.floor(_exact(node["maximum"]) / step))
    if "exclusiveMaximum" in node:
        candidates.append(math.ceil(_exact(node["exclusiveMaximum"]) / step) - 1)
    return min(candidates) * step if candidates else None


def _exact(value: int | float) -> Fraction:
    return Fraction(str(value))  # the decimal as written, not as a double


def _plain(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)


# --- schemas for judges ----------------------------------------------------------------------------


def closed_object(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with exactly these properties, in this order."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def short_text(most: int) -> dict[str, str]:
    """Return the schema of one line of up to `most` characters, none of them special in JSON."""
    return {"type": "string", "pattern": f'^[^"\\\\{{}}\\[\\]\\x00-\\x1f\\x7f-\\x9f]{{1,{most}}}$'}
