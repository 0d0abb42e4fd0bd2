"""Whether an unfinished value can still agree with a schema, decided by its finished parts.

jsonschema walks the schema, references and all. On finished values its own rules hold. On an open value
only these apply: the keywords below that a finished part can break for good, and the combinators that lead
to them. Every other keyword waits for the end, so the answer "possible" may be wrong and "impossible" not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from magistrate.constraints.reader import Open, OpenArray, OpenNumber, OpenObject, OpenString
from magistrate.constraints.validation import Search

Rule = Callable[[Any, Any, Any, Any], Iterator[Any]]

_AS_THEY_ARE = ("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf")


def partial_class(finished: Any, search: Search) -> Any:
    """The jsonschema class `finished`, extended to open values; `search` searches patterns."""
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
    """The characters that cannot change any more: a last high surrogate may become half of a pair."""
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
    if isinstance(value, list):  # up to draft 2019-09 a list stood for what prefixItems says now
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
