"""Whether a schema has an end: every string, list and number bounded, no object open, no recursion.

A model under an endless schema writes until its budget is gone; this is found before anything is spent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magistrate.constraints.keywords import LARK, QUOTE
from magistrate.constraints.pointers import Path, pointer_to, reference_path, resolve, walk
from magistrate.constraints.regex import translate

IN_PLACE = ("$ref", "anyOf", "oneOf", "allOf")
_ASSERTIONS = frozenset(
    {
        "type",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "uniqueItems",
        "enum",
        "const",
    }
)

Problem = tuple[str, str]  # what is endless and what to write instead; the JSON pointer


def closes_objects(schema: Mapping[str, Any]) -> bool:
    """An object that does not say otherwise may be written with its declared properties only.

    That narrows a schema to texts that are still valid, unless objects are merged: then a property that one
    part declares is an additional one for the other.
    """
    for node, _ in walk(schema):
        applied = [keyword for keyword in IN_PLACE if keyword in node]
        if "allOf" in applied or len(applied) > 1 or (applied and _ASSERTIONS & node.keys()):
            return False
    return True


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
        """What is endless about `node`, or None. `inherited` are the types that the schema around allows."""
        own = node.get("type", inherited)
        types = [own] if isinstance(own, str) else own
        parts = self.applied(
            node, path, types
        )  # also where the node is bounded: recursion is an error anyway
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
