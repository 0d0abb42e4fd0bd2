"""Checks a JSON Schema before any compiler sees it: every keyword is enforced or refused, every text can end.

A compiler that ignores what it does not know lets a misspelled `maxLenght` pass for a bound. Here an
unknown keyword is an error with its JSON pointer, and so is a known one that the masks cannot hold to.
A model under an endless schema writes until its budget is gone, so `endless` finds the first string, list,
number or object without a bound, and recursion, before anything is spent. `on_grid` gives numbers a step, so
that their digits come to an end.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import combinations
from typing import Any

from magistrate.constraints.lark import compile_grammar, embedded
from magistrate.constraints.quote import quote_of
from magistrate.constraints.regex import FORMATS, compiled, ecma, translate
from magistrate.constraints.schema import (
    ANNOTATIONS,
    ENFORCED,
    LARK,
    LISTS,
    MAPS,
    NUMERIC,
    QUOTE,
    Node,
    Path,
    closes_objects,
    crossed,
    listed,
    pointer_to,
    reference_path,
    resolve,
    subschemas,
    types_of,
    walk,
)
from magistrate.errors import ConstraintError

_CASES = "write the cases as branches of anyOf"
REFUSED = {
    **dict.fromkeys(("if", "then", "else"), _CASES),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), _CASES),
    "not": "list what is allowed with enum, anyOf or a pattern",
    **dict.fromkeys(
        ("contains", "minContains", "maxContains"),
        "give the items that must be there their own place with prefixItems",
    ),
    "unevaluatedItems": "say items: false beside prefixItems",
    "unevaluatedProperties": "say additionalProperties: false beside properties",
    "additionalItems": "say items: false beside prefixItems",
    "patternProperties": "name the properties, or write a list of objects with a key and a value",
    "propertyNames": "name the properties, or write a list of objects with a key and a value",
    "minProperties": "say which properties are required",
    "maxProperties": "name the properties and say additionalProperties: false",
    "contentEncoding": "describe the text with a pattern",
    "contentMediaType": "describe the text with a pattern",
    "contentSchema": "describe the value itself, not a text that holds it",
    **dict.fromkeys(
        ("$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef", "$recursiveAnchor"),
        "refer by JSON pointer: #/$defs/NAME",
    ),
    "$vocabulary": "leave it out",
}
KNOWN = sorted(ANNOTATIONS | ENFORCED | set(REFUSED))

TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
MOST_UNIQUE = 64  # values of a list of unique items: the bits that a rule of the mask engine can carry
LARGEST_SCHEMA = 1_000_000  # bytes
DEEPEST_PATH = 100  # steps from the root, one or two for each level
LARGEST = 10**15  # fixed numbers beyond it are not exact in the compiler's doubles
_EMPTY = "an empty schema allows anything of any length; say at least a type"
_ASSERTING = ENFORCED - {"$defs", "definitions"}
MOST_BRANCHES = 300  # of a oneOf, which are compared with each other


def check_schema(schema: Node) -> None:
    """Raise `ConstraintError`, with the JSON pointer, for what is no schema, or too large for one."""
    try:
        size = len(json.dumps(schema, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"the schema is not plain JSON: {error}", "#") from None
    if size > LARGEST_SCHEMA:
        raise ConstraintError(f"the schema has {size:,} bytes; at most {LARGEST_SCHEMA:,}", "#")
    pending: list[tuple[Any, Path]] = [(schema, ())]
    while pending:
        node, path = pending.pop()
        if len(path) > DEEPEST_PATH:
            raise ConstraintError("the schema nests too deep; name its parts in $defs", pointer_to(*path))
        if not (isinstance(node, bool) and path):
            _check_keywords(node, path)
            pending += reversed([(child, path + step) for step, child in subschemas(node)])
    _check_values(schema)
    for node, path in walk(schema):  # only now is every value known to have the right form
        if isinstance(node, Mapping):
            _check_reference(node, path, schema)


def check_writable(schema: Node) -> None:
    """Raise `ConstraintError`, with the JSON pointer, for what the masks would not hold to.

    `schema` has passed `check_schema`.
    """
    for node, path in walk(schema):
        here = pointer_to(*path)
        if node is False:
            raise ConstraintError("the schema false allows nothing; leave this part out", here)
        if not path and not node.keys() & _ASSERTING:  # deeper ones only have no end
            raise ConstraintError(_EMPTY, here)
    for node, path in walk(schema):
        _check_contradictions(node, path, schema)
        _check_details(node, path, schema)


def _check_keywords(node: Any, path: Path) -> None:
    if not isinstance(node, Mapping):
        raise ConstraintError(f"a schema is an object, not {type(node).__name__}", pointer_to(*path))
    for keyword, value in node.items():
        at = pointer_to(*path, keyword)
        if keyword in REFUSED:
            raise ConstraintError(f'"{keyword}" cannot be enforced while writing; {REFUSED[keyword]}', at)
        if keyword not in ENFORCED | ANNOTATIONS:
            if keyword.startswith("x-") and keyword != "x-guidance":
                continue
            close = difflib.get_close_matches(keyword, KNOWN, n=1)
            hint = f'did you mean "{close[0]}"?' if close else f"known: {', '.join(sorted(ENFORCED))}"
            raise ConstraintError(f'"{keyword}" is not a keyword; {hint}', at)
        if keyword == "type":
            _check_types([value] if isinstance(value, str) else value, at)
        if keyword == "enum" and value == []:
            raise ConstraintError("an empty enum allows nothing", at)
        if keyword in MAPS and not isinstance(value, Mapping):
            raise ConstraintError("must be an object of schemas", at)
        if keyword in LISTS and not (isinstance(value, list) and value):
            raise ConstraintError("must be a list of schemas, not empty", at)
    if path and "$id" in node:
        raise ConstraintError("an inner $id changes what $ref means; leave it out", pointer_to(*path, "$id"))


def _check_types(names: Any, at: str) -> None:
    for name in names if isinstance(names, list) else ():
        if name not in TYPES:
            close = difflib.get_close_matches(str(name), TYPES, n=1)
            hint = f'did you mean "{close[0]}"?' if close else f"known: {', '.join(TYPES)}"
            raise ConstraintError(f"{name!r} is not a type; {hint}", at)


def _check_values(schema: Node) -> None:
    """Let the metaschema say whether every keyword's value has the right form."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    plain = {keyword: value for keyword, value in schema.items() if keyword != "$schema"}
    error = best_match(Draft202012Validator(Draft202012Validator.META_SCHEMA).iter_errors(plain))
    if error is not None:
        raise ConstraintError(error.message, pointer_to(*error.absolute_path))


def _check_details(node: Node, path: Path, root: Node) -> None:
    if node.get("additionalProperties", False) is not False:
        raise ConstraintError(
            "free property names have no bound and may repeat; name the properties and say "
            "additionalProperties: false, or write a list of objects with a key and a value",
            pointer_to(*path, "additionalProperties"),
        )
    missing = [name for name in node.get("required", ()) if name not in node.get("properties", {})]
    if missing and not any(keyword in node for keyword in ("$ref", "allOf")) and "properties" in node:
        raise ConstraintError(
            f"required properties that are not described: {', '.join(missing)}; add them to properties",
            pointer_to(*path, "required"),
        )
    if "format" in node:
        _check_format(node, pointer_to(*path, "format"))
    if "pattern" in node:
        translate(node["pattern"], ascii_words=True, pointer=pointer_to(*path, "pattern"))
        _check_size(node["pattern"], pointer_to(*path, "pattern"))
    if node.get("uniqueItems"):
        _check_unique(node, pointer_to(*path, "uniqueItems"), root)
    for keyword in (QUOTE, LARK):
        if keyword in node:
            _check_own(node, keyword, pointer_to(*path, keyword))
    on_grid(node, pointer_to(*path))
    if "oneOf" in node:
        if "anyOf" in node:
            raise ConstraintError("oneOf beside anyOf is not supported; use one", pointer_to(*path, "oneOf"))
        check_exclusive(node["oneOf"], path, root)
    for keyword in ("enum", "const"):
        for value in node["enum"] if keyword == "enum" and keyword in node else [node.get(keyword)]:
            _check_fixed(value, pointer_to(*path, keyword))


def _check_contradictions(node: Node, path: Path, root: Node) -> None:
    """Whether the keywords of one node leave anything; what only the compiler sees it says itself."""
    if (bounds := crossed(node)) is not None:
        low, high = bounds
        message = f"{low} {node[low]} and {high} {node[high]} leave nothing between them"
        raise ConstraintError(message, pointer_to(*path, low))
    for keyword in ("enum", "const"):
        if keyword in node and node.keys() & _ASSERTING != {keyword} and listed(node, root) == []:
            beside = sorted(node.keys() & _ASSERTING - {keyword})
            message = f"{keyword} lists nothing that {', '.join(beside)} beside it allows"
            raise ConstraintError(message, pointer_to(*path, keyword))
    places = len(node.get("prefixItems", ()))
    if node.get("items") is False and node.get("minItems", 0) > places:
        message = f"minItems {node['minItems']} is more than the {places} items that are described"
        raise ConstraintError(message, pointer_to(*path, "minItems"))


def _check_reference(node: Node, path: Path, root: Node) -> None:
    reference = node.get("$ref", "#")
    if reference == "#":
        return
    place = reference_path(reference)
    if not reference.startswith("#/") or len(place) != 2 or place[0] not in ("$defs", "definitions"):
        reason = "only references of the form #/$defs/NAME are followed"
    elif place[1] not in root.get(place[0], {}):
        reason = f"it points to nothing; known: {', '.join(root.get(place[0], {})) or 'no definitions'}"
    else:
        return
    raise ConstraintError(f"the reference {reference!r}: {reason}", pointer_to(*path, "$ref"))


def _check_size(pattern: str, at: str) -> None:
    """Raise `ConstraintError` for a pattern that is too large to be compiled for validation."""
    try:
        compiled(ecma(pattern))
    except ConstraintError as error:
        raise ConstraintError(str(error), at) from None


def _check_format(node: Node, at: str) -> None:
    if node["format"] not in FORMATS:
        raise ConstraintError(
            f"the format {node['format']!r} cannot be enforced; known: {', '.join(FORMATS)}; "
            "otherwise write a pattern",
            at,
        )
    if "pattern" in node:
        raise ConstraintError("format beside pattern is not supported; write one pattern", at)


def _check_own(node: Node, keyword: str, at: str) -> None:
    """A quote or a grammar of its own is all that a string is held to, but for a quote's length."""
    what = "a quote" if keyword == QUOTE else "a Lark grammar"
    try:
        if keyword == QUOTE:
            quote_of(node)
        else:
            embedded(node[keyword] if isinstance(node[keyword], str) else "", "")
            compile_grammar(node[keyword])
    except ConstraintError as error:
        raise ConstraintError(str(error), at) from None
    if "string" not in node.get("type", ()):
        raise ConstraintError(f'{what} is a string; say "type": "string" beside it', at)
    others = {
        "enum",
        "const",
        "pattern",
        "format",
        QUOTE,
        LARK,
        *(("minLength", "maxLength") if keyword == LARK else ()),
    }
    if beside := sorted(node.keys() & others - {keyword}):
        raise ConstraintError(f"{what} cannot be held to {beside[0]} as well; leave one out", at)


def _check_unique(node: Node, at: str, root: Node) -> None:
    values = listed(node.get("items"), root)
    if values is None or "prefixItems" in node or node.get("type") != "array":
        raise ConstraintError(
            "unique items can be held to only in a list of listed values; give items an enum, or leave "
            "uniqueItems out and check the parsed list",
            at,
        )
    if len(values) > MOST_UNIQUE:
        raise ConstraintError(f"{len(values)} values are too many to be unique; at most {MOST_UNIQUE}", at)
    if any(_same(one, other) for one, other in combinations(values, 2)):
        raise ConstraintError("the listed values are not unique themselves", at)


def _same(one: Any, other: Any) -> bool:
    """Whether JSON takes them for the same value: 1 and 1.0, but not 1 and true."""
    return bool(one == other) and isinstance(one, bool) is isinstance(other, bool)


def _check_fixed(value: Any, at: str) -> None:
    """A value of `enum` or `const` is one that the compiler writes exactly as given."""
    if isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            _check_fixed(child, at)
    elif isinstance(value, int | float) and abs(value) > LARGEST:
        raise ConstraintError(f"{value} is beyond ±1e15, where numbers are not written exactly", at)


def check_exclusive(branches: list[Any], path: Path, root: Node) -> None:
    """Raise `ConstraintError` unless every two branches of a `oneOf` exclude each other.

    Two branches do if they differ in type, in their fixed values, or in a tag: a property that both require
    and for which each allows other values.
    """
    found = [_followed(branch, root) for branch in branches]
    if _all_differ(found) or any(_all_differ(values) for values in _tags(found, root)):
        return
    if len(branches) > MOST_BRANCHES:
        raise ConstraintError(
            f"{len(branches):,} branches are too many to be compared with each other; at most "
            f"{MOST_BRANCHES}: use anyOf, or an enum",
            pointer_to(*path, "oneOf"),
        )
    for (first, one), (second, other) in combinations(enumerate(found), 2):
        if not (_excludes(one, other) or _tagged_apart(one, other, root)):
            raise ConstraintError(
                f"branches {first} and {second} may both hold, which cannot be ruled out while writing; "
                "use anyOf, or give each a required property with a const of its own",
                pointer_to(*path, "oneOf"),
            )


def _all_differ(nodes: list[Node]) -> bool:
    """Whether each node allows fixed values only, and none that another one allows."""
    values = [_fixed(node) for node in nodes]
    given = [each for fixed in values if fixed is not None for each in fixed]
    return None not in values and len(set(given)) == len(given)


def _tags(branches: list[Node], root: Node) -> Iterator[list[Node]]:
    """For each property that all branches require, its schema in each; nothing unless all are objects."""
    if not branches or any(_types(branch) != {"object"} for branch in branches):
        return
    for tag in set.intersection(*(set(branch.get("required", ())) for branch in branches)):
        if all(tag in branch.get("properties", {}) for branch in branches):
            yield [_followed(branch["properties"][tag], root) for branch in branches]


def _followed(node: Any, root: Node) -> Node:
    """`node`, or what it refers to where it says nothing else that could exclude a value."""
    steps = 0
    while isinstance(node, Mapping) and "$ref" in node and "type" not in node and steps < 50:
        node, steps = resolve(root, node["$ref"]), steps + 1
    return node if isinstance(node, Mapping) else {}


def _types(node: Node) -> set[str]:
    return {"number" if name == "integer" else name for name in types_of(node) or ()}


def _fixed(node: Node) -> set[tuple[bool, Any]] | None:
    """The only values that `node` allows, if they are plain ones; booleans kept apart from 0 and 1."""
    values = [node["const"]] if "const" in node else node.get("enum")
    if values is None or any(isinstance(value, dict | list) for value in values):
        return None
    return {(isinstance(value, bool), value) for value in values}


def _excludes(one: Node, other: Node) -> bool:
    if _types(one) and _types(other) and not _types(one) & _types(other):
        return True
    mine, others = _fixed(one), _fixed(other)
    return mine is not None and others is not None and not mine & others


def _tagged_apart(one: Node, other: Node, root: Node) -> bool:
    if _types(one) != {"object"} or _types(other) != {"object"}:
        return False
    tags = set(one.get("required", ())) & set(other.get("required", ()))
    for tag in tags & one.get("properties", {}).keys() & other.get("properties", {}).keys():
        if _excludes(_followed(one["properties"][tag], root), _followed(other["properties"][tag], root)):
            return True
    return False


Problem = tuple[str, str]  # what is endless and what to write instead; the JSON pointer


def endless(schema: Mapping[str, Any]) -> Problem | None:
    """The first part of `schema` that has no end, or None."""
    try:
        return _Bounds(schema).problem(schema, (), None)
    except _Recursion as found:
        return found.args


class _Recursion(Exception):
    """A definition refers to itself: what that means and where, which nothing around it can mend."""

    args: Problem


class _Bounds:
    """One walk along the references of a schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.closes = closes_objects(root)
        self.following: list[str] = []
        self.known: dict[tuple[str, tuple[str, ...]], Problem | None] = {}

    def problem(self, node: Mapping[str, Any], path: Path, inherited: list[str] | None) -> Problem | None:
        """The endless part of `node`, or None. `inherited` are the types that the schema around it allows."""
        own = node.get("type", inherited)
        types = [own] if isinstance(own, str) else own
        parts = self.applied(node, path, types)  # even if the node is bounded: recursion is an error anyway
        if "const" in node or "enum" in node:
            return None
        mine = self.own_problem(node, path, types)
        if mine is None or any(part is None for part in parts):
            return None
        return mine if "type" in node or not parts else next(part for part in parts if part is not None)

    def applied(self, node: Mapping[str, Any], path: Path, types: list[str] | None) -> list[Problem | None]:
        """One answer for each schema that must hold as well at the same place."""
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
                f"{reference!r} refers to itself, so the text has no greatest depth; "
                "say how deep it may go: constraint(…, depth=3)",
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
                "the pattern has no longest text; add maxLength (Field(max_length=…)), "
                "or write ^…$ with {m,n} instead of *, + and {n,}",
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
            return None  # of listed values, each at most once
        if most is None:
            return "a list without a bound; add maxItems, or Field(max_length=…)", pointer_to(*path)
        for index, child in enumerate(leading):
            if (problem := self.problem(child, (*path, "prefixItems", index), None)) is not None:
                return problem
        if most <= len(leading):
            return None
        if rest is None:
            return "a list of anything; say with items what it holds", pointer_to(*path)
        return self.problem(rest, (*path, "items"), None)

    def object(self, node: Mapping[str, Any], path: Path) -> Problem | None:
        if "additionalProperties" not in node and not (self.closes and "properties" in node):
            return (
                "an object that may hold any further property; name its properties and add "
                "additionalProperties: false",
                pointer_to(*path),
            )
        for name, child in node.get("properties", {}).items():
            if (problem := self.problem(child, (*path, "properties", name), None)) is not None:
                return problem
        return None


DECIMALS = 6  # of a number whose schema has no multipleOf
DIGITS = 15  # decimal digits that survive the compiler's doubles


def on_grid(node: Mapping[str, Any], at: str) -> dict[str, int | float]:
    """The numeric keywords of `node` as inclusive bounds on the multiples of a step; {} where it has none.

    The step is `multipleOf`; else 1 for integers, and for numbers six decimals, fewer where the bounds leave
    less than fifteen digits for them. The compiler is not handed exclusive bounds: it lets 0 through for
    `exclusiveMinimum: 0` where the maximum has more decimals than the step. Raises `ConstraintError` with
    the pointer `at` where no number is left, or bounds and step together need more than fifteen digits.
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
    return Fraction(str(value))  # the decimal as written, not its double


def _plain(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)
