"""Whether the branches of `oneOf` exclude each other, so that writing one of them never fits another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from magistrate.constraints.pointers import Path, pointer_to, resolve
from magistrate.errors import ConstraintError

MOST_BRANCHES = 300


def check_one_of(branches: list[Any], path: Path, root: Mapping[str, Any]) -> None:
    """Raise `ConstraintError` unless every two branches differ in type, in fixed value, or in a tag.

    A tag is a property that both require and for which each allows other values than the other.
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


def _all_differ(nodes: list[Mapping[str, Any]]) -> bool:
    """Whether each allows nothing but fixed values, and none that another one allows."""
    listed: list[Any] = []
    for node in nodes:
        values = _fixed(node)
        if values is None:
            return False
        listed += values
    return len(set(listed)) == len(listed)


def _tags(branches: list[Mapping[str, Any]], root: Mapping[str, Any]) -> Iterator[list[Mapping[str, Any]]]:
    """What the branches say of each property that all of them require, where all of them are objects."""
    if not branches or any(_types(branch) != {"object"} for branch in branches):
        return
    for tag in set.intersection(*(set(branch.get("required", ())) for branch in branches)):
        if all(tag in branch.get("properties", {}) for branch in branches):
            yield [_followed(branch["properties"][tag], root) for branch in branches]


def _followed(node: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """`node`, or what it refers to where it says nothing else that could exclude a value."""
    steps = 0
    while isinstance(node, Mapping) and "$ref" in node and "type" not in node and steps < 50:
        node, steps = resolve(root, node["$ref"]), steps + 1
    return node if isinstance(node, Mapping) else {}


def _types(node: Mapping[str, Any]) -> set[str]:
    types = node.get("type")
    names = [types] if isinstance(types, str) else types or []
    return {"number" if name == "integer" else name for name in names}


def _fixed(node: Mapping[str, Any]) -> set[tuple[bool, Any]] | None:
    """The only values that `node` allows, if they are plain ones; booleans kept apart from 0 and 1."""
    values = [node["const"]] if "const" in node else node.get("enum")
    if values is None or any(isinstance(value, dict | list) for value in values):
        return None
    return {(isinstance(value, bool), value) for value in values}


def _excludes(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if _types(one) and _types(other) and not _types(one) & _types(other):
        return True
    mine, others = _fixed(one), _fixed(other)
    return mine is not None and others is not None and not mine & others


def _tagged_apart(one: Mapping[str, Any], other: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    if _types(one) != {"object"} or _types(other) != {"object"}:
        return False
    tags = set(one.get("required", ())) & set(other.get("required", ()))
    for tag in tags & one.get("properties", {}).keys() & other.get("properties", {}).keys():
        if _excludes(_followed(one["properties"][tag], root), _followed(other["properties"][tag], root)):
            return True
    return False
