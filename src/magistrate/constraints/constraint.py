"""One frozen value for all that may be written: a grammar for the masks, and the way back to objects."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from magistrate.constraints.bounds import require_bounded
from magistrate.constraints.bytewise import compile_grammar, follow
from magistrate.constraints.reader import read
from magistrate.constraints.regex import translate
from magistrate.constraints.validation import validate
from magistrate.errors import ConstraintError, InvalidOutput

Kind = Literal["json", "regex", "choice", "lark"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a model may write.

    `grammar` is text in llguidance's Lark dialect. `schema` is what a finished text is validated against:
    the JSON Schema, `{"enum": [...]}` of the choices, `{"pattern": ...}` of the regular expression, None for
    a Lark grammar. `build` makes the object: from the text for kind `json`, from the choice for `choice`.
    `digest` names the constraint: 12 hexadecimal digits of a sha256, the same in every process.
    """

    kind: Kind
    grammar: str
    schema: Mapping[str, Any] | None = field(default=None, hash=False)
    build: Callable[[str], Any] | None = field(default=None, compare=False, repr=False)
    name: str = "constraint"
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        content = json.dumps([self.kind, self.grammar, self.schema])
        object.__setattr__(self, "digest", hashlib.sha256(content.encode()).hexdigest()[:12])

    def parse(self, text: str) -> Any:
        """The object that `text` stands for, validated outside the mask engine.

        An instance of the class that the constraint was made from; plain JSON values for a JSON Schema; the
        text itself for a regular expression or a grammar. Raises `InvalidOutput`.
        """
        if self.kind == "json":
            return self._parse_json(text)
        if self.kind == "choice":
            choices = self._schema["enum"]
            if text not in choices:
                raise InvalidOutput(f"{text[:100]!r} is none of the choices {choices[:20]}", text)
            return self.build(text) if self.build is not None else text
        if self.kind == "regex":
            if re.fullmatch(self._schema["pattern"], text) is None:
                raise InvalidOutput(f"{text[:100]!r} does not match /{self._schema['pattern']}/", text)
            return text
        if (status := follow(self.grammar, text)) != "valid":
            raise InvalidOutput(f"{text[:100]!r} is {status} under the grammar {self.name!r}", text)
        return text

    def require_bounds(self) -> None:
        """Raise `ConstraintError`, with the JSON pointer, where a text could go on for ever.

        A Lark grammar is taken as given: whether its language has a longest text is not decided here, and
        the engine steers it to its end within the budget.
        """
        if self.kind == "json":
            require_bounded(self._schema)
        elif self.kind == "regex" and not translate(self._schema["pattern"]).bounded:
            raise ConstraintError(
                f"the regular expression {self._schema['pattern']!r} has no longest text; "
                "write {m,n} instead of *, + and {n,}"
            )

    @property
    def _schema(self) -> Mapping[str, Any]:
        assert self.schema is not None  # only a Lark grammar has none
        return self.schema

    def _parse_json(self, text: str) -> Any:
        reading = read(text)
        if reading.state != "complete":
            what = "JSON that stops in the middle" if reading.state == "open" else "not JSON"
            raise InvalidOutput(f"the output is {what}: {text[-100:]!r}", text)
        validate(reading.value, self._schema, text)
        return self.build(text) if self.build is not None else reading.value


def compile_check(constraint: Constraint) -> None:
    """Raise `ConstraintError` where the mask engine cannot compile `constraint`, also where it panics."""
    try:
        compile_grammar(constraint.grammar)
    except ConstraintError as error:
        raise ConstraintError(f"{constraint.name!r}: {error}") from None
