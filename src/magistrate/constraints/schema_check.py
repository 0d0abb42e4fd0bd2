"""Checks of a JSON Schema before it is compiled: every keyword is enforced or rejected.

A compiler that ignores unknown keywords would silently drop a misspelled `maxLenght`. Here an unknown
keyword is an error with its JSON pointer, and so is a known one that masks cannot enforce. Before the
check, `normalized` rewrites older spellings to draft 2020-12. After it, `unrolled` expands recursive
definitions once per level.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from magistrate.constraints.lark import compile_grammar, embedded
from magistrate.constraints.quote import quote_of
from magistrate.constraints.regex import FORMATS, compiled, ecma, translate
from magistrate.constraints.schema import (
    ANNOTATIONS,
    ENFORCED,
    IN_PLACE,
    LARK,
    LISTS,
    MAPS,
    QUOTE,
    Node,
    Path,
    empty_bounds,
    listed,
    on_grid,
    pointer_to,
    reference_path,
    resolve,
    subschemas,
    types_of,
    walk,
)
from magistrate.errors import ConstraintError

_CASES = "write the cases as alternatives in anyOf"
REFUSED = {
    **dict.fromkeys(("if", "then", "else"), _CASES),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), _CASES),
    "not": "list what is allowed with enum, anyOf or a pattern",
    **dict.fromkeys(
        ("contains", "minContains", "maxContains"),
        "describe the required items with prefixItems",
    ),
    "unevaluatedItems": "use items: false together with prefixItems",
    "unevaluatedProperties": "use additionalProperties: false together with properties",
    "additionalItems": "use items: false together with prefixItems",
    "patternProperties": "list the properties, or use a list of objects with a key and a value",
    "propertyNames": "list the properties, or use a list of objects with a key and a value",
    "minProperties": "list the required properties",
    "maxProperties": "list the properties and use additionalProperties: false",
    "contentEncoding": "describe the text with a pattern",
    "contentMediaType": "describe the text with a pattern",
    "contentSchema": "describe the value itself, not a text that contains it",
    **dict.fromkeys(
        ("$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef", "$recursiveAnchor"),
        "use a JSON pointer: #/$defs/NAME",
    ),
    "$vocabulary": "remove it",
}
KNOWN = sorted(ANNOTATIONS | ENFORCED | set(REFUSED))

TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
MOST_UNIQUE = 64  # values of a list of unique items: as many as a rule of the mask engine has bits
LARGEST_SCHEMA = 1_000_000  # bytes
DEEPEST_PATH = 100  # steps from the root, one or two per level
LARGEST = 10**15  # larger fixed numbers are not exact in the compiler's doubles
_EMPTY = "an empty schema allows anything of any length; give at least a type"
_ASSERTING = ENFORCED - {"$defs", "definitions"}
MOST_BRANCHES = 300  # branches of a oneOf, which are compared pairwise


def check_schema(schema: Node) -> None:
    """Raise `ConstraintError`, with the JSON pointer, if `schema` is not a valid schema or is too large."""
    try:
        size = len(json.dumps(schema, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"the schema is not plain JSON: {error}", "#") from None
    if size > LARGEST_SCHEMA:
        raise ConstraintError(f"the schema has {size:,} bytes; at most {LARGEST_SCHEMA:,}", "#")
    pending: list[tuple[Any, Path]] = [(schema, ())]
    while pending:
        node, path = pending.pop()
        if len(path) > DEEPEST_PATH:
            raise ConstraintError(
                "the schema is nested too deeply; move parts of it to $defs", pointer_to(*path)
            )
        if not (isinstance(node, bool) and path):
            _check_keywords(node, path)
            pending += reversed([(child, path + step) for step, child in subschemas(node)])
    _check_values(schema)
    for node, path in walk(schema):  # only now does every value have the right form
        if isinstance(node, Mapping):
            _check_reference(node, path, schema)


def check_writable(schema: Node) -> None:
    """Raise `ConstraintError`, with the JSON pointer, for rules that masks cannot enforce.

    `schema` must have passed `check_schema`.
    """
    for node, path in walk(schema):
        here = pointer_to(*path)
        if node is False:
            raise ConstraintError("the schema false allows nothing; remove this part", here)
        if not path and not node.keys() & _ASSERTING:  # a nested empty schema is only unbounded
            raise ConstraintError(_EMPTY, here)
    for node, path in walk(schema):
        _check_contradictions(node, path, schema)
        _check_details(node, path, schema)


def _check_keywords(node: Any, path: Path) -> None:
    if not isinstance(node, Mapping):
        raise ConstraintError(f"a schema must be an object, not {type(node).__name__}", pointer_to(*path))
    for keyword, value in node.items():
        at = pointer_to(*path, keyword)
        if keyword in REFUSED:
            raise ConstraintError(f'"{keyword}" cannot be enforced during generation; {REFUSED[keyword]}', at)
        if keyword not in ENFORCED | ANNOTATIONS:
            if keyword.startswith("x-") and keyword != "x-guidance":
                continue
            close = difflib.get_close_matches(keyword, KNOWN, n=1)
            hint = f'did you mean "{close[0]}"?' if close else f"known: {', '.join(sorted(ENFORCED))}"
            raise ConstraintError(f'"{keyword}" is not a keyword; {hint}', at)
        if keyword == "type":
            _check_types([value] if isinstance(value, str) else value, at)
        if keyword == "enum" and value == []:
            raise ConstraintError("an empty enum allows nothing", at)
        if keyword in MAPS and not isinstance(value, Mapping):
            raise ConstraintError("must be an object of schemas", at)
        if keyword in LISTS and not (isinstance(value, list) and value):
            raise ConstraintError("must be a list of schemas, not empty", at)
    if path and "$id" in node:
        raise ConstraintError("an inner $id changes what $ref means; remove it", pointer_to(*path, "$id"))


def _check_types(names: Any, at: str) -> None:
    for name in names if isinstance(names, list) else ():
        if name not in TYPES:
            close = difflib.get_close_matches(str(name), TYPES, n=1)
            hint = f'did you mean "{close[0]}"?' if close else f"known: {', '.join(TYPES)}"
            raise ConstraintError(f"{name!r} is not a type; {hint}", at)


def _check_values(schema: Node) -> None:
    """Check with the metaschema that every keyword's value has the right form."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    plain = {keyword: value for keyword, value in schema.items() if keyword != "$schema"}
    error = best_match(Draft202012Validator(Draft202012Validator.META_SCHEMA).iter_errors(plain))
    if error is not None:
        raise ConstraintError(error.message, pointer_to(*error.absolute_path))


def _check_details(node: Node, path: Path, root: Node) -> None:
    if node.get("additionalProperties", False) is not False:
        raise ConstraintError(
            "free property names are unlimited and may repeat; list the properties and use "
            "additionalProperties: false, or use a list of objects with a key and a value",
            pointer_to(*path, "additionalProperties"),
        )
    missing = [name for name in node.get("required", ()) if name not in node.get("properties", {})]
    if missing and not any(keyword in node for keyword in ("$ref", "allOf")) and "properties" in node:
        raise ConstraintError(
            f"required properties that are not described: {', '.join(missing)}; add them to properties",
            pointer_to(*path, "required"),
        )
    if "format" in node:
        _check_format(node, pointer_to(*path, "format"))
    if "pattern" in node:
        translate(node["pattern"], ascii_words=True, pointer=pointer_to(*path, "pattern"))
        _check_size(node["pattern"], pointer_to(*path, "pattern"))
    if node.get("uniqueItems"):
        _check_unique(node, pointer_to(*path, "uniqueItems"), root)
    for keyword in (QUOTE, LARK):
        if keyword in node:
            _check_own(node, keyword, pointer_to(*path, keyword))
    on_grid(node, pointer_to(*path))
    if "oneOf" in node:
        if "anyOf" in node:
            raise ConstraintError(
                "oneOf together with anyOf is not supported; use one", pointer_to(*path, "oneOf")
            )
        check_exclusive(node["oneOf"], path, root)
    for keyword in ("enum", "const"):
        for value in node["enum"] if keyword == "enum" and keyword in node else [node.get(keyword)]:
            _check_fixed(value, pointer_to(*path, keyword))


def _check_contradictions(node: Node, path: Path, root: Node) -> None:
    """Check that the keywords of one node allow a value, as far as can be seen without compiling."""
    if (bounds := empty_bounds(node)) is not None:
        low, high = bounds
        message = f"no value is between {low} {node[low]} and {high} {node[high]}"
        raise ConstraintError(message, pointer_to(*path, low))
    for keyword in ("enum", "const"):
        if keyword in node and node.keys() & _ASSERTING != {keyword} and listed(node, root) == []:
            beside = sorted(node.keys() & _ASSERTING - {keyword})
            message = f"{keyword} lists no value that {', '.join(beside)} allows"
            raise ConstraintError(message, pointer_to(*path, keyword))
    places = len(node.get("prefixItems", ()))
    if node.get("items") is False and node.get("minItems", 0) > places:
        message = f"minItems {node['minItems']} is more than the {places} items that are described"
        raise ConstraintError(message, pointer_to(*path, "minItems"))


def _check_reference(node: Node, path: Path, root: Node) -> None:
    reference = node.get("$ref", "#")
    if reference == "#":
        return
    place = reference_path(reference)
    if not reference.startswith("#/") or len(place) != 2 or place[0] not in ("$defs", "definitions"):
        reason = "only references of the form #/$defs/NAME are supported"
    elif place[1] not in root.get(place[0], {}):
        reason = f"it points to nothing; known: {', '.join(root.get(place[0], {})) or 'no definitions'}"
    else:
        return
    raise ConstraintError(f"the reference {reference!r}: {reason}", pointer_to(*path, "$ref"))


def _check_size(pattern: str, at: str) -> None:
    """Raise `ConstraintError` if a pattern is too large to be compiled for validation."""
    try:
        compiled(ecma(pattern))
    except ConstraintError as error:
        raise ConstraintError(str(error), at) from None


def _check_format(node: Node, at: str) -> None:
    if node["format"] not in FORMATS:
        raise ConstraintError(
            f"the format {node['format']!r} cannot be enforced; known: {', '.join(FORMATS)}; "
            "otherwise write a pattern",
            at,
        )
    if "pattern" in node:
        raise ConstraintError("format together with pattern is not supported; use one pattern", at)


def _check_own(node: Node, keyword: str, at: str) -> None:
    """Check a node with `x-quote` or `x-lark`, which only a quote's length may constrain further."""
    what = "a quote" if keyword == QUOTE else "a Lark grammar"
    try:
        if keyword == QUOTE:
            quote_of(node)
        else:
            embedded(node[keyword] if isinstance(node[keyword], str) else "", "")
            compile_grammar(node[keyword])
    except ConstraintError as error:
        raise ConstraintError(str(error), at) from None
    if "string" not in node.get("type", ()):
        raise ConstraintError(f'{what} needs "type": "string" in the same schema', at)
    others = {
        "enum",
        "const",
        "pattern",
        "format",
        QUOTE,
        LARK,
        *(("minLength", "maxLength") if keyword == LARK else ()),
    }
    if beside := sorted(node.keys() & others - {keyword}):
        raise ConstraintError(f"{what} cannot be combined with {beside[0]}; remove one", at)


def _check_unique(node: Node, at: str, root: Node) -> None:
    values = listed(node.get("items"), root)
    if values is None or "prefixItems" in node or node.get("type") != "array":
        raise ConstraintError(
            "uniqueItems needs an enum for items; add one, or remove uniqueItems and check the parsed list",
            at,
        )
    if len(values) > MOST_UNIQUE:
        raise ConstraintError(f"{len(values)} values are too many to be unique; at most {MOST_UNIQUE}", at)
    if any(_same(one, other) for one, other in combinations(values, 2)):
        raise ConstraintError("the listed values are not unique themselves", at)


def _same(one: Any, other: Any) -> bool:
    """Return whether JSON treats them as the same value: 1 and 1.0, but not 1 and true."""
    return bool(one == other) and isinstance(one, bool) is isinstance(other, bool)


def _check_fixed(value: Any, at: str) -> None:
    """Check that the compiler can write a value of `enum` or `const` exactly as given."""
    if isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            _check_fixed(child, at)
    elif isinstance(value, int | float) and abs(value) > LARGEST:
        raise ConstraintError(f"{value} is beyond ±1e15, where numbers are not exact", at)


def check_exclusive(branches: list[Any], path: Path, root: Node) -> None:
    """Raise `ConstraintError` unless every two branches of a `oneOf` exclude each other.

    Two branches do if they differ in type, in their fixed values, or in a tag: a property that both require
    and for which they allow different values.
    """
    found = [_followed(branch, root) for branch in branches]
    if _all_differ(found) or any(_all_differ(values) for values in _tags(found, root)):
        return
    if len(branches) > MOST_BRANCHES:
        raise ConstraintError(
            f"{len(branches):,} alternatives are too many to compare with each other; at most "
            f"{MOST_BRANCHES}: use anyOf, or an enum",
            pointer_to(*path, "oneOf"),
        )
    for (first, one), (second, other) in combinations(enumerate(found), 2):
        if not (_excludes(one, other) or _tagged_apart(one, other, root)):
            raise ConstraintError(
                f"alternatives {first} and {second} may both match, which cannot be prevented during "
                "generation; use anyOf, or give each a required property with a different const",
                pointer_to(*path, "oneOf"),
            )


def _all_differ(nodes: list[Node]) -> bool:
    """Return whether all nodes allow fixed values only and no two share one."""
    values = [_fixed(node) for node in nodes]
    given = [each for fixed in values if fixed is not None for each in fixed]
    return None not in values and len(set(given)) == len(given)


def _tags(branches: list[Node], root: Node) -> Iterator[list[Node]]:
    """Yield, per property that all branches require, its schema in each, if all branches are objects."""
    if not branches or any(_types(branch) != {"object"} for branch in branches):
        return
    for tag in set.intersection(*(set(branch.get("required", ())) for branch in branches)):
        if all(tag in branch.get("properties", {}) for branch in branches):
            yield [_followed(branch["properties"][tag], root) for branch in branches]


def _followed(node: Any, root: Node) -> Node:
    """Return `node`, or the target of its `$ref` if it has no type of its own."""
    steps = 0
    while isinstance(node, Mapping) and "$ref" in node and "type" not in node and steps < 50:
        node, steps = resolve(root, node["$ref"]), steps + 1
    return node if isinstance(node, Mapping) else {}


def _types(node: Node) -> set[str]:
    return {"number" if name == "integer" else name for name in types_of(node) or ()}


def _fixed(node: Node) -> set[tuple[bool, Any]] | None:
    """Return the only values that `node` allows, if they are scalars. Booleans are distinct from 0 and 1."""
    values = [node["const"]] if "const" in node else node.get("enum")
    if values is None or any(isinstance(value, dict | list) for value in values):
        return None
    return {(isinstance(value, bool), value) for value in values}


def _excludes(one: Node, other: Node) -> bool:
    if _types(one) and _types(other) and not _types(one) & _types(other):
        return True
    mine, others = _fixed(one), _fixed(other)
    return mine is not None and others is not None and not mine & others


def _tagged_apart(one: Node, other: Node, root: Node) -> bool:
    if _types(one) != {"object"} or _types(other) != {"object"}:
        return False
    tags = set(one.get("required", ())) & set(other.get("required", ()))
    for tag in tags & one.get("properties", {}).keys() & other.get("properties", {}).keys():
        if _excludes(_followed(one["properties"][tag], root), _followed(other["properties"][tag], root)):
            return True
    return False


# --- normalization ---------------------------------------------------------------------------------


DEFINITIONS = ("$defs", "definitions")
MOST_DEFINITIONS = 2000
_FURTHER = ("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems")


def normalized(schema: Node) -> dict[str, Any]:
    """Return `schema` in the newest spelling: `items` lists become `prefixItems`, `true` becomes `{}`, and
    every definition moves under `$defs`, also targets of a `$ref` by `$anchor` or elsewhere. Anything
    unknown is kept."""
    written: dict[str, Any] = _modernized(schema)
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


def _modernized(node: Any) -> Any:
    """Return `node` and its parts in the newest spelling."""
    if not isinstance(node, Mapping):
        return {} if node is True else node
    written: dict[str, Any] = {}
    for keyword, value in node.items():
        if keyword in MAPS and isinstance(value, Mapping):
            written[keyword] = {name: _modernized(child) for name, child in value.items()}
        elif keyword == "items" and isinstance(value, list):
            written["prefixItems"] = list(map(_modernized, value))
            if "additionalItems" in node:
                written["items"] = _modernized(node["additionalItems"])
        elif keyword == "additionalItems" and isinstance(node.get("items"), list):
            continue
        elif keyword in LISTS and isinstance(value, list):
            written[keyword] = list(map(_modernized, value))
        elif keyword in _FURTHER and (keyword == "items" or not isinstance(value, bool)):
            written[keyword] = _modernized(value)
        else:
            written[keyword] = value
    if not written.keys() & set(IN_PLACE):  # otherwise properties that sibling schemas describe count too
        for old, new in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
            if isinstance(written.get(old), bool) and written.pop(old) is False:
                written.setdefault(new, False)
    return _with_names(written)


def _with_names(node: dict[str, Any]) -> dict[str, Any]:
    """Convert a map with listed names to an object with these properties; return any other node unchanged."""
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


# --- recursion -------------------------------------------------------------------------------------


def unrolled(schema: Node, depth: int) -> dict[str, Any]:
    """Return `schema` with at most `depth` nested levels of recursive definitions; a lone leaf is one level.

    Where the next level would be too deep, the part that leads to it is removed: a branch of `anyOf`, an
    optional property, the items of a list that may be empty. Raises `ConstraintError` if nothing is left.
    """
    if depth < 1:
        raise ConstraintError(f"depth must be at least 1, got {depth}")
    levels = _Levels(schema)
    written = levels.node({"$ref": "#"} if "#" in levels.recursive else schema, depth, ())
    if written is None:
        raise ConstraintError(f"no text has at most {depth} levels; allow more")
    if levels.definitions:
        written["$defs"] = {name: node for name, node in levels.definitions.items() if node is not None}
    return written


class _Levels:
    """The definitions of a schema, with one copy per remaining level."""

    def __init__(self, root: Node) -> None:
        self.root = root
        self.recursive = _recursive(root)
        self.definitions: dict[str, dict[str, Any] | None] = {}

    def node(self, node: Any, left: int, path: Path) -> dict[str, Any] | None:
        """Return `node` with up to `left` more levels inside it; None if no text can match it."""
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
        """Return the name of the target of `reference` with `left` more levels; None if none are left."""
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
    """Return the references that lead back to themselves."""
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
    """Return the target of a reference without its own definitions."""
    node = resolve(root, reference)
    return {keyword: value for keyword, value in node.items() if keyword not in DEFINITIONS}
