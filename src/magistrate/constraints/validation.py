"""Validate finished values outside the mask engine: jsonschema, Draft 2020-12, exact decimals.

Values and schemas may be hostile. Patterns are searched by `searched`, which has a time limit, and every
applied rule is counted, because references can fan out without end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from functools import cache, lru_cache
from types import FunctionType, SimpleNamespace
from typing import Any

from magistrate._work import check
from magistrate.constraints.lark import is_in_language
from magistrate.constraints.quote import Texts, locate, quote_of
from magistrate.constraints.regex import FORMATS, PatternTooSlow, ecma_search
from magistrate.constraints.schema import LARK, QUOTE, pointer_to
from magistrate.errors import InputError, InvalidOutput

MOST_STEPS = 1_000_000  # per value: rules applied and enum values compared; a few seconds
COSTS = {"$ref": 20, "$dynamicRef": 20, "$recursiveRef": 20, "anyOf": 10, "oneOf": 10}  # steps; otherwise 1

Search = Callable[[str, str], Any]
_left: ContextVar[list[int] | None] = ContextVar("steps_left", default=None)


class TooManySteps(InputError):
    """Validating a value against a schema takes more than `MOST_STEPS`."""


@contextmanager
def counted_steps() -> Iterator[None]:
    """Limit the validators of `bounded_class` to `MOST_STEPS` in total; then they raise `TooManySteps`."""
    token = _left.set([MOST_STEPS])
    try:
        yield
    finally:
        _left.reset(token)


@lru_cache(maxsize=64)
def bounded_class(kind: Any, search: Search) -> Any:
    """Return the jsonschema class `kind` with every rule counted and every pattern searched by `search`.

    `search` returns None if its pattern does not match, and raises if that takes too long. A nested schema
    that names another dialect is bounded as well.
    """
    from attrs import fields
    from jsonschema.validators import extend

    rules = dict(kind.VALIDATORS) | {
        "pattern": _pattern(search),
        "patternProperties": _pattern_properties(search),
        "uniqueItems": _unique_items,
    }
    if "additionalProperties" in rules:
        rules["additionalProperties"] = _additional_properties(search, rules["additionalProperties"])
    if "unevaluatedProperties" in rules:
        rules["unevaluatedProperties"] = _searching(rules["unevaluatedProperties"], search)
    bounded = extend(
        kind, {keyword: _counted(rule, COSTS.get(keyword, 1)) for keyword, rule in rules.items()}
    )
    plain = bounded.evolve

    def evolve(self: Any, **changes: Any) -> Any:
        made = plain(self, **changes)
        if type(made) is type(self):
            return made
        own = {each.alias: getattr(made, each.name) for each in fields(type(made)) if each.init}
        other: Any = type(made)
        return bounded_class(other, search)(**own)

    bounded.evolve = evolve
    return bounded


def _spend(steps: int = 1) -> None:
    check()
    left = _left.get()
    if left is not None:
        left[0] -= steps
        if left[0] < 0:
            raise TooManySteps(
                f"checking this value against the schema takes more than {MOST_STEPS:,} steps; use fewer "
                "references in the schema, shorter lists, or a smaller value"
            )


def _counted(rule: Any, cost: int) -> Any:
    def run(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _spend(
            cost + (len(value) if isinstance(value, list | dict) else 0)
        )  # an enum is compared value by value
        yield from rule(validator, value, instance, schema) or ()

    return run


def _pattern(search: Search) -> Any:
    def rule(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
        from jsonschema import ValidationError

        if isinstance(instance, str) and search(pattern, instance) is None:
            yield ValidationError(f"{instance!r} does not match {pattern!r}")

    return rule


def _pattern_properties(search: Search) -> Any:
    def rule(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if not validator.is_type(instance, "object"):
            return
        for pattern, subschema in patterns.items():
            for name, item in instance.items():
                _spend()
                if search(pattern, name) is not None:
                    yield from validator.descend(item, subschema, path=name, schema_path=pattern)

    return rule


def _additional_properties(search: Search, plain: Any) -> Any:
    """Apply jsonschema's own rule to an object without the properties that patterns describe."""

    def rule(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        patterns = schema.get("patternProperties", {})
        if not patterns or not validator.is_type(instance, "object"):
            yield from plain(validator, value, instance, schema) or ()
            return
        declared, left = schema.get("properties", {}), {}
        for name, item in instance.items():
            _spend()
            if name not in declared and all(search(pattern, name) is None for pattern in patterns):
                left[name] = item
        others = {keyword: part for keyword, part in schema.items() if keyword != "patternProperties"}
        yield from plain(validator, value, left, others) or ()

    return rule


def _searching(rule: Any, search: Search) -> Any:
    """Return jsonschema's rule for `unevaluatedProperties` with `search` in place of `re.search`.

    The rule calls a recursive helper. Both are recreated with their own globals, because `re` cannot be
    stopped.
    """
    names = dict(rule.__globals__)
    find = names["find_evaluated_property_keys_by_schema"]
    inside = {**find.__globals__, "re": SimpleNamespace(search=search)}
    made = FunctionType(find.__code__, inside)

    def counted(*arguments: Any) -> Any:
        _spend()
        return made(*arguments)

    inside[find.__name__] = names[find.__name__] = counted
    return FunctionType(rule.__code__, names)


def _unique_items(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """Check uniqueness with a set: jsonschema compares every pair, which takes hours for a megabyte."""
    from jsonschema import ValidationError

    if not (wanted and validator.is_type(instance, "array")):
        return
    if len(set(map(_identity, instance))) < len(instance):
        yield ValidationError(f"{instance!r:.300} has non-unique elements")


def _identity(value: Any) -> Any:
    """Return a hashable key that is equal for equal JSON values: 1 and 1.0, but not 1 and true."""
    if isinstance(value, dict):
        return "object", frozenset((name, _identity(item)) for name, item in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_identity, value))
    return isinstance(value, bool), value


def exact_class(texts: Texts) -> Any:
    """Return Draft 2020-12 with `multipleOf` in exact decimals (0.29 is a multiple of 0.01), formats
    asserted, patterns as ECMA 262 reads them, and quotes looked up in `texts`."""
    from jsonschema import Draft202012Validator, ValidationError
    from jsonschema.validators import extend

    def quoted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        of = quote_of(schema)
        if isinstance(instance, str) and of and locate(instance, of, texts.get(of.source, ())) is None:
            yield ValidationError(f"{instance!r} are not {of.unit} of {of.source!r}")

    rules = {"multipleOf": _multiple_of, "format": _format, QUOTE: quoted, LARK: _lark}
    return bounded_class(extend(Draft202012Validator, rules), ecma_search)


def _multiple_of(validator: Any, step: float, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if (
        validator.is_type(instance, "number")
        and (Fraction(str(instance)) / Fraction(str(step))).denominator != 1
    ):
        yield ValidationError(f"{instance!r} is not a multiple of {step}")


def _format(validator: Any, name: str, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and name in FORMATS and not re.fullmatch(FORMATS[name], instance):
        yield ValidationError(f"{instance!r} is not a {name!r}")


def _lark(validator: Any, grammar: str, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and not is_in_language(grammar, instance):
        yield ValidationError(f"{instance!r} does not match its grammar")


@cache
def specifications() -> Any:
    """Return the registry of the metaschemas. It fetches nothing: external references stay unresolved."""
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

    return REGISTRY


def validate(value: Any, schema: Mapping[str, Any], text: str, texts: Texts) -> None:
    """Raise `InvalidOutput` with the place of the worst error; `texts` are those that may be quoted."""
    from jsonschema.exceptions import best_match

    try:
        with counted_steps():
            error = best_match(_validator(json.dumps(schema), frozen(texts)).iter_errors(value))
    except (
        RecursionError,
        OverflowError,
        PatternTooSlow,
        TooManySteps,
    ) as cause:  # cannot be checked
        raise InvalidOutput(f"the value cannot be checked: {cause}", text) from None
    if error is not None:
        where = pointer_to(*error.absolute_path)
        raise InvalidOutput(f"the output does not match its schema at {where}: {error.message[:300]}", text)


def plain_validator(root: Mapping[str, Any], node: Any) -> Any:
    """Return jsonschema's validator for `node`, whose references point into `root`."""
    definitions = {keyword: root[keyword] for keyword in ("$defs", "definitions") if keyword in root}
    return _plain_class()({**definitions, **node}, registry=specifications())


@cache
def _plain_class() -> Any:
    return exact_class({})


Frozen = tuple[tuple[str, tuple[str, ...]], ...]


def frozen(texts: Texts) -> Frozen:
    """Return `texts` as a hashable value."""
    return tuple((name, tuple(given)) for name, given in texts.items())


@lru_cache(maxsize=64)
def _validator(schema: str, texts: Frozen) -> Any:
    # Without "$schema", which would make jsonschema return to its own class at a reference to the root.
    plain = {keyword: value for keyword, value in json.loads(schema).items() if keyword != "$schema"}
    return exact_class(dict(texts))(plain, registry=specifications())
