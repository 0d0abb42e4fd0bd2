"""From what a person writes, a class, a schema, a pattern, some choices, to one `Constraint`."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import FunctionType
from typing import Any, Literal

from magistrate.constraints.bounds import endless
from magistrate.constraints.cases import written_out
from magistrate.constraints.constraint import Constraint
from magistrate.constraints.grammar import choice_grammar, json_grammar, regex_grammar
from magistrate.constraints.keywords import LARK
from magistrate.constraints.modern import modern
from magistrate.constraints.patterns import compiled
from magistrate.constraints.quote import Texts, quoted_sources
from magistrate.constraints.schema import check_schema, check_writable
from magistrate.constraints.unroll import unrolled
from magistrate.constraints.validation import python
from magistrate.errors import ConstraintError, InvalidOutput

ACCEPTED = (
    "a pydantic model, a dataclass, an Enum, Literal[...], an annotation such as bool or list[...], "
    "a JSON Schema (dict), a compiled re.Pattern, a list of choices (str), Lark(text) or a Constraint"
)
_INLINE_FLAGS = {re.IGNORECASE: "i", re.DOTALL: "s", re.VERBOSE: "x", re.MULTILINE: "m", re.ASCII: "a"}


@dataclass(frozen=True, slots=True)
class Lark:
    """A grammar in llguidance's Lark dialect, with a rule `start`.

    By itself it is a constraint on the whole text. `Annotated[str, Lark(...)]` holds a string inside an
    object to it; then regular expressions match no quotation mark, backslash or control character.
    """

    text: str

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(schema), LARK: self.text}


def constraint(spec: object, *, depth: int | None = None) -> Constraint:
    """What `spec` allows to be written, and the way back to an object.

    Accepts what `ACCEPTED` lists. Of a type or schema that refers to itself at most `depth` are written
    inside each other. Choices, a `Literal` and an `Enum` are written bare (`yes`, not `"yes"`) when all their
    values are strings. Every other type is written as compact JSON with exactly the declared
    keys in the declared order. Raises `ConstraintError`, with the JSON pointer where there is one.
    """
    if isinstance(spec, Constraint):
        return spec
    if isinstance(spec, Lark):
        return Constraint("lark", spec.text, name="lark")
    if isinstance(spec, re.Pattern):
        return _from_pattern(spec)
    if isinstance(spec, Mapping):
        return _from_schema(spec, depth)
    if isinstance(spec, list | tuple):
        return _from_choices(spec, "choice")
    if isinstance(spec, bool):
        raise ConstraintError(
            f"the schema {str(spec).lower()} allows {'anything' if spec else 'nothing'}", "#"
        )
    if typing.get_origin(spec) is Literal and all(isinstance(value, str) for value in typing.get_args(spec)):
        return _from_choices(typing.get_args(spec), "literal")
    if isinstance(spec, type) and issubclass(spec, Enum):
        members = {member.value: member for member in spec}
        if members and all(type(value) is str for value in members):
            return _from_choices(list(members), spec.__name__, members)
    return _from_type(spec, depth)


def _from_choices(choices: Sequence[Any], name: str, members: Mapping[str, Any] | None = None) -> Constraint:
    if not choices or not all(isinstance(choice, str) and choice for choice in choices):
        raise ConstraintError(f"choices are strings, at least one and none empty; got {list(choices)!r:.200}")
    if len(set(choices)) != len(choices):
        raise ConstraintError(f"choices must differ, got {list(choices)!r:.200}")
    build = None if members is None else lambda text, _: members[text]
    return Constraint("choice", choice_grammar(choices), {"enum": list(choices)}, build, name)


def _from_pattern(pattern: re.Pattern[Any]) -> Constraint:
    if not isinstance(pattern.pattern, str):
        raise ConstraintError(f"a pattern over text is needed, got one over bytes: {pattern.pattern!r}")
    flags = "".join(letter for flag, letter in _INLINE_FLAGS.items() if pattern.flags & flag)
    text = f"(?{flags}){pattern.pattern}" if flags else pattern.pattern
    try:
        re.compile(text)
    except re.error:  # flags are written at the beginning of the pattern already
        text = pattern.pattern
    compiled(python(text))  # what a finished text is held against
    return Constraint("regex", regex_grammar(text), {"pattern": text}, name="regex")


def _from_schema(schema: Mapping[str, Any], depth: int | None) -> Constraint:
    try:
        plain = json.loads(json.dumps(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"the schema is not plain JSON: {error}", "#") from None
    return _from_json(plain, None, str(plain.get("title", "schema")), depth)


def _from_json(
    schema: dict[str, Any], build: Callable[[str, Texts], Any] | None, name: str, depth: int | None
) -> Constraint:
    try:
        schema = modern(schema)
        check_schema(schema)
        if depth is not None:
            schema = unrolled(schema, depth)
        core = written_out(schema)
        check_writable(core)
        grammar = "" if quoted_sources(core) else json_grammar(core)
        return Constraint("json", grammar, schema, build, name, core=core, endless=endless(core))
    except RecursionError:
        raise ConstraintError("the schema nests too deep; name its parts in $defs", "#") from None


def _from_type(spec: Any, depth: int | None) -> Constraint:
    from pydantic import PydanticUserError, TypeAdapter, ValidationError

    name = getattr(spec, "__name__", None) or str(spec)
    if spec is None or isinstance(spec, str | bytes | int | float | FunctionType):
        raise ConstraintError(f"{spec!r:.100} does not say what may be written; accepted: {ACCEPTED}")
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(spec)
        schema = adapter.json_schema(mode="validation")
    except (PydanticUserError, NameError, TypeError, RecursionError) as error:
        reason = str(error).split("\n", 1)[0]
        raise ConstraintError(
            f"{spec!r:.100} does not say what may be written ({reason}); accepted: {ACCEPTED}"
        ) from None

    def build(text: str, texts: Texts) -> Any:
        try:
            return adapter.validate_json(text, context=texts)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(str(step) for step in first["loc"]) or name
            raise InvalidOutput(f"the output is no {name}: {where}: {first['msg']}", text) from None

    return _from_json(_exactly_declared(schema), build, name, depth)


def _exactly_declared(node: Any) -> Any:
    """A class's schema with every declared property required and no other allowed."""
    if isinstance(node, list):
        return [_exactly_declared(child) for child in node]
    if not isinstance(node, dict):
        return node
    written = {
        keyword: value if keyword in ("enum", "const", "default", "examples") else _exactly_declared(value)
        for keyword, value in node.items()
    }
    if node.get("type") == "object" and isinstance(node.get("properties"), dict):
        written["properties"] = {name: _exactly_declared(child) for name, child in node["properties"].items()}
        written["required"] = list(node["properties"])
        written["additionalProperties"] = False
    return written
