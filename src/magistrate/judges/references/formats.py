"""Whether an output has a format, whatever it says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from magistrate.constraints.validation import specifications
from magistrate.deadline import check
from magistrate.engines.base import Engine
from magistrate.errors import InputError, SpecError
from magistrate.judges.base import NO_LIMIT, JudgeInfo
from magistrate.judges.references.texts import compiled, searched
from magistrate.types import Outcome, Sample, Verdict

VALID, INVALID = "valid", "invalid"
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


@dataclass(frozen=True)
class JsonValid:
    """Whether the output is JSON (RFC 8259, no `NaN`) and, with `schema`, what the JSON Schema in it allows.

    `fenced` lets it stand in a Markdown code block, as models like to write it. A schema follows the draft
    that it names, 2020-12 where it names none; formats are not checked, and nothing is fetched. A `pattern`
    is one of the judge `regex`, with its limit of time. Raises `SpecError` for a file that is not there,
    holds no schema or refers to what is not in it.
    """

    name: str = "json_valid"
    schema: Path | None = None
    fenced: bool = False

    def __post_init__(self) -> None:
        if self.schema is not None:
            object.__setattr__(self, "schema", Path(self.schema).expanduser().absolute())
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
        """What is wrong with a text, in words; empty where nothing is."""
        if not text.strip():
            return "the output is empty"
        try:
            value = _read(_unfenced(text) if self.fenced else text, self._integer)
        except ValueError as error:
            return f"not JSON: {error}"
        if self.schema is None:
            return ""
        try:
            found = list(self._validator[0].iter_errors(value))
        except (RecursionError, OverflowError) as error:  # nested or large beyond what can be checked
            raise InputError(f"the value cannot be held against the schema: {error}") from None
        errors = sorted(found, key=lambda error: list(map(str, error.path)))
        if not errors:
            return ""
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        return f"at {errors[0].json_path}: {errors[0].message[:200]}{more}"

    def _integer(self, digits: str) -> int:
        """Its value; any where it has more digits than Python reads and nobody asks for it."""
        try:
            return int(digits)
        except ValueError:
            if self.schema is None:
                return 0
            raise InputError(
                f"an integer of {len(digits):,} characters is too long to be held against a schema"
            ) from None

    @cached_property
    def _validator(self) -> tuple[Any, str]:
        """What checks values, and a digest of the schema."""
        from jsonschema import Draft202012Validator, SchemaError
        from jsonschema.validators import extend, validator_for
        from referencing.exceptions import Unresolvable

        assert self.schema is not None
        try:
            raw = self.schema.read_bytes()
            schema = _read(raw)
            kind = validator_for(schema, default=Draft202012Validator)
            kind.check_schema(schema)
            _check_references(schema, kind)
        except OSError as error:
            raise SpecError(f"cannot read the schema {self.schema}: {error.strerror}") from None
        except ValueError as error:
            raise SpecError(f"{self.schema} is not JSON: {error}") from None
        except SchemaError as error:
            raise SpecError(
                f"{self.schema} is no JSON Schema: at {error.json_path}: {error.message}"
            ) from None
        except Unresolvable as error:
            raise SpecError(
                f"{self.schema} refers to {error.ref!r}, which is not in it; nothing is fetched"
            ) from None
        except RecursionError:
            raise SpecError(f"{self.schema} is nested too deeply") from None
        if isinstance(schema, dict):
            schema.pop("$schema", None)  # with it a reference to the root goes back to jsonschema's own class
        made = extend(kind, {"pattern": _pattern})(schema, registry=specifications())
        return made, hashlib.sha256(raw).hexdigest()[:12]


def _check_references(schema: Any, kind: Any) -> None:
    """Raise `Unresolvable` where a schema refers to what is neither in it nor a metaschema."""
    from referencing.jsonschema import specification_with

    def check(resource: Any, resolver: Any) -> None:
        own = resource.contents if isinstance(resource.contents, dict) else {}
        for keyword in REFERENCES:
            if isinstance(own.get(keyword), str):
                resolver.lookup(own[keyword])
        for each in resource.subresources():
            check(each, resolver.in_subresource(each))

    root = specification_with(kind.META_SCHEMA["$schema"]).create_resource(schema)
    check(root, specifications().resolver_with_root(root))


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    check()
    if isinstance(instance, str) and not searched(compiled(pattern), instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _read(text: str | bytes, integer: Callable[[str], int] = int) -> Any:
    """The value that a JSON text is. Raises `ValueError`, which says why, where it is none."""
    try:
        return json.loads(text, parse_constant=_no_json, parse_int=integer)
    except RecursionError:
        raise ValueError("it is nested too deeply to be read") from None


def _unfenced(text: str) -> str:
    """What stands in the one code block that a text is; the text itself where it is none."""
    lines = text.strip().split("\n")
    fenced = len(lines) > 1 and lines[0].startswith("```") and lines[-1].strip() == "```"
    return "\n".join(lines[1:-1]) if fenced else text


def _no_json(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")
