"""Whether an output has a format, whatever it says."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.judges.base import JudgeInfo
from magistrate.judges.references.matching import NO_LIMIT
from magistrate.types import Outcome, Sample, Verdict

VALID, INVALID = "valid", "invalid"


@dataclass(frozen=True)
class JsonValid:
    """Whether the output is JSON (RFC 8259, no `NaN`) and, with `schema`, what the JSON Schema in it allows.

    `fenced` lets it stand in a Markdown code block, as models like to write it. A schema follows the draft
    that it names, 2020-12 where it names none; formats are not checked. Raises `SpecError` for a file that
    is not there or holds no schema.
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
            value = json.loads(_unfenced(text) if self.fenced else text, parse_constant=_no_json)
        except ValueError as error:
            return f"not JSON: {error}"
        if self.schema is None:
            return ""
        errors = sorted(self._validator[0].iter_errors(value), key=lambda error: list(map(str, error.path)))
        if not errors:
            return ""
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        return f"at {errors[0].json_path}: {errors[0].message[:200]}{more}"

    @cached_property
    def _validator(self) -> tuple[Any, str]:
        """What checks values, and a digest of the schema."""
        from jsonschema import Draft202012Validator, SchemaError
        from jsonschema.validators import validator_for

        assert self.schema is not None
        try:
            raw = self.schema.read_bytes()
            schema = json.loads(raw)
            kind = validator_for(schema, default=Draft202012Validator)
            kind.check_schema(schema)
        except OSError as error:
            raise SpecError(f"cannot read the schema {self.schema}: {error.strerror}") from None
        except ValueError as error:
            raise SpecError(f"{self.schema} is not JSON: {error}") from None
        except SchemaError as error:
            raise SpecError(
                f"{self.schema} is no JSON Schema: at {error.json_path}: {error.message}"
            ) from None
        return kind(schema), hashlib.sha256(raw).hexdigest()[:12]


def _unfenced(text: str) -> str:
    """What stands in the one code block that a text is; the text itself where it is none."""
    lines = text.strip().splitlines()
    fenced = len(lines) > 1 and lines[0].startswith("```") and lines[-1].strip() == "```"
    return "\n".join(lines[1:-1]) if fenced else text


def _no_json(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")
