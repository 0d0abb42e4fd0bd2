"""Constraints for OpenAI-compatible servers: parameter, dialect, and how answers are parsed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from magistrate.constraints import Constraint, dialects, express
from magistrate.constraints.partial_json import read
from magistrate.engines.remote.messages import schema_of_text, text_inside
from magistrate.errors import ConstraintError

Dialect = Literal["lark", "gbnf", "json_schema", "strict_schema", "regex"]


@dataclass(frozen=True, slots=True)
class Way:
    """A request parameter for a constraint in some dialect; `body(payload)` is merged into the request."""

    name: str
    dialect: Dialect
    body: Callable[[Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class SentConstraint:
    """A constraint as a request states it: `body` is merged into the request, and `undo` converts the
    answer to a text that the constraint can parse. `lost` lists the rules that the server will not enforce.
    """

    name: str
    body: Mapping[str, Any]
    undo: Callable[[str], str]
    lost: tuple[str, ...] = ()


def _response_format(schema: Any) -> dict[str, Any]:
    wrapped = {"name": "answer", "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": wrapped}}


# Parameter names, from the servers' documentation: vLLM `structured_outputs` (formerly `guided_*`),
# SGLang `ebnf` and `regex`, llama.cpp `grammar`, NVIDIA NIM `nvext`, OpenAI and most others
# `response_format`.
# vLLM accepts Lark only with the backend `guidance`, llama.cpp only if it is built with llguidance.
WAYS: tuple[Way, ...] = (
    Way("llguidance grammar", "lark", lambda text: {"grammar": f"%llguidance {{}}\n{text}"}),
    Way("structured_outputs.grammar, Lark", "lark", lambda text: {"structured_outputs": {"grammar": text}}),
    Way("guided_grammar, Lark", "lark", lambda text: {"guided_grammar": text}),
    Way("GBNF grammar", "gbnf", lambda text: {"grammar": text}),
    Way("structured_outputs.grammar", "gbnf", lambda text: {"structured_outputs": {"grammar": text}}),
    Way("guided_grammar", "gbnf", lambda text: {"guided_grammar": text}),
    Way("ebnf", "gbnf", lambda text: {"ebnf": text}),
    Way("response_format json_schema", "json_schema", _response_format),
    Way("structured_outputs.json", "json_schema", lambda schema: {"structured_outputs": {"json": schema}}),
    Way("guided_json", "json_schema", lambda schema: {"guided_json": schema}),
    Way("nvext.guided_json", "json_schema", lambda schema: {"nvext": {"guided_json": schema}}),
    Way("response_format json_schema, strict", "strict_schema", _response_format),
    Way("structured_outputs.regex", "regex", lambda text: {"structured_outputs": {"regex": text}}),
    Way("guided_regex", "regex", lambda text: {"guided_regex": text}),
    Way("regex", "regex", lambda text: {"regex": text}),
)
_DIALECTS: Mapping[str, dialects.Dialect] = {"lark": "lark", "gbnf": "gbnf", "regex": "regex"}
NATIVE = ("llguidance grammar", "GBNF grammar")  # the ones that llama.cpp's own API accepts
NAMED = {way.name: way for way in WAYS}


def ways_to_send(constraint: Constraint, names: tuple[str, ...]) -> list[SentConstraint]:
    """Return the payloads for `constraint` in each named way, the one that loses the fewest rules first."""
    found = [sent for name in names if name in NAMED and (sent := _sent(constraint, NAMED[name])) is not None]
    return sorted(found, key=lambda sent: len(sent.lost))


def _sent(constraint: Constraint, way: Way) -> SentConstraint | None:
    """Return the payload for one way, or None if the way cannot express the constraint."""
    try:
        if way.dialect in ("json_schema", "strict_schema"):
            return _as_schema(constraint, way)
        if way.dialect == "regex" and constraint.kind == "json":
            return None  # as one expression, a schema is too large for any server to compile
        expressed = express(constraint, _DIALECTS[way.dialect])
    except ConstraintError:
        return None
    return SentConstraint(way.name, way.body(expressed.payload), _same, expressed.lost)


def _as_schema(constraint: Constraint, way: Way) -> SentConstraint | None:
    if constraint.kind == "lark":
        return None
    undo: Callable[[str], str] = _same
    lost: tuple[str, ...] = ()
    if constraint.kind == "json":
        expressed = express(constraint, "json_schema")
        schema, lost = expressed.payload, expressed.lost
    else:
        schema, undo = schema_of_text(constraint), text_inside
    if way.dialect == "strict_schema":
        original = schema
        schema, more = strict_schema(original)
        lost = (*lost, *more)
        if constraint.kind == "json":
            undo = partial(without_nulls, schema=original)
    return SentConstraint(way.name, way.body(schema), undo, lost)


def _same(text: str) -> str:
    return text


# --- OpenAI's strict mode ------------------------------------------------------------------------

KEPT = frozenset(
    [
        *("type", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf"),
        *("$ref", "$defs", "definitions", "title", "description", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems"),
    ]
)
MAPS = frozenset({"properties", "$defs", "definitions"})  # each value is a schema under a name of the user


def strict_schema(schema: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the schema in OpenAI's strict mode, and the keywords that were lost with their places.

    Strict mode closes every object, requires all of its properties, needs an object at the root, and
    rejects some keywords. An optional property may be null instead; `without_nulls` removes it again. Lost
    keywords are still enforced when the answer is validated.
    """
    lost: list[str] = []
    return _strict_node(schema, "", lost), tuple(lost)


def without_nulls(text: str, schema: Mapping[str, Any]) -> str:
    """Return text written under `strict_schema(schema)` without the nulls for missing properties."""
    reading = read(text)
    if reading.state != "complete":
        return text
    value = reading.value
    pruned = _pruned(value, [schema], schema)
    return text if pruned == value else json.dumps(pruned, ensure_ascii=False)


def _strict_node(node: Any, place: str, lost: list[str]) -> Any:
    if isinstance(node, list):
        return [_strict_node(each, f"{place}/{at}", lost) for at, each in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    strict: dict[str, Any] = {}
    for key, value in node.items():
        name = "anyOf" if key == "oneOf" and "anyOf" not in node else key
        if name not in KEPT:
            lost.append(f"{place or '/'}: {key}")
        elif name in MAPS:
            strict[name] = {
                each: _strict_node(of, f"{place}/{key}/{each}", lost) for each, of in value.items()
            }
        elif name in ("enum", "const", "required"):
            strict[name] = value
        else:
            strict[name] = _strict_node(value, f"{place}/{key}", lost)
    if "properties" in strict:
        required = set(node.get("required", ()))
        strict["properties"] = {
            name: of if name in required else {"anyOf": [of, {"type": "null"}]}
            for name, of in strict["properties"].items()
        }
        strict["required"] = list(strict["properties"])
    if "properties" in strict or strict.get("type") == "object":
        if isinstance(node.get("additionalProperties"), Mapping):
            lost.append(f"{place or '/'}: additionalProperties")
        strict["additionalProperties"] = False
    return strict


def _pruned(value: Any, schemas: Sequence[Any], root: Mapping[str, Any]) -> Any:
    """Return a value without the nulls that stand for a missing property in all schemas it may follow."""
    if not isinstance(value, list | dict):
        return value
    nodes = _followed(value, schemas, root)
    if isinstance(value, list):
        items = [node["items"] for node in nodes if "items" in node]
        return [_pruned(each, items, root) for each in value]
    kept = {}
    for name, each in value.items():
        inner = [node["properties"][name] for node in nodes if name in node.get("properties", {})]
        asked = any(name in node.get("required", ()) for node in nodes)
        if each is not None or not inner or asked or any(_may_be_null(of, root) for of in inner):
            kept[name] = _pruned(each, inner, root)
    return kept


def _followed(value: Any, schemas: Sequence[Any], root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the schemas with what they refer to, and of their branches those that the value may follow."""
    found: list[Mapping[str, Any]] = []
    pending = [(node, False) for node in schemas]
    while pending:
        node, is_branch = pending.pop()
        if not isinstance(node, Mapping) or any(node is each for each in found):
            continue
        if is_branch and not _may_follow(value, node):
            continue
        found.append(node)
        if isinstance(target := node.get("$ref"), str):
            pending.append((_at(root, target), is_branch))
        pending += [(each, True) for key in ("anyOf", "oneOf") for each in node.get(key, ())]
    return found


def _may_follow(value: Any, node: Mapping[str, Any]) -> bool:
    """Return whether a value can be meant by one branch of a schema: by type, names and fixed values."""
    kinds = node.get("type")
    if kinds is not None and ("array" if isinstance(value, list) else "object") not in (
        [kinds] if isinstance(kinds, str) else kinds
    ):
        return False
    if isinstance(value, list) or "properties" not in node:
        return True
    properties, required = node["properties"], node.get("required", ())
    return (
        value.keys() <= properties.keys()
        and value.keys() >= set(required)
        and all(
            (each is None and name not in required) or _is_allowed(each, properties[name])
            for name, each in value.items()
        )
    )


def _is_allowed(value: Any, node: Any) -> bool:
    """Return whether a value is among those that a schema fixes, if it fixes any."""
    if not isinstance(node, Mapping):
        return True
    listed = [node["const"]] if "const" in node else node.get("enum", [value])
    return any(value == each and isinstance(value, bool) is isinstance(each, bool) for each in listed)


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
