"""One frozen value for all that may be written: a grammar for the masks, and the way back to objects."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from magistrate.constraints.bytewise import compile_grammar, follow
from magistrate.constraints.grammar import json_grammar
from magistrate.constraints.patterns import PatternTooSlow
from magistrate.constraints.quote import Texts, quoted_sources, several
from magistrate.constraints.reader import read
from magistrate.constraints.regex import translate
from magistrate.constraints.validation import python_match, validate
from magistrate.constraints.verbatim import LONGEST_TEXTS
from magistrate.errors import ConstraintError, InvalidOutput

Kind = Literal["json", "regex", "choice", "lark"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a model may write.

    `grammar` is text in llguidance's Lark dialect. `schema` is what a finished text is validated against:
    the JSON Schema, `{"enum": [...]}` of the choices, `{"pattern": ...}` of the regular expression, None for
    a Lark grammar. `build` makes the object, given the text and the texts that it may quote. Where `quotes`
    names such texts, the grammar is there only once `over` has given them. `core` is the schema with its
    conditions written out as cases, `endless` what in it has no end, and where. `digest` names the
    constraint: 12 hexadecimal digits of a sha256, the same in every process.
    """

    kind: Kind
    grammar: str = field(repr=False)
    schema: Mapping[str, Any] | None = field(default=None, hash=False)
    build: Callable[[str, Texts], Any] | None = field(default=None, compare=False, repr=False)
    name: str = "constraint"
    texts: Texts = field(default_factory=dict, hash=False, repr=False)
    core: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    endless: tuple[str, str] | None = field(default=None, compare=False, repr=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        content = json.dumps([self.kind, self.grammar, self.schema])
        object.__setattr__(self, "digest", hashlib.sha256(content.encode()).hexdigest()[:12])

    @property
    def quotes(self) -> tuple[str, ...]:
        """The names of the texts that may be quoted, which `over` is to give."""
        return quoted_sources(self.schema) if self.kind == "json" and self.schema is not None else ()

    def over(self, **texts: str | Sequence[str]) -> Constraint:
        """This constraint with the texts that it quotes, each name one text or several.

        Raises `ConstraintError` for a name that is missing or not quoted, for texts of more than a million
        characters together, and where a quote must be written and there is nothing to quote.
        """
        if set(texts) != set(self.quotes):
            raise ConstraintError(
                f"{self.name!r} quotes {', '.join(self.quotes) or 'nothing'}; texts were given for "
                f"{', '.join(texts) or 'nothing'}"
            )
        given = {name: several(texts[name]) for name in self.quotes}
        if (length := sum(len(text) for several in given.values() for text in several)) > LONGEST_TEXTS:
            raise ConstraintError(
                f"{length:,} characters are too many to quote from; at most {LONGEST_TEXTS:,}: "
                "give the passages that matter"
            )
        return replace(self, grammar=json_grammar(self.core, given), texts=given)

    def parse(self, text: str) -> Any:
        """The object that `text` stands for, validated outside the mask engine.

        An instance of the class that the constraint was made from; plain JSON values for a JSON Schema; the
        text itself for a regular expression or a grammar. Raises `InvalidOutput`.
        """
        self.require_texts()
        if self.kind == "json":
            return self._parse_json(text)
        if self.kind == "choice":
            choices = self._schema["enum"]
            if text not in choices:
                raise InvalidOutput(f"{text[:100]!r} is none of the choices {choices[:20]}", text)
            return self.build(text, self.texts) if self.build is not None else text
        if self.kind == "regex":
            if _matched(self._schema["pattern"], text) is None:
                raise InvalidOutput(f"{text[:100]!r} does not match /{self._schema['pattern']}/", text)
            return text
        if (status := follow(self.grammar, text)) != "valid":
            raise InvalidOutput(f"{text[:100]!r} is {status} under the grammar {self.name!r}", text)
        return text

    def require_bounds(self) -> None:
        """Raise `ConstraintError`, with the JSON pointer, where a text could go on for ever or a text to
        quote is missing.

        A Lark grammar is taken as given: whether its language has a longest text is not decided here, and
        the engine steers it to its end within the budget.
        """
        self.require_texts()
        if self.endless is not None:
            raise ConstraintError(*self.endless)
        if self.kind == "regex" and not translate(self._schema["pattern"]).bounded:
            raise ConstraintError(
                f"the regular expression {self._schema['pattern']!r} has no longest text; "
                "write {m,n} instead of *, + and {n,}"
            )

    def require_texts(self) -> None:
        """Raise `ConstraintError` where the texts to quote from are missing."""
        if not self.grammar:
            raise ConstraintError(
                f"{self.name!r} quotes {', '.join(self.quotes)}; give the texts: "
                f"constraint.over({', '.join(f'{name}=…' for name in self.quotes)})"
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
        validate(reading.value, self._schema, text, self.texts)
        return self.build(text, self.texts) if self.build is not None else reading.value


def _matched(pattern: str, text: str) -> Any:
    try:
        return python_match(pattern, text)
    except PatternTooSlow as cause:
        raise InvalidOutput(f"the output cannot be checked: {cause}", text) from None


def compile_check(constraint: Constraint) -> None:
    """Raise `ConstraintError` where the mask engine cannot compile `constraint`, also where it panics."""
    try:
        compile_grammar(constraint.grammar)
    except ConstraintError as error:
        raise ConstraintError(f"{constraint.name!r}: {error}") from None
