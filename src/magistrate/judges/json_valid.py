"""The judge `json_valid`: checks whether the output is JSON, and matches a JSON Schema."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from magistrate._work import checked
from magistrate.constraints.regex import compiled, searched
from magistrate.constraints.validation import bounded_class, counted_steps, specifications
from magistrate.engines.base import Engine
from magistrate.errors import ConstraintError, InputError, SpecError
from magistrate.judges.base import NO_LIMIT, JudgeInfo, absolute
from magistrate.types import Outcome, Sample, Verdict

VALID, INVALID = "valid", "invalid"
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


@dataclass(frozen=True)
class JsonValid:
    """Checks whether the output is JSON (RFC 8259, no `NaN`) and, with `schema`, fits its JSON Schema.

    `schema` is a file. With `fenced` the output may be wrapped in a Markdown code block, as models often
    do. A schema follows the draft that it names, 2020-12 by default; formats are not checked, and nothing
    is fetched. A name that stands twice in an object does not fit, since a schema is held against one of
    its values only. A `pattern` has the syntax and time limit of the judge `regex`. Raises `SpecError` for a
    file that does not exist, holds no schema or has references that it does not resolve itself.
    """

    name: str = "json_valid"
    schema: Path | None = None
    fenced: bool = False

    def __post_init__(self) -> None:
        if self.schema is not None:
            object.__setattr__(self, "schema", absolute(self.schema))
            _ = self._validator

    @property
    def info(self) -> JudgeInfo:
        digest = "" if self.schema is None else self._validator[1]
        return JudgeInfo(
            name=self.name,
            summary="the output is JSON" + (", and fits a schema" if self.schema is not None else ""),
            labels=(VALID, INVALID),
            direction="maximize",
            threshold=1.0,
            reads=("output",),
            requires=(),
            kind="code",
            long=NO_LIMIT,
            constraint=digest,
        )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        wrong = self._wrong(sample.output or "")
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=INVALID if wrong else VALID,
            score=0.0 if wrong else 1.0,
            explanation=wrong or "it is JSON" + (" and fits the schema" if self.schema is not None else ""),
        )

    def _wrong(self, text: str) -> str:
        """Return why the text is invalid, or an empty string."""
        if not text.strip():
            return "the output is empty"
        try:
            hook = None if self.schema is None else unique
            value = _read(unfenced(text) if self.fenced else text, self._integer, hook)
        except ValueError as error:
            return f"not JSON: {error}"
        if self.schema is None:
            return ""
        return first_problem(self._validator[0], value)

    def _integer(self, digits: str) -> int:
        """Parse an integer. Without a schema, one that is too long for Python is valid and gives 0."""
        try:
            return int(digits)
        except ValueError:
            if self.schema is None:
                return 0
            raise InputError(
                f"an integer of {len(digits):,} characters is too long to be checked against a schema"
            ) from None

    @cached_property
    def _validator(self) -> tuple[Any, str]:
        """The schema's validator and a digest of the schema."""
        assert self.schema is not None
        try:
            raw = self.schema.read_bytes()
            schema = _read(raw)
        except OSError as error:
            raise SpecError(f"cannot read the schema {self.schema}: {error.strerror}") from None
        except ValueError as error:
            raise SpecError(f"{self.schema} is not JSON: {error}") from None
        return schema_validator(schema, str(self.schema)), hashlib.sha256(raw).hexdigest()[:12]


def schema_validator(schema: Any, where: str) -> Any:
    """Return a validator for a JSON Schema that limits its time.

    Raises `SpecError`, starting with `where`, for an invalid schema and for references that are not in it.
    """
    from jsonschema import Draft202012Validator, SchemaError
    from jsonschema.validators import validator_for
    from referencing.exceptions import Unresolvable

    if not isinstance(schema, dict | bool):
        raise SpecError(f"{where} is no JSON Schema: one is an object, true or false")
    if isinstance(schema, dict) and not isinstance(schema.get("$schema", ""), str):
        raise SpecError(f"{where} is no JSON Schema: at $.$schema: no text")
    try:
        kind = validator_for(schema, default=Draft202012Validator)
        _check_form(schema, kind)
        _check_references(schema, kind)
        _check_patterns(schema)
    except SchemaError as error:
        raise SpecError(f"{where} is not a JSON Schema: at {error.json_path}: {error.message}") from None
    except ConstraintError as error:
        raise SpecError(f"{where}: {error}") from None
    except Unresolvable as error:
        raise SpecError(
            f"{where} refers to {error.ref!r}, which it does not contain; references are not downloaded"
        ) from None
    except RecursionError:
        raise SpecError(f"{where} is nested too deeply") from None
    if isinstance(schema, dict):  # with it a reference to the root uses jsonschema's own class
        schema = {key: value for key, value in schema.items() if key != "$schema"}
    return bounded_class(kind, _search)(schema, registry=specifications())


def first_problem(validator: Any, value: Any) -> str:
    """Return where and how a value violates a schema, or an empty string.

    Raises `InputError` for a value that is too deep or too large to check.
    """
    first, place, count = None, [""], 0
    try:
        with counted_steps():
            for broken in validator.iter_errors(value):
                count += 1
                found = list(map(str, broken.path))
                if first is None or found < place:
                    first, place = broken, found
    except (RecursionError, OverflowError) as error:  # too deep or too large to be checked
        raise InputError(f"the value cannot be checked against the schema: {error}") from None
    if first is None:
        return ""
    more = f" (and {count - 1} more)" if count > 1 else ""
    return f"at {first.json_path}: {first.message[:200]}{more}"


def _check_form(schema: Any, kind: Any) -> None:
    """Raise `SchemaError` if a schema is none, as `kind.check_schema` does, but within the deadline."""
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for

    rules = bounded_class(validator_for(kind.META_SCHEMA, default=kind), _search)
    found = rules(kind.META_SCHEMA, registry=specifications(), format_checker=kind.FORMAT_CHECKER)
    if (error := next(found.iter_errors(schema), None)) is not None:
        raise SchemaError.create_from(error)


def _check_references(schema: Any, kind: Any) -> None:
    """Raise `Unresolvable` for a reference to anything but the schema itself or a metaschema."""
    from referencing.jsonschema import specification_with

    def check(resource: Any, resolver: Any) -> None:
        own = resource.contents if isinstance(resource.contents, dict) else {}
        for keyword in REFERENCES:
            if isinstance(own.get(keyword), str):
                resolver.lookup(own[keyword])
        for each in checked(resource.subresources()):
            check(each, resolver.in_subresource(each))

    root = specification_with(kind.META_SCHEMA["$schema"]).create_resource(schema)
    check(root, specifications().resolver_with_root(root))


def _check_patterns(node: Any) -> None:
    """Raise `ConstraintError` for an invalid pattern, or one too large to compile."""
    if isinstance(node, list):
        for each in node:
            _check_patterns(each)
    elif isinstance(node, dict):
        if isinstance(node.get("pattern"), str):
            compiled(node["pattern"])
        if isinstance(node.get("patternProperties"), dict):
            for pattern in node["patternProperties"]:
                compiled(pattern)
        for each in node.values():
            _check_patterns(each)


def _search(pattern: str, text: str) -> Any:
    return searched(compiled(pattern), text)


def _read(
    text: str | bytes,
    integer: Callable[[str], int] = int,
    members: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Parse a JSON text. Raises `ValueError` with the reason for invalid text."""
    try:
        return json.loads(text, parse_constant=no_json, parse_int=integer, object_pairs_hook=members)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def unfenced(text: str) -> str:
    """Return the content of a text that is one code block, any other text unchanged."""
    lines = text.strip().split("\n")
    fenced = len(lines) > 1 and lines[0].startswith("```") and lines[-1].strip() == "```"
    return "\n".join(lines[1:-1]) if fenced else text


def no_json(word: str) -> Any:
    """Raise `ValueError` for a word that Python's parser takes for a number, such as NaN."""
    raise ValueError(f"{word} is not JSON")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises `ValueError` for a name that it has twice: one value would go unread."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {name[:100]!r} stands twice in one object")
        found[name] = value
    return found
