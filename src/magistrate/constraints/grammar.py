"""Generate the grammar of every kind of constraint, as text in llguidance's Lark dialect.

A JSON Schema is rewritten before it becomes a `%json` leaf: annotations are removed, formats become
patterns, patterns get Rust syntax, numbers get a limited number of decimals, objects are closed. Every step
only narrows: what the masks accept is valid under the original schema. If a schema quotes texts, the nodes
that contain quotes become Lark rules and everything else in it becomes leaves.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import count, takewhile
from typing import Any

from magistrate.constraints.lark import embedded
from magistrate.constraints.quote import Texts, as_texts, quote_of, verbatim_rule
from magistrate.constraints.regex import FORMATS, Translated, translate
from magistrate.constraints.schema import (
    ANNOTATIONS,
    LARK,
    LISTS,
    MAPS,
    NUMERIC,
    QUOTE,
    Path,
    closes_objects,
    listed,
    on_grid,
    pointer_to,
    reference_path,
    resolve,
    walk,
)
from magistrate.errors import ConstraintError

COMPACT = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}

_COUNTS = ("minLength", "maxLength", "minItems", "maxItems")


def json_grammar(schema: Mapping[str, Any], texts: Texts | None = None) -> str:
    """Return Lark text for compact JSON with keys in declared order; `texts` are those that may be quoted.

    Raises `ConstraintError` if a text is missing, or if a quote is required but there is nothing to quote.
    """
    rules = _Rules(schema, texts or {})
    start = rules.rule(schema, ())
    if start is None:
        raise ConstraintError(rules.why, "#")
    return "\n".join([f"start: {start}", *rules.lines, ""])


def choice_grammar(choices: Sequence[str]) -> str:
    """Return Lark text for exactly one of `choices`. A Lark string literal has JSON's escapes."""
    return f"start: {' | '.join(json.dumps(choice) for choice in choices)}\n"


def regex_grammar(pattern: str) -> str:
    """Return Lark text for the texts that a Python regular expression matches in full."""
    return f"start: /{translate(pattern).rust}/\n"


class _Rules:
    """Generates Lark expressions for the nodes of one schema; None if no text can match a node."""

    def __init__(self, root: Mapping[str, Any], texts: Texts) -> None:
        self.root = root
        self.texts = texts
        self.closes = closes_objects(root)
        self.lines: list[str] = []
        self.why = "no text is allowed"
        self._leading = _references_to_rules(root)
        self._names = (f"rule_{number}" for number in count())
        self._references: dict[str, str | None] = {}
        self._quotes: dict[str, str | None] = {}

    def rule(self, node: Mapping[str, Any], path: Path) -> str | None:
        """Return an expression for `node`."""
        if not self._needs_rules(node):
            return self._leaf(node)
        choices = [keyword for keyword in ("$ref", "anyOf", "oneOf") if keyword in node]
        others = node.keys() - ANNOTATIONS - set(choices) - {"$defs", "definitions", "type"}
        if "allOf" in node or len(choices) > 1 or (choices and others):
            raise ConstraintError(
                "quotes and unique items are not supported where several schemas apply; merge them into one",
                pointer_to(*path),
            )
        if "$ref" in node:
            return self._reference(node["$ref"])
        for keyword in choices:
            branches = enumerate(node[keyword])
            return _either([self.rule(branch, (*path, keyword, index)) for index, branch in branches])
        if isinstance(node.get("type"), list):
            return _either([self._typed(node, name, path) for name in node["type"]])
        if quote_of(node) is not None:
            return self._quote(node, path)
        if LARK in node:
            return self._lark(node)
        if node.get("uniqueItems"):
            return self._set(node)
        if node.get("type") == "array" or "items" in node or "prefixItems" in node:
            return self._array(node, path)
        return self._object(node, path)

    # --- nodes that need rules of their own -----------------------------------------------------------

    def _needs_rules(self, node: Any) -> bool:
        return any(_is_ruled(inner) or inner.get("$ref") in self._leading for inner, _ in walk(node))

    def _typed(self, node: Mapping[str, Any], name: str, path: Path) -> str | None:
        """Return an expression for one of the types that a node allows."""
        ours = (QUOTE, LARK)
        kept = {keyword: value for keyword, value in node.items() if keyword not in ours or name == "string"}
        if name not in ("object", "array"):
            parts = ("properties", "items", "prefixItems", "required")
            kept = {keyword: value for keyword, value in kept.items() if keyword not in parts}
        return self.rule({**kept, "type": name}, path)

    def _quote(self, node: Mapping[str, Any], path: Path) -> str | None:
        of = quote_of(node)
        assert of is not None
        if of.source not in self.texts:
            raise ConstraintError(
                f"the constraint quotes {of.source!r}; give its text: constraint.over({of.source}=…)",
                pointer_to(*path),
            )
        texts = as_texts(self.texts[of.source])
        least, most = int(node.get("minLength", 1)), node.get("maxLength")
        key = json.dumps([of.source, of.unit, least, most])
        if key not in self._quotes:
            name, bound = f"quote_{len(self._quotes)}", None if most is None else int(most)
            lines = verbatim_rule(name, texts, of.unit, least, bound)
            self.lines += lines
            self._quotes[key] = name if lines else None
        if self._quotes[key] is None:
            self.why = f"a quote from {of.source!r} is required, but the text is too short for it"
        return self._quotes[key]

    def _lark(self, node: Mapping[str, Any]) -> str:
        start, lines = embedded(node[LARK], f"{next(self._names)}_")
        self.lines += lines
        return f'"\\"" {start} "\\""'

    def _reference(self, reference: str) -> str | None:
        if reference not in self._references:
            name = f"named_{len(self._references)}"
            self._references[reference] = name  # set first: the rule may refer to itself
            expression = self.rule(resolve(self.root, reference), reference_path(reference))
            if expression is None:
                self._references[reference] = None
            else:
                self.lines.append(f"{name}: {expression}")
        return self._references[reference]

    def _array(self, node: Mapping[str, Any], path: Path) -> str | None:
        leading = [
            self.rule(child, (*path, "prefixItems", index))
            for index, child in enumerate(node.get("prefixItems", ()))
        ]
        rest = node.get("items")
        item = None if rest in (None, False) else self.rule(rest, (*path, "items"))
        written = list(takewhile(lambda each: each is not None, leading))
        most = int(node.get("maxItems", sys.maxsize))
        if len(written) < len(leading) or item is None:
            most = min(most, len(written))
        least = int(node.get("minItems", 0))
        if least > most:
            return None
        return self._named(f'"[" {_list(written, item, least, most)} "]"')

    def _set(self, node: Mapping[str, Any]) -> str | None:
        """Return an expression for distinct values in any order; the rule's parameter has a bit per value."""
        values = [_literal(_compact(value)) for value in listed(node["items"], self.root) or ()]
        least, most = int(node.get("minItems", 0)), min(int(node.get("maxItems", len(values))), len(values))
        if least > most:
            return None
        first, rest = next(self._names), next(self._names)
        none = '""'
        begun, more = [] if least else [none], [f"{none} %if bit_count_ge(_, {least})"]
        for index, value in enumerate(values if most else ()):
            may = f"and(bit_clear({index}), bit_count_lt(_, {most}))"
            begun.append(f"{value} {rest}::set_bit({index})")
            more.append(f'"," {value} {rest}::set_bit({index}) %if {may}')
        self.lines += [f"{first}::_: {' | '.join(begun)}", f"{rest}::_: {' | '.join(more)}"]
        return f'"[" {first}::0x0 "]"'

    def _object(self, node: Mapping[str, Any], path: Path) -> str | None:
        required = set(node.get("required", ()))
        members: list[tuple[str, bool]] = []
        for name, child in node.get("properties", {}).items():
            value = self.rule(child, (*path, "properties", name))
            if value is not None:
                members.append((f"{_literal(_compact(name) + ':')} {value}", name in required))
            elif name in required:
                return None
        # Goes from the last member to the first: `after` follows another member, `first` starts the object.
        after, first = "", ""
        for member, must in reversed(members):
            if must:
                after, first = f'"," {member} {after}', f"{member} {after}"
            else:
                rest = self._named(after) if after else ""
                first = self._named(f"{member} {rest} | {first}") if first else f"({member} {rest})?"
                after = f'("," {member})? {rest}'
        return self._named(f'"{{" {first} "}}"')

    def _named(self, expression: str) -> str:
        """Add a separate rule for `expression` and return its name."""
        name = next(self._names)
        self.lines.append(f"{name}: {expression}")
        return name

    # --- nodes that become leaves -------------------------------------------------------------------

    def _leaf(self, node: Mapping[str, Any]) -> str:
        written = self._rewritten(node) | {"x-guidance": COMPACT}
        for keyword in ("$defs", "definitions"):
            if needed := self._needed(node, keyword):
                written[keyword] = {name: self._rewritten(self.root[keyword][name]) for name in needed}
        return f"%json {json.dumps(written)}"

    def _needed(self, node: Mapping[str, Any], keyword: str) -> list[str]:
        """Return the names of definitions under `keyword` that `node` refers to, directly or indirectly."""
        found: dict[str, None] = {}
        pending = [node]
        while pending:
            for inner, _ in walk(pending.pop()):
                if (reference := inner.get("$ref", "#")) not in found and reference != "#":
                    found[reference] = None
                    pending.append(resolve(self.root, reference))
        return [name for place, name in map(reference_path, found) if place == keyword]

    def _rewritten(self, node: Mapping[str, Any]) -> dict[str, Any]:
        written: dict[str, Any] = {}
        for keyword, value in node.items():
            if keyword in ANNOTATIONS | {"uniqueItems"} or keyword in NUMERIC or keyword.startswith("x-"):
                continue
            if keyword in MAPS:
                written[keyword] = {name: self._rewritten(child) for name, child in value.items()}
            elif keyword in LISTS:
                # The branches of oneOf are already checked to exclude each other.
                written["anyOf" if keyword == "oneOf" else keyword] = [
                    self._rewritten(each) for each in value
                ]
            elif keyword == "items" and value is not False:
                written[keyword] = self._rewritten(value)
            elif keyword == "pattern":
                written["pattern"] = _anchored(translate(value, ascii_words=True))
            elif keyword == "format":
                written["pattern"] = f"^(?:{translate(FORMATS[value]).rust})$"
            else:
                written[keyword] = int(value) if keyword in _COUNTS else value
        written |= on_grid(node, "")
        if self.closes and "object" in node.get("type", ()) and "properties" in node:
            written.setdefault("additionalProperties", False)
        return written


def _is_ruled(node: Mapping[str, Any]) -> bool:
    """Return whether a node needs Lark rules because a `%json` leaf cannot express it."""
    return QUOTE in node or LARK in node or bool(node.get("uniqueItems"))


def _references_to_rules(root: Mapping[str, Any]) -> set[str]:
    """Return the references that lead to nodes that need rules, directly or indirectly."""
    targets = {inner["$ref"] for inner, _ in walk(root) if "$ref" in inner}
    inside = {reference: [inner for inner, _ in walk(resolve(root, reference))] for reference in targets}
    found = {reference for reference, nodes in inside.items() if any(map(_is_ruled, nodes))}
    while more := {
        reference
        for reference in targets - found
        if any(node.get("$ref") in found for node in inside[reference])
    }:
        found |= more
    return found


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _either(expressions: Sequence[str | None]) -> str | None:
    possible = [expression for expression in expressions if expression is not None]
    return f"({' | '.join(possible)})" if possible else None


def _list(leading: Sequence[str | None], item: str | None, least: int, most: int) -> str:
    """Return an expression for `least` to `most` items with commas: `leading` first, then repeated `item`."""
    expression = ""
    if item is not None and most > len(leading):
        low, high = max(least - len(leading), 0), most - len(leading)
        if not leading:
            more = f'{item} ("," {item}){{{max(low - 1, 0)},{high - 1}}}' if high > 1 else item
            return more if low else f"({more})?"
        expression = f'("," {item}){{{low},{high}}}'
    for index in range(min(len(leading), most) - 1, -1, -1):
        expression = f"{leading[index]} {expression}"
        if index:
            expression = f'"," {expression}'
        if index >= least:
            expression = f"({expression})?"
    return expression


def _anchored(pattern: Translated) -> str:
    """Return the pattern as JSON Schema reads it: without anchors it may match anywhere in the string."""
    return f"{'^' if pattern.starts else ''}(?:{pattern.rust}){'$' if pattern.ends else ''}"
