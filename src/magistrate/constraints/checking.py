"""Is this text valid, can it still become so, or is it lost? For text in the middle of being written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from magistrate.constraints.bytewise import Status, follow
from magistrate.constraints.constraint import Constraint
from magistrate.constraints.partial import partial_class
from magistrate.constraints.pointers import pointer_to
from magistrate.constraints.reader import Reading, read
from magistrate.constraints.spec import constraint as as_constraint
from magistrate.constraints.validation import (
    Frozen,
    bounded_class,
    counted_steps,
    ecma_search,
    exact_class,
    frozen,
    python_search,
    specifications,
)
from magistrate.errors import ConstraintError

_METASCHEMAS = ("http://json-schema.org/", "https://json-schema.org/")
_SHALLOW = 50  # levels; a schema that recurses endlessly over less refers to itself


def check(text: str, constraint: object = None) -> Status:
    """Whether `text` is `valid`, `incomplete` (it can still become valid) or `invalid`.

    Without a constraint any JSON is meant (RFC 8259, nothing else: no NaN, no trailing comma). A JSON Schema
    (dict or bool) may be any that jsonschema understands, whether or not it could be written under masks; its
    finished texts are judged as jsonschema does (Draft 2020-12 unless `$schema` says otherwise, formats not
    asserted). Anything else that `constraint` accepts is turned into one; under a JSON kind any white space,
    escapes and key order are right, under the others the text itself must match.

    An unfinished text is `invalid` only if a finished part of it breaks the schema beyond repair. A bare
    number at the very end is unfinished, as digits may follow: under `{"minimum": 10}` `1` is incomplete and
    `1 ` invalid. Under any constraint a name that stands twice in an object, an integer of more than 4,300
    digits and a finished text nested deeper than jsonschema can follow are `invalid`.
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
            raise ConstraintError("the schema refers to itself without going deeper into the text") from None
        return when_too_deep
    except OverflowError:  # a number beyond the doubles, such as 1e400
        return when_too_deep
    except Unresolvable as error:
        raise ConstraintError(f"{error}; references outside the schema are not fetched") from None


def _dump(schema: object) -> str:
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"the schema is not plain JSON: {error}", "#") from None


@lru_cache(maxsize=64)
def _validators(text: str, texts: Frozen | None) -> tuple[Any, Any]:
    """The validator of finished values, and that of open ones; None where their dialects are mixed.

    With `texts`, those of a constraint, which may be none, it is the validator of a constraint's outputs.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match
    from jsonschema.validators import validator_for

    schema = json.loads(text)
    dialect = validator_for(schema, default=Draft202012Validator)
    error = best_match(dialect(dialect.META_SCHEMA).iter_errors(schema))
    if error is not None:
        raise ConstraintError(error.message, pointer_to(*error.absolute_path))
    # jsonschema goes back to its own classes where a schema names its dialect, so the name is taken out.
    plain, mixed = _without_dialect(schema, schema.get("$schema") if isinstance(schema, dict) else None)
    own = None if texts is None else exact_class(dict(texts))
    bounded = bounded_class(dialect, python_search) if own is None else own
    finished = bounded(schema if own is None else plain, registry=specifications())
    extended = partial_class(bounded, python_search if own is None else ecma_search)
    return finished, None if mixed else extended(plain, registry=specifications())


def _without_dialect(node: Any, root: object) -> tuple[Any, bool]:
    """`node` without `$schema`, and whether one inside names another dialect than the root does."""
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
