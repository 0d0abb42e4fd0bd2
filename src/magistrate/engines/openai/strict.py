"""JSON Schemas for OpenAI's strict mode, which knows fewer keywords, and what comes back under them.

Its rules: every object is closed and requires all of its properties, the root is an object, and some keywords
are refused. What is left out for the server is still held to when the answer is validated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from magistrate.constraints.partial_json import read

KEPT = frozenset(
    [
        *("type", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf"),
        *("$ref", "$defs", "definitions", "title", "description", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems"),
    ]
)
MAPS = frozenset({"properties", "$defs", "definitions"})  # names of ours, each with a schema
BARE = "answer"  # what a bare text is called in the object that stands around it


def strict(schema: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The schema in strict mode, and the keywords that it lost with the places they stood at.

    A property that need not be there may be null instead: `nulls_left_out` takes it out again.
    """
    lost: list[str] = []
    return _strict(schema, "", lost), tuple(lost)


def bare_of(schema: Mapping[str, Any]) -> tuple[dict[str, Any], Callable[[str], str]]:
    """An object around a text that is written bare otherwise, and the way back to that text."""
    inner = {"type": "string", **{key: schema[key] for key in ("enum", "pattern") if key in schema}}
    if "pattern" in inner:
        inner["pattern"] = f"^(?:{inner['pattern']})$"
    whole = {
        "type": "object",
        "properties": {BARE: inner},
        "required": [BARE],
        "additionalProperties": False,
    }
    return whole, _unwrapped


def nulls_left_out(text: str, schema: Mapping[str, Any]) -> str:
    """What was written under `strict(schema)`, without the nulls that stand for a missing property."""
    reading = read(text)
    if reading.state != "complete":
        return text
    value = reading.value
    pruned = _pruned(value, schema, schema)
    return text if pruned == value else json.dumps(pruned, ensure_ascii=False)


def _strict(node: Any, place: str, lost: list[str]) -> Any:
    if isinstance(node, list):
        return [_strict(each, f"{place}/{at}", lost) for at, each in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    made: dict[str, Any] = {}
    for key, value in node.items():
        name = "anyOf" if key == "oneOf" and "anyOf" not in node else key
        if name not in KEPT:
            lost.append(f"{place or '/'}: {key}")
        elif name in MAPS:
            made[name] = {each: _strict(of, f"{place}/{key}/{each}", lost) for each, of in value.items()}
        elif name in ("enum", "const", "required"):
            made[name] = value
        else:
            made[name] = _strict(value, f"{place}/{key}", lost)
    if "properties" in made:
        required = set(node.get("required", ()))
        made["properties"] = {
            name: of if name in required else {"anyOf": [of, {"type": "null"}]}
            for name, of in made["properties"].items()
        }
        made["required"] = list(made["properties"])
    if "properties" in made or made.get("type") == "object":
        if isinstance(node.get("additionalProperties"), Mapping):
            lost.append(f"{place or '/'}: additionalProperties")
        made["additionalProperties"] = False
    return made


def _pruned(value: Any, schema: Any, root: Mapping[str, Any]) -> Any:
    if not isinstance(schema, Mapping):
        return value
    if isinstance(target := schema.get("$ref"), str):
        return _pruned(value, _at(root, target), root)
    if isinstance(value, list):
        return [_pruned(each, schema.get("items"), root) for each in value]
    if not isinstance(value, dict):
        return value
    properties, required = schema.get("properties", {}), schema.get("required", ())
    return {
        name: _pruned(each, properties.get(name), root)
        for name, each in value.items()
        if each is not None
        or name not in properties
        or name in required
        or _may_be_null(properties.get(name), root)
    }


def _may_be_null(schema: Any, root: Mapping[str, Any]) -> bool:
    if not isinstance(schema, Mapping):
        return False
    if isinstance(target := schema.get("$ref"), str):
        return _may_be_null(_at(root, target), root)
    if any(_may_be_null(each, root) for key in ("anyOf", "oneOf") for each in schema.get(key, ())):
        return True
    kinds = schema.get("type", ())
    return "null" in ([kinds] if isinstance(kinds, str) else kinds) or None in schema.get("enum", ())


def _at(root: Mapping[str, Any], reference: str) -> Any:
    node: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        node = node.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
    return node if reference.startswith("#") else None


def _unwrapped(text: str) -> str:
    value = read(text).value  # of whole JSON that says nothing twice; else of no such type
    if isinstance(value, dict) and value.keys() == {BARE} and isinstance(value[BARE], str):
        return str(value[BARE])
    return text
