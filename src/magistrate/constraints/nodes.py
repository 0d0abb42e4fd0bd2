"""Facts about one node of a JSON Schema, and small changes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magistrate.constraints.pointers import resolve

MOST_VALUES = 1000  # integers of a range that are listed so that some of them can be left out

Node = Mapping[str, Any]


class Unsplittable(Exception):
    """No list of cases says the same."""


def replaced(node: Node, name: str, child: Any) -> Node:
    """`node` with another schema for a property."""
    return {**node, "properties": {**node.get("properties", {}), name: child}}


def present(node: Node, name: str) -> Node:
    """`node` with that property required."""
    return {**node, "required": [*dict.fromkeys([*node.get("required", ()), name])]}


def absent(node: Node, name: str) -> Node:
    """`node` without that property, and closed."""
    kept = {key: value for key, value in node["properties"].items() if key != name}
    return {**node, "properties": kept, "additionalProperties": False}


def is_whole(node: Node) -> bool:
    """Whether every required property may stand there."""
    missing = set(node.get("required", ())) - node.get("properties", {}).keys()
    if missing and "properties" not in node:
        raise Unsplittable
    return not missing


PAIRS = (
    ("minimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("exclusiveMinimum", "maximum"),
    ("minimum", "exclusiveMaximum"),
    ("exclusiveMinimum", "exclusiveMaximum"),
)


def crossed(node: Node) -> tuple[str, str] | None:
    """A lower and an upper bound of `node` that leave nothing between them; None where there are none."""
    for low, high in PAIRS:
        if low in node and high in node:
            strict = low.startswith("exclusive") or high.startswith("exclusive")
            if node[low] > node[high] or (strict and node[low] == node[high]):
                return low, high
    return None


def types_of(value: Any) -> list[str] | None:
    """The value of `type` as a list; None where there is none."""
    return [value] if isinstance(value, str) else value


def is_only(node: Node, kind: str) -> bool:
    """Whether every value that `node` allows is of that type."""
    types = types_of(node.get("type"))
    return bool(types) and all(
        name == kind or (kind == "number" and name == "integer") for name in types or ()
    )


def common_types(one: Any, other: Any) -> list[str] | str | None:
    """The types that both values of `type` allow, as `type` has them; empty where there are none."""
    mine, others = types_of(one), types_of(other) or []
    if mine is None:
        return others
    found = [name for name in mine if name in others or (name == "integer" and "number" in others)]
    found += ["integer"] if "number" in mine and "integer" in others and "number" not in others else []
    return found[0] if len(found) == 1 else found


def untyped(node: Node, value: Any) -> list[Node]:
    """Cases of `node` without the types in `value`."""
    types, gone = types_of(node.get("type")), types_of(value) or []
    if types is None or ("number" in types and "integer" in gone and "number" not in gone):
        raise Unsplittable
    left = [name for name in types if name not in gone and not (name == "integer" and "number" in gone)]
    return [{**node, "type": left[0] if len(left) == 1 else left}] if left else []


def listed(node: Any, root: Node) -> list[Any] | None:
    """All values that `node` allows, where they are few and `node` says so by itself; None otherwise."""
    for _ in range(50):
        if not isinstance(node, Mapping) or "$ref" not in node:
            break
        node = resolve(root, node["$ref"])
    if not isinstance(node, Mapping) or node.keys() & {"anyOf", "oneOf", "allOf", "$ref"}:
        return None
    if "enum" in node or "const" in node:
        values = node.get("enum", [node.get("const")])
    elif (values := listed_by_type(node)) is None:
        return None
    from magistrate.constraints.validation import plain_validator

    others = {keyword: value for keyword, value in node.items() if keyword != "enum"}  # they are all in it
    valid = plain_validator(root, others).is_valid
    return [value for value in values if valid(value)]


def listed_by_type(node: Node) -> list[Any] | None:
    """All values of a node that allows few by its type."""
    types = types_of(node.get("type")) or ["string"]
    found: list[Any] = []
    for name in types:
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


def may_be(node: Node, value: Any) -> bool:
    """Whether `value` has a type that `node` allows."""
    names = {bool: "boolean", str: "string", dict: "object", list: "array", type(None): "null"}
    name = names.get(type(value), "number")
    types = types_of(node.get("type"))
    return types is None or name in types or (name == "number" and "integer" in types)
