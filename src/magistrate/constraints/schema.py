"""JSON Schema as data: known keywords, the schemas inside a schema, references, facts of one node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

QUOTE = "x-quote"  # our own keyword: {"type": "string", "x-quote": {"of": "context", "unit": "words"}}
LARK = "x-lark"  # our own keyword: {"type": "string", "x-lark": "start: ..."}

MAPS = ("properties", "$defs", "definitions")  # keywords that hold named schemas
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")  # keywords that hold a list of schemas
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
PLACE = re.compile(r"[0-9]{1,9}")  # an index of a list, in a path or a pointer
MOST_VALUES = 1000  # integers of a range that are listed one by one

Node = Mapping[str, Any]
Path = tuple[str | int, ...]


def pointer_to(*tokens: str | int) -> str:
    """The JSON pointer of a place in a schema, as a URI fragment: `#/properties/name`."""
    return "#" + "".join("/" + str(token).replace("~", "~0").replace("/", "~1") for token in tokens)


def reference_path(reference: str) -> tuple[str, ...]:
    """The tokens of a local reference, unescaped: `#/$defs/a~1b` is `("$defs", "a/b")`."""
    tokens = reference[2:].split("/") if len(reference) > 2 else []
    return tuple(unquote(token).replace("~1", "/").replace("~0", "~") for token in tokens)


def resolve(root: Node, reference: str) -> Any:
    """The schema that a local `$ref` points to; `KeyError` if there is none."""
    if reference != "#" and not reference.startswith("#/"):
        raise KeyError(reference)
    node: Any = root
    for name in reference_path(reference):
        node = node[int(name)] if isinstance(node, list) and PLACE.fullmatch(name) else node[name]
    return node


def subschemas(node: Any) -> Iterator[tuple[Path, Any]]:
    """Every schema directly inside `node`, with the path to it; malformed values are passed over."""
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
    """`schema` and every schema inside it, each before its own parts, with the path to it."""
    pending: list[tuple[Any, Path]] = [(schema, ())]
    while pending:
        node, path = pending.pop()
        yield node, path
        pending += reversed([(child, path + step) for step, child in subschemas(node)])


def types_of(node: Node) -> list[str] | None:
    """The value of `type` as a list; None if there is none."""
    value = node.get("type")
    return [value] if isinstance(value, str) else value


def closes_objects(schema: Node) -> bool:
    """Whether an object that does not say otherwise may be written with its declared properties only.

    That narrows a schema to texts that are still valid, unless objects are merged: then a property that one
    part declares is an additional one for the other.
    """
    for node, _ in walk(schema):
        applied = [keyword for keyword in IN_PLACE if keyword in node]
        if "allOf" in applied or len(applied) > 1 or (applied and ASSERTIONS & node.keys()):
            return False
    return True


def crossed(node: Node) -> tuple[str, str] | None:
    """A lower and an upper bound of `node` with nothing between them; None if there are no such bounds."""
    for low, high in _PAIRS:
        if low in node and high in node:
            strict = low.startswith("exclusive") or high.startswith("exclusive")
            if node[low] > node[high] or (strict and node[low] == node[high]):
                return low, high
    return None


def listed(node: Any, root: Node) -> list[Any] | None:
    """All values that `node` allows, if they are few and `node` names them itself; otherwise None."""
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
