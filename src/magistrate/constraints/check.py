"""`check`: decide whether a text, finished or not, is valid, can still become valid, or is invalid.

jsonschema walks the schema and its references. Finished values are checked by jsonschema's own rules. An
unfinished (open) value is checked only by the keywords below that a finished part can already violate, and
by the combinators that lead to them. All other keywords are checked once the value is finished. The answer
"can still become valid" may therefore be wrong; "invalid" never is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from magistrate.constraints.constraint import Constraint
from magistrate.constraints.constraint import constraint as as_constraint
from magistrate.constraints.lark import Status, follow
from magistrate.constraints.partial_json import (
    Open,
    OpenArray,
    OpenNumber,
    OpenObject,
    OpenString,
    Reading,
    read,
)
from magistrate.constraints.regex import ecma_search, python_search
from magistrate.constraints.schema import pointer_to
from magistrate.constraints.validation import (
    Frozen,
    Search,
    bounded_class,
    counted_steps,
    exact_class,
    frozen,
    specifications,
)
from magistrate.errors import ConstraintError

Rule = Callable[[Any, Any, Any, Any], Iterator[Any]]

_AS_THEY_ARE = ("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf")


def partial_class(finished: Any, search: Search) -> Any:
    """Return the jsonschema class `finished`, extended to unfinished values; `search` searches patterns."""
    from jsonschema.validators import extend

    unfinished = _RULES | {
        "patternProperties": _pattern_properties(search),
        "additionalProperties": _additional_properties(search),
    }
    rules = dict(finished.VALIDATORS)
    for keyword, rule in finished.VALIDATORS.items():
        if keyword not in _AS_THEY_ARE:
            rules[keyword] = _either(rule, unfinished.get(keyword))
    rules["oneOf"] = _either(finished.VALIDATORS["oneOf"], finished.VALIDATORS["anyOf"])
    return extend(finished, rules)


def _either(finished: Rule, unfinished: Rule | None) -> Rule:
    def rule(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        chosen = unfinished if isinstance(instance, Open) else finished
        yield from (chosen(validator, value, instance, schema) if chosen is not None else None) or ()

    return rule


def _impossible() -> Any:
    from jsonschema import ValidationError

    return ValidationError("no continuation can repair this")


def _type(validator: Any, value: Any, instance: Open, schema: Any) -> Iterator[Any]:
    if not instance.types & ({value} if isinstance(value, str) else set(value)):
        yield _impossible()


def _enum(validator: Any, value: Any, instance: Open, schema: Any) -> Iterator[Any]:
    if not any(_can_become(validator, instance, candidate) for candidate in value):
        yield _impossible()


def _const(validator: Any, value: Any, instance: Open, schema: Any) -> Iterator[Any]:
    if not _can_become(validator, instance, value):
        yield _impossible()


def _can_become(validator: Any, instance: Open, candidate: Any) -> bool:
    if isinstance(instance, OpenNumber):
        return isinstance(candidate, int | float) and not isinstance(candidate, bool)
    if isinstance(instance, OpenString):
        return isinstance(candidate, str) and candidate.startswith(_settled(instance.text))
    if isinstance(instance, OpenArray):
        return (
            isinstance(candidate, list)
            and len(instance.items) <= len(candidate)
            and all(
                _same(validator, item, other) for item, other in zip(instance.items, candidate, strict=False)
            )
        )
    assert isinstance(instance, OpenObject)
    return isinstance(candidate, dict) and (
        all(
            name in candidate and _same(validator, item, candidate[name])
            for name, item in instance.members.items()
        )
        and (instance.key is None or instance.key in candidate)
        and (instance.partial is None or _has_name(instance, candidate))
    )


def _same(validator: Any, item: Any, candidate: Any) -> bool:
    return bool(validator.evolve(schema={"enum": [candidate]}).is_valid(item))


def _settled(text: str) -> str:
    """Return `text` without a trailing high surrogate, which may still become half of a pair."""
    return text[:-1] if text and "\ud800" <= text[-1] <= "\udbff" else text


def _has_name(instance: OpenObject, names: Any) -> bool:
    start = _settled(instance.partial or "")
    return any(name.startswith(start) for name in names if name not in instance.members)


def _max_length(validator: Any, value: Any, instance: Open, schema: Any) -> Iterator[Any]:
    if isinstance(instance, OpenString) and len(instance.text) > value:
        yield _impossible()


def _max_items(validator: Any, value: Any, instance: Open, schema: Any) -> Iterator[Any]:
    if isinstance(instance, OpenArray) and len(instance.items) > value:
        yield _impossible()


def _max_properties(validator: Any, value: Any, instance: Open, schema: Any) -> Iterator[Any]:
    if isinstance(instance, OpenObject):
        begun = instance.key is not None or instance.partial is not None
        if len(instance.members) + begun > value:
            yield _impossible()


def _unique_items(validator: Any, value: Any, instance: Open, schema: Any) -> Iterator[Any]:
    if isinstance(instance, OpenArray) and value:
        closed = [item for item in instance.items if not isinstance(item, Open)]
        yield from validator.descend(closed, {"uniqueItems": True})


def _prefix_items(validator: Any, value: Any, instance: Open, schema: Any) -> Iterator[Any]:
    if isinstance(instance, OpenArray):
        for item, subschema in zip(instance.items, value, strict=False):
            yield from validator.descend(item, subschema)


def _items(validator: Any, value: Any, instance: Open, schema: Any) -> Iterator[Any]:
    if isinstance(value, list):  # up to draft 2019-09 a list meant what prefixItems means now
        yield from _prefix_items(validator, value, instance, schema)
    elif isinstance(instance, OpenArray):
        leading = len(schema.get("prefixItems", ())) if "prefixItems" in validator.VALIDATORS else 0
        for item in instance.items[leading:]:
            yield from validator.descend(item, value)


def _properties(validator: Any, value: Any, instance: Open, schema: Any) -> Iterator[Any]:
    if isinstance(instance, OpenObject):
        for name, item in instance.members.items():
            if name in value:
                yield from validator.descend(item, value[name])
        if instance.key is not None and value.get(instance.key, True) is False:
            yield _impossible()


def _pattern_properties(search: Search) -> Rule:
    def rule(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if isinstance(instance, OpenObject):
            for pattern, subschema in value.items():
                for name, item in instance.members.items():
                    if search(pattern, name) is not None:
                        yield from validator.descend(item, subschema)

    return rule


def _additional_properties(search: Search) -> Rule:
    def rule(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if not isinstance(instance, OpenObject):
            return
        declared, patterns = schema.get("properties", {}), schema.get("patternProperties", {})

        def additional(name: str) -> bool:
            return name not in declared and all(search(pattern, name) is None for pattern in patterns)

        for name, item in instance.members.items():
            if additional(name):
                yield from validator.descend(item, value)
        if value is False:
            if instance.key is not None and additional(instance.key):
                yield _impossible()
            if instance.partial is not None and not patterns and not _has_name(instance, declared):
                yield _impossible()

    return rule


def _property_names(validator: Any, value: Any, instance: Open, schema: Any) -> Iterator[Any]:
    if isinstance(instance, OpenObject):
        names: list[Any] = [*instance.members, *([] if instance.key is None else [instance.key])]
        names += [] if instance.partial is None else [OpenString(instance.partial)]
        for name in names:
            yield from validator.descend(name, value)


_RULES: dict[str, Rule] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "maxLength": _max_length,
    "maxItems": _max_items,
    "maxProperties": _max_properties,
    "uniqueItems": _unique_items,
    "prefixItems": _prefix_items,
    "items": _items,
    "properties": _properties,
    "propertyNames": _property_names,
}


_METASCHEMAS = ("http://json-schema.org/", "https://json-schema.org/")
_SHALLOW = 50  # levels; if a schema recurses endlessly on a text with fewer, it refers to itself


def check(text: str, constraint: object = None) -> Status:
    """Return whether `text` is `valid`, `incomplete` (it can still become valid) or `invalid`.

    Without a constraint, any JSON is valid (RFC 8259 only: no NaN, no trailing comma). A JSON Schema (dict
    or bool) may be any that jsonschema understands, even one that masks cannot enforce. Finished texts are
    then judged as jsonschema does (Draft 2020-12 unless `$schema` says otherwise, formats not asserted).
    Any other `constraint` is converted by `constraint()`. Under a JSON kind, white space, escapes and key
    order are free; under other kinds the text itself must match.

    An unfinished text is `invalid` only if a finished part of it breaks the schema beyond repair. A bare
    number at the very end is unfinished, because digits may follow: under `{"minimum": 10}`, `1` is
    incomplete and `1 ` is invalid. Under any constraint a duplicate name in an object, an integer of more
    than 4,300 digits and a finished text nested deeper than jsonschema can follow are `invalid`.
    """
    if not isinstance(constraint, None | bool | Mapping):
        constraint = as_constraint(constraint)
        constraint.require_texts()
    if isinstance(constraint, Constraint) and constraint.kind != "json":
        return follow(constraint.grammar, text)
    reading = read(text, values=constraint is not None)
    if reading.state == "broken":
        return "invalid"
    if constraint is None:
        return "valid" if reading.state == "complete" else "incomplete"
    if isinstance(constraint, Constraint):
        finished, unfinished = _validators(json.dumps(constraint.schema), frozen(constraint.texts))
    else:
        finished, unfinished = _validators(_dump(constraint), None)
    if not reading.started:
        return "incomplete"
    return _judge(text, reading, finished, unfinished)


def _judge(text: str, reading: Reading, finished: Any, unfinished: Any) -> Status:
    if reading.state == "complete":
        if _holds(finished, reading.value, text, when_too_deep=False):
            return "valid"
        if reading.growing is None:
            return "invalid"
    value = reading.growing if reading.growing is not None else reading.value
    possible = unfinished is None or _holds(unfinished, value, text, when_too_deep=True)
    return "incomplete" if possible else "invalid"


def _holds(validator: Any, value: Any, text: str, *, when_too_deep: bool) -> bool:
    from referencing.exceptions import Unresolvable

    try:
        with counted_steps():
            return bool(validator.is_valid(value))
    except RecursionError:
        if text.count("[") + text.count("{") < _SHALLOW:
            raise ConstraintError("the schema refers to itself without consuming any text") from None
        return when_too_deep
    except OverflowError:  # a number beyond the range of a double, such as 1e400
        return when_too_deep
    except Unresolvable as error:
        raise ConstraintError(f"{error}; references outside the schema are not downloaded") from None


def _dump(schema: object) -> str:
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"the schema is not plain JSON: {error}", "#") from None


@lru_cache(maxsize=64)
def _validators(text: str, texts: Frozen | None) -> tuple[Any, Any]:
    """Return the validators of finished and of unfinished values; the second is None for mixed dialects.

    If `texts` is not None (it may be empty), they are the texts of a `Constraint`, and its outputs are
    validated.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match
    from jsonschema.validators import validator_for

    schema = json.loads(text)
    dialect = validator_for(schema, default=Draft202012Validator)
    form = bounded_class(validator_for(dialect.META_SCHEMA, default=dialect), python_search)
    error = best_match(form(dialect.META_SCHEMA, registry=specifications()).iter_errors(schema))
    if error is not None:
        raise ConstraintError(error.message, pointer_to(*error.absolute_path))
    # jsonschema returns to its own classes where a schema names its dialect, so the name is removed.
    plain, mixed = _without_dialect(schema, schema.get("$schema") if isinstance(schema, dict) else None)
    own = None if texts is None else exact_class(dict(texts))
    bounded = bounded_class(dialect, python_search) if own is None else own
    finished = bounded(schema if own is None else plain, registry=specifications())
    extended = partial_class(bounded, python_search if own is None else ecma_search)
    return finished, None if mixed else extended(plain, registry=specifications())


def _without_dialect(node: Any, root: object) -> tuple[Any, bool]:
    """Return `node` without `$schema`, and whether a nested `$schema` names another dialect than the root."""
    if isinstance(node, list):
        children = [_without_dialect(child, root) for child in node]
        return [child for child, _ in children], any(mixed for _, mixed in children)
    if not isinstance(node, dict):
        return node, False
    mixed, written = False, {}
    for keyword, value in node.items():
        if keyword == "$schema" and isinstance(value, str):
            mixed = mixed or value != root
        elif keyword == "$ref" and str(value).startswith(_METASCHEMAS):
            mixed, written[keyword] = True, value
        elif keyword in ("enum", "const", "default", "examples"):
            written[keyword] = value
        else:
            written[keyword], inside = _without_dialect(value, root)
            mixed = mixed or inside
    return written, mixed
