"""Recursion down to a depth: a definition that refers to itself becomes one definition a level."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magistrate.constraints.pointers import LISTS, Path, pointer_to, reference_path, resolve, walk
from magistrate.errors import ConstraintError

MOST_DEFINITIONS = 2000

Node = Mapping[str, Any]


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
    def __init__(self, root: Node) -> None:
        self.root = root
        self.recursive = _recursive(root)
        self.definitions: dict[str, dict[str, Any] | None] = {}

    def node(self, node: Any, left: int, path: Path) -> dict[str, Any] | None:
        """`node` with `left` more levels inside it; None where nothing can be written."""
        written: dict[str, Any] = {}
        for keyword, value in node.items():
            if keyword in ("$defs", "definitions"):
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
    """What a reference means, without the definitions that only stand there."""
    node = resolve(root, reference)
    return {keyword: value for keyword, value in node.items() if keyword not in ("$defs", "definitions")}
