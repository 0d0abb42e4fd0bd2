"""Places in a JSON Schema: their pointers, the schemas inside a schema, what a local reference means."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

PLACE = re.compile(r"[0-9]{1,9}")  # of a list, as a path or a pointer has it

Path = tuple[str | int, ...]

MAPS = ("properties", "$defs", "definitions")  # keywords that hold named schemas
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")  # keywords that hold a list of schemas
CONDITIONS = ("not", "if", "then", "else")  # keywords that hold a schema that is a condition


def pointer_to(*tokens: str | int) -> str:
    """The JSON pointer of a place in a schema, as a URI fragment: `#/properties/name`."""
    return "#" + "".join("/" + str(token).replace("~", "~0").replace("/", "~1") for token in tokens)


def subschemas(node: Any) -> Iterator[tuple[Path, Any]]:
    """Every schema directly inside `node`, with the path to it."""
    if not isinstance(node, Mapping):  # true or false
        return
    for keyword in MAPS:
        for name, child in node.get(keyword, {}).items():
            yield (keyword, name), child
    for keyword in LISTS:
        for index, child in enumerate(node.get(keyword, ())):
            yield (keyword, index), child
    if "items" in node and node["items"] is not False:
        yield ("items",), node["items"]


def conditions(node: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Every schema directly inside `node` that belongs to a condition, with the path to it."""
    for keyword in CONDITIONS:
        if keyword in node:
            yield (keyword,), node[keyword]
    dependent = node.get("dependentSchemas", {})
    for name, child in dependent.items() if isinstance(dependent, Mapping) else ():
        yield ("dependentSchemas", name), child


def reference_path(reference: str) -> tuple[str, ...]:
    """The tokens of a local reference, unescaped: `#/$defs/a~1b` is `("$defs", "a/b")`."""
    tokens = reference[2:].split("/") if len(reference) > 2 else []
    return tuple(unquote(token).replace("~1", "/").replace("~0", "~") for token in tokens)


def resolve(root: Mapping[str, Any], reference: str) -> Any:
    """What a local `$ref` points to; `KeyError` where there is nothing."""
    if reference != "#" and not reference.startswith("#/"):
        raise KeyError(reference)
    node: Any = root
    for name in reference_path(reference):
        node = node[int(name)] if isinstance(node, list) and PLACE.fullmatch(name) else node[name]
    return node


def walk(schema: Any) -> Iterator[tuple[Any, Path]]:
    """`schema` and every schema inside it, each before its own parts, with the path to it."""
    pending: list[tuple[Any, Path]] = [(schema, ())]
    while pending:
        node, path = pending.pop()
        yield node, path
        pending += reversed([(child, path + step) for step, child in subschemas(node)])
