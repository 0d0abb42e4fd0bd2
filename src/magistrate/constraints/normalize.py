"""Rewrites a JSON Schema into the one spelling that is read here: draft 2020-12, recursion unrolled.

`normalized` rewrites older spellings; `unrolled` makes of a definition that refers to itself one definition a
level.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magistrate.constraints.schema import (
    IN_PLACE,
    LISTS,
    MAPS,
    Node,
    Path,
    pointer_to,
    reference_path,
    resolve,
    walk,
)
from magistrate.errors import ConstraintError

DEFINITIONS = ("$defs", "definitions")
MOST_DEFINITIONS = 2000
_FURTHER = ("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems")


def normalized(schema: Node) -> dict[str, Any]:
    """`schema` with `items` lists as `prefixItems`, `{}` for `true`, and every definition under `$defs`, also
    what a `$ref` finds by `$anchor` or elsewhere. What is not understood is left as it is."""
    written: dict[str, Any] = _respelled(schema)
    nodes = [node for node, _ in walk(written) if isinstance(node, dict)]
    anchors = {f"#{node.pop('$anchor')}": node for node in nodes if isinstance(node.get("$anchor"), str)}
    moved: dict[str, str] = {}
    definitions: dict[str, Any] = {}
    for node in nodes:
        reference = node.get("$ref")
        if not isinstance(reference, str) or reference == "#" or _is_definition(reference):
            continue
        if reference not in moved:
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


def _respelled(node: Any) -> Any:
    """`node` and all inside it in the newest spelling."""
    if not isinstance(node, Mapping):
        return {} if node is True else node
    written: dict[str, Any] = {}
    for keyword, value in node.items():
        if keyword in MAPS and isinstance(value, Mapping):
            written[keyword] = {name: _respelled(child) for name, child in value.items()}
        elif keyword == "items" and isinstance(value, list):
            written["prefixItems"] = list(map(_respelled, value))
            if "additionalItems" in node:
                written["items"] = _respelled(node["additionalItems"])
        elif keyword == "additionalItems" and isinstance(node.get("items"), list):
            continue
        elif keyword in LISTS and isinstance(value, list):
            written[keyword] = list(map(_respelled, value))
        elif keyword in _FURTHER and (keyword == "items" or not isinstance(value, bool)):
            written[keyword] = _respelled(value)
        else:
            written[keyword] = value
    if not written.keys() & set(IN_PLACE):  # else what a schema beside this one describes counts too
        for old, new in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
            if isinstance(written.get(old), bool) and written.pop(old) is False:
                written.setdefault(new, False)
    return _with_names(written)


def _with_names(node: dict[str, Any]) -> dict[str, Any]:
    """A map over listed names as an object with these properties; any other node as it is."""
    names, free = node.get("propertyNames"), node.get("additionalProperties")
    if not isinstance(names, Mapping) or not names.keys() <= {"enum", "const", "type", "title"}:
        return node
    known = names.get("enum", [names["const"]] if "const" in names else None)
    if known and isinstance(free, Mapping) and "properties" not in node and "type" in node:
        del node["propertyNames"]
        node["properties"] = {name: free for name in known if isinstance(name, str)}
        node["additionalProperties"] = False
    return node


def _is_definition(reference: str) -> bool:
    place = reference_path(reference) if reference.startswith("#/") else ()
    return len(place) == 2 and place[0] in DEFINITIONS


def _free_name(reference: str, taken: Mapping[str, Any]) -> str:
    name = "_".join(reference_path(reference)) if reference.startswith("#/") else reference.lstrip("#")
    name = "".join(letter if letter.isalnum() else "_" for letter in name) or "part"
    while name in taken:
        name += "_"
    return name


def unrolled(schema: Node, depth: int) -> dict[str, Any]:
    """`schema` in which at most `depth` recursive definitions stand inside each other; a lone leaf is one.

    Where the next level would be one too many, what leads to it is left out: a branch of `anyOf`, an optional
    property, the items of a list that may be empty. Raises `ConstraintError` where nothing is left.
    """
    if depth < 1:
        raise ConstraintError(f"depth must be at least 1, got {depth}")
    levels = _Levels(schema)
    written = levels.node({"$ref": "#"} if "#" in levels.recursive else schema, depth, ())
    if written is None:
        raise ConstraintError(f"nothing can be written that is at most {depth} levels deep; allow more")
    if levels.definitions:
        written["$defs"] = {name: node for name, node in levels.definitions.items() if node is not None}
    return written


class _Levels:
    """The definitions of a schema, written once for each level that is left."""

    def __init__(self, root: Node) -> None:
        self.root = root
        self.recursive = _recursive(root)
        self.definitions: dict[str, dict[str, Any] | None] = {}

    def node(self, node: Any, left: int, path: Path) -> dict[str, Any] | None:
        """`node` with `left` more levels inside it; None where nothing can be written."""
        if not isinstance(node, Mapping):  # false
            return None
        written: dict[str, Any] = {}
        for keyword, value in node.items():
            if keyword in DEFINITIONS:
                continue
            if keyword == "$ref":
                name = self.definition(value, left)
                if name is None:
                    return None
                written[keyword] = pointer_to("$defs", name)
            elif keyword == "properties":
                children = {
                    name: self.node(child, left, (*path, keyword, name)) for name, child in value.items()
                }
                if any(children[name] is None for name in node.get("required", ()) if name in children):
                    return None
                written[keyword] = {name: child for name, child in children.items() if child is not None}
                if None in children.values():
                    written["additionalProperties"] = False
            elif keyword == "items" and value is not False:
                child = self.node(value, left, (*path, keyword))
                if child is None:
                    places = len(node.get("prefixItems", ()))
                    if node.get("minItems", 0) > places:
                        return None
                    written |= {"items": False} if places else {"maxItems": 0}
                else:
                    written[keyword] = child
            elif keyword in LISTS:
                branches = [
                    self.node(child, left, (*path, keyword, index)) for index, child in enumerate(value)
                ]
                kept = [branch for branch in branches if branch is not None]
                if not kept or (keyword in ("allOf", "prefixItems") and len(kept) < len(branches)):
                    return None
                written[keyword] = kept
            elif not (keyword == "maxItems" and written.get("maxItems") == 0):
                written[keyword] = value
        return written

    def definition(self, reference: str, left: int) -> str | None:
        """The name of what `reference` means with `left` more levels; None where it is one too many."""
        own = reference_path(reference)[-1] if reference != "#" else "root"
        if reference in self.recursive:
            if left == 0:
                return None
            own, left = f"{own}:{left}", left - 1
        if own not in self.definitions:
            if len(self.definitions) > MOST_DEFINITIONS:
                raise ConstraintError(f"more than {MOST_DEFINITIONS} definitions; allow fewer levels")
            self.definitions[own] = None
            self.definitions[own] = self.node(resolve(self.root, reference), left, reference_path(reference))
        return own if self.definitions[own] is not None else None


def _recursive(root: Node) -> set[str]:
    """The references that lead back to themselves."""
    found = {inner["$ref"] for inner, _ in walk(root) if "$ref" in inner}
    targets = {
        reference: {inner["$ref"] for inner, _ in walk(_own(root, reference)) if "$ref" in inner}
        for reference in found
    }

    def reached(reference: str) -> set[str]:
        seen: set[str] = set()
        pending = [reference]
        while pending:
            for each in targets[pending.pop()] - seen:
                seen.add(each)
                pending.append(each)
        return seen

    return {reference for reference in found if reference in reached(reference)}


def _own(root: Node, reference: str) -> Any:
    """The target of a reference, without the definitions that only stand there."""
    node = resolve(root, reference)
    return {keyword: value for keyword, value in node.items() if keyword not in DEFINITIONS}
