"""A schema in the spelling of draft 2020-12, every definition where the rest of the code looks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magistrate.constraints.pointers import CONDITIONS, LISTS, MAPS, reference_path, resolve

DEFINITIONS = ("$defs", "definitions")

_SAYING_NOTHING = {"$defs", "definitions", "$schema", "$id", "title", "description", "$comment", "default"}
_HOLDING = ("additionalProperties", "unevaluatedProperties", "unevaluatedItems")
_BESIDE = {
    "$ref",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "dependentSchemas",
    "$dynamicRef",
    "patternProperties",
}

Node = Mapping[str, Any]


def modern(schema: Node) -> dict[str, Any]:
    """`schema` with `items` lists as `prefixItems`, `dependencies` by their newer names, `{}` for `true`, no
    properties and branches that are `false`, and `$defs` for what a `$ref` finds by `$anchor` or elsewhere.
    What is not understood is left as it is."""
    written: dict[str, Any] = _spelled(schema)
    anchors = {}
    for node in _nodes(written):
        if isinstance(node.get("$anchor"), str):
            anchors[f"#{node.pop('$anchor')}"] = node
    moved: dict[str, str] = {}
    definitions: dict[str, Any] = {}
    for node in list(_nodes(written)):
        reference = node.get("$ref")
        if not isinstance(reference, str) or reference == "#" or _is_definition(reference):
            continue
        if reference not in moved:
            target = anchors.get(reference)
            try:
                target = anchors[reference] if reference in anchors else resolve(written, reference)
            except (KeyError, IndexError, TypeError, ValueError):
                continue
            if not isinstance(target, dict):
                continue
            if target is written:
                moved[reference] = "#"
            else:
                name = _free_name(reference, {**written.get("$defs", {}), **definitions})
                moved[reference], definitions[name] = f"#/$defs/{name}", target
        node["$ref"] = moved[reference]
    if definitions:
        written["$defs"] = {**written.get("$defs", {}), **definitions}
    return written


def _spelled(node: Any, among: bool = False) -> Any:
    """`node` in the newest spelling; `among`: it is a condition, or one of several schemas for a place."""
    if not isinstance(node, Mapping):
        return {} if node is True else node
    written: dict[str, Any] = {}
    for keyword, value in node.items():
        if keyword in (*MAPS, "dependentSchemas", "patternProperties") and isinstance(value, Mapping):
            inside = among or keyword not in ("properties", "patternProperties")
            written[keyword] = {name: _spelled(child, inside) for name, child in value.items()}
        elif keyword == "items" and isinstance(value, list):
            written["prefixItems"] = [_spelled(child, among) for child in value]
            if "additionalItems" in node:
                written["items"] = _spelled(node["additionalItems"], among)
        elif keyword == "additionalItems" and isinstance(node.get("items"), list):
            continue
        elif keyword == "dependencies" and isinstance(value, Mapping):
            lists = {name: each for name, each in value.items() if isinstance(each, list)}
            others = {
                name: _spelled(each, True) for name, each in value.items() if not isinstance(each, list)
            }
            written |= {"dependentRequired": lists} if lists else {}
            written |= {"dependentSchemas": others} if others else {}
        elif keyword in LISTS and isinstance(value, list):
            kept = [child for child in value if child is not False or keyword not in ("anyOf", "oneOf")]
            beside = keyword == "allOf" or bool(node.keys() - {keyword} - _SAYING_NOTHING)
            written[keyword] = [
                _spelled(child, among or (beside and keyword != "prefixItems")) for child in kept or value
            ]
        elif keyword == "items":
            written[keyword] = _spelled(value, among)
        elif keyword in (*_HOLDING, *CONDITIONS):
            inside = among or keyword in CONDITIONS
            written[keyword] = value if isinstance(value, bool) else _spelled(value, inside)
        else:
            written[keyword] = value
    return _closed(written, among)


def _closed(node: dict[str, Any], among: bool) -> dict[str, Any]:
    """A node whose keywords about further parts are those that are known here, where they say the same."""
    if not node.keys() & _BESIDE:  # else what a schema beside this one describes counts too
        for old, new in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
            if isinstance(node.get(old), bool) and node.pop(old) is False:
                node.setdefault(new, False)
    properties = node.get("properties")
    if not among and isinstance(properties, dict) and any(each is False for each in properties.values()):
        node["properties"] = {name: child for name, child in properties.items() if child is not False}
        node["additionalProperties"] = False
    names = node.get("propertyNames")
    if isinstance(names, Mapping) and names.keys() <= {"enum", "const", "type", "title"}:
        known = names.get("enum", [names["const"]] if "const" in names else None)
        free = node.get("additionalProperties")
        if known and isinstance(free, Mapping) and "properties" not in node and "type" in node:
            del node["propertyNames"]
            node["properties"] = {name: free for name in known if isinstance(name, str)}
            node["additionalProperties"] = False
    return node


def _nodes(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Every schema inside `schema`, wherever a schema may stand."""
    found: list[dict[str, Any]] = []
    pending: list[Any] = [schema]
    while pending:
        node = pending.pop()
        if not isinstance(node, dict):
            continue
        found.append(node)
        for keyword, value in node.items():
            if keyword in (*MAPS, "dependentSchemas", "patternProperties") and isinstance(value, dict):
                pending += value.values()
            elif keyword in LISTS and isinstance(value, list):
                pending += value
            elif keyword in ("items", *CONDITIONS):
                pending.append(value)
    return found


def _is_definition(reference: str) -> bool:
    place = reference_path(reference) if reference.startswith("#/") else ()
    return len(place) == 2 and place[0] in DEFINITIONS


def _free_name(reference: str, taken: Mapping[str, Any]) -> str:
    name = "_".join(reference_path(reference)) if reference.startswith("#/") else reference.lstrip("#")
    name = "".join(letter if letter.isalnum() else "_" for letter in name) or "part"
    while name in taken:
        name += "_"
    return name
