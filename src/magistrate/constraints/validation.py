"""The validator that stands outside the mask engine: jsonschema, Draft 2020-12, numbers taken as written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

from magistrate.constraints.embedded import holds
from magistrate.constraints.formats import FORMATS
from magistrate.constraints.keywords import LARK, QUOTE
from magistrate.constraints.pointers import pointer_to
from magistrate.constraints.quote import Texts, locate, quote_of
from magistrate.errors import InvalidOutput


def exact_class(texts: Texts) -> Any:
    """Draft 2020-12 with `multipleOf` in exact decimals (0.29 is a multiple of 0.01), formats asserted,
    patterns as ECMA 262 reads them, and quotes looked up in `texts`."""
    from jsonschema import Draft202012Validator, ValidationError
    from jsonschema.validators import extend

    def quoted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        of = quote_of(schema)
        if isinstance(instance, str) and of and locate(instance, of, texts.get(of.source, ())) is None:
            yield ValidationError(f"{instance!r} are not {of.unit} of {of.source!r}")

    rules = {"multipleOf": _multiple_of, "format": _format, "pattern": _pattern, QUOTE: quoted, LARK: _lark}
    return extend(Draft202012Validator, rules)


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


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and not ecma(pattern).search(instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _lark(validator: Any, grammar: str, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and not holds(grammar, instance):
        yield ValidationError(f"{instance!r} is not in the language of its grammar")


_ECMA = {
    "d": "0-9",
    "w": "0-9A-Za-z_",
    "s": "\\t-\\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff",
}


@lru_cache(maxsize=256)
def ecma(pattern: str) -> re.Pattern[str]:
    """`pattern` with the classes and the end that ECMA 262 knows, which Python takes for wider ones."""
    written, in_class, escaped = "", False, False
    for letter in pattern:
        if escaped:
            body = _ECMA.get(letter.lower())
            if body is None or (in_class and letter.isupper()):
                written += f"\\{letter}"
            elif in_class:
                written += body
            else:
                written += f"[{'^' if letter.isupper() else ''}{body}]"
            escaped = False
            continue
        escaped = letter == "\\"
        in_class = letter == "[" or (in_class and letter != "]")
        if not escaped:
            written += r"\Z" if letter == "$" and not in_class else letter
    return re.compile(written + "\\" * escaped)


@cache
def specifications() -> Any:
    """The registry of the metaschemas. It fetches nothing: references elsewhere stay unresolved."""
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

    return REGISTRY


def validate(value: Any, schema: Mapping[str, Any], text: str, texts: Texts) -> None:
    """Raise `InvalidOutput` with the place of the gravest violation; `texts` are what may be quoted."""
    from jsonschema.exceptions import best_match

    try:
        error = best_match(_validator(json.dumps(schema), frozen(texts)).iter_errors(value))
    except (RecursionError, OverflowError) as cause:  # nested or large beyond what can be checked
        raise InvalidOutput(f"the value cannot be checked: {cause}", text) from None
    if error is not None:
        where = pointer_to(*error.absolute_path)
        raise InvalidOutput(f"the output breaks its schema at {where}: {error.message[:300]}", text)


def plain_validator(root: Mapping[str, Any], node: Any) -> Any:
    """jsonschema's validator for `node`, whose references are into `root`."""
    definitions = {keyword: root[keyword] for keyword in ("$defs", "definitions") if keyword in root}
    return exact_class({})({**definitions, **node}, registry=specifications())


Frozen = tuple[tuple[str, tuple[str, ...]], ...]


def frozen(texts: Texts) -> Frozen:
    """`texts` as something that can be a key."""
    return tuple((name, tuple(given)) for name, given in texts.items())


@lru_cache(maxsize=64)
def _validator(schema: str, texts: Frozen) -> Any:
    # Without "$schema", which would make jsonschema go back to its own class at a reference to the root.
    plain = {keyword: value for keyword, value in json.loads(schema).items() if keyword != "$schema"}
    return exact_class(dict(texts))(plain, registry=specifications())
