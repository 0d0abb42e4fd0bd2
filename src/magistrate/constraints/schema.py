"""Parts of a JSON Schema: to walk, to write, and to rewrite into the one spelling that is read here.

That is draft 2020-12 with recursion unrolled: `normalized` rewrites older spellings; `unrolled` makes of a
definition that refers to itself one definition a level.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from magistrate.errors import ConstraintError

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


def closed_object(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object that has all of these properties, in this order, and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def short_text(most: int) -> dict[str, str]:
    """The schema of one line of up to `most` characters, with nothing in it that looks like JSON."""
    return {"type": "string", "pattern": f'^[^"\\\\{{}}\\[\\]\\x00-\\x1f\\x7f-\\x9f]{{1,{most}}}$'}


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
