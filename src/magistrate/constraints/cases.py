"""Conditions written out as cases: `not`, `if`, `dependentRequired` become branches of `anyOf`.

Masks can hold a text to one of several schemas, but not to "unless". So a schema with a condition is split
into schemas without, which together allow exactly what it allows: {kind: a or b; if kind is a then x} becomes
{kind: a, x} or {kind: b}. What cannot be split so is an error with its place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from magistrate.constraints.disjoint import check_one_of
from magistrate.constraints.nodes import (
    Node,
    Unsplittable,
    absent,
    common_types,
    crossed,
    is_only,
    is_whole,
    listed_by_type,
    may_be,
    present,
    replaced,
    untyped,
)
from magistrate.constraints.pointers import LISTS, MAPS, Path, pointer_to, resolve
from magistrate.errors import ConstraintError

CONDITIONS = {
    "not": "list what is allowed with enum, anyOf or a pattern",
    "if": "write the cases as branches of anyOf",
    "then": "write the cases as branches of anyOf",
    "else": "write the cases as branches of anyOf",
    "dependentRequired": "write the cases as branches of anyOf",
    "dependentSchemas": "write the cases as branches of anyOf",
}
MOST_CASES = 64

_SILENT = {"title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly"}
_LOWER = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"}
_UPPER = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"}
# Of a bound: the type that it is about, and the bound that is left without it.
_OPPOSITE: Mapping[str, tuple[str, str, int]] = {
    "minimum": ("number", "exclusiveMaximum", 0),
    "maximum": ("number", "exclusiveMinimum", 0),
    "exclusiveMinimum": ("number", "maximum", 0),
    "exclusiveMaximum": ("number", "minimum", 0),
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
}


def written_out(schema: Node) -> dict[str, Any]:
    """`schema` without conditions. Raises `ConstraintError` where one cannot be split into cases."""
    return _Cases(schema).node(schema, ())


class _Cases:
    """The cases of nodes; references are into `root`."""

    def __init__(self, root: Node) -> None:
        self.root = root

    def node(self, node: Node, path: Path) -> dict[str, Any]:
        """`node` and all inside it without conditions."""
        inside: dict[str, Any] = {}
        for keyword, value in node.items():
            if keyword in MAPS and isinstance(value, Mapping):
                inside[keyword] = {
                    name: self.child(child, (*path, keyword, name)) for name, child in value.items()
                }
            elif keyword in LISTS and isinstance(value, list):
                inside[keyword] = [
                    child  # of allOf: belongs to this node, whose cases it makes
                    if keyword == "allOf" and _conditional([child])
                    else self.child(child, (*path, keyword, index))
                    for index, child in enumerate(value)
                ]
            elif keyword == "items":
                inside[keyword] = self.child(value, (*path, keyword))
            else:
                inside[keyword] = value
        if "oneOf" in inside:
            inside = self.exclusive(inside)
        if not any(keyword in inside for keyword in CONDITIONS) and not _conditional(inside.get("allOf", ())):
            return inside
        try:
            split = self.split(inside)
        except Unsplittable:
            keyword = next((keyword for keyword in CONDITIONS if keyword in inside), "allOf")
            advice = CONDITIONS.get(keyword, CONDITIONS["if"])
            raise ConstraintError(
                f'this use of "{keyword}" cannot be written out as cases; {advice}',
                pointer_to(*path, keyword),
            ) from None
        if split is None:
            raise ConstraintError("the conditions leave nothing that could be written", pointer_to(*path))
        return split

    def exclusive(self, node: dict[str, Any]) -> dict[str, Any]:
        """`oneOf` as `anyOf` of what is left of each branch without the others, where that can be said."""
        if not all(isinstance(branch, Mapping) for branch in node["oneOf"]) or "anyOf" in node:
            return node
        try:
            check_one_of(node["oneOf"], (), self.root)
        except ConstraintError:
            pass
        else:
            return node  # they exclude each other as they are
        if len(node["oneOf"]) > MOST_CASES:
            return node  # each would be split by all the others
        found: list[Node] = []
        try:
            for index, branch in enumerate(node["oneOf"]):
                cases: list[Node] = [branch]
                for other in node["oneOf"][:index] + node["oneOf"][index + 1 :]:
                    cases = self.every(cases, self.without, other)
                found += cases
        except Unsplittable:
            return node
        rest = {keyword: value for keyword, value in node.items() if keyword != "oneOf"}
        return rest | ({"anyOf": list(found)} if found else {"enum": []})

    def child(self, node: Any, path: Path) -> Any:
        return self.node(node, path) if isinstance(node, Mapping) else node

    def split(self, node: Node) -> dict[str, Any] | None:
        """A node with conditions as its cases; None where there are none."""
        definitions = {keyword: node[keyword] for keyword in ("$defs", "definitions") if keyword in node}
        plain = {
            keyword: value
            for keyword, value in node.items()
            if keyword not in CONDITIONS and keyword not in definitions
        }
        conditions = [{keyword: node[keyword] for keyword in CONDITIONS if keyword in node}]
        if _conditional(node.get("allOf", ())):
            conditions += [part for part in node["allOf"] if _conditional([part])]
            plain["allOf"] = [part for part in node["allOf"] if not _conditional([part])]
            if not plain["allOf"]:
                del plain["allOf"]
        cases: list[Node] = [plain]
        for condition in conditions:
            cases = self.every(cases, self.applied, condition)
        if not cases:
            return None
        return {**(cases[0] if len(cases) == 1 else {"anyOf": list(cases)}), **definitions}

    def every(self, cases: Sequence[Node], step: Callable[..., Sequence[Node]], *given: Any) -> list[Node]:
        """What `step(case, *given)` makes of every case, together."""
        found = [each for case in cases for each in step(case, *given)]
        if len(found) > MOST_CASES:
            raise Unsplittable
        return found

    def applied(self, node: Node, condition: Node) -> list[Node]:
        """The cases of `node` under conditions that stand beside each other."""
        if condition.keys() - CONDITIONS.keys() - _SILENT:
            raise Unsplittable
        cases = [node]
        if "not" in condition:
            cases = self.every(cases, self.without, condition["not"])
        if "if" in condition:
            then, otherwise = condition.get("then", True), condition.get("else", True)
            cases = self.every(cases, self.when, condition["if"], then, otherwise)
        for name, others in condition.get("dependentRequired", {}).items():
            cases = self.every(cases, self.when, {"required": [name]}, {"required": others}, True)
        for name, schema in condition.get("dependentSchemas", {}).items():
            cases = self.every(cases, self.when, {"required": [name]}, schema, True)
        return cases

    def when(self, node: Node, condition: Any, then: Any, otherwise: Any) -> list[Node]:
        """Cases that hold to the condition and to `then`, and those that break it and hold to `otherwise`."""
        held = self.every(self.both(node, condition), self.both, then)
        return held + self.every(self.without(node, condition), self.both, otherwise)

    # --- and ------------------------------------------------------------------------------------

    def both(self, node: Node, other: Any) -> list[Node]:
        """Cases of what both allow."""
        if other is True:
            return [node]
        if other is False:
            return []
        node, other = self.followed(node), self.followed(other)
        if "enum" in node or "const" in node:
            return self.kept(node, other, True)
        merged = dict(node)
        later: list[tuple[Callable[..., Sequence[Node]], Any]] = []
        for keyword, value in other.items():
            if keyword in _SILENT:
                continue
            if keyword == "additionalProperties":
                later.append((self.only, (value, other.get("properties", {}).keys())))
                continue
            if merged.get(keyword) == value and (
                keyword != "items" or "prefixItems" not in {**node, **other}
            ):
                continue
            if keyword in ("enum", "const"):
                values = value if keyword == "enum" else [value]
                return self.kept(
                    {"enum": values}, {k: v for k, v in other.items() if k != keyword}, True, node
                )
            if keyword == "type":
                types = common_types(node.get("type"), value)
                if not types:
                    return []
                merged["type"] = types
            elif keyword in _LOWER | _UPPER:
                choose = max if keyword in _LOWER else min
                merged[keyword] = choose(value, merged.get(keyword, value))
            elif keyword == "required":
                merged["required"] = [*dict.fromkeys([*node.get("required", ()), *value])]
            elif keyword == "properties":
                later.append((self.narrowed, value))
            elif keyword == "not":
                later.append((self.without, value))
            elif keyword in node or keyword not in ("pattern", "format", "items", "multipleOf"):
                raise Unsplittable
            else:
                merged[keyword] = value
        cases: list[Node] = [merged]
        for step, value in later:
            cases = self.every(cases, step, value)
        return [case for case in cases if is_whole(case) and crossed(case) is None]

    def narrowed(self, node: Node, properties: Mapping[str, Any]) -> list[Node]:
        """Cases of an object whose properties must also hold to these."""
        cases: list[Node] = [node]
        for name, child in properties.items():
            cases = self.every(cases, self.property, name, child)
        return cases

    def only(self, node: Node, named: tuple[Any, Collection[str]]) -> list[Node]:
        """Cases of an object that may have further properties than the named ones, or (`False`) may not."""
        further, names = named
        if further is False:
            for name in node.get("properties", {}).keys() - names:
                if name in node.get("required", ()):
                    return []
                node = absent(node, name)
            return [{**node, "additionalProperties": False}]
        if further not in (True, {}):
            raise Unsplittable
        return [node]

    def property(self, node: Node, name: str, child: Any) -> list[Node]:
        """Cases of an object one of whose properties must also hold to `child`, if it is there."""
        known = node.get("properties", {})
        if name not in known:
            if node.get("additionalProperties", True) is False or child is False:
                return [node]  # it cannot stand there anyway
            return [replaced(node, name, child)]
        branches = self.both(known[name], child)
        left_out = [] if name in node.get("required", ()) else [absent(node, name)]
        return [replaced(node, name, branch) for branch in branches] or left_out

    # --- and not --------------------------------------------------------------------------------

    def without(self, node: Node, other: Any) -> list[Node]:
        """Cases of what `node` allows and `other` does not."""
        if other is True:
            return []
        if other is False:
            return [node]
        node, other = self.followed(node), self.followed(other)
        if "enum" in node or "const" in node or (listed := listed_by_type(node)) is not None:
            return self.kept(
                node if "enum" in node or "const" in node else {"enum": listed}, other, False, node
            )
        found: list[Node] = []
        for keyword, value in other.items():
            if keyword in _SILENT:
                continue
            if keyword == "type":
                found += untyped(node, value)
            elif keyword in ("enum", "const"):
                values = value if keyword == "enum" else [value]
                if any(may_be(node, each) for each in values):
                    raise Unsplittable
                return [node]
            elif keyword == "required":
                for name in value:
                    if "properties" not in node:
                        raise Unsplittable
                    if name not in node["properties"]:
                        return [node]
                    if name not in node.get("required", ()):
                        found.append(absent(node, name))
            elif keyword == "properties":
                for name, child in value.items():
                    known = node.get("properties", {}).get(name)
                    if known is None and node.get("additionalProperties", True) is False:
                        continue  # it cannot stand there, so it breaks nothing
                    if known is None:
                        raise Unsplittable
                    found += [
                        present(replaced(node, name, branch), name) for branch in self.without(known, child)
                    ]
            elif keyword == "additionalProperties":
                known = node.get("properties", {}).keys()
                closed = value is False and node.get(keyword) is False
                if not closed or known - other.get("properties", {}).keys():
                    raise Unsplittable
            elif keyword == "anyOf":
                cases: list[Node] = [node]
                for branch in value:
                    cases = self.every(cases, self.without, branch)
                found += cases
            elif keyword == "allOf":
                found += [case for branch in value for case in self.without(node, branch)]
            elif keyword == "not":
                found += self.both(node, value)
            elif keyword in _OPPOSITE:
                kind, opposite, step = _OPPOSITE[keyword]
                if not is_only(node, kind):
                    raise Unsplittable
                found += self.both(node, {opposite: value + step})
            else:
                raise Unsplittable
        return found

    def kept(self, fixed: Node, other: Node, wanted: bool, node: Node | None = None) -> list[Node]:
        """The listed values that hold (`wanted`) or do not hold to `other`, and hold to `node`."""
        from magistrate.constraints.validation import plain_validator

        beside, around = plain_validator(self.root, other), plain_validator(self.root, node or {})
        values = fixed["enum"] if "enum" in fixed else [fixed["const"]]
        found = [each for each in values if beside.is_valid(each) is wanted and around.is_valid(each)]
        rest = {key: value for key, value in fixed.items() if key not in ("enum", "const")}
        return [{**rest, "enum": found}] if found else []

    def followed(self, node: Any) -> Node:
        """`node`, or what it refers to where it is a bare reference."""
        for _ in range(50):
            if not isinstance(node, Mapping):
                raise Unsplittable
            if "$ref" not in node:
                return node
            if node.keys() - {"$ref"} - _SILENT:
                raise Unsplittable
            node = resolve(self.root, node["$ref"])
        raise Unsplittable


def _conditional(parts: Any) -> bool:
    return any(isinstance(part, Mapping) and part.keys() & CONDITIONS.keys() for part in parts)
